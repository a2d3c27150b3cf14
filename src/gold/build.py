"""The gold job: gate 2 on every source with news, gold brought up to silver, gate 2 on gold, and the marts.

Only keys that changed since the silver versions gold took last are computed again, from silver as it is at the versions
taken now, and merged in one commit; so a repeated run, or one after a crash, ends the same. Where there is nothing to
go on from (a first run, a rebuilt table, another contract, changes that silver does not have any more) a source is
taken whole, and what gold has of it beyond that goes. A source that its gate blocks keeps its consumed versions until
the gate lets it pass. What it does not let pass of gold itself is not published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, reduce
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold import joins, marts
from gold.changes import ChangedKeys, Keys, together
from gold.conserved import orders_of_silver
from gold.gate import (
    OTHERS,
    PASSED_PUBLICATION,
    PASSED_TABLES,
    OrdersOfSilver,
    blocked_at,
    blocked_by,
    columns_asked,
    columns_carried,
    judge_publication,
    judge_tables,
    may_be_published,
    of_source,
    passed_publication,
    passed_tables,
    passed_versions,
    with_counts,
)
from gold.merge import Merged, merge_orders, not_of_others, replace_orders, write_orders
from gold.recomputed import TableComparison, compare_table
from gold.unify import (
    UNIFIED,
    deleted_orders,
    highest_feed_that_knows,
    order_columns,
    orders_of_feed,
    unified_table,
    with_fulfillment,
    with_source,
)
from lakehouse.batches import BATCHES
from lakehouse.config import Settings
from lakehouse.consumed import Consumed, ConsumedVersions, Version, current, last_version
from lakehouse.contracts.models import Contracts, GoldSource, GoldTables
from lakehouse.quality.results import PUBLICATION, RESULTS, TABLES, Result, result_rows
from lakehouse.spark.materialized import materialized, materialized_or_fetched, merge_source
from lakehouse.spark.sizing import MOST_FETCHED, prepared_for, rewrite_small_table, rows_in, rows_to_search
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str], None]


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
    consumed: Consumed | None = None,
) -> GoldOutcome:
    """Bring gold up to the silver tables of every source that passes gate 2, and judge it in its turn.

    `full_refresh`: compute every order of these sources, and replace what gold has with them, in one commit; orders
    that stay as they are keep their `processed_at`. `consumed`: for a process that runs again under the same lease.
    Without unified orders, the joins alone. Raises ContractError when Great Expectations refuses the arguments of a
    rule.
    """
    started_at = datetime.now(UTC)
    warehouse = settings.address.opened(spark)
    if not contracts.gold.has_unified:
        return GoldOutcome(0, (), (), joins=joins.refresh_alone(warehouse, contracts, whole=full_refresh, of=consumed))
    is_replaced = full_refresh and warehouse.exists(UNIFIED)
    warehouse.ensure_all([BATCHES, RESULTS, *([] if is_replaced else [unified_table(contracts.gold)])])
    before = current(warehouse, UNIFIED)
    made_by = consumer(contracts.gold, created_ms=before.created_ms)
    consumed = Consumed() if consumed is None else consumed
    others = _of_other_contracts(consumed.now(warehouse), contracts, made_by)
    known = {who: of for who, of in consumed.now(warehouse).items() if who not in others}
    already = known.get(made_by, {})
    versions_now = {name: _versions_now(warehouse, source) for name, source in contracts.gold.sources.items()}
    news = with_news(versions_now, already={} if full_refresh else already)
    without_news = {name: now for name, now in versions_now.items() if name not in news}
    size = sum(version.size_in_bytes for of_feeds in news.values() for version in of_feeds.values())
    # Without consumed versions to go on from, all rows are taken; else those that changed are looked for.
    is_whole = full_refresh or not already
    with prepared_for(spark, rows_in(size) if is_whole else rows_to_search(size)), ExitStack() as stack:
        changed = ChangedKeys(
            warehouse,
            key=contracts.gold.key,
            stack=stack,
            columns=columns_asked(contracts),
            of_images=columns_carried(contracts),
        )
        job = GoldJob(warehouse, contracts, run_id, known, already, changed, stack, before.size_in_bytes)
        stack.callback(job.write_results)
        passed = {} if full_refresh else known.get(passed_tables(contracts.gold_gate), {})
        judged = judge_tables(
            warehouse,
            contracts,
            news,
            without_news=without_news,
            already=already,
            passed=passed,
            changed=changed,
            run_id=run_id,
        )
        job.results.extend(judged.results)
        blocked_sources = blocked_by(judged.results)
        merged = {name: now for name, now in news.items() if name not in blocked_sources}
        desired = {name: _desired(job, name, now, full_refresh=full_refresh) for name, now in merged.items()}
        merged_orders = Merged(0)
        if desired:
            merged_orders = _merge(job, desired, blocked=blocked_sources, full_refresh=full_refresh)
        now = current(warehouse, UNIFIED) if desired else before
        versions = {
            version.table: with_counts(
                version,
                contracts.gold_gate,
                judged.counts.get(version.table, {}),
                already.get(version.table),
                passed.get(version.table),
            )
            for of_feeds in merged.values()
            for version in of_feeds.values()
        }
        unpublished, let_pass = _let_pass(
            job,
            desired,
            {**already, **versions},
            before=before,
            now=now,
            blocked=blocked_sources,
            is_replaced=full_refresh,
        )
        published = [name for name in contracts.gold.sources if may_be_published(name) in let_pass]
        holds = blocked_at(TABLES, blocked_sources) | blocked_at(PUBLICATION, unpublished)
        # Whoever has news is judged in every run, and so is whom a rule about the time blocks.
        not_blocked = set(contracts.gold.sources) - set(blocked_sources)
        lets_go = blocked_at(TABLES, not_blocked) | blocked_at(PUBLICATION, published)
        taken = {
            **let_pass,
            **{who: [now] for who in holds - known.keys()},
            **{who: [*versions.values()] for who in (made_by, passed_tables(contracts.gold_gate))},
        }
        forgotten = [*others, *(lets_go & known.keys())]
        try:
            groups = marts.refresh(warehouse, contracts, now=now, known=known, taken=taken, whole=full_refresh)
            joined = joins.refresh(
                warehouse,
                contracts,
                known=known,
                taken=taken,
                forgotten=forgotten,
                blocked=blocked_sources,
                whole=full_refresh,
            )
        finally:
            job.write_results()
            # In one commit: should this run die before it, the next one does the same again, and ends the same.
            consumed.record(warehouse, taken, forgotten=forgotten, started_at=started_at)
    return GoldOutcome(
        changed_rows=merged_orders.changed_rows,
        blocked_sources=blocked_sources,
        unpublished_sources=unpublished,
        whole={
            name: f"{one.why}; gold itself could not be read" if merged_orders.was_unreadable else one.why
            for name, one in desired.items()
            if one.why is not None
        },
        written_bytes=warehouse.written_bytes(UNIFIED, after=before.number, to=now.number) if now != before else 0,
        size_in_bytes=now.size_in_bytes,
        marts=groups,
        joins=joined,
    )


@dataclass(frozen=True)
class GoldJob:
    """What the steps of one run share.

    `known`: what every consumer of changes had taken before this run; `already`: what this gold had, by table.
    `stack` keeps rows that several steps ask about. `size_in_bytes`: of gold before this run. `results`: of gate 2, not
    written yet.
    """

    warehouse: Warehouse
    contracts: Contracts
    run_id: str
    known: ConsumedVersions
    already: Mapping[str, Version]
    changed: ChangedKeys
    stack: ExitStack
    size_in_bytes: int
    results: list[Result] = field(default_factory=list)

    def write_results(self) -> None:
        """Append the verdicts of gate 2 to `quality.results`, once, in one commit."""
        if self.results:
            self.warehouse.append(RESULTS.name, result_rows(self.warehouse.spark, self.results))
            self.results.clear()


@dataclass(frozen=True)
class Desired:
    """What gold must hold of a source: the `orders` of the `keys` that changed; without keys all of them, and `why`."""

    orders: DataFrame
    keys: Keys | None
    why: str | None


def _desired(job: GoldJob, name: str, now: Mapping[str, Version], *, full_refresh: bool) -> Desired:
    tables = job.contracts.gold
    keys, why = _touched(job.changed, now, job.already, full_refresh=full_refresh)
    orders = desired_orders(job.changed, tables, tables.sources[name], now=now, touched=keys)
    if keys is None or keys.count > MOST_FETCHED:
        orders = job.stack.enter_context(materialized(orders))
    return Desired(orders, keys, why)


def _touched(
    changed: ChangedKeys, now: Mapping[str, Version], already: Mapping[str, Version], *, full_refresh: bool
) -> tuple[Keys | None, str | None]:
    """The keys of a source that changed since gold took it; None when it has to be taken whole, and why."""
    if full_refresh:
        return None, "a full refresh was asked for"
    if not any(version.table in already for version in now.values()):
        return None, "nothing of it was taken before under this contract"
    if not goes_on(now, already):
        return None, "a silver table was rebuilt, or restored to an earlier version"
    keys = together([changed.since(already[version.table], version) for version in now.values()])
    return keys, "silver does not have the changes since the last run any more" if keys is None else None


def _merge(job: GoldJob, desired: Mapping[str, Desired], *, blocked: Sequence[str], full_refresh: bool) -> Merged:
    """Make gold hold the orders of these sources."""
    warehouse, tables = job.warehouse, job.contracts.gold
    orders = reduce(lambda left, right: left.unionByName(right), [one.orders for one in desired.values()])
    if full_refresh:
        kept = [tables.sources[name].name for name in blocked]
        return replace_orders(warehouse, unified_table(tables), orders, tables=tables, kept_sources=kept)
    whole = [name for name, one in desired.items() if one.why is not None]
    if job.size_in_bytes == 0 and len(whole) == len(desired):
        return Merged(write_orders(warehouse, orders))
    beyond = not_of_others(tables, whole) if whole else None
    count = None if whole else sum(one.keys.count for one in desired.values() if one.keys is not None)
    size = job.size_in_bytes
    with (
        merge_source(orders, key="composite_key", count=count, size_in_bytes=size) as source,
        rewrite_small_table(warehouse.spark, size),
    ):
        return Merged(merge_orders(warehouse.delta(UNIFIED), source, tables=tables, delete_beyond=beyond))


def _let_pass(
    job: GoldJob,
    desired: Mapping[str, Desired],
    taken: Mapping[str, Version],
    *,
    before: Version,
    now: Version,
    blocked: Sequence[str],
    is_replaced: bool,
) -> tuple[tuple[str, ...], dict[str, list[Version]]]:
    """Let the publication take gold as it is now, of every source that may be published.

    The sources that may not; and of the others what is to be recorded. `taken`: what gold has now of silver's tables.
    Judged are the sources that this run has merged, those of which the commit of this run has changed rows all the
    same, and those that had not passed with gold as it was `before` this run: blocked, interrupted, or gold was changed
    by another writer. Not those that are blocked from gold: silver as gold took it then may be gone; they are judged
    when they are merged again. All others are asked rules about the time. `is_replaced`: gold was written whole.
    """
    sources, gate = job.contracts.gold.sources, job.contracts.gold_gate
    passed = passed_versions(job.known, sources)
    is_whole = is_replaced or all(name in desired and desired[name].keys is None for name in sources)
    changed = {} if is_whole else _changed_in_gold(job, before, now)
    touched = {name for name in sources if changed is None or name in changed}
    orders, versions, unchanged = {}, {}, {}
    for name, source in sources.items():
        of_feeds = [taken.get(f"silver.{feed}") for feed in source.feeds]
        versions[name] = {version.table: version for version in of_feeds if version is not None}
        is_due = name in desired or ((passed.get(name) != before or name in touched) and name not in blocked)
        # Of a source that was blocked from the beginning gold has nothing that could be judged.
        if len(versions[name]) < len(source.feeds):
            continue
        if is_due:
            orders[name] = _orders_of_silver(
                job,
                name,
                versions[name],
                desired.get(name),
                before=before,
                now=now,
                of_gold=None if changed is None else [changed[name]] if name in changed else [],
            )
        elif name not in blocked:
            unchanged[name] = OrdersOfSilver(partial(_all_orders, job, name, versions[name]))
    judged = judge_publication(
        job.warehouse, job.contracts, orders, unchanged=unchanged, now=now, passed=passed, run_id=job.run_id
    )
    job.results.extend(judged)
    blocked_sources = blocked_by(judged)
    as_before = {name for name in sources if name not in {*desired, *touched} and passed.get(name) == before}
    may_pass = {OTHERS, *as_before, *orders} - set(blocked_sources)
    is_held = {name for name in sources if not blocked_at(PUBLICATION, [name]).isdisjoint(job.known)}
    let_pass = {may_be_published(name): [now] for name in may_pass if passed.get(name) != now or name in is_held}
    for name in may_pass - {OTHERS}:
        by_rules = passed_publication(gate, name)
        if name in orders:
            let_pass[by_rules] = [now, *versions[name].values()]
        elif now != before and job.known.get(by_rules, {}).get(UNIFIED) == before:
            let_pass[by_rules] = [now]  # these rules would find what they found before
    return blocked_sources, let_pass


def _changed_in_gold(job: GoldJob, before: Version, now: Version) -> Mapping[str, Keys] | None:
    """The keys of the rows of gold that this run has changed, by their source; None when they are not known."""
    if now == before or job.size_in_bytes == 0 or not job.contracts.gold_gate.publication:
        return {}
    names = {source.name: name for name, source in job.contracts.gold.sources.items()}
    changed = job.changed.by_value(before, now, column="source_database", values=names)
    return None if changed is None else {names[value]: keys for value, keys in changed.items()}


def _all_orders(job: GoldJob, name: str, versions: Mapping[str, Version]) -> DataFrame:
    """What silver states of all orders of a source, computed once."""
    orders = orders_of_silver(job.warehouse, job.contracts.gold, name, versions)
    return job.stack.enter_context(materialized(orders))


def _orders_of_silver(
    job: GoldJob,
    name: str,
    versions: Mapping[str, Version],
    desired: Desired | None,
    *,
    before: Version,
    now: Version,
    of_gold: Sequence[Keys] | None,
) -> OrdersOfSilver:
    """What silver's tables state of a source, as gold has taken it; of the changed keys alone where it is known which.

    Those that changed in silver, and those that changed in gold. `of_gold`: by this run, None where it is not known.
    """
    of_all = partial(_all_orders, job, name, versions)
    gate, last = job.contracts.gold_gate, job.known.get(passed_publication(job.contracts.gold_gate, name), {})
    if (desired is not None and desired.keys is None) or not any(rule.scope == "changes" for rule in gate.publication):
        return OrdersOfSilver(of_all)
    was_passed = last.get(UNIFIED) == before and all(last.get(table) == job.already.get(table) for table in versions)
    of_silver = [] if desired is None else [desired.keys]
    if was_passed and now.number <= before.number + 1 and (of_silver or of_gold):
        # Since it passed, gold has changed by the commit of this run alone.
        keys = None if of_gold is None else together([*of_silver, *of_gold])
    else:
        in_gold = job.changed.since(last.get(UNIFIED), now, of=of_source(job.contracts, name))
        in_silver = [job.changed.since(last.get(table), version) for table, version in versions.items()]
        keys = together([*in_silver, in_gold])
    if keys is None:
        return OrdersOfSilver(of_all)
    orders = orders_of_silver(job.warehouse, job.contracts.gold, name, versions, keys=keys)
    of_keys = job.stack.enter_context(materialized_or_fetched(orders, count=keys.count))
    return OrdersOfSilver(of_all, keys, of_keys)


def _of_other_contracts(known: ConsumedVersions, contracts: Contracts, made_by: str) -> list[str]:
    """Who has taken something for a gold, or by rules, that the contracts do not have any more."""
    gate = contracts.gold_gate
    now = {
        f"{UNIFIED} ": made_by,
        PASSED_TABLES: passed_tables(gate),
        **{f"{PASSED_PUBLICATION}{name} ": passed_publication(gate, name) for name in contracts.gold.sources},
    }
    return [who for who in known for beginning, own in now.items() if who.startswith(beginning) and who != own]


def pending(warehouse: Warehouse, contracts: Contracts, *, full_refresh: bool = False) -> dict[str, int]:
    """Of every source, how many orders the next run would compute again. Changes nothing.

    Raises TableError when a silver table is not there yet.
    """
    tables = contracts.gold
    already: Mapping[str, Version] = {}
    if warehouse.exists(UNIFIED):
        made_by = consumer(tables, created_ms=warehouse.created_at_ms(UNIFIED))
        already = Consumed().now(warehouse).get(made_by, {})
    counts = dict.fromkeys(tables.sources, 0)
    versions_now = {name: _versions_now(warehouse, source) for name, source in tables.sources.items()}
    news = with_news(versions_now, already={} if full_refresh else already)
    with ExitStack() as stack:
        changed = ChangedKeys(warehouse, key=tables.key, stack=stack, columns=columns_asked(contracts))
        for name, now in news.items():
            keys, _why = _touched(changed, now, already, full_refresh=full_refresh)
            orders = desired_orders(changed, tables, tables.sources[name], now=now, touched=keys)
            counts[name] = orders.count()
    return counts


def compare(warehouse: Warehouse, contracts: Contracts, *, known: ConsumedVersions) -> TableComparison:
    """Compare gold with what silver's tables state, in the versions that gold has taken. Changes nothing.

    `known`: what every consumer of changes has taken.
    """
    tables = contracts.gold
    if not warehouse.exists(UNIFIED):
        return TableComparison(UNIFIED, why_not=f"not there yet: {UNIFIED}")
    taken = known.get(consumer(tables, created_ms=last_version(warehouse, UNIFIED).created_ms), {})
    # Of a source that gate 2 has blocked from the beginning gold has nothing.
    sources = [
        name for name, source in tables.sources.items() if all(f"silver.{feed}" in taken for feed in source.feeds)
    ]
    versions = [taken[f"silver.{feed}"] for name in sources for feed in tables.sources[name].feeds]

    def computed() -> DataFrame:
        orders = [orders_of_silver(warehouse, tables, name, taken) for name in sources]
        return reduce(lambda left, right: left.unionByName(right), orders)

    spec = unified_table(tables)
    return compare_table(warehouse, spec, versions, computed, keys=["composite_key"])


def with_news(
    versions: Mapping[str, Mapping[str, Version]], *, already: Mapping[str, Version]
) -> dict[str, Mapping[str, Version]]:
    """The sources of which a silver table has commits that gold has not taken: source, feed, and its last commit."""
    return {
        name: now
        for name, now in versions.items()
        if any(already.get(version.table) != version for version in now.values())
    }


def _versions_now(warehouse: Warehouse, source: GoldSource) -> dict[str, Version]:
    """The last commit of the table of each feed."""
    return {feed: current(warehouse, f"silver.{feed}") for feed in source.feeds}


def consumer(tables: GoldTables, *, created_ms: int) -> str:
    """This gold table, made by this contract: what another one has taken says nothing about its rows."""
    contract = tables.model_dump_json(exclude={"publication", "marts", "joins"})
    return f"{UNIFIED} {created_ms} {sha256(contract.encode()).hexdigest()[:16]}"


def goes_on(now: Mapping[str, Version], already: Mapping[str, Version]) -> bool:
    """Whether gold has taken an earlier commit of each of these very tables."""
    before = {version.table: already.get(version.table) for version in now.values()}
    return all((known := before[version.table]) is not None and known.goes_on_to(version) for version in now.values())


def desired_orders(
    changed: ChangedKeys,
    tables: GoldTables,
    source: GoldSource,
    *,
    now: Mapping[str, Version],
    touched: Keys | None,
) -> DataFrame:
    """What gold must hold for every key of the source: its order, or `is_deleted`. With `touched`, only for these."""
    columns = order_columns(tables)
    if touched is None:
        feeds = [orders_of_feed(changed.table(version), columns=columns) for version in now.values()]
        highest = highest_feed_that_knows(feeds, key=tables.key)
    else:
        highest = _orders_of_keys(changed, now, touched, columns).where(F.col(tables.key).isNotNull())
    orders = with_source(highest, source, key=tables.key)
    return with_fulfillment(orders, tables.fulfillment)


def _orders_of_keys(
    changed: ChangedKeys, now: Mapping[str, Version], keys: Keys, columns: Mapping[str, str]
) -> DataFrame:
    """One row a key: each feed is asked for the keys that no higher one knows; what none has is deleted."""
    orders = []
    for version in now.values():
        orders.append(orders_of_feed(changed.rows(version, keys), columns=columns))
        keys = changed.not_in(version, keys)
        if not keys.count:
            break
    orders.append(deleted_orders(keys.rows, columns=columns))
    return reduce(lambda higher, lower: higher.unionByName(lower), orders)
