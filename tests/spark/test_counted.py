"""What a batch costs, counted and not timed: Spark's jobs, files, bytes and rows, for the same changes every time.

A bound is what was counted when it was set, with no room: a change that costs more has to say so here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from benchmarks.load import TOPICS, Table
from lakehouse.contracts import Contracts
from lakehouse.tables import Warehouse
from silver import micro_batch
from silver.apply import ensure_tables
from silver.micro_batch import Job, apply_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FEED, SOURCE = "silver.postgres_orders", "postgres"
CHANGES = 60


@dataclass(frozen=True)
class Cost:
    """Of one batch: Spark's jobs, and what the MERGE has added to the silver table and removed from it."""

    jobs: int
    files_added: int
    files_removed: int
    bytes_added: int
    rows_copied: int


@dataclass
class Source:
    """PostgreSQL's orders, and how many of their records were read. Amounts as the packaged contract has them."""

    table: Table
    read: int = 0

    def batch(self, spark: SparkSession, records: int) -> DataFrame:
        """So many records more, as bronze rows."""
        found = list(islice(self.table.events(), records))
        rows = [
            (offset, key.decode(), None if value is None else value.decode())
            for offset, (key, value) in enumerate(found, start=self.read)
        ]
        self.read += records
        header = F.struct(F.lit("__debezium.context.runId").alias("key"), F.lit("run").cast("binary").alias("value"))
        return spark.createDataFrame(rows, "offset BIGINT, key STRING, value STRING").select(
            F.lit(TOPICS["postgresql"]).alias("topic"),
            F.lit(0).alias("partition"),
            "offset",
            F.timestamp_millis(F.lit(1_767_225_600_000) + F.col("offset")).alias("timestamp"),
            F.lit(0).alias("timestamp_type"),
            F.col("key").cast("binary").alias("key"),
            F.col("value").cast("binary").alias("value"),
            F.array(header).alias("headers"),
            F.lit("id").alias("_topic_id"),
            F.current_timestamp().alias("_ingested_at"),
            F.lit(0).cast("bigint").alias("_batch_id"),
        )


@pytest.fixture(scope="module")
def told(contracts: Contracts) -> Contracts:
    """The packaged contracts, with decimals in the form of the load."""
    source = contracts.topics.sources[SOURCE]
    feed = source.feeds["postgres_orders"].model_copy(update={"decimal_handling_mode": "string"})
    sources = {
        **contracts.topics.sources,
        SOURCE: source.model_copy(update={"feeds": {**source.feeds, "postgres_orders": feed}}),
    }
    return contracts.model_copy(update={"topics": contracts.topics.model_copy(update={"sources": sources})})


def jobs(spark: SparkSession) -> int:
    """How many jobs Spark has run so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def cost_of_changes(spark: SparkSession, contracts: Contracts, folder: Path, *, keys: int) -> Cost:
    """What CHANGES cost in a table of so many keys."""
    warehouse = Warehouse(spark, str(folder), str(folder / "_checkpoints"))
    ensure_tables(warehouse, contracts)
    job = Job(SOURCE, contracts, warehouse.address, "counted")
    source = Source(Table("postgresql", seed=3, keys=keys))
    apply_batch(source.batch(spark, keys), 0, job=job)
    assert warehouse.read(FEED).count() == keys
    rows = source.batch(spark, CHANGES).cache()
    rows.count()
    before = jobs(spark)
    apply_batch(rows, 1, job=job)
    counted = jobs(spark) - before
    rows.unpersist()
    (merge,) = warehouse.delta(FEED).history(1).select("operation", "operationMetrics").collect()
    assert merge["operation"] == "MERGE"
    metrics = merge["operationMetrics"]
    read = warehouse.read("ops.ledger").where("batch = 1").selectExpr("sum(read) AS n").collect()[0]["n"]
    assert read == CHANGES
    return Cost(
        jobs=counted,
        files_added=int(metrics["numTargetFilesAdded"]),
        files_removed=int(metrics["numTargetFilesRemoved"]),
        bytes_added=int(metrics["numTargetBytesAdded"]),
        rows_copied=int(metrics["numTargetRowsCopied"]),
    )


def test_a_batch_costs_what_it_did_and_no_more_in_a_larger_table(
    spark: SparkSession, told: Contracts, tmp_path: Path
) -> None:
    small = cost_of_changes(spark, told, tmp_path / "small", keys=300)
    large = cost_of_changes(spark, told, tmp_path / "large", keys=3000)
    # Two of them send the keys of the changes along, so that the table is not sorted for them.
    assert small.jobs <= 49
    assert large.jobs <= small.jobs
    for cost in (small, large):
        assert cost.files_added == 1
        assert cost.rows_copied == 0
        assert cost.bytes_added < 23_000


def with_more_tables(contracts: Contracts, number: int) -> Contracts:
    """The contracts, with so many more tables of the source like its orders, each with a topic of its own."""
    source, table = contracts.topics.sources[SOURCE], contracts.silver.tables["postgres_orders"]
    names = [f"orders_of_shop_{n}" for n in range(number)]
    orders = source.feeds["postgres_orders"]
    more = {name: orders.model_copy(update={"topics": (f"pg.public.{name}",)}) for name in names}
    feeds = source.model_copy(update={"feeds": {**source.feeds, **more}})
    sources = {**contracts.topics.sources, SOURCE: feeds}
    tables = {**contracts.silver.tables, **dict.fromkeys(names, table)}
    return contracts.model_copy(
        update={
            "topics": contracts.topics.model_copy(update={"sources": sources}),
            "silver": contracts.silver.model_copy(update={"tables": tables}),
        }
    )


def test_tables_without_news_cost_a_batch_nothing(spark: SparkSession, told: Contracts, tmp_path: Path) -> None:
    alone = cost_of_changes(spark, told, tmp_path / "alone", keys=300)
    among_twenty = cost_of_changes(spark, with_more_tables(told, 18), tmp_path / "many", keys=300)
    assert among_twenty.jobs == alone.jobs


def test_what_a_few_changes_are_worth_grows_with_the_table_that_is_searched(
    spark: SparkSession, told: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    @contextmanager
    def noted(_spark: SparkSession, rows: int) -> Iterator[None]:
        asked.append(rows)
        yield

    monkeypatch.setattr(micro_batch, "prepared_for", noted)
    cost_of_changes(spark, told, tmp_path, keys=3000)
    filling, changing = asked
    assert filling == pytest.approx(3000, rel=0.2)
    assert CHANGES + 100 < changing < filling
