"""The joins: tables of gold with one row for each live row of a silver table, and columns of others that it refers to.

A row is computed again, from silver as it is now, when it has changed in its own table, or the row that it refers to in
another one; nothing is added to what was there before. So a repeated run, or one after a crash, ends the same, and a
join is always what a full computation would give. Rows that come out as they were are not written. Where silver does
not have its changes any more, every row is computed.

Joins read silver as it is: gate 2 does not judge them. Only while it blocks a source, a join of a table of this source
that the gate names is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import read_change_set
from gold.derived.joined import (
    Changes,
    JoinTable,
    changed_keys,
    full_join,
    join_table,
    own_rows,
    referring_columns,
    rows_with_others,
    touched_rows,
)
from gold.derived.recomputed import TableComparison, compare_table, has_columns
from gold.state import NOTHING_CONSUMED, ConsumedVersions, GoldState
from gold.state_store import StateStore
from lakehouse.batches import BATCHES
from lakehouse.contracts.checks.join_checks import mistakes_of_join
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import not_there
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import last_version
from lakehouse.spark.materialized import materialized, merge_source
from lakehouse.spark.sizing import broadcast, rewrite_small_table, rows_in, rows_to_search, tuned_for
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class JoinsOutcome:
    """Of each join how many rows were written; of those computed whole, and of those left as they were, the reason."""

    written: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


def refresh(
    warehouse: Warehouse,
    contracts: Contracts,
    *,
    consumed: dict[str, ConsumedVersions],
    blocked: Collection[str] = (),
    whole: bool = False,
) -> JoinsOutcome:
    """Bring every join up to silver as it is now. A join whose tables have no new commit costs no job of Spark.

    `consumed`: by join the versions of silver's tables that it has; each is replaced as soon as the join is brought up.
    `blocked`: the sources that gate 2 blocks in this run.
    `whole`: all rows, in one commit that also gives the table the columns that the contract has now.
    """
    written, reasons, skipped = dict[str, int](), dict[str, str](), dict[str, str]()
    for name in contracts.gold.joins:
        why_not = why_skipped(warehouse, contracts, name, blocked=blocked)
        if why_not is not None:
            skipped[name] = why_not
            continue
        table = join_table(contracts, name)
        if not warehouse.exists(table.spec.name):
            warehouse.ensure(table.spec)
        definition, now, before = _versions(warehouse, table, consumed)
        if not whole and _has_all(before, now):
            written[name] = 0
            continue
        written[name], why = _brought_up(warehouse, table, now, before, whole=whole)
        reasons.update({} if why is None else {name: why})
        consumed[name] = NOTHING_CONSUMED.with_later(definition, now.values())
    return JoinsOutcome(written, reasons, skipped)


def refresh_alone(
    warehouse: Warehouse, contracts: Contracts, *, store: StateStore, whole: bool = False
) -> JoinsOutcome:
    """The same where gold has nothing else. Without a join no query."""
    if not contracts.gold.joins:
        return JoinsOutcome()
    started_at = datetime.now(UTC)
    warehouse.ensure(BATCHES)
    state = store.read(warehouse)
    consumed = dict(state.joins)
    try:
        return refresh(warehouse, contracts, consumed=consumed, whole=whole)
    finally:
        store.write(warehouse, state.model_copy(update={"joins": consumed}), started_at=started_at)


def pending(
    warehouse: Warehouse, contracts: Contracts, *, consumed: Mapping[str, ConsumedVersions], whole: bool = False
) -> dict[str, int | None]:
    """Of every join how many rows the next run would compute again, None where it is skipped. Changes nothing."""
    return {name: _pending(warehouse, contracts, name, consumed=consumed, whole=whole) for name in contracts.gold.joins}


def _pending(
    warehouse: Warehouse, contracts: Contracts, name: str, *, consumed: Mapping[str, ConsumedVersions], whole: bool
) -> int | None:
    if why_skipped(warehouse, contracts, name) is not None:
        return None
    table = join_table(contracts, name)
    _definition, now, before = _versions(warehouse, table, consumed)
    if not whole and _has_all(before, now):
        return 0
    already = _already(before, now)
    with ExitStack() as stack:
        is_known = _why_whole(now, already, whole=whole) is None
        touched = _touched(warehouse, table, now, already, stack) if is_known else None
        rows = own_rows(table, _at(warehouse, now[table.join.table])) if touched is None else touched.rows
        return rows.count()


def _versions(
    warehouse: Warehouse, table: JoinTable, consumed: Mapping[str, ConsumedVersions]
) -> tuple[str, dict[str, Version], Mapping[str, Version]]:
    """The join's definition, its silver tables as they are now, by feed, and the versions that it has, by table."""
    of_join = last_version(warehouse, table.spec.name) if warehouse.exists(table.spec.name) else None
    definition = table.definition(created_ms=0 if of_join is None else of_join.created_ms)
    now = {feed: last_version(warehouse, f"silver.{feed}") for feed in table.join.tables}
    return definition, now, consumed.get(table.name, NOTHING_CONSUMED).under(definition)


