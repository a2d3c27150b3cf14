"""The rows `planned` of `ops.batches`: which offsets every batch was to read, and what it has stored.

Silver reads what they say, and nothing else: a batch that was appended and is not written down yet is repeated,
or confirmed (`confirm`), before bronze reads on. Kafka gives an offset to no record now and then (compaction,
transaction markers): only the plan of a batch shows that such a gap is not a range that nobody read. Structured
Streaming keeps the plan in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from bronze.checkpoint import end_of, initial_offsets
from bronze.conservation import asked_ranges, stored_ranges
from bronze.events import events_table
from lakehouse.batches import append, batches
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.ranges import TOPIC_PARTITION, overlaid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# What a batch has stored of a topic-partition: how many records, the bytes of their values, the first and the last
# offset among them, and the lowest Kafka timestamp.
STORED = ("records", "value_bytes", "first_offset", "last_offset", "first_ms")
_NOTHING: Mapping[str, object] = {**dict.fromkeys(STORED), "records": 0, "value_bytes": 0}
Stored = Mapping[tuple[str, str, int], Mapping[str, Any]]
# How many records an append has stored, of all partitions together.
RECORDS = "records"
# Of so many partitions an append counts what it stores. Every row is looked at for each of them: of more, one query of
# the table costs less (docs/decisions/38-an-append-counts.md).
OBSERVED_PARTITIONS = 16


@dataclass(frozen=True)
class Planned:
    """The offsets that a batch was to read of one partition; `until_offset` is not included."""

    topic: str
    topic_id: str
    partition: int
    from_offset: int
    until_offset: int

    @property
    def topic_partition(self) -> tuple[str, str, int]:
        """Topic, topic id and partition."""
        return self.topic, self.topic_id, self.partition


def planned_ranges(warehouse: Warehouse, job: str, batch: int, *, topic_ids: Mapping[str, str]) -> list[Planned]:
    """What the batch was to read, by the stream's checkpoint: the partitions in which there was something."""
    began = end_of(warehouse, job, batch - 1) if batch else initial_offsets(warehouse, job)
    return [
        # A partition that came later is read from its first record on.
        Planned(
            topic_partition.topic,
            topic_ids.get(topic_partition.topic, ""),
            topic_partition.number,
            began.get(topic_partition, 0),
            until,
        )
        for topic_partition, until in sorted(end_of(warehouse, job, batch).items())
        if until > began.get(topic_partition, 0)
    ]


def stored_metrics(planned: Sequence[Planned]) -> dict[str, Column]:
    """What an append counts of the rows that it stores: RECORDS, and STORED of each partition where these are few."""
    metrics = {RECORDS: F.count("offset")}
    if len(planned) > OBSERVED_PARTITIONS:
        return metrics
    for number, one in enumerate(planned):
        is_here = (F.col("topic") == one.topic) & (F.col("partition") == one.partition)
        offset = F.when(is_here, F.col("offset"))
        of_partition = {
            "records": F.count(offset),
            "value_bytes": F.coalesce(F.sum(F.when(is_here, F.octet_length("value"))), F.lit(0)),
            "first_offset": F.min(offset),
            "last_offset": F.max(offset),
            "first_ms": F.min(F.when(is_here, F.unix_millis("timestamp"))),
        }
        metrics |= {f"{name}_{number}": metric for name, metric in of_partition.items()}
    return metrics


def observed_records(planned: Sequence[Planned], metrics: Mapping[str, object]) -> Stored | None:
    """STORED by topic-partition, by the values of `stored_metrics`; None where the table has to be asked.

    So where there are too many partitions, and where a partition has more records than offsets: Spark may count rows
    again that it has read again, after it has lost an executor.
    """
    if len(planned) > OBSERVED_PARTITIONS:
        return None
    found = {
        one.topic_partition: {name: metrics[f"{name}_{number}"] for name in STORED}
        for number, one in enumerate(planned)
    }
    return found if all(map(_is_possible, found.values())) else None


def _is_possible(stored: Mapping[str, Any]) -> bool:
    return not stored["records"] or stored["records"] <= stored["last_offset"] - stored["first_offset"] + 1


