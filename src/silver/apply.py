"""The silver job: what is new in bronze, read, judged, folded to one change a key, and merged into one table a feed.

One stream a source. Before it reads on, it carries out what people have asked of the quarantine (silver.decisions).
After all of them the suspended tables are tried again that may go on now (silver.suspended).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.batches import BATCHES, batches, join_files
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.errors import LakehouseError
from lakehouse.failures import (
    noted_error,
    noted_errors,
    package_missing,
    storage_error,
    storage_errors,
    stream_stopped,
    unexpected,
)
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.quality.results import RESULTS, Result, result_rows
from lakehouse.spark.materialized import MATERIALIZED_ROWS, in_batch
from lakehouse.spark.session import let_java_forget
from lakehouse.spark.streams import run_until_done
from lakehouse.spark.tables import Warehouse
from lakehouse.steps import Note
from silver import decisions, suspended
from silver.audit import OUTBOX_EVENTS, Memory, audited, rule_counts
from silver.batch.merge import silver_table
from silver.by_rule.tables import MadeTables, made_tables
from silver.gate import require_rules
from silver.job import SilverJob
from silver.micro_batch import apply_batch, resume
from silver.order.state import COUNTED, SuspensionCause
from silver.quarantine import QUARANTINE
from silver.schemas import Schemas, schemas
from silver.views import ensure_views

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def run(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    run_id: str,
    accepted: Collection[str] = (),
    accepted_columns: Collection[str] = (),
    resumed: Collection[str] = (),
    progress: Note | None = None,
    say: Note | None = None,
    memories: dict[str, Memory] | None = None,
    retry_policy: RetryPolicy | None = None,
) -> dict[str, int]:
    """Bring silver up to date with bronze, and end; how many records it has read, and what became of them (COUNTED).

    A source that fails does not keep the others from being applied; its error is raised at the end. A schema registry
    that does not answer is waited for as `retry_policy` says. `accepted`: tables whose rejects go to quarantine,
    however many they are. `accepted_columns`: tables by rule that go on with the columns that their events have now.
    `resumed`: suspended tables that are tried again; so are those whose contract has changed or that are accepted now,
    and no others. `say`: is told what a person must know of a table. `memories`: of each source, for a process that
    runs again under the same lease. Raises TableError when a source has no bronze table yet, ContractError when a rule
    cannot be compiled, FeedSuspendedError when tables are suspended, RegistryError when a schema that is needed is not
    to be had.
    """
    warehouse = settings.address.opened(spark)
    known = {source: Memory() for source in contracts.topics.sources} if memories is None else memories
    require_rules(spark, contracts)
    ensure_tables(warehouse, contracts)
    own_memories = {source: known.setdefault(source, Memory()) for source in contracts.topics.sources}
    if all(memory.state is None for memory in own_memories.values()):  # the first pass of a process
        join_files(warehouse)
    own_schemas = _own_schemas(warehouse, settings, own_memories)

    known_tables = contracts.made.values() or made_tables(warehouse, contracts)
    made = MadeTables({one.name: one for one in known_tables}, run_id, frozenset(accepted_columns))
    contracts = contracts.declared
    places = (warehouse.location, warehouse.checkpoints)
    jobs: dict[str, SilverJob] = {}
    failures: list[LakehouseError] = []

    def start(source: str) -> StreamingQuery:
        memory, of_registry = own_memories[source], own_schemas[source]
        job = SilverJob(source, contracts, warehouse.address, run_id, frozenset(accepted), memory, of_registry, made)
        jobs[source] = job
        with storage_errors(job=f"silver: {source}", places=places):
            if memory.begin(warehouse, source):  # a rebuilt silver reads all of it by itself
                decisions.carry_out(warehouse, job)
            return _start(warehouse, job)

    def explain(source: str, error: StreamingQueryException) -> LakehouseError:
        name = f"silver: {source}"
        known = noted_error(error, run=run_id) or storage_error(error, job=name, places=places)
        known = known or package_missing(error, job=name)
        return known or stream_stopped(error, job=name, remedy=_RUN_AGAIN)

    try:
        try:
            run_until_done(
                contracts.topics.sources, start=start, explain=explain, retry_policy=retry_policy, progress=progress
            )
        except LakehouseError as error:
            failures.append(error)
        for job in jobs.values():
            failures += _resume_tables(warehouse, job, resumed, places=places)
    finally:
        counted = audited(warehouse, run=run_id)
        _store_rule_results(warehouse, contracts, run_id, counted)
    if failures:
        raise failures[0]
    contracts = contracts.with_made(made.known.values())
    if say is not None:
        for feed in _nameless(warehouse, contracts, known):
            say(f"silver.{feed}: {NAMELESS_RUN}")
    _raise_if_stopped(warehouse, contracts, known)
    return {kind: sum(row[kind] for row in counted) for kind in COUNTED}


def _own_schemas(warehouse: Warehouse, settings: Settings, memories: Mapping[str, Memory]) -> dict[str, Schemas]:
    """The registry's schemas of each source, as it remembers them, else as the warehouse has them."""
    kept: Schemas | None = None
    own: dict[str, Schemas] = {}
    for source, memory in memories.items():
        if memory.schemas is None:
            kept = kept or schemas(warehouse, settings.schema_registry())
            memory.schemas = kept.copied()
        own[source] = memory.schemas
    return own


