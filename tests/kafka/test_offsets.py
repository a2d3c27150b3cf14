"""Where a source begins, and moving it: nothing twice, nothing skipped that is not written down."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from bronze import ingest, offsets
from bronze.move import carry_out, forgotten
from bronze.offsets import offsets_of_source
from cli.tables.accounts import account_of
from lakehouse.contracts.topics import Source, StartAtOffsets, StartAtTimestamp, Topics
from lakehouse.errors import KafkaError, RetentionGapError, SettingsError, TopicChangedError, TopicMissingError
from lakehouse.kafka.broker import client_config, partitions
from tests.support.shop import OTHER, TOPIC, Shop, create, delete, delete_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def test_a_first_run_begins_at_the_earliest_record_and_every_later_one_continues(shop: Shop) -> None:
    shop.produce("a-0", "a-1")
    shop.produce("b-0", partition=1)
    shop.run()
    shop.produce("a-2")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2", "b-0"]
    assert shop.written_down() == []


@pytest.mark.parametrize(
    ("start", "expected", "skipped"),
    [
        ("latest", ["a-3"], [(TOPIC, 0, 0, 3), (TOPIC, 1, 0, 1)]),
        (StartAtTimestamp(timestamp=datetime(2026, 1, 1, 12, 2)), ["a-2", "a-3"], [(TOPIC, 0, 0, 2), (TOPIC, 1, 0, 1)]),
        (StartAtOffsets(offsets={TOPIC: {0: 1}}), ["a-1", "a-2", "a-3", "b-0"], [(TOPIC, 0, 0, 1)]),
    ],
    ids=["latest", "timestamp", "offsets"],
)
def test_a_first_run_begins_where_the_contract_says_and_writes_down_what_it_skips(
    shop: Shop, start: Any, expected: list[str], skipped: list[tuple[str, int, int, int]]
) -> None:
    shop.produce("a-0", "a-1", "a-2")
    shop.produce("b-0", partition=1)
    shop = replace(shop, source=shop.source.model_copy(update={"start": start}))
    shop.run()
    shop.produce("a-3")
    shop.run()
    assert shop.values() == expected
    assert shop.written_down() == skipped


def test_an_offset_that_the_partition_does_not_have_is_refused(shop: Shop) -> None:
    source = shop.source.model_copy(update={"start": StartAtOffsets(offsets={TOPIC: {0: 7}})})
    with pytest.raises(SettingsError, match=r"partition 0 has no offset 7\. It has 0 to 0"):
        replace(shop, source=source).run()


def test_a_source_moved_back_reads_again_and_stores_nothing_twice(shop: Shop) -> None:
    shop.produce("a-0", "a-1", "a-2")
    shop.run()
    assert shop.move("1", topic=TOPIC, partition=0) == [(TOPIC, 0, 3, 1)]
    shop.produce("a-3")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2", "a-3"]
    # Not even after the new checkpoint is lost in its turn.
    shutil.rmtree(f"{shop.chosen.checkpoints}/bronze/shop.1")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2", "a-3"]


def test_what_was_skipped_is_written_down_and_can_be_read_later(shop: Shop) -> None:
    shop.produce("a-0")
    shop.run()
    shop.produce("a-1", "a-2")
    shop.produce("b-0", partition=1)
    assert shop.move("latest", partition=0) == [(TOPIC, 0, 1, 3)]
    shop.produce("a-3")
    shop.run()
    assert shop.values() == ["a-0", "a-3", "b-0"]
    assert shop.written_down() == [(TOPIC, 0, 1, 3)]
    shop.move("2026-01-01T12:00:30")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2", "a-3", "b-0"]


def test_a_lost_checkpoint_does_not_bring_back_what_was_skipped(shop: Shop) -> None:
    shop.produce("a-0", "a-1")
    shop.move("latest")
    shop.produce("a-2")
    shop.run()
    shutil.rmtree(shop.chosen.checkpoints)
    shop.produce("a-3")
    shop.run()
    assert shop.values() == ["a-2", "a-3"]


def test_records_that_are_gone_stop_the_source_until_a_person_says_so(shop: Shop) -> None:
    shop.produce("a-0")
    shop.run()
    shop.produce("a-1", "a-2", "a-3")
    delete_records(shop.kafka, before=3)
    gone = r"offsets 1 to 2\. Nothing was skipped\..* lakehouse offsets set shop --to earliest --only-gaps"
    with pytest.raises(RetentionGapError, match=gone):
        shop.run()
    assert shop.values() == ["a-0"]
    assert shop.move("earliest", only_gaps=True) == [(TOPIC, 0, 1, 3)]
    shop.run()
    assert shop.values() == ["a-0", "a-3"]
    assert shop.written_down() == [(TOPIC, 0, 1, 3)]
    with pytest.raises(SettingsError, match="No partition of source shop has a gap"):
        shop.move("earliest", only_gaps=True)


def test_a_topic_made_again_stops_the_source_until_a_person_says_so(shop: Shop) -> None:
    shop.produce("a-0", "a-1")
    shop.run()
    delete(shop.kafka, TOPIC)
    create(shop.kafka, TOPIC)
    shop.produce("new-0")
    with pytest.raises(TopicChangedError, match="was deleted and made again") as refused:
        shop.run()
    assert f"lakehouse offsets set shop --topic {TOPIC} --to earliest" in refused.value.hint
    shop.move("earliest", topic=TOPIC)
    shop.run()
    shop.produce("new-1")
    shop.run()
    # The new records have offsets that the old ones had: they are told apart by the topic's id.
    assert shop.values() == ["a-0", "a-1", "new-0", "new-1"]
    assert shop.warehouse.read("bronze.shop_events").select("_topic_id").distinct().count() == 2


def test_several_topics_made_again_are_one_command(shop: Shop) -> None:
    """Else each command would be refused for the other topic."""
    create(shop.kafka, OTHER, 1)
    both = replace(shop, source=shop.source.model_copy(update={"ignored_topics": (OTHER,)}))
    both.produce("a-0")
    both.produce("c-0", topic=OTHER)
    both.run()
    delete(shop.kafka, TOPIC, OTHER)
    create(shop.kafka, TOPIC)
    create(shop.kafka, OTHER, 1)
    both.produce("new-0")
    both.produce("other-0", topic=OTHER)
    with pytest.raises(TopicChangedError, match="topics were deleted and made again") as refused:
        both.run()
    assert f"{OTHER}, {TOPIC}" in refused.value.what
    assert "lakehouse offsets set shop --to earliest." in refused.value.hint
    both.move("earliest")
    both.run()
    assert both.values() == ["a-0", "c-0", "new-0", "other-0"]


def test_a_topic_that_the_contract_drops_stops_the_source_until_it_is_given_up(shop: Shop) -> None:
    create(shop.kafka, OTHER, 1)
    both = replace(shop, source=shop.source.model_copy(update={"ignored_topics": (OTHER,)}))
    both.produce("c-0", topic=OTHER)
    both.run()
    with pytest.raises(TopicChangedError, match="which is not in the contract any more"):
        shop.run()
    known = partitions(shop.kafka)
    with pytest.raises(SettingsError, match=r"Take it out of bronze/topics.yaml first"):
        forgotten(shop.warehouse, shop.kafka, "shop", both.source, known=known, topic=OTHER)
    carry_out(shop.warehouse, forgotten(shop.warehouse, shop.kafka, "shop", shop.source, known=known, topic=OTHER))
    shop.produce("a-0")
    shop.run()
    assert shop.values() == ["a-0", "c-0"]


def test_a_partition_that_comes_later_is_read_whole(shop: Shop) -> None:
    shop = replace(shop, source=shop.source.model_copy(update={"start": "latest"}))
    shop.run()
    admin = AdminClient(client_config(shop.kafka))
    admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result()
    shop.produce("c-0", partition=2)
    shop.run()
    assert shop.values() == ["c-0"]


def test_a_topic_and_a_partition_that_join_without_their_first_records_are_read_from_what_they_have(shop: Shop) -> None:
    feed = {"topic_patterns": [r"offsets\.[oc].*"], "envelope": "table"}
    shop = replace(shop, source=Source.model_validate({"kind": "mysql", "feeds": {"orders": feed}}))
    shop.produce("a-0", "a-1", "a-2")
    shop.run()
    # Three records are read again: two of them are not when the topic joins.
    assert shop.move("0", topic=TOPIC, partition=0) == [(TOPIC, 0, 3, 0)]
    one_at_a_time = replace(shop, chosen=replace(shop.chosen, max_offsets_per_trigger=1))
    with pytest.MonkeyPatch.context() as stopping:
        append = ingest.append_batch

        def once(batch: DataFrame, number: int, **more: Any) -> None:
            if number:
                raise RuntimeError("the process ends here")
            append(batch, number, **more)

        stopping.setattr(ingest, "append_batch", once)
        with pytest.raises(Exception, match="bronze: shop: the stream stopped"):
            one_at_a_time.run()
    create(shop.kafka, OTHER, 1)
    shop.produce("c-0", "c-1", "c-2", topic=OTHER)
    delete_records(shop.kafka, before=2, topic=OTHER)
    admin = AdminClient(client_config(shop.kafka))
    admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result()
    shop.produce("d-0", "d-1", partition=2)
    delete_records(shop.kafka, before=1, partition=2)
    counted = {"a-0", "a-1", "a-2", "c-2", "d-1"}
    shop.run()
    assert shop.values() == sorted(counted)
    shop.produce("a-3")
    shop.produce("c-3", topic=OTHER)
    shop.run()
    assert shop.values() == sorted({*counted, "a-3", "c-3"})
    assert shop.written_down() == [], "nothing was skipped"
    assert account_of(shop.warehouse, "shop").findings.keys() <= {"pending"}


def test_a_topic_that_a_stream_could_not_take_up_is_read_by_the_next_run(shop: Shop) -> None:
    """As the stream of an earlier release left it: its partition is written down, and its batch planned."""
    feed = {"topic_patterns": [r"offsets\.[oc].*"], "envelope": "table"}
    shop = replace(shop, source=Source.model_validate({"kind": "mysql", "feeds": {"orders": feed}}))
    shop.produce("a-0")
    shop.run()
    create(shop.kafka, OTHER, 1)
    shop.produce("c-0", "c-1", topic=OTHER)
    shop.produce("a-1")
    delete_records(shop.kafka, before=1, topic=OTHER)
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(offsets, "cannot_join", lambda *_given: [])
        with pytest.raises(KafkaError, match=r"a partition joined .* Run the job again"):
            shop.run()
    shop.run()
    assert shop.values() == ["a-0", "a-1", "c-1"]
    assert account_of(shop.warehouse, "shop").findings.keys() <= {"pending"}


def test_topics_are_found_by_pattern_and_a_pattern_without_one_is_named(shop: Shop) -> None:
    feed = {"topic_patterns": [r"offsets\.[oc].*"], "envelope": "table"}
    by_pattern = replace(shop, source=Source.model_validate({"kind": "mysql", "feeds": {"orders": feed}}))
    shop.produce("a-0")
    by_pattern.run()
    create(shop.kafka, OTHER, 1)
    shop.produce("c-0", topic=OTHER)
    by_pattern.run()
    assert shop.values() == ["a-0", "c-0"]
    feed = {"topics": ["offsets.order"], "topic_patterns": [r"nothing\..*"], "envelope": "table"}
    source = Source.model_validate({"kind": "mysql", "feeds": {"orders": feed}})
    missing = rf"topic offsets\.order \(did you mean '{TOPIC}'\?\); a topic that matches 'nothing"
    with pytest.raises(TopicMissingError, match=missing):
        replace(shop, source=source).run()


def test_every_step_says_where_the_source_stands(shop: Shop) -> None:
    shop.produce("a-0", "a-1")
    shop.run()
    shop.produce("a-2")
    known = partitions(shop.kafka)
    source_offsets = offsets_of_source(shop.warehouse, shop.kafka, "shop", shop.source, known=known)
    assert json.loads(json.dumps([list(topic_partition) for topic_partition in source_offsets.following])) == [
        [TOPIC, 0],
        [TOPIC, 1],
    ]
    assert list(source_offsets.following.values()) == [2, 0]
    counted = ingest.pending(shop.warehouse.spark, shop.chosen, Topics(sources={"shop": shop.source}), known=known)
    assert counted == {TOPIC: 1}
