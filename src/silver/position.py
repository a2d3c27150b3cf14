"""Where a change stands in its source's history: one comparable struct a kind of source, the last field an offset.

Positions compare field by field, from the first. The rules and the histories that break simpler ones are in
docs/ordering.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts import Feed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

POSTGRES = "STRUCT<ordered_lsn: BIGINT, streamed: BIGINT, commit_lsn: BIGINT, lsn: BIGINT, kafka_offset: BIGINT>"
MYSQL = "STRUCT<binlog_file: BIGINT, binlog_pos: BIGINT, binlog_row: BIGINT, streamed: BIGINT, kafka_offset: BIGINT>"
KAFKA = "STRUCT<timestamp_ms: BIGINT, kafka_topic: STRING, kafka_partition: INT, kafka_offset: BIGINT>"

FULL_SNAPSHOT = ("true", "first", "last", "first_in_data_collection", "last_in_data_collection")
RUN = ("topic", "partition", "run_id")


def position_type(feed: Feed) -> str:
    """The Spark type of `_position` in this feed's silver table."""
    if feed.sequence_by == "kafka_offset":
        return KAFKA
    return POSTGRES if feed.kind == "postgresql" else MYSQL


def postgres_position(snapshot_lsn: Column) -> Column:
    """PostgreSQL: (max(c, S), streamed, c, lsn, offset); NULL without an LSN.

    `source.sequence` is `["<last commit lsn>","<lsn>"]`; c is the later of the two, the lsn alone where the connector
    has no stored offsets yet and the first is null. S is `snapshot_lsn`: the LSN of this run's full snapshot, for a
    change that was streamed after it; a transaction that was open while the slot was created has a lower LSN than the
    snapshot's rows, and yet comes later.
    """
    sequence = F.from_json("source.sequence", "ARRAY<STRING>")
    lsn = F.coalesce(F.get(sequence, F.lit(1)).try_cast("bigint"), F.col("source.lsn"))
    last_commit = F.get(sequence, F.lit(0)).try_cast("bigint")
    commit = F.greatest(last_commit, lsn)
    streamed = _streamed()
    ordered = F.when(streamed == 1, F.greatest(commit, snapshot_lsn)).otherwise(commit)
    position = F.struct(
        ordered.alias("ordered_lsn"),
        streamed.alias("streamed"),
        commit.alias("commit_lsn"),
        lsn.alias("lsn"),
        F.col("offset").alias("kafka_offset"),
    )
    return F.when(lsn.isNotNull(), position)


def mysql_position() -> Column:
    """MySQL and MariaDB: (number of the binlog file, pos, row, streamed, offset); NULL without file or pos.

    The number is compared as an integer: mysql-bin.999999 is followed by mysql-bin.1000000. All rows of one statement
    share a pos.
    """
    file = F.regexp_extract("source.file", r"\.([0-9]+)$", 1).try_cast("bigint")
    position = F.struct(
        file.alias("binlog_file"),
        F.col("source.pos").alias("binlog_pos"),
        F.coalesce("source.row", F.lit(0).cast("bigint")).alias("binlog_row"),
        _streamed().alias("streamed"),
        F.col("offset").alias("kafka_offset"),
    )
    return F.when(file.isNotNull() & F.col("source.pos").isNotNull(), position)


def kafka_position(timestamp_before: Column) -> Column:
    """Events without a source position: (timestamp, topic, partition, offset).

    Within a partition the offset decides, so the timestamp is the highest one up to this record, `timestamp_before`
    being the highest of earlier batches; across partitions the timestamp does.
    """
    up_to_here = Window.partitionBy("topic", "partition").orderBy("offset")
    highest = F.max(F.unix_millis("timestamp")).over(up_to_here)
    return F.struct(
        F.greatest(highest, timestamp_before).alias("timestamp_ms"),
        F.col("topic").alias("kafka_topic"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
    )


def with_position(changes: DataFrame, feed: Feed, *, runs: DataFrame, read: DataFrame) -> DataFrame:
    """The changes with `position`.

    `runs`: topic, partition, run_id, first_snapshot_offset, snapshot_lsn of every connector run up to this batch.
    `read`: topic, partition, highest_timestamp_ms of what was read of each partition before this batch.
    """
    if feed.sequence_by == "kafka_offset":
        return (
            changes.join(F.broadcast(read), on=["topic", "partition"], how="left")
            .withColumn("position", kafka_position(F.col("highest_timestamp_ms")))
            .drop("highest_timestamp_ms")
        )
    if feed.kind != "postgresql":
        return changes.withColumn("position", mysql_position())
    snapshot_lsn = F.when(F.col("offset") > F.col("first_snapshot_offset"), F.col("snapshot_lsn"))
    return (
        changes.join(F.broadcast(runs), on=list(RUN), how="left")
        .withColumn("position", postgres_position(snapshot_lsn))
        .drop("first_snapshot_offset", "snapshot_lsn")
    )


def has_position(feed: Feed) -> Column:
    """Whether the record carries what its position is made of."""
    if feed.sequence_by == "kafka_offset":
        return F.lit(True)
    if feed.kind != "postgresql":
        return mysql_position().isNotNull()
    return postgres_position(F.lit(None).cast("bigint")).isNotNull()


def _streamed() -> Column:
    """1 for a change that was streamed, 0 for a row of a snapshot: at an equal position the streamed one is later."""
    snapshot = F.coalesce(F.col("source.snapshot"), F.lit("false"))
    return F.when(snapshot == "false", 1).otherwise(0).cast("bigint")
