"""Keys of rows, as a part of Spark's plans and, where they are few, in this process as well; and rows by their keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.spark.sizing import broadcast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# So many keys that are whole numbers are listed in a condition.
MAX_LISTED = 1_000


@dataclass(frozen=True)
class ChangeSet:
    """Rows that were read, once, and how many there are; `table`: the same, where they were fetched.

    `size_in_bytes`: about what they take together.
    """

    rows: DataFrame
    count: int
    table: pa.Table | None = None
    size_in_bytes: int = 0


@dataclass(frozen=True)
class Keys:
    """Keys of a table, one column, each once; how many they are at most; and of whole numbers the lowest and highest.

    `key_range`: None where keys are of another type, where one of them is NULL, and where there is none. `table`: the
    same keys, where they were fetched.
    """

    rows: DataFrame
    count: int
    key_range: tuple[int, int] | None = None
    table: pa.Table | None = field(default=None, compare=False)


def fetched_keys(spark: SparkSession, table: pa.Table) -> Keys:
    """The keys of a table of one column that is in this process, each once."""
    rows = spark.createDataFrame(table)
    (key,) = table.column_names
    kept = ChangeSet(rows, table.num_rows, table)
    return Keys(broadcast(rows, kept.count), kept.count, ends(kept, key), table)


def keys_without(keys: pa.Table, present: pa.ChunkedArray) -> pa.Table:
    """The keys, a table of one column, that are not among those that are present."""
    import pyarrow.compute as pc

    return keys.filter(pc.invert(pc.is_in(keys.column(0), value_set=present)))


def rows_with(table: pa.Table, column: str, value: str) -> pa.Table:
    """The rows that have this value in a column."""
    import pyarrow.compute as pc

    return table.filter(pc.equal(table.column(column), value))


def ends(kept: ChangeSet, key: str) -> tuple[int, int] | None:
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
    if keys.key_range is not None:
        # Delta passes over the files that have none between, and Parquet's reader over parts of files.
        rows = rows.where(F.col(key).between(*keys.key_range))
        if keys.table is not None and keys.table.num_rows <= MAX_LISTED:
            # As a part of the plan: a join would take a job more to broadcast them.
            listed = ", ".join(str(one) for one in keys.table.column(0).to_pylist())
            return rows.where(f"`{key}` IN ({listed})")
    wanted = keys.rows.select(F.col(key).alias("_wanted"))
    return rows.join(wanted, on=F.col(key).eqNullSafe(F.col("_wanted")), how="left_semi")


def union_keys(parts: Collection[Keys | None]) -> Keys | None:
    """The keys of all of them; None when one of them is not known. Those of the first, where it has all of them."""
    known_parts = [one for one in parts if one is not None]
    if len(known_parts) < len(parts):
        return None
    some = [one for one in known_parts if one.count] or known_parts[:1]
    if len(some) == 1 or _has_all(some[0], some[1:]):
        return some[0]
    tables = [one.table for one in some if one.table is not None]
    if len(tables) == len(some) and all(table.schema.equals(tables[0].schema) for table in tables):
        return fetched_keys(some[0].rows.sparkSession, each_once(tables))
    count = sum(one.count for one in some)
    rows = reduce(lambda left, right: left.unionByName(right), [one.rows for one in some]).distinct()
    ends = [end for one in some for end in one.key_range or ()]
    is_range = all(one.key_range is not None for one in some)
    return Keys(broadcast(rows, count), count, (min(ends), max(ends)) if is_range else None)


def each_once(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all of these tables, which have the same columns, each once."""
    import pyarrow as pa

    return pa.concat_tables(tables).group_by(tables[0].column_names).aggregate([])


def _has_all(keys: Keys, others: Sequence[Keys]) -> bool:
    """Whether the keys are known to have those of all others."""
    if keys.table is None:
        return False
    known = set(keys.table.column(0).to_pylist())
    return all(one.table is not None and known.issuperset(one.table.column(0).to_pylist()) for one in others)
