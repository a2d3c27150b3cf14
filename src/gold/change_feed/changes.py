"""What changed between two versions of a table, from its change data feed: the keys, or what became of each of them.

A change data feed lives as long as the files of its versions: VACUUM, a clean-up of the log, a restored copy or another
set of columns end it. Then it has to be known before anything is built on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.keys import ChangeSet, Keys, each_once, ends, fetched_keys, keys_without, rows_of, rows_with
from gold.topics.formats import AT_VERSION, IS_GONE
from lakehouse.delta.tables import Warehouse
from lakehouse.failures import unreadable_file
from lakehouse.spark.materialized import Fetched, counted, fetched, fetched_each, materialized
from lakehouse.spark.sizing import MAX_FETCHED, broadcast
from lakehouse.versions import Version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


# Delta's and Spark's names of the errors of a feed, or of a version, that is not there any more.
_GONE = re.compile(
    r"\[(?:DELTA_MISSING_CHANGE_DATA|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSION_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG"
    r"|DELTA_CDC_START_VERSION_AFTER_LATEST|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_(?:DATA_SCHEMA|SCHEMA_CHANGE)"
    r"|DELTA_CHANGE_TABLE_FEED_DISABLED|DELTA_FILE_NOT_FOUND(?:_DETAILED)?|FAILED_READ_FILE\.FILE_NOT_EXIST)\]"
)


# Of the kinds of rows of a change data feed those that are the row after its change.
AFTER = ("insert", "update_postimage")


@contextmanager
def read_change_set(read: Callable[[], DataFrame], *, are_narrow: bool = False) -> Iterator[ChangeSet | None]:
    """The rows that `read` makes of a change data feed or of an earlier version; None when they are gone.

    They are read now: whether a file is there is known only when it is opened. Any other error is itself. Rows that
    `are_narrow` are fetched where they are few; many of them are read twice.
    """
    with ExitStack() as stack:
        yield _read(read, are_narrow=are_narrow, stack=stack)


def _read(read: Callable[[], DataFrame], *, are_narrow: bool, stack: ExitStack) -> ChangeSet | None:
    try:
        if are_narrow:
            some = fetched(read().limit(MAX_FETCHED + 1))
            if some.table.num_rows <= MAX_FETCHED:
                return ChangeSet(some.rows, some.table.num_rows, some.table, some.table.nbytes)
        rows = stack.enter_context(materialized(read()))
        count, size_in_bytes = counted(rows)  # on serverless nothing was read before this
        return ChangeSet(rows, count, None, size_in_bytes)
    except Exception as error:
        if not is_gone(error):
            raise
        return None


def few_changes(read: Callable[[], DataFrame]) -> Fetched | None:
    """The rows that `read` makes of a change data feed, fetched; None where they are many, or gone."""
    try:
        some = fetched(read().limit(MAX_FETCHED + 1))
    except Exception as error:
        if not is_gone(error):
            raise
        return None
    return some if some.table.num_rows <= MAX_FETCHED else None


def _only(rows: DataFrame, columns: Collection[str]) -> DataFrame:
    return rows.select([name for name in rows.columns if name in columns])


def is_gone(error: BaseException) -> bool:
    """Whether the error says that a version, or a file of it, is not there any more, or cannot be read."""
    return _GONE.search(str(error)) is not None or unreadable_file(error) is not None


@dataclass(frozen=True)
class Images:
    """The rows of a table that changed, of some columns: each as it was before its change, and as it was after it."""

    preimages: DataFrame
    postimages: DataFrame


class ChangedKeys:
    """The keys of the rows that changed in a table, and the rows with them: read once, kept until `stack` closes."""

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        key: str,
        stack: ExitStack,
        columns: Mapping[str, Collection[str]] | None = None,
        of_images: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """`columns`: of a table, by its name, those that are asked about; of others all.

        `of_images`: those, where the table has them, that rows have as they were before and after their changes.
        """
        self._warehouse = warehouse
        self._key = key
        self._columns = columns or {}
        self._of_images = of_images or {}
        self._images: dict[tuple[Version, Version], Images] = {}
        self._stack = stack
        self._known: dict[tuple[Version, Version], Keys | None] = {}
        self._rows: dict[tuple[Version, Keys], DataFrame] = {}
        self._fetched: dict[tuple[Version, Keys], pa.Table] = {}

    def since(self, before: Version | None, now: Version, *, of: Column | None = None) -> Keys | None:
        """The keys after `before` and up to `now`, of rows before and after their changes. `of`: of these rows only.

        None when that is not known: nothing was taken before, `now` does not go on from it, or the table does not
        have its changes any more.
        """
        if before is None or not before.goes_on_to(now):
            return None
        if of is not None:
            return self._read(before, now, of)
        if (before, now) not in self._known:
            self._known[before, now] = self._read(before, now, of)
        return self._known[before, now]

    def read_together(self, ranges: Collection[tuple[Version, Version]]) -> None:
        """Read what changed in several tables by one action, where it is little; else each when it is asked for."""
        new = [
            (before, now)
            for before, now in ranges
            if before.goes_on_to(now) and before.number < now.number and (before, now) not in self._known
        ]
        try:
            parts = [self._read_images(before, now) for before, now in new]
            found = fetched_each(parts, most=MAX_FETCHED) if parts else None
        except Exception as error:
            if not is_gone(error):
                raise
            return  # of which table, is known when each is read
        if found is not None:
            for (before, now), images in zip(new, found, strict=True):
                self._known[before, now] = self._remember(before, now, images)

    def read_rows_together(self, wanted: Collection[tuple[Version, Keys]]) -> None:
        """Read the rows of several tables by one action, as `rows` has them, where they are few."""
        new = [(version, keys) for version, keys in wanted if keys.count and (version, keys) not in self._rows]
        if new and sum(keys.count for _version, keys in new) <= MAX_FETCHED:
            found = fetched_each([self._rows_of(version, keys) for version, keys in new], most=MAX_FETCHED)
            if found is not None:
                for (version, keys), some in zip(new, found, strict=True):
                    self._fetched[version, keys], self._rows[version, keys] = some.table, some.rows

    def images(self, before: Version | None, now: Version) -> Images | None:
        """The rows that changed after `before` and up to `now`, where their keys are known and they are few."""
        if before is None or self.since(before, now) is None:
            return None
        return self._images.get((before, now))

    def table(self, version: Version) -> DataFrame:
        """The table at this version."""
        return self._warehouse.read(version.table, version=version.number)

    def rows(self, version: Version, keys: Keys) -> DataFrame:
        """The table's rows that have one of these keys, as they are at this version; `rows_of`."""
        if (version, keys) not in self._rows:
            rows = self._rows_of(version, keys)
            if keys.count <= MAX_FETCHED:
                some = fetched(rows)
                self._fetched[version, keys] = some.table
                self._rows[version, keys] = some.rows
            else:
                self._rows[version, keys] = self._stack.enter_context(materialized(rows))
        return self._rows[version, keys]

    def _rows_of(self, version: Version, keys: Keys) -> DataFrame:
        rows = rows_of(self.table(version), keys)
        return _only(rows, self._columns[version.table]) if version.table in self._columns else rows

    def not_in(self, version: Version, keys: Keys) -> Keys:
        """Of these keys those that no row of the table has at this version."""
        rows, few = self.rows(version, keys), self._fetched.get((version, keys))
        if few is not None and keys.table is not None:
            return fetched_keys(rows.sparkSession, keys_without(keys.table, few.column(self._key)))
        present = rows.select(F.col(self._key).alias("_present")).distinct()
        left = keys.rows.join(present, on=F.col(self._key).eqNullSafe(F.col("_present")), how="left_anti")
        return replace(keys, rows=broadcast(left, keys.count), table=None)

    def _read(self, before: Version, now: Version, of: Column | None) -> Keys | None:
        if before.number == now.number:
            return self._none(now.table)

        def read() -> DataFrame:
            feed = self._warehouse.changes(now.table, first=before.number + 1, last=now.number)
            return (feed if of is None else feed.where(of)).select(self._key).distinct()

        if of is None and now.table in self._of_images:
            images = few_changes(partial(self._read_images, before, now))
            if images is not None:
                return self._remember(before, now, images)
        kept = self._stack.enter_context(read_change_set(read, are_narrow=True))
        if kept is None:
            return None
        return Keys(broadcast(kept.rows, kept.count), kept.count, ends(kept, self._key), kept.table)

    def _read_images(self, before: Version, now: Version) -> DataFrame:
        """The changes of a table with the columns that are asked about before and after them, with the key at least."""
        wanted = {self._key, "_change_type", *self._of_images.get(now.table, ())}
        return _only(self._warehouse.changes(now.table, first=before.number + 1, last=now.number), wanted)

    def _remember(self, before: Version, now: Version, images: Fetched) -> Keys:
        """The keys of these changes; and what they were before and after them, for whoever asks."""
        is_after = F.col("_change_type").isin(*AFTER)
        self._images[before, now] = Images(images.rows.where(~is_after), images.rows.where(is_after))
        return fetched_keys(images.rows.sparkSession, each_once([images.table.select([self._key])]))

    def _none(self, table: str) -> Keys:
        rows = self._warehouse.spark.createDataFrame([], self._warehouse.read(table).select(self._key).schema)
        return Keys(rows, 0)

    def by_value(
        self, before: Version, now: Version, *, column: str, values: Collection[str]
    ) -> dict[str, Keys] | None:
        """The keys of the rows that changed after `before` and up to `now`, for each of these values of a column.

        Of each value that any such row had, before its change or after it. None when they are not known.
        """

        def read() -> DataFrame:
            feed = self._warehouse.changes(now.table, first=before.number + 1, last=now.number)
            return feed.select(self._key, column).distinct()

        kept = self._stack.enter_context(read_change_set(read, are_narrow=True)) if before.goes_on_to(now) else None
        if kept is None:
            return None
        if kept.table is not None:
            found = {value: rows_with(kept.table, column, value).select([self._key]) for value in values}
            return {value: fetched_keys(kept.rows.sparkSession, of) for value, of in found.items() if of.num_rows}
        found_rows = {value: kept.rows.where(F.col(column) == value).select(self._key) for value in values}
        return {value: Keys(broadcast(rows, kept.count), kept.count) for value, rows in found_rows.items()}