def stored_records(events: DataFrame, planned: Sequence[Planned], *, some_were_there: bool) -> DataFrame:
    """TOPIC_PARTITION and STORED: what bronze has of the planned offsets of each partition.

    `some_were_there`: whether the batch reads again what bronze may have, and may have twice.
    """
    records = F.count_distinct("offset") if some_were_there else F.count("offset")
    return (
        _placed(events)
        .where(reduce(lambda so_far, also: so_far | also, map(is_planned, planned)))
        .groupBy(*TOPIC_PARTITION)
        .agg(
            records.alias("records"),
            F.coalesce(F.sum(F.octet_length("value")), F.lit(0)).alias("value_bytes"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min(F.unix_millis("timestamp")).alias("first_ms"),
        )
    )


def overlapping(
    read_again: Mapping[tuple[str, int], tuple[int, int]], planned: Sequence[Planned]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Of the offsets that a source reads again, those of partitions in which the batch has some of them."""
    return {
        (one.topic, one.partition): (first, end)
        for one in planned
        for first, end in [read_again.get((one.topic, one.partition), (0, 0))]
        if first < one.until_offset and one.from_offset < end
    }


def ingested_records(warehouse: Warehouse, after: Mapping[str, int]) -> dict[str, int]:
    """By source, the records of the batches that were written down `after` this sequence of it."""
    if not after:
        return {}
    is_later = [(F.col("source") == source) & (F.col("sequence") > sequence) for source, sequence in after.items()]
    rows = planned_of(batches(warehouse, "bronze").where(reduce(or_, is_later)))
    found = rows.groupBy("source").agg(F.sum("records").alias("records")).collect()
    return {**dict.fromkeys(after, 0), **{row["source"]: row["records"] for row in found}}


def batch_rows(
    planned: Sequence[Planned],
    stored: Stored,
    *,
    batch: Mapping[str, object],
) -> list[dict[str, object]]:
    """Rows of `ops.batches`. `stored`: STORED by topic-partition. `batch`: its source, checkpoint, number, sequence."""
    return [
        {
            **batch,
            **dict(zip(TOPIC_PARTITION, one.topic_partition, strict=True)),
            "planned": {
                "from_offset": one.from_offset,
                "until_offset": one.until_offset,
                **stored.get(one.topic_partition, _NOTHING),
            },
        }
        for one in planned
    ]


def planned_of(batches: DataFrame) -> DataFrame:
    """checkpoint, batch, TOPIC_PARTITION, from_offset, until_offset and STORED: what batches were to read."""
    rows = batches.where("planned IS NOT NULL")
    return rows.select("source", "checkpoint", "batch", *TOPIC_PARTITION, "planned.*", "written_at")


def confirm(warehouse: Warehouse, source: str, *, sequence: int) -> None:
    """Write down what bronze has and no row `planned` says: of a batch that was appended and has never ended.

    Its checkpoint is lost, or was left when the source was moved, so it is not repeated. `sequence`: of the rows.
    """
    events = warehouse.read(events_table(source).name)
    planned = planned_of(batches(warehouse, "bronze").where(F.col("source") == source))
    ranges = overlaid({"stored": stored_ranges(events), "asked": asked_ranges(planned)})
    # One range for what came together: a topic that was compacted has as many gaps as records.
    lacking = (
        ranges.where("stored > 0 AND asked = 0")
        .groupBy(*TOPIC_PARTITION, "ingested_at")
        .agg(F.min("first").alias("first"), F.max("last").alias("last"))
    )
    found = [
        Planned(row["topic"], row["topic_id"], row["partition"], row["first"], row["last"] + 1)
        for row in lacking.orderBy(*TOPIC_PARTITION, "first").collect()
    ]
    # One range a topic-partition at a time: `stored_records` tells no two of them apart.
    while found:
        some = list({one.topic_partition: one for one in reversed(found)}.values())
        found = [one for one in found if one not in some]
        stored = _stored(stored_records(events, some, some_were_there=True))
        append(warehouse, "bronze", batch_rows(some, stored, batch={"source": source, "sequence": sequence}))


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
    stored: Stored | None = None,
) -> None:
    """Append the batch to `ops.batches`, once: a batch that is repeated after a crash finds the same numbers.

    `stored`: what its append has counted; None: the table is asked.
    """
    if not planned:
        return
    if stored is None:
        stored = _stored(stored_records(events, planned, some_were_there=some_were_there))
    rows = batch_rows(planned, stored, batch=batch)
    append(warehouse, "bronze", rows, writer=writer, number=number, started_at=started_at)


def _stored(counted: DataFrame) -> Stored:
    return {
        (row["topic"], row["topic_id"], row["partition"]): {name: row[name] for name in STORED}
        for row in counted.collect()
    }


def _placed(events: DataFrame) -> DataFrame:
    return events.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))


def is_planned(planned: Planned) -> Column:
    """Whether a record (TOPIC_PARTITION, offset) is of the planned offsets."""
    return (
        (F.col("topic") == planned.topic)
        & (F.col("topic_id") == planned.topic_id)
        & (F.col("partition") == planned.partition)
        & (F.col("offset") >= planned.from_offset)
        & (F.col("offset") < planned.until_offset)
    )
