"""What became of every key between two versions of gold, from its change data feed."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def net_changes(feed: DataFrame, *, columns: Collection[str]) -> DataFrame:
    """Each key whose row is another one after the feed than before it: gold's `columns`, `is_deleted` and `version`.

    `version` is that of its last commit. A key that is at the end as it was in the beginning is left out. A commit can
    tell a key twice, as its row before and after: when it wrote the whole table anew, as "delete" and "insert".
    """
    is_after = F.col("_change_type").isin("insert", "update_postimage")
    told = feed.withColumn("is_after", is_after)
    in_order = F.struct("_commit_version", F.col("is_after").cast("int"))
    row = F.struct(*columns, "is_after", "_commit_version")
    ends = told.groupBy("composite_key").agg(
        F.min_by(row, in_order).alias("first"), F.max_by(row, in_order).alias("last")
    )
    was_there, is_there = ~F.col("first.is_after"), F.col("last.is_after")
    same = reduce(and_, [F.col(f"first.{name}").eqNullSafe(F.col(f"last.{name}")) for name in columns])
    is_changed = F.when(was_there & is_there, ~same).otherwise(was_there | is_there)
    return ends.where(is_changed).select(
        *[f"last.{name}" for name in columns],
        (~is_there).alias("is_deleted"),
        F.col("last._commit_version").alias("version"),
    )
