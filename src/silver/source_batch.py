"""One batch of a source: ranges of bronze's offsets, through gate 1, and each of its feeds applied to its table.

A table whose records are too bad to go on with is suspended (silver.rejects.suspended), and the others go on. Every
step can be repeated: the MERGE is guarded by position, rejects by their Kafka coordinates, `ops.batches` by the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import MissingRecordsError
from lakehouse.quality.results import RESULTS, Result, result_rows
from lakehouse.spark.sizing import rows_to_search, tuned_for
from silver.accounts.audit import append
from silver.accounts.completeness import needs_record_facts, record_ranges_in, require_all_judged, require_complete
from silver.batch.apply_feed import apply_feed
from silver.batch.events import offset_gaps, offset_ranges
from silver.batch.outcome import (
    BatchOutcome,
    FeedBatch,
    entries,
    learned,
)
from silver.by_rule.changed import is_waiting
from silver.by_rule.tables import suspension
from silver.job import SilverJob
from silver.lookback.earlier_records import in_parts, nameless_falls
from silver.order.history import history
from silver.order.missing_columns import first_sent, lower
from silver.order.ranges import BatchRanges, ReadRanges, RecordRange, record_ranges_of
from silver.order.runs import OffsetRange
from silver.order.state import (
    OfFeed,
    ReadExtent,
    State,
    audit_rows,
    batch_name,
    cause_row,
    feed_row,
    read_extents,
    read_row,
    segment_rows,
    writer_of,
)
from silver.rejects import quarantine
from silver.rejects.quarantine import QuarantineState
from silver.rejects.suspended import Suspension, pending_records, regressed
from silver.schema.schema_changes import unreadable_feeds, unreadable_rows, unreadable_suspensions
from silver.validated import DecodedBatch, ValidatedBatch, ensure_made_tables, judged_batch


@dataclass(frozen=True)
class BatchNumber:
    """A batch of news, or (`part`) what a table takes later: who writes, for which silver, and which number."""

    job: SilverJob
    batch_id: int
    generation: str
    part: str = ""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def writer(self) -> str:
        """Under which name the batch is written down, once."""
        return writer_of(self.job.source, self.generation, *([self.part] if self.part else []))

    @property
    def name(self) -> str:
        """What the batch is called in what it writes elsewhere."""
        return batch_name(self.writer, self.batch_id)

    @property
    def row(self) -> Mapping[str, Any]:
        """What all that is written down says of the batch."""
        job = self.job
        return {"run": job.run, "source": job.source, "generation": self.generation, "batch": self.batch_id}


def apply_ranges(warehouse: Warehouse, batch: BatchRanges, *, job: SilverJob) -> None:
    """Apply these offsets of bronze to the silver tables of the source, and remember that they were read.

    Raises MissingRecordsError when bronze has not as many records there as `ops.batches` says, unless the job goes on
    without, or the table is another one than these were stored in: it was made again since.
    """
    name = f"bronze.{job.source}_events"
    records = in_parts(warehouse.read(name), batch.ranges)
    if batch.ingested is not None and not job.accepts_missing:
        ingested = record_ranges_of(batch.ingested)
        try:
            record_ranges = record_ranges_in(records, job, ingested) if needs_record_facts(job) else ingested
            require_complete(job.source, record_ranges, ingested)
            apply_batch(warehouse, records, record_ranges, job=job, read=batch.after)
            return
        except MissingRecordsError:
            if max(one.written_ms for one in batch.ingested) >= warehouse.created_at_ms(name):
                raise
    apply_batch(warehouse, records, record_ranges_in(records, job), job=job, read=batch.after)


def apply_batch(
    warehouse: Warehouse,
    records: DataFrame,
    record_ranges: Sequence[RecordRange],
    *,
    job: SilverJob,
    read: ReadRanges | None = None,
) -> None:
    """Apply bronze rows of one source to its silver tables. `read`: all that was read, with them."""
    state = job.memory.now(warehouse, job.source)
    number = BatchNumber(job, state.last_batch + 1, state.generation)
    ranges_row = [] if read is None else [read_row(read)]
    topics = sorted({reach.topic_partition[0] for reach in record_ranges})
    if not record_ranges:  # offsets that have no record
        job.memory.state = append(warehouse, state, ranges_row, of_batch=number.row, writer=number.writer)
        return
    job.learn(warehouse, records, record_ranges)
    # What a batch costs follows the feeds that have news in it, not those that are declared.
    feeds = {name: feed for name, feed in job.feeds.items() if any(feed.has_topic(topic) for topic in topics)}
    undiscovered = {name: feed for name, feed in job.undiscovered.items() if any(map(feed.has_topic, topics))}
    suspended = {*state.suspended}
    waiting = _pending_suspensions([*feeds.values(), *undiscovered.values()], but=suspended)
    active = [feed for name, feed in feeds.items() if name not in {*suspended, *waiting}]
    created, failed = ensure_made_tables(warehouse, active, job)
    waiting |= failed
    active = [feed for feed in active if feed.name not in failed]
    ranges = [(reach.topic_partition, reach.first, reach.last) for reach in record_ranges]
    arrived = DecodedBatch(warehouse, records, topics, record_ranges, job, state)
    unreadable = unreadable_feeds(arrived, active)
    suspensions = unreadable_suspensions(unreadable)
    waiting |= {feed.name: suspensions[feed.name] for feed in active if feed.name in suspensions}
    active = [feed for feed in active if feed.name not in waiting]
    sizes = _table_sizes(warehouse, active, empty=created)
    with tuned_for(warehouse.spark, _rows(record_ranges, sizes)), ExitStack() as stack:
        quarantine_state = _quarantine_state(warehouse, job, ranges)
        job.memory.quarantine_state = None  # until the batch is written down: one that breaks off may have added to it
        judged = judged_batch(arrived, active, quarantine_state, stack, state=state)
        require_all_judged(arrived, judged)
        judged = _without_regressed(arrived, judged, state)
        new = {**waiting, **judged.newly_suspended}
        left = [
            job.feeds.get(name, feed) for name, feed in {**feeds, **undiscovered}.items() if name in {*suspended, *new}
        ]
        _store_suspensions(warehouse, new, job)
        causes = {feed.name: job.cause(feed, new[feed.name]) for feed in left if feed.name in new}
        pending = pending_records(_pending(arrived, left), left, causes)
        others = [*pending, *unreadable_rows(unreadable, state), *ranges_row]
        job.memory.state = _apply(arrived, judged, number, sizes, state=state, others=others)


def resume(warehouse: Warehouse, feed: Feed, *, job: SilverJob) -> str | None:
    """Apply the pending records of a suspended table, from bronze; or write down why it stays suspended, and say so."""
    state = job.memory.now(warehouse, job.source)
    suspension = _take_pending(warehouse, feed, job, state)
    job.memory.forget()
    if suspension is None:
        return None
    _store_suspensions(warehouse, {feed.name: suspension}, job)
    # By its contract of now: the records may have changed a table by rule.
    cause = job.cause({**job.undiscovered, **job.feeds}.get(feed.name, feed), suspension)
    if cause != state.causes[feed.name]:
        of_batch = {"run": job.run, "source": job.source, "generation": state.generation, "batch": None}
        writer = writer_of(job.source, state.generation, f"tried {feed.name} {uuid4().hex}")
        append(warehouse, state, [cause_row(feed.name, cause)], of_batch=of_batch, writer=writer)
    return suspension.why


def _take_pending(warehouse: Warehouse, feed: Feed, job: SilverJob, state: State) -> Suspension | None:
    """Apply the pending records of the table; or what suspends it still."""
    last = max(one.batch for one in state.ranges(feed.name))
    number = BatchNumber(job, last, state.generation, part=f"resumed {feed.name}")
    ranges = state.pending_offsets(feed.name)
    records = in_parts(warehouse.read(f"bronze.{job.source}_events"), ranges)
    record_ranges = record_ranges_in(records, job)
    job.learn(warehouse, records, record_ranges)
    feed = job.feeds.get(feed.name, feed)
    if waiting := _pending_suspensions([feed], but=()):
        return waiting[feed.name]
    created, failed = ensure_made_tables(warehouse, [feed], job)
    if failed:
        return failed[feed.name]
    topics = sorted({reach.topic_partition[0] for reach in record_ranges})
    arrived = DecodedBatch(warehouse, records, topics, record_ranges, job, state)
    unreadable = unreadable_feeds(arrived, [feed])
    if feed.name in (suspensions := unreadable_suspensions(unreadable)):
        return suspensions[feed.name]
    sizes = _table_sizes(warehouse, [feed], empty=created)
    with tuned_for(warehouse.spark, _rows(record_ranges, sizes)), ExitStack() as stack:
        quarantine_state = quarantine.quarantine_state(warehouse, job.source, ranges)
        judged = judged_batch(arrived, [feed], quarantine_state, stack, state=state)
        judged = _without_regressed(arrived, judged, state)
        if judged.newly_suspended:
            return judged.newly_suspended[feed.name]
        others = [feed_row(feed.name, resumed=True), *unreadable_rows(unreadable, state)]
        _apply(arrived, judged, number, sizes, state=state, others=others)
    return None


def _pending(arrived: DecodedBatch, left: Sequence[Feed]) -> list[RecordRange]:
    """What a batch has of the topics of suspended tables: ranges of offsets in which no other batch has a record.

    A batch may have records on both sides of those of another one: a source was moved on its topics.
    """
    found = [one for one in arrived.record_ranges if any(feed.has_topic(one.topic_partition[0]) for feed in left)]
    with_gaps = {one.topic_partition: one for one in found if one.last - one.first + 1 != one.records}
    if not with_gaps:
        return found
    topics = {topic_partition[0] for topic_partition in with_gaps}
    own, stored = (
        rows.where(F.col("topic").isin(*topics)).withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        for rows in (
            arrived.records,
            in_parts(
                arrived.warehouse.read(f"bronze.{arrived.job.source}_events"),
                [(one.topic_partition, one.first, one.last) for one in with_gaps.values()],
            ),
        )
    )
    rows = offset_ranges(own, stored).collect()
    position_contexts = [((row["topic"], row["topic_id"], row["partition"]), row) for row in rows]
    return [
        *(one for one in found if one.topic_partition not in with_gaps),
        *(
            RecordRange(topic_partition, row["first"], row["last"], row["records"])
            for topic_partition, row in position_contexts
            if topic_partition in with_gaps
        ),
    ]


def _without_regressed(arrived: DecodedBatch, judged: ValidatedBatch, state: State) -> ValidatedBatch:
    """The batch without the tables whose log seems to have begun again, and nothing says so: they are suspended."""
    found: dict[str, Suspension] = {}
    for name, records in judged.records.items():
        feed = arrived.job.feeds[name]
        rows = [row for row in judged.rows if row["feed"] == name]
        is_in_order = feed.append_only or feed.sequence_by != "source_position" or all(row["run_id"] for row in rows)
        if is_in_order or name in arrived.job.accepted:
            continue
        past = history(feed, rows, state)
        if suspension := regressed(nameless_falls(arrived.warehouse, records.frame, past)):
            found[name] = suspension
    if not found:
        return judged
    return replace(
        judged,
        records={name: records for name, records in judged.records.items() if name not in found},
        rows=[row for row in judged.rows if row["feed"] not in found],
        newly_suspended={**judged.newly_suspended, **found},
    )


def _pending_suspensions(feeds: Iterable[Feed], *, but: Collection[str]) -> dict[str, Suspension]:
    """Of these feeds those whose tables by rule wait for a person, or for events; without those of these names."""
    return {
        feed.name: suspension(feed.discovered, feed.discovered.why)
        for feed in feeds
        if feed.discovered is not None and feed.name not in but and is_waiting(feed.discovered, feed.on_schema_change)
    }


def _quarantine_state(warehouse: Warehouse, job: SilverJob, ranges: Sequence[OffsetRange]) -> QuarantineState:
    """What the quarantine has that concerns a batch: read on first use, and where the batch may have its records."""
    known = job.memory.quarantine_state
    if known is None or known.meets(ranges):
        return quarantine.quarantine_state(warehouse, job.source, ranges)
    return replace(known, pending_in_batch=frozenset(), is_met=False, is_new=False)


def _table_sizes(warehouse: Warehouse, feeds: Sequence[Feed], *, empty: Collection[str]) -> Mapping[str, int]:
    """The bytes of each feed's tables, by table; `empty`: feeds whose tables have none."""
    return {
        table: 0 if feed.name in empty else warehouse.created_and_size(table)[1]
        for feed in feeds
        for table in feed.silver_tables
    }


