"""What a person wants to see of the tables after a run: rows by layer, quality, orders by fulfilment, a sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from rich.table import Table

from lakehouse.contracts.models import Contracts
from lakehouse.quality.results import GATES, PUBLICATION, RESULTS, Result
from lakehouse.spark.tables import Warehouse
from lakehouse.terminal import styled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from rich.text import Text

SAMPLE_ROWS = 6
SAMPLE_COLUMNS = (
    *("composite_key", "source_database", "customer_id"),
    *("status", "total_amount", "created_at", "fulfillment_status"),
)
NUMBERS = ("rows", "of them deleted", "commits", "evaluated", "failed", "share", "records", "orders", "total_amount")


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
    for name in ("quality.quarantine", *contracts.gold.unified_tables[:1]):
        table.add_row(name, _number(warehouse.read(name).count()), "", str(warehouse.version(name)))
    return table


def quality(warehouse: Warehouse, run_id: str) -> Table:
    """How the rules of the gates came out in this run, and of which tables they were not met."""
    table = _table("Quality of this run", "gate", "rule", "on failure", "evaluated", "failed", "not met by")
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
            _number(row["evaluated"]),
            _failed(row["failed"]),
            ", ".join(row["tables"]),
        )
    return table


def gate_results(results: Iterable[Result]) -> Iterator[Table]:
    """A table for each gate and table that was judged: every rule, and what came of it."""
    judged = groupby(results, key=lambda result: (result.gate, result.table, result.source))
    for (gate, name, source), of_table in judged:
        title = f"{GATES[gate]} · {name}" + (f" · {source}" if gate == PUBLICATION else "")
        table = _table(title, "rule", "on failure", "evaluated", "failed", "share", "verdict", "what was found")
        for result in of_table:
            found = [result.message, result.observed and f"observed: {result.observed}"]
            found += [f"keys: {'; '.join(result.sample_keys)}" if result.sample_keys else None]
            table.add_row(
                result.rule,
                result.on_failure,
                _number(result.evaluated),
                _failed(result.failed),
                "" if result.share is None else f"{result.share:.2%}",
                _verdict(result),
                " ".join(text for text in found if text),
            )
        yield table


def records_by_feed(counts: Iterable[Mapping[str, Any]]) -> Table:
    """How many records are in quarantine."""
    rows = list(counts)
    table = _table("In quarantine", *(rows[0] if rows else ("feed", "records")))
    for row in rows:
        table.add_row(*[_number(value) if isinstance(value, int) else str(value or "") for value in row.values()])
    return table


def _verdict(result: Result) -> Text:
    if result.passed:
        return styled("passed")
    return styled(("holds", "red") if result.on_failure == "fail" else ("not met", "yellow"))


def _failed(count: int) -> Text:
    return styled((_number(count), "yellow" if count else ""))


def quarantine(warehouse: Warehouse) -> Table:
    """What goes to quarantine, by reason."""
    table = _table("In quarantine", "feed", "reasons", "records")
    reasons = F.concat_ws(" ", "reasons").alias("reasons")
    pending = warehouse.read("quality.quarantine").where("state = 'open'")
    rows = pending.groupBy("feed", reasons).count().orderBy("feed", F.col("count").desc())
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
        is_number = column in NUMBERS
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _number(value: int) -> str:
    return f"{value:,}"
