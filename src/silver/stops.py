"""Tables that are stopped: what gate 1 found is too bad to go on with, so nothing of the batch is applied to them.

The other tables of the source go on. What a stopped table is told meanwhile stays in bronze, and its ranges of offsets
in `ops.stopped_feeds`; every run reads them again, and goes on when the rules of today, or a person, let it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.contracts import Expectation, Feed
from lakehouse.errors import FeedStoppedError
from lakehouse.tables import TableSpec, Warehouse, small_table
from silver.runs import Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_WAITING = """
    source STRING, feed STRING, checkpoint STRING, batch BIGINT, topic STRING, topic_id STRING, partition INT,
    first_offset BIGINT, last_offset BIGINT, records BIGINT, rule STRING, why STRING, run STRING
"""
# One row a batch and topic-partition that waits. `why`: of the batch that stopped the table, else NULL. `resumed_at`:
# when it was read after all.
STOPPED = TableSpec(name="ops.stopped_feeds", columns=f"{_WAITING}, stopped_at TIMESTAMP, resumed_at TIMESTAMP")
BUDGET = "poison_budget"


@dataclass(frozen=True)
class Reach:
    """What a batch has of a topic-partition."""

    place: Place
    first: int
    last: int
    records: int
    value_bytes: int = 0


@dataclass(frozen=True)
class Stop:
    """Why a table is stopped: the rule (or BUDGET), what it says, why, and of so many records how many failed."""

    rule: str
    description: str
    why: str
    failed: int = 0
    judged: int = 0


def found(feed: Feed, rules: Sequence[Expectation], rows: Iterable[Row]) -> Stop | None:
    """What stops the table: a rule with `on_failure: fail` that is not met, or more rejects than its budget.

    `rows`: the counts (COUNTS) of its records.
    """
    counted = list(rows)
    judged = sum(row["judged"] for row in counted)
    failures = {
        rule.name: sum(row["failed_rules"].get(rule.name, 0) for row in counted)
        for rule in rules
        if rule.on_failure != "warn"
    }
    for rule in rules:
        if rule.on_failure == "fail" and not rule.is_met(failed=failures[rule.name], evaluated=judged):
            why = f"{failures[rule.name]:,} of {judged:,} changes fail {rule.name} ({rule.description})"
            return Stop(rule.name, rule.description, why, failures[rule.name], judged)
    rejected = sum(row["quarantined"] for row in counted)
    read = rejected + sum(row["changes"] + row["truncates"] for row in counted)
    budget = feed.poison_budget
    if budget is None or rejected <= budget.records or rejected <= budget.share * read:
        return None
    most = sorted((name for name in failures if failures[name]), key=lambda name: -failures[name])
    by_rule = ", ".join(f"{name} {failures[name]:,}" for name in most) or "values that do not fit, unreadable records"
    why = f"{rejected:,} of {read:,} records may not pass, and the budget is {budget.share:.0%} ({by_rule})"
    return Stop(BUDGET, "Not too many records of a batch are rejected.", why, rejected, read)


@dataclass(frozen=True)
class Standing:
    """The tables of a source that are stopped, and why; and those that had not taken a batch and have done so since."""

    stopped: Mapping[str, str]
    taken: Collection[str]


def standing(warehouse: Warehouse, source: str, checkpoint: str, *, batch: int | None = None) -> Standing:
    """How the source's tables stand, for the silver of this checkpoint and, when it is repeated, this batch."""
    waits = F.col("resumed_at").isNull()
    rows = (
        warehouse.read(STOPPED.name)
        .where(_of_silver(source, checkpoint) & (waits | (F.col("batch") == F.lit(batch))))
        .groupBy("feed")
        .agg(F.bool_or(waits).alias("waits"), F.min_by(F.when(waits, F.col("why")), "batch").alias("why"))
        .collect()
    )
    return Standing(
        {row["feed"]: row["why"] for row in rows if row["waits"]}, {row["feed"] for row in rows if not row["waits"]}
    )


def held_ranges(stopped: DataFrame, *, source: str, checkpoint: str) -> DataFrame:
    """The ranges of offsets that wait for stopped tables."""
    waits = _of_silver(source, checkpoint) & F.col("resumed_at").isNull()
    ranges = F.col("first_offset").alias("first"), F.col("last_offset").alias("last")
    return stopped.where(waits).select("topic", "topic_id", "partition", *ranges)


def waiting(warehouse: Warehouse, source: str, checkpoint: str, feed: str) -> tuple[int, dict[Place, tuple[int, int]]]:
    """The last batch that a stopped table has not taken, and of every place the offsets that wait."""
    rows = (
        warehouse.read(STOPPED.name)
        .where(_of_silver(source, checkpoint) & F.col("resumed_at").isNull() & (F.col("feed") == feed))
        .groupBy("topic", "topic_id", "partition")
        .agg(F.max("batch").alias("batch"), F.min("first_offset").alias("first"), F.max("last_offset").alias("last"))
        .collect()
    )
    ranges = {(row["topic"], row["topic_id"], row["partition"]): (row["first"], row["last"]) for row in rows}
    return max(row["batch"] for row in rows), ranges


def hold_back(
    warehouse: Warehouse,
    reaches: Iterable[Reach],
    feeds: Collection[Feed],
    new: Mapping[str, Stop],
    *,
    batch: Mapping[str, Any],
    writer: str,
) -> None:
    """Write down what a batch has for stopped tables. `new`: those that it stops. `batch`: what all rows say of it."""
    rows = [
        {
            **batch,
            "feed": feed.name,
            **dict(zip(("topic", "topic_id", "partition"), reach.place, strict=True)),
            "first_offset": reach.first,
            "last_offset": reach.last,
            "records": reach.records,
            "rule": new[feed.name].rule if feed.name in new else None,
            "why": new[feed.name].why if feed.name in new else None,
        }
        for reach in reaches
        for feed in feeds
        if feed.has_topic(reach.place[0])
    ]
    times = {"stopped_at": F.current_timestamp(), "resumed_at": F.lit(None).cast("timestamp")}
    found_rows = small_table(warehouse.spark, rows, _WAITING).withColumns(times)
    warehouse.append_once(STOPPED.name, found_rows, writer=writer, number=batch["batch"])


def resumed(warehouse: Warehouse, source: str, checkpoint: str, feed: str) -> None:
    """Write down that the table has taken what waited."""
    waits = _of_silver(source, checkpoint) & F.col("resumed_at").isNull() & (F.col("feed") == feed)
    warehouse.delta(STOPPED.name).update(waits, {"resumed_at": F.current_timestamp()})


def stopped_error(reasons: Mapping[str, str]) -> FeedStoppedError:
    """What the run ends with: the tables that it has left as they were, and what to do."""
    named = "; ".join(f"silver.{feed} is stopped: {why}" for feed, why in sorted(reasons.items()))
    return FeedStoppedError(
        f"{named}. Nothing of this was applied; the other tables went on.",
        remedy="Mend the rule or the contract and run silver again, or let such records wait in quarantine: "
        + " ".join(["lakehouse silver", *[f"--accept-rejects {feed}" for feed in sorted(reasons)]])
        + ".",
    )


def _of_silver(source: str, checkpoint: str) -> Column:
    return (F.col("source") == source) & (F.col("checkpoint") == checkpoint)
