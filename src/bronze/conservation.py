"""Does bronze have every record that was read, once; and was every offset read that nobody skipped?

The findings come from ranges laid over one another (`lakehouse.kafka.ranges.overlaid`), of four kinds: `asked` (what
the batches were to read), `stored` (what bronze has), `counted` (what silver has read), `skipped` (by command).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.findings import finding
from lakehouse.kafka.ranges import TOPIC_PARTITION, contiguous, length, overlap

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OF_BATCH = ("checkpoint", "batch")


def stored_ranges(events: DataFrame) -> DataFrame:
    """What bronze has: the offsets of its rows as ranges, each with when it came."""
    topic_id = F.coalesce("_topic_id", F.lit("")).alias("topic_id")
    return contiguous(
        events.select("topic", topic_id, "partition", "offset", F.col("_ingested_at").alias("ingested_at"))
    )


def asked_ranges(planned: DataFrame) -> DataFrame:
    """What batches were to read (`bronze.batches.planned_of`)."""
    return planned.select(
        *TOPIC_PARTITION, F.col("from_offset").alias("first"), (F.col("until_offset") - 1).alias("last")
    )


def skipped_ranges(steps: DataFrame) -> DataFrame:
    """What was skipped by command, or by the contract's `start` (`bronze.source_state.steps_in`)."""
    skipped = steps.where(F.col("skipped") > 0)
    return skipped.select(*TOPIC_PARTITION, F.col("from_offset").alias("first"), (F.col("to_offset") - 1).alias("last"))


def with_surroundings(ranges: DataFrame) -> DataFrame:
    """The ranges with what lies around each in its topic-partition.

    `asked_from`, `asked_to`: what the batches were to read; `came_before`, `came_after`: when the records before and
    after it came; `stored_before`: how many offsets before it bronze has.
    """
    topic_partition = Window.partitionBy(*TOPIC_PARTITION)
    so_far = topic_partition.orderBy("first").rowsBetween(Window.unboundedPreceding, -1)
    to_come = topic_partition.orderBy("first").rowsBetween(1, Window.unboundedFollowing)
    is_asked = F.col("asked") > 0
    is_stored = F.col("stored") > 0
    came = F.when(is_stored, F.col("ingested_at"))
    return ranges.select(
        "*",
        F.min(F.when(is_asked, F.col("first"))).over(topic_partition).alias("asked_from"),
        F.max(F.when(is_asked, F.col("last"))).over(topic_partition).alias("asked_to"),
        F.last(came, ignorenulls=True).over(so_far).alias("came_before"),
        F.first(came, ignorenulls=True).over(to_come).alias("came_after"),
        F.coalesce(F.sum(F.when(is_stored, length())).over(so_far), F.lit(0)).alias("stored_before"),
    )


def stored_twice(ranges: DataFrame) -> DataFrame:
    """`stored_twice`: offsets of which bronze has more than one row."""
    return finding(ranges.where(F.col("stored") > 1), "stored_twice")


def missing(ranges: DataFrame) -> DataFrame:
    """`missing`: records that bronze does not have any more, though silver has counted them."""
    return finding(ranges.where((F.col("stored") == 0) & (F.col("counted") > 0)), "missing")


def short_batches(ranges: DataFrame, planned: DataFrame) -> DataFrame:
    """The batches of whose offsets bronze has fewer now than when they ended: with `lacks`, how many fewer."""
    # Every batch begins and ends where a range begins: no range has to be compared with every batch.
    at = ranges.select(*TOPIC_PARTITION, F.col("first").alias("at"), "stored_before")
    begin = at.select(*TOPIC_PARTITION, F.col("at").alias("from_offset"), F.col("stored_before").alias("before_it"))
    end = at.select(*TOPIC_PARTITION, F.col("at").alias("until_offset"), F.col("stored_before").alias("with_it"))
    return (
        planned.join(begin, on=[*TOPIC_PARTITION, "from_offset"], how="inner")
        .join(end, on=[*TOPIC_PARTITION, "until_offset"], how="inner")
        .withColumn("lacks", F.col("records") - (F.col("with_it") - F.col("before_it")))
        .where(F.col("lacks") > 0)
        .select(
            *TOPIC_PARTITION,
            *_OF_BATCH,
            F.col("from_offset").alias("first"),
            (F.col("until_offset") - 1).alias("last"),
            "lacks",
        )
    )


def missing_of_batches(ranges: DataFrame, short: DataFrame) -> DataFrame:
    """`missing`: what `short_batches` lack, and silver has not counted.

    Where it is not known which of several offsets without a row had one, the finding is the whole range, and `records`
    fewer than its offsets.
    """
    # Offsets without a row that silver has not counted: gaps, or records that were gone before silver read them.
    empty = ranges.where((F.col("stored") == 0) & (F.col("asked") > 0))
    of_batch = [F.col(f"short.{name}").alias(name) for name in (*TOPIC_PARTITION, *_OF_BATCH, "lacks")]
    batch = Window.partitionBy(*TOPIC_PARTITION, *_OF_BATCH)
    is_known = F.col("counted") > 0
    known = F.coalesce(F.sum(F.when(is_known, length())).over(batch), F.lit(0))
    unknown = (
        short.alias("short")
        .join(empty.alias("empty"), on=overlap("short", "empty"), how="inner")
        .select(*of_batch, "empty.first", "empty.last", "empty.counted")
        .withColumn("lacks", F.col("lacks") - known)
        .where((F.col("lacks") > 0) & ~is_known)
        .withColumn("may_be", F.sum(length()).over(batch))
    )
    is_exact = F.col("may_be") == F.col("lacks")
    vague = (
        unknown.where(~is_exact)
        .groupBy(*TOPIC_PARTITION, *_OF_BATCH, "lacks")
        .agg(F.min("first").alias("first"), F.max("last").alias("last"))
        .select(*TOPIC_PARTITION, "first", "last", "lacks")
        .distinct()
    )
    return finding(unknown.where(is_exact), "missing").unionByName(finding(vague, "missing", records=F.col("lacks")))


def never_read(ranges: DataFrame) -> DataFrame:
    """`never_read`: offsets between two batches of bronze that no batch was to read and nobody has skipped."""
    # A batch that was stored, and never ended since its source was moved, is not among the batches: gaps inside of it
    # are Kafka's own.
    is_inside_a_batch = F.coalesce(F.col("came_before") == F.col("came_after"), F.lit(False))
    is_between = (F.col("asked_from") < F.col("first")) & (F.col("asked_to") > F.col("last"))
    unread = ranges.where(_is_nowhere() & (F.col("skipped") == 0) & is_between & ~is_inside_a_batch)
    return finding(unread, "never_read")


def known_skips(ranges: DataFrame) -> DataFrame:
    """`skipped`: offsets that were skipped by command, or by the contract's `start`, and not read later. No error."""
    return finding(ranges.where(_is_nowhere() & (F.col("skipped") > 0)), "skipped")


def _is_nowhere() -> Column:
    return (F.col("asked") == 0) & (F.col("stored") == 0) & (F.col("counted") == 0)
