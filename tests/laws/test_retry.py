"""The law of retrying: whatever waited, and in whatever order it is retried, silver is as if it had never waited.

Random histories are read by a gate that stops a part of their changes; then the gate is mended, and what waits is
retried in parts. Beside it the same batches are read by the mended gate from the beginning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts, Expectation
from lakehouse.delta.tables import Warehouse
from silver.apply import ensure_tables
from silver.order.state import OUTCOMES
from silver.rejects.decisions import Request, ask, carry_out
from silver.rejects.quarantine import QUARANTINE
from tests.support.bronze import bronze_rows
from tests.support.events import Record
from tests.support.laws.histories import SOURCES
from tests.support.model.batches import in_offset_order
from tests.support.model.stories import random_history
from tests.support.sharded import CASE, sharded, topic_of
from tests.support.silver import apply, derive_anew, job_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HISTORIES = int(os.environ.get("HISTORIES", "250")) // 8
BATCHES, REQUESTS = 2, 2
# A fourth of the changes, by what they say: updates of an order mostly say another thing than its insert.
TOO_STRICT = Expectation(
    name="too_strict",
    type="unexpected_rows_expectation",
    kwargs={"unexpected_rows_query": "SELECT * FROM {batch} WHERE pmod(xxhash64(customer_id, status, note), 4) = 0"},
    on_failure="quarantine",
    description="Nobody knows why this was a rule.",
)


@pytest.fixture(scope="module")
def cases(contracts: Contracts) -> Contracts:
    return sharded(contracts)


@pytest.fixture(scope="module")
def strict(cases: Contracts) -> Contracts:
    rules = (*cases.silver_gate.expectations, TOO_STRICT)
    return cases.model_copy(update={"silver_gate": cases.silver_gate.model_copy(update={"expectations": rules})})


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, cases: Contracts, strict: Contracts, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[Warehouse, Warehouse]]:
    """By source: the warehouse in which records have waited, and the one in which they have not."""

    def told(source: str, gate: Contracts, folder: Path) -> Warehouse:
        warehouse = Warehouse(spark, str(folder / "w"), str(folder / "w" / "_checkpoints"))
        ensure_tables(warehouse, cases)
        for file, topics in _batches(source, cases, seed, folder):
            rows = bronze_rows(spark, file, topics={topic: topic for topic in topics})
            apply(warehouse, gate, source, rows)
        for part in Random(seed).sample(range(REQUESTS), REQUESTS) if gate is strict else ():  # noqa: S311
            is_of_part = F.pmod(F.hash("topic", "partition", "offset"), F.lit(REQUESTS)) == part
            request = Request("retried", "a person", "the law", uuid4().hex)
            ask(warehouse, request, chosen=is_of_part & F.array_contains("rules", TOO_STRICT.name))
            carry_out(warehouse, job_of(warehouse, cases, source))
        return warehouse

    with ThreadPoolExecutor() as pool:
        running = {
            source: [pool.submit(told, source, gate, tmp_path_factory.mktemp(source)) for gate in (strict, cases)]
            for source in SOURCES
        }
        return {source: (waited.result(), at_once.result()) for source, (waited, at_once) in running.items()}


def _batches(source: str, cases: Contracts, seed: int, folder: Path) -> list[tuple[Path, set[str]]]:
    batches: list[list[Record]] = [[] for _ in range(BATCHES)]
    feed = cases.feeds[f"{source}_orders"]
    for number in range(HISTORIES):
        random = Random(f"{seed} retry {source} {number}")  # noqa: S311
        kind = random.choice(SOURCES[source])
        history = random_history(kind, random, topic=topic_of(f"{source}{number}", feed.name), features=None)
        for batch, records in enumerate(in_offset_order(history.records, random, count=BATCHES)):
            batches[batch] += records
    files = []
    for number, told in enumerate(batches):
        file = folder / f"{number}.jsonl"
        file.write_text("".join(f"{json.dumps(record)}\n" for record in told), encoding="utf-8")
        files.append((file, {record["topic"] for record in told}))
    return files


@pytest.mark.parametrize("source", SOURCES)
def test_silver_is_as_if_nothing_had_waited(
    tables: Mapping[str, tuple[Warehouse, Warehouse]], cases: Contracts, seed: int, source: str
) -> None:
    waited, at_once = tables[source]
    columns = [*cases.feeds[f"{source}_orders"].columns, "_is_deleted"]
    rows = [_rows(warehouse, f"silver.{source}_orders", columns) for warehouse in (waited, at_once)]
    assert len(rows[1]) > HISTORIES
    differing = sorted(key for key in {**rows[0], **rows[1]} if rows[0].get(key) != rows[1].get(key))
    some = [(key, rows[0].get(key), rows[1].get(key)) for key in differing[:3]]
    assert not differing, f"LAWS_SEED={seed}: {len(differing)} rows of {len(rows[1])} differ; some: {some}"


def _rows(warehouse: Warehouse, table: str, columns: Sequence[str]) -> Mapping[tuple[str, int], tuple[str, ...]]:
    rows = warehouse.read(table).select(*columns).collect()
    return {(row[CASE], row["order_id"]): tuple(str(row[name]) for name in columns) for row in rows}


@pytest.mark.parametrize("source", SOURCES)
def test_the_rows_are_what_the_definition_folds_all_events_to(
    tables: Mapping[str, tuple[Warehouse, Warehouse]], cases: Contracts, seed: int, source: str
) -> None:
    """Batch after batch with Spark, or all at once in plain Python (silver.lookback.rederive): the rows are the same.

    But for when a row was gone: one that is gone already is not rewritten when a truncate follows. And but for which
    record of a change that was sent again a row names: one that only repeats what the row has does not rewrite it.
    """
    _waited, at_once = tables[source]
    first_sent = _first_sent(at_once, source)

    def whole_rows() -> dict[tuple[str, int], str]:
        live = F.when(~F.col("_is_deleted"), F.to_json(F.struct("*"))).otherwise("deleted").alias("row")
        table = at_once.read(f"silver.{source}_orders").drop("_applied_at", "_deleted_position")
        table = table.join(F.broadcast(first_sent), on=["_topic", "_partition", "_offset"], how="left")
        as_first_sent = {
            "_offset": F.coalesce("first_sent", "_offset"),
            "_position": F.col("_position").withField(
                "kafka_offset", F.coalesce("first_sent", "_position.kafka_offset")
            ),
        }
        rows = table.withColumns(as_first_sent).drop("first_sent").select(CASE, "order_id", live).collect()
        return {(row[CASE], row["order_id"]): row["row"] for row in rows}

    before = whole_rows()
    derive_anew(at_once, cases, source)
    after = whole_rows()
    assert len(before) > HISTORIES
    differing = sorted(key for key in {**before, **after} if before.get(key) != after.get(key))
    some = [(key, before.get(key), after.get(key)) for key in differing[:3]]
    assert not differing, f"LAWS_SEED={seed}: {len(differing)} rows of {len(before)} differ; some: {some}"


def _first_sent(warehouse: Warehouse, source: str) -> DataFrame:
    """Of every record that has another's key, operation, rows and log coordinates, the offset of the first of them."""
    bronze = warehouse.read(f"bronze.{source}_events").where("value IS NOT NULL")
    value = F.col("value").cast("string")
    said = [F.get_json_object(value, f"$.{name}") for name in ("op", "before", "after", "source")]
    same = Window.partitionBy("topic", "partition", "key", *said)
    return bronze.select(
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.min("offset").over(same).alias("first_sent"),
    ).where("first_sent < _offset")


