"""The marts: tables of sums over `gold.unified_orders`, kept up with it group by group.

A group in which an order has come, changed or gone is computed again, from all of its orders; nothing is added to what
was there before. So a repeated run, or one after a crash, ends the same, and a mart is always what a full
computation would give. Where gold does not have its changes any more, every group is computed.
"""

from __future__ import annotations

from functools import reduce
from hashlib import sha256
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.changes import Kept, kept_changes
from gold.recomputed import TableComparison, compare_table
from gold.unify import UNIFIED
from lakehouse.consumed import ConsumedVersions, Version, last_version
from lakehouse.contracts.models import Contracts, GoldTables, Mart
from lakehouse.contracts.published import group_columns, mart_columns
from lakehouse.spark.sizing import broadcast
from lakehouse.spark.tables import UPSERTED, TableSpec, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# A mart has few rows: to write its files again takes a MERGE half as many jobs as to mark rows in deletion vectors.
_PROPERTIES = {**UPSERTED, "delta.enableDeletionVectors": "false"}


def refresh(
    warehouse: Warehouse,
    contracts: Contracts,
    *,
    now: Version,
    known: ConsumedVersions,
    taken: dict[str, list[Version]],
    whole: bool = False,
) -> dict[str, int]:
    """Bring every mart up to gold as it is `now`; of each, how many groups were written.

    `known`: what every consumer of changes had taken before; what a mart has taken now is added to `taken`. `whole`:
    all groups, in one commit that also gives the table the columns that the contract has now.
    """
    written = {}
    for name, mart in contracts.gold.marts.items():
        made_by, written[name] = _refresh(warehouse, contracts.gold, name, mart, now=now, known=known, whole=whole)
        if known.get(made_by, {}).get(UNIFIED) != now:
            taken[made_by] = [now]
    return written


def _refresh(
    warehouse: Warehouse,
    tables: GoldTables,
    name: str,
    mart: Mart,
    *,
    now: Version,
    known: ConsumedVersions,
    whole: bool,
) -> tuple[str, int]:
    """Under which name the mart takes gold, and how many groups were written."""
    spec = mart_table(tables, name, mart)
    is_new = not warehouse.exists(spec.name)
    if is_new or not whole:
        warehouse.ensure(spec)
    orders = warehouse.read(UNIFIED, version=now.number)
    if whole:
        warehouse.overwrite(spec, groups(orders, mart=mart))
        return _made_by(warehouse, spec.name, mart), warehouse.read(spec.name).count()
    made_by = _made_by(warehouse, spec.name, mart)
    before = known.get(made_by, {}).get(UNIFIED)
    if before == now:
        return made_by, 0
    if before is None or not before.goes_on_to(now):
        return made_by, _merge(warehouse, spec.name, orders, None, mart=mart)
    first = before.number + 1
    with kept_changes(
        lambda: touched_groups(warehouse.changes(UNIFIED, first=first, last=now.number), mart=mart), are_narrow=True
    ) as touched:
        return made_by, _merge(warehouse, spec.name, orders, touched, mart=mart)


def mart_table(tables: GoldTables, name: str, mart: Mart) -> TableSpec:
    """The mart's table `gold.<name>`: its group columns, then the count and the sums."""
    declared_columns = ", ".join(f"{column} {type_name}" for column, type_name in mart_columns(tables, mart).items())
    return TableSpec(name=f"gold.{name}", columns=declared_columns, properties=_PROPERTIES)


def groups(orders: DataFrame, *, mart: Mart) -> DataFrame:
    """One row a group of the orders: the group columns, their number, and the sums."""
    sums = [F.sum(summed).alias(column) for column, summed in mart.sums.items()]
    return orders.groupBy(*_grouped(mart)).agg(F.count("*").alias(mart.count), *sums)


def orders_of_groups(orders: DataFrame, touched: DataFrame, *, mart: Mart) -> DataFrame:
    """The orders of these groups."""
    wanted = touched.select(*[F.col(name).alias(f"_{name}") for name in group_columns(mart)])
    named = zip(group_columns(mart), _grouped(mart), strict=True)
    is_touched = reduce(and_, [column.eqNullSafe(F.col(f"_{name}")) for name, column in named])
    return orders.join(wanted, on=is_touched, how="left_semi")


def touched_groups(feed: DataFrame, *, mart: Mart) -> DataFrame:
    """The groups that an order has come to, left, or changed in, by a change data feed of the orders."""
    return feed.select(*_grouped(mart)).distinct()


def _grouped(mart: Mart) -> list[Column]:
    """The group columns, of rows of gold."""
    # The session's time zone is UTC: see lakehouse/spark/session.py.
    day = [F.to_date(mart.day).alias("day")] if mart.day else []
    return [*day, *[F.col(column) for column in mart.by]]


def _merge(warehouse: Warehouse, name: str, orders: DataFrame, kept: Kept | None, *, mart: Mart) -> int:
    """Make the mart hold the touched groups as they are now, or all groups and no other; the rows that changed."""
    keys, values = group_columns(mart), (mart.count, *mart.sums)
    touched = None if kept is None else broadcast(kept.rows, kept.count)
    if touched is not None:
        orders = orders_of_groups(orders, touched, mart=mart)
    present = groups(orders, mart=mart)
    if touched is not None:
        # A group that has no order any more has no count.
        present = touched.alias("touched").join(
            present.alias("present"), on=_same("touched", "present", keys), how="left"
        )
        present = present.select(*[f"touched.{key}" for key in keys], *[f"present.{value}" for value in values])
    differs = " OR ".join(f"NOT (mart.{value} <=> present.{value})" for value in values)
    merge = (
        warehouse.delta(name)
        .alias("mart")
        .merge(present.alias("present"), _same("mart", "present", keys))
        .whenMatchedDelete(condition=f"present.{mart.count} IS NULL")
        .whenMatchedUpdate(condition=differs, set={value: f"present.{value}" for value in values})
        .whenNotMatchedInsert(
            condition=f"present.{mart.count} IS NOT NULL",
            values={column: f"present.{column}" for column in (*keys, *values)},
        )
    )
    if touched is None:
        merge = merge.whenNotMatchedBySourceDelete()
    return int(merge.execute().collect()[0]["num_affected_rows"])


def _same(left: str, right: str, keys: tuple[str, ...]) -> Column:
    return reduce(and_, [F.col(f"{left}.{key}").eqNullSafe(F.col(f"{right}.{key}")) for key in keys])


def compare(warehouse: Warehouse, tables: GoldTables, name: str, *, known: ConsumedVersions) -> TableComparison:
    """Compare a mart with the groups of gold as it was when the mart took it. Changes nothing.

    `known`: what every consumer of changes has taken.
    """
    mart = tables.marts[name]
    spec = mart_table(tables, name, mart)
    if not warehouse.exists(spec.name):
        return TableComparison(spec.name, why_not=f"not there yet: {spec.name}")
    taken = known.get(_made_by(warehouse, spec.name, mart), {}).get(UNIFIED)

    def computed() -> DataFrame:
        version = None if taken is None else taken.number
        return groups(warehouse.read(UNIFIED, version=version), mart=mart)

    versions = () if taken is None else (taken,)
    return compare_table(warehouse, spec, versions, computed, keys=group_columns(mart))


def _made_by(warehouse: Warehouse, name: str, mart: Mart) -> str:
    """This table, made by this contract: what another one has taken says nothing about its rows."""
    contract = sha256(mart.model_dump_json().encode()).hexdigest()[:16]
    return f"{name} {last_version(warehouse, name).created_ms} {contract}"
