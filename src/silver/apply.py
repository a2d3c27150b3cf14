"""The silver job: what is new in bronze, read, judged, folded to one change a key, and merged into one table a feed.

One pass a micro-batch and source. Every step can be repeated: the MERGE is guarded by position, rejects by their Kafka
coordinates, the ledger by the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.config import Settings
from lakehouse.contracts import Contracts, Expectation, Feed
from lakehouse.errors import ContractError, ContractProblem, LakehouseError
from lakehouse.failures import storage_error, storage_errors
from lakehouse.results import RESULTS, Result, result_rows
from lakehouse.session import held
from lakehouse.steps import Note
from lakehouse.streams import run_until_done
from lakehouse.tables import Warehouse, small_table
from silver.batch import FeedBatch, Outcome, judged_records, moved_rows, quarantine
from silver.envelope import fields_of_events
from silver.feed_batch import apply_feed
from silver.history import remembered
from silver.ledger import (
    CONNECTOR_RUNS,
    LEDGER,
    TABLES,
    connector_run_rows,
    counts,
    ever_present,
    ignored_counts,
    job_name,
    ledger_rows,
    offset_gaps,
    quarantine_rows,
    rule_counts,
)
from silver.merge import silver_table
from silver.messages import may_be_wrapped
from silver.runs import Place

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MOST_FIELDS = 200
EVENTS_THAT_TELL = 100


@dataclass(frozen=True)
class Job:
    """What every batch of one source needs to know. Plain data: it travels with the stream."""

    source: str
    contracts: Contracts
    location: str
    checkpoints: str
    run: str

    @property
    def checkpoint(self) -> str:
        """The name of the stream's checkpoint."""
        return job_name(self.source)

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """The feeds of the source, by name."""
        return self.contracts.of_source(self.source)

    def rules(self, feed: str) -> Sequence[Expectation]:
        """The row rules of gate 1 for a feed."""
        return self.contracts.silver_gate.rules(feed)


@dataclass(frozen=True)
class Numbered:
    """One batch of the stream."""

    job: Job
    batch_id: int


def run(
    spark: SparkSession, settings: Settings, contracts: Contracts, *, run_id: str, progress: Note | None = None
) -> None:
    """Bring silver up to what bronze holds, and stop.

    A source that fails does not keep the others from being applied; its error is raised at the end. Raises TableError
    when a source has no bronze table yet.
    """
    warehouse = Warehouse(spark, settings.warehouse, settings.checkpoints)
    ensure_tables(warehouse, contracts)

    places = (warehouse.location, warehouse.checkpoints)
    said: dict[str, LakehouseError] = {}

    def start(source: str) -> StreamingQuery:
        job = Job(source, contracts, warehouse.location, warehouse.checkpoints, run_id)

        def apply(batch: DataFrame, batch_id: int) -> None:
            try:
                apply_batch(batch, batch_id, job=job)
            except LakehouseError as error:
                said[source] = error
                raise

        with storage_errors(job=f"silver: {source}", places=places):
            return _start(warehouse, job, apply)

    def explain(source: str, error: StreamingQueryException) -> LakehouseError:
        storage = storage_error(error, job=f"silver: {source}", places=places)
        return said.get(source) or storage or _explained(source, error)

    try:
        run_until_done(contracts.topics.sources, start=start, explain=explain, progress=progress)
    finally:
        _store_rule_results(warehouse, contracts, run_id)


def ensure_tables(warehouse: Warehouse, contracts: Contracts) -> None:
    """Create every table that silver writes and that is not there."""
    for feed in contracts.feeds.values():
        warehouse.ensure(silver_table(feed))
    for spec in (*TABLES, RESULTS):
        warehouse.ensure(spec)


