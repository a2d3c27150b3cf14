"""Whole databases of MySQL by one rule, on real servers: what silver, joins and upsert topics make of them.

Everything is done by the command, each run in a process of its own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from demo.stack.stack import Stack
from lakehouse.contracts.names import as_name
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from tests.support.brokers import plain_config
from tests.support.live.command import Command, Ended
from tests.support.live.whole_database import (
    PACKAGED,
    Texts,
    WholeDatabase,
    connectors,
    create,
    gold_texts,
    in_order,
    records_of,
    silver_texts,
    source_texts,
    tables,
    wait_for_records,
)

pytestmark = [pytest.mark.spark, pytest.mark.live]

# With other work on the same cores; alone a run takes a fraction of it.
RUN_SECONDS = 900.0


@dataclass(frozen=True)
class Jobs:
    """The command on a warehouse in this folder, with the contracts there."""

    command: Command
    stack: Stack
    folder: Path

    @property
    def warehouse(self) -> Path:
        """Where the tables are."""
        return self.folder / "warehouse"

    def run(self, name: str = "run", *more: str) -> Ended:
        """A job, or another command that has these options, to its end."""
        where = ("--warehouse", str(self.warehouse), "--contracts", str(self.folder / "contracts"))
        broker = ("--bootstrap-servers", self.stack.bootstrap_servers)
        done = self.command(name, *where, *broker, "--json", *more, seconds=RUN_SECONDS)
        print("", *[line for line in done.err.splitlines() if line.endswith(" s)")], sep="\n")
        return done

    def declare(self, **files: Mapping[str, Any]) -> None:
        """Write contracts: of `bronze` and of `gold`, which may be left out."""
        names = {"bronze": "bronze/topics.yaml", "gold": "gold/tables.yaml"}
        for layer, content in files.items():
            file = self.folder / "contracts" / names[layer]
            file.parent.mkdir(parents=True)
            file.write_text(yaml.safe_dump(content), encoding="utf-8")

    def last_values(self, topic: str) -> Texts:
        """The last value of every key of a topic, as a reader of committed records finds them."""
        last = {}
        for one in committed_records(KafkaConnection(bootstrap_servers=self.stack.bootstrap_servers), topic):
            last[one.key] = one.value
        return in_order(json.loads(value) for value in last.values() if value is not None)


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Say how long it took."""
    begin = time.monotonic()
    yield
    print(f"\n  {what}: {time.monotonic() - begin:.1f} s", flush=True)


