"""The marts: tables of sums over `gold.unified_orders`, kept up with it group by group.

What few orders change is subtracted from their groups and added to them, by gold's change data feed, so the cost is
that of the changes, however large gold is. It is done once: a mart is known to hold what it has taken only while its
own last commit is the one that is recorded with it. Else, as after a crash between the two, where changes are many, and
where a sum does not follow from the changes, the groups that they touch are computed again from all of their orders;
and all groups where gold does not have its changes any more. So a mart is always what a full computation would give.
"""

from __future__ import annotations

from functools import reduce
from hashlib import sha256
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import read_change_set
from gold.change_feed.feed import GoldFeed
from gold.change_feed.keys import MAX_LISTED
from gold.derived.group_sums import NewGroups, can_be_compared, changed_groups, groups_of, new_groups
from gold.derived.recomputed import TableComparison, compare_table
from gold.state import NOTHING_CONSUMED, ConsumedVersions, GoldState
from gold.unify import UNIFIED
from lakehouse.contracts.models import Contracts, GoldTables, Mart
from lakehouse.contracts.published import group_columns, mart_columns
from lakehouse.delta.tables import UPSERTED, TableSpec, Warehouse
from lakehouse.delta.versions import last_version
from lakehouse.spark.materialized import fetched, merge_source
from lakehouse.spark.sizing import MAX_FETCHED, broadcast, in_one_part
from lakehouse.versions import Version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


# A mart has few rows: to write its files again takes a MERGE half as many jobs as to mark rows in deletion vectors.
_PROPERTIES = {**UPSERTED, "delta.enableDeletionVectors": "false"}


def refresh(
    warehouse: Warehouse,
    contracts: Contracts,
    *,
    feed: GoldFeed,
    now: Version,
    consumed: dict[str, ConsumedVersions],
    whole: bool = False,
) -> dict[str, int]:
    """Bring every mart up to gold as it is `now`, by gold's `feed`; of each, how many groups were written.

    `consumed`: by mart the version of gold that it has, and its own commit that holds it; each is replaced as soon as
    the mart is brought up. `whole`: all groups, in one commit that also gives the table the columns that the contract
    has now.
    """
    written = {}
    for name, mart in contracts.gold.marts.items():
        before = consumed.get(name, NOTHING_CONSUMED)
        definition, written[name] = _refresh(
            warehouse, contracts.gold, name, mart, feed=feed, now=now, consumed=before, whole=whole
        )
        if before.under(definition).get(UNIFIED) != now:
            consumed[name] = before.with_later(definition, [now, last_version(warehouse, f"gold.{name}")])
    return written


def _refresh(
    warehouse: Warehouse,
    tables: GoldTables,
    name: str,
    mart: Mart,
    *,
    feed: GoldFeed,
    now: Version,
    consumed: ConsumedVersions,
    whole: bool,
) -> tuple[str, int]:
    """The mart's definition, and how many groups were written."""
    spec = mart_table(tables, name, mart)
    is_new = not warehouse.exists(spec.name)
    if is_new or not whole:
        warehouse.ensure(spec)
    orders = warehouse.read(UNIFIED, version=now.number)
    if whole:
        warehouse.overwrite(spec, groups(orders, mart=mart))
        return _definition(warehouse, spec.name, mart), warehouse.read(spec.name).count()
    definition = _definition(warehouse, spec.name, mart)
    before = consumed.under(definition).get(UNIFIED)
    if before == now:
        return definition, 0
    if before is None or not before.goes_on_to(now):
        return definition, _merge(warehouse, spec.name, groups(orders, mart=mart), mart=mart, is_whole=True)
    changes = feed.few(before, now)
    if changes is not None and can_be_compared(groups_of(changes, mart)):
        is_as_left = consumed.under(definition).get(spec.name) == last_version(warehouse, spec.name)
        return definition, _merge_changes(warehouse, spec.name, orders, changes, mart=mart, is_as_left=is_as_left)
    first = before.number + 1
    with read_change_set(
        lambda: touched_groups(warehouse.changes(UNIFIED, first=first, last=now.number), mart=mart), are_narrow=True
    ) as touched:
        if touched is None:
            return definition, _merge(warehouse, spec.name, groups(orders, mart=mart), mart=mart, is_whole=True)
        anew = groups_anew(orders, broadcast(touched.rows, touched.count), mart=mart)
        return definition, _merge(warehouse, spec.name, anew, mart=mart)