def apply_batch(batch: DataFrame, batch_id: int, *, job: Job) -> None:
    """Apply one micro-batch of bronze rows of one source to its silver tables."""
    warehouse = Warehouse(batch.sparkSession, job.location, job.checkpoints)
    # What a batch costs follows the feeds that have news in it, not those that are declared.
    may_be = may_be_wrapped("value") | may_be_wrapped("key")
    wrapped = {
        row["topic"]: row["wrapped"] for row in batch.groupBy("topic").agg(F.bool_or(may_be).alias("wrapped")).collect()
    }
    topics = set(wrapped)
    if not topics:  # a commit of bronze without rows
        return
    feeds = {name: feed for name, feed in job.feeds.items() if any(feed.has_topic(topic) for topic in topics)}
    with ExitStack() as stack:
        records = {name: stack.enter_context(held(_judged(batch, wrapped, feed, job))) for name, feed in feeds.items()}
        rows = _counted(batch, topics, records, job)
        for feed in feeds.values():
            of_feed = [row for row in rows if row["feed"] == feed.name]
            _require_fields(warehouse, _records_of(batch, topics, feed), feed, of_feed)
        memory = remembered(warehouse, job.source, rows)
        outcomes = {}
        for name, feed in feeds.items():
            part = FeedBatch(
                warehouse, feed, job.rules(name), [row for row in rows if row["feed"] == name], job.run, memory
            )
            if any(part.total(kind) for kind in ("changes", "truncates", "tombstones")):
                outcomes[name] = apply_feed(part, records[name])
            if part.total("quarantined"):
                quarantine(warehouse, quarantine_rows(records[name], source=job.source, feed=name), job.source)
        _write_down(warehouse, batch, rows, outcomes, Numbered(job, batch_id))


def _judged(batch: DataFrame, wrapped: Mapping[str, bool], feed: Feed, job: Job) -> DataFrame:
    """The feed's records, through gate 1. `wrapped`: the topics of the batch, and whether messages bring schemas."""
    brings_schemas = any(may_be for topic, may_be in wrapped.items() if feed.has_topic(topic))
    records = _records_of(batch, set(wrapped), feed)
    return judged_records(records, feed, job.rules(feed.name), wrapped=brings_schemas)


def _counted(batch: DataFrame, topics: set[str], records: Mapping[str, DataFrame], job: Job) -> list[Row]:
    """The counts of the whole batch, those of topics without a feed included: a few rows, in the columns of COUNTS."""
    parts = [
        counts(judged_records, feed=job.feeds[name], rules=[rule.name for rule in job.rules(name)])
        for name, judged_records in records.items()
    ]
    without_feed = {topic for topic in topics if not any(feed.has_topic(topic) for feed in job.feeds.values())}
    if without_feed:
        parts.append(ignored_counts(batch.where(F.col("topic").isin(*without_feed))))
    return reduce(DataFrame.unionByName, parts).collect()


def _records_of(batch: DataFrame, topics: set[str], feed: Feed) -> DataFrame:
    """The records of the batch that tell of this feed."""
    return batch.where(F.col("topic").isin(*[topic for topic in topics if feed.has_topic(topic)]))


def _require_fields(warehouse: Warehouse, records: DataFrame, feed: Feed, rows: Sequence[Row]) -> None:
    """Raise ContractError when a column that is not `optional` has never had a field in any event of the feed.

    `rows`: the counts of these records. Debezium's rows have all fields. The payloads of an outbox may leave out what
    is null: there it takes EVENTS_THAT_TELL of them; partial payloads tell nothing.
    """
    judged = sum(row["judged"] for row in rows)
    lacking = [
        column
        for column, declared in feed.columns.items()
        if column not in feed.keys
        and not declared.optional
        and judged
        and judged == sum(row["absent_columns"].get(column, 0) for row in rows)
    ]
    if not lacking or feed.payload == "partial":
        return
    before = ever_present(warehouse.read(LEDGER.name), feed=feed.name, columns=lacking).collect()[0]
    never = [column for column in lacking if not before[column]]
    judged += before["judged"]
    if not never or (feed.envelope == "outbox" and judged < EVENTS_THAT_TELL):
        return
    fields = sorted(row["field"] for row in fields_of_events(records, feed).limit(MOST_FIELDS).collect())
    raise ContractError([_never_had(feed, column, fields, events=judged) for column in never])


