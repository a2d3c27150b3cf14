"""The records of a batch through gate 1: decoded, judged and counted, and the tables that are suspended for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.models import Expectation, Feed
from lakehouse.delta.tables import AT_A_TIME, Warehouse
from lakehouse.errors import TableError
from lakehouse.quality.arguments import reason
from lakehouse.spark.materialized import materialized, without_byte_limit
from silver.batch.apply_feed import positioned
from silver.batch.events import problem_counts, table_counts
from silver.batch.missing_columns import MissingColumns, missing_columns, new_fields
from silver.batch.outcome import (
    FeedBatch,
    decisions_about,
    judged_of_feed,
    judged_records,
)
from silver.batch.records import ValidatedRecords, are_few, count
from silver.by_rule.tables import ensure_discovered, is_news, marked_records, suspension
from silver.decode.reference.table import OTHER_TABLE
from silver.gate import missing_fields
from silver.job import SilverJob
from silver.order.facts import Facts, ignored_facts
from silver.order.missing_columns import needs_positions
from silver.order.ranges import RecordRange
from silver.order.state import State
from silver.rejects.quarantine import OF_RECORD, QuarantineState
from silver.rejects.suspended import Suspension, contract_differs, fields_gone, suspension_of

if TYPE_CHECKING:
    import pyarrow as pa

# A row has a column for each feed that is decoded with it.
DECODED_TOGETHER = 10
# So many reasons of a suspended table are counted one by one, and so many tables.
MAX_COUNTED = 1000


@dataclass(frozen=True)
class DecodedBatch:
    """Bronze rows of one source that are to be applied.

    `topics`: their topics. `record_ranges`: what there is of every topic-partition. `state`: of the source before them.
    """

    warehouse: Warehouse
    records: DataFrame
    topics: Sequence[str]
    record_ranges: Sequence[RecordRange]
    job: SilverJob
    state: State

    def of_feed(self, feed: Feed) -> DataFrame:
        """The records of the feed's topics."""
        return self.records.where(F.col("topic").isin(*[topic for topic in self.topics if feed.has_topic(topic)]))

    def record_ranges_of(self, feed: Feed) -> list[RecordRange]:
        """What there is of the feed's topic-partitions."""
        return [reach for reach in self.record_ranges if feed.has_topic(reach.topic_partition[0])]

    def value_bytes(self, feed: Feed) -> int:
        """How many bytes the values of the feed's records have."""
        return sum(reach.value_bytes for reach in self.record_ranges_of(feed))


@dataclass(frozen=True)
class ValidatedBatch:
    """The records of a batch that have been through gate 1, by feed; their facts, and the tables `newly_suspended`.

    `missing`: by feed what records lack, of the feeds where some have no field for a column.
    """

    records: Mapping[str, ValidatedRecords]
    rows: Sequence[Facts]
    quarantine_state: QuarantineState
    newly_suspended: Mapping[str, Suspension] = field(default_factory=dict)
    missing: Mapping[str, MissingColumns] = field(default_factory=dict)


