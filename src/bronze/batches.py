"""The rows `planned` of `ops.batches`: which offsets every batch was to read, and how many records came of it.

Kafka gives an offset to no record now and then (compaction, transaction markers): only the plan of a batch shows that
such a gap is not a range that nobody read. Structured Streaming keeps the plan in the checkpoint: `offsets/N` has the
end of batch N, `sources/0/0` where the first one began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze.offsets import offsets_in
from lakehouse.batches import append
from lakehouse.kafka.offsets import Partition
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Planned:
    """The offsets that a batch was to read of one partition; `until_offset` is not included."""

    topic: str
    topic_id: str
    partition: int
    from_offset: int
    until_offset: int

    @property
    def place(self) -> tuple[str, str, int]:
        """Topic, topic id and partition."""
        return self.topic, self.topic_id, self.partition


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
    """Rows of `ops.batches`. `batch`: its source, checkpoint and number."""
    return [
        {
            **batch,
            **dict(zip(TOPIC_PARTITION, one.place, strict=True)),
            "planned": {
                "from_offset": one.from_offset,
                "until_offset": one.until_offset,
                "records": records.get(one.place, 0),
            },
        }
        for one in planned
    ]


def planned_of(batches: DataFrame) -> DataFrame:
    """checkpoint, batch, TOPIC_PARTITION, from_offset, until_offset, records: what batches were to read."""
    rows = batches.where("planned IS NOT NULL")
    return rows.select("source", "checkpoint", "batch", *TOPIC_PARTITION, "planned.*", "written_at")


def write_down_batch(
    warehouse: Warehouse,
    events: DataFrame,
    planned: Sequence[Planned],
    *,
    batch: Mapping[str, object],
    number: int,
    writer: str,
    some_were_there: bool,
    started_at: datetime,
) -> None:
    """Append the batch to `ops.batches`, once: a batch that is repeated after a crash finds the same numbers."""
    if not planned:
        return
    counted = stored_records(events, planned, some_were_there=some_were_there).collect()
    records = {(row["topic"], row["topic_id"], row["partition"]): row["records"] for row in counted}
    rows = batch_rows(planned, records, batch=batch)
    append(warehouse, "bronze", rows, writer=writer, number=number, started_at=started_at)


def _offsets(text: str) -> dict[Partition, int]:
    """The offsets in the last line of a file of the checkpoint."""
    return offsets_in(text.strip().splitlines()[-1])


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
