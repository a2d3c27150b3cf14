"""The law of the changelog: whatever the batches, their order and the duplicates, silver is the source's table.

Hundreds of random histories are told by a model of a database with a log. Each is read in four ways, and for each way
it has keys of its own, so that a few Spark jobs judge all of them.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from demo.check import as_text
from lakehouse.contracts import Contracts
from lakehouse.tables import small_table
from silver.changelog import latest_per_key
from silver.envelope import changes
from silver.merge import merge_latest
from silver.position import with_position
from tests.support.bronze import bronze_rows
from tests.support.events import Record
from tests.support.histories import KEYS, History, random_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.tables import Warehouse

pytestmark = pytest.mark.spark

FEEDS = ("postgres_orders", "mysql_orders")
HISTORIES = 100  # of each feed
BATCHES = 4
Batches = Mapping[int, Sequence[Record]]
Way = Callable[[Sequence[Record], Random], Iterator[tuple[int, Record]]]


def in_one_batch(records: Sequence[Record], _random: Random) -> Iterator[tuple[int, Record]]:
    for record in records:
        yield 0, record


def in_batches_one_after_the_other(records: Sequence[Record], random: Random) -> Iterator[tuple[int, Record]]:
    cuts = sorted(random.randrange(len(records) + 1) for _ in range(BATCHES - 1))
    for number, record in enumerate(records):
        yield sum(number >= cut for cut in cuts), record


def in_batches_in_any_order(records: Sequence[Record], random: Random) -> Iterator[tuple[int, Record]]:
    for record in records:
        yield random.randrange(BATCHES), record


def every_record_twice(records: Sequence[Record], random: Random) -> Iterator[tuple[int, Record]]:
    for record in records:
        yield 0, record
        yield random.randrange(BATCHES), record


WAYS: Sequence[Way] = (in_one_batch, in_batches_one_after_the_other, in_batches_in_any_order, every_record_twice)


@dataclass(frozen=True)
class Told:
    """What silver made of all histories of a feed."""

    histories: Mapping[tuple[int, Way], History]
    rows: Mapping[Any, Mapping[str, Any]]
    changed_by_reading_all_again: int
    table: str


@pytest.fixture(scope="module")
def seed() -> int:
    """The same histories again: HISTORIES_SEED=<the number that a failed test printed>."""
    return int(os.environ.get("HISTORIES_SEED") or secrets.randbits(32))


@pytest.fixture(scope="module")
def warehouse(empty_silver: Callable[[], Warehouse]) -> Warehouse:
    return empty_silver()


@pytest.fixture(scope="module")
def told(
    warehouse: Warehouse, contracts: Contracts, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Told]:
    folder = tmp_path_factory.mktemp("histories")
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda feed: told_of(feed, warehouse, contracts, seed=seed, folder=folder / feed), FEEDS)
        return dict(zip(FEEDS, results, strict=True))


def told_of(feed: str, warehouse: Warehouse, contracts: Contracts, *, seed: int, folder: Path) -> Told:
    declared = contracts.feeds[feed]
    kind = declared.kind
    histories: dict[tuple[int, Way], History] = {}
    batches: dict[int, list[Record]] = {number: [] for number in range(BATCHES)}
    for number in range(HISTORIES):
        for way_number, way in enumerate(WAYS):
            place = number * len(WAYS) + way_number
            random = Random(f"{seed} {feed} {number}")  # noqa: S311
            history = random_history(
                kind, random, topic=declared.topics[0], partition=place, first_key=1 + place * KEYS
            )
            histories[number, way] = history
            for batch, record in way(history.records, random):
                batches[batch].append(record)
    positioned = [
        _positioned(warehouse, _write(folder / str(batch), records), contracts, feed).persist()
        for batch, records in batches.items()
    ]
    table = warehouse.delta(f"silver.{feed}")
    for part in positioned:
        merge_latest(table, latest_per_key(part, declared), declared)
    rows = as_text(warehouse.read(f"silver.{feed}"), [*declared.columns, "_is_deleted"], key="order_id")
    everything = positioned[0]
    for part in positioned[1:]:
        everything = everything.unionByName(part)
    again = merge_latest(table, latest_per_key(everything, declared), declared)
    return Told(histories, rows, changed_by_reading_all_again=again, table=f"silver.{feed}")


def _write(folder: Path, records: Sequence[Record]) -> Path:
    folder.mkdir(parents=True)
    file = folder / "records.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return file


def _positioned(warehouse: Warehouse, file: Path, contracts: Contracts, feed: str) -> DataFrame:
    declared = contracts.feeds[feed]
    records = bronze_rows(warehouse.spark, file, topics={topic: topic for topic in declared.topics})
    runs = "topic STRING, partition INT, run_id STRING, first_snapshot_offset BIGINT, snapshot_lsn BIGINT"
    read = "topic STRING, partition INT, highest_timestamp_ms BIGINT"
    return with_position(
        changes(records, declared),
        declared,
        runs=small_table(warehouse.spark, [], runs),
        read=small_table(warehouse.spark, [], read),
    ).where(F.col("kind") == "change")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("feed", FEEDS)
def test_silver_is_the_table_that_the_history_ends_with(
    told: Mapping[str, Told], seed: int, feed: str, way: Way
) -> None:
    broken = []
    for (number, read_by), history in told[feed].histories.items():
        expected = {key: row or {"order_id": key, "_is_deleted": True} for key, row in history.rows.items()}
        for key, row in expected.items():
            found = told[feed].rows.get(key)
            if read_by is way and (found is None or _as_model(found) != row):
                broken.append((number, key - history.first_key, found, row))
    assert not broken, f"HISTORIES_SEED={seed}: {len(broken)} rows differ; the first: {broken[0]}"


@pytest.mark.parametrize("feed", FEEDS)
def test_no_row_stands_for_nothing(told: Mapping[str, Told], feed: str) -> None:
    keys = {key for history in told[feed].histories.values() for key in history.rows}
    assert set(told[feed].rows) == keys


@pytest.mark.parametrize("feed", FEEDS)
def test_reading_everything_again_changes_no_row(told: Mapping[str, Told], seed: int, feed: str) -> None:
    assert told[feed].changed_by_reading_all_again == 0, f"HISTORIES_SEED={seed}"


@pytest.mark.parametrize("feed", FEEDS)
def test_the_position_of_a_key_only_grows(told: Mapping[str, Told], warehouse: Warehouse, seed: int, feed: str) -> None:
    table = told[feed].table
    commits = warehouse.changes(table, first=1, last=warehouse.version(table))
    before = commits.where("_change_type = 'update_preimage'").select("order_id", "_commit_version", "_position")
    after = commits.where("_change_type = 'update_postimage'").select(
        "order_id", "_commit_version", F.col("_position").alias("new_position")
    )
    updates = before.join(after, on=["order_id", "_commit_version"], how="inner")
    counted = updates.agg(
        F.count(F.lit(1)).alias("all"), F.count_if(F.col("new_position") > F.col("_position")).alias("growing")
    ).collect()[0]
    assert counted["growing"] == counted["all"] > HISTORIES, f"HISTORIES_SEED={seed}"


def _as_model(found: Mapping[str, Any]) -> dict[str, Any]:
    """A silver row in the model's form: of a deleted one, what it still knows."""
    if found["_is_deleted"]:
        return {name: value for name, value in found.items() if value is not None}
    return {name: value for name, value in found.items() if name != "_is_deleted"}