def _rows(record_ranges: Sequence[RecordRange], sizes: Mapping[str, int]) -> int:
    """About how many rows the batch is worth: its records, and a search of the tables that they are merged into."""
    return sum(reach.records for reach in record_ranges) + rows_to_search(sum(sizes.values()))


def _apply(
    arrived: DecodedBatch,
    judged: ValidatedBatch,
    number: BatchNumber,
    sizes: Mapping[str, int],
    *,
    state: State,
    others: Sequence[Mapping[str, Any]],
) -> State:
    """Apply what has been through gate 1, and write it down: the state after it.

    `sizes`: of the tables. `state`: before the batch. `others`: what else there is to write down.
    """
    warehouse, job, rows = arrived.warehouse, arrived.job, judged.rows
    parts = [
        FeedBatch(
            warehouse=warehouse,
            name=number.name,
            feed=job.feeds[name],
            rules=job.rules(name),
            rows=[row for row in rows if row["feed"] == name],
            run=job.run,
            state=state,
            quarantine_state=judged.quarantine_state,
            missing=judged.missing.get(name),
            value_bytes=arrived.value_bytes(job.feeds[name]),
            table_size=sizes[f"silver.{name}"],
            history_size=sizes.get(job.feeds[name].history_table),
            erased=job.erased.get(name),
        )
        for name in judged.records
    ]
    outcomes = {part.feed.name: one for part in parts if (one := _applied(part, judged)) is not None}
    # Last: a batch that is in `ops.batches` is done.
    of_columns = [row for part in parts if (row := _first_sent(part, outcomes.get(part.feed.name))) is not None]
    segments = segment_rows(state, rows)
    written = [*_audited(arrived, judged, outcomes), *segments, *of_columns, *others]
    after = append(warehouse, state, written, of_batch=number.row, writer=number.writer, started_at=number.started_at)
    job.count(written)
    is_added_to = any(row["quarantined"] for row in rows) or any(one.is_damaged for one in outcomes.values())
    if not (is_added_to or judged.quarantine_state.pending_in_batch):
        job.memory.quarantine_state = judged.quarantine_state
    return after


