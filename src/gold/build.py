"""The gold job: gate 2 on every source that has news, `gold.unified_orders` brought up to silver, gate 2 on that.

Only keys that changed since the silver versions gold took last are computed again, from silver as it is at the versions
taken now; so a repeated run, or one after a crash, ends the same. Where there is nothing to go on from (a first run, a
table made anew, another contract) a source is taken whole, and what gold has of it beyond that goes. A source that its
gate holds keeps its place until the gate lets it pass. What it does not let pass of gold itself is not published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.columns import UNIFIED, compared, order_columns, unified
from gold.enrich import with_fulfillment
from gold.gates import OTHERS, judge_publication, judge_tables, passed_versions, record_passed
from gold.unify import deleted_orders, highest_feed_that_knows, orders_of_feed, with_source
from lakehouse.config import Settings
from lakehouse.contracts import Contracts, GoldSource, GoldTables
from lakehouse.progress import PROGRESS, Version, current, forget_others, record, taken
from lakehouse.results import RESULTS
from lakehouse.tables import UPSERTED, TableSpec, Warehouse

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Outcome:
    """What a run of the gold job did: rows that changed, and what gate 2 holds.

    `held_sources` are held back from gold, `unpublished_sources` from the topic.
    """

    changed_rows: int
    held_sources: tuple[str, ...]
    unpublished_sources: tuple[str, ...]


def run(spark: SparkSession, settings: Settings, contracts: Contracts, *, run_id: str) -> Outcome:
    """Bring `gold.unified_orders` up to the silver tables of every source that passes gate 2, and judge it in its turn.

    Raises ContractError when Great Expectations refuses a rule's arguments.
    """
    warehouse = Warehouse(spark, settings.warehouse, settings.checkpoints)
    for spec in (unified_table(contracts.gold), PROGRESS, RESULTS):
        warehouse.ensure(spec)
    before = current(warehouse, UNIFIED)
    made_by = consumer(contracts.gold, created_ms=before.created_ms)
    already = taken(warehouse, made_by)
    if not already:
        forget_others(warehouse, made_by, like=f"{UNIFIED} ")
    news = sources_with_news(warehouse, contracts.gold, already=already)
    held_sources = judge_tables(warehouse, contracts, news, already=already, run_id=run_id) if news else ()
    changed = 0
    merged = [name for name in news if name not in held_sources]
    for name in merged:
        source, now = contracts.gold.sources[name], news[name]
        whole = not goes_on(now, already)
        since = None if whole else already
        orders = desired_orders(warehouse, contracts.gold, source, now=now, since=since)
        beyond = not_of_other_sources(source, contracts.gold) if whole else None
        changed += merge_orders(warehouse.delta(UNIFIED), orders, tables=contracts.gold, delete_beyond=beyond)
        record(warehouse, made_by, now.values())
        already = {**already, **{version.table: version for version in now.values()}}
    unpublished = _let_pass(warehouse, contracts, already, before=before, merged=merged, run_id=run_id)
    return Outcome(changed_rows=changed, held_sources=held_sources, unpublished_sources=unpublished)


def _let_pass(
    warehouse: Warehouse,
    contracts: Contracts,
    already: Mapping[str, Version],
    *,
    before: Version,
    merged: Sequence[str],
    run_id: str,
) -> tuple[str, ...]:
    """Let the publication take gold as it is now, of every source that may be published; the sources that may not.

    Judged are the sources that this run has merged, and those that had not passed with gold as it was `before` this
    run: held, interrupted, or gold was changed by another hand.
    """
    sources = contracts.gold.sources
    now = current(warehouse, UNIFIED) if merged else before
    passed = passed_versions(warehouse, sources)
    orders = {}
    for name, source in sources.items():
        taken_of = {feed: already.get(f"silver.{feed}") for feed in source.feeds}
        versions = {feed: version for feed, version in taken_of.items() if version is not None}
        is_due = name in merged or passed.get(name) != before
        # Of a source that was held from the beginning gold has nothing that could be judged.
        if is_due and len(versions) == len(source.feeds):
            silver = desired_orders(warehouse, contracts.gold, source, now=versions, since=None)
            orders[name] = silver.where(~F.col("is_deleted")).drop("is_deleted")
    held = judge_publication(warehouse, contracts, orders, now=now, passed=passed, run_id=run_id)
    as_before = {name for name in sources if name not in merged and passed.get(name) == before}
    may_pass = {OTHERS, *as_before, *orders} - set(held)
    record_passed(warehouse, {name for name in may_pass if passed.get(name) != now}, now)
    return held


def waiting(warehouse: Warehouse, contracts: Contracts) -> dict[str, int]:
    """Of every source, how many orders the next run would compute again. Changes nothing.

    Raises TableError when a silver table is not there yet.
    """
    tables = contracts.gold
    already = {}
    if warehouse.exists(UNIFIED):
        already = taken(warehouse, consumer(tables, created_ms=warehouse.created_at_ms(UNIFIED)))
    counts = dict.fromkeys(tables.sources, 0)
    for name, now in sources_with_news(warehouse, tables, already=already).items():
        since = already if goes_on(now, already) else None
        counts[name] = desired_orders(warehouse, tables, tables.sources[name], now=now, since=since).count()
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
    contract = tables.model_dump_json(exclude={"publication"})
    return f"{UNIFIED} {created_ms} {sha256(contract.encode()).hexdigest()[:16]}"


def goes_on(now: Mapping[str, Version], already: Mapping[str, Version]) -> bool:
    """Whether gold has taken an earlier commit of each of these very tables."""
    before = [already.get(version.table) for version in now.values()]
    return [taken and taken.created_ms for taken in before] == [version.created_ms for version in now.values()]


def not_of_other_sources(source: GoldSource, tables: GoldTables) -> str:
    """A condition on gold's rows: those of this source, and those of a source that the contract no longer names."""
    others = [f"'{other.name}'" for other in tables.sources.values() if other.name != source.name]
    return f"target.source_database NOT IN ({', '.join(others)})" if others else "true"


