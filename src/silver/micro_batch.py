"""One micro-batch of a source: its records through gate 1, and each of its feeds applied to its table.

A table whose records are too bad to go on with is suspended (silver.suspended), and the others go on. Every step can be
repeated: the MERGE is guarded by position, rejects by their Kafka coordinates, `ops.batches` by the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts, Expectation, Feed
from lakehouse.quality.results import RESULTS, Result, result_rows
from lakehouse.spark.materialized import materialized
from lakehouse.spark.sizing import prepared_for, rows_to_search
from lakehouse.spark.tables import Address, Warehouse
from silver import quarantine
from silver.audit import Memory, append, read_state
from silver.batch.apply_feed import apply_feed
from silver.batch.earlier_records import in_ranges
from silver.batch.events import counts, ignored_counts, of_feed, offset_gaps
from silver.batch.outcome import (
    BatchOutcome,
    FeedBatch,
    covering,
    decisions_about,
    entries,
    judged_of_feed,
    judged_records,
    learned,
)
from silver.by_rule.tables import MadeTables, Making, ensure_made, suspension
from silver.gate import require_fields
from silver.order.runs import TopicPartition
from silver.order.state import Extent, OfFeed, State, audit_rows, extents, feed_row, job_name, segment_rows, writer_of
from silver.quarantine import QuarantineState
from silver.schemas import Schemas, ids_in
from silver.suspended import Reach, Suspension, pending_records, suspension_of

if TYPE_CHECKING:
    from pyspark.sql import Row


class OfSource(NamedTuple):
    """The feeds of a source, and those whose tables rules could not make yet."""

    feeds: Mapping[str, Feed]
    not_made: Mapping[str, Feed]


@dataclass(frozen=True)
class SilverJob:
    """What every batch of one source needs to know. Plain data: it travels with the stream.

    `accepted`: the tables whose rejects go to quarantine, however many they are. `memory`: of the source's state.
    `schemas`: of the registry, as far as they are known. `made`: the tables that rules have made, of all sources.
    """

    source: str
    contracts: Contracts
    address: Address
    run: str
    accepted: frozenset[str] = frozenset()
    memory: Memory = field(default_factory=Memory)
    schemas: Schemas = field(default_factory=Schemas)
    made: MadeTables = field(default_factory=MadeTables)
    _put_together: dict[int, OfSource] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def checkpoint(self) -> str:
        """The name of the stream's checkpoint."""
        return job_name(self.source)

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """The feeds of the source, by name, with the schemas that there are."""
        return self._of_source.feeds

    @property
    def not_made(self) -> Mapping[str, Feed]:
        """The feeds whose tables rules could not make yet."""
        return self._of_source.not_made

    @property
    def _of_source(self) -> OfSource:
        """Put together again when a table was made, or changed."""
        if self.made.changes not in self._put_together:
            contracts = self.contracts.with_made(self.made.known.values()) if self.made.known else self.contracts
            known = {"schemas": self.schemas.known}
            feeds = {name: one.model_copy(update=known) for name, one in contracts.of_source(self.source).items()}
            self._put_together.clear()
            self._put_together[self.made.changes] = OfSource(feeds, contracts.not_made(self.source))
        return self._put_together[self.made.changes]

    def learn(self, warehouse: Warehouse, records: DataFrame, reaches: Sequence[Reach]) -> None:
        """Know the schemas of what is there of the feeds' topics, and the tables that rules make of topics."""
        source = self.contracts.topics.sources[self.source]
        of_feeds = [reach for reach in reaches if reach.place[0] not in source.ignored_topics]
        self.schemas.learn(warehouse, {number for reach in of_feeds for number in reach.schema_ids})
        if source.by_rule:
            self.making(warehouse).make(records, {reach.place: (reach.first, reach.last) for reach in reaches})

    def making(self, warehouse: Warehouse) -> Making:
        """What makes and changes tables by rule."""
        return Making(warehouse, self.source, self.contracts, self.made, self.schemas.known)

    def rules(self, feed: str) -> Sequence[Expectation]:
        """The row rules of gate 1 for a feed."""
        return self.contracts.silver_gate.rules(feed)


