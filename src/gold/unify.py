"""One table of orders from the silver tables of all sources: per key the highest feed that knows it, enriched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.models import Fulfillment, GoldSource, GoldTables
from lakehouse.contracts.published import unified_columns
from lakehouse.delta.tables import UPSERTED, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


UNIFIED = "gold.unified_orders"


def unified_table(tables: GoldTables) -> TableSpec:
    """`gold.unified_orders`, with the columns of the contract and those that gold adds."""
    declared = ", ".join(f"{name} {type_name}" for name, type_name in unified_columns(tables).items())
    return TableSpec(name=UNIFIED, columns=declared, properties=UPSERTED)


def order_columns(tables: GoldTables) -> Mapping[str, str]:
    """What gold takes from a feed, with its Spark type."""
    return {name: declared.ddl for name, declared in tables.columns.items()}


def compared(tables: GoldTables) -> tuple[str, ...]:
    """What a change of an order is: any of these, not the time of the refresh; the keys never change."""
    return tuple(name for name in unified_columns(tables) if name not in {tables.key, "composite_key", "processed_at"})


def with_fulfillment(orders: DataFrame, rule: Fulfillment | None) -> DataFrame:
    """The orders with `fulfillment_status`, by the rule; NULL where the contract has none."""
    if rule is None:
        return orders.withColumn("fulfillment_status", F.lit(None).cast("string"))
    value = F.col(rule.column)
    looked_up = F.lit(rule.otherwise)
    for known, fulfillment in rule.values.items():
        looked_up = F.when(value == known, fulfillment).otherwise(looked_up)
    return orders.withColumn("fulfillment_status", looked_up)


def orders_of_feed(silver: DataFrame, *, columns: Mapping[str, str]) -> DataFrame:
    """A silver table's rows, deleted ones included: `columns` (NULL where silver lacks one), and `is_deleted`."""
    present = silver.columns
    typed = [
        (F.col(name) if name in present else F.lit(None)).cast(type_name).alias(name)
        for name, type_name in columns.items()
    ]
    return silver.select(*typed, F.col("_is_deleted").alias("is_deleted"))


def deleted_orders(keys: DataFrame, *, columns: Mapping[str, str]) -> DataFrame:
    """Every key as a deleted order: as the last feed, it has the keys that no other feed has."""
    return orders_of_feed(keys.withColumn("_is_deleted", F.lit(True)), columns=columns)


def highest_feed_that_knows(feeds: Sequence[DataFrame], *, key: str) -> DataFrame:
    """One row a key: that of the first feed that has the key at all, deleted or not."""

    def add(higher: DataFrame, lower: DataFrame) -> DataFrame:
        return higher.unionByName(lower.join(higher.select(key), on=key, how="left_anti"))

    return reduce(add, feeds)


def with_source(orders: DataFrame, source: GoldSource, *, key: str) -> DataFrame:
    """The orders with `source_database` and `composite_key`: both databases number their orders from one."""
    return orders.withColumns({"source_database": F.lit(source.name), "composite_key": composite_key(source, key=key)})


def composite_key(source: GoldSource, *, key: str) -> Column:
    """`PG-1001`: unique over all sources."""
    return F.concat(F.lit(f"{source.prefix}-"), F.col(key).cast("string"))
