"""What a batch costs, counted and not timed: Spark's jobs, files, bytes and rows, for the same changes every time.

A bound is what was counted when it was set, with no room: a change that costs more has to say so here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.load import TOPICS, Table
from benchmarks.records import bronze_rows, store
from benchmarks.tables import jobs, with_more_tables
from gold import build
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.spark import materialized as materializing
from lakehouse.spark.materialized import materialized
from lakehouse.spark.sizing import LARGE_ROWS
from silver import source_batch
from silver.apply import ensure_tables
from silver.batch import apply_feed, outcome
from silver.job import SilverJob
from tests.support.counted import calls_to_java, last_stage, shuffled
from tests.support.silver import apply_rows, apply_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FEED, SOURCE = "silver.postgres_orders", "postgres"
CHANGES = 60
JOBS_OF_A_SMALL_TABLE, JOBS_OF_A_LARGE_TABLE = 13, 21
JOBS_OF_GOLD = 31


@dataclass(frozen=True)
class Cost:
    """Of one batch: jobs of Spark, calls into Java, and what the MERGE has added to the table and removed from it."""

    jobs: int
    calls: int
    files_added: int
    files_removed: int
    bytes_added: int
    rows_copied: int


@dataclass
class Source:
    """A source's orders, and how many of their records were read. Amounts as the packaged contract has them."""

    table: Table
    topic: str = TOPICS["postgresql"]
    read: int = 0

    def batch(self, spark: SparkSession, records: int) -> DataFrame:
        """So many records more, as bronze rows."""
        found = list(islice(self.table.events(), records))
        first = self.read
        self.read += records
        return bronze_rows(spark, found, topic=self.topic, first_offset=first)


def cost_of_changes(spark: SparkSession, contracts: Contracts, folder: Path, *, keys: int) -> Cost:
    """What CHANGES cost in a table of so many keys."""
    warehouse = Warehouse(spark, str(folder), str(folder / "_checkpoints"))
    ensure_tables(warehouse, contracts)
    job = SilverJob(SOURCE, contracts, warehouse.address, "counted")
    source = Source(Table("postgresql", seed=3, keys=keys))
    apply_rows(warehouse, source.batch(spark, keys), job=job)
    assert warehouse.read(FEED).count() == keys
    store(warehouse, SOURCE, source.batch(spark, CHANGES))
    before = jobs(spark)
    with calls_to_java() as calls:
        apply_stored(warehouse, job=job)
    counted = jobs(spark) - before
    (merge,) = warehouse.delta(FEED).history(1).select("operation", "operationMetrics").collect()
    assert merge["operation"] == "MERGE"
    metrics = merge["operationMetrics"]
    read = warehouse.read("ops.batches").where("batch = 1").selectExpr("sum(read) AS n").collect()[0]["n"]
    assert read == CHANGES
    return Cost(
        jobs=counted,
        calls=len(calls),
        files_added=int(metrics["numTargetFilesAdded"]),
        files_removed=int(metrics["numTargetFilesRemoved"]),
        bytes_added=int(metrics["numTargetBytesAdded"]),
        rows_copied=int(metrics["numTargetRowsCopied"]),
    )


def test_a_batch_costs_what_it_did_and_no_more_in_a_larger_table(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path
) -> None:
    small = cost_of_changes(spark, contracts_of_load, tmp_path / "small", keys=300)
    # A file of so few rows is written again; of more, rows are marked as deleted, and none is copied.
    assert (small.files_added, small.files_removed) == (1, 1)
    assert small.rows_copied < 300
    assert small.jobs <= JOBS_OF_A_SMALL_TABLE
    # Expressions are SQL, each told in one call.
    assert small.calls <= 720

    large = cost_of_changes(spark, contracts_of_load, tmp_path / "large", keys=3000)
    assert (large.files_added, large.rows_copied) == (1, 0)
    assert large.bytes_added < 23_000
    # Two of them send the keys of the changes along, so that the table is not sorted for them.
    assert large.jobs <= JOBS_OF_A_LARGE_TABLE


@pytest.mark.slow
def test_tables_without_news_cost_a_batch_nothing(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path
) -> None:
    alone = cost_of_changes(spark, contracts_of_load, tmp_path / "alone", keys=300)
    among_twenty = cost_of_changes(spark, with_more_tables(contracts_of_load, 18), tmp_path / "many", keys=300)
    assert among_twenty.jobs == alone.jobs


