"""`ops.batches`: what silver writes down of every batch, in one append, last: a batch that stands there is done.

Its rows are of three kinds, each with what it has to say and nothing else:

    audit    a feed in a topic-partition: what was read, and what became of it
    segment  a connector run in a topic-partition: what is known of it since this batch (silver.order.runs)
    feed     epochs that have started, cutoffs that hold, what waits for a suspended table, and that it has gone on

The last segments and all feed rows together are the state (`State`): read once when a process starts, then remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.ranges import PLACE
from lakehouse.tables import TableSpec, Warehouse, small_table
from silver.order.runs import SEGMENT_KEY
from silver.order.state import State, Stored, job_name, writer_of
from silver.position import COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from silver.quarantine import Standing

_SEGMENT = f"""
    first_offset: BIGINT, last_offset: BIGINT, lowest: {COORDINATES}, highest: {COORDINATES}, has_end: BOOLEAN,
    first_ms: BIGINT, read_from_ms: BIGINT, read_to_ms: BIGINT, source_names: ARRAY<STRING>,
    highest_timestamp_ms: BIGINT, last_key: BIGINT, last_is_delete: BOOLEAN, leaving_out: BIGINT,
    judged: BIGINT, absent_columns: MAP<STRING, BIGINT>
"""
_EPOCH = """
    epoch: BIGINT, run_id: STRING, topic: STRING, topic_id: STRING, partition: INT, from_offset: BIGINT
"""
_CUTOFF = """
    reason: STRING, topic: STRING, at_topic: STRING, at_partition: INT, at_offset: BIGINT, position: STRING
"""
_SUSPENDED = "first_offset: BIGINT, last_offset: BIGINT, records: BIGINT, rule: STRING, why: STRING"

# Audit rows: read = the sum of OUTCOMES. `first_offset`, `last_offset` and `gaps` (offsets between that no record has)
# stand once for a topic-partition, in the row of its first feed; of feeds that share it and do not all go on, in each
# one's row. A later batch that learns better of a record moves it to another outcome, in a row that reads none.
# `checkpoint`: the identity of silver's checkpoint; a silver that is made anew from bronze has another one. `writer`
# and `batch`: who has written, and its number: together they stand there once. `sequence`: the order of the writes.
# `segment`: of the run `run_id`, its full snapshot at `snapshot_at` apart, over all that was read of it so far.
# `suspended`: a range that waits for the table; `why`: of the batch that suspended it, else NULL. `resumed`: the table
# has taken all ranges up to this batch.
BATCHES = TableSpec(
    name="ops.batches",
    columns=f"""
        run STRING, source STRING, checkpoint STRING, writer STRING, batch BIGINT, sequence BIGINT, feed STRING,
        topic STRING, topic_id STRING, partition INT, first_offset BIGINT, last_offset BIGINT,
        read BIGINT, applied BIGINT, superseded BIGINT, duplicate BIGINT, tombstone BIGINT, ignored BIGINT,
        quarantined BIGINT, gaps ARRAY<STRUCT<first: BIGINT, last: BIGINT>>,
        judged BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>,
        run_id STRING, snapshot_at {COORDINATES}, segment STRUCT<{_SEGMENT}>,
        epochs ARRAY<STRUCT<{_EPOCH}>>, cutoffs ARRAY<STRUCT<{_CUTOFF}>>,
        suspended STRUCT<{_SUSPENDED}>, resumed BOOLEAN, written_at TIMESTAMP
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

TABLES = (BATCHES, OUTBOX_EVENTS)

_OF_FEED = ("epochs", "cutoffs", "suspended", "resumed")
# What a process reads when it starts is a row a batch: that costs by the file, not by the row.
MOST_FILES = 50


def checkpoint_of(warehouse: Warehouse, source: str) -> str:
    """The identity of the checkpoint of the source's silver: another one when silver is rebuilt; empty without."""
    return warehouse.checkpoint_id(job_name(source)) or ""


