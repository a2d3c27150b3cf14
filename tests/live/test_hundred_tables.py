"""A database of a hundred tables by one rule, on real servers: each equals its source; a damaged one stops no other.

Ten minutes on two cores, so it is run with the whole recordings, not with the other live tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer

from demo.stack.stack import Stack
from lakehouse.contracts.parts.names import as_name
from tests.live.test_database import Jobs, measured
from tests.support.brokers import plain_config
from tests.support.live.command import Command, Ended
from tests.support.live.whole_database import (
    WholeDatabase,
    connectors,
    create,
    records_of,
    silver_texts,
    source_texts,
    tables,
    wait_for_records,
)

pytestmark = [pytest.mark.spark, pytest.mark.whole]

# A hundred tables of some shapes, each with three rows.
LARGE_ROWS = "hundred"
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
    # Spark has a task for every partition that is read: for few rows one is enough.
    one = [WholeDatabase("hundred", LARGE_ROWS, 4)]
    deployed = connectors(command, folder / "bundle", LARGE_ROWS, one, topic_partitions="1")
    with measured("a hundred tables: created"):
        create(stack.mysql, LARGE_ROWS, *many_tables())
    try:
        with measured("a hundred tables: connector, until all rows are on the topics"):
            deployed.deploy()
            wait_for_records(stack, is_of_many, 3 * len(NAMES))
        producer = Producer(plain_config(stack.bootstrap_servers))
        producer.produce(
            f"{LARGE_ROWS}.{LARGE_ROWS}.{DAMAGED}", key=b'{"id":1}', value=b'{"before": null, "after": {"id"'
        )
        producer.flush(30)
        jobs = Jobs(command, stack, folder)
        rule = {"include": [rf"{LARGE_ROWS}\.{LARGE_ROWS}\..*"], "schema_changes": LARGE_ROWS}
        of_source = {
            "kind": "mysql",
            "by_rule": {LARGE_ROWS: rule},
            "ignored_topics": [f"__debezium-heartbeat.{LARGE_ROWS}"],
        }
        jobs.declare(bronze={"sources": {LARGE_ROWS: of_source}})
        yield jobs
    finally:
        deployed.delete()
        stack.mysql.execute(f"DROP DATABASE {LARGE_ROWS}")


def is_of_many(topic: str) -> bool:
    """Whether it is the topic of a table."""
    return topic.startswith(f"{LARGE_ROWS}.{LARGE_ROWS}.")


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
    assert suspended == [f"{LARGE_ROWS}_{DAMAGED}"], error
    differing = [
        name
        for name in NAMES
        if name != DAMAGED
        and silver_texts(jobs.warehouse, f"silver.{as_name(f'{LARGE_ROWS}_{name}')}")
        != source_texts(jobs.stack.mysql, f"SELECT * FROM {LARGE_ROWS}.`{name}`")
    ]
    assert differing == []
    found = tables(jobs.warehouse)
    damaged = f"silver.{LARGE_ROWS}_{DAMAGED}"
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
        f"UPDATE {LARGE_ROWS}.`user` SET name = 'changed' WHERE id = 1",
        f"DELETE FROM {LARGE_ROWS}.`user` WHERE id = 2",
        f"INSERT INTO {LARGE_ROWS}.`t_000` VALUES (7, 'new')",
    )
    wait_for_records(many.stack, is_of_many, before + 4)
    with measured("a hundred tables: second run"):
        done, begun = run_counted(many)
    print(f"  {begun} jobs of Spark", flush=True)
    require_suspended_alone(many, done)
    # A look at each of the others would be more.
    assert begun < 2 * len(NAMES)