def _applied(part: FeedBatch, judged: ValidatedBatch) -> BatchOutcome | None:
    """The feed's part of the batch applied to its table: what became of it; None where it had no change."""
    name, source = part.feed.name, part.feed.source
    records, outcome = judged.records[name], None
    if any(part.total(kind) for kind in ("changes", "truncates", "tombstones")):
        outcome = apply_feed(part, records)
    if part.total("quarantined"):
        quarantine.add(part.warehouse, entries(part, records.frame), source)
    if name in judged.quarantine_state.pending_in_batch:
        quarantine.passed(part.warehouse, records.frame.where(F.col("kind") != "quarantined"), source)
    return outcome


def _first_sent(part: FeedBatch, outcome: BatchOutcome | None) -> Mapping[str, Any] | None:
    """From where on the feed's columns have had their fields, as far as this batch says what is new; None of most."""
    feed, rows = part.feed, part.rows
    if part.missing is not None:
        own = part.missing.first_sent
    else:
        past = None if outcome is None else outcome.past
        own = first_sent(feed, rows, history(feed, rows, part.state) if past is None else past)
    new = lower(own, part.state.first_sent(feed.name))
    return feed_row(feed.name, first_sent=new) if new else None


def _audited(
    arrived: DecodedBatch, judged: ValidatedBatch, outcomes: Mapping[str, BatchOutcome]
) -> list[dict[str, Any]]:
    """What became of every record of the batch, and what was learned of earlier ones."""
    ended: dict[OfFeed, Mapping[str, int]] = {
        (feed, topic_partition): counts
        for feed, outcome in outcomes.items()
        for topic_partition, counts in outcome.counts.items()
    }
    counted, apart = judged.rows, _partially_read_topics(arrived, judged)
    rows = audit_rows(counted, ended, _gaps(arrived, judged, read_extents(counted, apart=apart)), apart=apart)
    return [*rows, *(row for feed, outcome in outcomes.items() for row in learned(feed, outcome))]


