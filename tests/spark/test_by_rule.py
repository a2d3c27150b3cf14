"""Tables by rule: a table a topic, with the columns that its events or its database say, and changed as they change."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.parts.column_types import STRING, SimpleType
from lakehouse.contracts.tables import Column, SilverTable
from lakehouse.contracts.topics import FeedTopics, Source, TableRule, Topics
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import FeedSuspendedError
from silver import apply
from silver.accounts.audit import read_state
from silver.by_rule.changed import with_approval, with_rename
from silver.by_rule.tables import DISCOVERED_TABLES, DiscoveredTables, discovered_tables
from tests.support.counted import jobs_so_far
from tests.support.database import DDL_TOPIC, Database, arrive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = "dw"
BIGINT = SimpleType("BIGINT")
USER = {"id": "BIGINT", "name": "VARCHAR(50)"}
ORDER = {"id": "BIGINT", "product": "VARCHAR(50)", "user_id": "BIGINT"}
FEEDBACK = {"id": "BIGINT", "user_id": "BIGINT", "comment": "VARCHAR(50)"}


def mysql(rules: dict[str, TableRule]) -> Source:
    """A MySQL whose tables are made by these rules."""
    return Source(kind="mysql", by_rule=rules)


def by_rule(contracts: Contracts, **rule: Any) -> Contracts:
    """Contracts of one source, whose tables are made by a rule."""
    include = rule.pop("include", (r"order_dw\..*",))
    source = mysql({"order_dw": TableRule(include=include, **rule)})
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
        self.warehouse = self.chosen.address.open(self.spark)
        (self.folder / "events").mkdir(parents=True)

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

    def approve(self, *tables: str, rename: tuple[str, str] | None = None) -> str:
        """What those tables wait for is approved; what the run after it ends with."""
        known = {one.name: one for one in discovered_tables(self.warehouse, self.contracts)}
        waiting = [known[name] for name in tables]
        if rename is not None:
            waiting = [with_rename(one, before=rename[0], after=rename[1]) for one in waiting]
        DiscoveredTables(run="approval").store(self.warehouse, [with_approval(one) for one in waiting])
        return self.run()

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


def test_a_database_becomes_tables(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    """Three connectors of it: with schemas in messages, with a topic of schema changes, with neither."""
    known = {"s": "schema of the messages", "d": "topic of schema changes", "v": "values"}
    databases = {way: Database(with_schemas=way == "s", topic=f"{way}.{{table}}") for way in known}
    rules = {
        way: TableRule(include=(rf"{way}\..*",), name=f"{way}_<>", schema_changes=DDL_TOPIC if way == "d" else None)
        for way in known
    }
    job = Job(spark, by_rule(contracts), tmp_path)
    job.contracts = job.contracts.model_copy(update={"topics": Topics(sources={SOURCE: mysql(rules)})})
    told = {way: order_dw(database) for way, database in databases.items()}
    assert job.run(*[one for way in told for one in told[way] if way == "d" or one["topic"] != DDL_TOPIC]) == ""
    for way in known:
        assert job.types(f"{way}_user") == {"id": "bigint", "name": "string"}
        assert job.rows(f"{way}_user", "id", "name") == [(1, "Tom"), (2, "Jerry")]
        assert job.rows(f"{way}_order", "id", "product", "user_id") == [(1, "Football", 2), (2, "Basket", 1)]
        assert job.rows(f"{way}_feedback", "comment") == [("Good.",), ("Very good",)]
    # What comes later is applied as to any table.
    changes: list[tuple[str, dict[str, Any]]] = [("u", {"id": 2, "name": "Spike"}), ("d", {"id": 1})]
    assert job.run(*[one.event("user", op, row) for one in databases.values() for op, row in changes]) == ""
    users = {
        made.name: made for made in discovered_tables(job.warehouse, job.contracts) if made.table == "order_dw.user"
    }
    for way, known_by in known.items():
        assert job.rows(f"{way}_user", "id", "name") == [(2, "Spike")]
        user = users[f"{way}_user"]
        assert (user.keys, user.known_by, user.version) == (("id",), known_by, 1)


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
    versions = job.warehouse.read(DISCOVERED_TABLES.name).groupBy("name").count().collect()
    assert {row["name"]: row["count"] for row in versions} == {
        "order_dw_user": 2,
        "order_dw_order": 1,
        "order_dw_feedback": 1,
    }


OTHERWISE: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "dropped": ({"id": "BIGINT"}, {"id": 3}, "the column name is gone from its events"),
    "renamed": ({"id": "BIGINT", "called": "VARCHAR(50)"}, {"id": 3, "called": "B"}, "the column name is gone"),
    "retyped": ({"id": "BIGINT", "name": "INT"}, {"id": 3, "name": 7}, "the column name was string, and is int32"),
    "narrower": ({"id": "INT", "name": "VARCHAR(50)"}, {"id": 3, "name": "B"}, "was int64, and is narrower now: int32"),
}


def test_another_column_suspends_its_table_alone(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database = Database(with_schemas=True)
    job = Job(spark, by_rule(contracts, parse_errors="skip-record", name="<>"), tmp_path)
    for table in (*OTHERWISE, "other"):
        database.define(table, USER)
    row = {"id": 1, "name": "a"}
    assert job.run(*[database.event(table, "c", row) for table in database.tables]) == ""
    for table, (columns, _row, _why) in OTHERWISE.items():
        database.define(table, columns)
    news = [database.event(table, "c", new) for table, (_columns, new, _why) in OTHERWISE.items()]
    said = job.run(*news, database.event("other", "c", {"id": 2, "name": "b"}))
    for table, (_columns, _row, why) in OTHERWISE.items():
        assert f"silver.{table} is suspended: " in said
        assert why in said
        assert re.search(rf"lakehouse schema approve .*\b{table}\b", said)
        assert job.rows(table, "id") == [(1,)]
    assert job.rows("other", "id") == [(1,), (2,)]
    assert job.run() == said, "nothing has come: they are as they were"
    # One is approved: it goes on, and the others stay as they are.
    said = job.approve("dropped")
    assert "silver.renamed is suspended: " in said
    assert "dropped" not in said
    assert job.rows("dropped", "id", "name") == [(1, "a"), (3, None)]
    assert job.approve("narrower", "retyped") != ""
    assert job.approve("renamed", rename=("name", "called")) == ""
    assert job.rows("renamed", "id", "name") == [(1, "a"), (3, "B")]
    assert job.rows("retyped", "id", "name") == [(1, "a"), (3, "7")]
    assert job.rows("narrower", "id", "name") == [(1, "a"), (3, "B")]
    assert job.run(*[database.event(table, "d", {"id": 1}) for table in OTHERWISE]) == ""
    assert all(key != 1 for table in OTHERWISE for (key,) in job.rows(table, "id"))
    assert not read_state(job.warehouse, SOURCE).pending


KINDS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "add": ({**USER, "age": "INT"}, {"id": 3, "name": "B", "age": 7}),
    "narrow": ({"id": "INT", "name": "VARCHAR(50)"}, {"id": 3, "name": "B"}),
    "retype": ({"id": "BIGINT", "name": "INT"}, {"id": 3, "name": 7}),
    "drop": ({"id": "BIGINT"}, {"id": 3}),
    "rename": ({"id": "BIGINT", "called": "VARCHAR(50)"}, {"id": 3, "called": "B"}),
}


@pytest.mark.parametrize("policy", ["evolve", "suspend", "quarantine"])
def test_each_kind_of_change_goes_as_its_policy_says(
    spark: SparkSession, contracts: Contracts, tmp_path: Path, policy: str
) -> None:
    database = Database(with_schemas=True)
    parse_errors = "fail" if policy == "quarantine" else "skip-record"
    of_rule = {"parse_errors": parse_errors, "name": "<>", "on_schema_change": dict.fromkeys(KINDS, policy)}
    job = Job(spark, by_rule(contracts, **of_rule), tmp_path)
    for table in KINDS:
        database.define(table, USER)
    assert job.run(*[database.event(table, "c", {"id": 1, "name": "a"}) for table in KINDS]) == ""
    for table, (columns, _row) in KINDS.items():
        database.define(table, columns)
    said = job.run(*[database.event(table, "c", row) for table, (_columns, row) in KINDS.items()])
    keys = [(1,)] if policy != "evolve" else [(1,), (3,)]
    assert {table: job.rows(table, "id") for table in KINDS} == dict.fromkeys(KINDS, keys)
    quarantined = job.warehouse.read("quality.quarantine").where("state = 'open'").collect()
    assert {row["feed"] for row in quarantined} == ({*KINDS} if policy == "quarantine" else set())
    assert {table for table in KINDS if f"silver.{table} is suspended" in said} == (
        {*KINDS} if policy == "suspend" else set()
    )
    if policy == "evolve":
        assert job.rows("add", "id", "age") == [(1, None), (3, 7)]
        assert job.rows("rename", "id", "name", "called") == [(1, "a", None), (3, None, "B")]
        assert job.rows("drop", "id", "name") == [(1, "a"), (3, None)]
        assert job.rows("retype", "id", "name") == [(1, "a"), (3, "7")]
    # What goes on as it was takes what is as it was: here, the deletes of rows that it has.
    if policy == "quarantine":
        for table in KINDS:
            database.define(table, USER)
        assert job.run(*[database.event(table, "u", {"id": 1, "name": "c"}) for table in KINDS]) == ""
        assert all(job.rows(table, "id", "name") == [(1, "c")] for table in KINDS)


def test_another_key_is_another_table(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database, lines = Database(with_schemas=True), {"id": "BIGINT", "line": "BIGINT", "name": "VARCHAR(50)"}
    policies = {"key": "quarantine"}
    job = Job(spark, by_rule(contracts, name="<>", on_schema_change_of={"order_dw.some": policies}), tmp_path)
    for table in ("all", "some"):
        database.define(table, lines)
    first = [database.event(table, "c", {"id": 1, "line": 1, "name": "a"}) for table in ("all", "some")]
    assert job.run(*first) == ""
    for table in ("all", "some"):
        database.define(table, lines, keys=("id", "line"))
    row = {"id": 1, "line": 2, "name": "b"}
    said = job.run(*[database.event(table, "c", row) for table in ("all", "some")])
    assert "silver.all is suspended: the key of its records was id, and is id, line" in said
    assert "silver.some is suspended" not in said
    assert [job.rows(table, "line") for table in ("all", "some")] == [[(1,)], [(1,)]]
    assert [row["feed"] for row in job.warehouse.read("quality.quarantine").collect()] == ["some"]


def test_what_is_no_table_yet_waits(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database = Database()
    rule = {"schema_changes": DDL_TOPIC, "exclude": (r".*\.tmp_.*",), "parse_errors": "skip-record"}
    job = Job(spark, by_rule(contracts, include=(r"order_dw\..*",), **rule), tmp_path)
    defined, *rows = order_dw(database)[0], *order_dw(database)[3:]
    garbage = database.event("other", "c", {"id": 1}) if database.define("other", {"id": "BIGINT"}) else {}
    said = job.run(
        *[one for one in rows if "feedback" not in one["topic"] and one["topic"] != DDL_TOPIC],
        defined,
        {**garbage, "value": "{nothing", "key": None},
    )
    assert "silver.order_dw_order is suspended: topic order_dw does not say yet what order_dw.order is" in said
    assert "order_dw_order_dw_other is suspended: nothing in topic order_dw.order_dw.other states a row yet" in said
    assert "`exclude` in bronze/topics.yaml" in said
    assert job.rows("order_dw_user", "name") == [("Jerry",), ("Tom",)]
    assert job.run() == said, "nothing has come: they are as they were"
    # The definition comes, and an event behind the record that is none.
    said = job.run(
        database.define("order", ORDER),
        database.define("other", {"id": "BIGINT", "price": "DECIMAL(10,2)"}),
        database.event("other", "c", {"id": 1, "price": "AfQ="}),
    )
    assert said == ""
    assert job.rows("order_dw_order", "id", "product", "user_id") == [(1, "Football", 2), (2, "Basket", 1)]
    assert [(key, str(price)) for key, price in job.rows("order_dw_order_dw_other", "id", "price")] == [(1, "5.00")]
    assert job.warehouse.read("quality.quarantine").count() == 1
    # A definition that changes: what is added goes on, what is gone waits for a person.
    assert (
        job.run(
            database.define("user", {**USER, "born": "DATE"}),
            database.event("user", "u", {"id": 1, "name": "T", "born": 1}),
        )
        == ""
    )
    assert job.rows("order_dw_user", "id", "born")[0] == (1, date(1970, 1, 2))
    said = job.run(
        database.define("user", {"id": "BIGINT", "born": "DATE"}), database.event("user", "u", {"id": 1, "born": 2})
    )
    assert "the column name is gone from its events" in said
    assert job.approve("order_dw_user") == ""
    assert job.rows("order_dw_user", "id", "name") == [(1, None), (2, "Jerry")]
    # A column that came late is gone too, once it is renamed.
    said = job.run(
        database.define("user", {"id": "BIGINT", "Born": "DATE"}), database.event("user", "u", {"id": 2, "Born": 3})
    )
    assert "the column born is gone from its events (Born is new: renamed?)" in said
    assert job.rows("order_dw_user", "id", "born")[1] == (2, None)
    assert job.approve("order_dw_user") == ""
    assert job.rows("order_dw_user", "id", "born_2")[1] == (2, date(1970, 1, 4))
    # A silver made anew has the same tables.
    before = {table: job.rows(table, "*") for table in ("order_dw_user", "order_dw_order")}
    rmtree(tmp_path / "warehouse" / "silver")
    assert job.run() == ""
    own = {table: job.rows(table, *job.types(table)) for table in before}
    assert own["order_dw_user"] == [(1, None, date(1970, 1, 3), None), (2, None, None, date(1970, 1, 4))]
    assert len(own["order_dw_order"]) == 2
    # A definition by which values are written otherwise: nobody can accept it, and the other tables go on.
    news = [
        database.define("other", {"id": "BIGINT", "price": "DECIMAL(10,4)"}),
        database.event("other", "c", {"id": 2, "price": "AfQ="}),
    ]
    for said in (job.run(*news), job.run()):
        assert "the column price was DECIMAL(10,2) and DECIMAL(10,4) in turn: in messages without a schema" in said
        assert "schema approve" not in said
    assert [(key, str(price)) for key, price in job.rows("order_dw_order_dw_other", "id", "price")] == [(1, "5.00")]


def test_a_table_declared_by_hand_counts(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database = Database()
    job = Job(spark, by_rule(contracts), tmp_path)
    assert job.run(*[one for one in order_dw(database) if one["topic"] != DDL_TOPIC]) == ""
    source = job.contracts.topics.sources[SOURCE]
    feed = FeedTopics(topics=("order_dw.order_dw.user",), envelope="table")
    declared = SilverTable(
        keys=("id",),
        sequence_by="source_position",
        columns={"id": Column(type=BIGINT), "name": Column(type=STRING)},
    )
    topics = Topics(sources={SOURCE: source.model_copy(update={"feeds": {"order_dw_user": feed}})})
    silver = job.contracts.silver.model_copy(update={"tables": {"order_dw_user": declared}})
    job.contracts = job.contracts.model_copy(update={"topics": topics, "silver": silver})
    database.define("log", {"line": "VARCHAR(50)"}, keys=())  # a new table, without a key
    assert (
        job.run(
            database.event("user", "c", {"id": 3, "name": "Butch", "age": 7}),
            database.event("log", "c", {"line": "a"}),
            database.event("log", "c", {"line": "a"}),
        )
        == ""
    )
    assert job.types("order_dw_user") == {"id": "bigint", "name": "string"}
    assert [key for (key,) in job.rows("order_dw_user", "id")] == [1, 2, 3]
    assert [row["line"] for row in job.warehouse.read("silver.order_dw_log").collect()] == ["a", "a"]
    detail = spark.sql(f"DESCRIBE DETAIL {job.warehouse.sql_name('silver.order_dw_log')}").collect()[0]
    assert "Types inferred from values, to be checked: line." in detail["description"]


def test_a_pass_costs_what_the_tables_with_news_cost(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    spent = {}
    for tables in (2, 12):  # more than are decoded together
        database = Database()
        job = Job(spark, by_rule(contracts), tmp_path / str(tables))
        for number in range(tables):
            database.define(f"t{number}", USER)
        job.run(*[database.event(f"t{number}", "c", {"id": 1, "name": "a"}) for number in range(tables)])
        news = [database.event(f"t{number}", "u", {"id": 1, "name": "b"}) for number in (0, 1)]
        before = jobs_so_far(spark)
        assert job.run(*news) == ""
        spent[tables] = jobs_so_far(spark) - before
        assert job.rows("order_dw_t1", "name") == [("b",)]
    assert spent[12] == spent[2]