@pytest.mark.slow
def test_tombstones_that_follow_a_delete_cost_no_second_copy_of_the_records(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[bool] = []

    def noted(rows: DataFrame) -> AbstractContextManager[DataFrame]:
        copied.append({"row", "position", "problems"} <= set(rows.columns))
        return materialized(rows)

    monkeypatch.setattr(apply_feed, "materialized", noted)
    cost_of_changes(spark, contracts_of_load, tmp_path, keys=300)
    audit = Warehouse(spark, str(tmp_path), "").read("ops.batches")
    (row,) = audit.where("tombstone > 0").selectExpr("count(DISTINCT batch) AS batches").collect()
    assert row["batches"] == 1
    assert not any(copied), "the judged records are held, and no copy of them with their positions"


@pytest.mark.slow
def test_what_a_few_changes_are_worth_grows_with_the_table_that_is_searched(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    @contextmanager
    def noted(_spark: SparkSession, rows: int) -> Iterator[None]:
        asked.append(rows)
        yield

    monkeypatch.setattr(source_batch, "tuned_for", noted)
    cost_of_changes(spark, contracts_of_load, tmp_path, keys=3000)
    filling, changing = asked
    assert filling == pytest.approx(3000, rel=0.2)
    # A third of its rows; these have some three times the bytes that a row is taken for.
    assert filling / 3 < changing - CHANGES < filling * 4 / 3


@pytest.mark.slow
def test_gold_costs_what_it_did_for_a_few_changed_keys_of_both_sources(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path
) -> None:
    """With gate 2 on the tables and on the publication, and a mart; the tables are there from an earlier run."""
    chosen = settings(warehouse=str(tmp_path), bootstrap_servers="")
    warehouse = chosen.address.open(spark)
    ensure_tables(warehouse, contracts_of_load)
    kinds = {"postgres": "postgresql", "mysql": "mysql"}
    told = {source: Source(Table(kind, seed=3, keys=300), TOPICS[kind]) for source, kind in kinds.items()}
    costs, shown = [], []
    for number, records in enumerate((300, CHANGES, CHANGES)):
        for source, table in told.items():
            job = SilverJob(source, contracts_of_load, warehouse.address, f"run {number}")
            apply_rows(warehouse, table.batch(spark, records), job=job)
        before = jobs(spark)
        shown.append(build.run(spark, chosen, contracts_of_load, run_id=f"run {number}").changed_rows)
        costs.append(jobs(spark) - before)
    assert min(shown) > CHANGES / 2
    (first,) = warehouse.delta("gold.unified_orders").history().where("version = 1").select("operation").collect()
    assert first["operation"] == "WRITE", "there was nothing to merge with"
    # Of a mart few files are written again, and no rows are marked as deleted.
    for name in contracts_of_load.gold.marts:
        (merge,) = warehouse.delta(f"gold.{name}").history(1).select("operation", "operationMetrics").collect()
        marked = merge["operationMetrics"]["numTargetDeletionVectorsAdded"]
        assert (merge["operation"], marked) == ("MERGE", "0"), name
    # The first takes silver whole; the second loads what Delta then remembers.
    assert costs[-1] <= JOBS_OF_GOLD


@pytest.mark.slow
def test_a_large_table_is_not_sorted_for_few_changes(
    spark: SparkSession, contracts_of_load: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = Warehouse(spark, str(tmp_path), str(tmp_path / "_checkpoints"))
    ensure_tables(warehouse, contracts_of_load)
    job = SilverJob(SOURCE, contracts_of_load, warehouse.address, "counted")
    source = Source(Table("postgresql", seed=3, keys=3000))
    apply_rows(warehouse, source.batch(spark, 3000), job=job)
    rows = source.batch(spark, CHANGES)
    # As if it were large, and keys were no numbers; and no side small enough to be sent along by its size.
    monkeypatch.setattr(materializing, "MANY", 1)
    monkeypatch.setattr(outcome, "FEW_FOR_ONE", 0)
    monkeypatch.setattr(source_batch, "rows_to_search", lambda _size: LARGE_ROWS)
    setting = "spark.sql.autoBroadcastJoinThreshold"
    earlier = str(spark.conf.get(setting))
    spark.conf.set(setting, "-1")
    try:
        before = last_stage(spark)
        apply_rows(warehouse, rows, job=job)
        assert 0 < shuffled(spark, after=before) < 3000
    finally:
        spark.conf.set(setting, earlier)
    (merge,) = warehouse.delta(FEED).history(1).select("operationMetrics").collect()
    metrics = merge["operationMetrics"]
    assert int(metrics["numTargetRowsInserted"]) > 0, "a MERGE that inserts too"
    assert int(metrics["numTargetRowsUpdated"]) > 0
