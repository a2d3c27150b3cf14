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
from silver.cells import latest_cells, merge_cells
from silver.changelog import (
    first_occurrences,
    judged,
    keys_across_partitions,
    latest_per_key,
    rows_of_other_partitions,
)
from silver.envelope import changes, fields_of_events
from silver.ledger import (
    CONNECTOR_RUNS,
    COUNT_NAMES,
    COUNTS,
    LEDGER,
    OUTBOX_EVENTS,
    QUARANTINE,
    TABLES,
    connector_run_rows,
    counts,
    ever_present,
    ignored_counts,
    ledger_rows,
    quarantine_rows,
    rule_counts,
    snapshots,
    timestamps_before,
)
from silver.merge import merge_latest, silver_table
from silver.position import has_position, with_position

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SAMPLE_KEYS = 5
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
        return f"silver/{self.source}"

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """The feeds of the source, by name."""
        return self.contracts.of_source(self.source)

    def rules(self, feed: str) -> Sequence[Expectation]:
        """The row rules of gate 1 for a feed."""
        return self.contracts.silver_gate.rules(feed)


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
    topics = {row["topic"] for row in batch.select("topic").distinct().collect()}
    if not topics:  # a commit of bronze without rows
        return
    feeds = {name: feed for name, feed in job.feeds.items() if any(feed.has_topic(topic) for topic in topics)}
    with ExitStack() as stack:
        records = {
            name: stack.enter_context(held(_judged_records(batch, topics, feed, job))) for name, feed in feeds.items()
        }
        rows = _counted(batch, topics, records, job)
        for feed in feeds.values():
            of_feed = [row for row in rows if row["feed"] == feed.name]
            _require_fields(warehouse, _records_of(batch, topics, feed), feed, of_feed)
        counted = small_table(warehouse.spark, [row.asDict() for row in rows], COUNTS)
        for name in feeds:
            places = {(row["topic"], row["partition"]) for row in rows if row["feed"] == name and row["changes"]}
            if places:
                _apply_feed(warehouse, name, records[name], counted, job, places=places)
            if any(row["feed"] == name and row["quarantined"] for row in rows):
                _quarantine(warehouse, quarantine_rows(records[name], source=job.source, feed=name), job.source)
        _write_down(warehouse, rows, counted, batch_id, job)


def _judged_records(batch: DataFrame, topics: set[str], feed: Feed, job: Job) -> DataFrame:
    records = _records_of(batch, topics, feed)
    return judged(changes(records, feed), job.rules(feed.name), has_position=has_position(feed))


def _counted(batch: DataFrame, topics: set[str], records: Mapping[str, DataFrame], job: Job) -> list[Row]:
    """The counts of the whole batch, those of topics without a feed included: a few rows, in the columns of COUNTS."""
    parts = [
        counts(
            judged_records,
            feed=name,
            rules=[rule.name for rule in job.rules(name)],
            columns=[column for column in job.feeds[name].columns if column not in job.feeds[name].keys],
        )
        for name, judged_records in records.items()
    ]
    without_feed = {topic for topic in topics if not any(feed.has_topic(topic) for feed in job.feeds.values())}
    if without_feed:
        parts.append(ignored_counts(batch.where(F.col("topic").isin(*without_feed))))
    return reduce(DataFrame.unionByName, parts).select(*COUNT_NAMES).collect()


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


