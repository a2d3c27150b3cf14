"""The gold job: gate 2 on every source with news, gold brought up to silver, gate 2 on gold, and the marts.

Only keys that changed since the silver versions gold took last are computed again, from silver as it is at the versions
taken now, and merged in one commit; so a repeated run, or one after a crash, ends the same. Where there is nothing to
go on from (a first run, a table made anew, another contract, changes that silver does not have any more) a source is
taken whole, and what gold has of it beyond that goes. A source that its gate holds keeps its place until the gate lets
it pass. What it does not let pass of gold itself is not published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold import marts
from gold.columns import UNIFIED, order_columns, unified
from gold.enrich import with_fulfillment
from gold.gates import OTHERS, judge_publication, judge_tables, passed_versions, record_passed
from gold.merge import merge_orders, replace_orders
from gold.unify import deleted_orders, highest_feed_that_knows, orders_of_feed, with_source
from lakehouse.change_feed import kept_changes
from lakehouse.config import Settings
from lakehouse.contracts import Contracts, GoldSource, GoldTables
from lakehouse.progress import PROGRESS, Version, current, forget_others, record, taken
from lakehouse.results import RESULTS
from lakehouse.sizing import prepared_for, rows_in
from lakehouse.tables import UPSERTED, TableSpec, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run of the gold job did: rows that changed, and what gate 2 holds.

    `held_sources` are held back from gold, `unpublished_sources` from the topic. `whole`: the sources that were
    computed whole, and why. `written_bytes` of `gold.unified_orders`, which has `size_in_bytes`. `marts`: of each, the
    groups that were written.
    """

    changed_rows: int
    held_sources: tuple[str, ...]
    unpublished_sources: tuple[str, ...]
    whole: Mapping[str, str] = field(default_factory=dict)
    written_bytes: int = 0
    size_in_bytes: int = 0
    marts: Mapping[str, int] = field(default_factory=dict)


def run(
    spark: SparkSession, settings: Settings, contracts: Contracts, *, run_id: str, full_refresh: bool = False
) -> Outcome:
    """Bring gold up to the silver tables of every source that passes gate 2, and judge it in its turn.

    `full_refresh`: compute every order of these sources, and put them in the place of what gold has, in one commit;
    orders that stay as they are keep their `processed_at`. Raises ContractError when Great Expectations refuses the
    arguments of a rule.
    """
    warehouse = settings.address.opened(spark)
    is_replaced = full_refresh and warehouse.exists(UNIFIED)
    warehouse.ensure_all([PROGRESS, RESULTS, *([] if is_replaced else [unified_table(contracts.gold)])])
    before = current(warehouse, UNIFIED)
    made_by = consumer(contracts.gold, created_ms=before.created_ms)
    already = taken(warehouse, made_by)
    if not already:
        forget_others(warehouse, made_by, like=f"{UNIFIED} ")
    news = sources_with_news(warehouse, contracts.gold, already={} if full_refresh else already)
    # The gate looks at all rows of these tables, however few have changed.
    size = sum(version.size_in_bytes for of_feeds in news.values() for version in of_feeds.values())
    with prepared_for(spark, rows_in(size)):
        held_sources = judge_tables(warehouse, contracts, news, already=already, run_id=run_id) if news else ()
        merged = {name: now for name, now in news.items() if name not in held_sources}
        now, changed, written = before, 0, 0
        whole: Mapping[str, str] = {}
        if merged:
            changed, whole = _merge(
                warehouse, contracts.gold, merged, already, held_back=held_sources, full_refresh=full_refresh
            )
            now = current(warehouse, UNIFIED)
            if now != before:
                written = warehouse.written_bytes(UNIFIED)
            versions = [version for of_feeds in merged.values() for version in of_feeds.values()]
            record(warehouse, made_by, versions)
            already = {**already, **{version.table: version for version in versions}}
        passing = {"merged": tuple(merged), "held_back": held_sources}
        unpublished = _let_pass(warehouse, contracts, already, before=before, now=now, **passing, run_id=run_id)
    return Outcome(
        changed_rows=changed,
        held_sources=held_sources,
        unpublished_sources=unpublished,
        whole=whole,
        written_bytes=written,
        size_in_bytes=now.size_in_bytes,
        marts=marts.refresh(warehouse, contracts, now=now, whole=full_refresh),
    )


