"""The silver job: what is new in bronze, read, judged, folded to one change a key, and merged into one table a feed.

`ops.batches` says what bronze has, and what silver has read: the rest is cut into batches, and each source
applies its own, beside the others. Before it reads on, it carries out what people have asked of the quarantine
(silver.rejects.decisions). After all of them the suspended tables are tried again that may go on now
(silver.rejects.suspended).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from lakehouse.batches import BATCHES, forget_replaced, has_many_files, join_files
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import Warehouse
from lakehouse.erasure.table import key_rows
from lakehouse.errors import LakehouseError, TableError
from lakehouse.failures import package_missing, storage_errors, unexpected
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.process.steps import Note
from lakehouse.quality.results import RESULTS, Result, forget_old_results, result_rows
from lakehouse.retention import DAYS_KEPT
from lakehouse.spark.session import release_jvm_refs
from lakehouse.spark.side_by_side import Round, in_threads, until_done
from silver.accounts.audit import OUTBOX_EVENTS, StateCache, begin_generations, read_states, rule_counts
from silver.accounts.ingested import unread_ranges
from silver.batch.merge import silver_table
from silver.by_rule.tables import DiscoveredTables, discovered_tables
from silver.fold.erased import ErasedKeys, erased_keys
from silver.gate import require_rules
from silver.job import SilverJob
from silver.order.ranges import batches_of
from silver.order.state import COUNTED, State, SuspensionCause
from silver.rejects import decisions, suspended
from silver.rejects.quarantine import QUARANTINE
from silver.row_history.table import history_table
from silver.schema.schemas import Schemas, schemas
from silver.source_batch import apply_ranges, resume
from silver.views import ensure_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    run_id: str,
    accepted: Collection[str] = (),
    resumed: Collection[str] = (),
    accepted_missing: Collection[str] = (),
    progress: Note | None = None,
    say: Note | None = None,
    state_caches: dict[str, StateCache] | None = None,
    retry_policy: RetryPolicy | None = None,
) -> dict[str, int]:
    """Bring silver up to date with bronze, and end; how many records it has read, and what became of them (COUNTED).

    A source that fails does not keep the others from being applied; its error is raised at the end. A schema registry
    that does not answer is waited for as `retry_policy` says. `accepted`: tables whose rejects go to quarantine,
    however many they are. `resumed`: suspended tables that are tried again; so are those whose contract has changed or
    that are accepted now, and no others. `accepted_missing`: sources that go on without the records that bronze has
    lost. `progress`: is told how far each source is. `say`: is told what a person must know of a table. `state_caches`:
    of each source, for a process that runs again under the same lock. Raises TableError when a source has no bronze
    table yet, when some of its silver tables are gone, and when bronze has not what `ops.batches` says, ContractError
    when a rule cannot be compiled, FeedSuspendedError when tables are suspended, RegistryError when a schema that is
    needed is not to be had.
    """
    warehouse = settings.address.open(spark)
    known = {source: StateCache() for source in contracts.topics.sources} if state_caches is None else state_caches
    require_rules(spark, contracts)
    own_memories = {source: known.setdefault(source, StateCache()) for source in contracts.topics.sources}
    known_tables = contracts.discovered.values() or discovered_tables(warehouse, contracts)
    is_first_pass = all(memory.state is None for memory in own_memories.values())
    _load_states(warehouse, contracts.with_discovered(known_tables) if known_tables else contracts, own_memories)
    ensure_tables(warehouse, contracts)
    own_schemas = _own_schemas(warehouse, settings, own_memories)

    discovered = DiscoveredTables({one.name: one for one in known_tables}, run_id)
    contracts = contracts.declared
    storage_paths = (warehouse.location, warehouse.checkpoints)
    of_feeds = _erased(warehouse, own_memories)
    jobs = {
        source: SilverJob(
            source,
            contracts,
            warehouse.address,
            run_id,
            frozenset(accepted),
            own_memories[source],
            own_schemas[source],
            discovered,
            source in accepted_missing,
            erased=of_feeds,
        )
        for source in contracts.topics.sources
    }
    failures: list[LakehouseError] = []
    how_far = HowFar(progress)
    try:
        try:
            once = partial(_apply_news, warehouse, jobs, how_far=how_far, storage_paths=storage_paths)
            until_done(jobs, once, retry_policy=retry_policy)
        except LakehouseError as error:
            failures.append(error)
        for job in jobs.values():
            failures += _resume_tables(warehouse, job, resumed, storage_paths=storage_paths)
    finally:
        _store_rule_results(warehouse, contracts, jobs.values())
    if failures:
        raise failures[0]
    if is_first_pass:
        keep_state_small(warehouse, say=say)
    contracts = contracts.with_discovered(discovered.known.values())
    if say is not None:
        for feed in _nameless(warehouse, contracts, known):
            say(f"silver.{feed}: {NAMELESS_RUN}")
    _raise_if_stopped(warehouse, contracts, known)
    return {kind: sum(row.get(kind) or 0 for job in jobs.values() for row in job.counted) for kind in COUNTED}


def _load_states(warehouse: Warehouse, contracts: Contracts, state_caches: Mapping[str, StateCache]) -> None:
    """Know the state of each source: of a new generation where there was none, or where all its tables were deleted.

    Raises TableError when some of a source's tables were deleted, and others were not: what those have read before, no
    run would read again.
    """
    warehouse.ensure(BATCHES)
    new = [source for source, memory in state_caches.items() if memory.state is None]
    states = read_states(warehouse, new)
    begin: dict[str, State] = {}
    for source, state in states.items():
        feeds = contracts.of_source(source)
        written = [table for name, feed in feeds.items() if state.of_feed(name) for table in feed.silver_tables]
        gone = [table for table in written if not warehouse.exists(table)]
        if not state.generation or (gone and gone == written):
            begin[source] = state
        elif gone:
            tables = ", ".join(table for table in written if table not in gone)
            raise TableError(
                f"silver: {source}: {', '.join(gone)} was deleted, and {tables} was not.",
                hint="Restore it; or delete all silver tables of the source, and run silver: it rebuilds them from"
                " bronze.",
            )
    if begin:
        states |= begin_generations(warehouse, begin)
    for source, state in states.items():
        state_caches[source].state = state


def keep_state_small(warehouse: Warehouse, *, say: Note | None = None) -> None:
    """`compact_state` where it is due: a process that ends after a batch leaves a file."""
    if has_many_files(warehouse):
        compact_state(warehouse, say=say)


def compact_state(warehouse: Warehouse, *, now: datetime | None = None, say: Note | None = None) -> None:
    """Have few files of `ops.batches`, and of what is older than DAYS_KEPT what `lakehouse.retention` keeps of it.

    What silver and people read of them follows the last weeks, not the past.
    """
    before = (datetime.now(UTC) if now is None else now) - timedelta(days=DAYS_KEPT)
    rows, results = forget_replaced(warehouse, before=before), forget_old_results(warehouse, before=before)
    join_files(warehouse)
    if say is not None:
        for name, (were, are) in ((BATCHES.name, rows), (RESULTS.name, results)):
            if are < were:
                say(f"{name}: {were:,} rows that are replaced or older than {DAYS_KEPT} days are {are:,} now")


@dataclass
class HowFar:
    """The last batch of every source that has ended one: `postgres batch 3 (20,000 records)`."""

    progress: Note | None
    _last: dict[str, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, source: str, batch: int, records: int) -> None:
        """Such a batch has ended; called in the source's thread."""
        with self._lock:
            self._last[source] = f"{source} batch {batch + 1} ({records:,} records)"
            if self.progress is not None:
                self.progress(", ".join(self._last.values()))


