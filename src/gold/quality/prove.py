"""What a run has made of gold, judged: gold's rows of the orders that changed, by what silver states of them.

Both are read behind the merge, and neither is what the run has computed: gold's rows from its own change data feed, or
from the table where the commit has left them as they were; silver's from its tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from gold.change_feed.changes import AFTER
from gold.change_feed.keys import Keys, each_once, fetched_keys, keys_without, rows_of, rows_with, union_keys
from gold.orders import TargetRows
from gold.plan import GoldJob
from gold.quality.conserved import orders_of_silver
from gold.quality.gate import OTHERS, ChangedOrders, SourceOrders, blocked_by, judge_publication, source_condition
from gold.quality.gate_rules import rules_of_publication
from gold.state import NOTHING_CONSUMED, ConsumedVersions
from gold.unify import UNIFIED
from lakehouse.contracts.published import unified_columns
from lakehouse.spark.materialized import fetched, materialized, persist_or_collect
from lakehouse.spark.sizing import MAX_FETCHED, in_one_part
from lakehouse.versions import Version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Proof:
    """The sources that are `blocked` from publication; those that may be published as gold is now, with OTHERS.

    `proven`: by source with which commits of gold and of silver's tables the rules of publication have passed.
    """

    blocked: tuple[str, ...]
    let_pass: frozenset[str]
    proven: Mapping[str, ConsumedVersions]


def prove(
    job: GoldJob,
    desired: Mapping[str, TargetRows],
    consumed: Mapping[str, Version],
    *,
    now: Version,
    blocked: Sequence[str],
) -> Proof:
    """Let the publication take gold as it is now, of every source that may be published.

    `consumed`: what gold has now of silver's tables. Judged are the sources that this run has merged, those of which
    the commit of this run has changed rows all the same, and those that had not passed with gold as it was before this
    run: blocked, interrupted, or gold was changed by another writer. Not those that are blocked from gold: silver as
    gold took it then may be gone; they are judged when they are merged again. All others are asked rules about the
    time.
    """
    sources, before = job.contracts.gold.sources, job.before
    rules, passed = rules_of_publication(job.contracts.gold_gate), job.state.publishable
    is_whole = job.full_refresh or all(name in desired and desired[name].keys is None for name in sources)
    changed = {} if is_whole else _changed_in_gold(job, now)
    touched = {name for name in sources if changed is None or name in changed}
    versions, unchanged, asked = {}, {}, dict[str, _ProofScope]()
    for name, source in sources.items():
        of_feeds = [consumed.get(f"silver.{feed}") for feed in source.feeds]
        versions[name] = {version.table: version for version in of_feeds if version is not None}
        is_due = name in desired or ((passed.get(name) != before or name in touched) and name not in blocked)
        # Of a source that was blocked from the beginning gold has nothing that could be judged.
        if len(versions[name]) < len(source.feeds):
            continue
        if is_due:
            of_gold = None if changed is None else [changed[name]] if name in changed else []
            asked[name] = _proof_scope(job, name, versions[name], desired.get(name), now=now, of_gold=of_gold)
        elif name not in blocked:
            unchanged[name] = SourceOrders(partial(_all_orders, job, name, versions[name]))
    of_changes = _changed_orders(job, asked, versions, now=now)
    orders = {
        name: SourceOrders(partial(_all_orders, job, name, versions[name]), of_changes.get(name)) for name in asked
    }
    judged = judge_publication(
        job.warehouse, job.contracts, orders, unchanged=unchanged, now=now, passed=passed, run_id=job.run_id
    )
    job.results.extend(judged)
    blocked_sources = blocked_by(judged)
    as_before = {name for name in sources if name not in {*desired, *touched} and passed.get(name) == before}
    let_pass = frozenset({OTHERS, *as_before, *orders} - set(blocked_sources))
    proven = {}
    for name in let_pass - {OTHERS}:
        last = job.state.proven.get(name, NOTHING_CONSUMED)
        if name in orders:
            proven[name] = last.with_later(rules, [now, *versions[name].values()])
        elif last.under(rules).get(UNIFIED) == before:
            proven[name] = last.with_later(rules, [now])  # these rules would find what they found before
    return Proof(blocked_sources, let_pass, proven)


def _changed_in_gold(job: GoldJob, now: Version) -> Mapping[str, Keys] | None:
    """The keys of the rows of gold that this run has changed, by their source; None when they are not known."""
    before = job.before
    if now == before or before.size_in_bytes == 0 or not job.contracts.gold_gate.publication:
        return {}
    names = {source.name: name for name, source in job.contracts.gold.sources.items()}
    feed = job.feed.few(before, now)
    if feed is None:
        changed = job.changed.by_value(before, now, column="source_database", values=names)
    else:
        tables = {value: _keys_of_source(job, feed, name) for value, name in names.items()}
        changed = {value: fetched_keys(job.warehouse.spark, keys) for value, keys in tables.items() if keys.num_rows}
    return None if changed is None else {names[value]: keys for value, keys in changed.items()}


def _keys_of_source(job: GoldJob, feed: pa.Table, name: str) -> pa.Table:
    """The keys of a source's rows in a feed of gold, each once."""
    return each_once([_rows_of_source(job, feed, name).select([job.contracts.gold.key])])


def _rows_of_source(job: GoldJob, feed: pa.Table, name: str) -> pa.Table:
    return rows_with(feed, "source_database", job.contracts.gold.sources[name].name)


def _all_orders(job: GoldJob, name: str, versions: Mapping[str, Version]) -> DataFrame:
    """What silver states of all orders of a source, computed once."""
    orders = orders_of_silver(job.warehouse, job.contracts.gold, name, versions)
    return job.stack.enter_context(materialized(orders))


