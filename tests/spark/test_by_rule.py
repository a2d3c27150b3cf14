"""Tables by rule: a table a topic, with the columns that its events or its database say, and changed as they change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import Source, TableRule, Topics
from lakehouse.errors import FeedSuspendedError
from lakehouse.spark.tables import Warehouse
from silver import apply
from silver.audit import read_state
from silver.by_rule.tables import MADE_TABLES, made_tables
from tests.support.database import DDL_TOPIC, Database, arrive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = "dw"
USER = {"id": "BIGINT", "name": "VARCHAR(50)"}
ORDER = {"id": "BIGINT", "product": "VARCHAR(50)", "user_id": "BIGINT"}
FEEDBACK = {"id": "BIGINT", "user_id": "BIGINT", "comment": "VARCHAR(50)"}


def by_rule(contracts: Contracts, **rule: Any) -> Contracts:
    """Contracts of one source, whose tables are made by a rule."""
    include = rule.pop("include", (r"order_dw\..*",))
    source = Source(kind="mysql", by_rule={"order_dw": TableRule(include=include, **rule)})
    silver = contracts.silver.model_copy(update={"tables": {}})
    gate = contracts.silver_gate.model_copy(update={"feeds": (), "expectations": ()})
    parts = {"topics": Topics(sources={SOURCE: source}), "silver": silver, "silver_gate": gate}
    return contracts.model_copy(update=parts)


@dataclass
class Job:
    """Silver of that source, run as a job is."""

    spark: SparkSession
    contracts: Contracts
    folder: Path
    runs: int = 0
    chosen: Settings = field(init=False)
    warehouse: Warehouse = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = settings(warehouse=str(self.folder / "warehouse"), bootstrap_servers="")
        self.warehouse = self.chosen.address.opened(self.spark)
        (self.folder / "events").mkdir()

    def run(self, *records: dict[str, Any], **options: Any) -> str:
        """One run with these records in bronze; what it ends with, empty when all went well."""
        if records:
            arrive(self.warehouse, SOURCE, records, self.folder / "events")
        self.runs += 1
        try:
            apply.run(self.spark, self.chosen, self.contracts, run_id=f"run {self.runs}", **options)
        except FeedSuspendedError as error:
            return str(error)
        return ""

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The live rows of a silver table, in order."""
        found = self.warehouse.read(f"silver.{table}").where("NOT _is_deleted").select(*columns).collect()
        return sorted(tuple(row) for row in found)

    def types(self, table: str) -> dict[str, str]:
        """The columns of a silver table that are not the pipeline's own."""
        schema = self.warehouse.read(f"silver.{table}").schema
        return {one.name: one.dataType.simpleString() for one in schema if not one.name.startswith("_")}


def order_dw(database: Database) -> list[dict[str, Any]]:
    """The database of the case: three tables with reserved words for names."""
    defined = [
        database.define("user", USER),
        database.define("order", ORDER),
        database.define("feedback", FEEDBACK),
    ]
    return [
        *(defined if not database.with_schemas else []),
        database.event("user", "r", {"id": 1, "name": "Tom"}, snapshot="first"),
        database.event("user", "r", {"id": 2, "name": "Jerry"}, snapshot="true"),
        database.event("order", "r", {"id": 1, "product": "Football", "user_id": 2}, snapshot="true"),
        database.event("order", "r", {"id": 2, "product": "Basket", "user_id": 1}, snapshot="true"),
        database.event("feedback", "r", {"id": 1, "user_id": 1, "comment": "Good."}, snapshot="true"),
        database.event("feedback", "r", {"id": 2, "user_id": 2, "comment": "Very good"}, snapshot="last"),
    ]


