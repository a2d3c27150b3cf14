"""The jobs as the command line runs them: one after the other, each with a line of progress, in one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze import ingest
from gold import build, publish
from lakehouse.config import Settings
from lakehouse.contracts import Contracts
from lakehouse.errors import GateHeldError, LakehouseError
from lakehouse.results import RESULTS, held_sources
from lakehouse.steps import Steps
from lakehouse.tables import Warehouse
from silver import apply
from silver.ledger import LEDGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Known = Mapping[str, tuple[int, ...]]


def bronze_job(spark: SparkSession, settings: Settings, contracts: Contracts, steps: Steps, *, known: Known) -> None:
    """Kafka to bronze."""
    tables = [f"bronze.{source}_events" for source in contracts.topics.sources]
    warehouse = _warehouse(spark, settings)
    with steps.step("bronze", "reading what is new on the topics") as note:
        before = sum(warehouse.read(table).count() for table in tables if warehouse.exists(table))
        ingest.run(spark, settings, contracts.topics, known=known)
        after = sum(warehouse.read(table).count() for table in tables)
        note(f"{after - before:,} new records")


def silver_job(spark: SparkSession, settings: Settings, contracts: Contracts, steps: Steps, *, run_id: str) -> None:
    """Bronze through gate 1 to silver."""
    with steps.step("silver", "gate 1, folding and merging changes") as note:
        apply.run(spark, settings, contracts, run_id=run_id)
        kinds = ("read", "changes", "tombstones", "ignored", "quarantined")
        ledger = _warehouse(spark, settings).read(LEDGER.name).where(F.col("run") == run_id)
        sums = ledger.agg(*[F.coalesce(F.sum(kind), F.lit(0)).alias(kind) for kind in kinds]).collect()[0]
        note(f"{sums['read']:,} records = " + " + ".join(f"{sums[kind]:,} {kind}" for kind in kinds[1:]))


def gold_job(spark: SparkSession, settings: Settings, contracts: Contracts, steps: Steps, *, run_id: str) -> None:
    """Silver through gate 2 to gold. A source that the gate holds is said; `publish_job` makes it an error."""
    with steps.step("gold", "gate 2, bringing gold.unified_orders up to silver") as note:
        outcome = build.run(spark, settings, contracts, run_id=run_id)
        note(f"{outcome.changed_rows:,} orders changed")
        for source in outcome.held_sources:
            note(f"gate 2 holds {source}")


def publish_job(spark: SparkSession, settings: Settings, contracts: Contracts, steps: Steps) -> None:
    """Gold to the unified topic. Raises GateHeldError at the end when gate 2 holds a source back from gold."""
    with steps.step("publish", f"sending what changed to {contracts.gold.publication.topic}") as note:
        note(f"{publish.run(spark, settings, contracts):,} records sent")
    held = held_sources(_warehouse(spark, settings).read(RESULTS.name), contracts.gold_gate)
    if held:
        raise GateHeldError(
            f"Gate 2 holds {', '.join(held)} back from gold; everything else was published.",
            remedy="See the failed rules in quality.results (gate = 'gold'), mend the data or the rule, and run again.",
        )


def all_jobs(
    spark: SparkSession, settings: Settings, contracts: Contracts, steps: Steps, *, known: Known, run_id: str
) -> list[LakehouseError]:
    """The whole flow. A job that fails for one source leaves the others their way; every failure is in the result."""
    jobs: list[Callable[[], None]] = [
        lambda: bronze_job(spark, settings, contracts, steps, known=known),
        lambda: silver_job(spark, settings, contracts, steps, run_id=run_id),
        lambda: gold_job(spark, settings, contracts, steps, run_id=run_id),
        lambda: publish_job(spark, settings, contracts, steps),
    ]
    failures = []
    for job in jobs:
        try:
            job()
        except LakehouseError as error:
            failures.append(error)
    return failures


def _warehouse(spark: SparkSession, settings: Settings) -> Warehouse:
    return Warehouse(spark, settings.warehouse, settings.checkpoints)