def _partially_read_topics(arrived: DecodedBatch, judged: ValidatedBatch) -> set[str]:
    """The topics that feeds share, of which not all go on: one is suspended, or takes what it was suspended for."""
    found = set()
    for topic in arrived.topics:
        names = {name for name, feed in arrived.job.feeds.items() if feed.has_topic(topic)}
        if len(names) > 1 and not names <= judged.records.keys():
            found.add(topic)
    return found


def _gaps(
    arrived: DecodedBatch, judged: ValidatedBatch, read: Mapping[OfFeed, ReadExtent]
) -> dict[OfFeed, list[tuple[int, int]]]:
    """The ranges of offsets in these extents that no record has, or none of the feed: few, but where feeds go on
    apart in one topic.
    """
    with_gaps: dict[str | None, set[str]] = {}
    for (feed, topic_partition), extent in read.items():
        if extent.has_gaps:
            with_gaps.setdefault(feed, set()).add(topic_partition[0])
    gaps: dict[OfFeed, list[tuple[int, int]]] = {}
    for feed, topics in with_gaps.items():
        of_all = arrived.records.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        found = offset_gaps(
            (of_all if feed is None else judged.records[feed].frame).where(F.col("topic").isin(*topics))
        )
        for row in found.collect():
            topic_partition = (row["topic"], row["topic_id"], row["partition"])
            gaps.setdefault((feed, topic_partition), []).append((row["first"], row["last"]))
    return gaps


def _store_suspensions(warehouse: Warehouse, newly_suspended: Mapping[str, Suspension], job: SilverJob) -> None:
    """Why tables were suspended, into `quality.results`."""
    results = [
        Result(
            run=job.run,
            gate="silver",
            source=job.source,
            feed=feed,
            rule=suspension.rule,
            description=suspension.description,
            message=suspension.why,
            on_failure="fail",
            evaluated=suspension.judged,
            failed=suspension.failed,
            passed=False,
        )
        for feed, suspension in newly_suspended.items()
    ]
    if results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, results))
