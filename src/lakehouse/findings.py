"""What a check of the tables found, in one form for all layers: where, which offsets, how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.kafka.ranges import TOPIC_PARTITION, length

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# `records`: how many of the offsets first..last it is about, all or fewer. `batch`, `recorded`, `found`: of a row that
# does # not add up, its batch and the two numbers that differ.
COLUMNS = ("kind", *TOPIC_PARTITION, "first", "last", "records", "batch", "recorded", "found")


def finding(
    rows: DataFrame,
    kind: str,
    *,
    records: Column | None = None,
    batch: Column | None = None,
    recorded: Column | None = None,
    found: Column | None = None,
) -> DataFrame:
    """Ranges as findings of a kind; `records` are all of their offsets unless it says otherwise."""
    given = {"records": length() if records is None else records, "batch": batch, "recorded": recorded, "found": found}
    numbers = [(F.lit(None) if value is None else value).cast("bigint").alias(name) for name, value in given.items()]
    return rows.select(F.lit(kind).alias("kind"), *TOPIC_PARTITION, "first", "last", *numbers)


def joined(findings: DataFrame) -> DataFrame:
    """Findings of a kind that are about all of their offsets, made one where they touch or overlap."""
    is_whole = F.col("batch").isNull() & (F.col("records") == length())
    alone = F.when(~is_whole, F.monotonically_increasing_id())
    in_order = Window.partitionBy("kind", *TOPIC_PARTITION, "alone").orderBy("first", "last")
    end = F.max("last").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    first, last = F.min("first"), F.max("last")
    return (
        findings.withColumn("alone", alone)
        .withColumn("begins", F.coalesce((F.col("first") > end + 1).cast("int"), F.lit(1)))
        .withColumn("number", F.sum("begins").over(so_far))
        .groupBy("kind", *TOPIC_PARTITION, "alone", "number")
        .agg(
            first.alias("first"),
            last.alias("last"),
            F.when(F.col("alone").isNull(), last - first + 1).otherwise(F.max("records")).alias("records"),
            *[F.max(name).alias(name) for name in ("batch", "recorded", "found")],
        )
        .select(*COLUMNS)
    )
