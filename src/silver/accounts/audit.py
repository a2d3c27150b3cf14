"""What silver writes down of every batch, in one append, last: a batch that is in `ops.batches` is done.

The last segments and all feed rows together are the state (`State`): read once when a process starts, then remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F

from lakehouse.batches import append as append_rows
from lakehouse.batches import batches
from lakehouse.delta.tables import TableSpec, Warehouse
from lakehouse.kafka.ranges import TOPIC_PARTITION
from silver.order.ranges import ReadRanges
from silver.order.runs import SEGMENT_KEY
from silver.order.state import State, Stored, read_row, writer_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from silver.fold.erased import ErasedKeys
    from silver.rejects.quarantine import QuarantineState
    from silver.schema.schemas import Schemas

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

_STATED = ("epochs", "cutoffs", "first_sent", "unreadable", "suspended", "resumed")


def read_state(warehouse: Warehouse, source: str, *, excluding: str | None = None) -> State:
    """What the last generation of the source's silver knows; without what one writer has written (`excluding`)."""
    return read_states(warehouse, [source], excluding=excluding)[source]


def read_states(warehouse: Warehouse, sources: Collection[str], *, excluding: str | None = None) -> dict[str, State]:
    """The same of several sources, by one query."""
    rows = batches(warehouse, "silver").where(F.col("source").isin(*sources))
    if excluding is not None:
        rows = rows.where(F.col("writer") != excluding)
    by = ("source", "generation", "feed", *SEGMENT_KEY)
    last = F.max_by(F.struct("writer", "batch", "segment", "read_ranges"), "sequence").alias("last")
    is_replaced = "segment IS NOT NULL OR read_ranges IS NOT NULL"
    replaced = rows.where(is_replaced).groupBy(*by).agg(F.max("sequence").alias("sequence"), last)
    stated = rows.where(" OR ".join(f"{name} IS NOT NULL" for name in _STATED))
    known = replaced.select(*by, "sequence", "last.*").unionByName(
        stated.select(*by, "sequence", "writer", "batch", *_STATED), allowMissingColumns=True
    )
    found = sorted((row.asDict(recursive=True) for row in known.collect()), key=_in_order)
    last_of = {row["source"]: row["generation"] for row in found}
    return {
        source: State(last_of.get(source, "")).after(
            row for row in found if (row["source"], row["generation"]) == (source, last_of.get(source))
        )
        for source in sources
    }


def _in_order(row: Stored) -> int:
    return int(row["sequence"])


def begin_generations(warehouse: Warehouse, states: Mapping[str, State]) -> dict[str, State]:
    """A new generation of the silver of each of these sources, which has read nothing; their states before are given.

    Written down before its tables are there: whoever finds one finds its generation.
    """
    begun, rows = {}, []
    for source, before in states.items():
        generation = uuid4().hex
        begins = {
            **read_row(ReadRanges()),
            **{"source": source, "generation": generation, "batch": None, "sequence": before.sequence + 1},
            "writer": writer_of(source, generation, "begins"),
        }
        rows.append(begins)
        begun[source] = State(generation).after([begins])
    append_rows(warehouse, "silver", rows)
    return begun


@dataclass
class StateCache:
    """What a process knows of a source while it has the lock, and nobody else writes.

    `quarantine_state`: what the quarantine has of it. `schemas`: of the registry, its own. `ensured`: the tables by
    rule that were seen to be there, and in which version. `erased`: by table the keys whose rows were erased.
    """

    state: State | None = None
    quarantine_state: QuarantineState | None = None
    schemas: Schemas | None = None
    ensured: dict[str, int] = field(default_factory=dict)
    erased: Mapping[str, ErasedKeys] | None = None

    def now(self, warehouse: Warehouse, source: str) -> State:
        """What silver knows now."""
        if self.state is None:
            self.state = read_state(warehouse, source)
        return self.state

    def forget(self) -> None:
        """What is known is read again when it is asked for."""
        self.state, self.quarantine_state, self.schemas, self.ensured = None, None, None, {}
        self.erased = None


def append(
    warehouse: Warehouse,
    state: State,
    rows: Iterable[Stored],
    *,
    of_batch: Mapping[str, Any],
    writer: str,
    started_at: datetime | None = None,
) -> State:
    """Write the rows of a batch down, once; the state after it. `of_batch`: run, source, generation and batch."""
    written = [{**of_batch, **row, "writer": writer, "sequence": state.sequence + 1} for row in rows]
    if written:
        number = of_batch["batch"] or 0
        append_rows(warehouse, "silver", written, writer=writer, number=number, started_at=started_at)
    return state.after(written)


def finished(warehouse: Warehouse, names: Collection[str]) -> set[str]:
    """Those of these batches (`batch_name`) that are in `ops.batches`, or come before one of the same writer that is.

    A writer begins no batch before the one before it has ended; and old ones are one row (lakehouse.retention).
    """
    writers = {name.rsplit(" ", 1)[0] for name in names}
    rows = batches(warehouse, "silver").where(F.col("writer").isin(*writers)).groupBy("writer")
    last = {
        row["writer"]: row["batch"] for row in rows.agg(F.coalesce(F.max("batch"), F.lit(-1)).alias("batch")).collect()
    }

    def is_finished(name: str) -> bool:
        writer, number = name.rsplit(" ", 1)
        return writer in last and (not number or int(number) <= last[writer])

    return set(filter(is_finished, names))


def pending_ranges(audit: DataFrame) -> DataFrame:
    """topic, topic_id, partition, first, last: the ranges of offsets that are pending for suspended tables.

    `audit`: of one generation of a source's silver.
    """
    resumed = audit.where("resumed").groupBy("feed").agg(F.max("batch").alias("resumed_to"))
    return (
        audit.where("suspended.first_offset IS NOT NULL")
        .join(resumed, on="feed", how="left")
        .where(F.col("resumed_to").isNull() | (F.col("batch") > F.col("resumed_to")))
        .select(
            *TOPIC_PARTITION,
            F.col("suspended.first_offset").alias("first"),
            F.col("suspended.last_offset").alias("last"),
        )
    )


def rule_counts(rows: Iterable[Stored]) -> dict[tuple[str, str], tuple[int, int]]:
    """Of the audit rows of a source, by feed and rule: how many changes were judged, and how many have failed."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        for rule, times in (row.get("failed_rules") or {}).items():
            evaluated, failed = found.get((row["feed"], rule), (0, 0))
            found[row["feed"], rule] = evaluated + row["judged"], failed + times
    return found
