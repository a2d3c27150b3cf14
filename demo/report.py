"""What a person wants to see of the tables after the demo: rows by layer, quality, orders by fulfilment, a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from rich.table import Table

from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.process.terminal import new_table, styled
from lakehouse.quality.results import GATES, RESULTS

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
    table = new_table("Rows by layer", "table", "rows", "of them deleted", "commits", numbers=NUMBERS)
    for source in contracts.topics.sources:
        name = f"bronze.{source}_events"
        table.add_row(name, f"{warehouse.read(name).count():,}", "", str(warehouse.version(name)))
    for feed in contracts.feeds:
        name = f"silver.{feed}"
        deleted = F.count_if("_is_deleted")
        rows = warehouse.read(name).agg(F.count(F.lit(1)).alias("rows"), deleted.alias("deleted")).collect()[0]
        table.add_row(name, f"{rows['rows']:,}", f"{rows['deleted']:,}", str(warehouse.version(name)))
    for name in ("quality.quarantine", *contracts.gold.unified_tables[:1]):
        table.add_row(name, f"{warehouse.read(name).count():,}", "", str(warehouse.version(name)))
    return table


def quality(warehouse: Warehouse, run_id: str) -> Table:
    """How the rules of the gates came out in this run, and of which tables they were not met."""
    table = new_table(
        "Quality of this run", "gate", "rule", "on failure", "evaluated", "failed", "not met by", numbers=NUMBERS
    )
    results = (
        warehouse.read(RESULTS.name)
        .where(F.col("run") == run_id)
        .groupBy("gate", "rule", "on_failure")
        .agg(
            F.sum("evaluated").alias("evaluated"),
            F.sum("failed").alias("failed"),
            F.array_sort(F.collect_set(F.when(~F.col("passed"), F.col("table")))).alias("tables"),
        )
    )
    order = list(GATES)
    for row in sorted(results.collect(), key=lambda row: (order.index(row["gate"]), row["rule"])):
        table.add_row(
            GATES[row["gate"]],
            row["rule"],
            row["on_failure"],
            f"{row['evaluated']:,}",
            styled((f"{row['failed']:,}", "yellow" if row["failed"] else "")),
            ", ".join(row["tables"]),
        )
    return table


def quarantine(warehouse: Warehouse) -> Table:
    """What goes to quarantine, by reason."""
    table = new_table("In quarantine", "feed", "reasons", "records", numbers=NUMBERS)
    reasons = F.concat_ws(" ", "reasons").alias("reasons")
    pending = warehouse.read("quality.quarantine").where("state = 'open'")
    rows = pending.groupBy("feed", reasons).count().orderBy("feed", F.col("count").desc())
    for row in rows.limit(20).collect():
        table.add_row(row["feed"], row["reasons"], f"{row['count']:,}")
    return table


def fulfillment(orders: DataFrame) -> Table:
    """Orders and revenue by source and fulfilment."""
    table = new_table(
        "Fulfilment by source", "source_database", "fulfillment_status", "orders", "total_amount", numbers=NUMBERS
    )
    rows = (
        orders.groupBy("source_database", "fulfillment_status")
        .agg(F.count(F.lit(1)).alias("orders"), F.sum("total_amount").alias("total_amount"))
        .orderBy("source_database", "fulfillment_status")
    )
    for row in rows.collect():
        amount = f"{row['total_amount']:,}"
        table.add_row(row["source_database"], row["fulfillment_status"], f"{row['orders']:,}", amount)
    return table


def sample(orders: DataFrame) -> Table:
    """A few orders of gold: the same ids of both sources side by side."""
    table = new_table("A sample of gold.unified_orders", *SAMPLE_COLUMNS, numbers=("total_amount",))
    for row in orders.orderBy("order_id", "source_database").limit(SAMPLE_ROWS).select(*SAMPLE_COLUMNS).collect():
        table.add_row(*["" if value is None else str(value) for value in row])
    return table
