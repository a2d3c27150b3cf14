"""What gold must hold: the orders of the keys that changed in silver, or all of them, from silver as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import ChangedKeys
from gold.change_feed.keys import Keys, union_keys
from gold.plan import GoldJob, goes_on
from gold.unify import (
    deleted_orders,
    highest_feed_that_knows,
    order_columns,
    orders_of_feed,
    with_fulfillment,
    with_source,
)
from lakehouse.contracts.models import GoldSource, GoldTables
from lakehouse.spark.materialized import materialized
from lakehouse.spark.sizing import MAX_FETCHED
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TargetRows:
    """What gold must hold of a source: the `orders` of the `keys` that changed; without keys all of them, and `why`."""

    orders: DataFrame
    keys: Keys | None
    why: str | None


def read_changes(
    changed: ChangedKeys, news: Mapping[str, Mapping[str, Version]], consumed: Mapping[str, Version]
) -> None:
    """Read what changed in all silver tables by one action, then the rows of these keys by another, where both are few.

    Of each source the rows that its highest feed has: a lower one is asked for the keys that this one does not know.
    """
    versions = [version for of_feeds in news.values() for version in of_feeds.values()]
    changed.read_together([(consumed[version.table], version) for version in versions if version.table in consumed])
    touched = {name: touched_keys(changed, now, consumed, full_refresh=False)[0] for name, now in news.items()}
    highest = {name: next(iter(now.values())) for name, now in news.items()}
    changed.read_rows_together([(highest[name], keys) for name, keys in touched.items() if keys is not None])


def desired_rows(job: GoldJob, name: str, now: Mapping[str, Version]) -> TargetRows:
    """What gold must hold of a source: of the keys that changed, or of all; the orders are computed, once."""
    tables = job.contracts.gold
    keys, why = touched_keys(job.changed, now, job.consumed, full_refresh=job.full_refresh)
    orders = desired_orders(job.changed, tables, tables.sources[name], now=now, touched=keys)
    if keys is None or keys.count > MAX_FETCHED:
        orders = job.stack.enter_context(materialized(orders))
    return TargetRows(orders, keys, why)


def touched_keys(
    changed: ChangedKeys, now: Mapping[str, Version], consumed: Mapping[str, Version], *, full_refresh: bool
) -> tuple[Keys | None, str | None]:
    """The keys of a source that changed since gold took it; None when it has to be taken whole, and why."""
    if full_refresh:
        return None, "a full refresh was asked for"
    if not any(version.table in consumed for version in now.values()):
        return None, "nothing of it was taken before under this contract"
    if not goes_on(now, consumed):
        return None, "a silver table was rebuilt, or restored to an earlier version"
    keys = union_keys([changed.since(consumed[version.table], version) for version in now.values()])
    return keys, "silver does not have the changes since the last run any more" if keys is None else None


def desired_orders(
    changed: ChangedKeys,
    tables: GoldTables,
    source: GoldSource,
    *,
    now: Mapping[str, Version],
    touched: Keys | None,
) -> DataFrame:
    """What gold must hold for every key of the source: its order, or `is_deleted`. With `touched`, only for these."""
    columns = order_columns(tables)
    if touched is None:
        feeds = [orders_of_feed(changed.table(version), columns=columns) for version in now.values()]
        highest = highest_feed_that_knows(feeds, key=tables.key)
    else:
        highest = _orders_of_keys(changed, now, touched, columns).where(F.col(tables.key).isNotNull())
    orders = with_source(highest, source, key=tables.key)
    return with_fulfillment(orders, tables.fulfillment)


def _orders_of_keys(
    changed: ChangedKeys, now: Mapping[str, Version], keys: Keys, columns: Mapping[str, str]
) -> DataFrame:
    """One row a key: each feed is asked for the keys that no higher one knows; what none has is deleted."""
    orders = []
    for version in now.values():
        orders.append(orders_of_feed(changed.rows(version, keys), columns=columns))
        keys = changed.not_in(version, keys)
        if not keys.count:
            break
    orders.append(deleted_orders(keys.rows, columns=columns))
    return reduce(lambda higher, lower: higher.unionByName(lower), orders)