def judged_batch(
    arrived: DecodedBatch,
    feeds: Sequence[Feed],
    quarantine_state: QuarantineState,
    stack: ExitStack,
    *,
    state: State,
    changed: frozenset[str] = frozenset(),
) -> ValidatedBatch:
    """The records of tables that go on through gate 1, kept until `stack` closes; and the tables that are suspended.

    `state`: of the source before the batch. `changed`: the tables by rule whose columns were changed for these records.
    """
    job = arrived.job
    newly_suspended: dict[str, Suspension] = {}
    records: dict[str, ValidatedRecords] = {}
    for first in range(0, len(feeds), DECODED_TOGETHER):
        some = feeds[first : first + DECODED_TOGETHER]
        change_events = _judged_together(arrived, some, quarantine_state, newly_suspended, stack)
        records |= {
            feed.name: ValidatedRecords.of(change_events, feed, arrived.warehouse.spark)
            for feed in some
            if change_events is not None and feed.name not in newly_suspended
        }
    rows = _counted(arrived, records)
    of_feed_rows = {name: [row for row in rows if row["feed"] == name] for name in records}
    missing = {}
    for name, change_events in records.items():
        if needs_positions(job.feeds[name], of_feed_rows[name]):
            batch = _as_batch(arrived, job.feeds[name], of_feed_rows[name], quarantine_state)
            missing[name] = missing_columns(batch, positioned(batch, change_events.frame), stack)
    new = _changed_columns(arrived, records, of_feed_rows, newly_suspended, changed=changed, missing=missing)
    if new:
        again = [job.feeds[feed.name] for feed in feeds if feed.name in records and feed.name not in newly_suspended]
        later = judged_batch(arrived, again, quarantine_state, stack, state=state, changed=changed | new)
        return replace(later, newly_suspended={**newly_suspended, **later.newly_suspended})
    for name, one in missing.items():
        if not one.counts or name in newly_suspended:
            continue
        feed = job.feeds[name]
        gone = [] if name in job.accepted else _gone_from_all(one, of_feed_rows[name])
        if gone and _suspends(arrived, feed, of_feed_rows[name], quarantine_state):
            newly_suspended[name] = _fields_gone(arrived, feed, gone, of_feed_rows[name], quarantine_state)
            continue
        decisions = decisions_about(arrived.warehouse, [feed], quarantine_state)
        without = judged_of_feed(arrived.of_feed(feed), feed, job.rules(name), decisions=decisions, missing=one)
        records[name] = judged_here(without, feed, arrived.record_ranges_of(feed), stack)
        of_feed_rows[name] = [*count([records[name]], _rule_names(job))]
        rows = [*(row for row in rows if row["feed"] != name), *of_feed_rows[name]]
    for name in records:
        if name in newly_suspended:
            continue
        never_sent = _never_sent(arrived, job.feeds[name], of_feed_rows[name], state)
        if never_sent is not None:  # no NULL is accepted for it with the rejects
            newly_suspended[name] = never_sent
            continue
        if name in job.accepted:
            continue
        bronze = arrived.of_feed(job.feeds[name])
        problems = partial(_problems, records[name].frame, bronze, job.feeds[name], job.rules(name))
        suspension = suspension_of(job.feeds[name], job.rules(name), of_feed_rows[name], problems=problems)
        if suspension is not None:
            newly_suspended[name] = suspension
    active = {name: change_events for name, change_events in records.items() if name not in newly_suspended}
    return ValidatedBatch(
        active,
        [row for row in rows if row["feed"] not in newly_suspended],
        quarantine_state,
        newly_suspended,
        missing,
    )


def judged_here(
    judged: DataFrame, feed: Feed, record_ranges: Sequence[RecordRange], stack: ExitStack
) -> ValidatedRecords:
    """The judged records of one feed, on the driver where they are few, else kept until `stack` closes."""
    if are_few(sum(one.records for one in record_ranges), sum(one.value_bytes for one in record_ranges)):
        return ValidatedRecords(feed, judged.sparkSession, table=judged.toArrow())
    return ValidatedRecords(feed, judged.sparkSession, kept=stack.enter_context(materialized(judged)))


def _never_sent(arrived: DecodedBatch, feed: Feed, rows: Sequence[Facts], state: State) -> Suspension | None:
    """What suspends a declared table: no event has ever had a field for one of its columns."""
    if feed.discovered is not None:
        return None
    sent = {column for _topic, column in state.first_sent(feed.name)}
    return missing_fields(arrived.of_feed(feed), feed, rows, before=state.of_feed(feed.name), sent=sent)


