"""The whole flow on tables of a catalog, by three-level names, in schemas that a deployment has named and made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from cli.jobs import JOBS, RunContext, RunOutcome, run_jobs
from cli.tables.optimize import tables_of
from demo.__main__ import contracts_of_recordings
from demo.broker import embedded_broker
from demo.check import topic_differences
from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.address import SCHEMAS
from lakehouse.delta.optimize import carried_out, maintainable, planned
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps
from silver.order.state import OUTCOMES
from silver.views import AUDIT_COLUMNS
from tests.kafka.test_run import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

NAMES = {schema: f"dev_me_{schema}" for schema in SCHEMAS}


@pytest.fixture(scope="module")
def chosen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """As a task of the job gets them. The schemas are there already, as after a deployment."""
    folder = tmp_path_factory.mktemp("catalog")
    for name in NAMES.values():
        spark.sql(f"CREATE SCHEMA spark_catalog.{name} LOCATION '{folder / name}'")
    with embedded_broker() as servers:
        produce(servers, folder, first=True)
        yield settings(
            warehouse="spark_catalog",
            checkpoints=str(folder / "checkpoints"),
            schemas=",".join(f"{schema}={name}" for schema, name in NAMES.items()),
            bootstrap_servers=servers,
        )
    for name in NAMES.values():
        spark.sql(f"DROP SCHEMA spark_catalog.{name} CASCADE")


@pytest.fixture(scope="module")
def contracts(contracts: Contracts) -> Contracts:
    """They name the tables that the recordings are of."""
    return contracts_of_recordings(contracts)


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, chosen: Settings, contracts: Contracts) -> Warehouse:
    """After the first run."""
    warehouse = chosen.address.open(spark)
    run(warehouse, chosen, contracts)
    return warehouse


def run(warehouse: Warehouse, chosen: Settings, contracts: Contracts) -> RunOutcome:
    steps, known = Steps(Console(quiet=True)), partitions(chosen.kafka())
    outcome = run_jobs(tuple(JOBS), RunContext(warehouse.spark, chosen, contracts, steps, known, "a run"))
    assert outcome.failures == []
    return outcome


def test_every_table_is_in_the_schema_that_it_was_given(warehouse: Warehouse, contracts: Contracts) -> None:
    names = [*tables_of(contracts), *(f"clean.{feed}" for feed in contracts.feeds)]
    assert {name.split(".")[0] for name in names} == set(SCHEMAS)
    for name in names:
        schema, table = name.split(".")
        assert warehouse.spark.catalog.tableExists(f"spark_catalog.dev_me_{schema}.{table}"), name
    found = {schema.name for schema in warehouse.spark.catalog.listDatabases()}
    assert not found & set(SCHEMAS)


def test_the_topic_is_gold(warehouse: Warehouse, chosen: Settings, contracts: Contracts) -> None:
    servers, topic = chosen.kafka().bootstrap_servers, contracts.gold.unified_topic.topic
    assert topic_differences(warehouse, bootstrap_servers=servers, topic=topic) == []
    assert warehouse.read("gold.unified_orders").count() > 0


def test_a_clean_view_is_what_the_source_has(warehouse: Warehouse, contracts: Contracts) -> None:
    for name, feed in contracts.feeds.items():
        view, table = warehouse.spark.table(warehouse.path(f"clean.{name}")), warehouse.read(f"silver.{name}")
        assert view.columns == list(feed.columns)
        live = table.where("NOT _is_deleted").select(*feed.columns)
        assert live.exceptAll(view).count() == view.exceptAll(live).count() == 0
        assert view.count() > 0


def test_maintenance_changes_no_row_and_the_next_run_finds_nothing_new(
    warehouse: Warehouse, chosen: Settings, contracts: Contracts
) -> None:
    names = maintainable(warehouse, tables_of(contracts))
    assert names == tables_of(contracts)
    before = {name: warehouse.read(name).localCheckpoint() for name in names}
    plans = [planned(warehouse, name) for name in names]
    done = [carried_out(warehouse, name) for name in names]
    assert [plan.files_before for plan in plans] == [one.files_before for one in done]
    assert sum(one.files_after for one in done) < sum(one.files_before for one in done)
    for name, rows in before.items():
        now = warehouse.read(name)
        assert rows.count() == now.count(), name
    results = run(warehouse, chosen, contracts).results
    assert sum(results["bronze"]["new_records"].values()) == 0
    assert results["gold"]["changed_orders"] == results["publish"]["sent_records"] == 0


def test_the_view_of_the_audit_says_what_became_of_every_record(warehouse: Warehouse) -> None:
    view = warehouse.spark.table(warehouse.path("ops.audit"))
    assert tuple(view.columns) == AUDIT_COLUMNS
    stored = sum(warehouse.read(f"bronze.{source}_events").count() for source in ("postgres", "mysql"))
    assert view.selectExpr("sum(read)", f"sum({' + '.join(OUTCOMES)})").collect() == [(stored, stored)]
    assert view.where("feed IS NOT NULL AND (topic IS NULL OR written_at IS NULL)").isEmpty()


def test_a_deleted_row_is_not_in_the_clean_view(warehouse: Warehouse) -> None:
    view = warehouse.spark.table(warehouse.path("clean.mysql_orders"))
    before, first = view.count(), view.agg({"order_id": "min"}).collect()[0][0]
    table = warehouse.sql_name("silver.mysql_orders")
    warehouse.spark.sql(f"UPDATE {table} SET _is_deleted = true WHERE order_id = {first}")
    now = warehouse.spark.table(warehouse.path("clean.mysql_orders"))
    assert (now.count(), now.where(f"order_id = {first}").count()) == (before - 1, 0)


def test_a_view_with_other_columns_is_replaced(warehouse: Warehouse) -> None:
    path = warehouse.path("clean.postgres_orders")
    warehouse.spark.sql(f"CREATE OR REPLACE VIEW {path} AS SELECT 1 AS one")
    warehouse.ensure_view("clean.postgres_orders", columns=["two"], query="SELECT 2 AS two")
    assert warehouse.spark.table(path).columns == ["two"]


def test_files_that_no_version_needs_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path), str(tmp_path))
    path = warehouse.path("gold.numbers")
    for number in range(3):
        spark.range(number, number + 1).coalesce(1).write.format("delta").mode("append").save(path)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        kept = carried_out(warehouse, "gold.numbers")
        assert (kept.files_before, kept.files_after) == (3, 1)
        assert len(list(Path(path).glob("*.parquet"))) == 4
        assert planned(warehouse, "gold.numbers", retention_hours=0).unneeded_files == 3
        carried_out(warehouse, "gold.numbers", retention_hours=0)
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert len(list(Path(path).glob("*.parquet"))) == 1
    assert sorted(row["id"] for row in warehouse.read("gold.numbers").collect()) == [0, 1, 2]
