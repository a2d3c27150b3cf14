"""The tables of a warehouse, read from its files without Spark: rows, facts, commits and changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakehouse.delta.address import Address
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TableError
from monitoring.readings.tables import Commit, DeltaFiles, SparkTables, tables_at
from tests.unit.monitoring.delta import CHANGE_DATA, NOON, SILVER, at, restate, tables_in, write

ORDERS = "silver.mysql_orders"


def test_a_table_is_there_once_it_was_written(tmp_path: Path) -> None:
    assert not tables_in(tmp_path).exists(ORDERS)
    write(tmp_path, ORDERS, SILVER, [{"order_id": 1}])
    assert tables_in(tmp_path).exists(ORDERS)
    assert not tables_in(tmp_path).exists("gold.mysql_orders")


def test_a_query_names_its_tables_and_gives_plain_rows(tmp_path: Path) -> None:
    write(tmp_path, ORDERS, SILVER, [{"order_id": 1, "status": "new", "_source_ts": NOON}, {"order_id": 2}])
    write(tmp_path, "silver.postgres_orders", SILVER, [{"order_id": 2, "status": "paid"}])
    rows = tables_in(tmp_path).rows("""
        SELECT a.order_id AS order_id, a._source_ts AS source_ts, b.status AS status
        FROM {silver.mysql_orders} AS a LEFT JOIN {silver.postgres_orders} AS b ON a.order_id = b.order_id
        ORDER BY a.order_id
    """)
    assert rows == [
        {"order_id": 1, "source_ts": NOON, "status": None},
        {"order_id": 2, "source_ts": None, "status": "paid"},
    ]


def test_a_location_may_be_a_uri_and_schemas_may_have_other_names(tmp_path: Path) -> None:
    write(tmp_path, "prod_silver.mysql_orders", SILVER, [{"order_id": 4}])
    address = Address(f"file:{tmp_path}", str(tmp_path / "checkpoints"), {"silver": "prod_silver"})
    assert DeltaFiles(address).rows(f"SELECT order_id FROM {{{ORDERS}}}") == [{"order_id": 4}]


def asked_for_rows(tables: DeltaFiles) -> Any:
    return tables.rows(f"SELECT * FROM {{{ORDERS}}}")


def asked_for_facts(tables: DeltaFiles) -> Any:
    return tables.facts(ORDERS)


def asked_for_commits(tables: DeltaFiles) -> Any:
    return tables.commits(ORDERS, limit=3)


def asked_for_the_newest(tables: DeltaFiles) -> Any:
    return tables.newest_since(ORDERS, "_source_ts", rows=5)


def asked_for_changes(tables: DeltaFiles) -> Any:
    return tables.changes(ORDERS, "order_id = 1", versions=5)


@pytest.mark.parametrize("ask", [asked_for_rows, asked_for_facts, asked_for_commits, asked_for_changes])
def test_a_table_that_is_missing_is_named(tmp_path: Path, ask: Any) -> None:
    with pytest.raises(TableError, match=f"{ORDERS} cannot be read without Spark") as refused:
        ask(tables_in(tmp_path))
    assert "lakehouse run" in refused.value.hint


def test_a_query_that_cannot_be_answered_names_its_tables(tmp_path: Path) -> None:
    write(tmp_path, ORDERS, SILVER, [{"order_id": 1}])
    with pytest.raises(TableError, match=f"{ORDERS} cannot be read"):
        tables_in(tmp_path).rows(f"SELECT no_such_column FROM {{{ORDERS}}}")


def test_a_table_whose_file_is_gone_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, ORDERS, SILVER, [{"order_id": 1}])
    for file in path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableError, match=f"{ORDERS} cannot be read"):
        asked_for_rows(tables_in(tmp_path))


def test_the_facts_of_a_table(tmp_path: Path) -> None:
    write(tmp_path, ORDERS, SILVER, [{"order_id": 1}, {"order_id": 2}])
    path = write(tmp_path, ORDERS, SILVER, [{"order_id": 3}])
    facts = tables_in(tmp_path).facts(ORDERS)
    assert (facts.version, facts.files, facts.rows, facts.deletion_vectors) == (1, 2, 3, 0)
    assert facts.bytes == sum(file.stat().st_size for file in path.glob("*.parquet"))
    assert facts.created_ms == DeltaTable(path).metadata().created_time


def test_an_empty_table_has_facts(tmp_path: Path) -> None:
    write(tmp_path, ORDERS, SILVER, [])
    facts = tables_in(tmp_path).facts(ORDERS)
    assert (facts.version, facts.files, facts.bytes, facts.rows) == (0, 0, 0, 0)


COMMITS = [
    # the operation, its metrics, and what they say: rows, bytes, whether rows change
    ("WRITE", {"numFiles": 1, "numOutputRows": 5, "numOutputBytes": 800}, (5, 800, True)),
    (
        "MERGE",
        {
            **{"numTargetRowsInserted": 2, "numTargetRowsUpdated": 3, "numTargetRowsDeleted": 1},
            **{"numOutputRows": 90, "numTargetBytesAdded": 7_000},
        },
        (6, 7_000, True),
    ),
    ("UPDATE", {"numUpdatedRows": 4, "numAddedBytes": 300}, (4, 300, True)),
    (
        "MERGE",
        {"numTargetRowsInserted": 0, "numTargetRowsUpdated": 0, "numTargetRowsDeleted": 0, "numTargetBytesAdded": 0},
        (0, 0, False),
    ),
    # rows that were deleted before are removed for good: `lakehouse purge`
    ("DELETE", {"numDeletedRows": 3, "numAddedBytes": 40}, (0, 40, False)),
    ("OPTIMIZE", {"numOutputRows": 50, "numAddedBytes": 9_000}, (50, 9_000, False)),
    ("VACUUM END", {}, (0, 0, False)),
    ("CREATE TABLE", {}, (0, 0, False)),
]


@pytest.mark.parametrize(("operation", "metrics", "said"), COMMITS)
def test_a_commit_says_how_many_rows_it_changed(
    tmp_path: Path, operation: str, metrics: dict[str, int], said: tuple[int, int, bool]
) -> None:
    path = write(tmp_path, ORDERS, SILVER, [{"order_id": 1}])
    restate(path, 0, operation, at(7), **metrics)
    assert tables_in(tmp_path).commits(ORDERS, limit=10) == [Commit(0, at(7), *said)]


def test_the_last_commits_come_first(tmp_path: Path) -> None:
    for version in range(4):
        path = write(tmp_path, ORDERS, SILVER, [{"order_id": version}])
        restate(path, version, "WRITE", at(version), numOutputRows=version + 1)
    found = tables_in(tmp_path).commits(ORDERS, limit=2)
    assert [(one.version, one.rows, one.at) for one in found] == [(3, 4, at(3)), (2, 3, at(2))]


def test_the_changes_of_a_row(tmp_path: Path) -> None:
    for status in ("new", "paid"):
        rows = [{"order_id": 7, "status": status}, {"order_id": 8, "status": status}]
        path = write(tmp_path, ORDERS, SILVER, rows, configuration=CHANGE_DATA)
    DeltaTable(path).delete("order_id = 7 AND status = 'new'")
    found = tables_in(tmp_path).changes(ORDERS, "order_id = 7", versions=9)
    assert sorted((one["_commit_version"], one["_change_type"], one["status"]) for one in found) == [
        *((0, "insert", "new"), (1, "insert", "paid"), (2, "delete", "new"))
    ]
    last = tables_in(tmp_path).changes(ORDERS, "order_id = 7", versions=0)
    assert [one["_change_type"] for one in last] == ["delete"]


def test_the_newest_rows_are_found_by_the_statistics_of_files(tmp_path: Path) -> None:
    """Whole files, in any order of their commits; of rows in one file all."""
    for minutes in (10, 30, 20):
        write(tmp_path, ORDERS, SILVER, [{"_source_ts": at(minutes + row)} for row in (0, 1, 2)])
    tables = tables_in(tmp_path)
    found = [tables.newest_since(ORDERS, "_source_ts", rows=rows) for rows in (1, 3, 5, 6, 8, 9, 100)]
    milli = timedelta(milliseconds=1)
    assert found == [*[at(22) + milli] * 3, *[at(12) + milli] * 2, None, None]
    assert tables.newest_since(ORDERS, "_applied_at", rows=1) is None, "nobody knows the times of these rows"


def test_an_empty_table_has_no_newest_rows(tmp_path: Path) -> None:
    write(tmp_path, ORDERS, SILVER, [])
    assert tables_in(tmp_path).newest_since(ORDERS, "_source_ts", rows=1) is None


def test_a_table_without_a_change_data_feed_has_no_changes_to_show(tmp_path: Path) -> None:
    write(tmp_path, ORDERS, SILVER, [{"order_id": 7}])
    try:
        found = asked_for_changes(tables_in(tmp_path))
    except TableError as refused:
        assert ORDERS in refused.what
    else:
        assert all("_change_type" in one for one in found)


def test_a_warehouse_of_files_starts_no_spark(tmp_path: Path) -> None:
    def with_spark() -> Warehouse:
        raise AssertionError("Spark was started")

    assert isinstance(tables_at(Address(str(tmp_path), ""), with_spark), DeltaFiles)
    assert isinstance(tables_at(Address("s3://bucket/warehouse", ""), with_spark), DeltaFiles)


class InCatalog:
    """A warehouse in a catalog, as far as a look at it goes."""

    class spark:  # noqa: N801 it stands for an attribute
        asked: list[str] = []  # noqa: RUF012

        @classmethod
        def sql(cls, text: str) -> Any:
            cls.asked.append(text)

            class Frame:
                def toArrow(self) -> pa.Table:  # noqa: N802 it is Spark's
                    return pa.table({"n": [3]})

            return Frame()

    def exists(self, name: str) -> bool:
        return name == ORDERS

    def read(self, name: str) -> None:
        if name != ORDERS:
            raise TableError(f"There is no {name}.", hint="Run it.")

    def sql_name(self, name: str) -> str:
        return f"`main`.{name}"


def test_tables_of_a_catalog_are_read_in_spark() -> None:
    warehouse: Any = InCatalog()
    tables = tables_at(Address("main", ""), lambda: warehouse)
    assert isinstance(tables, SparkTables)
    assert tables.exists(ORDERS)
    assert tables.rows(f"SELECT count(*) AS n FROM {{{ORDERS}}}") == [{"n": 3}]
    assert InCatalog.spark.asked == [f"SELECT count(*) AS n FROM `main`.{ORDERS}"]
    with pytest.raises(TableError, match=r"There is no gold\.unified_orders"):
        tables.rows("SELECT * FROM {gold.unified_orders}")


def test_a_table_is_opened_once(tmp_path: Path) -> None:
    path = write(tmp_path, ORDERS, SILVER, [{"order_id": 1}])
    tables = tables_in(tmp_path)
    assert len(asked_for_rows(tables)) == 1
    write_deltalake(path, pa.table({"order_id": [2]}), mode="append", schema_mode="merge")
    assert len(asked_for_rows(tables)) == 1, "one look sees one version of a table"
    assert len(asked_for_rows(tables_in(tmp_path))) == 2