def _problems(
    judged: DataFrame, bronze: DataFrame, feed: Feed, rules: Sequence[Expectation], condition: str
) -> dict[str, int]:
    """For what else than rules these records of the feed are rejected: how many for each, and which table they name.

    `bronze`: the rows that they were read from.
    """
    chosen, of_rules = judged.where(condition), {reason(rule) for rule in rules}
    rows = problem_counts(chosen).limit(MAX_COUNTED).collect()
    found = {row["problem"]: row["records"] for row in rows if row["problem"] not in of_rules}
    if OTHER_TABLE in found:
        del found[OTHER_TABLE]
        strangers = chosen.where(F.array_contains("problems", OTHER_TABLE)).select(*OF_RECORD).distinct()
        stored = bronze.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        tables = table_counts(stored.join(strangers, on=OF_RECORD, how="left_semi"), feed)
        for row in tables.limit(MAX_COUNTED).collect():
            found[f"{OTHER_TABLE.removesuffix('.')}, {row['name']}"] = row["records"]
    return found


def _as_batch(arrived: DecodedBatch, feed: Feed, rows: Sequence[Facts], quarantine_state: QuarantineState) -> FeedBatch:
    """What asks for positions while the batch is judged; it writes nothing, so it has no name."""
    job = arrived.job
    return FeedBatch(
        warehouse=arrived.warehouse,
        name="",
        feed=feed,
        rules=job.rules(feed.name),
        rows=rows,
        run=job.run,
        state=arrived.state,
        quarantine_state=quarantine_state,
    )


def _gone_from_all(missing: MissingColumns, rows: Sequence[Facts]) -> list[str]:
    """The columns that no row of the batch has a field for, and that earlier ones had one for."""
    judged = sum(row["judged"] for row in rows)
    return sorted(name for name in missing.counts if sum(row["absent_columns"].get(name, 0) for row in rows) >= judged)


def _suspends(arrived: DecodedBatch, feed: Feed, rows: Sequence[Facts], quarantine_state: QuarantineState) -> bool:
    """Whether columns that are gone suspend the table, or their records go to quarantine.

    Of a table by rule that was decided with its columns: those that are here go to quarantine.
    """
    policy = feed.on_schema_change
    if feed.discovered is not None or policy.drop == policy.rename:
        return feed.discovered is None and policy.drop == "suspend"
    new = new_fields(_as_batch(arrived, feed, rows, quarantine_state), arrived.of_feed(feed))
    return (policy.rename if new else policy.drop) == "suspend"


def _fields_gone(
    arrived: DecodedBatch, feed: Feed, columns: Sequence[str], rows: Sequence[Facts], quarantine_state: QuarantineState
) -> Suspension:
    """That the table is suspended, for fields are gone."""
    new = new_fields(_as_batch(arrived, feed, rows, quarantine_state), arrived.of_feed(feed))
    fields = [" or ".join(feed.fields_of(name)) for name in columns]
    return fields_gone(fields, new, judged=sum(row["judged"] for row in rows))


def _changed_columns(
    arrived: DecodedBatch,
    records: Mapping[str, ValidatedRecords],
    rows: Mapping[str, Sequence[Facts]],
    newly_suspended: dict[str, Suspension],
    *,
    changed: frozenset[str],
    missing: Mapping[str, MissingColumns],
) -> frozenset[str]:
    """The tables by rule that go on with other columns, as their records have them: those records are read again.

    Where a person must approve that, the table goes to `newly_suspended`. `rows`: the counts of each feed. `missing`:
    what records lack.
    """
    job, evolved, waiting = arrived.job, list[DiscoveredTable](), list[DiscoveredTable]()
    for name, of_feed_rows in rows.items():
        feed = job.feeds[name]
        discovered = feed.discovered
        marks = sorted({mark for row in of_feed_rows for mark in row["drift"]})
        if name in newly_suspended:
            continue
        if discovered is None:
            if marks:
                newly_suspended[name] = contract_differs(feed, marks)
            continue
        gone = missing[name].counts.keys() if name in missing else frozenset[str]()
        if not (marks or gone or discovered.why):
            continue
        marked = marked_records(records[name].frame) if marks else {}
        ranges = {
            one.topic_partition: (one.first, one.last)
            for one in arrived.record_ranges
            if feed.has_topic(one.topic_partition[0])
        }
        table_inference = job.table_inference(arrived.warehouse)
        change = table_inference.change(discovered, arrived.records, ranges, marked=marked, gone=gone)
        if not change.refused and not is_news(change.table, discovered):
            continue
        if change.refused or name in changed:
            newly_suspended[name] = suspension(change.table, change.refused or "its columns change while it is read")
            waiting += [change.table] if is_news(change.table, discovered) else []
        else:
            evolved.append(change.table)
    job.discovered.store(arrived.warehouse, [*evolved, *waiting])
    _created, failed = ensure_made_tables(arrived.warehouse, [job.feeds[one.name] for one in evolved], job)
    newly_suspended.update(failed)
    return frozenset(one.name for one in evolved)