# The same database three times, by topics of three ways of naming, whose messages say types in three ways.
DATABASE = "order_dw"
CREATED = (
    "CREATE TABLE {database}.`user` (id BIGINT PRIMARY KEY, name VARCHAR(50))",
    "CREATE TABLE {database}.`order` (id BIGINT PRIMARY KEY, product VARCHAR(50), user_id BIGINT)",
    "CREATE TABLE {database}.`feedback` (id BIGINT PRIMARY KEY, user_id BIGINT, comment VARCHAR(50))",
    "INSERT INTO {database}.`user` VALUES (1, 'Tom'), (2, 'Jerry')",
    "INSERT INTO {database}.`order` VALUES (1, 'Football', 2), (2, 'Basket', 1), (3, 'Racket', 3)",
    "INSERT INTO {database}.`feedback` VALUES (1, 1, 'Good.'), (2, 2, 'Very good')",
)
CHANGED = (
    "UPDATE {database}.`user` SET name = 'Gerald' WHERE id = 2",
    "INSERT INTO {database}.`user` VALUES (3, 'Spike')",
    "DELETE FROM {database}.`user` WHERE id = 1",
    "CREATE TABLE {database}.`group` (id BIGINT PRIMARY KEY, title VARCHAR(50))",
    "INSERT INTO {database}.`group` VALUES (1, 'Cats'), (2, 'Mice')",
    "ALTER TABLE {database}.`user` ADD COLUMN city VARCHAR(50)",
    "INSERT INTO {database}.`user` VALUES (4, 'Butch', 'Praha')",
    "INSERT INTO {database}.`order` VALUES (4, 'Net', 4)",
)
# An update, three inserts and a delete with its tombstone; two rows; an order.
ROWS, MORE = 7, 5 + 2 + 1
TABLES = ("user", "order", "feedback")
FIXED = {"user": "users", "order": "orders", "feedback": "feedbacks"}
WITH_SCHEMAS = {f"{part}.converter.schemas.enable": "true" for part in ("key", "value")}
# A fixed name each; of a table that comes later Debezium's.
NAMED = {f"{DATABASE}.{table}": name for table, name in FIXED.items()}
CONNECTORS = (
    WholeDatabase(PACKAGED, DATABASE, 1),
    WholeDatabase("order-dw-pattern", "order_dw_pattern", 2, "topic_<>", WITH_SCHEMAS),
    WholeDatabase("order-dw-names", "order_dw_names", 3, NAMED),
)
SOURCES: Mapping[str, Mapping[str, Any]] = {
    "dw": {
        "include": [r"order_dw\.order_dw\..*"],
        "name": "{database}_{table}",
        "schema_changes": "order_dw",
    },
    "pattern": {"include": ["topic_.*"], "name": "topic_<>"},
    "named": {"include": [*FIXED.values(), r"order_dw_names\.order_dw\..*"], "name": "dw_<>", "names": NAMED},
}
KNOWN_BY = {"dw": "topic of schema changes", "pattern": "schema of the messages", "named": "values"}
JOINS = {
    "user_orders": ("order", {"order_id": "id", "product": "product"}),
    "user_feedback": ("feedback", {"feedback_id": "id", "comment": "comment"}),
}
UPSERTS = {"users": "silver.order_dw_user", "user_orders": "gold.user_orders"}


def topics_of(source: str) -> Sequence[str]:
    """The topics of a source, the one that comes later too."""
    names: Mapping[str, Mapping[str, str]] = {
        "dw": {table: f"order_dw.order_dw.{table}" for table in (*TABLES, "group")},
        "pattern": {table: f"topic_{table}" for table in (*TABLES, "group")},
        "named": {**FIXED, "group": "order_dw_names.order_dw.group"},
    }
    return tuple(names[source].values())


def silver_name(source: str, table: str) -> str:
    """The silver table of a table."""
    return {"dw": f"order_dw_{table}", "pattern": f"topic_{table}", "named": FIXED.get(table, f"dw_{table}")}[source]


def order_dw_gold() -> Mapping[str, Any]:
    """Joins of orders and of feedback with the names of users; the users and a join published."""
    user = {"table": "order_dw_user", "by": {"id": "user_id"}, "columns": {"user_name": "name"}}
    joins = {
        name: {"table": f"order_dw_{table}", "columns": columns, "left_join": [user]}
        for name, (table, columns) in JOINS.items()
    }
    topic = {"partitions": 1, "replication_factor": 1}
    upserts = {
        name: {"table": table, "topic": f"lakehouse.order_dw.{name}", **topic} for name, table in UPSERTS.items()
    }
    return {"joins": joins, "upsert_topics": upserts}


