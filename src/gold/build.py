"""The gold job: plan, judge silver (gate 2), merge the changed orders, prove gold, then the marts and the joins.

Only keys that changed after the consumed versions of silver's tables are computed again, from these tables as they are
now, and merged in one commit; so a repeated run, or one after a crash, ends the same. Without consumed versions to go
on from (a first run, a rebuilt table, another contract, changes that silver does not have any more) a source is
computed whole, and orders that gold has beyond that are deleted. A source that gate 2 blocks keeps its consumed
versions until the gate lets it pass. What gate 2 does not let pass of gold itself is not published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from gold.change_feed.changes import ChangedKeys
from gold.change_feed.feed import GoldFeed
from gold.derived import joins, marts
from gold.derived.recomputed import TableComparison, compare_table
from gold.merge import Merged, merge_orders, not_of_others, replace_orders, write_orders
from gold.orders import TargetRows, desired_orders, desired_rows, read_changes, touched_keys
from gold.plan import GoldJob, definition_of, versions_now, with_news
from gold.quality.conserved import orders_of_silver
from gold.quality.gate import TablesJudged, blocked_by, judge_tables, with_counts
from gold.quality.gate_rules import columns_asked, columns_carried, rules_of_tables
from gold.quality.prove import Proof, prove
from gold.state import GoldState
from gold.state_store import StateStore
from gold.unify import UNIFIED, unified_table
from lakehouse.batches import BATCHES
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.delta_log import written_bytes
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import current, last_version
from lakehouse.quality.results import PUBLICATION, RESULTS, TABLES
from lakehouse.spark.materialized import merge_source
from lakehouse.spark.sizing import rewrite_small_table, rows_in, rows_to_search, tuned_for
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class GoldOutcome:
    """What a run of the gold job did: rows that changed, and what gate 2 blocks.

    It blocks `blocked_sources` from gold, `unpublished_sources` from the topic. `whole`: the sources that were
    computed whole, and why. `written_bytes` of `gold.unified_orders`, which has `size_in_bytes`. `marts`: of each, the
    groups that were written. `joins`: what became of each.
    """

    changed_rows: int
    blocked_sources: tuple[str, ...]
    unpublished_sources: tuple[str, ...]
    whole: Mapping[str, str] = field(default_factory=dict)
    written_bytes: int = 0
    size_in_bytes: int = 0
    marts: Mapping[str, int] = field(default_factory=dict)
    joins: joins.JoinsOutcome = field(default_factory=joins.JoinsOutcome)


def run(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    run_id: str,
    full_refresh: bool = False,
    store: StateStore | None = None,
) -> GoldOutcome:
    """Bring gold up to the silver tables of every source that passes gate 2, and judge it in its turn.

    `full_refresh`: compute every order of these sources, and replace what gold has with them, in one commit; orders
    that stay as they are keep their `processed_at`. `store`: for a process that runs again under the same lock.
    Without unified orders, the joins alone. Raises ContractError when Great Expectations refuses the arguments of a
    rule.
    """
    started_at = datetime.now(UTC)
    warehouse = settings.address.open(spark)
    store = StateStore() if store is None else store
    if not contracts.gold.has_unified:
        return GoldOutcome(0, (), (), joins=joins.refresh_alone(warehouse, contracts, store=store, whole=full_refresh))
    is_replaced = full_refresh and warehouse.exists(UNIFIED)
    warehouse.ensure_all([BATCHES, RESULTS, *([] if is_replaced else [unified_table(contracts.gold)])])
    with ExitStack() as stack:
        job = _planned(warehouse, contracts, store.read(warehouse), stack, run_id=run_id, full_refresh=full_refresh)
        stack.callback(job.write_results)
        # Without consumed versions all rows are read; else those that changed are looked for.
        size = sum(version.size_in_bytes for of_feeds in job.news.values() for version in of_feeds.values())
        is_whole = full_refresh or not job.consumed
        stack.enter_context(tuned_for(spark, rows_in(size) if is_whole else rows_to_search(size)))
        if not full_refresh:
            read_changes(job.changed, job.news, job.consumed)
        judged = _judge(job)
        blocked = blocked_by(judged.results)
        merged = {name: now for name, now in job.news.items() if name not in blocked}
        desired = {name: desired_rows(job, name, now) for name, now in merged.items()}
        merged_orders = _merge(job, desired, blocked=blocked) if desired else Merged(0)
        now = current(warehouse, UNIFIED) if desired else job.before
        state = _with_orders(job, merged, judged)
        proof = prove(job, desired, state.orders.versions, now=now, blocked=blocked)
        state = _with_proof(state, proof, now=now, sources=contracts.gold.sources, blocked=blocked)
        try:
            groups = marts.refresh(
                warehouse, contracts, feed=job.feed, now=now, consumed=state.marts, whole=full_refresh
            )
            joined = joins.refresh(warehouse, contracts, consumed=state.joins, blocked=blocked, whole=full_refresh)
        finally:
            job.write_results()
            # In one commit: should this run die before it, the next one does the same again, and ends the same.
            store.write(warehouse, state, started_at=started_at)
    before = job.before
    return GoldOutcome(
        changed_rows=merged_orders.changed_rows,
        blocked_sources=blocked,
        unpublished_sources=proof.blocked,
        whole={
            name: f"{one.why}; gold itself could not be read" if merged_orders.was_unreadable else one.why
            for name, one in desired.items()
            if one.why is not None
        },
        written_bytes=written_bytes(warehouse, UNIFIED, after=before.number, to=now.number) if now != before else 0,
        size_in_bytes=now.size_in_bytes,
        marts=groups,
        joins=joined,
    )


def _planned(
    warehouse: Warehouse, contracts: Contracts, state: GoldState, stack: ExitStack, *, run_id: str, full_refresh: bool
) -> GoldJob:
    """What this run has to do: by Delta's logs alone."""
    before = current(warehouse, UNIFIED)
    definition = definition_of(contracts.gold, created_ms=before.created_ms)
    consumed = state.orders.under(definition)
    versions = {name: versions_now(warehouse, source) for name, source in contracts.gold.sources.items()}
    changed = ChangedKeys(
        warehouse,
        key=contracts.gold.key,
        stack=stack,
        columns=columns_asked(contracts),
        of_images=columns_carried(contracts),
    )
    return GoldJob(
        warehouse=warehouse,
        contracts=contracts,
        run_id=run_id,
        full_refresh=full_refresh,
        state=state,
        before=before,
        definition=definition,
        consumed=consumed,
        versions=versions,
        news=with_news(versions, consumed={} if full_refresh else consumed),
        changed=changed,
        feed=GoldFeed(warehouse, contracts.gold),
        stack=stack,
    )


