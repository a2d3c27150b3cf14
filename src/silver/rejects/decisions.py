"""What people ask of records in quarantine, carried out by silver's own path: judged again, placed, folded and merged.

A request is written down first (state and request id) and carried out afterwards, by the command or by the next run of
silver: so a crash in between loses nothing. The keys of the records are derived again (silver.lookback.rederive), since
a tombstone behind a record may have meant it. The batch audit moves what passes from quarantined to what became of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.materialized import materialized
from silver.accounts.audit import append, read_state
from silver.batch.apply_feed import apply_feed, positioned
from silver.batch.missing_columns import missing_columns
from silver.batch.outcome import (
    BatchOutcome,
    FeedBatch,
    entries,
    judged_of_feed,
    learned,
)
from silver.batch.records import ValidatedRecords, count
from silver.job import SilverJob
from silver.order.facts import IGNORED
from silver.order.missing_columns import lacking_columns
from silver.order.runs import TopicPartition
from silver.order.state import OUTCOMES, batch_name, correction_row, segment_rows, writer_of
from silver.rejects import quarantine
from silver.rejects.quarantine import OF_RECORD, QUARANTINE, QuarantineState, as_bronze, decided_or_pending
from silver.schema.schemas import Schemas, learn_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Request:
    """What a person asks of entries: `state` (retried, released, discarded), who, why, and the id of the request."""

    state: str
    by: str
    why: str
    id: str


@dataclass(frozen=True)
class _RequestedDecision:
    """A request for records of one table, of this generation of silver."""

    feed: Feed
    request: str
    generation: str


def may_become(state: str) -> Column:
    """Which entries a request for this state is about: none that is in silver, none whose source position is wrong."""
    before = {"retried": ("open", "discarded"), "released": ("open", "discarded"), "discarded": ("open",)}[state]
    is_sound = F.lit(True) if state == "discarded" else ~F.col("is_damaged")
    return F.col("state").isin(*before) & is_sound


def ask(warehouse: Warehouse, request: Request, *, chosen: Column) -> None:
    """Write the request down for those of the chosen entries that it can be about."""
    finished = F.current_timestamp() if request.state == "discarded" else F.lit(None).cast("timestamp")
    warehouse.delta(QUARANTINE.name).update(
        chosen & may_become(request.state),
        {
            "state": F.lit(request.state),
            "state_by": F.lit(request.by),
            "state_why": F.lit(request.why),
            "state_at": F.current_timestamp(),
            "request": F.lit(request.id),
            "finished_at": finished,
        },
    )


def judged_again(
    warehouse: Warehouse, contracts: Contracts, chosen: DataFrame, state: str, *, known: Schemas
) -> dict[str, Counter[str]]:
    """Of every table, how many of the chosen entries would `pass` gate 1 now, and how many would `fail`."""
    found: dict[str, Counter[str]] = {}
    learn_of(warehouse, as_bronze(chosen), known)
    for row in chosen.select("feed").distinct().collect():
        feed = contracts.feeds[row["feed"]].model_copy(update={"schemas": known.known})
        of_feed = chosen.where(F.col("feed") == feed.name)
        decisions = of_feed.select(*OF_RECORD, F.lit(state).alias("decision"))
        batch = FeedBatch(
            warehouse=warehouse,
            name="",
            feed=feed,
            rules=contracts.silver_gate.rules(feed.name),
            rows=(),
            run="",
            state=read_state(warehouse, feed.source),
            quarantine_state=QuarantineState(),
            request="",
        )
        with ExitStack() as stack:
            _batch, change_events = _judged(batch, as_bronze(of_feed), decisions, stack)
            counted = change_events.groupBy((F.col("kind") == "quarantined").alias("fails")).count().collect()
        found[feed.name] = Counter({"fail" if one["fails"] else "pass": one["count"] for one in counted})
    return found


def carry_out(warehouse: Warehouse, job: SilverJob) -> dict[str, Counter[str]]:
    """Carry out every request for records that this silver has read; by table, how many came to which outcome.

    `quarantined`: they may still not pass, and are open again, with the reasons of today.
    """
    generation = job.memory.now(warehouse, job.source).generation
    is_asked = F.col("state").isin("retried", "released") & F.col("finished_at").isNull()
    pending = warehouse.read(QUARANTINE.name).where(
        (F.col("source") == job.source) & is_asked & (F.col("generation") == generation)
    )
    found: dict[str, Counter[str]] = {}
    for row in pending.select("feed", "request").distinct().orderBy("feed", "request").collect():
        if row["feed"] in job.feeds:
            records = pending.where((F.col("feed") == row["feed"]) & (F.col("request") == row["request"]))
            asked = _RequestedDecision(job.feeds[row["feed"]], row["request"], generation)
            came_to = _apply(warehouse, job, asked, records)
            found.setdefault(row["feed"], Counter()).update(came_to)
    if found:
        job.memory.forget()
    return found


def _apply(warehouse: Warehouse, job: SilverJob, asked: _RequestedDecision, pending: DataFrame) -> Counter[str]:
    """What came of the request's records. Every step can be repeated."""
    with ExitStack() as stack:
        wanted = stack.enter_context(materialized(pending.select(*OF_RECORD)))
        batch, records = _read_again(warehouse, job, asked, wanted, stack)
        passing = _passing(records)
        outcome = BatchOutcome()
        if passing:
            outcome = apply_feed(batch, ValidatedRecords(batch.feed, warehouse.spark, kept=records))
        quarantine.add(warehouse, entries(batch, records), job.source)
        retried = _write_down(batch, job, asked, passing, outcome)
        quarantine.passed(warehouse, records.where(F.col("kind") != "quarantined"), job.source)
        read = batch.total("read")
    came_to = Counter({kind: sum(row[kind] for row in retried) for kind in OUTCOMES})
    came_to["quarantined"] += read
    return +came_to


