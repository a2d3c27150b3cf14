"""What the silver job writes down about every batch, so that every record read is accounted for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from lakehouse.tables import TableSpec
from silver.position import COORDINATES, END_OF_SNAPSHOT, coordinates, is_full_snapshot, streamed
from silver.runs import Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Every record read is exactly one of these.
OUTCOMES = ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")

# One row a batch, feed and topic-partition: read = the sum of OUTCOMES; `gaps` are the offsets between that no record
# of the feed has: compaction leaves them, and records of another feed that shares the topic. A later batch that learns
# better of a record moves it from one outcome to another, in a row of its own that reads none.
# `checkpoint`: the identity of silver's checkpoint; a silver that is made anew from bronze has another one.
LEDGER = TableSpec(
    name="ops.ledger",
    columns="""
        run STRING, source STRING, checkpoint STRING, batch BIGINT, feed STRING,
        topic STRING, topic_id STRING, partition INT, first_offset BIGINT, last_offset BIGINT,
        read BIGINT, applied BIGINT, superseded BIGINT, duplicate BIGINT, tombstone BIGINT, ignored BIGINT,
        quarantined BIGINT, gaps ARRAY<STRUCT<first: BIGINT, last: BIGINT>>,
        judged BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>, written_at TIMESTAMP
    """,
)

# What positions, epochs and floors depend on: one row a stretch of a connector run (see silver.runs), over all that
# silver has read. Every batch puts its own in the place of the source's rows, so the table does not grow with batches:
# the rows as they were before it, and as they are after it (the highest `generation`). A batch that is repeated
# (`writer`, `number`) begins with those before it.
STRETCHES = f"""
    feed STRING, topic STRING, topic_id STRING, partition INT, run_id STRING,
    snapshot_at {COORDINATES}, first_offset BIGINT, last_offset BIGINT, lowest {COORDINATES},
    highest {COORDINATES}, has_end BOOLEAN,
    first_ms BIGINT, read_from_ms BIGINT, read_to_ms BIGINT, source_names ARRAY<STRING>,
    highest_timestamp_ms BIGINT, last_key BIGINT, last_is_delete BOOLEAN, leaving_out BIGINT,
    judged BIGINT, absent_columns MAP<STRING, BIGINT>
"""
CONNECTOR_RUNS = TableSpec(
    name="ops.connector_runs",
    columns=f"source STRING, checkpoint STRING, generation BIGINT, writer STRING, number BIGINT, {STRETCHES}",
    partition_by=("source",),
)

# The connector runs with which a source's coordinates have started again, in every partition.
EPOCHS = TableSpec(
    name="ops.epochs",
    columns="""
        source STRING, feed STRING, epoch BIGINT, run_id STRING, topic STRING, topic_id STRING, partition INT,
        from_offset BIGINT, opened_at TIMESTAMP
    """,
)

# Below which position a change is superseded, whatever its key: truncates, completed snapshots; and, for keys that the
# table does not know, what was collected. `topic`: of a sharded feed the shard, else NULL. `checkpoint`: the silver of
# which deleted rows were collected, since one that is rebuilt knows no key yet; NULL where the events say it.
FLOORS = TableSpec(
    name="ops.floors",
    columns="""
        source STRING, feed STRING, reason STRING, topic STRING, at_topic STRING, at_partition INT, at_offset BIGINT,
        position STRING, checkpoint STRING, written_at TIMESTAMP
    """,
)

# Where every event of an outbox was first seen: a connector that replays sends it again under a new offset, and with
# the same key. `first_key`: the first column of the row's key, where it is a whole number and not sensitive: files with
# other keys are passed over.
OUTBOX_EVENTS = TableSpec(
    name="ops.outbox_events",
    columns="""
        source STRING, feed STRING, event_id STRING, topic STRING, partition INT, offset BIGINT, first_key BIGINT
    """,
    partition_by=("source",),
)

TABLES = (LEDGER, CONNECTOR_RUNS, EPOCHS, FLOORS, OUTBOX_EVENTS)

# What the counts of a batch are grouped by: a connector run in a partition, its full snapshots apart.
STRETCH = ("topic", "topic_id", "partition", "run_id", "snapshot_at")
COUNTS = f"""
    feed STRING, topic STRING, topic_id STRING, partition INT, run_id STRING, snapshot_at {COORDINATES},
    first_offset BIGINT, last_offset BIGINT, read BIGINT, changes BIGINT, deletes BIGINT, truncates BIGINT,
    tombstones BIGINT, ignored BIGINT, quarantined BIGINT, leaving_out BIGINT, key_changes BIGINT,
    judged BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>,
    lowest {COORDINATES}, highest {COORDINATES}, has_end BOOLEAN, first_ms BIGINT, read_from_ms BIGINT,
    read_to_ms BIGINT, source_names ARRAY<STRING>, highest_timestamp_ms BIGINT, last_key BIGINT, last_is_delete BOOLEAN,
    key_ranges MAP<STRING, STRUCT<lowest: BIGINT, highest: BIGINT>>