@pytest.fixture(scope="module")
def order_dw(stack: Stack, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """The database with its rows on the topics of three connectors, and contracts that read all of them."""
    folder = tmp_path_factory.mktemp("order_dw")
    deployed = connectors(command, folder / "bundle", DATABASE, CONNECTORS)
    create(stack.mysql, DATABASE, *CREATED)
    try:
        with measured("order_dw: three connectors"):
            deployed.deploy()
            for source in SOURCES:
                wait_for_records(stack, frozenset(topics_of(source)).__contains__, ROWS)
        jobs = Jobs(command, stack, folder)
        jobs.declare(
            bronze={
                "sources": {
                    name: {
                        "kind": "mysql",
                        "by_rule": {"order_dw": rule},
                        "ignored_topics": [f"__debezium-heartbeat.{of.prefix}"],
                    }
                    for (name, rule), of in zip(SOURCES.items(), CONNECTORS, strict=True)
                }
            },
            gold=order_dw_gold(),
        )
        yield jobs
    finally:
        deployed.delete()
        stack.mysql.execute(f"DROP DATABASE {DATABASE}")


def require_all_equal(jobs: Jobs, present: Sequence[str]) -> None:
    """Every silver table equals its source, each join MySQL's own, each upsert topic its table; nothing is missing."""
    mysql = jobs.stack.mysql
    for source in SOURCES:
        for table in present:
            wanted = source_texts(mysql, f"SELECT * FROM {DATABASE}.`{table}`")
            assert silver_texts(jobs.warehouse, f"silver.{silver_name(source, table)}") == wanted, (source, table)
    for name, (table, columns) in JOINS.items():
        listed = ", ".join(f"t.{column} AS {as_name}" for as_name, column in columns.items())
        joined = f"{DATABASE}.`{table}` t LEFT JOIN {DATABASE}.`user` u ON u.id = t.user_id"
        wanted = source_texts(mysql, f"SELECT {listed}, u.name AS user_name FROM {joined}")
        assert gold_texts(jobs.warehouse, f"gold.{name}") == wanted, name
        if name in UPSERTS:
            assert jobs.last_values(f"lakehouse.order_dw.{name}") == wanted
    users = source_texts(mysql, f"SELECT * FROM {DATABASE}.`user`")
    assert jobs.last_values("lakehouse.order_dw.users") == users


def test_three_ways_to_name_topics_give_the_same_tables(order_dw: Jobs) -> None:
    validated = order_dw.command("validate", "--contracts", str(order_dw.folder / "contracts"))
    assert validated.code == 0, validated.out + validated.err
    with measured("order_dw: first run"):
        done = order_dw.run()
    assert done.code == 0, done.out + done.err
    require_all_equal(order_dw, TABLES)
    assert gold_texts(order_dw.warehouse, "gold.user_orders") == in_order(
        {"order_id": number, "product": product, "user_name": user}
        for number, product, user in ((1, "Football", "Jerry"), (2, "Basket", "Tom"), (3, "Racket", None))
    )
    made = [json.loads(row["made"]) for row in tables(order_dw.warehouse).rows("SELECT made FROM {ops.tables}")]
    assert {one["source"]: one["known_by"] for one in made} == KNOWN_BY
    assert {(one["source"], one["name"]) for one in made} == {
        (source, silver_name(source, table)) for source in SOURCES for table in TABLES
    }


def test_changes_new_tables_and_new_columns_follow(order_dw: Jobs) -> None:
    order_dw.stack.mysql.execute(*[one.replace("{database}", DATABASE) for one in CHANGED])
    for source in SOURCES:
        wait_for_records(order_dw.stack, frozenset(topics_of(source)).__contains__, ROWS + MORE)
    with measured("order_dw: second run"):
        done = order_dw.run()
    assert done.code == 0, done.out + done.err
    require_all_equal(order_dw, (*TABLES, "group"))
    assert gold_texts(order_dw.warehouse, "gold.user_orders") == in_order(
        {"order_id": number, "product": product, "user_name": user}
        for number, product, user in (
            (1, "Football", "Gerald"),
            (2, "Basket", None),
            (3, "Racket", "Spike"),
            (4, "Net", "Butch"),
        )
    )
    with measured("order_dw: verify"):
        verified = order_dw.run("verify")
    assert verified.code == 0, verified.out + verified.err


# A hundred tables of some shapes, each with three rows.
MANY = "hundred"
RESERVED = (
    *("user", "order", "group", "select", "table", "index", "key", "values", "where", "from", "join", "desc"),
    *("case", "check", "column", "condition", "date", "describe", "exists", "grant", "interval", "limit", "partition"),
)
NAMES = (*RESERVED, "daily totals", *(f"t_{number:03}" for number in range(100 - len(RESERVED) - 1)))
DAMAGED = "t_050"


@dataclass(frozen=True)
class Shape:
    """The columns of tables, and three rows. `%d` in a row is the number of its table."""

    columns: str
    rows: Sequence[str]


NAMED_AND_PRICED = Shape(
    "id BIGINT PRIMARY KEY, name VARCHAR(50), price DECIMAL(12,4), created DATETIME(3), `Unit-Price` INT",
    (
        "(1, 'Žluťoučký %d', 12.3456, '2024-02-29 12:34:56.789', %d)",
        "(2, '', -0.0001, '1969-12-31 23:59:59', -1)",
        "(3, NULL, NULL, NULL, NULL)",
    ),
)
OF_TYPES = Shape(
    "id INT PRIMARY KEY, ts6 DATETIME(6), tstz TIMESTAMP(6) NULL, dt DATE, tm TIME, yr YEAR, bl TINYINT(1),"
    " ubi BIGINT UNSIGNED, js JSON, bin VARBINARY(64), en ENUM('a','b'), st SET('x','y','z'), dbl DOUBLE,"
    " big DECIMAL(38,10)",
    (
        "(1, '2024-02-29 12:34:56.789012', '2024-02-29 07:04:56.789012', '2024-02-29', '838:59:59', 2024, 1,"
        """ 18446744073709551615, '{"a": [1.5, null, "ü"], "b": %d}', x'00FF10', 'b', 'x,z', 0.1,"""
        " 9999999999999999999999999999.9999999999)",
        "(2" + ", NULL" * 13 + ")",
        """(3, '1969-12-31 23:59:59.999999', '1970-01-01 00:00:01', '1000-01-01', '-838:59:59', 1901, 0, 0, '{}', '',"""
        " 'a', '', -2.5, 0.0000000001)",
    ),
)
BY_TWO = Shape(
    "`order` INT, `key` VARCHAR(20), `select` SMALLINT, PRIMARY KEY (`order`, `key`)",
    ("(1, 'a', %d)", "(1, 'b', -1)", "(2, 'a', NULL)"),
)
BY_TEXT = Shape(
    "code VARCHAR(20) PRIMARY KEY, `from` DATE, `group` TINYINT(1), note LONGTEXT",
    ("('A-%d', '2024-05-01', 1, 'long')", "('ä', NULL, 0, NULL)", "('', '1970-01-01', NULL, 'x')"),
)
UNSIGNED = Shape(
    "id BIGINT UNSIGNED PRIMARY KEY, amount INT UNSIGNED, flags BIT(1)",
    ("(18446744073709551615, 4294967295, b'1')", "(%d, 0, b'0')", "(9223372036854775808, NULL, NULL)"),
)
KEYLESS = Shape("`index` INT, what VARCHAR(20)", ("(1, 'a')", "(1, 'a')", "(%d, NULL)"))
SHAPES = (NAMED_AND_PRICED, OF_TYPES, BY_TWO, BY_TEXT, UNSIGNED)


def shape_of(number: int) -> Shape:
    """The shape of a table."""
    return KEYLESS if NAMES[number] == "t_000" else SHAPES[number % len(SHAPES)]


def many_tables() -> Iterator[str]:
    """The statements that make them."""
    for number, name in enumerate(NAMES):
        shape = shape_of(number)
        yield f"CREATE TABLE {{database}}.`{name}` ({shape.columns})"
        rows = ", ".join(shape.rows).replace("%d", str(number + 10))
        yield f"INSERT INTO {{database}}.`{name}` VALUES {rows}"


@pytest.fixture(scope="module")
def many(stack: Stack, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A hundred tables on their topics, one of which has a record that is no JSON, and a rule for all of them."""
    folder = tmp_path_factory.mktemp("many")
    deployed = connectors(command, folder / "bundle", MANY, [WholeDatabase("hundred", MANY, 4)])
    with measured("a hundred tables: created"):
        create(stack.mysql, MANY, *many_tables())
    try:
        with measured("a hundred tables: connector, until all rows are on the topics"):
            deployed.deploy()
            wait_for_records(stack, is_of_many, 3 * len(NAMES))
        producer = Producer(plain_config(stack.bootstrap_servers))
        producer.produce(f"{MANY}.{MANY}.{DAMAGED}", key=b'{"id":1}', value=b'{"before": null, "after": {"id"')
        producer.flush(30)
        jobs = Jobs(command, stack, folder)
        rule = {"include": [rf"{MANY}\.{MANY}\..*"], "schema_changes": MANY}
        of_source = {
            "kind": "mysql",
            "by_rule": {MANY: rule},
            "ignored_topics": [f"__debezium-heartbeat.{MANY}"],
        }
        jobs.declare(bronze={"sources": {MANY: of_source}})
        yield jobs
    finally:
        deployed.delete()
        stack.mysql.execute(f"DROP DATABASE {MANY}")


def is_of_many(topic: str) -> bool:
    """Whether it is the topic of a table."""
    return topic.startswith(f"{MANY}.{MANY}.")


def run_counted(jobs: Jobs) -> tuple[Ended, int]:
    """A run, and how many jobs Spark has had in it, by its own log of events."""
    folder = jobs.folder / f"events-{len(list(jobs.folder.glob('events-*')))}"
    folder.mkdir()
    conf = {"enabled": "true", "dir": folder.as_uri(), "compress": "false"}
    done = jobs.run(
        "run", *[part for key, value in conf.items() for part in ("--spark-conf", f"spark.eventLog.{key}={value}")]
    )
    logs = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    begun = sum(len(re.findall('"Event":"SparkListenerJobStart"', file.read_text(encoding="utf-8"))) for file in logs)
    return done, begun


def require_suspended_alone(jobs: Jobs, done: Ended) -> None:
    """The run ended because of the one table, and all others equal the source."""
    assert done.code == 3, done.out + done.err
    (error,) = done.json["errors"]
    suspended = re.findall(r"silver\.(\w+) is suspended", error["what"])
    assert suspended == [f"{MANY}_{DAMAGED}"], error
    differing = [
        name
        for name in NAMES
        if name != DAMAGED
        and silver_texts(jobs.warehouse, f"silver.{as_name(f'{MANY}_{name}')}")
        != source_texts(jobs.stack.mysql, f"SELECT * FROM {MANY}.`{name}`")
    ]
    assert differing == []
    found = tables(jobs.warehouse)
    damaged = f"silver.{MANY}_{DAMAGED}"
    assert not found.exists(damaged) or found.facts(damaged).rows == 0


def test_a_hundred_tables_of_which_one_is_damaged(many: Jobs) -> None:
    with measured("a hundred tables: first run"):
        done, begun = run_counted(many)
    print(f"  {begun} jobs of Spark", flush=True)
    with measured("a hundred tables: compared"):
        require_suspended_alone(many, done)


def test_a_second_run_applies_what_changed_in_two_of_them(many: Jobs) -> None:
    before = records_of(many.stack, is_of_many)
    many.stack.mysql.execute(
        f"UPDATE {MANY}.`user` SET name = 'changed' WHERE id = 1",
        f"DELETE FROM {MANY}.`user` WHERE id = 2",
        f"INSERT INTO {MANY}.`t_000` VALUES (7, 'new')",
    )
    wait_for_records(many.stack, is_of_many, before + 4)
    with measured("a hundred tables: second run"):
        done, begun = run_counted(many)
    print(f"  {begun} jobs of Spark", flush=True)
    require_suspended_alone(many, done)