def _has_all(before: Mapping[str, Version], now: Mapping[str, Version]) -> bool:
    return all(before.get(version.table) == version for version in now.values())


def _already(before: Mapping[str, Version], now: Mapping[str, Version]) -> dict[str, Version]:
    return {feed: before[version.table] for feed, version in now.items() if version.table in before}


def why_skipped(warehouse: Warehouse, contracts: Contracts, name: str, *, blocked: Collection[str] = ()) -> str | None:
    """Why the join is left as it is; None where it can be brought up."""
    join = contracts.gold.joins[name]
    absent = not_there(contracts, f"gold.{name}")
    if not absent:
        for _path, what in mistakes_of_join(contracts, name):
            return what  # of a table that a rule has made: a declared one was checked before
        absent = tuple(f"silver.{feed}" for feed in join.tables if not warehouse.exists(f"silver.{feed}"))
    if absent:
        return f"not there yet: {', '.join(absent)}"
    sources = {contracts.feeds[feed].source for feed in join.tables if feed in contracts.gold_gate.feeds}
    sources &= {*blocked}
    return f"gate 2 blocks {', '.join(sorted(sources))}" if sources else None


def _brought_up(
    warehouse: Warehouse, table: JoinTable, now: Mapping[str, Version], before: Mapping[str, Version], *, whole: bool
) -> tuple[int, str | None]:
    """How many rows were written; where it was computed whole, why. `before`: by the silver table's whole name."""
    sizes = {name: warehouse.created_and_size(name)[1] for name in (table.spec.name, *(v.table for v in now.values()))}
    already = _already(before, now)
    why = _why_whole(now, already, whole=whole)
    size = sum(sizes.values())
    with tuned_for(warehouse.spark, rows_to_search(size) if why is None else rows_in(size)):
        if why is None:
            count = _merge_changed(warehouse, table, now, already, size_in_bytes=sizes[table.spec.name])
            if count is not None:
                return count, None
            why = "silver does not have the changes since the last run any more"
        return _computed_whole(warehouse, table, now, is_replaced=whole or not already), why


def _why_whole(now: Mapping[str, Version], already: Mapping[str, Version], *, whole: bool) -> str | None:
    if whole:
        return "a full refresh was asked for"
    if len(already) < len(now):
        return "nothing of it was taken before under this contract"
    if not all(already[feed].goes_on_to(version) for feed, version in now.items()):
        return "a silver table was rebuilt, or restored to an earlier version"
    return None


def _computed_whole(warehouse: Warehouse, table: JoinTable, now: Mapping[str, Version], *, is_replaced: bool) -> int:
    """Make the table hold every row of the join, and no other; the rows that were written.

    `is_replaced`: in one commit that writes all of them, with the columns of the contract.
    """
    rows = full_join(table, {feed: _at(warehouse, version) for feed, version in now.items()})
    if is_replaced or not has_columns(warehouse, table.spec):
        warehouse.overwrite(table.spec, rows)
        return warehouse.read(table.spec.name).count()
    return _merge(warehouse, table, rows.withColumn("_is_gone", F.lit(False)), is_whole=True)


def _merge_changed(
    warehouse: Warehouse,
    table: JoinTable,
    now: Mapping[str, Version],
    already: Mapping[str, Version],
    *,
    size_in_bytes: int,
) -> int | None:
    """Make the table hold the rows that changes have touched, as they are now; the rows that were written.

    None when silver does not have all of the changes.
    """
    with ExitStack() as stack:
        touched = _touched(warehouse, table, now, already, stack)
        if touched is None or not touched.count:
            return None if touched is None else 0
        source = merge_source(touched.rows, key=table.keys[0], count=touched.count, size_in_bytes=size_in_bytes)
        stack.enter_context(rewrite_small_table(warehouse.spark, size_in_bytes))
        return _merge(warehouse, table, stack.enter_context(source), is_whole=False)


@dataclass(frozen=True)
class Touched:
    """The rows of a join that changes have touched, as they are now, and those that are `_is_gone`; at most `count`."""

    rows: DataFrame
    count: int