def _apply_news(
    warehouse: Warehouse,
    jobs: Mapping[str, SilverJob],
    sources: Sequence[str],
    *,
    how_far: HowFar,
    storage_paths: Sequence[str],
) -> Round:
    """What bronze has of each of these sources and silver has not read, batch by batch."""
    states = {source: jobs[source].memory.now(warehouse, source) for source in sources}
    unread = unread_ranges(warehouse, {source: state.read_ranges for source, state in states.items()})
    took_some: set[str] = set()

    def apply(spark: SparkSession, source: str) -> None:
        job, name = jobs[source], f"silver: {source}"
        own = job.address.open(spark)
        try:
            with storage_errors(job=name, storage_paths=storage_paths):
                own.read(f"bronze.{source}_events")  # says in our words that it is not there
                decisions.carry_out(own, job)
                for batch in batches_of(unread[source], states[source].read_ranges):
                    apply_ranges(own, batch, job=job)
                    took_some.add(source)
                    how_far(source, job.memory.now(own, source).last_batch, batch.records)
                    release_jvm_refs()
        except Exception as error:
            # What was to be the last step may have been done: what is known is read again.
            job.memory.forget()
            if isinstance(error, LakehouseError):
                raise
            raise (package_missing(error, job=name) or unexpected(error, job=name)) from error

    return replace(in_threads(warehouse.spark, sources, apply, layer="silver"), took_some=frozenset(took_some))


def _own_schemas(
    warehouse: Warehouse, settings: Settings, state_caches: Mapping[str, StateCache]
) -> dict[str, Schemas]:
    """The registry's schemas of each source, as it remembers them, else as the warehouse has them."""
    kept: Schemas | None = None
    own: dict[str, Schemas] = {}
    for source, memory in state_caches.items():
        if memory.schemas is None:
            kept = kept or schemas(warehouse, settings.schema_registry())
            memory.schemas = kept.copied()
        own[source] = memory.schemas
    return own


