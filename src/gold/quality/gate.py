"""Gate 2: the silver tables before gold takes them, and gold before it is published.

Every verdict goes into `quality.results`. Up to which version of gold a source may be published is part of gold's
state: the publication takes nothing beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from gold.change_feed.changes import ChangedKeys, is_gone
from gold.quality.gate_rules import by_scope, looks_beyond, may_have_changed, named_tables
from gold.unify import UNIFIED
from lakehouse.contracts.models import Contracts, Expectation, TableGate
from lakehouse.delta.tables import Warehouse
from lakehouse.quality.arguments import ROWS_BEFORE, needed
from lakehouse.quality.counting import (
    Carried,
    Counts,
    Judged,
    counted_before,
    counts_of,
    is_counted,
    judge_by_counting,
    rows_of_table,
)
from lakehouse.quality.results import PUBLICATION, TABLES, Result
from lakehouse.quality.table_rules import TableCheck, Verdict, validate_tables
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The rows of gold whose source the contract does not name any more.
OTHERS = "no source of the contract"
ORDERS_OF_SILVER = "orders_of_silver"


@dataclass(frozen=True)
class TablesJudged:
    """The results of the gate of tables; and of each judged table what was counted of all its rows, by rule."""

    results: Sequence[Result]
    counts: Mapping[str, Mapping[str, Counts]]


def judge_tables(
    warehouse: Warehouse,
    contracts: Contracts,
    news: Mapping[str, Mapping[str, Version]],
    *,
    without_news: Mapping[str, Mapping[str, Version]],
    consumed: Mapping[str, Version],
    passed: Mapping[str, Version],
    changed: ChangedKeys,
    run_id: str,
    is_audit: bool = False,
) -> TablesJudged:
    """Judge the live rows of the silver tables, as they are at the versions in `news` (source: feed: version).

    Those of sources `without_news` too, by the rules that may come out otherwise all the same: by the time, or by
    tables that have changed. `consumed`: the versions that gold has. `passed`: those with which tables last
    passed, with these very rules: a rule with `scope: changes` is asked about what has changed since, and what was
    counted then of a whole table is carried on. `is_audit`: Great Expectations judges all of them.
    """
    versions = {feed: version for feeds in (*news.values(), *without_news.values()) for feed, version in feeds.items()}
    source_of = {feed: source for source, feeds in {**news, **without_news}.items() for feed in feeds}
    with_changes = {feed for feed, version in versions.items() if consumed.get(version.table) != version}
    asked = _Checks(is_audit=is_audit)
    for feed, version in versions.items():
        table, rules = contracts.silver.tables[feed], contracts.gold_gate.rules(feed)
        last = passed.get(version.table)
        if source_of[feed] in without_news:
            rules = tuple(rule for rule in rules if may_have_changed(rule, with_changes))
            if not rules:
                continue
        elif last == version:
            # Nothing has changed: what rules say of these rows alone would come out as it did.
            rules = tuple(rule for rule in rules if looks_beyond(rule))
        keys = changed.since(last, version) if any(rule.scope == "changes" for rule in rules) else None
        of_changes, of_table = by_scope(rules, is_known=keys is not None)
        whole = TableCheck(_live(warehouse, feed, version), (), keys=table.keys, sensitive=table.sensitive_columns)
        if keys is not None and of_changes:
            views = _live_views(warehouse, contracts, of_changes, versions)
            kept = changed.rows(version, keys).where(_is_live())
            asked.ask_changes(feed, replace(whole, rows=kept, rules=of_changes, views=views))
        if of_table:
            parameters = _rows_before(of_table, consumed.get(version.table), version, partial(_live, warehouse, feed))
            before = counted_before(of_table, last.counts, last.rows) if last is not None else {}
            images = changed.images(last, version) if before else None
            carried = [rule for rule in of_table if rule.name in before] if images is not None else []
            if images is not None and carried:
                check = replace(whole, rules=carried, parameters=parameters)
                removed, added = images.preimages.where(_is_live()), images.postimages.where(_is_live())
                asked.carried[feed] = Carried(check, before, removed, added)
            others = [rule for rule in of_table if rule not in carried]
            if others:
                views = _live_views(warehouse, contracts, others, versions)
                asked.ask_table(feed, replace(whole, rules=others, parameters=parameters, views=views))
    judged = asked.judged()
    results = [
        _result(verdict, run_id=run_id, gate=TABLES, source=source_of[feed], feed=feed)
        for feed, of_rules in judged.verdicts.items()
        for verdict in of_rules
    ]
    return TablesJudged(results, {f"silver.{feed}": counts for feed, counts in judged.counts.items()})


def with_counts(
    version: Version, gate: TableGate, counts: Mapping[str, Counts], consumed: Version | None, passed: Version | None
) -> Version:
    """The version of a silver table with what was counted of its rows: by this run, or by the same rules before.

    `passed`: the version that last passed with these very rules. `consumed`: the one that gold has.
    """
    about_all = [rule for rule in gate.rules(version.table.removeprefix("silver.")) if rule.scope == "table"]
    of_all = {rule.name: counts[rule.name] for rule in about_all if rule.name in counts}
    if of_all:
        return replace(version, rows=rows_of_table(about_all, of_all), counts=of_all)
    if passed == version and passed is not None:
        return passed
    # Other rules may have the same names: of what they have counted only the number of rows still holds.
    return replace(version, rows=consumed.rows) if consumed == version and consumed is not None else version


@dataclass(frozen=True)
class _Checks:
    """What is asked of tables, or sources: by counting where the rules allow it, else by Great Expectations."""

    is_audit: bool = False
    changed: dict[str, TableCheck] = field(default_factory=dict)
    whole: dict[str, TableCheck] = field(default_factory=dict)
    carried: dict[str, Carried] = field(default_factory=dict)
    others: dict[str, list[TableCheck]] = field(default_factory=dict)

    def ask_changes(self, name: str, check: TableCheck) -> None:
        """Ask about rows of keys that have changed."""
        self._ask(self.changed, name, check)

    def ask_table(self, name: str, check: TableCheck) -> None:
        """Ask about all rows."""
        self._ask(self.whole, name, check)

    def judged(self) -> Judged:
        """The verdicts, and what was counted of whole tables."""
        found = Judged()
        if self.changed or self.whole or self.carried:
            try:
                found = judge_by_counting(self.changed, self.whole, self.carried)
            except PySparkException as error:
                if is_gone(error):
                    raise
                # A rule cannot be evaluated. Great Expectations, which asks them one by one, says which, and why.
                carried = {name: one.check for name, one in self.carried.items()}
                for name, check in chain(self.changed.items(), self.whole.items(), carried.items()):
                    self.others.setdefault(name, []).append(check)
        for name, verdicts in (validate_tables(self.others) if self.others else {}).items():
            found.verdicts.setdefault(name, []).extend(verdicts)
            found.counts.setdefault(name, {}).update(counts_of(verdicts))
        return found

    def _ask(self, counted: dict[str, TableCheck], name: str, check: TableCheck) -> None:
        if rules := [rule for rule in check.rules if is_counted(rule) and not self.is_audit]:
            counted[name] = replace(check, rules=rules)
        if others := [rule for rule in check.rules if rule not in rules]:
            self.others.setdefault(name, []).append(replace(check, rules=others))


@dataclass(frozen=True)
class ChangedOrders:
    """The orders of a source that changed, as silver states them, and as gold has them.

    They are computed: else every query would compute them again.
    """

    in_silver: DataFrame
    in_gold: DataFrame


@dataclass(frozen=True)
class SourceOrders:
    """What silver states of all orders of a source; and those that `changed`, where it is known which."""

    of_all: Callable[[], DataFrame]
    changed: ChangedOrders | None = None


def judge_publication(
    warehouse: Warehouse,
    contracts: Contracts,
    orders: Mapping[str, SourceOrders],
    *,
    unchanged: Mapping[str, SourceOrders],
    now: Version,
    passed: Mapping[str, Version],
    run_id: str,
) -> list[Result]:
    """Judge gold's rows of these sources, as they are at version `now`, by what silver says of their orders.

    Those of `unchanged` sources by the rules about the time alone. `passed`: with which versions of gold they passed
    last.
    """
    asked = _Checks()
    gold = warehouse.read(UNIFIED, version=now.number)
    for name, of_source_orders in {**orders, **unchanged}.items():
        rules = contracts.gold_gate.publication
        if name in unchanged:
            rules = tuple(rule for rule in rules if may_have_changed(rule, ()))
        if not rules:
            continue
        is_own, changed = source_condition(contracts, name), of_source_orders.changed
        whole = TableCheck(gold.where(is_own), (), keys=("composite_key",), sensitive=contracts.sensitive_in_gold)
        of_changes, of_table = by_scope(rules, is_known=changed is not None)
        if changed is not None and of_changes:
            views = {ORDERS_OF_SILVER: changed.in_silver}
            asked.ask_changes(name, replace(whole, rows=changed.in_gold, rules=of_changes, views=views))
        if of_table:

            def earlier(before: Version, is_own: Column = is_own) -> DataFrame:
                return warehouse.read(UNIFIED, version=before.number).where(is_own)

            is_named = bool(named_tables(of_table, [ORDERS_OF_SILVER]))
            views = {ORDERS_OF_SILVER: of_source_orders.of_all()} if is_named else {}
            parameters = _rows_before(of_table, passed.get(name), now, earlier)
            asked.ask_table(name, replace(whole, rules=of_table, parameters=parameters, views=views))
    return [
        _result(verdict, run_id=run_id, gate=PUBLICATION, source=name, feed=None)
        for name, of_rules in asked.judged().verdicts.items()
        for verdict in of_rules
    ]


def _live_views(
    warehouse: Warehouse, contracts: Contracts, rules: Sequence[Expectation], versions: Mapping[str, Version]
) -> dict[str, DataFrame]:
    """The silver tables that the rules name in SQL, their live rows."""
    named = named_tables(rules, contracts.silver.tables)
    return {name: _live(warehouse, name, versions.get(name)) for name in named}


def source_condition(contracts: Contracts, name: str) -> Column:
    """Whether a row of gold is of this source, or of OTHERS."""
    if name in contracts.gold.sources:
        return F.col("source_database") == contracts.gold.sources[name].name
    return ~F.col("source_database").isin(*[source.name for source in contracts.gold.sources.values()])


def _live(warehouse: Warehouse, feed: str, version: Version | None) -> DataFrame:
    rows = warehouse.read(f"silver.{feed}", version=version.number if version else None)
    return rows.where(_is_live())


def _is_live() -> Column:
    return ~F.col("_is_deleted")


def _rows_before(
    rules: Sequence[Expectation], before: Version | None, now: Version, rows: Callable[[Version], DataFrame]
) -> Mapping[str, int]:
    """The parameter, where a rule needs it and the table is the one it was `before`. `rows`: the table's, to count.

    None where they were not counted, and that version cannot be read any more.
    """
    is_needed = any(ROWS_BEFORE in needed(rule) for rule in rules)
    if not is_needed or before is None or before.created_ms != now.created_ms:
        return {}
    if before.rows is not None:
        return {ROWS_BEFORE: before.rows}
    try:
        return {ROWS_BEFORE: rows(before).count()}
    except Exception as error:
        if not is_gone(error):
            raise
        return {}


def _result(verdict: Verdict, *, run_id: str, gate: str, source: str, feed: str | None) -> Result:
    return Result(
        run=run_id,
        gate=gate,
        source=source,
        feed=feed,
        rule=verdict.rule.name,
        on_failure=verdict.rule.on_failure,
        evaluated=verdict.evaluated,
        failed=verdict.failed,
        passed=verdict.passed,
        sample_keys=verdict.sample_keys,
        description=verdict.rule.description,
        observed=verdict.observed,
        message=verdict.message,
    )


def blocked_by(results: Iterable[Result]) -> tuple[str, ...]:
    """The sources that do not pass."""
    return tuple(sorted({result.source for result in results if result.on_failure == "fail" and not result.passed}))
