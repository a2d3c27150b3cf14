"""Gold's own change data feed: what a run has changed in gold is read once, for all that is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import few_changes
from gold.unify import UNIFIED
from lakehouse.contracts.models import GoldTables
from lakehouse.contracts.published import unified_columns
from lakehouse.delta.tables import Warehouse
from lakehouse.versions import Version

if TYPE_CHECKING:
    import pyarrow as pa


class GoldFeed:
    """The rows of gold that changed between two of its versions, where they are few; each range is read once.

    A row has the columns of gold as it was before its change, or as it was after it; with `_change_type` and
    `_commit_version`, and for every column that a mart takes the day of, that day, as `day_column` names it.
    """

    def __init__(self, warehouse: Warehouse, tables: GoldTables) -> None:
        self._warehouse = warehouse
        self._columns = [*unified_columns(tables), "_change_type", "_commit_version"]
        self._days = sorted({mart.day for mart in tables.marts.values() if mart.day is not None})
        self._known: dict[tuple[Version, Version], pa.Table | None] = {}

    def few(self, before: Version | None, now: Version) -> pa.Table | None:
        """The rows that changed after `before` and up to `now`; None where they are many, or not known any more."""
        if before is None or not before.goes_on_to(now) or before == now:
            return None
        if (before, now) not in self._known:
            days = [F.to_date(column).alias(day_column(column)) for column in self._days]
            found = few_changes(
                lambda: self._warehouse.changes(UNIFIED, first=before.number + 1, last=now.number).select(
                    *self._columns, *days
                )
            )
            self._known[before, now] = None if found is None else found.table
        return self._known[before, now]


def day_column(column: str) -> str:
    """The column of a feed with the day, in UTC, of another one."""
    return f"_day_of_{column}"
