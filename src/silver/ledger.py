"""What the silver job writes down about every batch, so that every record read is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.tables import TableSpec
from silver.position import FULL_SNAPSHOT, RUN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# One row a batch, topic-partition and connector run: read = changes + tombstones + ignored + quarantined.
LEDGER = TableSpec(
    name="ops.ledger",
    columns="""
        run STRING, source STRING, batch BIGINT, feed STRING, topic STRING, partition INT, run_id STRING,
        first_offset BIGINT, last_offset BIGINT,
        read BIGINT, changes BIGINT, tombstones BIGINT, ignored BIGINT, quarantined BIGINT,
        judged BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>, written_at TIMESTAMP
    """,
)

# What positions depend on: the full snapshot that a connector run opened with, and, for feeds without positions, the
# highest timestamp of every stretch of a partition.
CONNECTOR_RUNS = TableSpec(
    name="ops.connector_runs",
    columns="""
        source STRING, topic STRING, partition INT, run_id STRING, first_offset BIGINT, last_offset BIGINT,
        first_snapshot_offset BIGINT, snapshot_lsn BIGINT, highest_timestamp_ms BIGINT
    """,
)

# Where every event of an outbox was first seen: a connector that replays sends it again under a new offset.
OUTBOX_EVENTS = TableSpec(
    name="ops.outbox_events",
    columns="source STRING, feed STRING, event_id STRING, topic STRING, partition INT, offset BIGINT",
    partition_by=("source",),
)

QUARANTINE = TableSpec(
    name="quality.quarantine",
    columns="""
        source STRING, feed STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,
        reasons ARRAY<STRING>, rules ARRAY<STRING>,
        key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, quarantined_at TIMESTAMP
    """,
    partition_by=("source",),
)

TABLES = (LEDGER, CONNECTOR_RUNS, OUTBOX_EVENTS, QUARANTINE)

KINDS = ("read", "changes", "tombstones", "ignored", "quarantined")
COUNTS = """
    feed STRING, topic STRING, partition INT, run_id STRING, first_offset BIGINT, last_offset BIGINT,
    read BIGINT, changes BIGINT, tombstones BIGINT, ignored BIGINT, quarantined BIGINT,
    judged BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>,
    first_snapshot_offset BIGINT, snapshot_lsn BIGINT, highest_timestamp_ms BIGINT