# A row has a column for each feed that is decoded with it.
DECODED_TOGETHER = 10
_OF_REACH = (
    *("min(offset) AS first", "max(offset) AS last", "count(1) AS records"),
    "coalesce(sum(bytes), 0) AS value_bytes",
)


@dataclass(frozen=True)
class Numbered:
    """A batch of the stream, or (`part`) what a table takes later: who writes, for which silver, and which number."""

    job: SilverJob
    batch_id: int
    checkpoint: str
    part: str = ""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def writer(self) -> str:
        """Under which name the batch is written down, once."""
        return writer_of(self.job.source, self.checkpoint, *([self.part] if self.part else []))

    @property
    def row(self) -> Mapping[str, Any]:
        """What all that is written down says of the batch."""
        job = self.job
        return {"run": job.run, "source": job.source, "checkpoint": self.checkpoint, "batch": self.batch_id}


@dataclass(frozen=True)
class Arrived:
    """Bronze rows of one source that are to be applied.

    `topics`: their topics. `reaches`: what there is of every topic-partition.
    """

    warehouse: Warehouse
    records: DataFrame
    topics: Sequence[str]
    reaches: Sequence[Reach]
    job: SilverJob

    def of_feed(self, feed: Feed) -> DataFrame:
        """The records of the feed's topics."""
        return self.records.where(F.col("topic").isin(*[topic for topic in self.topics if feed.has_topic(topic)]))

    def value_bytes(self, feed: Feed) -> int:
        """How many bytes the values of the feed's records have."""
        return sum(reach.value_bytes for reach in self.reaches if feed.has_topic(reach.place[0]))


@dataclass(frozen=True)
class JudgedBatch:
    """The records of a batch that have been through gate 1, by feed; their counts (COUNTS) and `newly_suspended`."""

    records: Mapping[str, DataFrame]
    rows: Sequence[Row]
    quarantine_state: QuarantineState
    newly_suspended: Mapping[str, Suspension] = field(default_factory=dict)


def apply_batch(batch: DataFrame, batch_id: int, *, job: SilverJob) -> None:
    """Apply one micro-batch of bronze rows of one source to its silver tables."""
    warehouse = job.address.opened(batch.sparkSession)
    reaches = _reaches(batch, job.schemas)
    topics = sorted({reach.place[0] for reach in reaches})
    if not reaches:  # a commit of bronze without rows
        return
    job.learn(warehouse, batch, reaches)
    checkpoint = job.memory.checkpoint or warehouse.checkpoint_id(job.checkpoint) or ""
    number = Numbered(job, batch_id, checkpoint)
    # What a batch costs follows the feeds that have news in it, not those that are declared.
    feeds = {name: feed for name, feed in job.feeds.items() if any(feed.has_topic(topic) for topic in topics)}
    not_made = {name: feed for name, feed in job.not_made.items() if any(map(feed.has_topic, topics))}
    state = job.memory.before(warehouse, job.source, checkpoint=number.checkpoint, batch=batch_id)
    suspended, taken = {*state.suspended}, state.taken(batch_id)
    waiting = _waiting([*feeds.values(), *not_made.values()], but={*suspended, *taken})
    going_on = [feed for name, feed in feeds.items() if name not in {*suspended, *taken, *waiting}]
    _ensure_made(warehouse, going_on, job)
    ranges = {reach.place: (reach.first, reach.last) for reach in reaches}
    arrived = Arrived(warehouse, batch, topics, reaches, job)
    sizes = _table_sizes(warehouse, going_on)
    with prepared_for(warehouse.spark, _rows(reaches, sizes)), ExitStack() as stack:
        quarantine_state = _quarantine_state(warehouse, job, ranges)
        judged = _judged(arrived, going_on, quarantine_state, stack)
        new = {**waiting, **judged.newly_suspended}
        left = [feed for name, feed in {**feeds, **not_made}.items() if name in {*suspended, *new}]
        _store_suspensions(warehouse, new, job)
        pending = pending_records(reaches, left, new)
        job.memory.state = _apply(arrived, judged, number, sizes, state=state, others=pending)