def _merge(
    warehouse: Warehouse,
    tables: GoldTables,
    merged: Mapping[str, Mapping[str, Version]],
    already: Mapping[str, Version],
    *,
    held_back: Sequence[str],
    full_refresh: bool,
) -> tuple[int, Mapping[str, str]]:
    """Make gold hold the orders of these sources; how many rows changed, and the sources that were taken whole, why."""
    with ExitStack() as stack:
        since, whole = _since(warehouse, tables, merged, already, full_refresh=full_refresh, stack=stack)
        orders = reduce(
            lambda left, right: left.unionByName(right),
            [
                desired_orders(warehouse, tables, tables.sources[name], now=now, touched=since[name])
                for name, now in merged.items()
            ],
        )
        if full_refresh:
            kept = [tables.sources[name].name for name in held_back]
            return replace_orders(warehouse, unified_table(tables), orders, tables=tables, kept_sources=kept), whole
        beyond = _not_of_others(tables, whole) if whole else None
        return merge_orders(warehouse.delta(UNIFIED), orders, tables=tables, delete_beyond=beyond), whole


def _since(
    warehouse: Warehouse,
    tables: GoldTables,
    merged: Mapping[str, Mapping[str, Version]],
    already: Mapping[str, Version],
    *,
    full_refresh: bool,
    stack: ExitStack,
) -> tuple[dict[str, DataFrame | None], dict[str, str]]:
    """Of each source the keys that changed, None when it has to be taken whole; and of those, why."""
    touched: dict[str, DataFrame | None] = {}
    whole: dict[str, str] = {}
    for name, now in merged.items():
        touched[name] = None
        if full_refresh:
            whole[name] = "a full refresh was asked for"
        elif not any(version.table in already for version in now.values()):
            whole[name] = "nothing of it was taken before under this contract"
        elif not goes_on(now, already):
            whole[name] = "a silver table was made anew, or restored to an earlier version"
        else:
            touched[name] = stack.enter_context(_changed_keys(warehouse, now, already, key=tables.key))
            if touched[name] is None:
                whole[name] = "silver does not have the changes since the last run any more"
    return touched, whole


def _changed_keys(
    warehouse: Warehouse, now: Mapping[str, Version], already: Mapping[str, Version], *, key: str
) -> AbstractContextManager[DataFrame | None]:
    """The keys that changed in one of the feeds since gold took them; None when a feed does not tell any more."""

    def read() -> DataFrame:
        keys = [changed_keys(warehouse, version, already[version.table], key=key) for version in now.values()]
        return reduce(lambda left, right: left.unionByName(right), keys).distinct()

    return kept_changes(read)


def _let_pass(
    warehouse: Warehouse,
    contracts: Contracts,
    already: Mapping[str, Version],
    *,
    before: Version,
    now: Version,
    merged: Sequence[str],
    held_back: Sequence[str],
    run_id: str,
) -> tuple[str, ...]:
    """Let the publication take gold as it is now, of every source that may be published; the sources that may not.

    Judged are the sources that this run has merged, and those that had not passed with gold as it was `before` this
    run: held, interrupted, or gold was changed by another hand. Not those that are held back from gold: silver as gold
    took it then may be gone; they are judged when they are merged again.
    """
    sources = contracts.gold.sources
    passed = passed_versions(warehouse, sources)
    orders = {}
    for name, source in sources.items():
        taken_of = {feed: already.get(f"silver.{feed}") for feed in source.feeds}
        versions = {feed: version for feed, version in taken_of.items() if version is not None}
        is_due = name in merged or (passed.get(name) != before and name not in held_back)
        # Of a source that was held from the beginning gold has nothing that could be judged.
        if is_due and len(versions) == len(source.feeds):
            silver = desired_orders(warehouse, contracts.gold, source, now=versions, touched=None)
            orders[name] = silver.where(~F.col("is_deleted")).drop("is_deleted")
    held = judge_publication(warehouse, contracts, orders, now=now, passed=passed, run_id=run_id)
    as_before = {name for name in sources if name not in merged and passed.get(name) == before}
    may_pass = {OTHERS, *as_before, *orders} - set(held)
    record_passed(warehouse, {name for name in may_pass if passed.get(name) != now}, now)
    return held


