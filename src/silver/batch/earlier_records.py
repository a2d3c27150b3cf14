"""What only bronze knows of records: whether they repeat others, and the highest timestamp before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.batches import COORDINATES
from lakehouse.contracts.models import Feed
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.tables import small_table
from silver.batch.position import STREAMED, coordinates, log_place
from silver.order.runs import Regression, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def in_ranges(bronze: DataFrame, ranges: Mapping[TopicPartition, tuple[int, int]]) -> DataFrame:
    """The bronze rows that lie in one of these ranges of offsets, both ends included."""
    return in_parts(bronze, [(place, first, last) for place, (first, last) in ranges.items()])


def in_parts(bronze: DataFrame, parts: Sequence[tuple[TopicPartition, int, int]]) -> DataFrame:
    """The same of any number of ranges of a topic-partition: a row is there once for each that it lies in."""
    rows = [
        {**dict(zip(TOPIC_PARTITION, place, strict=True)), "first": first, "last": last} for place, first, last in parts
    ]
    columns = "topic STRING, topic_id STRING, partition INT, first BIGINT, last BIGINT"
    wanted = small_table(bronze.sparkSession, rows, columns).withColumnRenamed("topic_id", "wanted_id")
    topics = {place[0] for place, _first, _last in parts}
    is_of_topic = F.col("wanted_id") == F.coalesce("_topic_id", F.lit(""))
    return (
        bronze.where(F.col("topic").isin(*topics))  # files of other topics are skipped
        .join(F.broadcast(wanted), on=["topic", "partition"], how="inner")
        .where(is_of_topic & F.col("offset").between(F.col("first"), F.col("last")))
        .drop("wanted_id", "first", "last")
    )


def fallen_behind(spark: SparkSession, found: Sequence[Regression]) -> DataFrame:
    """The regressions: topic, topic_id, partition, run_id, `from_offset`, `below` and their `number`."""
    rows = [
        {
            **dict(zip(TOPIC_PARTITION, regression.place, strict=True)),
            "run_id": regression.run_id,
            "from_offset": regression.from_offset,
            "below": list(regression.below),
            "number": number,
        }
        for number, regression in enumerate(found)
    ]
    columns = f"topic STRING, topic_id STRING, partition INT, run_id STRING, from_offset BIGINT, below {COORDINATES}"
    return small_table(spark, rows, f"{columns}, number INT")


def not_sent_before(told: DataFrame, fallen: DataFrame, feed: Feed) -> DataFrame:
    """`number` of the regressions with a record behind `below` that repeats no earlier one of its topic-partition.

    Equal are the log coordinates (without the commit before them, which a run without stored offsets does not know),
    the operation, the key and the row, but not its metadata. `told`: events (silver.batch.events). `fallen`:
    `fallen_behind`.
    """
    stated = [name for name, column in feed.columns.items() if column.metadata is None]
    said = F.struct(
        *TOPIC_PARTITION,
        F.expr(log_place(feed)).alias("at"),
        F.coalesce("op", F.lit("")).alias("op"),
        F.hex("key").alias("key"),
        F.xxhash64(F.to_json(F.struct(*[f"row.{name}" for name in stated]))).alias("row"),
    ).alias("said")
    # The rows of one position of a binlog may be counted anew: that is no regression.
    at, below = coordinates(feed), "below"
    if feed.kind != "postgresql":
        at, below = f"slice({at}, 1, 2)", f"slice({below}, 1, 2)"
    is_behind = f"{STREAMED} = 1 AND {at} < {below}"
    new = told.join(F.broadcast(fallen), on=[*TOPIC_PARTITION, "run_id"], how="inner").where(is_behind)
    # Of each run by itself: a batch may have two regressions, and the later one's past is the earlier one.
    first = told.groupBy(said).agg(F.min("offset").alias("first_told"))
    is_first = F.col("first_told") >= F.col("from_offset")
    return (
        new.select("number", "from_offset", said).join(first, on="said", how="inner").where(is_first).select("number")
    )


def highest_timestamps(bronze: DataFrame, records: DataFrame) -> DataFrame:
    """topic, topic_id, partition, offset of these records, and the highest `highest_timestamp_ms` up to each.

    It is what a position by Kafka's offsets begins with, whenever the record is placed.
    """
    places = records.select(*TOPIC_PARTITION).distinct()
    up_to_here = Window.partitionBy(*TOPIC_PARTITION).orderBy("offset")
    highest = F.max(F.unix_millis("timestamp")).over(up_to_here).alias("highest_timestamp_ms")
    return (
        bronze.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        .join(F.broadcast(places), on=list(TOPIC_PARTITION), how="left_semi")
        .select(*TOPIC_PARTITION, "offset", highest)
        .join(records.select(*TOPIC_PARTITION, "offset").distinct(), on=[*TOPIC_PARTITION, "offset"], how="left_semi")
        .distinct()
    )