def _judged_together(
    arrived: DecodedBatch,
    feeds: Sequence[Feed],
    quarantine_state: QuarantineState,
    newly_suspended: dict[str, Suspension],
    stack: ExitStack,
) -> DataFrame | pa.Table | None:
    """The judged records of all these feeds, on the driver where they are few; or None.

    A feed with a rule that raises goes to `newly_suspended`.
    """
    job = arrived.job
    while active := [feed for feed in feeds if feed.name not in newly_suspended]:
        topics = [topic for topic in arrived.topics if any(feed.has_topic(topic) for feed in active)]
        records = arrived.records.where(F.col("topic").isin(*topics))
        decisions = decisions_about(arrived.warehouse, active, quarantine_state)
        gates = [(feed, job.rules(feed.name)) for feed in active]
        record_ranges = [one for one in arrived.record_ranges if one.topic_partition[0] in topics]
        judged = judged_records(records, gates, decisions=decisions)
        value_bytes = sum(one.value_bytes for one in record_ranges)
        try:
            if are_few(sum(one.records for one in record_ranges), value_bytes):
                return judged.toArrow()
            with without_byte_limit(judged, value_bytes):
                return stack.enter_context(materialized(judged))
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


def _counted(arrived: DecodedBatch, records: Mapping[str, ValidatedRecords]) -> list[Facts]:
    """The facts of all records, those of topics without a feed included."""
    job = arrived.job
    known = [*job.feeds.values(), *job.undiscovered.values()]
    ignored = [
        ignored_facts(one.topic_partition, first=one.first, last=one.last, records=one.records, first_ms=one.first_ms)
        for one in arrived.record_ranges
        if not any(feed.has_topic(one.topic_partition[0]) for feed in known)
    ]
    size_in_bytes = sum(one.value_bytes for one in arrived.record_ranges)
    return [*count(list(records.values()), _rule_names(job), size_in_bytes=size_in_bytes), *ignored]


def _rule_names(job: SilverJob) -> Mapping[str, Sequence[str]]:
    return {name: [rule.name for rule in job.rules(name)] for name in job.feeds}


def ensure_made_tables(
    warehouse: Warehouse, feeds: Iterable[Feed], job: SilverJob
) -> tuple[frozenset[str], Mapping[str, Suspension]]:
    """Have the tables of these feeds that rules have made and that this process has not seen yet, several at a time.

    Which were created, and are empty; and which cannot be used, for they have other columns than those of the rule.
    """
    discovered = [(feed, feed.discovered) for feed in feeds if feed.discovered is not None]
    new = [(feed, one) for feed, one in discovered if job.memory.ensured.get(feed.name) != one.version]
    if not new:  # the usual case: asking Spark for a thread's properties costs a dozen calls
        return frozenset(), {}
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        ensure = inheritable_thread_target(warehouse.spark)(partial(ensure_discovered, warehouse=warehouse))
        ended = [one.result() for one in [threads.submit(ensure, feed) for feed, _discovered in new]]
    created, failed = set[str](), dict[str, Suspension]()
    for (feed, of_rule), is_created in zip(new, ended, strict=True):
        if isinstance(is_created, TableError):
            failed[feed.name] = suspension(of_rule, is_created.what)
            continue
        job.memory.ensured[feed.name] = of_rule.version
        if is_created:
            created.add(feed.name)
    return frozenset(created), failed
