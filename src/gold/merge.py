"""How `gold.unified_orders` comes to hold what it must: written at first, then changed keys merged, or all replaced.

An order that stays as it is keeps its `processed_at`, the time when gold last changed the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.unify import UNIFIED, compared
from lakehouse.contracts.models import GoldTables
from lakehouse.contracts.published import unified_columns
from lakehouse.spark.materialized import materialized
from lakehouse.spark.tables import TableSpec, Warehouse

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame


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
) -> int:
    """Make gold hold these orders and no other, but for the rows of `kept_sources`; the number of rows that changed."""
    present = warehouse.read(UNIFIED)
    live = orders.where(~F.col("is_deleted")).drop("is_deleted")
    with materialized(_with_time(live, present, tables=tables)) as rows:
        is_kept = F.col("source_database").isin(*kept_sources)
        kept = present.where(is_kept) if kept_sources else None
        others = present.where(~F.coalesce(is_kept, F.lit(False))) if kept_sources else present
        gone = others.join(rows, on="composite_key", how="left_anti").count()
        changed = rows.where("is_changed").count() + gone
        new = rows.drop("is_changed")
        warehouse.overwrite(spec, new.unionByName(kept, allowMissingColumns=True) if kept is not None else new)
    return changed


def _with_time(orders: DataFrame, present: DataFrame, *, tables: GoldTables) -> DataFrame:
    """The orders with `processed_at`: that of the same row in `present` where nothing else differs, else now.

    `is_changed` says which. A table that was damaged may have several rows of a key, or lack columns.
    """
    columns = [column for column in compared(tables) if column in present.columns]
    if len(columns) < len(compared(tables)):
        return orders.withColumns({"processed_at": F.current_timestamp(), "is_changed": F.lit(True)})
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
