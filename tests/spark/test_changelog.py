"""The law of the changelog: whatever the batches, their order and the duplicates, silver is the source's table.

Hundreds of random histories are told by a model of a database, its log, its connector and its topic. Each is read in
one of several ways, as a shard of its own, so that a few Spark jobs judge all of them.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from demo.check import as_text
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import SourceKind
from lakehouse.spark.tables import Warehouse
from silver.apply import ensure_tables
from silver.order.state import OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.events import Record
from tests.support.model.batches import BATCHES, WAYS, Batches, Way, in_offset_order, in_one, sent_again
from tests.support.model.history import History
from tests.support.model.stories import random_history
from tests.support.sharded import CASE, sharded, topic_of
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCES: Mapping[str, Sequence[SourceKind]] = {"postgres": ("postgresql",), "mysql": ("mysql", "mariadb")}
# Of each source. What the fold makes of many more is told in plain Python: tests/unit/silver/order, `make fuzz`.
HISTORIES = int(os.environ.get("HISTORIES", "100"))
# Always the same ones here; with HISTORIES and HISTORIES_SEED others, and more. `make fuzz` tells them without Spark.
SEED = 3_194_370_849


def every_record_sent_again(history: History, random: Random) -> Batches:
    """Of a history in which it is (`sent_again`): in one batch, or cut anywhere."""
    if random.random() < 0.3:
        return in_one(history.records)
    return in_offset_order(history.records, random, count=BATCHES)


ALL_WAYS = (*WAYS, every_record_sent_again)
# Beside those: so many that are sent again.
SENT_AGAIN = HISTORIES // 5


@dataclass(frozen=True)
class Told:
    """What silver made of all histories of a source: its rows by history and key, and the batch audit."""

    histories: Mapping[str, tuple[History, Way]]
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]]
    quarantined: Mapping[str, frozenset[tuple[int, int]]]
    audit: Sequence[Mapping[str, Any]]
    changed_by_reading_all_again: Sequence[tuple[Any, ...]]
    batches: Sequence[Sequence[Record]]


@pytest.fixture(scope="module")
def seed() -> int:
    """Histories again: HISTORIES_SEED=<the number that a failed test printed>."""
    given = os.environ.get("HISTORIES_SEED") or SEED
    return secrets.randbits(32) if given == "random" else int(given)


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, cases: Contracts, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    location = str(tmp_path_factory.mktemp("histories") / "warehouse")
    warehouse = Warehouse(spark, location, f"{location}/_checkpoints")
    ensure_tables(warehouse, cases)
    return warehouse


@pytest.fixture(scope="module")
def cases(contracts: Contracts) -> Contracts:
    return sharded(contracts)


@pytest.fixture(scope="module")
def told(
    warehouse: Warehouse, cases: Contracts, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Told]:
    folder = tmp_path_factory.mktemp("records")
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda source: told_of(source, warehouse, cases, seed=seed, folder=folder), SOURCES)
        return dict(zip(SOURCES, results, strict=True))


def told_of(source: str, warehouse: Warehouse, cases: Contracts, *, seed: int, folder: Path) -> Told:
    feed = cases.feeds[f"{source}_orders"]
    histories: dict[str, tuple[History, Way]] = {}
    batches: list[list[Record]] = [[] for _ in range(BATCHES)]
    for number in range(HISTORIES + SENT_AGAIN):
        random = Random(f"{seed} {source} {number}")  # noqa: S311
        way = WAYS[number % len(WAYS)] if number < HISTORIES else every_record_sent_again
        kind = random.choice(SOURCES[source])
        history = random_history(kind, random, topic=topic_of(f"{source}{number}", feed.name), features=None)
        if way is every_record_sent_again:
            history = sent_again(history, random)
        histories[f"{source}{number}"] = history, way
        for batch, records in enumerate(way(history, random)):
            batches[batch] += records
    table = f"silver.{feed.name}"
    for number, records in enumerate([*batches, [record for batch in batches for record in batch]]):
        if number == BATCHES:
            before = warehouse.version(table)
            found = _by_history(warehouse, table, [*feed.columns, "_is_deleted"])
        file = folder / f"{source}{number}.jsonl"
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
        topics = {record["topic"]: record["topic"] for record in records}
        apply(warehouse, cases, source, bronze_rows(warehouse.spark, file, topics=topics), number)
    rows = [*feed.columns, "_is_deleted"]
    changed = warehouse.read(table).select(*rows).exceptAll(warehouse.read(table, version=before).select(*rows))
    quarantined = defaultdict(set)
    for row in warehouse.read("quality.quarantine").where(F.col("source") == source).collect():
        quarantined[row["topic"].split(".")[1]].add((row["partition"], row["offset"]))
    audit = warehouse.read("ops.batches").where(
        (F.col("source") == source) & (F.col("batch") < BATCHES) & F.col("read").isNotNull()
    )
    return Told(
        histories,
        rows=found,
        quarantined={case: frozenset(offsets) for case, offsets in quarantined.items()},
        audit=[row.asDict() for row in audit.collect()],
        changed_by_reading_all_again=[tuple(row) for row in changed.collect()],
        batches=batches,
    )


def _by_history(
    warehouse: Warehouse, table: str, columns: Sequence[str]
) -> Mapping[str, Mapping[int, Mapping[str, Any]]]:
    rows = warehouse.read(table).withColumn("id", F.concat_ws(" ", CASE, "order_id"))
    found: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in as_text(rows, ["id", *columns], key="id").values():
        found[row[CASE]][int(row["order_id"])] = row
    return found


@pytest.mark.parametrize("way", ALL_WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("source", SOURCES)
def test_silver_is_the_table_that_the_history_ends_with(
    told: Mapping[str, Told], seed: int, source: str, way: Way
) -> None:
    broken = []
    for case, (history, read_by) in told[source].histories.items():
        if read_by is way:
            broken += [
                (case, sorted(history.features), key, found, row)
                for key, row in history.rows.items()
                if (found := _as_model(told[source].rows[case].get(key))) != row
            ]
    assert not broken, f"HISTORIES_SEED={seed}: {_summary(broken)}"


def _summary(broken: Sequence[tuple[Any, ...]]) -> str:
    histories = {case: features for case, features, *_rest in broken}
    features = Counter(feature for one in histories.values() for feature in one)
    return f"{len(broken)} rows of {len(histories)} histories differ; {features.most_common()}; some: {broken[:3]}"


def _as_model(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A silver row in the model's form; None when it is deleted, or was never there."""
    if found is None or found["_is_deleted"]:
        return None
    return {name: value for name, value in found.items() if not name.startswith("_") and name not in {CASE, "id"}}