def _read_again(
    warehouse: Warehouse, job: SilverJob, asked: _RequestedDecision, wanted: DataFrame, stack: ExitStack
) -> tuple[FeedBatch, DataFrame]:
    """The wanted records (OF_RECORD) as bronze has them, through gate 1; as a batch of their feed."""
    feed, rules = asked.feed, job.rules(asked.feed.name)
    known = read_state(warehouse, job.source, excluding=_writer(feed, asked))
    bronze = warehouse.read(f"bronze.{job.source}_events").withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
    rows = bronze.join(F.broadcast(wanted), on=OF_RECORD, how="left_semi").drop("topic_id")
    learn_of(warehouse, rows, job.schemas)
    decisions = decided_or_pending(warehouse.read(QUARANTINE.name), feed, asked=asked.request)
    batch = FeedBatch(
        warehouse=warehouse,
        name=batch_name(_writer(feed, asked), None),
        feed=feed,
        rules=rules,
        rows=(),
        run=job.run,
        state=known,
        quarantine_state=quarantine.quarantine_state(warehouse, job.source),
        request=asked.request,
        erased=job.erased.get(feed.name),
    )
    return _judged(batch, rows, decisions, stack)


def _judged(batch: FeedBatch, rows: DataFrame, decisions: DataFrame, stack: ExitStack) -> tuple[FeedBatch, DataFrame]:
    """Bronze rows of the batch's feed through gate 1, kept until `stack` closes; and the batch with their counts."""
    feed, rules = batch.feed, batch.rules
    named = [rule.name for rule in rules]
    records = stack.enter_context(materialized(judged_of_feed(rows, feed, rules, decisions=decisions)))
    batch = replace(batch, rows=count([ValidatedRecords(feed, rows.sparkSession, kept=records)], {feed.name: named}))
    if not lacking_columns(feed, batch.rows):
        return batch, records
    missing = missing_columns(batch, positioned(batch, records), stack)
    again = judged_of_feed(rows, feed, rules, decisions=decisions, missing=missing)
    records = stack.enter_context(materialized(again))
    counted = count([ValidatedRecords(feed, rows.sparkSession, kept=records)], {feed.name: named})
    return replace(batch, rows=counted, missing=missing), records


def _writer(feed: Feed, asked: _RequestedDecision) -> str:
    """Under which name what was asked is written down, once."""
    return writer_of(feed.source, asked.generation, asked.request, feed.name)


def _write_down(
    batch: FeedBatch,
    job: SilverJob,
    asked: _RequestedDecision,
    passing: Mapping[TopicPartition, Mapping[str, int]],
    outcome: BatchOutcome,
) -> Sequence[Mapping[str, Any]]:
    """What silver has learned, once for a request. Returns the rows of its own records."""
    feed, retried = batch.feed, retried_rows(batch.feed.name, passing, outcome)
    # What the records say of columns was counted when they were read first.
    counted = [{**row, "judged": 0, "absent_columns": {}} for row in batch.rows]
    rows = [*retried, *learned(feed.name, outcome), *segment_rows(batch.state, counted)]
    of_batch = {"run": batch.run, "source": feed.source, "generation": asked.generation, "batch": None}
    append(batch.warehouse, batch.state, rows, of_batch=of_batch, writer=_writer(feed, asked))
    job.count(rows)
    return retried


def retried_rows(
    feed: str, passing: Mapping[TopicPartition, Mapping[str, int]], outcome: BatchOutcome
) -> Sequence[dict[str, Any]]:
    """Rows of `ops.batches` that move records out of quarantine: to what became of them.

    `passing`: of every topic-partition, how many of them pass (`records`), and how many of these are `ignored`.
    """
    rows = []
    for topic_partition, numbers in passing.items():
        came_to = outcome.counts.get(topic_partition, {})
        left = came_to.get("quarantined", 0) - numbers["records"]
        rows.append(
            correction_row(feed, topic_partition, {**came_to, "ignored": numbers["ignored"], "quarantined": left})
        )
    return rows


def _passing(records: DataFrame) -> dict[TopicPartition, dict[str, int]]:
    passes = records.where(F.col("kind") != "quarantined")
    is_ignored = F.count_if(F.col("kind").isin(*IGNORED)).alias("ignored")
    rows = passes.groupBy(*TOPIC_PARTITION).agg(F.count(F.lit(1)).alias("records"), is_ignored).collect()
    return {
        (row["topic"], row["topic_id"], row["partition"]): {"records": row["records"], "ignored": row["ignored"]}
        for row in rows
    }
