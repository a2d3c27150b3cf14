"""Bronze compared with the batch audit: what became of every record, and what does not add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from bronze import conservation as of_bronze
from bronze.batches import planned_of
from bronze.events import events_table
from bronze.source_state import steps_in
from lakehouse.batches import BATCHES, Layer
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.findings import COLUMNS, joined
from lakehouse.kafka.ranges import TOPIC_PARTITION, overlaid
from lakehouse.spark.materialized import materialized
from silver.accounts import conservation as of_silver
from silver.accounts.audit import pending_ranges
from silver.order.state import COUNTED

if TYPE_CHECKING:
    from pyspark.sql import Row

MAX_OF_A_KIND = 20
PENDING = "pending"


@dataclass(frozen=True)
class Findings:
    """The findings of a kind: how many, of how many records, and the first MAX_OF_A_KIND (of PENDING all)."""

    number: int
    records: int
    shown: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Account:
    """What became of a source's records: of every topic-partition its counts; and what was found, by kind."""

    source: str
    topic_partitions: Sequence[Mapping[str, Any]]
    findings: Mapping[str, Findings]


def account_of(warehouse: Warehouse, source: str) -> Account:
    """The source's account, from the tables alone. Raises TableError when it has no bronze table yet.

    A job may be at work: what is written first is read last, so that nothing seems to be missing.
    """
    audit = audit_now(warehouse, source)
    of_source = _now(warehouse, "bronze").where(F.col("source") == source)
    planned = planned_of(of_source)
    stopped = pending_ranges(audit_now(warehouse, source))
    name = events_table(source).name
    events = warehouse.read(name, version=warehouse.version(name))
    kinds = {
        "stored": of_bronze.stored_ranges(events),
        "asked": of_bronze.asked_ranges(planned),
        "skipped": of_bronze.skipped_ranges(steps_in(of_source)),
        "counted": of_silver.counted_ranges(audit),
        "suspended": stopped,
    }
    around = of_silver.with_counted_to(of_bronze.with_surroundings(overlaid(kinds)))
    with materialized(around) as ranges, materialized(of_bronze.short_batches(ranges, planned)) as short:
        came_to = of_silver.came_to(ranges).collect()[0]["came_to"]
        found = [
            of_bronze.stored_twice(ranges),
            of_bronze.missing(ranges),
            of_bronze.never_read(ranges),
            of_bronze.known_skips(ranges),
            of_silver.not_counted(ranges, came_to=came_to),
            of_silver.suspended_records(ranges),
            of_silver.counted_twice(ranges),
            of_silver.unbalanced(audit),
        ]
        # Hardly ever there: without them there is nothing to compare.
        if not short.isEmpty():
            found.append(of_bronze.missing_of_batches(ranges, short))
        rows = of_silver.suspicious(audit)
        if not rows.isEmpty():
            found.append(of_silver.read_otherwise(rows, ranges))
        findings = _by_kind(_first_of_each_kind(joined(reduce(DataFrame.unionByName, found))).collect())
    return Account(source, _counts_by_partition(of_silver.totals(audit).collect(), findings), findings)


def skipped_topics(warehouse: Warehouse, sources: Iterable[str]) -> set[str]:
    """The topics of these sources of which offsets were skipped, by command or by `start`, and not read since."""
    found: set[str] = set()
    for source in sources:
        of_source = _now(warehouse, "bronze").where(F.col("source") == source)
        skipped = of_bronze.skipped_ranges(steps_in(of_source))
        if skipped.isEmpty():
            continue
        events = warehouse.read(events_table(source).name)
        kinds = {
            "stored": of_bronze.stored_ranges(events),
            "asked": of_bronze.asked_ranges(planned_of(of_source)),
            "skipped": skipped,
            "counted": of_silver.counted_ranges(audit_now(warehouse, source)),
        }
        skips = of_bronze.known_skips(overlaid(kinds))
        found |= {row["topic"] for row in skips.select("topic").distinct().collect()}
    return found


def audit_now(warehouse: Warehouse, source: str) -> DataFrame:
    """The batch audit of the source as it is now, since silver was last rebuilt; empty before its first run."""
    return of_silver.of_this_generation(_now(warehouse, "silver"), source=source)


def _now(warehouse: Warehouse, layer: Layer) -> DataFrame:
    """The layer's rows of `ops.batches` as they are now, also when they are asked later; none when it is not there."""
    if not warehouse.exists(BATCHES.name):
        return inline_rows(warehouse.spark, [], BATCHES.columns)
    return warehouse.read(BATCHES.name, version=warehouse.version(BATCHES.name)).where(F.col("layer") == layer)


def _first_of_each_kind(findings: DataFrame) -> DataFrame:
    of_kind = Window.partitionBy("kind")
    in_order = of_kind.orderBy(*TOPIC_PARTITION, "first", "batch")
    return (
        findings.withColumns(
            {
                "number": F.count(F.lit(1)).over(of_kind),
                "of_all": F.sum("records").over(of_kind),
                "row": F.row_number().over(in_order),
            }
        )
        .where((F.col("row") <= MAX_OF_A_KIND) | (F.col("kind") == PENDING))
        .orderBy("kind", "row")
    )


def _by_kind(rows: Sequence[Row]) -> dict[str, Findings]:
    shown: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        line = {name: row[name] for name in COLUMNS if name != "kind" and row[name] is not None}
        shown.setdefault(row["kind"], []).append(line)
    of_all = {row["kind"]: (row["number"], row["of_all"]) for row in rows}
    return {kind: Findings(*of_all[kind], some) for kind, some in shown.items()}


def _counts_by_partition(totals: Sequence[Row], findings: Mapping[str, Findings]) -> list[Mapping[str, Any]]:
    """Of every topic-partition, the counts of the batch audit, and how many records are pending for silver."""
    counts: dict[tuple[Any, ...], dict[str, int]] = {
        tuple(row[name] for name in TOPIC_PARTITION): {count: row[count] for count in COUNTED} for row in totals
    }
    waits = findings[PENDING].shown if PENDING in findings else ()
    pending = {tuple(one[name] for name in TOPIC_PARTITION): one["records"] for one in waits}
    nothing = dict.fromkeys(COUNTED, 0)
    return [
        {
            **dict(zip(TOPIC_PARTITION, topic_partition, strict=True)),
            **counts.get(topic_partition, nothing),
            PENDING: pending.get(topic_partition, 0),
        }
        for topic_partition in sorted({*counts, *pending})
    ]
