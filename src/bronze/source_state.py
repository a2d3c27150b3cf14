"""What `ops.batches` says of a source: how far it was moved, and the last of its batches.

The rows `step`, one for every topic-partition and change: change 0 is the first start, each `lakehouse offsets set` is
one more, and so is a partition that joins and does not begin at offset 0. A change gives the stream a checkpoint of its
own (`bronze/<source>`, then `bronze/<source>.1`, …), so nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.batches import BATCHES, append, batches
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.offsets import Partition
from lakehouse.kafka.ranges import TOPIC_PARTITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

# Of a batch, in this order: the latest is the highest.
LAST = ("sequence", "checkpoint", "batch")


def steps_from(
    steps: Sequence[OffsetMove], following: Mapping[Partition, int], highest: Mapping[tuple[str, str, int], int]
) -> list[OffsetMove]:
    """The steps of a new checkpoint with which every partition goes on as before: nothing is skipped or stored twice.

    `highest`: of bronze, which may have more than the last batch that has ended. Offsets that were being read again
    still are.
    """
    found = []
    for step in steps:
        resumed = following[step.topic_partition]
        after = max(resumed, highest.get((step.topic, step.topic_id, step.partition), -1) + 1)
        known = max(step.from_offset, after) if step.read_again else after
        found.append(replace(step, from_offset=known, to_offset=resumed if step.read_again else known))
    return found


def by_the_table(steps: Sequence[OffsetMove], highest: Mapping[tuple[str, str, int], int]) -> list[OffsetMove]:
    """The steps, as far as the table has come: behind its `highest` offsets, except of what is to be read again."""
    after = {step.topic_partition: highest.get((step.topic, step.topic_id, step.partition), -1) + 1 for step in steps}
    return [
        replace(step, from_offset=max(step.from_offset, after[step.topic_partition]))
        if step.read_again
        else replace(step, to_offset=max(step.to_offset, after[step.topic_partition]))
        for step in steps
    ]


@dataclass(frozen=True)
class OffsetMove:
    """Where one partition is read from after a change: it was at `from_offset`, and goes on at `to_offset`.

    Of a first start, `from_offset` is the earliest offset that the broker had. `skipped` records lie between and are
    not read; of `read_again` records those that bronze lacks are stored.
    """

    source: str
    change: int
    topic: str
    topic_id: str
    partition: int
    from_offset: int
    to_offset: int
    reason: str

    @property
    def skipped(self) -> int:
        """How many offsets are passed over."""
        return max(self.to_offset - self.from_offset, 0)

    @property
    def read_again(self) -> int:
        """How many offsets are read a second time."""
        return max(self.from_offset - self.to_offset, 0)

    @property
    def topic_partition(self) -> Partition:
        """Topic and partition."""
        return Partition(self.topic, self.partition)


@dataclass(frozen=True, order=True)
class LastBatch:
    """The last batch of a source that was written down: its number in its checkpoint, and in the order of all."""

    sequence: int = 0
    checkpoint: str = ""
    number: int = -1


@dataclass(frozen=True)
class SourceState:
    """What `ops.batches` says of a source: the steps of its last change, none before its first run; its last batch."""

    steps: Sequence[OffsetMove] = ()
    last: LastBatch = LastBatch()


def read_states(warehouse: Warehouse, sources: Collection[str]) -> dict[str, SourceState]:
    """What `ops.batches` says of each of the sources, by one query."""
    if not warehouse.exists(BATCHES.name):
        return dict.fromkeys(sources, SourceState())
    rows = batches(warehouse, "bronze").where(F.col("source").isin(*sources))
    topic_partition = [F.when(F.col("step").isNotNull(), F.col(name)).alias(name) for name in TOPIC_PARTITION]
    # Few: a row a partition, and one more for each time that it was moved by command; and one for all batches.
    found = (
        rows.select("source", *topic_partition, "step", *LAST)
        .groupBy("source", *TOPIC_PARTITION, "step")
        .agg(F.max(F.when(F.col("sequence").isNotNull(), F.struct(*LAST))).alias("last"))
        .collect()
    )
    return {source: _state_of([row for row in found if row["source"] == source]) for source in sources}


def _state_of(rows: Sequence[Row]) -> SourceState:
    steps = [
        OffsetMove(
            **{name: row[name] if name in row else row["step"][name] for name in OffsetMove.__dataclass_fields__}
        )
        for row in rows
        if row["step"] is not None
    ]
    last = max((step.change for step in steps), default=0)
    # One row a partition: a partition that came later has its own, under the same change.
    of_last = sorted((step for step in steps if step.change == last), key=lambda step: step.topic_partition)
    batches = [row["last"] for row in rows if row["last"] is not None]
    # A batch whose checkpoint was lost before it was written down has none.
    last_batch = max(
        (LastBatch(one[0], one[1] or "", -1 if one[2] is None else one[2]) for one in batches), default=LastBatch()
    )
    return SourceState(of_last, last_batch)


def steps_in(batches: DataFrame) -> DataFrame:
    """The steps in `ops.batches`: source, TOPIC_PARTITION and the fields of `step`."""
    return batches.where("step IS NOT NULL").select("source", *TOPIC_PARTITION, "step.*")


def write_down(warehouse: Warehouse, steps: Sequence[OffsetMove]) -> None:
    """Append the steps to `ops.batches`."""
    if steps:
        of_step = ("change", "from_offset", "to_offset", "skipped", "read_again", "reason")
        rows = [
            {
                **{name: getattr(step, name) for name in ("source", *TOPIC_PARTITION)},
                "step": {name: getattr(step, name) for name in of_step},
            }
            for step in steps
        ]
        append(warehouse, "bronze", rows)


def job_name(source: str, change: int) -> str:
    """The name of the stream's checkpoint after so many changes."""
    return f"bronze/{source}" if change == 0 else f"bronze/{source}.{change}"


def stored(events: DataFrame) -> dict[tuple[str, str, int], int]:
    """The highest offset in bronze of every topic, topic id and partition."""
    rows = events.groupBy("topic", "_topic_id", "partition").agg(F.max("offset").alias("offset")).collect()
    return {(row["topic"], row["_topic_id"], row["partition"]): row["offset"] for row in rows}