def resume(warehouse: Warehouse, feed: Feed, *, job: SilverJob) -> str | None:
    """Apply the pending records of a suspended table, from bronze; or say why it stays suspended."""
    checkpoint = warehouse.checkpoint_id(job.checkpoint) or ""
    pending = read_state(warehouse, job.source, checkpoint=checkpoint).ranges(feed.name)
    number = Numbered(job, max(one.batch for one in pending), checkpoint, part=f"resumed {feed.name}")
    ranges = covering((one.place, one.first, one.last) for one in pending)
    records = in_ranges(warehouse.read(f"bronze.{job.source}_events"), ranges)
    reaches = _reaches(records, job.schemas)
    job.learn(warehouse, records, reaches)
    feed = job.feeds.get(feed.name, feed)
    if waiting := _waiting([feed], but=()):
        return waiting[feed.name].why
    _ensure_made(warehouse, [feed], job)
    topics = sorted({reach.place[0] for reach in reaches})
    arrived = Arrived(warehouse, records, topics, reaches, job)
    sizes = _table_sizes(warehouse, [feed])
    with prepared_for(warehouse.spark, _rows(reaches, sizes)), ExitStack() as stack:
        quarantine_state = quarantine.quarantine_state(warehouse, job.source, ranges)
        judged = _judged(arrived, [feed], quarantine_state, stack)
        if judged.newly_suspended:
            _store_suspensions(warehouse, judged.newly_suspended, job)
            return judged.newly_suspended[feed.name].why
        state = read_state(warehouse, job.source, checkpoint=checkpoint, writer=number.writer, batch=number.batch_id)
        _apply(arrived, judged, number, sizes, state=state, others=[feed_row(feed.name, resumed=True)])
    job.memory.forget()
    return None


def _waiting(feeds: Iterable[Feed], *, but: Collection[str]) -> dict[str, Suspension]:
    """Of these feeds those whose tables by rule wait for a person, or for events; without those of these names."""
    made = [feed.made for feed in feeds if feed.made is not None and feed.made.why and feed.name not in but]
    return {one.name: suspension(one, one.why) for one in made}


def _ensure_made(warehouse: Warehouse, feeds: Iterable[Feed], job: SilverJob) -> None:
    """Create the tables of these feeds that rules have made and that this process has not seen yet."""
    for feed in feeds:
        if feed.made is not None and job.memory.ensured.get(feed.name) != feed.made.version:
            ensure_made(warehouse, feed)
            job.memory.ensured[feed.name] = feed.made.version


