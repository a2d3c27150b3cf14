"""The jobs as the command line runs them: in sequence, in one Spark session, each with a line about its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from rich import filesize

from bronze import ingest
from bronze.source_state import SourceState
from cli.tables.accounts import audit_now
from gold import build
from gold.derived import joins
from gold.state_store import StateStore
from gold.topics import publish, upsert
from gold.unify import UNIFIED
from lakehouse.batches import BATCHES
from lakehouse.config import Settings
from lakehouse.contracts.checks.mistakes import GOLD
from lakehouse.contracts.checks.upsert_checks import mistakes_of_discovered
from lakehouse.contracts.models import NO_UNIFIED, Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import ContractError, ContractProblem, GateHeldError, LakehouseError
from lakehouse.failures import storage_errors
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.process.steps import Steps
from lakehouse.quality.results import PUBLICATION, TABLES
from lakehouse.spark.session import release_jvm_refs
from silver import apply
from silver.accounts.audit import StateCache
from silver.by_rule.tables import with_discovered_tables
from silver.order.state import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Results = Mapping[str, Any]


@dataclass(frozen=True)
class RunContext:
    """What every job of one run gets. `known`: the topics of the broker with their partitions.

    `accepted`: the silver tables whose rejects go to quarantine, however many they are. `resumed`: suspended ones that
    are tried again.
    `accepted_missing`: sources of which silver goes on without the records that bronze has lost. `full_refresh`: gold
    is computed whole. `republish`: every row is sent again. `source_states`: what bronze knows of each source,
    `state_caches` what silver remembers of it, `gold_state` what gold and publish remember: valid while nobody else
    writes.
    """

    spark: SparkSession
    settings: Settings
    contracts: Contracts
    steps: Steps
    known: Mapping[str, tuple[int, ...]]
    run_id: str
    accepted: frozenset[str] = frozenset()
    resumed: frozenset[str] = frozenset()
    accepted_missing: frozenset[str] = frozenset()
    full_refresh: bool = False
    republish: bool = False
    source_states: dict[str, SourceState] = field(default_factory=dict)
    state_caches: dict[str, StateCache] = field(default_factory=dict)
    gold_state: StateStore = field(default_factory=StateStore)

    @property
    def warehouse(self) -> Warehouse:
        """Where the tables are."""
        return self.settings.address.open(self.spark)


@dataclass(frozen=True)
class RunOutcome:
    """What came of the jobs: for each that ended well its numbers, and every failure in order."""

    results: Mapping[str, Any]
    failures: Sequence[LakehouseError]


def run_jobs(
    names: Sequence[str], work: RunContext, *, dry_run: bool = False, before_each: Callable[[], None] | None = None
) -> RunOutcome:
    """Run the jobs of these names. One that fails for one source does not stop the others.

    A dry run changes nothing: every job says what it would do with what is there now. What `before_each` raises ends
    the run.
    """
    results, failures = {}, []
    is_known = False
    for name in names:
        if before_each is not None:
            before_each()
        try:
            with storage_errors(job=name, storage_paths=(work.settings.warehouse, work.settings.checkpoints)):
                # Bronze reads topics, whatever tables there are.
                if name != "bronze" and not is_known:
                    work = replace(work, contracts=with_discovered_tables(work.warehouse, work.contracts))
                is_known = name in ("gold", "publish")  # silver makes tables
                results[name] = (PLANS if dry_run else JOBS)[name](work)
        except LakehouseError as error:
            failures.append(error)
        release_jvm_refs()
    return RunOutcome(results, failures)


def _require_fitting(contracts: Contracts, part: str) -> None:
    """Raise ContractError for what gold/tables.yaml says in this part of tables by rule, and they are not.

    Such a join or topic was passed over, and everything else is done.
    """
    found = [(path, what) for path, what in mistakes_of_discovered(contracts) if path[0] == part]
    if found:
        raise ContractError([ContractProblem(GOLD, None, ".".join(map(str, path)), what) for path, what in found])


def _bronze(work: RunContext) -> Results:
    """Kafka to bronze."""
    with work.steps.step("bronze", "reading what is new on the topics") as note:
        retry_policy = RetryPolicy("bronze", note.say)
        new = ingest.run(
            work.spark,
            work.settings,
            work.contracts.topics,
            known=work.known,
            retry_policy=retry_policy,
            progress=note.now,
            states=work.source_states,
        )
        note(f"{sum(new.values()):,} new records")
    return {"new_records": new}


def _silver(work: RunContext) -> Results:
    """Bronze through gate 1 to silver."""
    with work.steps.step("silver", "gate 1, folding and merging changes") as note:
        sums = apply.run(
            work.spark,
            work.settings,
            work.contracts,
            run_id=work.run_id,
            accepted=work.accepted,
            resumed=work.resumed,
            accepted_missing=work.accepted_missing,
            progress=note.now,
            say=note.say,
            state_caches=work.state_caches,
            retry_policy=RetryPolicy("silver", note.say),
        )
        note(f"{sums['read']:,} records = " + " + ".join(f"{sums[kind]:,} {kind}" for kind in OUTCOMES))
    return sums


def _gold(work: RunContext) -> Results:
    """Silver through gate 2 to gold. A blocked source is only noted; the publish job makes it an error."""
    doing = "gate 2, bringing gold.unified_orders up to silver"
    if work.full_refresh:
        doing = "gate 2, computing every order again, to replace gold.unified_orders, its marts and the joins"
    if not work.contracts.gold.has_unified:
        doing = "computing the joins again" if work.full_refresh else "bringing the joins up to silver"
    with work.steps.step("gold", doing) as note:
        outcome = build.run(
            work.spark,
            work.settings,
            work.contracts,
            run_id=work.run_id,
            full_refresh=work.full_refresh,
            store=work.gold_state,
        )
        written, size = filesize.decimal(outcome.written_bytes), filesize.decimal(outcome.size_in_bytes)
        changed = f"{outcome.changed_rows:,} orders changed, {written} written to a table of {size}"
        note(changed if work.contracts.gold.has_unified else NO_UNIFIED)
        for source, why in outcome.whole.items():
            note(f"{source} was computed whole: {why}")
        for source in outcome.blocked_sources:
            note(f"gate 2 holds {source}")
        for source in outcome.unpublished_sources:
            note(f"gate 2 holds the publication of {source}")
        for name, rows in outcome.joins.written.items():
            note(f"gold.{name}: {rows:,} rows written")
        for name, why in outcome.joins.whole.items():
            note(f"gold.{name} was computed whole: {why}")
        for name, why in outcome.joins.skipped.items():
            note(f"gold.{name} was left as it is: {why}")
    _require_fitting(work.contracts, "joins")
    return {
        "changed_orders": outcome.changed_rows,
        "written_bytes": outcome.written_bytes,
        "size_in_bytes": outcome.size_in_bytes,
        "computed_whole": outcome.whole,
        "held_sources": outcome.blocked_sources,
        "unpublished_sources": outcome.unpublished_sources,
        "changed_groups": outcome.marts,
        "joins": asdict(outcome.joins),
    }


def _publish(work: RunContext) -> Results:
    """Gold to the unified topic, and tables to their upsert topics.

    Raises GateHeldError at the end when gate 2 blocks a source, from gold or from the unified topic.
    """
    topic = _unified_topic(work.contracts)
    doing = f"sending {'every row again' if work.republish else 'what changed'} to {topic or 'the upsert topics'}"
    with work.steps.step("publish", doing) as note:
        outcome = publish.run(
            work.spark,
            work.settings,
            work.contracts,
            retry_policy=RetryPolicy("publish", note.say),
            republish=work.republish,
            store=work.gold_state,
        )
        note(f"{outcome.sent:,} records sent" if topic is not None else NO_UNIFIED)
        for source, why in outcome.whole.items():
            note(f"{source} was compared with the topic: {why}")
        for name, upserted in outcome.upserted.items():
            upsert_topic = work.contracts.gold.upsert_topics[name].topic
            if upserted.skipped is not None:
                note(f"nothing was sent to {upsert_topic}: {upserted.skipped}")
                continue
            note(f"{upserted.sent:,} records sent to {upsert_topic}")
            if upserted.why is not None:
                note(f"its table was compared with the topic: {upserted.why}")
    _require_fitting(work.contracts, "upsert_topics")
    if outcome.blocked:
        blocked_sources = [
            f"{', '.join(sources)} back from {_BLOCKED_FROM[gate]}" for gate, sources in outcome.blocked.items()
        ]
        raise GateHeldError(
            f"Gate 2 holds {' and '.join(blocked_sources)}; everything else was published.",
            hint="See the failed rules: lakehouse quality report. Fix the data or the rule, and run again.",
        )
    return {
        "topic": topic,
        "sent_records": outcome.sent,
        "compared_whole": outcome.whole,
        "upsert_topics": {name: asdict(upserted) for name, upserted in outcome.upserted.items()},
    }


def _unified_topic(contracts: Contracts) -> str | None:
    return None if contracts.gold.publication is None else contracts.gold.publication.topic


# What a gate blocks a source from.
_BLOCKED_FROM = {TABLES: "gold", PUBLICATION: "the topic"}


def _plan_bronze(work: RunContext) -> Results:
    with work.steps.step("bronze", "looking for what is new on the topics") as note:
        pending = ingest.pending(work.spark, work.settings, work.contracts.topics, known=work.known)
        note(f"{sum(pending.values()):,} records are pending on {len(pending)} topics; nothing was read")
    return {"pending_records": pending}


def _plan_silver(work: RunContext) -> Results:
    """By conservation: what bronze has, and the batch audit has not read."""
    with work.steps.step("silver", "looking for what is new in bronze") as note:
        warehouse = work.warehouse
        count = F.coalesce(F.sum("read"), F.lit(0))
        audits = {source: audit_now(warehouse, source) for source in work.contracts.topics.sources}
        read = {source: audit.agg(count).collect()[0][0] for source, audit in audits.items()}
        pending = {source: rows - read[source] for source, rows in _bronze_rows(work).items()}
        note(f"{sum(pending.values()):,} records of bronze are pending; nothing was applied")
    return {"pending_records": pending}


def _plan_gold(work: RunContext) -> Results:
    """Orders that would be computed again, and rows of joins."""
    warehouse, contracts = work.warehouse, work.contracts
    with work.steps.step("gold", "looking for what is new in silver") as note:
        keys: Mapping[str, int] | None = {}
        feeds = [feed for source in contracts.gold.sources.values() for feed in source.feeds]
        absent = [f"silver.{feed}" for feed in feeds if not warehouse.exists(f"silver.{feed}")]
        if not contracts.gold.has_unified:
            note(NO_UNIFIED)
        elif absent:
            keys = None
            note(f"not there yet: {', '.join(absent)}; nothing was changed")
        else:
            keys = build.pending(warehouse, contracts, full_refresh=work.full_refresh)
            note(f"up to {sum(keys.values()):,} orders would be computed again; nothing was changed")
        has_state = contracts.gold.joins and warehouse.exists(BATCHES.name)
        consumed = work.gold_state.read(warehouse).joins if has_state else {}
        rows = joins.pending(warehouse, contracts, consumed=consumed, whole=work.full_refresh)
        for name, count in rows.items():
            would = "would be left as it is" if count is None else f"up to {count:,} rows would be computed again"
            note(f"gold.{name}: {would}; nothing was changed")
    return {"pending_orders": keys, "pending_joins": rows}


def _plan_publish(work: RunContext) -> Results:
    topic = _unified_topic(work.contracts)
    with work.steps.step("publish", "looking for what is new in gold") as note:
        pending = None
        if topic is None:
            note(NO_UNIFIED)
        elif work.warehouse.exists(UNIFIED):
            pending = publish.pending(work.warehouse, work.settings, work.contracts, republish=work.republish)
            note(f"{pending:,} records would go to {topic}; nothing was sent")
        else:
            note(f"{UNIFIED} is not there yet; nothing was sent")
        more = upsert.pending(work.warehouse, work.settings, work.contracts, republish=work.republish)
        for name, count in more.items():
            note(f"{count:,} records would go to {work.contracts.gold.upsert_topics[name].topic}; nothing was sent")
    return {"topic": topic, "pending_records": pending, "pending_in_upsert_topics": more}


def _bronze_rows(work: RunContext) -> dict[str, int]:
    tables = {source: f"bronze.{source}_events" for source in work.contracts.topics.sources}
    warehouse = work.warehouse
    return {source: warehouse.read(table).count() if warehouse.exists(table) else 0 for source, table in tables.items()}


JOBS: Mapping[str, Callable[[RunContext], Results]] = {
    "bronze": _bronze,
    "silver": _silver,
    "gold": _gold,
    "publish": _publish,
}
PLANS: Mapping[str, Callable[[RunContext], Results]] = {
    "bronze": _plan_bronze,
    "silver": _plan_silver,
    "gold": _plan_gold,
    "publish": _plan_publish,
}