def _judge(job: GoldJob) -> TablesJudged:
    """Gate 2 on silver's tables, of sources with news and of those that a rule about the time may block."""
    judged = judge_tables(
        job.warehouse,
        job.contracts,
        job.news,
        without_news={name: now for name, now in job.versions.items() if name not in job.news},
        consumed=job.consumed,
        passed=job.passed,
        changed=job.changed,
        run_id=job.run_id,
    )
    job.results.extend(judged.results)
    return judged


def _with_orders(job: GoldJob, merged: Mapping[str, Mapping[str, Version]], judged: TablesJudged) -> GoldState:
    """The state with gold's orders as this run has merged them: which versions, and what was counted of them."""
    gate = job.contracts.gold_gate
    versions = [
        with_counts(
            version,
            gate,
            judged.counts.get(version.table, {}),
            job.consumed.get(version.table),
            job.passed.get(version.table),
        )
        for of_feeds in merged.values()
        for version in of_feeds.values()
    ]
    return job.state.model_copy(
        update={
            "orders": job.state.orders.with_later(job.definition, versions),
            "passed": job.state.passed.with_later(rules_of_tables(gate), versions),
            "marts": dict(job.state.marts),
            "joins": dict(job.state.joins),
        }
    )


def _with_proof(
    state: GoldState, proof: Proof, *, now: Version, sources: Iterable[str], blocked: Collection[str]
) -> GoldState:
    """The state with what may be published of gold as it is `now`, and what gate 2 blocks.

    From gold exactly those sources are blocked that this run has `blocked`: each that has news, or that a rule about
    the time may block, is judged in every run. From publication a source stays blocked until it is proven.
    """
    unproven = {*state.blocked.get(PUBLICATION, ()), *proof.blocked} - proof.let_pass
    return state.model_copy(
        update={
            "publishable": {**state.publishable, **dict.fromkeys(sorted(proof.let_pass), now)},
            "proven": {**state.proven, **proof.proven},
            "blocked": {
                TABLES: tuple(name for name in sources if name in blocked),
                PUBLICATION: tuple(name for name in sources if name in unproven),
            },
        }
    )