def _quarantine_state(
    warehouse: Warehouse, job: SilverJob, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> QuarantineState:
    """What the quarantine has that concerns a batch: read where records of the source are pending, or on first use."""
    known = job.memory.quarantine_state
    if known is None or known.pending:
        known = quarantine.quarantine_state(warehouse, job.source, ranges)
        job.memory.quarantine_state = known
    return known


def _table_sizes(warehouse: Warehouse, feeds: Sequence[Feed]) -> Mapping[str, int]:
    """The bytes of each feed's table."""
    return {feed.name: warehouse.created_and_size(f"silver.{feed.name}")[1] for feed in feeds}


def _rows(reaches: Sequence[Reach], sizes: Mapping[str, int]) -> int:
    """About how many rows the batch is worth: its records, and a search of the tables that they are merged into."""
    return sum(reach.records for reach in reaches) + rows_to_search(sum(sizes.values()))


def _reaches(batch: DataFrame, schemas: Schemas) -> Sequence[Reach]:
    """What the batch has of every topic-partition; the ids of its schemas where there are any."""
    uses_schemas = schemas.known is not None
    ids = [f"{ids_in(name)} AS schemas_of_{name}" for name in ("key", "value")] if uses_schemas else []
    columns = ["octet_length(value) AS bytes", *(("key", "value") if uses_schemas else ())]
    rows = (
        batch.selectExpr("topic", "coalesce(_topic_id, '') AS topic_id", "partition", "offset", *columns)
        .groupBy("topic", "topic_id", "partition")
        .agg(*map(F.expr, [*_OF_REACH, *ids]))
        .collect()
    )
    return [
        Reach(
            (row["topic"], row["topic_id"], row["partition"]),
            row["first"],
            row["last"],
            row["records"],
            row["value_bytes"],
            frozenset((*row["schemas_of_key"], *row["schemas_of_value"]) if uses_schemas else ()),
        )
        for row in rows
    ]


def _judged(
    arrived: Arrived,
    feeds: Sequence[Feed],
    quarantine_state: QuarantineState,
    stack: ExitStack,
    *,
    changed: frozenset[str] = frozenset(),
) -> JudgedBatch:
    """The records of tables that go on through gate 1, kept until `stack` closes; and the tables that are suspended.

    `changed`: the tables by rule whose columns were changed for these records.
    """
    job = arrived.job
    newly_suspended: dict[str, Suspension] = {}
    records: dict[str, DataFrame] = {}
    for first in range(0, len(feeds), DECODED_TOGETHER):
        some = feeds[first : first + DECODED_TOGETHER]
        told = _judged_together(arrived, some, quarantine_state, newly_suspended, stack)
        records |= {
            feed.name: of_feed(told, feed) for feed in some if told is not None and feed.name not in newly_suspended
        }
    rows = _counted(arrived, records)
    of_feed_rows = {name: [row for row in rows if row["feed"] == name] for name in records}
    new = _changed_columns(arrived, of_feed_rows, newly_suspended, changed)
    if new:
        again = [job.feeds[feed.name] for feed in feeds if feed.name in records and feed.name not in newly_suspended]
        later = _judged(arrived, again, quarantine_state, stack, changed=changed | new)
        return replace(later, newly_suspended={**newly_suspended, **later.newly_suspended})
    for name in records:
        suspension = suspension_of(job.feeds[name], job.rules(name), of_feed_rows[name])
        if suspension is not None and name not in job.accepted:
            newly_suspended.setdefault(name, suspension)
    going_on = {name: told for name, told in records.items() if name not in newly_suspended}
    return JudgedBatch(
        going_on, [row for row in rows if row["feed"] not in newly_suspended], quarantine_state, newly_suspended
    )


def _changed_columns(
    arrived: Arrived,
    rows: Mapping[str, Sequence[Row]],
    newly_suspended: dict[str, Suspension],
    changed: frozenset[str],
) -> frozenset[str]:
    """The tables by rule that were changed, for their records have other columns: those records are read again.

    Where a person must accept that, the table goes to `newly_suspended`. `rows`: the counts of each feed.
    """
    job, new = arrived.job, []
    for name, of_feed_rows in rows.items():
        made = job.feeds[name].made
        marks = {mark for row in of_feed_rows for mark in row["drift"]}
        gone = {column for row in of_feed_rows for column in row["absent_columns"]}
        if made is None or name in newly_suspended:
            continue
        gone = {column for column in gone if not made.columns[column].declared.optional}
        if not (marks or gone):
            continue
        feed = job.feeds[name]
        ranges = {one.place: (one.first, one.last) for one in arrived.reaches if feed.has_topic(one.place[0])}
        making = job.making(arrived.warehouse)
        change = making.change(made, arrived.records, ranges, marks=marks, gone=gone)
        is_accepted = name in job.made.accepted
        if name in changed or (change.refused and not is_accepted):
            newly_suspended[name] = suspension(made, "; ".join(change.refused) or "its columns change while it is read")
        else:
            new.append(change.accepted if is_accepted else change.table)
    job.made.store(arrived.warehouse, new)
    _ensure_made(arrived.warehouse, [job.feeds[one.name] for one in new], job)
    return frozenset(one.name for one in new)


def _judged_together(
    arrived: Arrived,
    feeds: Sequence[Feed],
    quarantine_state: QuarantineState,
    newly_suspended: dict[str, Suspension],
    stack: ExitStack,
) -> DataFrame | None:
    """The judged records of all these feeds, or None. A feed with a rule that raises goes to `newly_suspended`."""
    job = arrived.job
    while going_on := [feed for feed in feeds if feed.name not in newly_suspended]:
        topics = [topic for topic in arrived.topics if any(feed.has_topic(topic) for feed in going_on)]
        records = arrived.records.where(F.col("topic").isin(*topics))
        decisions = decisions_about(arrived.warehouse, going_on, quarantine_state)
        gates = [(feed, job.rules(feed.name)) for feed in going_on]
        try:
            return stack.enter_context(materialized(judged_records(records, gates, decisions=decisions)))
        except Exception as error:
            if not _is_about_values(error):
                raise
            raising = {feed.name: _raising(arrived.of_feed(feed), feed, rules) for feed, rules in gates}
            found = {name: suspension for name, suspension in raising.items() if suspension is not None}
            if not found:
                raise
            newly_suspended.update(found)
    return None


def _raising(records: DataFrame, feed: Feed, rules: Sequence[Expectation]) -> Suspension | None:
    """The rule that cannot be asked about these records; None where the records alone raise, or no rule by itself."""
    for asked in ([], *[[rule] for rule in rules]):
        try:
            with materialized(judged_of_feed(records, feed, asked)):
                pass
        except Exception as again:
            if not asked or not _is_about_values(again):
                return None
            # The condition alone: the message has the value.
            condition = getattr(again, "getCondition", lambda: None)() or type(again).__name__
            why = f"the rule {asked[0].name} cannot be asked: Spark raises {condition}"
            return Suspension(asked[0].name, asked[0].description, why)
    return None


def _is_about_values(error: Exception) -> bool:
    """Whether values made Spark raise, by the class of its SQLSTATE: 22 is a data exception (ISO/IEC 9075-2).

    Anything else (a full disk, no memory, a lost executor) says nothing of the rule that was being asked.
    """
    state = getattr(error, "getSqlState", lambda: None)()
    return (state or "").startswith("22")


def _counted(arrived: Arrived, records: Mapping[str, DataFrame]) -> list[Row]:
    """The counts of all records, those of topics without a feed included: a few rows, in the columns of COUNTS."""
    job = arrived.job
    parts = [
        counts(judged_records, feed=job.feeds[name], rules=[rule.name for rule in job.rules(name)])
        for name, judged_records in records.items()
    ]
    known = [*job.feeds.values(), *job.not_made.values()]
    without_feed = [topic for topic in arrived.topics if not any(feed.has_topic(topic) for feed in known)]
    if without_feed:
        parts.append(ignored_counts(arrived.records.where(F.col("topic").isin(*without_feed))))
    return reduce(DataFrame.unionByName, parts).collect() if parts else []


def _apply(
    arrived: Arrived,
    judged: JudgedBatch,
    number: Numbered,
    sizes: Mapping[str, int],
    *,
    state: State,
    others: Sequence[Mapping[str, Any]],
) -> State:
    """Apply what has been through gate 1, and write it down: the state after it.

    `sizes`: of the tables. `state`: before the batch. `others`: what else there is to write down.
    """
    warehouse, job, rows = arrived.warehouse, arrived.job, judged.rows
    for name in judged.records:
        feed, of_feed = job.feeds[name], [row for row in rows if row["feed"] == name]
        require_fields(arrived.of_feed(feed), feed, of_feed, before=state.of_feed(name))
    parts = [
        FeedBatch(
            warehouse=warehouse,
            feed=job.feeds[name],
            rules=job.rules(name),
            rows=[row for row in rows if row["feed"] == name],
            run=job.run,
            state=state,
            quarantine_state=judged.quarantine_state,
            checkpoint=number.checkpoint,
            value_bytes=arrived.value_bytes(job.feeds[name]),
            table_size=sizes[name],
        )
        for name in judged.records
    ]
    outcomes = {part.feed.name: one for part in parts if (one := _applied(part, judged)) is not None}
    if any(row["quarantined"] for row in rows) or any(one.is_damaged for one in outcomes.values()):
        job.memory.quarantine_state = None
    # Last: a batch that is in `ops.batches` is done.
    written = [*_audited(arrived, judged, outcomes), *segment_rows(state, [row.asDict() for row in rows]), *others]
    return append(warehouse, state, written, of_batch=number.row, writer=number.writer, started_at=number.started_at)


def _applied(part: FeedBatch, judged: JudgedBatch) -> BatchOutcome | None:
    """The feed's part of the batch applied to its table: what became of it; None where it had no change."""
    name, source = part.feed.name, part.feed.source
    records, outcome = judged.records[name], None
    if any(part.total(kind) for kind in ("changes", "truncates", "tombstones")):
        outcome = apply_feed(part, records)
    if part.total("quarantined"):
        quarantine.add(part.warehouse, entries(part, records), source)
    if name in judged.quarantine_state.met_again:
        quarantine.passed(part.warehouse, records.where(F.col("kind") != "quarantined"), source)
    return outcome


def _audited(arrived: Arrived, judged: JudgedBatch, outcomes: Mapping[str, BatchOutcome]) -> list[dict[str, Any]]:
    """What became of every record of the batch, and what was learned of earlier ones."""
    ended: dict[OfFeed, Mapping[str, int]] = {
        (feed, place): counts for feed, outcome in outcomes.items() for place, counts in outcome.counts.items()
    }
    counted, apart = [row.asDict() for row in judged.rows], _read_apart(arrived, judged)
    rows = audit_rows(counted, ended, _gaps(arrived, judged, extents(counted, apart=apart)), apart=apart)
    return [*rows, *(row for feed, outcome in outcomes.items() for row in learned(feed, outcome))]


def _read_apart(arrived: Arrived, judged: JudgedBatch) -> set[str]:
    """The topics that feeds share, of which not all go on: one is suspended, or takes what it was suspended for."""
    found = set()
    for topic in arrived.topics:
        names = {name for name, feed in arrived.job.feeds.items() if feed.has_topic(topic)}
        if len(names) > 1 and not names <= judged.records.keys():
            found.add(topic)
    return found


def _gaps(arrived: Arrived, judged: JudgedBatch, read: Mapping[OfFeed, Extent]) -> dict[OfFeed, list[tuple[int, int]]]:
    """The ranges of offsets in these extents that no record has, or none of the feed: few, but where feeds go on apart
    in one topic.
    """
    with_gaps: dict[str | None, set[str]] = {}
    for (feed, place), extent in read.items():
        if extent.has_gaps:
            with_gaps.setdefault(feed, set()).add(place[0])
    gaps: dict[OfFeed, list[tuple[int, int]]] = {}
    for feed, topics in with_gaps.items():
        of_all = arrived.records.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        found = offset_gaps((of_all if feed is None else judged.records[feed]).where(F.col("topic").isin(*topics)))
        for row in found.collect():
            place = (row["topic"], row["topic_id"], row["partition"])
            gaps.setdefault((feed, place), []).append((row["first"], row["last"]))
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
