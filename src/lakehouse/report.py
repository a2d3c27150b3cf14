"""What a person wants to see of the tables after a run: rows by layer, quality, orders by fulfilment, a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from rich.table import Table

from lakehouse.contracts import Contracts
from lakehouse.results import RESULTS
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_ROWS = 6
SAMPLE_COLUMNS = (
    *("composite_key", "source_database", "customer_id"),
    *("status", "total_amount", "created_at", "fulfillment_status"),
)
NUMBERS = ("rows", "of them deleted", "commits", "evaluated", "failed", "records", "orders", "total_amount")


def rows_by_layer(warehouse: Warehouse, contracts: Contracts) -> Table:
    """Every table of the flow with its rows, deleted ones apart."""
    table = _table("Rows by layer", "table", "rows", "of them deleted", "commits")
    for source in contracts.topics.sources:
        name = f"bronze.{source}_events"
        table.add_row(name, _number(warehouse.read(name).count()), "", str(warehouse.version(name)))
    for feed in contracts.feeds:
        name = f"silver.{feed}"
        deleted = F.count_if("_is_deleted")
        rows = warehouse.read(name).agg(F.count(F.lit(1)).alias("rows"), deleted.alias("deleted")).collect()[0]
        table.add_row(name, _number(rows["rows"]), _number(rows["deleted"]), str(warehouse.version(name)))
    for name in ("quality.quarantine", "gold.unified_orders"):
        table.add_row(name, _number(warehouse.read(name).count()), "", str(warehouse.version(name)))
    return table


def quality(warehouse: Warehouse, run_id: str) -> Table:
    """How the rules of both gates came out in this run, and in which feeds they were not met."""
    table = _table("Quality of this run", "gate", "rule", "on failure", "evaluated", "failed", "not met in")
    results = (
        warehouse.read(RESULTS.name)
        .where(F.col("run") == run_id)
        .groupBy("gate", "rule", "on_failure")
        .agg(
            F.sum("evaluated").alias("evaluated"),
            F.sum("failed").alias("failed"),
            F.array_sort(F.collect_set(F.when(F.col("failed") > 0, F.col("feed")))).alias("feeds"),
        )
        .orderBy(F.col("gate").desc(), "rule")
    )
    for row in results.collect():
        gate = "1 (rows)" if row["gate"] == "silver" else "2 (tables)"
        table.add_row(
            gate,
            row["rule"],
            row["on_failure"],
            _number(row["evaluated"]),
            f"[yellow]{_number(row['failed'])}[/]" if row["failed"] else "0",
            ", ".join(row["feeds"]),
        )
    return table


def quarantine(warehouse: Warehouse) -> Table:
    """What waits in quarantine, by reason."""
    table = _table("In quarantine", "feed", "reasons", "records")
    reasons = F.concat_ws(" ", "reasons").alias("reasons")
    rows = warehouse.read("quality.quarantine").groupBy("feed", reasons).count().orderBy("feed", F.col("count").desc())
    for row in rows.limit(20).collect():
        table.add_row(row["feed"], row["reasons"], _number(row["count"]))
    return table


def fulfillment(orders: DataFrame) -> Table:
    """Orders and revenue by source and fulfilment."""
    table = _table("Fulfilment by source", "source_database", "fulfillment_status", "orders", "total_amount")
    rows = (
        orders.groupBy("source_database", "fulfillment_status")
        .agg(F.count(F.lit(1)).alias("orders"), F.sum("total_amount").alias("total_amount"))
        .orderBy("source_database", "fulfillment_status")
    )
    for row in rows.collect():
        amount = f"{row['total_amount']:,}"
        table.add_row(row["source_database"], row["fulfillment_status"], _number(row["orders"]), amount)
    return table


def sample(orders: DataFrame) -> Table:
    """A few orders of gold: the same ids of both sources side by side."""
    table = _table("A sample of gold.unified_orders", *SAMPLE_COLUMNS)
    for row in orders.orderBy("order_id", "source_database").limit(SAMPLE_ROWS).select(*SAMPLE_COLUMNS).collect():
        table.add_row(*["" if value is None else str(value) for value in row])
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns:
        is_number = column in (
            "rows",
            "of them deleted",
            "commits",
            "evaluated",
            "failed",
            "records",
            "orders",
            "total_amount",
        )
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _number(value: int) -> str:
    return f"{value:,}"