def _merge(job: GoldJob, desired: Mapping[str, TargetRows], *, blocked: Sequence[str]) -> Merged:
    """Make gold hold the orders of these sources."""
    warehouse, tables, size = job.warehouse, job.contracts.gold, job.before.size_in_bytes
    orders = reduce(lambda left, right: left.unionByName(right), [one.orders for one in desired.values()])
    if job.full_refresh:
        kept = [tables.sources[name].name for name in blocked]
        return replace_orders(warehouse, unified_table(tables), orders, tables=tables, kept_sources=kept)
    whole = [name for name, one in desired.items() if one.why is not None]
    if size == 0 and len(whole) == len(desired):
        return Merged(write_orders(warehouse, orders))
    beyond = not_of_others(tables, whole) if whole else None
    count = None if whole else sum(one.keys.count for one in desired.values() if one.keys is not None)
    with (
        merge_source(orders, key="composite_key", count=count, size_in_bytes=size, are_kept=True) as source,
        rewrite_small_table(warehouse.spark, size),
    ):
        return Merged(merge_orders(warehouse.delta(UNIFIED), source, tables=tables, delete_beyond=beyond))


def pending(warehouse: Warehouse, contracts: Contracts, *, full_refresh: bool = False) -> dict[str, int]:
    """Of every source, how many orders the next run would compute again. Changes nothing.

    Raises TableError when a silver table is not there yet.
    """
    tables = contracts.gold
    consumed: Mapping[str, Version] = {}
    if warehouse.exists(UNIFIED):
        definition = definition_of(tables, created_ms=warehouse.created_at_ms(UNIFIED))
        consumed = StateStore().read(warehouse).orders.under(definition)
    counts = dict.fromkeys(tables.sources, 0)
    versions = {name: versions_now(warehouse, source) for name, source in tables.sources.items()}
    news = with_news(versions, consumed={} if full_refresh else consumed)
    with ExitStack() as stack:
        changed = ChangedKeys(warehouse, key=tables.key, stack=stack, columns=columns_asked(contracts))
        for name, now in news.items():
            keys, _why = touched_keys(changed, now, consumed, full_refresh=full_refresh)
            orders = desired_orders(changed, tables, tables.sources[name], now=now, touched=keys)
            counts[name] = orders.count()
    return counts


def compare(warehouse: Warehouse, contracts: Contracts, *, state: GoldState) -> TableComparison:
    """Compare gold with what silver's tables state, in the versions that gold has. Changes nothing."""
    tables = contracts.gold
    if not warehouse.exists(UNIFIED):
        return TableComparison(UNIFIED, why_not=f"not there yet: {UNIFIED}")
    consumed = state.orders.under(definition_of(tables, created_ms=last_version(warehouse, UNIFIED).created_ms))
    # Of a source that gate 2 has blocked from the beginning gold has nothing.
    sources = [
        name for name, source in tables.sources.items() if all(f"silver.{feed}" in consumed for feed in source.feeds)
    ]
    versions = [consumed[f"silver.{feed}"] for name in sources for feed in tables.sources[name].feeds]

    def computed() -> DataFrame:
        orders = [orders_of_silver(warehouse, tables, name, consumed) for name in sources]
        return reduce(lambda left, right: left.unionByName(right), orders)

    spec = unified_table(tables)
    return compare_table(warehouse, spec, versions, computed, keys=["composite_key"])
