"""Where a change is in its source's history: one comparable struct a kind of source, the last field an offset.

Positions compare field by field, from the first. The rules and the histories that break simpler ones are in
docs/ordering.md. Conditions and values are SQL: an expression goes to Spark in one call, however long it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.batches import COORDINATES
from lakehouse.contracts.models import Feed
from silver.order.position import FULL_SNAPSHOT, position_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What is known of the partitions of a feed when a batch is placed; see silver.order.runs.
# `runs`: a run's first offset, its epoch, and up to which coordinates it repeats earlier runs. A record without a run
# (run_id is empty) is of the epoch that its offset lies in.
PLACES = f"""
    topic STRING, topic_id STRING, partition INT, epochs ARRAY<STRUCT<from_offset: BIGINT, epoch: BIGINT>>,
    snapshots ARRAY<STRUCT<run_id: STRING, epoch: BIGINT, from_offset: BIGINT, lsn: BIGINT, read_from_ms: BIGINT>>,
    runs ARRAY<STRUCT<run_id: STRING, epoch: BIGINT, from_offset: BIGINT, repeats_to: {COORDINATES}>>,
    highest_timestamp_ms BIGINT
"""


def coordinates(feed: Feed) -> str:
    """SQL: a change's log coordinates, by its source, as an array that compares as positions do; NULL without.

    PostgreSQL: the later of the last commit and the LSN, and the LSN. MySQL and MariaDB: file, position and row.
    """
    parts = [_COMMIT_LSN, _LSN] if feed.kind == "postgresql" else [_BINLOG_FILE, "source.pos", _BINLOG_ROW]
    present = " AND ".join(f"{part} IS NOT NULL" for part in parts)
    return f"IF({present} AND NOT {is_negative(feed)}, array({', '.join(parts)}), NULL)"


def is_negative(feed: Feed) -> str:
    """SQL: whether the source block names a position before the beginning of every log."""
    parts = [_LSN, _sequence(0)] if feed.kind == "postgresql" else ["source.pos", "source.row"]
    return "(" + " OR ".join(f"coalesce({part} < 0, false)" for part in parts) + ")"


def log_place(feed: Feed) -> str:
    """SQL: the coordinates without PostgreSQL's commit, which a run without stored offsets does not know."""
    return f"IF({_LSN} IS NOT NULL, array({_LSN}), NULL)" if feed.kind == "postgresql" else coordinates(feed)


def postgres_position(*, epoch: str, snapshot_lsn: str) -> str:
    """SQL: PostgreSQL's (epoch, max(c, S), streamed, c, lsn, offset); NULL without an LSN.

    `source.sequence` is `["<last commit lsn>","<lsn>"]`; c is the later of the two, the lsn alone where the connector
    has no stored offsets yet and the first is null. S is `snapshot_lsn`: the LSN of the run's full snapshot, for a
    change that was streamed after it; a transaction that was open while the slot was created has a lower LSN than the
    snapshot's rows, and yet comes later. A connector that stopped between the snapshot and its first commit sends that
    transaction in its next run, still with a null.
    """
    parts = {
        "epoch": epoch,
        "ordered_lsn": f"IF({STREAMED} = 1, greatest({_COMMIT_LSN}, {snapshot_lsn}), {_COMMIT_LSN})",
        "streamed": STREAMED,
        "commit_lsn": _COMMIT_LSN,
        "lsn": _LSN,
        "kafka_offset": "offset",
    }
    return f"IF({_LSN} IS NOT NULL, {_struct(parts)}, NULL)"


def mysql_position(*, epoch: str) -> str:
    """SQL: MySQL's and MariaDB's (epoch, binlog file number, pos, row, streamed, offset); NULL without file or pos.

    The number is compared as an integer: mysql-bin.999999 is followed by mysql-bin.1000000. All rows of one statement
    share a pos.
    """
    parts = {
        "epoch": epoch,
        "binlog_file": _BINLOG_FILE,
        "binlog_pos": "source.pos",
        "binlog_row": _BINLOG_ROW,
        "streamed": STREAMED,
        "kafka_offset": "offset",
    }
    return f"IF({_BINLOG_FILE} IS NOT NULL AND source.pos IS NOT NULL, {_struct(parts)}, NULL)"


def kafka_position(timestamp_before: str) -> str:
    """SQL, with a window: (timestamp, topic, partition, offset) of events without a source position.

    Within a partition the offset decides, so the timestamp is the highest one up to this record, `timestamp_before`
    being the highest of earlier batches; across partitions the timestamp does.
    """
    highest = "max(unix_millis(timestamp)) OVER (PARTITION BY topic, topic_id, partition ORDER BY offset)"
    parts = {
        "timestamp_ms": f"greatest({highest}, {timestamp_before})",
        "kafka_topic": "topic",
        "kafka_partition": "partition",
        "kafka_offset": "offset",
    }
    return _struct(parts)