@pytest.mark.parametrize("source", SOURCES)
def test_no_row_stands_for_nothing(told: Mapping[str, Told], seed: int, source: str) -> None:
    strange = [
        (case, key)
        for case, rows in told[source].rows.items()
        for key in rows
        if key not in told[source].histories[case][0].rows
    ]
    assert not strange, f"HISTORIES_SEED={seed}"


@pytest.mark.parametrize("source", SOURCES)
def test_quarantine_has_the_bad_records_and_no_other(told: Mapping[str, Told], seed: int, source: str) -> None:
    different = {
        case: (sorted(history.features), sorted(found), sorted(history.bad_offsets))
        for case, (history, _way) in told[source].histories.items()
        if not frozenset(history.bad_offsets) - _far_ahead(history)
        <= (found := told[source].quarantined.get(case, frozenset()))
        <= frozenset(history.bad_offsets) | _far_ahead(history)
    }
    assert not different, f"HISTORIES_SEED={seed}: {len(different)}: {list(different.items())[:3]}"


def _far_ahead(history: History) -> frozenset[tuple[int, int]]:
    """The forged records, and those that repeat them: where a new file or epoch follows, nothing tells them apart."""
    return frozenset(
        (record["partition"], record["offset"])
        for record in history.records
        if record["value"] and "9000000000000000000" in record["value"]
    )


@pytest.mark.parametrize("source", SOURCES)
def test_every_record_read_has_one_outcome(told: Mapping[str, Told], seed: int, source: str) -> None:
    read: Counter[tuple[str, int]] = Counter()
    for entry in told[source].audit:
        assert entry["read"] == sum(entry[outcome] for outcome in OUTCOMES), f"HISTORIES_SEED={seed}: {entry}"
        read[entry["topic"], entry["partition"]] += entry["read"]
    assert read == _places(record for batch in told[source].batches for record in batch), f"HISTORIES_SEED={seed}"


def _places(records: Iterable[Record]) -> Counter[tuple[str, int]]:
    return Counter((record["topic"], record["partition"]) for record in records)


@pytest.mark.parametrize("source", SOURCES)
def test_reading_everything_again_changes_no_row(told: Mapping[str, Told], seed: int, source: str) -> None:
    """Their columns without `_`: an epoch that is found only now moves the positions of its rows alone."""
    assert list(told[source].changed_by_reading_all_again) == [], f"HISTORIES_SEED={seed}"


@pytest.mark.parametrize("source", SOURCES)
def test_the_position_of_a_key_only_grows(
    told: Mapping[str, Told], warehouse: Warehouse, seed: int, source: str
) -> None:
    assert told
    table = f"silver.{source}_orders"
    commits = warehouse.changes(table, first=1, last=warehouse.version(table))
    of_row = (CASE, "order_id", "_commit_version")
    before = commits.where("_change_type = 'update_preimage'").select(*of_row, "_position")
    after = commits.where("_change_type = 'update_postimage'").select(*of_row, F.col("_position").alias("new_position"))
    forged = [
        f"{source}{n}"
        for n in range(HISTORIES + SENT_AGAIN)
        if "forged" in told[source].histories[f"{source}{n}"][0].features
    ]
    updates = before.join(after, on=list(of_row), how="inner").where(~F.col(CASE).isin(*forged))
    counted = updates.agg(
        F.count(F.lit(1)).alias("all"), F.count_if(F.col("new_position") >= F.col("_position")).alias("growing")
    ).collect()[0]
    assert counted["growing"] == counted["all"] > HISTORIES, f"HISTORIES_SEED={seed}"