def _touched(
    warehouse: Warehouse,
    table: JoinTable,
    now: Mapping[str, Version],
    already: Mapping[str, Version],
    stack: ExitStack,
) -> Touched | None:
    """What has to be computed again since `already`; None when silver does not have all of the changes."""
    changes = _changes(warehouse, table, now, already, stack)
    if changes is None:
        return None
    silver = {feed: _at(warehouse, version) for feed, version in now.items()}
    own_of_all = own_rows(table, silver[table.join.table])
    if not changes:
        return Touched(own_of_all.limit(0), 0)
    rows = stack.enter_context(materialized(touched_rows(own_of_all, changes)))
    count = rows.count()
    present = rows_with_others(table, rows, silver, count=count).withColumn("_is_gone", F.lit(False))
    own = next((one.keys for one in changes if one.columns == table.keys), None)
    if own is not None:
        gone = own.rows.toDF(*table.keys).join(
            broadcast(rows.select(*table.keys), count), on=[*table.keys], how="left_anti"
        )
        present = present.unionByName(gone.withColumn("_is_gone", F.lit(True)), allowMissingColumns=True)
        count += own.count
    return Touched(present, count)


def _changes(
    warehouse: Warehouse,
    table: JoinTable,
    now: Mapping[str, Version],
    already: Mapping[str, Version],
    stack: ExitStack,
) -> list[Changes] | None:
    """What changed in the tables of the join, of each where there is something; None when that is not known."""
    join = table.join
    referring = [column for one in join.left_join for column in one.by.values()]
    read = [
        (join.table, [join.columns[key] for key in table.keys], [*join.columns.values(), *referring], table.keys),
        *(
            (one.table, [*one.by], [*one.columns.values()], referring_columns(number, one))
            for number, one in enumerate(join.left_join)
        ),
    ]
    found = []
    for feed, keys, columns, own_columns in read:
        first, last = already[feed].number + 1, now[feed].number
        if first > last:
            continue
        feed_of_changes = partial(warehouse.changes, f"silver.{feed}", first=first, last=last)
        kept = stack.enter_context(
            read_change_set(partial(_changed, feed_of_changes, keys=keys, columns=columns), are_narrow=True)
        )
        if kept is None:
            return None
        if kept.count:
            found.append(Changes(own_columns, kept))
    return found


def _changed(read: Callable[[], DataFrame], *, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    return changed_keys(read(), keys=keys, columns=columns)


def _at(warehouse: Warehouse, version: Version) -> DataFrame:
    return warehouse.read(version.table, version=version.number)


def _merge(warehouse: Warehouse, table: JoinTable, rows: DataFrame, *, is_whole: bool) -> int:
    """Make the table hold these rows, without those that are `_is_gone`; the rows that were written.

    `is_whole`: and no other.
    """
    columns = table.join.column_names
    differs = " OR ".join(f"NOT (target.{column} <=> rows.{column})" for column in columns if column not in table.keys)
    is_same = " AND ".join(f"target.{key} = rows.{key}" for key in table.keys)
    values: dict[str, str | Column] = {column: f"rows.{column}" for column in columns}
    merge = (
        warehouse.delta(table.spec.name)
        .alias("target")
        .merge(rows.alias("rows"), is_same)
        .whenMatchedDelete(condition="rows._is_gone")
        .whenMatchedUpdate(condition=differs, set=values)
        .whenNotMatchedInsert(condition="NOT rows._is_gone", values=values)
    )
    if is_whole:
        merge = merge.whenNotMatchedBySourceDelete()
    return int(merge.execute().collect()[0]["num_affected_rows"])


def compare(warehouse: Warehouse, contracts: Contracts, name: str, *, state: GoldState) -> TableComparison:
    """Compare a join with the whole join of silver as it was when the join took it. Changes nothing."""
    spec = f"gold.{name}"
    why_not = why_skipped(warehouse, contracts, name)
    if why_not is None and not warehouse.exists(spec):
        why_not = f"not there yet: {spec}"
    if why_not is not None:
        return TableComparison(spec, why_not=why_not)
    table = join_table(contracts, name)
    definition = table.definition(created_ms=last_version(warehouse, spec).created_ms)
    consumed = state.joins.get(name, NOTHING_CONSUMED).under(definition)
    silver = {feed: consumed.get(f"silver.{feed}") for feed in table.join.tables}
    versions = {feed: version for feed, version in silver.items() if version is not None}
    known_versions = versions.values() if len(versions) == len(silver) else ()

    def computed() -> DataFrame:
        return full_join(table, {feed: _at(warehouse, version) for feed, version in versions.items()})

    return compare_table(warehouse, table.spec, known_versions, computed, keys=table.keys)
