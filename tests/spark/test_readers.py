"""docs/reading.md: what Spark wrote, read without Spark, and what does not read it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import polars
import pyarrow
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from tests.support.gold import Shop
from tests.support.guide import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

READERS = ("DuckDB", "polars", "deltalake's QueryBuilder")
STRANGE = "zażółć 🧾 e\u0301 שלום \u0000 'quoted' \"twice\"\n\\"
TIMES = {
    1: "0001-01-01 00:00:00.000001",
    2: "1969-12-31 23:59:59.999999",
    3: "2024-02-29 12:00:00.123456",
    4: "9999-12-31 23:59:59.999999",
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """What a snippet of the page reads: gold, silver's rows that are not deleted, and gold at version 1."""

    orders: Rows
    in_silver: Rows
    earlier: Rows


@pytest.fixture(scope="module")
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts) -> Shop:
    """Gold after two runs, in which orders were changed and deleted."""
    warehouse = empty_silver()
    shop = Shop(warehouse, settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints), contracts)
    shop.write(
        "postgres_orders",
        *[{"order_id": number} for number in range(1, 8)],
        {"order_id": 8, "status": STRANGE, "total_amount": "0.01"},
        {"order_id": 9, "customer_id": None, "status": None, "total_amount": None},
    )
    times = " ".join(f"WHEN {number} THEN TIMESTAMP'{time}'" for number, time in TIMES.items())
    warehouse.delta("silver.postgres_orders").update(set={"created_at": f"CASE order_id {times} END"})
    shop.write("mysql_orders", {"order_id": 1, "total_amount": "99999999.99"}, {"order_id": 2, "status": ""})
    shop.run("first")
    # Tables of so few rows would be written again.
    with patch("lakehouse.spark.sizing.SMALL_TABLE_ROWS", -1):
        shop.write("postgres_orders", {"order_id": 5, "status": "completed"}, {"order_id": 6, "_is_deleted": True})
        shop.write("mysql_orders", {"order_id": 2, "_is_deleted": True})
        shop.run("changes and deletes")
    return shop


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_finds_what_spark_finds(shop: Shop, reader: str) -> None:
    gold, silver = shop.warehouse.read("gold.unified_orders"), shop.warehouse.read("silver.postgres_orders")
    first = shop.warehouse.read("gold.unified_orders", version=1)
    in_spark = Found(
        orders=ordered(gold.toArrow()),
        in_silver=ordered(silver.where("NOT _is_deleted").toArrow()),
        earlier=ordered(first.toArrow()),
    )
    assert (len(in_spark.orders), len(in_spark.in_silver), len(in_spark.earlier)) == (9, 8, 11)
    assert in_spark.orders != in_spark.earlier
    assert STRANGE in {order["status"] for order in in_spark.orders}
    assert read_as_the_page_does(reader, shop.warehouse) == in_spark


def test_the_tables_have_deletion_vectors_and_nothing_else_that_readers_must_know(shop: Shop) -> None:
    for name in ("gold.unified_orders", "silver.postgres_orders"):
        assert sum("deletionVector" in file for file in added_files(shop.warehouse, name)) > 0
        assert DeltaTable(shop.warehouse.path(name)).protocol().reader_features == ["deletionVectors"]


def test_readers_without_deletion_vectors_refuse_gold(shop: Shop) -> None:
    path = shop.warehouse.path("gold.unified_orders")
    table = DeltaTable(path)
    refused = (
        table.to_pyarrow_table,
        table.to_pyarrow_dataset,
        table.to_pandas,
        lambda: polars.read_delta(path, use_pyarrow=True),
    )
    for read in refused:
        with pytest.raises(DeltaProtocolError, match="deletionVectors"):
            read()


def test_the_files_have_rows_that_the_table_has_not(shop: Shop) -> None:
    files = f"{shop.warehouse.path('gold.unified_orders')}/*.parquet"
    keys = duckdb.sql(f"SELECT composite_key FROM read_parquet('{files}', union_by_name := true)").fetchall()
    assert ("PG-6",) in keys
    assert len(keys) > shop.warehouse.read("gold.unified_orders").count()


def test_times_as_other_sparks_write_them(spark: SparkSession, warehouse: Warehouse) -> None:
    option = "spark.sql.parquet.outputTimestampType"
    ours = spark.conf.get(option)
    spark.conf.set(option, "INT96")
    try:
        for name in ("gold.unified_orders", "silver.postgres_orders"):
            rows = spark.sql(f"SELECT TIMESTAMP'{TIMES[4]}' AS created_at, 'A' AS status, false AS _is_deleted")
            warehouse.append(name, rows)
            warehouse.append(name, rows)
    finally:
        spark.conf.set(option, str(ours))
    years = {reader: read_as_the_page_does(reader, warehouse).orders[0]["created_at"].year for reader in READERS}
    assert years == {"DuckDB": 9999, "polars": 2262, "deltalake's QueryBuilder": 1816}


def read_as_the_page_does(reader: str, warehouse: Warehouse) -> Found:
    """Run the page's code under the reader's name, on this warehouse in place of the page's."""
    page = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^## {re.escape(reader)}\n\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code.replace("./warehouse", warehouse.location), names)  # noqa: S102  the page is ours
    return Found(**{name: ordered(pyarrow.table(names[name])) for name in ("orders", "in_silver", "earlier")})


def ordered(table: pyarrow.Table) -> Rows:
    """The table's rows in Python's own types: Decimal, datetime with its zone, None."""
    return sorted(table.to_pylist(), key=_key)


def _key(row: Mapping[str, Any]) -> str:
    return str(row.get("composite_key") or row.get("order_id"))


def added_files(warehouse: Warehouse, name: str) -> Iterable[Mapping[str, Any]]:
    """What the table's log says of every file that was added."""
    for commit in sorted(Path(warehouse.path(name), "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                yield action["add"]