def _merge_changes(
    warehouse: Warehouse, name: str, orders: DataFrame, changes: pa.Table, *, mart: Mart, is_as_left: bool
) -> int:
    """Make the mart hold the groups of a few `changes` of gold as they are after them; the rows that changed.

    `is_as_left`: whether the mart holds what it is recorded to have taken, and nothing else.
    """
    spark, changed, every = warehouse.spark, changed_groups(changes, mart), groups_of(changes, mart)
    if not changed:
        return 0
    present = _present_groups(warehouse, name, every) if is_as_left else None
    if present is None:
        new = NewGroups(None, every.take([one.row for one in changed.values()]))
    else:
        new = new_groups(changes, changed, present, mart)
    rows = None if new.rows is None else spark.createDataFrame(new.rows)
    if rows is not None and not new.undecided.num_rows:
        with merge_source(in_one_part(rows), key=mart.count, count=None, size_in_bytes=0, are_kept=True) as source:
            return _merge(warehouse, name, source, mart=mart)
    undecided = broadcast(spark.createDataFrame(new.undecided), new.undecided.num_rows)
    anew = groups_anew(orders, undecided, mart=mart)
    return _merge(warehouse, name, anew if rows is None else anew.unionByName(rows), mart=mart)


def _present_groups(warehouse: Warehouse, name: str, wanted: pa.Table) -> pa.Table | None:
    """The rows that the mart has of these groups, and maybe of others; None where these are many.

    They are looked for by days and whole numbers, by which Delta passes over files. Text is not put into conditions.
    """
    import pyarrow as pa

    rows = warehouse.read(name)
    for key, kind in zip(wanted.column_names, wanted.schema.types, strict=True):
        values = wanted.column(key).unique()
        if len(values) > MAX_LISTED or not (pa.types.is_date32(kind) or pa.types.is_integer(kind)):
            continue
        numbers = values.cast(pa.int32() if pa.types.is_date32(kind) else kind).drop_null().to_pylist()
        literal = "date_from_unix_date({})" if pa.types.is_date32(kind) else "{}"
        listed = [f"`{key}` IN ({', '.join(map(literal.format, numbers))})"] if numbers else []
        rows = rows.where(" OR ".join([*listed, *([f"`{key}` IS NULL"] if values.null_count else [])]))
    found = fetched(rows.limit(MAX_FETCHED + 1)).table
    return found if found.num_rows <= MAX_FETCHED else None


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
    # The session's time zone is UTC: see lakehouse/spark/settings.py.
    day = [F.to_date(mart.day).alias("day")] if mart.day else []
    return [*day, *[F.col(column) for column in mart.by]]


def groups_anew(orders: DataFrame, touched: DataFrame, *, mart: Mart) -> DataFrame:
    """The touched groups, of all of their orders; without a count where a group has none any more."""
    keys, values = group_columns(mart), (mart.count, *mart.sums)
    present = groups(orders_of_groups(orders, touched, mart=mart), mart=mart)
    joined = touched.alias("touched").join(present.alias("present"), on=_same("touched", "present", keys), how="left")
    return joined.select(*[f"touched.{key}" for key in keys], *[f"present.{value}" for value in values])


def _merge(warehouse: Warehouse, name: str, present: DataFrame, *, mart: Mart, is_whole: bool = False) -> int:
    """Make the mart hold these groups as they are, and with `is_whole` no other; the rows that changed.

    A group without a count is gone.
    """
    keys, values = group_columns(mart), (mart.count, *mart.sums)
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
    if is_whole:
        merge = merge.whenNotMatchedBySourceDelete()
    return int(merge.execute().collect()[0]["num_affected_rows"])


def _same(left: str, right: str, keys: tuple[str, ...]) -> Column:
    return reduce(and_, [F.col(f"{left}.{key}").eqNullSafe(F.col(f"{right}.{key}")) for key in keys])


def compare(warehouse: Warehouse, tables: GoldTables, name: str, *, state: GoldState) -> TableComparison:
    """Compare a mart with the groups of gold as it was when the mart took it. Changes nothing."""
    mart = tables.marts[name]
    spec = mart_table(tables, name, mart)
    if not warehouse.exists(spec.name):
        return TableComparison(spec.name, why_not=f"not there yet: {spec.name}")
    consumed = state.marts.get(name, NOTHING_CONSUMED)
    of_gold = consumed.under(_definition(warehouse, spec.name, mart)).get(UNIFIED)

    def computed() -> DataFrame:
        version = None if of_gold is None else of_gold.number
        return groups(warehouse.read(UNIFIED, version=version), mart=mart)

    versions = () if of_gold is None else (of_gold,)
    return compare_table(warehouse, spec, versions, computed, keys=group_columns(mart))


def _definition(warehouse: Warehouse, name: str, mart: Mart) -> str:
    """The definition of a mart: this table, by this contract."""
    contract = sha256(mart.model_dump_json().encode()).hexdigest()[:16]
    return f"{last_version(warehouse, name).created_ms} {contract}"
