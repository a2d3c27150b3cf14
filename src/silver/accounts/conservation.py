"""Has silver counted every record of bronze, once; and does every row of the batch audit add up?

The findings come from ranges laid over one another (`lakehouse.kafka.ranges.overlaid`), of which these kinds matter
here: `stored` (what bronze has), `counted` (what silver has read, by its audit) and `suspended` (what is pending
for suspended tables).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.findings import finding
from lakehouse.kafka.ranges import TOPIC_PARTITION, length, overlap
from silver.order.state import COUNTED, OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def of_this_generation(audit: DataFrame, *, source: str) -> DataFrame:
    """The source's rows since silver was last rebuilt: of the generation that wrote last."""
    of_source = audit.where(F.col("source") == source)
    last = of_source.agg(F.max_by("generation", "sequence").alias("generation"))
    return of_source.join(F.broadcast(last), on="generation", how="left_semi")


def counted_ranges(audit: DataFrame) -> DataFrame:
    """What the rows of the batch audit have read: their ranges without the gaps."""
    starts = F.concat(F.array("first_offset"), F.transform("gaps", lambda gap: gap["last"] + 1))
    ends = F.concat(F.transform("gaps", lambda gap: gap["first"] - 1), F.array("last_offset"))
    ranges = F.arrays_zip(starts.alias("first"), ends.alias("last"))
    return _reading(audit).select(*TOPIC_PARTITION, F.inline(ranges))


def came_to(ranges: DataFrame) -> DataFrame:
    """One row, `came_to`: when the last record came that silver has counted, in microseconds; NULL before the first."""
    is_counted = (F.col("counted") > 0) & (F.col("stored") > 0)
    return ranges.agg(F.max(F.when(is_counted, F.unix_micros("ingested_at"))).alias("came_to"))


def with_counted_to(ranges: DataFrame) -> DataFrame:
    """The ranges with `counted_to`: the highest offset of the topic-partition that silver has counted."""
    last = F.max(F.when(F.col("counted") > 0, F.col("last"))).over(Window.partitionBy(*TOPIC_PARTITION))
    return ranges.withColumn("counted_to", last)


def not_counted(ranges: DataFrame, *, came_to: int | None) -> DataFrame:
    """`not_counted`: offsets of bronze that no row of the batch audit has read, though silver has come further.

    `pending`, one finding a topic-partition: those that silver has yet to read. Silver reads bronze in the order in
    which the records came; of those that came together, in the order of their offsets.
    """
    came, last_came = F.unix_micros("ingested_at"), F.lit(came_to).cast("bigint")
    is_passed = (came < last_came) | ((came == last_came) & (F.col("last") < F.col("counted_to")))
    left = ranges.where((F.col("stored") > 0) & (F.col("counted") == 0) & (F.col("suspended") == 0)).withColumn(
        "is_passed", F.coalesce(is_passed, F.lit(False))
    )
    pending = (
        left.where(~F.col("is_passed"))
        .groupBy(*TOPIC_PARTITION)
        .agg(F.min("first").alias("first"), F.max("last").alias("last"), F.sum(length()).alias("offsets"))
    )
    passed = finding(left.where("is_passed"), "not_counted")
    return passed.unionByName(finding(pending, "pending", records=F.col("offsets")))


def suspended_records(ranges: DataFrame) -> DataFrame:
    """`suspended`: offsets of bronze that are pending for a suspended table."""
    is_passed_over = (F.col("stored") > 0) & (F.col("counted") == 0)
    return finding(ranges.where(is_passed_over & (F.col("suspended") > 0)), "suspended")


def counted_twice(ranges: DataFrame) -> DataFrame:
    """`counted_twice`: offsets that more rows of the batch audit have read than bronze has of them."""
    again = (F.col("counted") > 1) & (F.col("counted") > F.col("stored"))
    return finding(ranges.where(again), "counted_twice")


def unbalanced(audit: DataFrame) -> DataFrame:
    """`unbalanced`: rows of the batch audit whose outcomes (`found`) do not add up to what they read (`recorded`)."""
    ended = reduce(lambda so_far, also: so_far + also, [_or_zero(outcome) for outcome in OUTCOMES])
    rows = audit.withColumn("ended", ended).where(_or_zero("read") != F.col("ended"))
    ranges = rows.withColumns({"first": F.col("first_offset"), "last": F.col("last_offset")})
    read = _or_zero("read")
    return finding(ranges, "unbalanced", records=read, batch=F.col("batch"), recorded=read, found=F.col("ended"))


def suspicious(audit: DataFrame) -> DataFrame:
    """The batches that `read` another number of a topic-partition's records than `offsets`: their ranges without gaps.

    Of a topic that feeds share, all feeds together.
    """
    gaps = F.aggregate("gaps", F.lit(0).cast("bigint"), lambda so_far, gap: so_far + gap["last"] - gap["first"] + 1)
    offsets = F.coalesce(F.col("last_offset") - F.col("first_offset") + 1 - gaps, F.lit(0))
    return (
        audit.where("batch IS NOT NULL AND read IS NOT NULL")
        .groupBy(*TOPIC_PARTITION, "generation", "writer", "batch")
        .agg(
            F.min("first_offset").alias("first"),
            F.max("last_offset").alias("last"),
            F.sum("read").alias("read"),
            F.sum(offsets).alias("offsets"),
        )
        .where(F.col("read") != F.col("offsets"))
    )


def read_otherwise(rows: DataFrame, ranges: DataFrame) -> DataFrame:
    """`read_otherwise`: `suspicious` batches that read (`recorded`) another number of records than there are (`found`).

    There are as many as offsets; more, where bronze has rows twice.
    """
    of_batch = (*TOPIC_PARTITION, "generation", "writer", "batch")
    doubled = ranges.where((F.col("stored") > 1) & (F.col("counted") > 0))
    more = (
        rows.alias("row")
        .join(doubled.alias("doubled"), on=overlap("row", "doubled"), how="inner")
        .groupBy(*[F.col(f"row.{name}").alias(name) for name in of_batch])
        .agg(F.sum((F.col("doubled.last") - F.col("doubled.first") + 1) * (F.col("stored") - 1)).alias("more"))
    )
    there = F.col("offsets") + F.coalesce("more", F.lit(0))
    found = rows.join(more, on=list(of_batch), how="left").where(F.col("read") != there)
    read, batch = F.col("read"), F.col("batch")
    return finding(found, "read_otherwise", records=read, batch=batch, recorded=read, found=there)


def totals(audit: DataFrame) -> DataFrame:
    """TOPIC_PARTITION and COUNTED: what became of the records of every topic-partition."""
    counted = audit.where("read IS NOT NULL")
    return counted.groupBy(*TOPIC_PARTITION).agg(*[F.sum(_or_zero(count)).alias(count) for count in COUNTED])


def _reading(audit: DataFrame) -> DataFrame:
    """The rows that read records; the others move records of earlier batches."""
    return audit.where(F.col("first_offset").isNotNull())


def _or_zero(count: str) -> Column:
    return F.coalesce(F.col(count), F.lit(0))
