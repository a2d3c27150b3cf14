"""Where a change is in its source's history: one comparable struct a kind of source, the last field an offset.

Positions compare field by field, from the first. silver.order.positions gives them to records. Conditions and values
here are SQL: an expression goes to Spark in one call, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from lakehouse.contracts.models import Feed
from lakehouse.kafka.ranges import TOPIC_PARTITION
from silver.fold.rows import position_contexts_after, positioned_table
from silver.order.position import FULL_SNAPSHOT, position_fields, position_type
from silver.order.positions import PositionContexts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def coordinates(feed: Feed) -> str:
    """SQL: a change's log coordinates as an array that compares as positions do; NULL without.

    PostgreSQL: the later of the last commit and the LSN, and the LSN. MySQL and MariaDB: file, position and row.
    """
    parts = [_COMMIT_LSN, "lsn"] if feed.kind == "postgresql" else ["binlog_file", "binlog_pos", "binlog_row"]
    present = " AND ".join(f"{part} IS NOT NULL" for part in parts)
    return f"IF({present} AND NOT {is_negative(feed)}, array({', '.join(parts)}), NULL)"


def is_negative(feed: Feed) -> str:
    """SQL: whether the change is at a position before the beginning of every log."""
    parts = ["lsn", "last_commit"] if feed.kind == "postgresql" else ["binlog_pos", "binlog_row"]
    return "(" + " OR ".join(f"coalesce({part} < 0, false)" for part in parts) + ")"


def log_place(feed: Feed) -> str:
    """SQL: the coordinates without PostgreSQL's commit, which a run without stored offsets does not know."""
    return "IF(lsn IS NOT NULL, array(lsn), NULL)" if feed.kind == "postgresql" else coordinates(feed)


def with_position(
    records: DataFrame, feed: Feed, *, position_contexts: PositionContexts, highest_timestamps: DataFrame | None = None
) -> DataFrame:
    """The records with `position`, `is_streamed`, `is_replay` and `run_from` (silver.order.positions.add_positions).

    `position_contexts`: what is known of every topic-partition (`History.position_contexts`). `highest_timestamps`
    (silver.lookback.earlier_records): of records that are not the last of their topic-partitions, where the feed goes
    by Kafka's offsets.
    """
    if highest_timestamps is not None:
        records = records.join(highest_timestamps, on=["topic", "topic_id", "partition", "offset"], how="left")
    elif feed.sequence_by == "kafka_offset":
        # What comes before a record counts.
        records = records.repartition(*TOPIC_PARTITION).sortWithinPartitions(*TOPIC_PARTITION, "offset")
    position = f"position {position_type(feed)}, is_streamed BOOLEAN, is_replay BOOLEAN, run_from BIGINT"
    added = cast(StructType, StructType.fromDDL(position))
    schema = StructType([*records.schema.fields, *added.fields])
    return records.mapInArrow(partial(_position_batches, feed=feed, position_contexts=position_contexts), schema)


def _position_batches(
    batches: Iterable[pa.RecordBatch], feed: Feed, position_contexts: PositionContexts
) -> Iterator[pa.RecordBatch]:
    """Batches with their positions. Of a feed that goes by Kafka's offsets they are in the order of these."""
    for batch in batches:
        records = pa.Table.from_batches([batch])
        yield from positioned_table(records, feed, position_contexts).combine_chunks().to_batches()
        if feed.sequence_by == "kafka_offset":
            position_contexts = position_contexts_after(records, position_contexts)


def flat_position(feed: Feed) -> str:
    """SQL: the `position` as whole numbers alone (silver.order.missing_columns.Numbers)."""
    by_offset = feed.sequence_by == "kafka_offset"
    parts = ["timestamp_ms", "kafka_offset"] if by_offset else [*_place_fields(feed), "kafka_offset"]
    return f"array({', '.join(f'position.{part}' for part in parts)})"


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


# SQL: 1 for a change that was streamed, 0 for a row of a snapshot: at an equal position the streamed one is later.
STREAMED = "IF(snapshot IS NULL, 1L, 0L)"
# SQL: whether the record is a row of a snapshot of the whole table.
IS_FULL_SNAPSHOT = f"coalesce(snapshot IN {FULL_SNAPSHOT}, false)"
_COMMIT_LSN = "greatest(last_commit, lsn)"
