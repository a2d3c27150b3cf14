"""What only bronze knows of records: whether they repeat others, and the highest timestamp before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.batches import COORDINATES
from lakehouse.contracts.models import Feed
from lakehouse.delta.tables import inline_rows
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.materialized import materialized
from silver.batch.events import events
from silver.batch.position import IS_FULL_SNAPSHOT, STREAMED, coordinates, log_place
from silver.order.facts import IN_THE_LOG
from silver.order.runs import OffsetRange, Regression, TopicPartition, offset_bounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakehouse.delta.tables import Warehouse
    from silver.order.history import History


def in_ranges(bronze: DataFrame, ranges: Mapping[TopicPartition, tuple[int, int]]) -> DataFrame:
    """The bronze rows that lie in one of these ranges of offsets, both ends included."""
    return in_parts(bronze, [(topic_partition, first, last) for topic_partition, (first, last) in ranges.items()])


def within(ranges: Sequence[OffsetRange], *, of: str = "") -> str:
    """SQL: whether a row lies between the ends of all ranges of its topic-partition, whatever the topic's id.

    `of`: what stands before `topic`, `partition` and `offset` in the names of the columns. Delta passes over the files
    that have no such row.
    """
    ends = offset_bounds(((topic, "", partition), first, last) for (topic, _topic_id, partition), first, last in ranges)
    conditions = [
        f"{of}topic = '{topic}' AND {of}partition = {partition} AND {of}offset BETWEEN {first} AND {last}"
        for (topic, _topic_id, partition), (first, last) in ends.items()
    ]
    return f"({' OR '.join(conditions) or 'false'})"


def in_parts(bronze: DataFrame, parts: Sequence[OffsetRange]) -> DataFrame:
    """The same of any number of ranges of a topic-partition. Delta passes over the files that have no such row."""
    conditions = [
        f"topic = '{topic}' AND partition = {partition} AND offset BETWEEN {first} AND {last}"
        f" AND coalesce(_topic_id, '') = '{topic_id}'"
        for (topic, topic_id, partition), first, last in parts
    ]
    return bronze.where(" OR ".join(conditions) or "false")


# A connector that is started again sends again what it sent last: so many offsets are looked at first, then so many
# times as many, and so on.
FIRST_STEP, GROWTH = 20_000, 4


def steps_back(
    read: Mapping[TopicPartition, tuple[int, int]], before: Mapping[TopicPartition, int]
) -> Iterator[tuple[dict[TopicPartition, tuple[int, int]], bool]]:
    """Ranges of offsets that reach further and further back before these; and whether they are all that was read.

    `read`: the first and the last offset of each topic-partition; every range ends with the last one.
    """
    size, is_whole = FIRST_STEP, False
    while not is_whole:
        ranges = {
            topic_partition: (max(read[topic_partition][0], offset - size), read[topic_partition][1])
            for topic_partition, offset in before.items()
        }
        is_whole = all(first == read[topic_partition][0] for topic_partition, (first, _last) in ranges.items())
        yield ranges, is_whole
        size *= GROWTH


def regressed_runs(spark: SparkSession, found: Sequence[Regression]) -> DataFrame:
    """The regressions: topic, topic_id, partition, run_id, `from_offset`, `below` and their `number`."""
    rows = [
        {
            **dict(zip(TOPIC_PARTITION, regression.topic_partition, strict=True)),
            "run_id": regression.run_id,
            "from_offset": regression.from_offset,
            "below": list(regression.below),
            "number": number,
        }
        for number, regression in enumerate(found)
    ]
    columns = f"topic STRING, topic_id STRING, partition INT, run_id STRING, from_offset BIGINT, below {COORDINATES}"
    return inline_rows(spark, rows, f"{columns}, number INT")


def unseen_changes(change_events: DataFrame, fallen: DataFrame, feed: Feed, *, is_whole: bool = True) -> DataFrame:
    """`number` of the regressions with a record behind `below` that repeats no earlier one of its topic-partition.

    `change_events`: events (silver.batch.events). `fallen`: `regressed_runs`. `is_whole`: whether `change_events` are
    all that was read; else a position far ahead cannot be known to be one, and a record counts as behind it.
    """
    identity = _identity(feed)
    # The rows of one position of a binlog may be counted anew: that is no regression.
    at, below, highest = coordinates(feed), "below", "highest"
    if feed.kind != "postgresql":
        at, below, highest = f"slice({at}, 1, 2)", f"slice({below}, 1, 2)", f"slice({highest}, 1, 2)"
    is_behind = f"{STREAMED} = 1 AND {at} < least({below}, coalesce({highest}, {below}))"
    known = fallen.withColumn("highest", F.lit(None).cast(COORDINATES))
    if is_whole:
        known = fallen.join(_sound_highs(change_events, fallen, feed), on="number", how="left")
    new = change_events.join(F.broadcast(known), on=[*TOPIC_PARTITION, "run_id"], how="inner").where(is_behind)
    # What was erased repeats every record of its place in the log: its key and its row are not known any more.
    place = F.expr(log_place(feed))
    erased = change_events.where("kind = 'erased'").select(*TOPIC_PARTITION, place.alias("place")).distinct()
    new = new.withColumn("place", place)
    new = new.join(F.broadcast(erased), on=[*TOPIC_PARTITION, "place"], how="left_anti")
    # Of each run by itself: a batch may have two regressions, and the later one's past is the earlier one.
    first = change_events.groupBy(identity).agg(F.min("offset").alias("first_seen"))
    is_first = F.col("first_seen") >= F.col("from_offset")
    return (
        new.select("number", "from_offset", identity)
        .join(first, on="said", how="inner")
        .where(is_first)
        .select("number")
    )


def _sound_highs(change_events: DataFrame, fallen: DataFrame, feed: Feed) -> DataFrame:
    """Of the regressions (`number`) the `highest` coordinates that earlier runs have in their topic-partition.

    Without a position far ahead that a later record of its run contradicts: all that follows is behind that one.
    """
    of_record = {
        "at": F.expr(f"CAST({coordinates(feed)} AS {COORDINATES})"),
        "is_streamed": F.expr(f"{STREAMED} = 1"),
    }
    of_log = change_events.withColumns(of_record).where(
        F.col("at").isNotNull() & (F.col("is_streamed") | F.expr(IS_FULL_SNAPSHOT))
    )
    record = F.struct(*TOPIC_PARTITION, "offset", "run_id", "at", "is_streamed")
    firsts = of_log.groupBy(_identity(feed)).agg(F.min_by(record, F.col("offset")).alias("first")).select("first.*")
    later = Window.partitionBy(*TOPIC_PARTITION, "run_id").orderBy(F.desc("offset"))
    lowest_later = F.min(F.when(F.col("is_streamed"), F.col("at"))).over(
        later.rowsBetween(Window.unboundedPreceding, -1)
    )
    # The rows of one position of a binlog may be counted anew: that is no contradiction.
    at, lowest = (
        ("at", "lowest_later") if feed.kind == "postgresql" else ("slice(at, 1, 2)", "slice(lowest_later, 1, 2)")
    )
    is_sound = f"NOT is_streamed OR {at} <= coalesce({lowest}, {at})"
    sound = firsts.withColumn("lowest_later", lowest_later).where(is_sound)
    regressed = fallen.select(*TOPIC_PARTITION, F.col("run_id").alias("regressed"), "from_offset", "number")
    return (
        sound.join(F.broadcast(regressed), on=list(TOPIC_PARTITION), how="inner")
        .where("run_id <> regressed AND offset < from_offset")
        .groupBy("number")
        .agg(F.max("at").alias("highest"))
    )


def _identity(feed: Feed) -> Column:
    """What is equal in a record and in one that repeats it.

    The log coordinates (without the commit before them, which a run without stored offsets does not know), the
    operation, the key and the row, but not its metadata.
    """
    stated = [name for name, column in feed.columns.items() if column.metadata is None]
    return F.struct(
        *TOPIC_PARTITION,
        F.expr(log_place(feed)).alias("at"),
        F.coalesce("op", F.lit("")).alias("op"),
        F.hex("key").alias("key"),
        F.xxhash64(F.to_json(F.struct(*[f"row.{name}" for name in stated]))).alias("row"),
    ).alias("said")


# What is known of the topic-partitions of records without a run (silver.order.history.History.nameless).
NAMELESS = f"""
    topic STRING, topic_id STRING, partition INT, read_to BIGINT, highest_streamed {COORDINATES}, highest {COORDINATES}
