"""What only bronze can tell: whether records repeat others, and the whole story of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from lakehouse.tables import small_table
from silver.changelog import as_gone_below_floors, latest_per_key
from silver.position import COORDINATES, coordinates, log_place, place_of, streamed
from silver.runs import Fall, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAMAGED = "Its source position is ahead of that of a later change of the same key in the same connector run."
_IN_PLACE = ("topic", "topic_id", "partition")


def in_ranges(bronze: DataFrame, ranges: Mapping[Place, tuple[int, int]]) -> DataFrame:
    """The bronze rows that lie in one of these ranges of offsets, both ends included."""
    rows = [
        {**dict(zip(_IN_PLACE, place, strict=True)), "first": first, "last": last}
        for place, (first, last) in ranges.items()
    ]
    columns = "topic STRING, topic_id STRING, partition INT, first BIGINT, last BIGINT"
    wanted = small_table(bronze.sparkSession, rows, columns).withColumnRenamed("topic_id", "wanted_id")
    topics = {topic for topic, _topic_id, _partition in ranges}
    is_of_topic = F.col("wanted_id") == F.coalesce("_topic_id", F.lit(""))
    return (
        bronze.where(F.col("topic").isin(*topics))  # files of other topics are skipped
        .join(F.broadcast(wanted), on=["topic", "partition"], how="inner")
        .where(is_of_topic & F.col("offset").between(F.col("first"), F.col("last")))
        .drop("wanted_id", "first", "last")
    )


def fallen_behind(spark: SparkSession, found: Sequence[Fall]) -> DataFrame:
    """The runs that fall behind: topic, topic_id, partition, run_id, `from_offset`, `below` and their `number`."""
    rows = [
        {
            **dict(zip(_IN_PLACE, fall.place, strict=True)),
            "run_id": fall.run_id,
            "from_offset": fall.from_offset,
            "below": list(fall.below),
            "number": number,
        }
        for number, fall in enumerate(found)
    ]
    columns = f"topic STRING, topic_id STRING, partition INT, run_id STRING, from_offset BIGINT, below {COORDINATES}"
    return small_table(spark, rows, f"{columns}, number INT")


def not_told_before(told: DataFrame, fallen: DataFrame, feed: Feed) -> DataFrame:
    """`number` of the runs that have told something behind `below` which no earlier record of their place has told.

    Equal are the place in the log (without the commit before it, which a run without stored offsets does not know),
    the operation, the key and the row. `told`: events (silver.envelope). `fallen`: `fallen_behind`.
    """
    said = F.struct(
        *_IN_PLACE,
        log_place(feed).alias("at"),
        F.coalesce("op", F.lit("")).alias("op"),
        F.hex("key").alias("key"),
        F.xxhash64(F.to_json(F.col("after"))).alias("row"),
    ).alias("said")
    is_behind = (streamed() == 1) & (coordinates(feed) < F.col("below"))
    new = told.join(F.broadcast(fallen), on=[*_IN_PLACE, "run_id"], how="inner").where(is_behind)
    places = fallen.groupBy(*_IN_PLACE).agg(F.max("from_offset").alias("from_offset"))
    old = told.join(F.broadcast(places), on=list(_IN_PLACE), how="inner").where(F.col("offset") < F.col("from_offset"))
    return new.select("number", said).join(old.select(said).distinct(), on="said", how="left_anti").select("number")


def damaged(placed: DataFrame, feed: Feed) -> DataFrame:
    """topic, topic_id, partition, offset of the records whose position is ahead of a later one of their key and run.

    In one run a partition has a key's changes in the order of the log, so the later one is right. What only repeats
    an earlier record, place in the log and operation, tells nothing; what repeats a damaged one is damaged too.
    `placed`: all records of these keys.
    """
    same_record = Window.partitionBy(*_IN_PLACE, "key", "op", place_of(F.col("position"), feed))
    later = Window.partitionBy(*_IN_PLACE, "key", "run_id").orderBy("offset").rowsBetween(1, Window.unboundedFollowing)
    is_told_by_run = (F.col("kind") == "change") & (streamed() == 1) & (F.col("run_id") != "") & ~F.col("is_tombstone")
    is_first = F.col("offset") == F.min("offset").over(same_record)
    lowest_later = F.min(F.when(F.col("is_first"), F.col("position"))).over(later)
    is_ahead = F.col("is_first") & (F.col("position") > F.col("lowest_later"))
    return (
        placed.where(is_told_by_run)
        .withColumn("is_first", is_first)
        .withColumn("lowest_later", lowest_later)
        .withColumn("is_damaged", F.max(F.coalesce(is_ahead, F.lit(False))).over(same_record))
        .where("is_damaged")
        .select(*_IN_PLACE, "offset")
        .distinct()
    )


def set_aside(quarantine: DataFrame, feed: Feed) -> DataFrame:
    """topic, partition, offset of the feed's records that were found damaged, with `is_set_aside`."""
    is_of_feed = (F.col("source") == feed.source) & (F.col("feed") == feed.name)
    found = quarantine.where(is_of_feed & F.array_contains("reasons", DAMAGED))
    return found.select("topic", "partition", "offset", F.lit(True).alias("is_set_aside")).distinct()


def without(placed: DataFrame, records: DataFrame) -> DataFrame:
    """The placed records but these."""
    return placed.join(records, on=[*_IN_PLACE, "offset"], how="left_anti")


def rows_from(placed: DataFrame, feed: Feed) -> DataFrame:
    """The silver rows that all records of some keys lead to."""
    return latest_per_key(as_gone_below_floors(placed.where(F.col("kind") == "change")), feed)
