"""`ops.batches`: what the jobs write down of their batches and runs, and all that they know of the past.

Every row has a `layer` and is of one kind, with what that kind has to say and nothing else:

    bronze  planned  a batch of a topic-partition: which offsets it was to read, and what it has stored
            step     a topic-partition at a start, or a move by command: where it was, where it goes on, and why
    silver  audit    a feed in a topic-partition: what was read, and what became of it
            ranges   which offsets of bronze it has read, and up to which of bronze's batches
            segment  a connector run in a topic-partition: what is known of it since this batch
            feed     epochs that have started, cutoffs that hold, from where on a column has had its field, whether its
                     values cannot be read, what is pending for a suspended table, and that it goes on
    gold    state    how far it has come: which versions of tables it, its gates, marts and joins have, and what the
                     gates block (gold.state)
    run     fingerprint  how a run of all jobs that ended well has left the topics and the tables
                     (cli.unchanged)

Rows are appended, never changed: where several state one thing, the one written last holds. Old ones are condensed
(lakehouse.retention). The format of the warehouse's tables is a property of this one, so that older code leaves it
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F

from lakehouse.delta.declared import OWN_PROPERTY
from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from lakehouse.errors import TableError
from lakehouse.retention import ARE_REPLACED, condensed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


Layer = Literal["bronze", "silver", "gold", "run"]

# What this code reads and writes. A new number is for a change that code of this one would read or write wrongly.
# 2: `ops.batches` is all that silver writes down of its batches; 3: and bronze, and gold; 4: and when a batch began;
# 5: and under which contract a table was suspended, and from which position on its records have had the field of a
# column; entries of the quarantine say who has found them, events of an outbox in which topic they were seen;
# 6: and the last key of a topic-partition by another hash; 7: and what silver has read, as ranges of bronze's offsets;
# 8: and gold's state is one row; 9: and records of bronze may be erased.
FORMAT = 9
FORMAT_PROPERTY = f"{OWN_PROPERTY}format"

COORDINATES = "ARRAY<BIGINT>"
# from_offset is included, until_offset is not: Kafka gives an offset to no record now and then (compaction, markers of
# transactions), and only the plan of a batch distinguishes such a gap from a range that nobody read. The first and the
# last offset that have a record, and the lowest Kafka timestamp, are NULL where there was none.
_PLANNED = """
    from_offset: BIGINT, until_offset: BIGINT, records: BIGINT, value_bytes: BIGINT, first_offset: BIGINT,
    last_offset: BIGINT, first_ms: BIGINT
"""
_READ_RANGES = """
    ingested_to: BIGINT,
    ranges: ARRAY<STRUCT<topic: STRING, topic_id: STRING, partition: INT, from_offset: BIGINT, until_offset: BIGINT>>
"""
_STEP = """
    change: BIGINT, from_offset: BIGINT, to_offset: BIGINT, skipped: BIGINT, read_again: BIGINT, reason: STRING
"""
_SEGMENT = f"""
    first_offset: BIGINT, last_offset: BIGINT, lowest: {COORDINATES}, highest: {COORDINATES}, has_end: BOOLEAN,
    first_ms: BIGINT, read_from_ms: BIGINT, read_to_ms: BIGINT, source_names: ARRAY<STRING>,
    highest_timestamp_ms: BIGINT, last_key: BIGINT, last_is_delete: BOOLEAN, with_unchanged_toast: BIGINT,
    judged: BIGINT, absent_columns: MAP<STRING, BIGINT>
"""
_EPOCH = """
    epoch: BIGINT, run_id: STRING, topic: STRING, topic_id: STRING, partition: INT, from_offset: BIGINT
"""
_CUTOFF = """
    reason: STRING, topic: STRING, at_topic: STRING, at_partition: INT, at_offset: BIGINT, position: STRING,
    source_ms: BIGINT
"""
_FIRST_SENT = "topic: STRING, column: STRING, position: ARRAY<BIGINT>"
_SUSPENDED = """
    first_offset: BIGINT, last_offset: BIGINT, records: BIGINT, rule: STRING, why: STRING, contract: STRING
"""

_FINGERPRINT = """
    made_by: STRING, ends: MAP<STRING, BIGINT>, published: MAP<STRING, STRING>, tables: MAP<STRING, STRING>