def _never_had(feed: Feed, column: str, fields: Sequence[str], *, events: int) -> ContractProblem:
    wanted = feed.fields_of(column)
    close = get_close_matches(wanted[0], fields, n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    what = (
        f"not one of {events:,} events has a field {' or '.join(wanted)};{hint} They have: {', '.join(fields)}."
        " A column that may be absent needs `optional: true`"
    )
    return ContractProblem("silver/tables.yaml", None, f"tables.{feed.name}.columns.{column}", what)


def _write_down(
    warehouse: Warehouse, batch: DataFrame, rows: Sequence[Row], outcomes: Mapping[str, Outcome], number: Numbered
) -> None:
    """What later batches need to know of this one, then the ledger: a batch in the ledger is done."""
    job, batch_id = number.job, number.batch_id
    checkpoint = warehouse.checkpoint_id(job.checkpoint)
    writer = f"silver/{job.source}/{checkpoint}"
    counted = [row.asDict() for row in rows]
    seen = small_table(warehouse.spark, connector_run_rows(counted, source=job.source), CONNECTOR_RUNS.columns)
    warehouse.append_once(CONNECTOR_RUNS.name, seen, writer=writer, number=batch_id)
    of_batch = {"run": job.run, "source": job.source, "checkpoint": checkpoint or "", "batch": batch_id}
    ended = {place: counts for outcome in outcomes.values() for place, counts in outcome.counts.items()}
    entries = ledger_rows(counted, ended, _gaps(batch, rows), batch=of_batch)
    for feed, outcome in outcomes.items():
        entries += moved_rows(outcome, batch={**of_batch, "feed": feed})
    ledger = small_table(warehouse.spark, entries, LEDGER.columns)
    warehouse.append_once(
        LEDGER.name, ledger.withColumn("written_at", F.current_timestamp()), writer=writer, number=batch_id
    )


def _gaps(batch: DataFrame, rows: Sequence[Row]) -> dict[Place, list[tuple[int, int]]]:
    """Of every place, the ranges of offsets inside of the batch that no record has."""
    extent: dict[Place, tuple[int, int, int]] = {}
    for row in rows:
        place = (row["topic"], row["topic_id"], row["partition"])
        first, last, read = extent.get(place, (row["first_offset"], row["last_offset"], 0))
        extent[place] = (min(first, row["first_offset"]), max(last, row["last_offset"]), read + row["read"])
    with_gaps = [place for place, (first, last, read) in extent.items() if last - first + 1 != read]
    gaps: dict[Place, list[tuple[int, int]]] = {}
    if with_gaps:
        records = batch.withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
        found = offset_gaps(records.where(F.col("topic").isin(*{topic for topic, _id, _partition in with_gaps})))
        for row in found.collect():
            place = (row["topic"], row["topic_id"], row["partition"])
            gaps.setdefault(place, []).append((row["first"], row["last"]))
    return gaps


def _store_rule_results(warehouse: Warehouse, contracts: Contracts, run_id: str) -> None:
    """How the row rules came out in this run, into `quality.results`; nothing when the run read nothing."""
    rules = {rule.name: rule for rule in contracts.silver_gate.expectations}
    results = [
        Result(
            run=run_id,
            gate="silver",
            source=row["source"],
            feed=row["feed"],
            rule=row["rule"],
            on_failure=rules[row["rule"]].on_failure,
            evaluated=row["evaluated"],
            failed=row["failed"],
            passed=rules[row["rule"]].is_met(failed=row["failed"], evaluated=row["evaluated"]),
        )
        for row in rule_counts(warehouse.read(LEDGER.name), run=run_id).collect()
    ]
    if results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, results))


def _start(warehouse: Warehouse, job: Job, apply: Callable[[DataFrame, int], None]) -> StreamingQuery:
    return (
        warehouse.stream(f"bronze.{job.source}_events")
        .writeStream.foreachBatch(apply)
        .option("checkpointLocation", warehouse.checkpoint(job.checkpoint))
        .trigger(availableNow=True)
        .queryName(f"silver {job.source}")
        .start()
    )


def _explained(source: str, error: StreamingQueryException) -> LakehouseError:
    return LakehouseError(
        f"silver: {source}: the stream stopped ({error.getCondition()}); Spark's log has the trace.",
        remedy="Nothing was skipped: run the job again after the cause is mended, and it resumes with the same batch.",
    )
