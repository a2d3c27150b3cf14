"""Schemas, rights, volumes and the secret scope of the bundle, and the alerts, whose queries run on real tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lakehouse.batches import BATCHES
from lakehouse.delta.address import SCHEMAS
from lakehouse.delta.lease import LEASE, Lease
from lakehouse.kafka.connection import load_connection
from lakehouse.process.lock import hold, this_process
from lakehouse.quality.results import RESULTS
from tests.support.deployment import RESOLVED
from tools.bundle import ROOT
from tools.targets import BUNDLE, PASSED, TARGETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.delta.tables import TableSpec, Warehouse

WRITTEN = BUNDLE.resources


# Who may what.


@pytest.mark.parametrize("target", TARGETS)
def test_analysts_read_gold_and_the_clean_views_and_operators_quality(target: str) -> None:
    rights = {
        (key, grant["principal"]): set(grant["privileges"])
        for key, schema in RESOLVED[target]["resources"]["schemas"].items()
        for grant in schema["grants"]
    }
    analysts, operators = ("orders-lakehouse-analysts", "orders-lakehouse-operators")
    if target == "dev":  # groups need not be there: an engineer's copy is the engineer's
        analysts = operators = "someone@example.com"
    assert rights == {
        ("clean", analysts): {"USE_SCHEMA", "SELECT"},
        ("gold", analysts): {"USE_SCHEMA", "SELECT"},
        ("quality", operators): {"USE_SCHEMA", "SELECT", "READ_VOLUME"},
    }


def test_the_schemas_are_those_that_the_code_writes() -> None:
    assert set(WRITTEN["schemas"]) == set(SCHEMAS)
    for target in TARGETS:
        names = [schema["name"] for schema in RESOLVED[target]["resources"]["schemas"].values()]
        prefix = "dev_someone_" if target == "dev" else ""
        assert names == [f"{prefix}{schema}" for schema in WRITTEN["schemas"]]
        catalogs = {schema["catalog_name"] for schema in RESOLVED[target]["resources"]["schemas"].values()}
        assert catalogs == {f"orders_{target}"}


def test_a_volume_is_in_a_schema_of_the_bundle() -> None:
    for key, schema in {"checkpoints": "ops", "data_docs": "quality"}.items():
        assert WRITTEN["volumes"][key]["schema_name"] == f"${{resources.schemas.{schema}.name}}"
    assert WRITTEN["volumes"].keys() == {"checkpoints", "data_docs"}


def test_the_packaged_kafka_file_takes_its_secrets_from_the_scope_of_the_target() -> None:
    file = ROOT / "resources/kafka/sasl_ssl.yaml"
    for target in TARGETS:
        scope = RESOLVED[target]["resources"]["secret_scopes"]["kafka"]["name"]
        connection = load_connection(file, bootstrap_servers="b:1", secret_scope=scope)
        assert str(connection.password) == f"the secret kafka-password of the scope {scope}"
    assert len({RESOLVED[target]["resources"]["secret_scopes"]["kafka"]["name"] for target in TARGETS}) == len(TARGETS)


# Alerts.


def test_the_warehouse_of_the_alerts_stops_and_stands_most_of_the_day() -> None:
    (warehouse,) = RESOLVED["prod"]["resources"]["sql_warehouses"].values()
    assert warehouse["auto_stop_mins"] >= 10  # the API takes 0, which is never, or this
    minutes = {alert["schedule"]["quartz_cron_schedule"] for alert in RESOLVED["prod"]["resources"]["alerts"].values()}
    assert minutes == {"0 5 * * * ?"}
    assert WRITTEN["sql_warehouses"]["alerts"]["enable_serverless_compute"] == "${var.alerts_serverless}"
    assert warehouse["enable_serverless_compute"] is True


def test_alerts_tell_a_destination_and_in_dev_the_engineer() -> None:
    """The address of a mailing list is no user of the workspace, and alerts write to users alone."""
    for target in TARGETS:
        told = {"destination_id": PASSED["prod"]["alert_destination"]}
        for alert in RESOLVED[target]["resources"]["alerts"].values():
            (one,) = alert["evaluation"]["notification"]["subscriptions"]
            assert one == ({"user_email": "someone@example.com"} if target == "dev" else told)


def query(alert: str, warehouse: Warehouse) -> str:
    """The alert's query on the tables of the test in place of the catalog's."""
    text: str = RESOLVED["prod"]["resources"]["alerts"][alert]["query_text"]
    return re.sub(r"orders_prod\.(\w+\.\w+)", lambda match: warehouse.sql_name(match[1]), text)


@pytest.fixture
def ask(warehouse: Warehouse) -> Callable[[str], bool]:
    """Whether an alert goes off now, by its query and its threshold."""

    def goes_off(alert: str) -> bool:
        evaluation = WRITTEN["alerts"][alert]["evaluation"]
        assert evaluation["comparison_operator"] == "GREATER_THAN"
        (row,) = warehouse.spark.sql(query(alert, warehouse)).collect()
        return bool(row[evaluation["source"]["name"]] > evaluation["threshold"]["value"]["double_value"])

    return goes_off


def fill(warehouse: Warehouse, spec: TableSpec, **values: object) -> None:
    """A row with these values, and NULL in every other column."""
    from pyspark.sql import functions as F

    warehouse.ensure(spec)
    columns = warehouse.read(spec.name).schema
    row = [F.lit(values.get(column.name)).cast(column.dataType).alias(column.name) for column in columns]
    warehouse.append(spec.name, warehouse.spark.range(1).select(*row))


def ago(minutes: int) -> datetime:
    return datetime.now() - timedelta(minutes=minutes)  # the session's zone is UTC, as the machine's


@pytest.mark.spark
def test_gold_is_late_when_no_run_begins_or_silver_does_not_follow(
    spark: SparkSession, warehouse: Warehouse, ask: Callable[[str], bool]
) -> None:
    warehouse.ensure(BATCHES)
    with hold(Lease(warehouse, this_process(run_id="a", command="lakehouse run"), say=print), say=print):
        pass
    assert not ask("late")
    from pyspark.sql import functions as F

    place = {"source": "mysql", "topic": "t", "topic_id": "i", "partition": 0}
    of_plan = warehouse.read(BATCHES.name).schema["planned"].dataType.simpleString()
    planned = F.from_json(F.lit('{"from_offset": 10, "until_offset": 20, "records": 5}'), of_plan)
    fill(warehouse, BATCHES, **place, layer="bronze", planned=planned, written_at=ago(90))
    assert ask("late")
    of_audit = {**place, "layer": "silver", "written_at": ago(1)}
    fill(warehouse, BATCHES, **of_audit, first_offset=3, last_offset=9)
    assert ask("late")
    fill(warehouse, BATCHES, **of_audit, first_offset=10, last_offset=17)
    assert not ask("late")
    spark.sql(f"UPDATE {warehouse.sql_name(LEASE.name)} SET started_at = started_at - INTERVAL 2 HOURS")
    assert ask("late")


@pytest.mark.spark
def test_a_gate_that_holds_is_told_until_it_passes(warehouse: Warehouse, ask: Callable[[str], bool]) -> None:
    from pyspark.sql import functions as F

    for spec in (RESULTS, BATCHES):
        warehouse.ensure(spec)
    assert not ask("failed_gates")
    rule = {"gate": "gold", "source": "mysql", "feed": "mysql_orders", "rule": "unique", "on_failure": "fail"}
    fill(warehouse, RESULTS, **{**rule, "on_failure": "warn"}, run="1", passed=False, evaluated_at=ago(9))
    assert not ask("failed_gates")
    fill(warehouse, RESULTS, **rule, run="2", passed=False, evaluated_at=ago(8))
    assert ask("failed_gates")
    fill(warehouse, RESULTS, **rule, run="3", passed=True, evaluated_at=ago(7))
    assert not ask("failed_gates")
    of_feed = {"source": "mysql", "feed": "mysql_orders"}
    fill(warehouse, BATCHES, **of_feed, layer="silver", batch=1, resumed=True, written_at=ago(6))
    assert not ask("failed_gates")
    suspended = (
        "named_struct('first_offset', 1, 'last_offset', 2, 'records', 2, 'rule', NULL, 'why', NULL, 'contract', NULL)"
    )
    fill(warehouse, BATCHES, **of_feed, layer="silver", batch=2, suspended=F.expr(suspended), written_at=ago(5))
    fill(warehouse, BATCHES, **of_feed, layer="silver", batch=3, written_at=ago(4))
    assert ask("failed_gates")
    fill(warehouse, BATCHES, **of_feed, layer="silver", batch=2, resumed=True, written_at=ago(3))
    assert not ask("failed_gates")
