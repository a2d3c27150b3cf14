"""Offsets as ranges: rows joined to ranges, and ranges of several kinds overlaid.

A range is TOPIC_PARTITION, `first` and `last`, both included. The number of ranges follows the batches and the gaps
between offsets, not the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

# Offsets begin again when a topic is created again: its id is another one then.
TOPIC_PARTITION = ("topic", "topic_id", "partition")
# Rows are put in order by so many offsets at a time: a topic-partition can have more of them than one task should sort.
_AT_A_TIME = 1_000_000


def length() -> Column:
    """How many offsets a range has."""
    return F.col("last") - F.col("first") + 1


def contiguous(rows: DataFrame) -> DataFrame:
    """The rows (TOPIC_PARTITION, offset, ingested_at) as ranges of offsets without a gap that came at the same time.

    An offset that is there twice is in two ranges.
    """
    in_order = Window.partitionBy(*TOPIC_PARTITION, "part").orderBy("offset", "ingested_at")
    follows = (F.col("offset") == F.lag("offset").over(in_order) + 1) & F.col("ingested_at").eqNullSafe(
        F.lag("ingested_at").over(in_order)
    )
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return (
        rows.withColumn("part", F.floor(F.col("offset") / _AT_A_TIME))
        .withColumn("begins", F.coalesce((~follows).cast("int"), F.lit(1)))
        .withColumn("number", F.sum("begins").over(so_far))
        .groupBy(*TOPIC_PARTITION, "part", "number")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.first("ingested_at").alias("ingested_at"),
        )
        .select(*TOPIC_PARTITION, "first", "last", "ingested_at")
    )


def overlaid(kinds: Mapping[str, DataFrame]) -> DataFrame:
    """Ranges of several kinds, cut so that none overlap: TOPIC_PARTITION, first, last, ingested_at, a column a kind.

    A kind's column says in how many of its ranges these offsets are. `ingested_at` is that of the range that has begun
    last and has one. The last row of a topic-partition has no `last`, and 0 in all counts.
    """
    edges = reduce(DataFrame.unionByName, [_edges(ranges, kind, kinds) for kind, ranges in kinds.items()])
    in_order = Window.partitionBy(*TOPIC_PARTITION).orderBy("first")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counts = [F.sum(kind).over(so_far).alias(kind) for kind in kinds]
    return (
        # By topic-partition, as the windows are: one shuffle of the ranges.
        edges.repartition(*TOPIC_PARTITION)
        .groupBy(*TOPIC_PARTITION, "first")
        .agg(*[F.sum(kind).alias(kind) for kind in kinds], F.max("ingested_at").alias("ingested_at"))
        .select(
            *TOPIC_PARTITION,
            "first",
            (F.lead("first").over(in_order) - 1).alias("last"),
            F.last("ingested_at", ignorenulls=True).over(so_far).alias("ingested_at"),
            *counts,
        )
    )


def overlap(one: str, other: str, *, columns: Sequence[str] = TOPIC_PARTITION) -> Column:
    """Whether ranges of two aliases have an offset in common, and are equal in the columns."""
    same = reduce(lambda so_far, also: so_far & also, [F.col(f"{one}.{c}") == F.col(f"{other}.{c}") for c in columns])
    return same & (F.col(f"{one}.first") <= F.col(f"{other}.last")) & (F.col(f"{other}.first") <= F.col(f"{one}.last"))


def _edges(ranges: DataFrame, kind: str, kinds: Mapping[str, DataFrame]) -> DataFrame:
    """Where each range begins (1 in the kind's column) and where it has ended (-1)."""
    ingested_at = F.col("ingested_at") if "ingested_at" in ranges.columns else F.lit(None).cast("timestamp")
    begin = F.struct(F.col("first").alias("first"), F.lit(1).alias("change"), ingested_at.alias("ingested_at"))
    end = F.struct(
        (F.col("last") + 1).alias("first"),
        F.lit(-1).alias("change"),
        F.lit(None).cast("timestamp").alias("ingested_at"),
    )
    of_kind = {other: F.col("change") if other == kind else F.lit(0) for other in kinds}
    return ranges.select(*TOPIC_PARTITION, F.inline(F.array(begin, end))).select(
        *TOPIC_PARTITION,
        "first",
        "ingested_at",
        *[change.cast("bigint").alias(other) for other, change in of_kind.items()],
    )