def join_files(warehouse: Warehouse) -> None:
    """Join the table's files where they are many: a process that ends after a batch leaves one, and joins none itself.

    Nothing but their number changes. For a job that has the lease, before its sources begin.
    """
    if len(warehouse.read(BATCHES.name).inputFiles()) > MOST_FILES:
        warehouse.delta(BATCHES.name).optimize().executeCompaction()


def read_state(
    warehouse: Warehouse, source: str, *, checkpoint: str, writer: str | None = None, batch: int | None = None
) -> State:
    """What this silver knows; for a batch of `writer` what it knew before it, also when it is repeated."""
    is_own = (F.col("writer") == F.lit(writer)) & F.col("batch").eqNullSafe(F.lit(batch).cast("bigint"))
    of_silver = (F.col("source") == source) & (F.col("checkpoint") == checkpoint) & ~F.coalesce(is_own, F.lit(False))
    rows = warehouse.read(BATCHES.name).where(of_silver)
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

    `standing`: what the quarantine has of it.
    """

    checkpoint: str = ""
    state: State | None = None
    standing: Standing | None = None

    def before(self, warehouse: Warehouse, source: str, *, checkpoint: str, batch: int) -> State:
        """What silver knew before a batch of its stream."""
        known = self.state if self.checkpoint == checkpoint else None
        if known is None or known.last_batch >= batch:  # the batch is repeated
            writer = writer_of(source, checkpoint)
            known = read_state(warehouse, source, checkpoint=checkpoint, writer=writer, batch=batch)
        self.checkpoint, self.state = checkpoint, known
        return known

    def now(self, warehouse: Warehouse, source: str, *, checkpoint: str) -> State:
        """What silver knows now."""
        if self.state is None or self.checkpoint != checkpoint:
            self.checkpoint, self.state = checkpoint, read_state(warehouse, source, checkpoint=checkpoint)
        return self.state

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process, as a stream's batches do over Spark Connect: from then on it remembers."""
        moved = dict(vars(self))
        self.forget()
        return moved

    def forget(self) -> None:
        """What is known is read again when it is asked for."""
        self.checkpoint, self.state, self.standing = "", None, None


def append(
    warehouse: Warehouse, state: State, rows: Iterable[Stored], *, of_batch: Mapping[str, Any], writer: str
) -> State:
    """Write the rows of a batch down, once; the state after it. `of_batch`: run, source, checkpoint and batch."""
    written = [{**of_batch, **row, "writer": writer, "sequence": state.sequence + 1} for row in rows]
    if written:
        found = small_table(warehouse.spark, written, BATCHES.columns).withColumn("written_at", F.current_timestamp())
        warehouse.append_once(BATCHES.name, found, writer=writer, number=of_batch["batch"] or 0)
    return state.after(written)


def waiting_ranges(batches: DataFrame, *, source: str, checkpoint: str) -> DataFrame:
    """topic, topic_id, partition, first, last: the ranges of offsets that wait for suspended tables."""
    of_silver = batches.where((F.col("source") == source) & (F.col("checkpoint") == checkpoint))
    taken = of_silver.where("resumed").groupBy("feed").agg(F.max("batch").alias("taken"))
    return (
        of_silver.where("suspended IS NOT NULL")
        .join(taken, on="feed", how="left")
        .where(F.col("taken").isNull() | (F.col("batch") > F.col("taken")))
        .select(*PLACE, F.col("suspended.first_offset").alias("first"), F.col("suspended.last_offset").alias("last"))
    )


def rule_counts(batches: DataFrame, *, run: str) -> DataFrame:
    """source, feed, rule, evaluated, failed: how every row rule came out over all batches of a run."""
    return (
        batches.where((F.col("run") == run) & F.col("feed").isNotNull())
        .select("source", "feed", "judged", F.explode("failed_rules").alias("rule", "times"))
        .groupBy("source", "feed", "rule")
        .agg(F.sum("judged").alias("evaluated"), F.sum("times").alias("failed"))
    )