def waiting(warehouse: Warehouse, contracts: Contracts, *, full_refresh: bool = False) -> dict[str, int]:
    """Of every source, how many orders the next run would compute again. Changes nothing.

    Raises TableError when a silver table is not there yet.
    """
    tables = contracts.gold
    already = {}
    if warehouse.exists(UNIFIED):
        already = taken(warehouse, consumer(tables, created_ms=warehouse.created_at_ms(UNIFIED)))
    counts = dict.fromkeys(tables.sources, 0)
    news = sources_with_news(warehouse, tables, already={} if full_refresh else already)
    with ExitStack() as stack:
        since, _whole = _since(warehouse, tables, news, already, full_refresh=full_refresh, stack=stack)
        for name, now in news.items():
            orders = desired_orders(warehouse, tables, tables.sources[name], now=now, touched=since[name])
            counts[name] = orders.count()
    return counts


def sources_with_news(
    warehouse: Warehouse, tables: GoldTables, *, already: Mapping[str, Version]
) -> dict[str, dict[str, Version]]:
    """The sources of which a silver table has commits that gold has not taken: source, feed, and its last commit."""
    news = {}
    for name, source in tables.sources.items():
        now = {feed: current(warehouse, f"silver.{feed}") for feed in source.feeds}
        if any(already.get(version.table) != version for version in now.values()):
            news[name] = now
    return news


def unified_table(tables: GoldTables) -> TableSpec:
    """`gold.unified_orders`, with the columns of the contract and those that gold adds."""
    declared = ", ".join(f"{name} {type_name}" for name, type_name in unified(tables).items())
    return TableSpec(name=UNIFIED, columns=declared, properties=UPSERTED)


def consumer(tables: GoldTables, *, created_ms: int) -> str:
    """This gold table, made by this contract: what another one has taken says nothing about its rows."""
    contract = tables.model_dump_json(exclude={"publication", "marts"})
    return f"{UNIFIED} {created_ms} {sha256(contract.encode()).hexdigest()[:16]}"


def goes_on(now: Mapping[str, Version], already: Mapping[str, Version]) -> bool:
    """Whether gold has taken an earlier commit of each of these very tables."""
    before = {version.table: already.get(version.table) for version in now.values()}
    return all((known := before[version.table]) is not None and known.goes_on_to(version) for version in now.values())


def _not_of_others(tables: GoldTables, whole: Mapping[str, str]) -> str:
    """A condition on gold's rows: of a source that is taken whole, or of one that the contract no longer names."""
    others = [f"'{source.name}'" for name, source in tables.sources.items() if name not in whole]
    return f"target.source_database NOT IN ({', '.join(others)})" if others else "true"


def desired_orders(
    warehouse: Warehouse,
    tables: GoldTables,
    source: GoldSource,
    *,
    now: Mapping[str, Version],
    touched: DataFrame | None,
) -> DataFrame:
    """What gold must hold for every key of the source: its order, or `is_deleted`. With `touched`, only for these."""
    columns = order_columns(tables)
    silver = [warehouse.read(version.table, version=version.number) for version in now.values()]
    feeds = [orders_of_feed(table, columns=columns) for table in silver]
    if touched is not None:
        feeds = [feed.join(touched, on=tables.key, how="left_semi") for feed in feeds]
        feeds.append(deleted_orders(touched, columns=columns))  # keys that no feed has any more
    orders = with_source(highest_feed_that_knows(feeds, key=tables.key), source, key=tables.key)
    return with_fulfillment(orders, tables.fulfillment)


def changed_keys(warehouse: Warehouse, now: Version, before: Version, *, key: str) -> DataFrame:
    """The key of every silver row that changed after `before`, an earlier commit of the same table."""
    if before.number == now.number:
        return warehouse.read(now.table, version=now.number).select(key).limit(0)
    return warehouse.changes(now.table, first=before.number + 1, last=now.number).select(key)
