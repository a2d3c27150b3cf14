"""What changed between two versions of a table, from its change data feed: the keys, or what became of each of them.

A change data feed lives as long as the files of its versions: VACUUM, a clean-up of the log, a restored copy or another
set of columns end it. Then it has to be known before anything is built on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.formats import AT_VERSION, IS_GONE
from lakehouse.consumed import Version
from lakehouse.failures import unreadable_file
from lakehouse.spark.materialized import Fetched, counted, fetched, materialized
from lakehouse.spark.sizing import MOST_FETCHED, broadcast
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


# Delta's and Spark's names of the errors of a feed, or of a version, that is not there any more.
_GONE = re.compile(
    r"\[(?:DELTA_MISSING_CHANGE_DATA|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSION_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG"
    r"|DELTA_CDC_START_VERSION_AFTER_LATEST|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_(?:DATA_SCHEMA|SCHEMA_CHANGE)"
    r"|DELTA_CHANGE_TABLE_FEED_DISABLED|DELTA_FILE_NOT_FOUND(?:_DETAILED)?|FAILED_READ_FILE\.FILE_NOT_EXIST)\]"
)


# Of the kinds of rows of a change data feed those that are the row after its change.
_AFTER = ("insert", "update_postimage")
# So many keys that are whole numbers are listed in a condition.
MOST_LISTED = 1_000


@dataclass(frozen=True)
class Kept:
    """Rows that were read, once, and how many there are; `table`: the same, where they were fetched.

    `size_in_bytes`: about what they take together.
    """

    rows: DataFrame
    count: int
    table: pa.Table | None = None
    size_in_bytes: int = 0


@contextmanager
def kept_changes(read: Callable[[], DataFrame], *, are_narrow: bool = False) -> Iterator[Kept | None]:
    """The rows that `read` makes of a change data feed or of an earlier version; None when they are gone.

    They are read now: whether a file is there is known only when it is opened. Any other error is itself. Rows that
    `are_narrow` are fetched where they are few; many of them are read twice.
    """
    with ExitStack() as stack:
        yield _read(read, are_narrow=are_narrow, stack=stack)


def _read(read: Callable[[], DataFrame], *, are_narrow: bool, stack: ExitStack) -> Kept | None:
    try:
        if are_narrow:
            some = fetched(read().limit(MOST_FETCHED + 1))
            if some.table.num_rows <= MOST_FETCHED:
                return Kept(some.rows, some.table.num_rows, some.table, some.table.nbytes)
        rows = stack.enter_context(materialized(read()))
        count, size_in_bytes = counted(rows)  # on serverless nothing was read before this
        return Kept(rows, count, None, size_in_bytes)
    except Exception as error:
        if not is_gone(error):
            raise
        return None


def _few(read: Callable[[], DataFrame]) -> Fetched | None:
    """The rows that `read` makes of a change data feed, fetched; None where they are many, or gone."""
    try:
        some = fetched(read().limit(MOST_FETCHED + 1))
    except Exception as error:
        if not is_gone(error):
            raise
        return None
    return some if some.table.num_rows <= MOST_FETCHED else None


def _only(rows: DataFrame, columns: Collection[str]) -> DataFrame:
    return rows.select([name for name in rows.columns if name in columns])


def is_gone(error: BaseException) -> bool:
    """Whether the error says that a version, or a file of it, is not there any more, or cannot be read."""
    return _GONE.search(str(error)) is not None or unreadable_file(error) is not None


@dataclass(frozen=True)
class Keys:
    """Keys of a table, one column, each once; how many they are at most; and of whole numbers the lowest and highest.

    `between`: None where keys are of another type, where one of them is NULL, and where there is none. `table`: the
    same keys, where they were fetched.
    """

    rows: DataFrame
    count: int
    between: tuple[int, int] | None = None
    table: pa.Table | None = field(default=None, compare=False)


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
            rows = rows_of(self.table(version), keys)
            if version.table in self._columns:
                rows = _only(rows, self._columns[version.table])
            if keys.count <= MOST_FETCHED:
                some = fetched(rows)
                self._fetched[version, keys] = some.table
                self._rows[version, keys] = some.rows
            else:
                self._rows[version, keys] = self._stack.enter_context(materialized(rows))
        return self._rows[version, keys]

    def not_in(self, version: Version, keys: Keys) -> Keys:
        """Of these keys those that no row of the table has at this version."""
        rows, few = self.rows(version, keys), self._fetched.get((version, keys))
        if few is not None and keys.table is not None:
            return fetched_keys(rows.sparkSession, _without(keys.table, few.column(self._key)))
        present = rows.select(F.col(self._key).alias("_present")).distinct()
        left = keys.rows.join(present, on=F.col(self._key).eqNullSafe(F.col("_present")), how="left_anti")
        return replace(keys, rows=broadcast(left, keys.count), table=None)

    def _read(self, before: Version, now: Version, of: Column | None) -> Keys | None:
        if before.number == now.number:
            return self._none(now.table)

        def read() -> DataFrame:
            feed = self._warehouse.changes(now.table, first=before.number + 1, last=now.number)
            return (feed if of is None else feed.where(of)).select(self._key).distinct()

        columns = self._of_images.get(now.table)
        if of is None and columns is not None:
            wanted = {self._key, "_change_type", *columns}
            images = _few(
                lambda: _only(self._warehouse.changes(now.table, first=before.number + 1, last=now.number), wanted)
            )
            if images is not None:
                is_after = F.col("_change_type").isin(*_AFTER)
                rows = images.rows
                self._images[before, now] = Images(rows.where(~is_after), rows.where(is_after))
                return fetched_keys(rows.sparkSession, _each_once([images.table.select([self._key])]))
        kept = self._stack.enter_context(kept_changes(read, are_narrow=True))
        if kept is None:
            return None
        return Keys(broadcast(kept.rows, kept.count), kept.count, ends(kept, self._key), kept.table)

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

        kept = self._stack.enter_context(kept_changes(read, are_narrow=True)) if before.goes_on_to(now) else None
        if kept is None:
            return None
        if kept.table is not None:
            found = {value: _with(kept.table, column, value).select([self._key]) for value in values}
            return {value: fetched_keys(kept.rows.sparkSession, of) for value, of in found.items() if of.num_rows}
        found_rows = {value: kept.rows.where(F.col(column) == value).select(self._key) for value in values}
        return {value: Keys(broadcast(rows, kept.count), kept.count) for value, rows in found_rows.items()}


def fetched_keys(spark: SparkSession, table: pa.Table) -> Keys:
    """The keys of a table of one column that is in this process, each once."""
    rows = spark.createDataFrame(table)
    (key,) = table.column_names
    kept = Kept(rows, table.num_rows, table)
    return Keys(broadcast(rows, kept.count), kept.count, ends(kept, key), table)


def _without(keys: pa.Table, present: pa.ChunkedArray) -> pa.Table:
    import pyarrow.compute as pc

    return keys.filter(pc.invert(pc.is_in(keys.column(0), value_set=present)))


def _with(table: pa.Table, column: str, value: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.equal(table.column(column), value))


def ends(kept: Kept, key: str) -> tuple[int, int] | None:
    """The lowest and the highest of keys that are whole numbers, all of them."""
    if kept.table is not None:
        keys = kept.table.column(key).to_pylist()
        is_range = bool(keys) and all(isinstance(one, int) and not isinstance(one, bool) for one in keys)
        return (min(keys), max(keys)) if is_range else None
    column = F.col(key)
    ends = kept.rows.agg(
        F.min(column).alias("lowest"), F.max(column).alias("highest"), F.count_if(column.isNull()).alias("without")
    ).collect()[0]
    lowest, highest = ends["lowest"], ends["highest"]
    is_range = isinstance(lowest, int) and not isinstance(lowest, bool) and not ends["without"]
    return (lowest, highest) if is_range else None


def rows_of(rows: DataFrame, keys: Keys) -> DataFrame:
    """The rows with one of these keys; NULL is one too: what is wrong with a row may be that it has none."""
    (key,) = keys.rows.columns
    if keys.between is not None:
        # Delta passes over the files that have none between, and Parquet's reader over parts of files.
        rows = rows.where(F.col(key).between(*keys.between))
        if keys.table is not None and keys.table.num_rows <= MOST_LISTED:
            # As a part of the plan: a join would take a job more to broadcast them.
            listed = ", ".join(str(one) for one in keys.table.column(0).to_pylist())
            return rows.where(f"`{key}` IN ({listed})")
    wanted = keys.rows.select(F.col(key).alias("_wanted"))
    return rows.join(wanted, on=F.col(key).eqNullSafe(F.col("_wanted")), how="left_semi")


def together(parts: Collection[Keys | None]) -> Keys | None:
    """The keys of all of them; None when one of them is not known. Those of the first, where it has all of them."""
    told = [one for one in parts if one is not None]
    if len(told) < len(parts):
        return None
    some = [one for one in told if one.count] or told[:1]
    if len(some) == 1 or _has_all(some[0], some[1:]):
        return some[0]
    tables = [one.table for one in some if one.table is not None]
    if len(tables) == len(some) and all(table.schema.equals(tables[0].schema) for table in tables):
        return fetched_keys(some[0].rows.sparkSession, _each_once(tables))
    count = sum(one.count for one in some)
    rows = reduce(lambda left, right: left.unionByName(right), [one.rows for one in some]).distinct()
    ends = [end for one in some for end in one.between or ()]
    is_range = all(one.between is not None for one in some)
    return Keys(broadcast(rows, count), count, (min(ends), max(ends)) if is_range else None)


def _each_once(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables).group_by(tables[0].column_names).aggregate([])


def _has_all(keys: Keys, others: Sequence[Keys]) -> bool:
    """Whether the keys are known to have those of all others."""
    if keys.table is None:
        return False
    known = set(keys.table.column(0).to_pylist())
    return all(one.table is not None and known.issuperset(one.table.column(0).to_pylist()) for one in others)


def net_changes(
    feed: DataFrame, *, keys: Sequence[str], columns: Collection[str], is_deleted: Column | None = None
) -> DataFrame:
    """Each key whose row is another one after the feed than before it: the `columns`, IS_GONE and AT_VERSION.

    AT_VERSION is the version of its last commit. A key that is at the end as it was in the beginning is left out. A
    commit can have a key twice, as its row before and after: when it rewrote the whole table, as "delete" and "insert".
    `columns` have the `keys`. `is_deleted`: of a table that keeps deleted rows, whether a row is one.
    """
    is_after = F.col("_change_type").isin(*_AFTER)
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
