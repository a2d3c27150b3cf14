"""One table of orders out of the silver tables of all sources: per key the highest feed that knows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import GoldSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What gold takes from a feed, with its type; a feed without the column gives NULL.
ORDER_COLUMNS = {
    "order_id": "BIGINT",
    "customer_id": "BIGINT",
    "product_id": "BIGINT",
    "status": "STRING",
    "total_amount": "DECIMAL(10,2)",
    "created_at": "TIMESTAMP",
}


def orders_of_feed(silver: DataFrame) -> DataFrame:
    """A silver table in gold's columns, deleted rows included: ORDER_COLUMNS and `is_deleted`."""
    columns = [
        (F.col(name) if name in silver.columns else F.lit(None)).cast(type_name.lower()).alias(name)
        for name, type_name in ORDER_COLUMNS.items()
    ]
    return silver.select(*columns, F.col("_is_deleted").alias("is_deleted"))


def highest_feed_that_knows(feeds: Sequence[DataFrame]) -> DataFrame:
    """One row a key: that of the first feed that has the key at all, deleted or not."""

    def add(higher: DataFrame, lower: DataFrame) -> DataFrame:
        return higher.unionByName(lower.join(higher, on="order_id", how="left_anti"))

    return reduce(add, feeds)


def with_source(orders: DataFrame, source: GoldSource) -> DataFrame:
    """The orders with `source_database` and `composite_key`: both databases number their orders from one."""
    return orders.withColumns({"source_database": F.lit(source.name), "composite_key": composite_key(source)})


def composite_key(source: GoldSource) -> Column:
    """`PG-1001`: unique over all sources."""
    return F.concat(F.lit(f"{source.prefix}-"), F.col("order_id").cast("string"))