@pytest.mark.parametrize("source", SOURCES)
def test_what_waits_is_what_would_wait_anyway(
    tables: Mapping[str, tuple[Warehouse, Warehouse]], seed: int, source: str
) -> None:
    """But forged positions: where a new file or epoch follows, it depends on the batches whether one is found."""
    waited, at_once = [_pending_suspensions(warehouse) for warehouse in tables[source]]
    retried = tables[source][0].read(QUARANTINE.name).where("state = 'retried'").count()
    assert retried > HISTORIES, "the rule was too strict for many"
    assert waited == at_once, f"LAWS_SEED={seed}"


def _pending_suspensions(warehouse: Warehouse) -> set[tuple[str, int, int]]:
    waits = (F.col("state") == "open") & ~F.col("is_damaged")
    rows = warehouse.read(QUARANTINE.name).where(waits).select("topic", "partition", "offset").collect()
    return {(row["topic"], row["partition"], row["offset"]) for row in rows}


@pytest.mark.parametrize("source", SOURCES)
def test_every_record_still_has_one_outcome(
    tables: Mapping[str, tuple[Warehouse, Warehouse]], seed: int, source: str
) -> None:
    sums = [F.sum(name).alias(name) for name in ("read", *OUTCOMES)]
    waited, at_once = [warehouse.read("ops.batches").agg(*sums).collect()[0] for warehouse in tables[source]]
    assert waited["read"] == sum(waited[outcome] for outcome in OUTCOMES), f"LAWS_SEED={seed}: {waited}"
    assert waited["read"] == at_once["read"]
    open_entries = tables[source][0].read(QUARANTINE.name).where("state = 'open'").count()
    assert waited["quarantined"] == open_entries, f"LAWS_SEED={seed}"
