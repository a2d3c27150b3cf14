"""What a position is: a struct that compares field by field, the last field a Kafka offset. Rules: docs/ordering.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.contracts.models import Feed

# Compares from the first field on; the last one is the Kafka offset.
Position = tuple[Any, ...]

# `source.snapshot` of the rows of a snapshot of the whole table; and of the last of them.
FULL_SNAPSHOT = ("true", "first", "last", "first_in_data_collection", "last_in_data_collection")
END_OF_SNAPSHOT = ("last", "last_in_data_collection")
# The types of positions, as Spark writes them: structs that compare field by field, the last one a Kafka offset.
POSTGRES = (
    "STRUCT<epoch: BIGINT, ordered_lsn: BIGINT, streamed: BIGINT, commit_lsn: BIGINT, lsn: BIGINT,"
    " kafka_offset: BIGINT>"
)
MYSQL = (
    "STRUCT<epoch: BIGINT, binlog_file: BIGINT, binlog_pos: BIGINT, binlog_row: BIGINT, streamed: BIGINT,"
    " kafka_offset: BIGINT>"
)
KAFKA = "STRUCT<timestamp_ms: BIGINT, kafka_topic: STRING, kafka_partition: INT, kafka_offset: BIGINT>"


def position_type(feed: Feed) -> str:
    """The Spark type of `_position` in this feed's silver table."""
    if feed.sequence_by == "kafka_offset":
        return KAFKA
    return POSTGRES if feed.kind == "postgresql" else MYSQL


def position_fields(feed: Feed) -> list[str]:
    """The names of the fields of a position; the Kafka offset is the last one."""
    return [part.split(":")[0].strip() for part in position_type(feed).removeprefix("STRUCT<").split(",")]


def epoch_of(topic_partition: Mapping[str, Any], *, run_id: str, offset: int) -> int:
    """The epoch of a record: that of its run, else that in which its offset lies.

    `topic_partition`: one of `History.position_contexts`.
    """
    of_run = next((run["epoch"] for run in topic_partition["runs"] if run["run_id"] == run_id), None)
    begun = (one["epoch"] for one in topic_partition["epochs"] if one["from_offset"] <= offset)
    return max(begun, default=0) if of_run is None else int(of_run)