def _erased(warehouse: Warehouse, state_caches: Mapping[str, StateCache]) -> Mapping[str, ErasedKeys]:
    """By table the keys whose rows were erased, as the sources remember them, else as the warehouse has them."""
    if any(memory.erased is None for memory in state_caches.values()):
        found = erased_keys(key_rows(warehouse))
        for memory in state_caches.values():
            memory.erased = found
    return {feed: keys for memory in state_caches.values() for feed, keys in (memory.erased or {}).items()}


def ensure_tables(warehouse: Warehouse, contracts: Contracts) -> None:
    """Create every table that silver writes and that is not there, and in a catalog the clean views of them.

    Those that rules make come with their first batch.
    """
    feeds = [feed for feed in contracts.feeds.values() if feed.discovered is None]
    of_history = [history_table(feed) for feed in feeds if feed.has_history]
    warehouse.ensure_all([*map(silver_table, feeds), *of_history, BATCHES, OUTBOX_EVENTS, QUARANTINE, RESULTS])
    ensure_views(warehouse, contracts)


def _resume_tables(
    warehouse: Warehouse, job: SilverJob, asked: Collection[str], *, storage_paths: Sequence[str]
) -> list[LakehouseError]:
    """Try the suspended tables again that a command has `asked` for, or that may go on by what is known now.

    One that fails is as it was, and stops no other.
    """
    try:
        with storage_errors(job=f"silver: {job.source}", storage_paths=storage_paths):
            tables = job.memory.now(warehouse, job.source).suspended
    except LakehouseError as error:
        return [error]
    failures: list[LakehouseError] = []
    for name, cause in tables.items():
        feed = {**job.undiscovered, **job.feeds}.get(name)
        if feed is None:
            continue
        try:
            with storage_errors(job=f"silver: {job.source}: {name}", storage_paths=storage_paths):
                if name in asked or cause.contract != job.contract(feed) or _is_defined_anew(job, feed):
                    resume(warehouse, feed, job=job)
        except LakehouseError as error:
            failures.append(error)
        except Exception as error:
            failures.append(unexpected(error, job=f"silver: {job.source}: {name}"))
    return failures


def _is_defined_anew(job: SilverJob, feed: Feed) -> bool:
    """Whether this run has read schema changes that may say what a table is that a rule could not make yet."""
    if feed.discovered is None or feed.discovered.is_made:
        return False
    rule = job.contracts.topics.sources[job.source].by_rule[feed.discovered.rule]
    if rule.schema_changes is None:
        return False
    return any(row["topic"] == rule.schema_changes and row["read"] for row in job.counted)


def _raise_if_stopped(warehouse: Warehouse, contracts: Contracts, state_caches: Mapping[str, StateCache]) -> None:
    causes: dict[str, SuspensionCause] = {}
    for source in contracts.topics.sources:
        state = state_caches[source].now(warehouse, source)
        feeds = {**contracts.of_source(source), **contracts.undiscovered(source)}
        causes |= {feed: cause for feed, cause in state.suspended.items() if feed in feeds}
    if causes:
        raise suspended.suspended_error(causes)


def _nameless(warehouse: Warehouse, contracts: Contracts, state_caches: Mapping[str, StateCache]) -> list[str]:
    """The tables whose order needs the connector's runs, and whose newest records do not name theirs."""
    found = []
    for source in contracts.topics.sources:
        state = state_caches[source].now(warehouse, source)
        found += [
            name
            for name, feed in contracts.of_source(source).items()
            if feed.sequence_by == "source_position" and not feed.append_only and state.names_no_run(name)
        ]
    return found


def _store_rule_results(warehouse: Warehouse, contracts: Contracts, jobs: Iterable[SilverJob]) -> None:
    """How the row rules came out in this run, into `quality.results`; nothing when the run read nothing."""
    rules = {rule.name: rule for rule in contracts.silver_gate.expectations}
    results = [
        Result(
            run=job.run,
            gate="silver",
            source=job.source,
            feed=feed,
            rule=rule,
            on_failure=rules[rule].on_failure,
            evaluated=evaluated,
            failed=failed,
            passed=rules[rule].is_met(failed=failed, evaluated=evaluated),
            description=rules[rule].description,
        )
        for job in jobs
        for (feed, rule), (evaluated, failed) in rule_counts(job.counted).items()
    ]
    if results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, results))


NAMELESS_RUN = (
    "its newest records do not name their connector run, so a failover or a later full snapshot cannot be seen:"
    " Debezium 3.2 or later names it, unless extended.headers.enabled=false"
)
