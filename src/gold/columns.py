"""The columns of `gold.unified_orders`: those it takes from the feeds, and those it adds."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.contracts import GoldTables

UNIFIED = "gold.unified_orders"
_ADDED = {
    "source_database": "STRING",
    "fulfillment_status": "STRING",
    "composite_key": "STRING",
    "processed_at": "TIMESTAMP",
}


def order_columns(tables: GoldTables) -> Mapping[str, str]:
    """What gold takes from a feed, with its Spark type."""
    return {name: declared.ddl for name, declared in tables.columns.items()}


def unified(tables: GoldTables) -> Mapping[str, str]:
    """Every column of gold with its Spark type, in the table's order."""
    return {**order_columns(tables), **_ADDED}


def compared(tables: GoldTables) -> tuple[str, ...]:
    """What a change of an order is: any of these, not the time of the refresh; the keys never change."""
    return tuple(name for name in unified(tables) if name not in {tables.key, "composite_key", "processed_at"})
