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

POSTGRES = (
    "STRUCT<epoch: BIGINT, ordered_lsn: BIGINT, streamed: BIGINT, commit_lsn: BIGINT, lsn: BIGINT,"
    " kafka_offset: BIGINT>"
)
MYSQL = (
    "STRUCT<epoch: BIGINT, binlog_file: BIGINT, binlog_pos: BIGINT, binlog_row: BIGINT, streamed: BIGINT,"
    " kafka_offset: BIGINT>"
)
KAFKA = "STRUCT<timestamp_ms: BIGINT, kafka_topic: STRING, kafka_partition: INT, kafka_offset: BIGINT>"

FULL_SNAPSHOT = ("true", "first", "last", "first_in_data_collection", "last_in_data_collection")
# Of these, the ones that end a table's snapshot.
END_OF_SNAPSHOT = ("last", "last_in_data_collection")
COORDINATES = "ARRAY<BIGINT>"

# What is known of the partitions of a feed when a batch is placed; see silver.runs.
# `runs`: from which offset on a run has the place, its epoch, and up to which coordinates it repeats what earlier ones
# told. Without a name (run_id is empty) a record is of the epoch that its offset lies in.
PLACES = f"""
    topic STRING, topic_id STRING, partition INT, epochs ARRAY<STRUCT<from_offset: BIGINT, epoch: BIGINT>>,
    snapshots ARRAY<STRUCT<run_id: STRING, epoch: BIGINT, from_offset: BIGINT, lsn: BIGINT, read_from_ms: BIGINT>>,
    runs ARRAY<STRUCT<run_id: STRING, epoch: BIGINT, from_offset: BIGINT, repeats_to: {COORDINATES}>>,
    highest_timestamp_ms BIGINT
"""


def position_type(feed: Feed) -> str:
    """The Spark type of `_position` in this feed's silver table."""
    if feed.sequence_by == "kafka_offset":
        return KAFKA
    return POSTGRES if feed.kind == "postgresql" else MYSQL


def coordinates(feed: Feed) -> Column:
    """What the source itself says of a change's place, as an array that compares as positions do; NULL without.

    PostgreSQL: the later of the last commit and the LSN, and the LSN. MySQL and MariaDB: file, position and row.
    """
    if feed.kind == "postgresql":
        parts = [_commit_lsn(), _lsn()]
    else:
        parts = [_binlog_file(), F.col("source.pos"), _binlog_row()]
    present = parts[0].isNotNull()
    for part in parts[1:]:
        present = present & part.isNotNull()
    return F.when(present & ~is_negative(feed), F.array(*parts))


def is_negative(feed: Feed) -> Column:
    """Whether the source block names a place before the beginning of every log."""
    parts = [_lsn(), _sequence(0)] if feed.kind == "postgresql" else [F.col("source.pos"), F.col("source.row")]
    found = F.lit(False)
    for part in parts:
        found = found | F.coalesce(part < 0, F.lit(False))
    return found


def log_place(feed: Feed) -> Column:
    """The coordinates without PostgreSQL's commit, which a run without stored offsets does not know; NULL without."""
    return F.when(_lsn().isNotNull(), F.array(_lsn())) if feed.kind == "postgresql" else coordinates(feed)


def postgres_position(*, epoch: Column, snapshot_lsn: Column) -> Column:
    """PostgreSQL: (epoch, max(c, S), streamed, c, lsn, offset); NULL without an LSN.

    `source.sequence` is `["<last commit lsn>","<lsn>"]`; c is the later of the two, the lsn alone where the connector
    has no stored offsets yet and the first is null. S is `snapshot_lsn`: the LSN of the run's full snapshot, for a
    change that was streamed after it; a transaction that was open while the slot was created has a lower LSN than the
    snapshot's rows, and yet comes later. A connector that stopped between the snapshot and its first commit tells that
    transaction in its next run, still with a null.
    """
    commit, is_streamed = _commit_lsn(), streamed()
    ordered = F.when(is_streamed == 1, F.greatest(commit, snapshot_lsn)).otherwise(commit)
    position = F.struct(
        epoch.alias("epoch"),
        ordered.alias("ordered_lsn"),
        is_streamed.alias("streamed"),
        commit.alias("commit_lsn"),
        _lsn().alias("lsn"),
        F.col("offset").alias("kafka_offset"),
    )
    return F.when(_lsn().isNotNull(), position)


def mysql_position(*, epoch: Column) -> Column:
    """MySQL and MariaDB: (epoch, number of the binlog file, pos, row, streamed, offset); NULL without file or pos.

    The number is compared as an integer: mysql-bin.999999 is followed by mysql-bin.1000000. All rows of one statement
    share a pos.
    """
    position = F.struct(
        epoch.alias("epoch"),
        _binlog_file().alias("binlog_file"),
        F.col("source.pos").alias("binlog_pos"),
        _binlog_row().alias("binlog_row"),
        streamed().alias("streamed"),
        F.col("offset").alias("kafka_offset"),
    )
    return F.when(_binlog_file().isNotNull() & F.col("source.pos").isNotNull(), position)