def net_changes(
    feed: DataFrame, *, keys: Sequence[str], columns: Collection[str], is_deleted: Column | None = None
) -> DataFrame:
    """Each key whose row is another one after the feed than before it: the `columns`, IS_GONE and AT_VERSION.

    AT_VERSION is the version of its last commit. A key that is at the end as it was in the beginning is left out. A
    commit can have a key twice, as its row before and after: when it rewrote the whole table, as "delete" and "insert".
    `columns` have the `keys`. `is_deleted`: of a table that keeps deleted rows, whether a row is one.
    """
    is_after = F.col("_change_type").isin(*AFTER)
    is_live = F.lit(True) if is_deleted is None else ~is_deleted
    marked = feed.withColumns({"_is_after": is_after, "_is_live": is_live})
    in_order = F.struct("_commit_version", F.col("_is_after").cast("int"))
    row = F.struct(*columns, "_is_after", "_is_live", "_commit_version")
    ends = marked.groupBy(*keys).agg(F.min_by(row, in_order).alias("_first"), F.max_by(row, in_order).alias("_last"))
    was_there = ~F.col("_first._is_after") & F.col("_first._is_live")
    is_there = F.col("_last._is_after") & F.col("_last._is_live")
    same = reduce(and_, [F.col(f"_first.{name}").eqNullSafe(F.col(f"_last.{name}")) for name in columns])
    is_changed = F.when(was_there & is_there, ~same).otherwise(was_there | is_there)
    return ends.where(is_changed).select(
        *[f"_last.{name}" for name in columns],
        (~is_there).alias(IS_GONE),
        F.col("_last._commit_version").alias(AT_VERSION),
    )