def ensure_tables(warehouse: Warehouse, contracts: Contracts) -> None:
    """Create every table that silver writes and that is not there, and in a catalog the clean views of them.

    Those that rules make come with their first batch.
    """
    feeds = [feed for feed in contracts.feeds.values() if feed.made is None]
    warehouse.ensure_all([*map(silver_table, feeds), BATCHES, OUTBOX_EVENTS, QUARANTINE, RESULTS])
    ensure_views(warehouse, contracts)


def _resume_tables(
    warehouse: Warehouse, job: SilverJob, asked: Collection[str], *, places: Sequence[str]
) -> list[LakehouseError]:
    """Try the suspended tables again that a command has `asked` for, or that may go on by what is known now.

    One that fails is as it was, and stops no other.
    """
    try:
        with storage_errors(job=f"silver: {job.source}", places=places):
            tables = job.memory.now(warehouse, job.source).suspended
    except LakehouseError as error:
        return [error]
    failures: list[LakehouseError] = []
    for name, cause in tables.items():
        feed = {**job.not_made, **job.feeds}.get(name)
        if feed is None:
            continue
        try:
            with storage_errors(job=f"silver: {job.source}: {name}", places=places):
                if name in asked or cause.contract != job.contract(feed) or _is_defined_anew(warehouse, job, feed):
                    resume(warehouse, feed, job=job)
        except LakehouseError as error:
            failures.append(error)
        except Exception as error:
            failures.append(unexpected(error, job=f"silver: {job.source}: {name}"))
    return failures


def _is_defined_anew(warehouse: Warehouse, job: SilverJob, feed: Feed) -> bool:
    """Whether this run has read schema changes that may say what a table is that a rule could not make yet."""
    if feed.made is None or feed.made.is_made:
        return False
    rule = job.contracts.topics.sources[job.source].by_rule[feed.made.rule]
    if rule.schema_changes is None:
        return False
    of_run = batches(warehouse, "silver").where((F.col("run") == job.run) & (F.col("source") == job.source))
    return not of_run.where((F.col("topic") == rule.schema_changes) & F.col("batch").isNotNull()).isEmpty()


def _raise_if_stopped(warehouse: Warehouse, contracts: Contracts, memories: Mapping[str, Memory]) -> None:
    causes: dict[str, SuspensionCause] = {}
    for source in contracts.topics.sources:
        state = memories[source].now(warehouse, source)
        feeds = {**contracts.of_source(source), **contracts.not_made(source)}
        causes |= {feed: cause for feed, cause in state.suspended.items() if feed in feeds}
    if causes:
        raise suspended.suspended_error(causes)


def _nameless(warehouse: Warehouse, contracts: Contracts, memories: Mapping[str, Memory]) -> list[str]:
    """The tables whose order needs the connector's runs, and whose newest records do not name theirs."""
    found = []
    for source in contracts.topics.sources:
        state = memories[source].now(warehouse, source)
        found += [
            name
            for name, feed in contracts.of_source(source).items()
            if feed.sequence_by == "source_position" and not feed.append_only and state.names_no_run(name)
        ]
    return found


def _store_rule_results(
    warehouse: Warehouse, contracts: Contracts, run_id: str, counted: Sequence[Mapping[str, Any]]
) -> None:
    """How the row rules came out in this run, into `quality.results`; nothing when the run read nothing."""
    rules = {rule.name: rule for rule in contracts.silver_gate.expectations}
    results = [
        Result(
            run=run_id,
            gate="silver",
            source=source,
            feed=feed,
            rule=rule,
            on_failure=rules[rule].on_failure,
            evaluated=evaluated,
            failed=failed,
            passed=rules[rule].is_met(failed=failed, evaluated=evaluated),
            description=rules[rule].description,
        )
        for (source, feed, rule), (evaluated, failed) in rule_counts(counted).items()
    ]
    if results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, results))


def _start(warehouse: Warehouse, job: SilverJob) -> StreamingQuery:
    return (
        warehouse.stream(f"bronze.{job.source}_events")
        .writeStream.foreachBatch(partial(_apply, job=job, materialized_rows=os.environ.get(MATERIALIZED_ROWS, "")))
        .option("checkpointLocation", warehouse.checkpoint(job.checkpoint))
        .trigger(availableNow=True)
        .queryName(f"silver {job.source}")
        .start()
    )


def _apply(batch: DataFrame, batch_id: int, *, job: SilverJob, materialized_rows: str) -> None:
    in_batch(materialized_rows=materialized_rows)
    with noted_errors(job.run):
        apply_batch(batch, batch_id, job=job)
    let_java_forget()


NAMELESS_RUN = (
    "its newest records do not name their connector run, so a failover or a later full snapshot cannot be seen:"
    " Debezium 3.2 or later names it, unless extended.headers.enabled=false"
)
_RUN_AGAIN = "Nothing was skipped: run the job again after the cause is fixed, and it resumes with the same batch."
