"""Whole databases of MySQL by one rule, on real servers: what silver, joins and upsert topics make of them.

Everything is done by the command, each run in a process of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.stack.stack import Stack
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from tests.support.live.command import Command, Ended
from tests.support.live.whole_database import (
    PACKAGED,
    Texts,
    WholeDatabase,
    connectors,
    create,
    gold_texts,
    in_order,
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
    stored = tables(order_dw.warehouse).rows("SELECT discovered FROM {ops.tables}")
    discovered = [json.loads(row["discovered"]) for row in stored]
    assert {one["source"]: one["known_by"] for one in discovered} == KNOWN_BY
    assert {(one["source"], one["name"]) for one in discovered} == {
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
