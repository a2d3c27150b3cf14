"""Columns that are called as words of SQL are: a table by rule has the names of its database, whatever they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from tests.spark.test_by_rule import Job, by_rule
from tests.support.database import Database, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEYS = ("key", "order")
# Words of SQL, in the dialect of ANSI or in Spark's own.
OF_SQL = (
    *("select", "from", "where", "group", "left", "right", "on", "using", "table", "user", "values", "timestamp"),
    *("date", "interval", "null", "true", "case", "when", "end"),
)
# Names that this pipeline's own SQL has.
OF_PIPELINE = ("row", "target", "latest", "position", "topic", "offset", "op", "kind", "feed", "cutoff", "now")
COLUMNS = {
    "key": "BIGINT",
    "order": "VARCHAR(50)",
    **dict.fromkeys(OF_SQL, "VARCHAR(50)"),
    **dict.fromkeys(OF_PIPELINE, "BIGINT"),
}


def row(key: int, order: str, text: str, number: int) -> Row:
    return {"key": key, "order": order, **dict.fromkeys(OF_SQL, text), **dict.fromkeys(OF_PIPELINE, number)}


def live(job: Job) -> list[tuple[object, ...]]:
    return job.rows("select", *(f"`{name}`" for name in COLUMNS))


def expected(*rows: Row) -> list[tuple[object, ...]]:
    return sorted(tuple(one[name] for name in COLUMNS) for one in rows)


def test_words_of_sql_are_columns(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> None:
    database = Database(with_schemas=True)
    # The table is called as its own: `silver.select`.
    job = Job(spark, by_rule(contracts, name="<>"), tmp_path)
    database.define("select", COLUMNS, keys=KEYS)
    first, second, third = row(1, "a", "first", 1), row(1, "b", "second", 2), row(2, "a", "third", 3)
    assert job.run(*(database.event("select", "r", one, snapshot="true") for one in (first, second, third))) == ""
    assert live(job) == expected(first, second, third)
    # Updated and deleted; a change that comes after a later one of its key is passed over.
    late = database.event("select", "u", row(1, "a", "too late", 4))
    updated = row(1, "a", "updated", 5)
    gone = {"key": 1, "order": "b"}
    assert job.run(database.event("select", "u", updated), database.event("select", "d", gone)) == ""
    assert live(job) == expected(updated, third)
    assert job.run(late) == ""
    assert live(job) == expected(updated, third)
    # A position that is too high is damage, as the next record shows: the key is derived again from all its records.
    before, database.pos = database.pos, 1_000_000
    assert job.run(database.event("select", "u", row(2, "a", "damaged", 6))) == ""
    database.pos = before
    last = row(2, "a", "last", 7)
    assert job.run(database.event("select", "u", last)) == ""
    assert live(job) == expected(updated, last)
    # A tombstone without its delete, as compaction leaves them.
    tombstone = {**database.event("select", "d", {"key": 2, "order": "a"}), "value": None}
    assert job.run(tombstone) == ""
    assert live(job) == expected(updated)
    assert columns(job.warehouse) >= COLUMNS.keys()


def columns(warehouse: Warehouse) -> set[str]:
    return set(warehouse.read("silver.select").columns)