@dataclass(frozen=True)
class _ProofScope:
    """Of which keys of a source gold is judged, None for all; `is_of_run`: whether only this run can have changed it.

    Then the rows that are not in the feed of this run are as they were when the source passed last.
    """

    keys: Keys | None
    is_of_run: bool = False


def _proof_scope(
    job: GoldJob,
    name: str,
    versions: Mapping[str, Version],
    desired: TargetRows | None,
    *,
    now: Version,
    of_gold: Sequence[Keys] | None,
) -> _ProofScope:
    """The keys that changed in silver, and those that changed in gold, where it is known which.

    `of_gold`: by this run, None where it is not known.
    """
    gate, before = job.contracts.gold_gate, job.before
    last = job.state.proven.get(name, NOTHING_CONSUMED).under(rules_of_publication(gate))
    if (desired is not None and desired.keys is None) or not any(rule.scope == "changes" for rule in gate.publication):
        return _ProofScope(None)
    was_passed = last.get(UNIFIED) == before and all(last.get(table) == job.consumed.get(table) for table in versions)
    of_silver = [] if desired is None else [desired.keys]
    if was_passed and now.number <= before.number + 1 and (of_silver or of_gold):
        # Since it passed, gold has changed by the commit of this run alone.
        return _ProofScope(None if of_gold is None else union_keys([*of_silver, *of_gold]), is_of_run=True)
    in_gold = job.changed.since(last.get(UNIFIED), now, of=source_condition(job.contracts, name))
    in_silver = [job.changed.since(last.get(table), version) for table, version in versions.items()]
    return _ProofScope(union_keys([*in_silver, in_gold]))


def _changed_orders(
    job: GoldJob,
    asked: Mapping[str, _ProofScope],
    versions: Mapping[str, Mapping[str, Version]],
    *,
    now: Version,
) -> dict[str, ChangedOrders]:
    """Of each source whose changed keys are known, their orders: as silver states them, and as gold has them."""
    keys = {name: one.keys for name, one in asked.items() if one.keys is not None}
    stated = {
        name: orders_of_silver(job.warehouse, job.contracts.gold, name, versions[name], keys=of, empty=job.empty)
        for name, of in keys.items()
    }
    of_run = {name for name in keys if asked[name].is_of_run}
    in_silver, in_gold = _computed(job, stated, keys), _rows_in_gold(job, keys, of_run, now=now)
    return {name: ChangedOrders(in_silver[name], in_gold[name]) for name in keys}


def _computed(job: GoldJob, stated: Mapping[str, DataFrame], keys: Mapping[str, Keys]) -> dict[str, DataFrame]:
    """The rows of each source, computed: few of all sources by one action."""
    if sum(of.count for of in keys.values()) > MAX_FETCHED or not stated:
        return {name: job.stack.enter_context(materialized(rows)) for name, rows in stated.items()}
    few = fetched(reduce(lambda left, right: left.unionByName(right), stated.values()))
    return {name: in_one_part(few.rows.where(source_condition(job.contracts, name))) for name in stated}


def _rows_in_gold(
    job: GoldJob, keys: Mapping[str, Keys], of_run: Collection[str], *, now: Version
) -> dict[str, DataFrame]:
    """By source the rows of gold, as it is `now`, that have one of its keys.

    Those that this run has changed are in the feed of its one commit, and of the sources `of_run` all others are read
    from the table.
    """
    columns = [*unified_columns(job.contracts.gold)]
    changed: dict[str, DataFrame] = {}
    left = dict(keys)
    feed = job.feed.few(job.before, now) if of_run else None
    for name in of_run if feed is not None and _is_of_one_commit(feed) else ():
        rows, wanted = _rows_of_source(job, feed, name), keys[name].table
        if wanted is None or wanted.schema.types != rows.select([job.contracts.gold.key]).schema.types:
            continue
        rest = keys_without(wanted, rows.column(job.contracts.gold.key))
        changed[name] = job.warehouse.spark.createDataFrame(_after(rows).select(columns))
        left[name] = fetched_keys(job.warehouse.spark, rest)
    others = _rows_of_table(job, {name: of for name, of in left.items() if of.count or name not in changed}, now=now)
    found = {}
    for name in keys:
        parts = [rows[name].select(*columns) for rows in (changed, others) if name in rows]
        rows = reduce(lambda left, right: left.unionByName(right), parts)
        found[name] = in_one_part(rows) if keys[name].count <= MAX_FETCHED else rows
    return found


def _rows_of_table(job: GoldJob, keys: Mapping[str, Keys], *, now: Version) -> dict[str, DataFrame]:
    """By source the rows of gold with one of its keys, read once for sources whose keys are of a type."""
    gold = job.warehouse.read(UNIFIED, version=now.number)
    by_type: dict[str, dict[str, Keys]] = {}
    for name, of in keys.items():
        by_type.setdefault(of.rows.dtypes[0][1], {})[name] = of
    found: dict[str, DataFrame] = {}
    for keys_of in by_type.values():
        every = union_keys(keys_of.values())
        if every is not None:
            rows = job.stack.enter_context(persist_or_collect(rows_of(gold, every), count=every.count))
            for name, of in keys_of.items():
                found[name] = rows_of(rows.where(source_condition(job.contracts, name)), of)
    return found


def _is_of_one_commit(feed: pa.Table) -> bool:
    return len(feed.column("_commit_version").unique()) <= 1


def _after(feed: pa.Table) -> pa.Table:
    """The rows of a feed as they were after their changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return feed.filter(pc.is_in(feed.column("_change_type"), value_set=pa.array(AFTER)))