"""
# A feed (None: of topics without one) in a topic-partition.
OfFeed = tuple[str | None, Place]
WHOLE_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def job_name(source: str) -> str:
    """The name of the checkpoint of silver's stream."""
    return f"silver/{source}"


def counts(judged: DataFrame, *, feed: Feed, rules: Sequence[str]) -> DataFrame:
    """One row (COUNTS) a STRETCH: its records by kind, how often rules failed, and what later batches need to know.

    `absent_columns`: how many of the judged rows had no field for a column, of the columns where some had none.
    `key_ranges`: between which values the records' keys lie, of those that are whole numbers.
    Small: its size does not grow with the number of records.
    """
    at = coordinates(feed) if feed.sequence_by == "source_position" else F.lit(None).cast(COORDINATES)
    columns = [column for column in feed.columns if column not in feed.keys]
    is_full = is_full_snapshot() & at.isNotNull()
    is_streamed = (streamed() == 1) & F.col("kind").isin("change", "truncate", "quarantined")
    is_end = is_full & F.col("source.snapshot").isin(*END_OF_SNAPSHOT)
    # What a row's older key has told may be asked for, or be known only now.
    is_key_change = (F.col("old_key").isNotNull() & (F.size("left_out") > 0)) | F.col("new_key").isNotNull()
    was_read = F.when(at.isNotNull(), F.col("read_ms"))
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
    ends = [
        part
        for key in feed.keys
        if feed.columns[key].type.ddl in WHOLE_NUMBERS
        for part in (
            F.lit(key),
            F.struct(
                F.min(f"row.{key}").cast("bigint").alias("lowest"), F.max(f"row.{key}").cast("bigint").alias("highest")
            ),
        )
    ]
    key_ranges = F.create_map(*ends).cast("map<string,struct<lowest:bigint,highest:bigint>>")
    last = F.struct(
        F.xxhash64("key").alias("key"), F.coalesce((F.col("kind") == "change") & F.col("is_delete"), F.lit(False))
    )
    return (
        judged.withColumns({"at": at, "snapshot_at": F.when(is_full, at)})
        .groupBy(*STRETCH)
        .agg(
            F.lit(feed.name).alias("feed"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.count(F.lit(1)).alias("read"),
            _of_kind("change").alias("changes"),
            F.count_if((F.col("kind") == "change") & F.col("is_delete")).alias("deletes"),
            _of_kind("truncate").alias("truncates"),
            _of_kind("tombstone").alias("tombstones"),
            _of_kind("ignored").alias("ignored"),
            _of_kind("quarantined").alias("quarantined"),
            F.count_if(F.size("left_out") > 0).alias("leaving_out"),
            F.count_if(is_key_change).alias("key_changes"),
            F.count_if("is_judged").alias("judged"),
            F.create_map(*failed).cast("map<string,bigint>").alias("failed_rules"),
            some.alias("absent_columns"),
            F.min(F.when(is_streamed, F.col("at"))).alias("lowest"),
            F.max(F.when(is_streamed, F.col("at"))).alias("highest"),
            F.coalesce(F.bool_or(is_end), F.lit(False)).alias("has_end"),
            F.min(F.unix_millis("timestamp")).alias("first_ms"),
            F.min(was_read).alias("read_from_ms"),
            F.max(was_read).alias("read_to_ms"),
            F.collect_set(F.when(is_full, F.col("source.name"))).alias("source_names"),
            F.max(F.unix_millis("timestamp")).alias("highest_timestamp_ms"),
            F.max_by(last, "offset").alias("last"),
            key_ranges.alias("key_ranges"),
        )
        .withColumns({"last_key": F.col("last.key"), "last_is_delete": F.col("last.col2")})
        .select(*column_names(COUNTS))
    )


def ignored_counts(records: DataFrame) -> DataFrame:
    """The same for records of topics that belong to no feed (heartbeat topics): read, and ignored by policy."""
    zero, none = F.lit(0).cast("bigint"), F.lit(None)
    read = records.groupBy("topic", F.coalesce("_topic_id", F.lit("")).alias("topic_id"), "partition").agg(
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.count(F.lit(1)).alias("read"),
        F.min(F.unix_millis("timestamp")).alias("first_ms"),
    )
    no_numbers = F.create_map().cast("map<string,bigint>")
    given = {"ignored": F.col("read"), "run_id": F.lit(""), "failed_rules": no_numbers, "absent_columns": no_numbers}
    zeros = ("changes", "deletes", "truncates", "tombstones", "quarantined", "leaving_out", "key_changes", "judged")
    filled = read.withColumns({**dict.fromkeys(zeros, zero), **given})
    others = {
        name: none.cast(kind) for name, kind in _fields(COUNTS).items() if name not in (*filled.columns, "has_end")
    }
    return filled.withColumns({**others, "has_end": F.lit(False)}).select(*column_names(COUNTS))


def ledger_rows(
    counted: Iterable[Mapping[str, Any]],
    outcomes: Mapping[OfFeed, Mapping[str, int]],
    gaps: Mapping[OfFeed, Sequence[tuple[int, int]]],
    *,
    batch: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Rows of `ops.ledger` for one batch (`batch`: its run, source, checkpoint and number), without `written_at`.

    `outcomes`: of every feed and topic-partition, how many changes, truncates and tombstones ended how.
    """
    rows: dict[OfFeed, dict[str, Any]] = {}
    for one in counted:
        of_feed = (one["feed"], (one["topic"], one["topic_id"], one["partition"]))
        row = rows.setdefault(
            of_feed,
            {
                **batch,
                **{name: one[name] for name in ("feed", "topic", "topic_id", "partition")},
                **{name: one[name] for name in ("first_offset", "last_offset")},
                **dict.fromkeys(("read", *OUTCOMES, "judged"), 0),
                "gaps": [{"first": first, "last": last} for first, last in gaps.get(of_feed, ())],
                "failed_rules": {},
                "absent_columns": {},
            },
        )
        row["first_offset"] = min(row["first_offset"], one["first_offset"])
        row["last_offset"] = max(row["last_offset"], one["last_offset"])
        for name in ("read", "ignored", "quarantined", "judged"):
            row[name] += one[name]
        for name in ("failed_rules", "absent_columns"):
            for key, times in one[name].items():
                row[name][key] = row[name].get(key, 0) + times
    for of_feed, row in rows.items():
        for outcome, records in outcomes.get(of_feed, {}).items():
            row[outcome] += records
    return list(rows.values())


def offset_gaps(records: DataFrame) -> DataFrame:
    """topic, topic_id, partition, first, last: the ranges of offsets inside of a batch that no record has.

    Compaction and the markers of transactions leave such gaps: Kafka gives out an offset once.
    """
    before = F.lag("offset").over(Window.partitionBy("topic", "topic_id", "partition").orderBy("offset"))
    return (
        records.select("topic", "topic_id", "partition", "offset", before.alias("before"))
        .where(F.col("offset") > F.col("before") + 1)
        .select(
            "topic", "topic_id", "partition", (F.col("before") + 1).alias("first"), (F.col("offset") - 1).alias("last")
        )
    )


def rule_counts(ledger: DataFrame, *, run: str) -> DataFrame:
    """source, feed, rule, evaluated, failed: how every row rule came out over all batches of a run."""
    return (
        ledger.where((F.col("run") == run) & F.col("feed").isNotNull())
        .select("source", "feed", "judged", F.explode("failed_rules").alias("rule", "times"))
        .groupBy("source", "feed", "rule")
        .agg(F.sum("judged").alias("evaluated"), F.sum("times").alias("failed"))
    )


def _of_kind(kind: str) -> Column:
    return F.count_if(F.col("kind") == kind)


def _fields(ddl: str) -> dict[str, str]:
    """Name and type of every column of a declaration in SQL."""
    columns = re.findall(r"\s*(\w+) ((?:[^,<>]|<(?:[^<>]|<[^<>]*>)*>)+)(?:,|\Z)", ddl)
    return {name: declared.strip() for name, declared in columns}


def column_names(ddl: str) -> list[str]:
    """The names of the columns of a declaration in SQL."""
    return list(_fields(ddl))
