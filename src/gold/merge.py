"""How `gold.unified_orders` comes to hold what it must: written at first, then changed keys merged, or all replaced.

An order that stays as it is keeps its `processed_at`, the time when gold last changed the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import is_gone
from gold.unify import UNIFIED, compared
from lakehouse.contracts.models import GoldTables
from lakehouse.contracts.published import unified_columns
from lakehouse.delta.tables import TableSpec, Warehouse
from lakehouse.errors import TableError
from lakehouse.spark.materialized import materialized

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Merged:
    """How many rows of gold changed; whether what gold had before could not be read."""

    changed_rows: int
    was_unreadable: bool = False


def merge_orders(table: DeltaTable, orders: DataFrame, *, tables: GoldTables, delete_beyond: str | None) -> int:
    """Make gold hold these orders; the number of rows that changed.

    `delete_beyond`: which of gold's other rows (`target`) have to go; none of them when it is None.
    """
    differs = " OR ".join(f"NOT (target.{column} <=> orders.{column})" for column in compared(tables))
    values: dict[str, str | Column] = {column: f"orders.{column}" for column in unified_columns(tables)}
    values["processed_at"] = "current_timestamp()"
    merge = (
        table.alias("target")
        .merge(orders.alias("orders"), "target.composite_key = orders.composite_key")
        .whenMatchedDelete(condition="orders.is_deleted")
        .whenMatchedUpdate(condition=differs, set=values)
        .whenNotMatchedInsert(condition="NOT orders.is_deleted", values=values)
    )
    if delete_beyond is not None:
        merge = merge.whenNotMatchedBySourceDelete(condition=delete_beyond)
    return int(merge.execute().collect()[0]["num_affected_rows"])


def not_of_others(tables: GoldTables, whole: Sequence[str]) -> str:
    """A condition on gold's rows: of a source that is taken whole, or of one that the contract no longer names."""
    others = [f"'{source.name}'" for name, source in tables.sources.items() if name not in whole]
    return f"target.source_database NOT IN ({', '.join(others)})" if others else "true"


def write_orders(warehouse: Warehouse, orders: DataFrame) -> int:
    """Make a gold that has no rows yet hold these orders; how many there are."""
    live = orders.where(~F.col("is_deleted")).drop("is_deleted")
    warehouse.append(UNIFIED, live.withColumn("processed_at", F.current_timestamp()))
    return warehouse.read(UNIFIED).count()


def replace_orders(
    warehouse: Warehouse, spec: TableSpec, orders: DataFrame, *, tables: GoldTables, kept_sources: Sequence[str]
) -> Merged:
    """Make gold hold these orders and no other, but for the rows of `kept_sources`.

    Where gold cannot be read, every order has changed, now. Raises TableError when then there are sources to keep.
    """
    was_unreadable = False
    present = warehouse.read(UNIFIED)
    live = orders.where(~F.col("is_deleted")).drop("is_deleted")
    is_kept = F.col("source_database").isin(*kept_sources)
    kept = present.where(is_kept) if kept_sources else None
    others = present.where(~F.coalesce(is_kept, F.lit(False))) if kept_sources else present
    with ExitStack() as stack:
        try:
            rows = stack.enter_context(materialized(_with_time(live, present, tables=tables)))
            gone = others.join(rows, on="composite_key", how="left_anti").count()
        except Exception as error:
            if not is_gone(error):
                raise
            if kept_sources:
                raise TableError(
                    f"gold: {UNIFIED} cannot be read, and gate 2 blocks {', '.join(kept_sources)}: what it has of "
                    "that would be lost.",
                    hint="See the failed rules: lakehouse quality report. Fix the data or the rule, then run "
                    "`lakehouse gold --full-refresh` again.",
                ) from None
            was_unreadable = True
            rows, gone = stack.enter_context(materialized(_changed_now(live))), 0
        changed = rows.where("is_changed").count() + gone
        new = rows.drop("is_changed")
        warehouse.overwrite(spec, new.unionByName(kept, allowMissingColumns=True) if kept is not None else new)
    return Merged(changed, was_unreadable)


def _changed_now(orders: DataFrame) -> DataFrame:
    return orders.withColumns({"processed_at": F.current_timestamp(), "is_changed": F.lit(True)})


def _with_time(orders: DataFrame, present: DataFrame, *, tables: GoldTables) -> DataFrame:
    """The orders with `processed_at`: that of the same row in `present` where nothing else differs, else now.

    `is_changed` says which. A table that was damaged may have several rows of a key, or lack columns.
    """
    columns = [column for column in compared(tables) if column in present.columns]
    if len(columns) < len(compared(tables)):
        return _changed_now(orders)
    before = present.groupBy("composite_key").agg(
        F.max_by(F.struct(*columns, "processed_at"), "processed_at").alias("before")
    )
    is_same = reduce(and_, [F.col(column).eqNullSafe(F.col(f"before.{column}")) for column in columns])
    is_same = F.col("before").isNotNull() & is_same
    return (
        orders.join(before, on="composite_key", how="left")
        .withColumns(
            {
                "processed_at": F.when(is_same, F.col("before.processed_at")).otherwise(F.current_timestamp()),
                "is_changed": ~is_same,
            }
        )
        .drop("before")
    )
