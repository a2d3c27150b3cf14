"""What silver states of a source's orders, from its tables alone: what gold is compared with.

Nothing of how gold is computed is in it but the columns of a row: neither the changed rows that a run has read, nor the
way in which it finds the highest feed that knows a key. Otherwise a mistake there would be on both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.keys import Keys, rows_of
from gold.unify import order_columns, orders_of_feed, with_fulfillment, with_source
from lakehouse.contracts.models import GoldTables
from lakehouse.delta.tables import Warehouse
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def orders_of_silver(
    warehouse: Warehouse,
    tables: GoldTables,
    name: str,
    versions: Mapping[str, Version],
    *,
    keys: Keys | None = None,
    empty: Collection[Version] = (),
) -> DataFrame:
    """The live orders of a source, read from silver's tables at these versions; with `keys`, of these only.

    `versions`: of the source's feeds, by table; those that are known to be `empty` are not read. Columns as in gold,
    without `processed_at`.
    """
    source = tables.sources[name]
    of_source = [versions[f"silver.{feed}"] for feed in source.feeds]
    read = []
    for precedence, version in enumerate([version for version in of_source if version not in empty] or of_source[:1]):
        rows = warehouse.read(version.table, version=version.number)
        of_keys = rows if keys is None else rows_of(rows, keys)
        orders = orders_of_feed(of_keys, columns=order_columns(tables))
        read.append(orders.withColumn("_precedence", F.lit(precedence)))
    of_feeds = reduce(lambda higher, lower: higher.unionByName(lower), read).where(F.col(tables.key).isNotNull())
    others = [column for column in of_feeds.columns if column not in (tables.key, "_precedence")]
    highest = of_feeds.groupBy(tables.key).agg(F.min_by(F.struct(*others), "_precedence").alias("_order"))
    orders = highest.select(tables.key, "_order.*").where(~F.col("is_deleted")).drop("is_deleted")
    return with_fulfillment(with_source(orders, source, key=tables.key), tables.fulfillment)