"""


def nameless_regressions(judged: DataFrame, known: DataFrame, feed: Feed) -> DataFrame:
    """topic, topic_id, partition, offset and `identity` of the records without a run whose coordinates fall.

    A streamed change behind one at a lower offset: a transaction may be older than the snapshot during which it was
    open. Behind a snapshot where that came first, but for PostgreSQL, where such transactions are. And a row of a full
    snapshot behind any. `known` (NAMELESS): the highest of earlier batches.
    """
    before = Window.partitionBy(*TOPIC_PARTITION).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    is_new = F.col("offset") > F.col("read_to")
    of_log = judged.where((F.col("run_id") == "") & F.col("kind").isin(*IN_THE_LOG)).withColumns(
        {"at": F.expr(f"CAST({coordinates(feed)} AS {COORDINATES})"), "is_streamed": F.expr(f"{STREAMED} = 1")}
    )
    of_log = of_log.where(F.col("at").isNotNull() & (F.col("is_streamed") | F.expr(IS_FULL_SNAPSHOT)))
    highs = {
        "streamed_before": F.max(F.when(F.col("is_streamed"), F.col("at"))).over(before),
        "any_before": F.max("at").over(before),
    }
    of_streamed, of_any = "greatest(streamed_before, highest_streamed)", "greatest(any_before, highest)"
    if feed.kind != "postgresql":
        of_streamed = f"coalesce({of_streamed}, {of_any})"
    return (
        of_log.join(F.broadcast(known), on=[*TOPIC_PARTITION], how="inner")
        .where(is_new)
        .withColumns(highs)
        .where(F.expr(f"coalesce(at < IF(is_streamed, {of_streamed}, {of_any}), false)"))
        .select(*TOPIC_PARTITION, "offset", _identity(feed))
    )


def nameless_falls(warehouse: Warehouse, judged: DataFrame, past: History) -> dict[TopicPartition, tuple[int, int]]:
    """Of every topic-partition in which coordinates fall in records without a run, and the records repeat none: the
    first offset of these, and how many there are. `past`: the history with the batch.
    """
    rows, feed = past.nameless(), past.feed
    if not rows:
        return {}
    known = inline_rows(warehouse.spark, rows, NAMELESS)
    bronze, read = warehouse.read(f"bronze.{feed.source}_events"), past.read_ranges()
    with ExitStack() as stack:
        fallen = stack.enter_context(materialized(nameless_regressions(judged, known, feed)))
        counted = _counted(fallen)
        for ranges, is_whole in steps_back(
            read, {topic_partition: first for topic_partition, (first, _records) in counted.items()}
        ):
            change_events = events(in_ranges(bronze, ranges), feed)
            fallen = stack.enter_context(materialized(repeats_nothing(change_events, fallen, feed)))
            counted = _counted(fallen)
            if is_whole or not counted:
                break
    return counted


def _counted(fallen: DataFrame) -> dict[TopicPartition, tuple[int, int]]:
    """By topic-partition the first offset, and how many records there are."""
    counts = F.min("offset").alias("first"), F.count(F.lit(1)).alias("records")
    rows = fallen.groupBy(*TOPIC_PARTITION).agg(*counts).collect()
    return {(row["topic"], row["topic_id"], row["partition"]): (row["first"], row["records"]) for row in rows}


def repeats_nothing(change_events: DataFrame, fallen: DataFrame, feed: Feed) -> DataFrame:
    """Of `nameless_regressions` those that repeat no earlier record of their topic-partition."""
    first = change_events.groupBy(_identity(feed)).agg(F.min("offset").alias("first_seen"))
    return fallen.join(first, on="said", how="inner").where(F.col("first_seen") >= F.col("offset")).drop("first_seen")


def highest_timestamps(bronze: DataFrame, records: DataFrame) -> DataFrame:
    """topic, topic_id, partition, offset of these records, and the highest `highest_timestamp_ms` up to each.

    It is what a position by Kafka's offsets begins with, whenever the record is placed.
    """
    position_contexts = records.select(*TOPIC_PARTITION).distinct()
    up_to_here = Window.partitionBy(*TOPIC_PARTITION).orderBy("offset")
    highest = F.max(F.unix_millis("timestamp")).over(up_to_here).alias("highest_timestamp_ms")
    return (
        bronze.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        .join(F.broadcast(position_contexts), on=list(TOPIC_PARTITION), how="left_semi")
        .select(*TOPIC_PARTITION, "offset", highest)
        .join(records.select(*TOPIC_PARTITION, "offset").distinct(), on=[*TOPIC_PARTITION, "offset"], how="left_semi")
        .distinct()
    )