"""

# Audit rows: read = the sum of the outcomes (silver.order.state). `first_offset`, `last_offset` and `gaps` (offsets
# between that no record has) are written once for a topic-partition, in the row of its first feed; of feeds that share
# it and do not all go on, in each one's row. A later batch that corrects the outcome of a record moves it to another
# one, in a row that reads none.
# `checkpoint`: the identity of bronze's checkpoint. `generation`: of silver; one rebuilt from bronze is another one.
# `writer` and `batch`: who has written, and its number: together they are unique. `sequence`: their order; also of
# bronze's batches, and of gold's states. `read_ranges`: by all batches up to this one; `ingested_to`: up to which of
# bronze's sequence.
# `segment`: of the run `run_id`, its full snapshot at `snapshot_at` apart, over all that was read of it so far.
# `started_at`: when the batch began, of what one does: `written_at` less it is what the layer took for it.
# Of a `fingerprint` when the broker said where the topics end: what has a later offset came after that.
# `first_sent`: by topic of a sharded feed and by column the lowest position so far of a record with its field.
# `unreadable`: why nothing says how the values of a declared table are written; empty: that is over.
# `suspended`: a range that is pending for the table; `rule`, `why`, `contract`: of the batch that suspended it, or,
# without a range, of the last time that it was tried again. `resumed`: the table has taken all ranges up to this batch.
BATCHES = TableSpec(
    name="ops.batches",
    columns=f"""
        layer STRING, run STRING, source STRING, checkpoint STRING, generation STRING, writer STRING, batch BIGINT,
        sequence BIGINT,
        feed STRING, topic STRING, topic_id STRING, partition INT, first_offset BIGINT, last_offset BIGINT,
        read BIGINT, applied BIGINT, superseded BIGINT, duplicate BIGINT, tombstone BIGINT, ignored BIGINT,
        quarantined BIGINT, gaps ARRAY<STRUCT<first: BIGINT, last: BIGINT>>,
        judged BIGINT, failed_rules MAP<STRING, BIGINT>, absent_columns MAP<STRING, BIGINT>,
        run_id STRING, snapshot_at {COORDINATES}, segment STRUCT<{_SEGMENT}>,
        epochs ARRAY<STRUCT<{_EPOCH}>>, cutoffs ARRAY<STRUCT<{_CUTOFF}>>,
        first_sent ARRAY<STRUCT<{_FIRST_SENT}>>, unreadable STRING, suspended STRUCT<{_SUSPENDED}>, resumed BOOLEAN,
        read_ranges STRUCT<{_READ_RANGES}>, planned STRUCT<{_PLANNED}>, step STRUCT<{_STEP}>, state STRING,
        fingerprint STRUCT<{_FINGERPRINT}>, started_at TIMESTAMP, written_at TIMESTAMP
    """,
    partition_by=("layer",),
    properties={FORMAT_PROPERTY: str(FORMAT)},
)

# What a process reads when it starts is a row a batch: that costs by the file, not by the row.
MAX_FILES = 50


def batches(warehouse: Warehouse, layer: Layer) -> DataFrame:
    """The rows of a layer. Raises TableError when there is no such table."""
    return warehouse.read(BATCHES.name).where(F.col("layer") == layer)


def append(
    warehouse: Warehouse,
    layer: Layer,
    rows: Iterable[Mapping[str, Any]],
    *,
    writer: str | None = None,
    number: int = 0,
    started_at: datetime | None = None,
) -> None:
    """Append the rows, written now; those of a `writer` unless it has appended its write `number` already.

    `started_at`: when the batch began that they are about.
    """
    began = None if started_at is None else started_at.isoformat()
    of_layer = [{**row, "layer": layer, "started_at": began} for row in rows]
    found = inline_rows(warehouse.spark, of_layer, BATCHES.columns).withColumn("written_at", F.current_timestamp())
    if writer is None:
        warehouse.append(BATCHES.name, found)
    else:
        warehouse.append_once(BATCHES.name, found, writer=writer, number=number)


def forget_replaced(warehouse: Warehouse, *, before: datetime) -> tuple[int, int]:
    """Keep of rows written `before` then, and of replaced ones, what `condensed` does; how many they were, and are.

    For a job that has the lease.
    """
    condition = f"written_at < timestamp_micros({int(before.timestamp() * 1_000_000)}) OR ({ARE_REPLACED})"
    return warehouse.replace_where(BATCHES.name, condition, partial(_condensed, before=before))


def _condensed(rows: pa.Table, *, before: datetime) -> pa.Table:
    return type(rows).from_pylist(condensed(rows.to_pylist(), before=before), schema=rows.schema)


def has_many_files(warehouse: Warehouse) -> bool:
    """Whether the table has so many files that reading it costs more than it should."""
    return len(warehouse.read(BATCHES.name).inputFiles()) > MAX_FILES


def join_files(warehouse: Warehouse) -> None:
    """Join the table's files: nothing but their number changes. For a job that has the lock."""
    warehouse.delta(BATCHES.name).optimize().executeCompaction()


RELEASE_PROPERTY = "orders-lakehouse-release"
# Tables of earlier formats that this one has not.
_OF_EARLIER_FORMATS = ("ops.warehouse", "ops.ledger")


def check_format(warehouse: Warehouse) -> None:
    """Look whether this code may touch the warehouse: one without tables, or of its own format. Reads only.

    Raises TableError when the format is newer than this code knows, or an older one.
    """
    if warehouse.exists(BATCHES.name):
        properties = warehouse.properties(BATCHES.name)
        found, creator = int(properties.get(FORMAT_PROPERTY, 0)), properties.get(RELEASE_PROPERTY)
    elif any(map(warehouse.exists, _OF_EARLIER_FORMATS)):
        found, creator = 0, None
    else:
        return
    if found == FORMAT:
        return
    kept_in = f"format {found}" if found else "an earlier format"
    by = f"orders-lakehouse {creator}" if creator else "another release of orders-lakehouse"
    written = f"The warehouse {warehouse.location} was written by {by}"
    if found > FORMAT:
        raise TableError(
            f"{written} ({kept_in}); this is {release()} and knows formats up to {FORMAT}.",
            hint="Upgrade, or use another warehouse.",
        )
    raise TableError(
        f"{written} ({kept_in}); this is {release()}, which reads format {FORMAT} alone.",
        hint="Rebuild it from the topics: run with another, empty --warehouse. The old one stays as it is.",
    )


def mark_format(warehouse: Warehouse) -> None:
    """Make `ops.batches` when it is not there, with the format and this release as its properties."""
    if not warehouse.exists(BATCHES.name):
        warehouse.ensure(replace(BATCHES, properties={**BATCHES.properties, RELEASE_PROPERTY: release()}))


def release() -> str:
    """The release of this code."""
    return version("orders-lakehouse")
