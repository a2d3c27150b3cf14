"""What silver writes down of every batch, in one append, last: a batch that is in `ops.batches` is done.

The last segments and all feed rows together are the state (`State`): read once when a process starts, then remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.batches import append as append_rows
from lakehouse.batches import batches
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.tables import TableSpec, Warehouse
from silver.order.runs import SEGMENT_KEY
from silver.order.state import COUNTED, State, Stored, job_name, writer_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from silver.quarantine import QuarantineState
    from silver.schemas import Schemas

# Where every event of an outbox was first seen: a connector that replays sends it again under a new offset, and with
# the same key. `topic_id`: offsets begin again when a topic is made again. `first_key`: the first column of the row's
# key, where it is a whole number and not sensitive: files with other keys are passed over.
OUTBOX_EVENTS = TableSpec(
    name="ops.outbox_events",
    columns="""
        source STRING, feed STRING, event_id STRING, topic STRING, topic_id STRING, partition INT, offset BIGINT,
        first_key BIGINT
    """,
    partition_by=("source",),
)

_OF_FEED = ("epochs", "cutoffs", "first_sent", "unreadable", "suspended", "resumed")


def checkpoint_of(warehouse: Warehouse, source: str) -> str:
    """The identity of the checkpoint of the source's silver: another one when silver is rebuilt; empty without."""
    return warehouse.checkpoint_id(job_name(source)) or ""


def read_state(
    warehouse: Warehouse, source: str, *, checkpoint: str, writer: str | None = None, batch: int | None = None
) -> State:
    """What this silver knows; for a batch of `writer` what it knew before it, also when it is repeated."""
    is_own = (F.col("writer") == F.lit(writer)) & F.col("batch").eqNullSafe(F.lit(batch).cast("bigint"))
    of_silver = (F.col("source") == source) & (F.col("checkpoint") == checkpoint) & ~F.coalesce(is_own, F.lit(False))
    rows = batches(warehouse, "silver").where(of_silver)
    by = ("source", "checkpoint", "feed", *SEGMENT_KEY)
    last = F.max_by(F.struct("writer", "batch", "segment"), "sequence").alias("last")
    segments = rows.where("segment IS NOT NULL").groupBy(*by).agg(F.max("sequence").alias("sequence"), last)
    of_feeds = rows.where(" OR ".join(f"{name} IS NOT NULL" for name in _OF_FEED))
    known = segments.select(*by, "sequence", "last.*").unionByName(
        of_feeds.select(*by, "sequence", "writer", "batch", *_OF_FEED), allowMissingColumns=True
    )
    return State().after(sorted((row.asDict(recursive=True) for row in known.collect()), key=_in_order))


def _in_order(row: Stored) -> int:
    return int(row["sequence"])


@dataclass
class Memory:
    """What a process knows of a source while it has the lease, and nobody else writes.

    `quarantine_state`: what the quarantine has of it. `schemas`: of the registry, its own. `ensured`: the tables by
    rule that were seen to be there, and in which version.
    """

    checkpoint: str = ""
    state: State | None = None
    quarantine_state: QuarantineState | None = None
    schemas: Schemas | None = None
    ensured: dict[str, int] = field(default_factory=dict)

    def before(self, warehouse: Warehouse, source: str, *, checkpoint: str, batch: int) -> State:
        """What silver knew before a batch of its stream."""
        known = self.state if self.checkpoint == checkpoint else None
        if known is None or known.last_batch >= batch:  # the batch is repeated
            writer = writer_of(source, checkpoint)
            known = read_state(warehouse, source, checkpoint=checkpoint, writer=writer, batch=batch)
        self.checkpoint, self.state = checkpoint, known
        return known

    def begin(self, warehouse: Warehouse, source: str) -> str:
        """The identity of the checkpoint of the source's silver, as it is now; of another one nothing is known."""
        checkpoint = checkpoint_of(warehouse, source)
        if checkpoint != self.checkpoint:
            self.checkpoint, self.state = checkpoint, None
        return checkpoint

    def now(self, warehouse: Warehouse, source: str) -> State:
        """What silver knows now."""
        self.checkpoint = self.checkpoint or checkpoint_of(warehouse, source)
        if self.state is None:
            self.state = read_state(warehouse, source, checkpoint=self.checkpoint)
        return self.state

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process, as a stream's batches do over Spark Connect: from then on it remembers."""
        moved = dict(vars(self))
        self.forget()
        return moved

    def forget(self) -> None:
        """What is known is read again when it is asked for."""
        self.checkpoint, self.state, self.quarantine_state, self.schemas, self.ensured = "", None, None, None, {}


def append(
    warehouse: Warehouse,
    state: State,
    rows: Iterable[Stored],
    *,
    of_batch: Mapping[str, Any],
    writer: str,
    started_at: datetime | None = None,
) -> State:
    """Write the rows of a batch down, once; the state after it. `of_batch`: run, source, checkpoint and batch."""
    written = [{**of_batch, **row, "writer": writer, "sequence": state.sequence + 1} for row in rows]
    if written:
        number = of_batch["batch"] or 0
        append_rows(warehouse, "silver", written, writer=writer, number=number, started_at=started_at)
    return state.after(written)


def finished(warehouse: Warehouse, names: Collection[str]) -> set[str]:
    """Those of these batches (`batch_name`) that are in `ops.batches`."""
    name = F.concat("writer", F.lit(" "), F.coalesce(F.col("batch").cast("string"), F.lit("")))
    found = batches(warehouse, "silver").select(name.alias("name")).where(F.col("name").isin(*names)).distinct()
    return {row["name"] for row in found.collect()}


def pending_ranges(audit: DataFrame, *, source: str, checkpoint: str) -> DataFrame:
    """topic, topic_id, partition, first, last: the ranges of offsets that are pending for suspended tables."""
    of_silver = audit.where((F.col("source") == source) & (F.col("checkpoint") == checkpoint))
    resumed = of_silver.where("resumed").groupBy("feed").agg(F.max("batch").alias("resumed_to"))
    return (
        of_silver.where("suspended.first_offset IS NOT NULL")
        .join(resumed, on="feed", how="left")
        .where(F.col("resumed_to").isNull() | (F.col("batch") > F.col("resumed_to")))
        .select(
            *TOPIC_PARTITION,
            F.col("suspended.first_offset").alias("first"),
            F.col("suspended.last_offset").alias("last"),
        )
    )


def audited(warehouse: Warehouse, *, run: str) -> list[Stored]:
    """What all batches of a run have counted: source, feed, `read` and its outcomes, `judged` and `failed_rules`."""
    rows = batches(warehouse, "silver").where((F.col("run") == run) & F.col("read").isNotNull())
    return [row.asDict() for row in rows.select("source", "feed", *COUNTED, "judged", "failed_rules").collect()]


def rule_counts(rows: Iterable[Stored]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """By source, feed and rule: how many changes were judged (`audited`), and how many have failed."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in rows:
        for rule, times in (row["failed_rules"] or {}).items():
            evaluated, failed = found.get((row["source"], row["feed"], rule), (0, 0))
            found[row["source"], row["feed"], rule] = evaluated + row["judged"], failed + times
    return found
