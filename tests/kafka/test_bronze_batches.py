"""The rows `planned` of `ops.batches`: what every batch of bronze was to read, through the real ingest."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bronze import ingest
from bronze.batches import planned_of
from bronze.source_state import steps_in
from cli.tables.accounts import account_of
from lakehouse.batches import batches as batches_of
from lakehouse.contracts.topics import Source, Topics
from lakehouse.kafka.broker import partitions
from tests.support.shop import OTHER, TOPIC, Shop, create, delete, delete_records

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def batches(warehouse: Warehouse) -> list[tuple[int, int, int, int, int]]:
    """Batch, partition, from, until and records of every row."""
    rows = planned_of(batches_of(warehouse, "bronze")).orderBy("written_at", "batch", "partition").collect()
    assert {(row["source"], row["topic"]) for row in rows} == {("shop", TOPIC)}
    assert {row["topic_id"] for row in rows} == {
        row["_topic_id"] for row in warehouse.read("bronze.shop_events").select("_topic_id").distinct().collect()
    }
    return [(row["batch"], row["partition"], row["from_offset"], row["until_offset"], row["records"]) for row in rows]


def found(warehouse: Warehouse) -> dict[str, list[tuple[int, int, int]]]:
    """What verify has to say of bronze, by kind: partition, first and last offset."""
    findings = account_of(warehouse, "shop").findings
    return {
        kind: [(one["partition"], one["first"], one["last"]) for one in of_kind.shown]
        for kind, of_kind in findings.items()
        if kind != "pending"
    }


def test_every_batch_says_what_it_was_to_read_and_how_much_came(shop: Shop) -> None:
    shop = replace(shop, chosen=replace(shop.chosen, max_offsets_per_trigger=2))
    shop.produce("a-0", "a-1", "a-2")
    shop.run()
    expected = [(0, 0, 0, 2, 2), (1, 0, 2, 3, 1)]
    assert batches(shop.warehouse) == expected
    # A second run goes on in the same checkpoint, with a partition that has begun meanwhile.
    shop.produce("a-3")
    shop.produce("b-0", partition=1)
    shop.run()
    expected += [(2, 0, 3, 4, 1), (2, 1, 0, 1, 1)]
    assert batches(shop.warehouse) == expected
    # Moved forward: offsets 4 and 5 are skipped, and the batches of the new checkpoint begin after them.
    shop.produce("a-4", "a-5")
    shop.move("latest", topic=TOPIC, partition=0)
    shop.produce("a-6")
    shop.run()
    expected += [(0, 0, 6, 7, 1)]
    assert batches(shop.warehouse) == expected
    assert found(shop.warehouse) == {"skipped": [(0, 4, 5)]}
    # Moved back: what bronze has of the range counts, whoever stored it. Of four offsets a batch reads two.
    shop.move("3", topic=TOPIC, partition=0)
    shop.run()
    expected += [(0, 0, 3, 5, 2), (1, 0, 5, 7, 2)]
    assert batches(shop.warehouse) == expected
    assert found(shop.warehouse) == {}
    # A lost checkpoint: the range is read again once more, and none of it is stored again.
    shutil.rmtree(shop.chosen.checkpoints)
    shop.produce("a-7")
    shop.run()
    assert batches(shop.warehouse)[len(expected) :] == [(0, 0, 3, 5, 2), (1, 0, 5, 7, 2), (2, 0, 7, 8, 1)]
    assert found(shop.warehouse) == {}


def test_an_older_copy_of_the_checkpoint_skips_nothing(shop: Shop, tmp_path: Path) -> None:
    """Its batches have the numbers of batches that the table has: Delta would take what is new for those."""
    shop.produce("a-0")
    shop.run()
    shutil.copytree(shop.chosen.checkpoints, tmp_path / "backup")
    shop.produce("a-1", "a-2")
    shop.run()
    shop.produce("a-3")
    shop.run()
    shutil.rmtree(shop.chosen.checkpoints)
    shutil.copytree(tmp_path / "backup", shop.chosen.checkpoints)
    shop.produce("a-4")
    shop.run()
    shop.produce("a-5")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2", "a-3", "a-4", "a-5"]
    assert found(shop.warehouse) == {}
    assert "the checkpoint was that of another stream, or an older one" in reasons(shop.warehouse)


def test_the_checkpoint_of_another_stream_skips_nothing(shop: Shop) -> None:
    """Spark ends the first of two streams of one id without an error; and where it does not, the offsets are others."""
    create(shop.kafka, OTHER)
    feeds = {"others": {"topics": [OTHER], "envelope": "table"}}
    sources = {"shop": shop.source, "other": Source.model_validate({"kind": "mysql", "feeds": feeds})}
    try:
        shop.produce("a-0")
        shop.produce("o-0", topic=OTHER)
        run_both(shop, sources)
        own, theirs = (Path(shop.chosen.checkpoints) / "bronze" / name for name in ("shop", "other"))
        shutil.rmtree(own)
        shutil.copytree(theirs, own)
        shop.produce("a-1", "a-2")
        shop.produce("o-1", topic=OTHER)
        run_both(shop, sources)
        shop.produce("a-3")
        run_both(shop, sources)
        assert shop.values() == ["a-0", "a-1", "a-2", "a-3"]
        rows = shop.warehouse.read("bronze.other_events").collect()
        assert sorted(bytes(row["value"]).decode() for row in rows) == ["o-0", "o-1"]
    finally:
        delete(shop.kafka, OTHER)


def run_both(shop: Shop, sources: dict[str, Source]) -> None:
    ingest.run(shop.warehouse.spark, shop.chosen, Topics(sources=sources), known=partitions(shop.kafka))


def reasons(warehouse: Warehouse) -> set[str]:
    """Why the source was moved."""
    return {row["reason"] for row in steps_in(batches_of(warehouse, "bronze")).collect()}


def test_a_batch_that_was_stored_and_not_written_down_is_when_it_is_repeated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bronze import ingest

    shop.produce("a-0", "a-1")
    with monkeypatch.context() as crashing:
        crashing.setattr(ingest, "write_down_batch", _crash)
        with pytest.raises(Exception, match="bronze: shop: the stream stopped"):
            shop.run()
    assert shop.values() == ["a-0", "a-1"]
    assert planned_of(batches_of(shop.warehouse, "bronze")).isEmpty()
    shop.produce("a-2")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2"]
    assert batches(shop.warehouse) == [(0, 0, 0, 2, 2), (1, 0, 2, 3, 1)]


def test_one_whose_source_was_moved_meanwhile_is_written_down_before_bronze_reads_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint was left, so nobody repeats it; and silver reads nothing that is not written down."""
    from bronze import ingest

    shop.produce("a-0")
    shop.run()
    shop.produce("a-1", "a-2")
    with monkeypatch.context() as crashing:
        crashing.setattr(ingest, "write_down_batch", _crash)
        with pytest.raises(Exception, match="bronze: shop: the stream stopped"):
            shop.run()
    shop.move("latest", topic=TOPIC, partition=0)
    shop.produce("a-3")
    shop.run()
    assert shop.values() == ["a-0", "a-1", "a-2", "a-3"]
    assert [row[1:] for row in batches(shop.warehouse)] == [(0, 0, 1, 1), (0, 1, 3, 2), (0, 3, 4, 1)]
    assert found(shop.warehouse) == {}
    sequence = batches_of(shop.warehouse, "bronze").where("planned IS NOT NULL").orderBy("planned.from_offset")
    numbers = [row["sequence"] for row in sequence.collect()]
    assert numbers == sorted(set(numbers)), "in the order in which silver is to read them"


def test_records_that_retention_took_are_a_known_skip(shop: Shop) -> None:
    shop.produce("a-0")
    shop.run()
    shop.produce("a-1", "a-2", "a-3")
    delete_records(shop.kafka, before=3)
    shop.move("earliest", only_gaps=True)
    shop.run()
    assert batches(shop.warehouse) == [(0, 0, 0, 1, 1), (0, 0, 3, 4, 1)]
    assert found(shop.warehouse) == {"skipped": [(0, 1, 2)]}


def _crash(*_given: object, **_more: object) -> None:
    raise RuntimeError("the process ends here")
