"""The gold job: gate 2 on every source that has news, then `gold.unified_orders` brought up to silver.

Only keys that changed since the silver versions gold took last are computed again, from silver as it is at the versions
taken now; so a repeated run, or one after a crash, ends the same. A source that its gate holds keeps its place and is
taken whole when the gate lets it pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.enrich import with_fulfillment
from gold.unify import highest_feed_that_knows, orders_of_feed, with_source
from lakehouse.checkpoint import validate_tables
from lakehouse.config import Settings
from lakehouse.contracts import Contracts, GoldSource
from lakehouse.progress import PROGRESS, Version, current, record, taken
from lakehouse.results import RESULTS, Result, result_rows
from lakehouse.tables import UPSERTED, TableSpec, Warehouse

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

UNIFIED = TableSpec(
    name="gold.unified_orders",
    columns="""
        order_id BIGINT, customer_id BIGINT, product_id BIGINT, status STRING, total_amount DECIMAL(10,2),
        created_at TIMESTAMP, source_database STRING, fulfillment_status STRING, composite_key STRING,
        processed_at TIMESTAMP
    """,
    properties=UPSERTED,
)
CONSUMER = "gold.unified_orders"
# What a change of an order is: any of these, not the time of the refresh.
COMPARED = (
    "customer_id",
    "product_id",
    "status",
    "total_amount",
    "created_at",
    "source_database",
    "fulfillment_status",
)


@dataclass(frozen=True)
class Outcome:
    """What a run of the gold job did: rows that changed, and the sources that gate 2 holds back."""

    changed_rows: int
    held_sources: tuple[str, ...]


def run(spark: SparkSession, settings: Settings, contracts: Contracts, *, run_id: str) -> Outcome:
    """Bring `gold.unified_orders` up to the silver tables of every source that passes gate 2."""
    warehouse = Warehouse(spark, settings.warehouse, settings.checkpoints)
    for spec in (UNIFIED, PROGRESS, RESULTS):
        warehouse.ensure(spec)
    already = taken(warehouse, CONSUMER)
    news = {}
    for name, source in contracts.gold.sources.items():
        now = {feed: current(warehouse, f"silver.{feed}") for feed in source.feeds}
        if any(already.get(version.table) != version for version in now.values()):
            news[name] = now
    held_sources = gate(warehouse, contracts, news, run_id=run_id) if news else ()
    changed = 0
    for name, now in news.items():
        if name not in held_sources:
            orders = desired_orders(warehouse, contracts, contracts.gold.sources[name], now=now, already=already)
            changed += merge_orders(warehouse.delta(UNIFIED.name), orders)
            record(warehouse, CONSUMER, list(now.values()))
    return Outcome(changed_rows=changed, held_sources=held_sources)


def gate(
    warehouse: Warehouse, contracts: Contracts, news: Mapping[str, Mapping[str, Version]], *, run_id: str
) -> tuple[str, ...]:
    """Gate 2 on the live rows of the silver tables, as they are at the versions in `news` (source: feed: version).

    Stores every verdict; returns the sources that do not pass.
    """
    source_of = {feed: source for source, feeds in news.items() for feed in feeds}
    rules = {feed: contracts.gold_gate.rules(feed) for feed in source_of}
    tables = {
        feed: warehouse.read(f"silver.{feed}", version=news[source][feed].number).where(~F.col("_is_deleted"))
        for feed, source in source_of.items()
        if rules[feed]
    }
    results = [
        Result(
            run=run_id,
            gate="gold",
            source=source_of[feed],
            feed=feed,
            rule=verdict.rule.name,
            on_failure=verdict.rule.on_failure,
            evaluated=verdict.evaluated,
            failed=verdict.failed,
            passed=verdict.passed,
        )
        for feed, verdicts in validate_tables(tables, rules).items()
        for verdict in verdicts
    ]
    if results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, results))
    return tuple(sorted({result.source for result in results if result.on_failure == "fail" and not result.passed}))


def desired_orders(
    warehouse: Warehouse,
    contracts: Contracts,
    source: GoldSource,
    *,
    now: Mapping[str, Version],
    already: Mapping[str, Version],
) -> DataFrame:
    """What gold must hold for every key of the source that changed: its order, or `is_deleted`."""
    keys = [changed_keys(warehouse, version, already.get(version.table)) for version in now.values()]
    touched = reduce(lambda left, right: left.unionByName(right), keys).distinct()
    feeds = [
        orders_of_feed(warehouse.read(version.table, version=version.number)).join(
            touched, on="order_id", how="left_semi"
        )
        for version in now.values()
    ]
    orders = with_source(highest_feed_that_knows(feeds), source)
    return with_fulfillment(
        orders, by_status=contracts.gold.fulfillment.values, otherwise=contracts.gold.fulfillment.otherwise
    )


def changed_keys(warehouse: Warehouse, now: Version, before: Version | None) -> DataFrame:
    """`order_id` of every silver row that changed after `before`; of every row when gold never took this table."""
    if before is None or before.created_ms != now.created_ms:
        return warehouse.read(now.table, version=now.number).select("order_id")
    if before.number == now.number:
        return warehouse.read(now.table, version=now.number).select("order_id").limit(0)
    return warehouse.changes(now.table, first=before.number + 1, last=now.number).select("order_id")


def merge_orders(table: DeltaTable, orders: DataFrame) -> int:
    """Make gold hold these orders; the number of rows that changed. A row that stays the same keeps `processed_at`."""
    differs = " OR ".join(f"NOT (target.{column} <=> orders.{column})" for column in COMPARED)
    columns = ("order_id", *COMPARED, "composite_key")
    values: dict[str, str | Column] = {column: f"orders.{column}" for column in columns}
    values["processed_at"] = "current_timestamp()"
    result = (
        table.alias("target")
        .merge(orders.alias("orders"), "target.composite_key = orders.composite_key")
        .whenMatchedDelete(condition="orders.is_deleted")
        .whenMatchedUpdate(condition=differs, set=values)
        .whenNotMatchedInsert(condition="NOT orders.is_deleted", values=values)
        .execute()
    )
    return int(result.collect()[0]["num_affected_rows"])