def _apply_feed(
    warehouse: Warehouse, name: str, records: DataFrame, counted: DataFrame, job: Job, *, places: set[tuple[str, int]]
) -> None:
    """Merge a feed's changes, which come from these topic-partitions, into its table."""
    feed = job.feeds[name]
    seen = warehouse.read(CONNECTOR_RUNS.name).where(F.col("source") == job.source)
    of_batch = connector_run_rows(counted, source=job.source, timed_feeds=())
    placed = with_position(
        records,
        feed,
        runs=snapshots(seen.unionByName(of_batch)),
        read=timestamps_before(seen, counted),
    ).where(F.col("kind") == "change")
    table = warehouse.delta(f"silver.{name}")
    if feed.sequence_by == "source_position":
        merge_latest(table, latest_per_key(placed, feed), feed)
        return
    known = warehouse.read(OUTBOX_EVENTS.name).where((F.col("source") == job.source) & (F.col("feed") == name))
    with held(first_occurrences(placed, known=known)) as events:
        # Most outboxes have one partition; then there is nothing to look for key by key.
        if len(places) > 1 or not rows_of_other_partitions(table.toDF(), places).isEmpty():
            _report_strays(warehouse, name, keys_across_partitions(events, table.toDF(), feed), job)
        if feed.payload == "partial":
            merge_cells(table, latest_cells(events, feed), feed)
        else:
            merge_latest(table, latest_per_key(events, feed), feed)
        _remember_events(warehouse, name, events, job.source)


def _report_strays(warehouse: Warehouse, feed: str, strays: DataFrame, job: Job) -> None:
    """Keys whose events came over several partitions go into the results: only timestamps could order them."""
    sample = strays.limit(SAMPLE_KEYS).collect()
    if not sample:
        return
    failed = strays.count()
    result = Result(
        run=job.run,
        gate="silver",
        source=job.source,
        feed=feed,
        rule="one_partition_per_key",
        on_failure="warn",
        evaluated=failed,
        failed=failed,
        passed=False,
        sample_keys=tuple(",".join(str(value) for value in row) for row in sample),
    )
    warehouse.append(RESULTS.name, result_rows(warehouse.spark, [result]))


def _remember_events(warehouse: Warehouse, feed: str, events: DataFrame, source: str) -> None:
    rows = events.where(F.col("event_id").isNotNull()).select(
        F.lit(source).alias("source"), F.lit(feed).alias("feed"), "event_id", "topic", "partition", "offset"
    )
    is_known = f"known.source = '{source}' AND known.feed = '{feed}' AND known.event_id = new.event_id"
    table = warehouse.delta(OUTBOX_EVENTS.name).alias("known")
    table.merge(rows.alias("new"), is_known).whenNotMatchedInsertAll().execute()


def _quarantine(warehouse: Warehouse, rows: DataFrame, source: str) -> None:
    is_known = (
        f"known.source = '{source}' AND known.topic = new.topic AND known.partition = new.partition"
        " AND known.offset = new.offset"
    )
    table = warehouse.delta(QUARANTINE.name).alias("known")
    table.merge(rows.alias("new"), is_known).whenNotMatchedInsertAll().execute()


def _write_down(warehouse: Warehouse, rows: Sequence[Row], counted: DataFrame, batch_id: int, job: Job) -> None:
    """What later batches need to know of this one, then the ledger: a batch in the ledger is done."""
    writer = f"silver/{job.source}/{warehouse.checkpoint_id(job.checkpoint)}"
    timed = [name for name, feed in job.feeds.items() if feed.sequence_by == "kafka_offset"]
    if any(row["first_snapshot_offset"] is not None or row["feed"] in timed for row in rows):
        seen = connector_run_rows(counted, source=job.source, timed_feeds=timed)
        warehouse.append_once(CONNECTOR_RUNS.name, seen, writer=writer, number=batch_id)
    entries = ledger_rows(counted, run=job.run, source=job.source, batch_id=batch_id)
    warehouse.append_once(LEDGER.name, entries, writer=writer, number=batch_id)


def _store_rule_results(warehouse: Warehouse, contracts: Contracts, run_id: str) -> None:
    """How the row rules came out in this run, into `quality.results`; nothing when the run read nothing."""
    on_failure = {rule.name: rule.on_failure for rule in contracts.silver_gate.expectations}
    results = [
        Result(
            run=run_id,
            gate="silver",
            source=row["source"],
            feed=row["feed"],
            rule=row["rule"],
            on_failure=on_failure[row["rule"]],
            evaluated=row["evaluated"],
            failed=row["failed"],
            passed=row["failed"] == 0,
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
