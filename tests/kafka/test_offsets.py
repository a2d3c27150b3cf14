"""Where a source begins, and moving it: nothing twice, nothing skipped that is not written down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bronze import ingest
from bronze.move import Move, carry_out, forgotten, planned
from bronze.standing import standing_of
from lakehouse.config import Settings, settings
from lakehouse.contracts import Source, StartAtOffsets, StartAtTimestamp, Topics
from lakehouse.errors import RetentionGapError, SettingsError, TopicChangedError, TopicMissingError
from lakehouse.kafka import client_config, partitions
from lakehouse.kafka_client import KafkaConnection
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

TOPIC, OTHER = "offsets.orders", "offsets.customers"
NOON_MS = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True)
class Shop:
    """One source with one topic of two partitions, and the bronze table it fills."""

    kafka: KafkaConnection
    warehouse: Warehouse
    chosen: Settings
    source: Source

    def produce(self, *values: str, topic: str = TOPIC, partition: int = 0) -> None:
        """Records a minute apart, from noon on, by their number in the partition."""
        producer = Producer(client_config(self.kafka))
        for value in values:
            minute = int(value.rsplit("-", 1)[1])
            producer.produce(topic, value=value, partition=partition, timestamp=NOON_MS + minute * 60_000)
        assert producer.flush(30) == 0

    def run(self) -> None:
        topics = Topics(sources={"shop": self.source})
        ingest.run(self.warehouse.spark, self.chosen, topics, known=partitions(self.kafka))

    def move(self, to: str, **narrow: Any) -> list[tuple[str, int, int, int]]:
        """Move the source; topic, partition, from and to of every step that moves."""
        known = partitions(self.kafka)
        steps = planned(
            self.warehouse, self.kafka, "shop", self.source, known=known, move=Move(to=to, reason="a test", **narrow)
        )
        carry_out(self.warehouse, steps)
        return [
            (step.topic, step.partition, step.from_offset, step.to_offset)
            for step in steps
            if step.from_offset != step.to_offset
        ]

    def values(self) -> list[str]:
        rows = self.warehouse.read("bronze.shop_events").collect()
        return sorted(bytes(row["value"]).decode() for row in rows)

    def written_down(self) -> list[tuple[str, int, int, int]]:
        """What was skipped, as `ops.offsets` has it."""
        rows = self.warehouse.read("ops.offsets").where("skipped > 0").orderBy("change", "topic", "partition").collect()
        return [(row["topic"], row["partition"], row["from_offset"], row["to_offset"]) for row in rows]


@pytest.fixture
def shop(spark: SparkSession, bootstrap_servers: str, tmp_path: Path) -> Iterator[Shop]:
    chosen = settings(warehouse=str(tmp_path / "warehouse"), bootstrap_servers=bootstrap_servers)
    source = Source.model_validate(
        {"kind": "postgresql", "feeds": {"orders": {"topics": [TOPIC], "envelope": "table"}}}
    )
    kafka = chosen.kafka()
    create(kafka, TOPIC)
    yield Shop(kafka, Warehouse(spark, chosen.warehouse, chosen.checkpoints), chosen, source)
    delete(kafka, *(topic for topic in (TOPIC, OTHER) if topic in partitions(kafka)))


def create(kafka: KafkaConnection, topic: str, count: int = 2) -> None:
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(topic, num_partitions=count, replication_factor=1)])[topic].result()


def delete(kafka: KafkaConnection, *topics: str) -> None:
    admin = AdminClient(client_config(kafka))
    for deleted in admin.delete_topics(list(topics)).values() if topics else ():
        deleted.result()


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
    assert f"lakehouse offsets set shop --topic {TOPIC} --to earliest" in refused.value.remedy
    shop.move("earliest", topic=TOPIC)
    shop.run()
    shop.produce("new-1")
    shop.run()
    # The new records have offsets that the old ones had: they are told apart by the topic's id.
    assert shop.values() == ["a-0", "a-1", "new-0", "new-1"]
    assert shop.warehouse.read("bronze.shop_events").select("_topic_id").distinct().count() == 2


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
    missing = rf"topic offsets\.order \(did you mean {TOPIC}\?\); a topic that matches 'nothing"
    with pytest.raises(TopicMissingError, match=missing):
        replace(shop, source=source).run()


def test_every_step_says_where_the_source_stands(shop: Shop) -> None:
    shop.produce("a-0", "a-1")
    shop.run()
    shop.produce("a-2")
    known = partitions(shop.kafka)
    standing = standing_of(shop.warehouse, shop.kafka, "shop", shop.source, known=known)
    assert json.loads(json.dumps([list(place) for place in standing.following])) == [[TOPIC, 0], [TOPIC, 1]]
    assert list(standing.following.values()) == [2, 0]
    counted = ingest.waiting(shop.warehouse.spark, shop.chosen, Topics(sources={"shop": shop.source}), known=known)
    assert counted == {TOPIC: 1}


def delete_records(kafka: KafkaConnection, *, before: int) -> None:
    """As retention does: the first records of partition 0 are gone."""
    from confluent_kafka import TopicPartition

    admin = AdminClient(client_config(kafka))  # named: its requests end with it
    for deleted in admin.delete_records([TopicPartition(TOPIC, 0, before)]).values():
        deleted.result()