def kafka_position(timestamp_before: Column) -> Column:
    """Events without a source position: (timestamp, topic, partition, offset).

    Within a partition the offset decides, so the timestamp is the highest one up to this record, `timestamp_before`
    being the highest of earlier batches; across partitions the timestamp does.
    """
    up_to_here = Window.partitionBy("topic", "topic_id", "partition").orderBy("offset")
    highest = F.max(F.unix_millis("timestamp")).over(up_to_here)
    return F.struct(
        F.greatest(highest, timestamp_before).alias("timestamp_ms"),
        F.col("topic").alias("kafka_topic"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
    )


def with_position(
    changes: DataFrame, feed: Feed, *, places: DataFrame, highest_timestamps: DataFrame | None = None
) -> DataFrame:
    """The changes with `position`, `is_replay` (an earlier run has told it) and `run_from` (the run's first offset).

    `places` (PLACES): what is known of every topic-partition. `highest_timestamps` (silver.from_bronze): of records
    that are not the last ones of their places, where the feed goes by Kafka's offsets.
    """
    placed = changes.join(F.broadcast(places), on=["topic", "topic_id", "partition"], how="left")
    if highest_timestamps is not None:
        of_record = ["topic", "topic_id", "partition", "offset"]
        placed = placed.drop("highest_timestamp_ms").join(highest_timestamps, on=of_record, how="left")
    run = F.get("runs", F.array_position("runs.run_id", F.col("run_id")).cast("int") - 1)
    if feed.sequence_by == "kafka_offset":
        position, is_replay = kafka_position(F.col("highest_timestamp_ms")), F.lit(False)
    else:
        position = _source_position(feed, run)
        is_replay = F.coalesce((streamed() == 1) & (coordinates(feed) <= run["repeats_to"]), F.lit(False))
    return placed.withColumns({"position": position, "is_replay": is_replay, "run_from": run["from_offset"]}).drop(
        "epochs", "snapshots", "runs", "highest_timestamp_ms"
    )


def _source_position(feed: Feed, run: Column) -> Column:
    # Spark interprets what goes through an array, so only where there is something in it.
    has_epochs, has_snapshots = F.size("epochs") > 0, F.size("snapshots") > 0
    begun = F.filter("epochs", lambda one: one["from_offset"] <= F.col("offset"))
    by_offset = F.when(has_epochs, F.array_max(F.transform(begun, lambda one: one["epoch"])))
    epoch = F.coalesce(run["epoch"], by_offset, F.lit(0).cast("bigint"))
    if feed.kind != "postgresql":
        return mysql_position(epoch=epoch)
    # A record may be sent again much later. So of earlier runs, those before the record's own, in its epoch; and of
    # snapshots in the middle of its run, those that the connector took before it read the record.
    run_begins = F.when(F.col("run_id") == "", F.col("offset")).otherwise(run["from_offset"])
    asks_earlier_runs = _sequence(0).isNull()

    def opens_run(one: Column) -> Column:
        return (F.col("run_id") != "") & (one["from_offset"] == run["from_offset"])

    def was_read_later(one: Column) -> Column:
        return F.coalesce(F.col("read_ms") >= one["read_from_ms"], F.lit(True))

    def is_of_run(one: Column) -> Column:
        return (one["run_id"] == F.col("run_id")) & (one["from_offset"] < F.col("offset"))

    before = F.filter(
        "snapshots",
        lambda one: (
            (is_of_run(one) & (opens_run(one) | was_read_later(one)))
            | (asks_earlier_runs & (one["epoch"] == epoch) & (one["from_offset"] < run_begins))
        ),
    )
    lsn = F.when(has_snapshots, F.array_max(F.transform(before, lambda one: one["lsn"])))
    return postgres_position(epoch=epoch, snapshot_lsn=lsn)


def same_place(position: str, other: str, feed: Feed) -> str:
    """SQL: whether two positions differ in nothing but the offset."""
    return "(" + " AND ".join(f"{position}.{field} <=> {other}.{field}" for field in _place_fields(feed)) + ")"


def at_offset(position: Column, offset: Column, feed: Feed) -> Column:
    """The same place in the source's history, at another Kafka offset; NULL of none."""
    # Not withField: Spark 4.1 fails to plan it in some joins and windows.
    fields = [position[field].alias(field) for field in _place_fields(feed)]
    return F.when(position.isNotNull(), F.struct(*fields, offset.cast("bigint").alias("kafka_offset")))


def place_of(position: Column, feed: Feed) -> Column:
    """The place in the source's history alone, without the Kafka offset."""
    return F.struct(*[position[field].alias(field) for field in _place_fields(feed)])


def _place_fields(feed: Feed) -> list[str]:
    return [part.split(":")[0].strip() for part in position_type(feed)[len("STRUCT<") : -1].split(",")][:-1]


def has_position(feed: Feed) -> Column:
    """Whether the record carries what its position is made of."""
    return F.lit(True) if feed.sequence_by == "kafka_offset" else coordinates(feed).isNotNull()


def is_full_snapshot() -> Column:
    """Whether the record is a row of a snapshot of the whole table."""
    return F.coalesce(F.col("source.snapshot").isin(*FULL_SNAPSHOT), F.lit(False))


def streamed() -> Column:
    """1 for a change that was streamed, 0 for a row of a snapshot: at an equal position the streamed one is later."""
    snapshot = F.coalesce(F.col("source.snapshot"), F.lit("false"))
    return F.when(snapshot == "false", 1).otherwise(0).cast("bigint")


def _sequence(element: int) -> Column:
    return F.get("source.sequence", F.lit(element)).try_cast("bigint")


def _lsn() -> Column:
    return F.coalesce(_sequence(1), F.col("source.lsn"))


def _commit_lsn() -> Column:
    return F.greatest(_sequence(0), _lsn())


def _binlog_file() -> Column:
    return F.regexp_extract("source.file", r"\.([0-9]+)$", 1).try_cast("bigint")


def _binlog_row() -> Column:
    return F.coalesce("source.row", F.lit(0).cast("bigint"))