def desired_orders(
    warehouse: Warehouse,
    tables: GoldTables,
    source: GoldSource,
    *,
    now: Mapping[str, Version],
    since: Mapping[str, Version] | None,
) -> DataFrame:
    """What gold must hold for every key of the source: its order, or `is_deleted`.

    With `since`, the versions taken before, only for keys that changed after it in one of the feeds.
    """
    columns = order_columns(tables)
    silver = [warehouse.read(version.table, version=version.number) for version in now.values()]
    feeds = [orders_of_feed(table, columns=columns) for table in silver]
    if since is not None:
        keys = [changed_keys(warehouse, version, since[version.table], key=tables.key) for version in now.values()]
        touched = reduce(lambda left, right: left.unionByName(right), keys).distinct()
        feeds = [feed.join(touched, on=tables.key, how="left_semi") for feed in feeds]
        feeds.append(deleted_orders(touched, columns=columns))  # keys that no feed has any more
    orders = with_source(highest_feed_that_knows(feeds, key=tables.key), source, key=tables.key)
    return with_fulfillment(orders, tables.fulfillment)


def changed_keys(warehouse: Warehouse, now: Version, before: Version, *, key: str) -> DataFrame:
    """The key of every silver row that changed after `before`, an earlier commit of the same table."""
    if before.number == now.number:
        return warehouse.read(now.table, version=now.number).select(key).limit(0)
    return warehouse.changes(now.table, first=before.number + 1, last=now.number).select(key)


def merge_orders(table: DeltaTable, orders: DataFrame, *, tables: GoldTables, delete_beyond: str | None) -> int:
    """Make gold hold these orders; the number of rows that changed. A row that stays the same keeps `processed_at`.

    `delete_beyond`: which of gold's other rows (`target`) have to go; none of them when it is None.
    """
    differs = " OR ".join(f"NOT (target.{column} <=> orders.{column})" for column in compared(tables))
    values: dict[str, str | Column] = {column: f"orders.{column}" for column in unified(tables)}
    values["processed_at"] = "current_timestamp()"
    merge = (
        table.alias("target")
        .merge(orders.alias("orders"), "target.composite_key = orders.composite_key")
        .whenMatchedDelete(condition="orders.is_deleted")
        .whenMatchedUpdate(condition=differs, set=values)
        .whenNotMatchedInsert(condition="NOT orders.is_deleted", values=values)
    )
    if delete_beyond is not None:
        merge = merge.whenNotMatchedBySourceDelete(condition=delete_beyond)
    return int(merge.execute().collect()[0]["num_affected_rows"])