@pytest.mark.parametrize("known_by", ["schemas", "definitions", "values"])
def test_a_database_becomes_tables(known_by: str, spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database = Database(with_schemas=known_by == "schemas")
    rule = {"schema_changes": DDL_TOPIC} if known_by == "definitions" else {}
    job = Job(spark, by_rule(contracts, **rule), tmp_path)
    told = order_dw(database)
    assert job.run(*(one for one in told if known_by == "definitions" or one["topic"] != DDL_TOPIC)) == ""
    assert job.types("order_dw_user") == {"id": "bigint", "name": "string"}
    assert job.rows("order_dw_user", "id", "name") == [(1, "Tom"), (2, "Jerry")]
    assert job.rows("order_dw_order", "id", "product", "user_id") == [(1, "Football", 2), (2, "Basket", 1)]
    assert job.rows("order_dw_feedback", "comment") == [("Good.",), ("Very good",)]
    # What comes later is applied as to any table.
    assert (
        job.run(database.event("user", "u", {"id": 2, "name": "Spike"}), database.event("user", "d", {"id": 1})) == ""
    )
    assert job.rows("order_dw_user", "id", "name") == [(2, "Spike")]
    (user,) = [one for one in made_tables(job.warehouse, job.contracts) if one.name == "order_dw_user"]
    assert (user.keys, user.table, user.version) == (("id",), "order_dw.user", 1)
    assert (
        user.known_by
        == {
            "schemas": "schema of the messages",
            "definitions": "topic of schema changes",
            "values": "values",
        }[known_by]
    )


def test_columns_that_come_new_are_added(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database = Database(with_schemas=True)
    job = Job(spark, by_rule(contracts), tmp_path)
    assert job.run(*order_dw(database)) == ""
    database.define("user", {**USER, "age": "INT"})
    assert (
        job.run(
            database.event("user", "c", {"id": 3, "name": "Butch", "age": 7}),
            database.event("order", "c", {"id": 3, "product": "Net", "user_id": 3}),
        )
        == ""
    )
    assert job.types("order_dw_user") == {"id": "bigint", "name": "string", "age": "bigint"}
    assert job.rows("order_dw_user", "id", "age") == [(1, None), (2, None), (3, 7)]
    versions = job.warehouse.read(MADE_TABLES.name).groupBy("name").count().collect()
    assert {row["name"]: row["count"] for row in versions} == {
        "order_dw_user": 2,
        "order_dw_order": 1,
        "order_dw_feedback": 1,
    }


@pytest.mark.parametrize(
    ("columns", "row", "why"),
    [
        ({"id": "BIGINT"}, {"id": 3}, "the column name is gone from its events"),
        ({"id": "BIGINT", "called": "VARCHAR(50)"}, {"id": 3, "called": "Butch"}, "the column name is gone"),
        ({"id": "BIGINT", "name": "INT"}, {"id": 3, "name": 7}, "the column name was string, and is int32"),
        ({"id": "INT", "name": "VARCHAR(50)"}, {"id": 3, "name": "B"}, "was int64, and is narrower now: int32"),
    ],
    ids=["dropped", "renamed", "retyped", "narrower"],
)
def test_another_column_suspends_its_table_alone(
    columns: dict[str, str], row: dict[str, Any], why: str, spark: SparkSession, contracts: Contracts, tmp_path: Path
) -> None:
    database = Database(with_schemas=True)
    job = Job(spark, by_rule(contracts, parse_errors="skip-record"), tmp_path)
    assert job.run(*order_dw(database)) == ""
    database.define("user", columns)
    said = job.run(
        database.event("user", "c", row), database.event("order", "c", {"id": 3, "product": "Net", "user_id": 3})
    )
    assert why in said and "lakehouse silver --accept-columns order_dw_user" in said
    assert len(job.rows("order_dw_user", "id")) == 2 and len(job.rows("order_dw_order", "id")) == 3
    assert why in job.run()  # it stays so
    assert job.run(accepted_columns=["order_dw_user"]) == ""
    assert [key for (key,) in job.rows("order_dw_user", "id")] == [1, 2, 3]
    assert job.run(database.event("user", "d", {"id": 1})) == ""
    assert [key for (key,) in job.rows("order_dw_user", "id")] == [2, 3]
    assert not read_state(
        job.warehouse, SOURCE, checkpoint=job.warehouse.checkpoint_id(f"silver/{SOURCE}") or ""
    ).pending