"""
COUNT_NAMES = (
    *("feed", "topic", "partition", "run_id", "first_offset", "last_offset"),
    *KINDS,
    *("judged", "failed_rules", "absent_columns", "first_snapshot_offset", "snapshot_lsn", "highest_timestamp_ms"),
)


def counts(judged: DataFrame, *, feed: str, rules: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """One row (COUNTS) a topic-partition and connector run: its records by kind, its snapshot, how often rules failed.

    `absent_columns`: how many of the judged rows had no field for each of `columns`, where some had none.
    Small: its size does not grow with the number of records.
    """
    is_snapshot = F.col("source.snapshot").isin(*FULL_SNAPSHOT)
    failed = [
        part
        for rule in rules
        for part in (F.lit(rule), F.count_if(F.array_contains("failed_rules", rule)).cast("bigint"))
    ]
    absent = [
        part
        for column in columns
        for part in (F.lit(column), F.count_if(F.array_contains("absent", column)).cast("bigint"))
    ]
    some = F.map_filter(F.create_map(*absent).cast("map<string,bigint>"), lambda _column, times: times > 0)
    return judged.groupBy(*RUN).agg(
        F.lit(feed).alias("feed"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.count(F.lit(1)).alias("read"),
        _of_kind("change").alias("changes"),
        _of_kind("tombstone").alias("tombstones"),
        _of_kind("ignored").alias("ignored"),
        _of_kind("quarantined").alias("quarantined"),
        F.count_if("is_judged").alias("judged"),
        F.create_map(*failed).cast("map<string,bigint>").alias("failed_rules"),
        some.alias("absent_columns"),
        F.min(F.when(is_snapshot, F.col("offset"))).alias("first_snapshot_offset"),
        F.max(F.when(is_snapshot, F.col("source.lsn"))).alias("snapshot_lsn"),
        F.max(F.unix_millis("timestamp")).alias("highest_timestamp_ms"),
    )


def ignored_counts(records: DataFrame) -> DataFrame:
    """The same for records of topics that belong to no feed (heartbeat topics): read, and ignored by policy."""
    zero, none = F.lit(0).cast("bigint"), F.lit(None).cast("bigint")
    return records.groupBy("topic", "partition", F.lit("").alias("run_id")).agg(
        F.lit(None).cast("string").alias("feed"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.count(F.lit(1)).alias("read"),
        zero.alias("changes"),
        zero.alias("tombstones"),
        F.count(F.lit(1)).alias("ignored"),
        zero.alias("quarantined"),
        zero.alias("judged"),
        F.create_map().cast("map<string,bigint>").alias("failed_rules"),
        F.create_map().cast("map<string,bigint>").alias("absent_columns"),
        none.alias("first_snapshot_offset"),
        none.alias("snapshot_lsn"),
        none.alias("highest_timestamp_ms"),
    )


def ledger_rows(counted: DataFrame, *, run: str, source: str, batch_id: int) -> DataFrame:
    """Rows of `ops.ledger` for one batch."""
    return counted.select(
        F.lit(run).alias("run"),
        F.lit(source).alias("source"),
        F.lit(batch_id).cast("bigint").alias("batch"),
        "feed",
        *RUN,
        "first_offset",
        "last_offset",
        *KINDS,
        "judged",
        "failed_rules",
        "absent_columns",
        F.current_timestamp().alias("written_at"),
    )


def connector_run_rows(counted: DataFrame, *, source: str, timed_feeds: Sequence[str]) -> DataFrame:
    """Rows of `ops.connector_runs` for one batch, where it has any: snapshots, and timestamps of `timed_feeds`."""
    is_needed = F.col("first_snapshot_offset").isNotNull() | F.col("feed").isin(*timed_feeds)
    return counted.where(is_needed).select(
        F.lit(source).alias("source"),
        *RUN,
        "first_offset",
        "last_offset",
        "first_snapshot_offset",
        "snapshot_lsn",
        "highest_timestamp_ms",
    )


def snapshots(seen: DataFrame) -> DataFrame:
    """Rows of `ops.connector_runs` to one row a run: topic, partition, run_id, first_snapshot_offset, snapshot_lsn."""
    return seen.groupBy(*RUN).agg(
        F.min("first_snapshot_offset").alias("first_snapshot_offset"),
        F.max("snapshot_lsn").alias("snapshot_lsn"),
    )


def timestamps_before(seen: DataFrame, counted: DataFrame) -> DataFrame:
    """topic, partition, highest_timestamp_ms: the highest timestamp of each partition before this batch's records."""
    starts = counted.groupBy("topic", "partition").agg(F.min("first_offset").alias("start"))
    return (
        seen.join(starts, on=["topic", "partition"], how="inner")
        .where(F.col("last_offset") < F.col("start"))
        .groupBy("topic", "partition")
        .agg(F.max("highest_timestamp_ms").alias("highest_timestamp_ms"))
    )


def ever_present(ledger: DataFrame, *, feed: str, columns: Sequence[str]) -> DataFrame:
    """One row: `judged`, the rows of the feed so far, and of each column how many of them had a field for it."""
    present = [
        F.coalesce(
            F.sum(F.col("judged") - F.coalesce(F.try_element_at("absent_columns", F.lit(c)), F.lit(0))), F.lit(0)
        )
        for c in columns
    ]
    judged = F.coalesce(F.sum("judged"), F.lit(0)).alias("judged")
    named = [count.alias(column) for column, count in zip(columns, present, strict=True)]
    return ledger.where(F.col("feed") == feed).agg(judged, *named)


def rule_counts(ledger: DataFrame, *, run: str) -> DataFrame:
    """source, feed, rule, evaluated, failed: how every row rule came out over all batches of a run."""
    return (
        ledger.where((F.col("run") == run) & F.col("feed").isNotNull())
        .select("source", "feed", "judged", F.explode("failed_rules").alias("rule", "times"))
        .groupBy("source", "feed", "rule")
        .agg(F.sum("judged").alias("evaluated"), F.sum("times").alias("failed"))
    )


def quarantine_rows(judged: DataFrame, *, source: str, feed: str) -> DataFrame:
    """The quarantined records of a feed as rows of `quality.quarantine`: raw, with every reason."""
    return judged.where(F.col("kind") == "quarantined").select(
        F.lit(source).alias("source"),
        F.lit(feed).alias("feed"),
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("problems").alias("reasons"),
        F.col("failed_rules").alias("rules"),
        "key",
        "value",
        "headers",
        F.current_timestamp().alias("quarantined_at"),
    )


def _of_kind(kind: str) -> Column:
    return F.count_if(F.col("kind") == kind)