def with_position(
    changes: DataFrame, feed: Feed, *, places: DataFrame, highest_timestamps: DataFrame | None = None
) -> DataFrame:
    """The changes with `position`, `is_replay` (an earlier run has sent it) and `run_from` (the run's first offset).

    `places` (PLACES): what is known of every topic-partition. `highest_timestamps` (silver.batch.earlier_records): of
    records that are not the last of their topic-partitions, where the feed goes by Kafka's offsets.
    """
    placed = changes.join(F.broadcast(places), on=["topic", "topic_id", "partition"], how="left")
    if highest_timestamps is not None:
        of_record = ["topic", "topic_id", "partition", "offset"]
        placed = placed.drop("highest_timestamp_ms").join(highest_timestamps, on=of_record, how="left")
    if feed.sequence_by == "kafka_offset":
        position, is_replay = kafka_position("highest_timestamp_ms"), "false"
    else:
        position = _source_position(feed)
        is_replay = f"coalesce({STREAMED} = 1 AND {coordinates(feed)} <= {_RUN}.repeats_to, false)"
    added = {"position": position, "is_replay": is_replay, "run_from": f"{_RUN}.from_offset"}
    return placed.withColumns({name: F.expr(value) for name, value in added.items()}).drop(
        "epochs", "snapshots", "runs", "highest_timestamp_ms"
    )


def _source_position(feed: Feed) -> str:
    # Spark interprets what goes through an array, so only where there is something in it.
    begun = "transform(filter(epochs, one -> one.from_offset <= offset), one -> one.epoch)"
    epoch = f"coalesce({_RUN}.epoch, IF(size(epochs) > 0, array_max({begun}), NULL), 0L)"
    if feed.kind != "postgresql":
        return mysql_position(epoch=epoch)
    # A record may be sent again much later. So of earlier runs, those before the record's own, in its epoch; and of
    # snapshots in the middle of its run, those that the connector took before it read the record.
    run_begins = f"IF(run_id = '', offset, {_RUN}.from_offset)"
    opens_run = f"(run_id <> '' AND one.from_offset = {_RUN}.from_offset)"
    was_read_later = "coalesce(read_ms >= one.read_from_ms, true)"
    is_of_run = "(one.run_id = run_id AND one.from_offset < offset)"
    is_of_earlier_run = f"({_sequence(0)} IS NULL AND one.epoch = {epoch} AND one.from_offset < {run_begins})"
    # Without the names of runs only the clock tells a record that is sent again behind the snapshot.
    is_earlier = f"{is_of_earlier_run} AND (run_id <> '' OR {was_read_later})"
    before = f"filter(snapshots, one -> ({is_of_run} AND ({opens_run} OR {was_read_later})) OR ({is_earlier}))"
    lsn = f"IF(size(snapshots) > 0, array_max(transform({before}, one -> one.lsn)), NULL)"
    return postgres_position(epoch=epoch, snapshot_lsn=lsn)


def flat_position(feed: Feed) -> str:
    """SQL: the `position` as whole numbers alone (silver.order.missing_columns.Numbers)."""
    by_offset = feed.sequence_by == "kafka_offset"
    parts = ["timestamp_ms", "kafka_offset"] if by_offset else [*_place_fields(feed), "kafka_offset"]
    return f"array({', '.join(f'position.{part}' for part in parts)})"


def same_place(position: str, other: str, feed: Feed) -> str:
    """SQL: whether two positions differ in nothing but the offset."""
    return "(" + " AND ".join(f"{position}.{field} <=> {other}.{field}" for field in _place_fields(feed)) + ")"


def at_offset(position: str, offset: str, feed: Feed) -> str:
    """SQL: the same source position at another Kafka offset; NULL of none."""
    fields = {field: f"{position}.{field}" for field in _place_fields(feed)}
    return f"IF({position} IS NOT NULL, {_struct({**fields, 'kafka_offset': f'CAST({offset} AS BIGINT)'})}, NULL)"


def log_event_of(position: str, feed: Feed) -> str:
    """SQL: where in the log a streamed change is, without the row of MySQL, which may begin anew at one position."""
    fields = [field for field in _place_fields(feed) if field not in ("streamed", "binlog_row")]
    return _struct({field: f"{position}.{field}" for field in fields})


def place_of(position: str, feed: Feed) -> str:
    """SQL: the source position alone, without the Kafka offset."""
    return _struct({field: f"{position}.{field}" for field in _place_fields(feed)})


def _place_fields(feed: Feed) -> list[str]:
    return position_fields(feed)[:-1]


def has_position(feed: Feed) -> str:
    """SQL: whether the record carries what its position is made of."""
    return "true" if feed.sequence_by == "kafka_offset" else f"{coordinates(feed)} IS NOT NULL"


def _struct(parts: Mapping[str, str]) -> str:
    return f"named_struct({', '.join(f'{name!r}, {value}' for name, value in parts.items())})"


def _sequence(element: int) -> str:
    return f"try_cast(get(source.sequence, {element}) AS BIGINT)"


# SQL: 1 for a change that was streamed, 0 for a row of a snapshot: at an equal position the streamed one is later.
STREAMED = "IF(coalesce(source.snapshot, 'false') = 'false', 1L, 0L)"
# SQL: whether the record is a row of a snapshot of the whole table.
IS_FULL_SNAPSHOT = f"coalesce(source.snapshot IN {FULL_SNAPSHOT}, false)"
_LSN = f"coalesce({_sequence(1)}, source.lsn)"
_COMMIT_LSN = f"greatest({_sequence(0)}, {_LSN})"
_BINLOG_FILE = "try_cast(regexp_extract(source.file, '[.]([0-9]+)$', 1) AS BIGINT)"
_BINLOG_ROW = "coalesce(source.row, 0L)"
# What is known of the record's run in its topic-partition.
_RUN = "get(runs, CAST(array_position(runs.run_id, run_id) AS INT) - 1)"
