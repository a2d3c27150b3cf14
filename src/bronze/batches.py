"""`ops.bronze_batches`: which offsets every batch of bronze was to read, and how many records came of it.

Kafka gives an offset to no record now and then (compaction, markers of transactions): only the plan of a batch tells
such a gap from a range that nobody read. Structured Streaming keeps the plan in the checkpoint: `offsets/N` has the end
of batch N, `sources/0/0` where the first one began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.kafka_offsets import Partition
from lakehouse.tables import TableSpec, Warehouse, small_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_VALUES = """
    source STRING, checkpoint STRING, batch BIGINT, topic STRING, topic_id STRING, partition INT,
    from_offset BIGINT, until_offset BIGINT, records BIGINT
"""
# One row a batch and topic-partition that had something to read: from_offset is included, until_offset is not.
BATCHES = TableSpec(name="ops.bronze_batches", columns=f"{_VALUES}, written_at TIMESTAMP")


@dataclass(frozen=True)
class Planned:
    """The offsets that a batch was to read of one partition; `until_offset` is not included."""

    topic: str
    topic_id: str
    partition: int
    from_offset: int
    until_offset: int


def planned_ranges(warehouse: Warehouse, job: str, batch: int, *, topic_ids: Mapping[str, str]) -> list[Planned]:
    """What the batch was to read, by the stream's checkpoint: the partitions in which there was something."""
    checkpoint = warehouse.checkpoint(job)
    before = f"{checkpoint}/offsets/{batch - 1}" if batch else f"{checkpoint}/sources/0/0"
    files = warehouse.spark.read.text([before, f"{checkpoint}/offsets/{batch}"], wholetext=True)
    read = files.select("value", F.col("_metadata.file_path").alias("path")).collect()
    offsets = {tuple(row["path"].split("/")[-2:]): _offsets(row["value"]) for row in read}
    began, ended = offsets[tuple(before.split("/")[-2:])], offsets["offsets", str(batch)]
    return [
        # A partition that came later is read from its first record on.
        Planned(place.topic, topic_ids.get(place.topic, ""), place.number, began.get(place, 0), until)
        for place, until in sorted(ended.items())
        if until > began.get(place, 0)
    ]


def stored_records(events: DataFrame, planned: Sequence[Planned], *, some_were_there: bool) -> DataFrame:
    """topic, topic_id, partition, records: how many of the planned offsets of each partition bronze has.

    `some_were_there`: whether the batch reads again what bronze may have, and may have twice.
    """
    records = F.count_distinct("offset") if some_were_there else F.count("offset")
    return (
        _placed(events.where(reduce(lambda so_far, also: so_far | also, map(_is_in, planned))))
        .groupBy("topic", "topic_id", "partition")
        .agg(records.alias("records"))
    )


def batch_rows(
    planned: Sequence[Planned], records: Mapping[tuple[str, str, int], int], *, batch: Mapping[str, object]
) -> list[dict[str, object]]:
    """Rows of BATCHES, without `written_at`. `batch`: its source, checkpoint and number."""
    return [
        {**batch, **asdict(one), "records": records.get((one.topic, one.topic_id, one.partition), 0)} for one in planned
    ]


def write_down_batch(
    warehouse: Warehouse,
    events: DataFrame,
    planned: Sequence[Planned],
    *,
    batch: Mapping[str, object],
    number: int,
    writer: str,
    some_were_there: bool,
) -> None:
    """Append the batch to `ops.bronze_batches`, once: a batch that is repeated after a crash finds the same numbers."""
    if not planned:
        return
    counted = stored_records(events, planned, some_were_there=some_were_there).collect()
    records = {(row["topic"], row["topic_id"], row["partition"]): row["records"] for row in counted}
    rows = small_table(warehouse.spark, batch_rows(planned, records, batch=batch), _VALUES)
    warehouse.append_once(
        BATCHES.name, rows.withColumn("written_at", F.current_timestamp()), writer=writer, number=number
    )


def _offsets(text: str) -> dict[Partition, int]:
    """The offsets in the last line of a file of the checkpoint."""
    ends: Mapping[str, Mapping[str, int]] = json.loads(text.strip().splitlines()[-1])
    return {
        Partition(topic, int(number)): offset for topic, offsets in ends.items() for number, offset in offsets.items()
    }


def _placed(events: DataFrame) -> DataFrame:
    return events.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))


def _is_in(planned: Planned) -> Column:
    return (
        (F.col("topic") == planned.topic)
        & (F.coalesce("_topic_id", F.lit("")) == planned.topic_id)
        & (F.col("partition") == planned.partition)
        & (F.col("offset") >= planned.from_offset)
        & (F.col("offset") < planned.until_offset)
    )
