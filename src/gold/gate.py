"""Gate 2: the silver tables before gold takes them, and gold before it is published.

Every verdict goes into `quality.results`. Up to which version of gold a source may be published is kept in
`ops.batches`: the publication takes nothing beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.changes import ChangedKeys, Keys, is_gone, rows_of
from gold.unify import UNIFIED
from lakehouse.consumed import ConsumedVersions, Version
from lakehouse.contracts.models import Contracts, Expectation, TableExpectation, TableGate
from lakehouse.quality.arguments import ROWS_BEFORE, SQL_RULE, looks_at_the_time, needed
from lakehouse.quality.results import PUBLICATION, TABLES, Result
from lakehouse.quality.table_rules import TableCheck, Verdict, validate_tables
from lakehouse.spark.materialized import materialized_or_fetched
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Great Expectations returns the number of rows with its verdict.
_ROW_COUNT = "expect_table_row_count_to_be_between"
# The rows of gold whose source the contract does not name any more.
OTHERS = "no source of the contract"
ORDERS_OF_SILVER = "orders_of_silver"
# Beginnings of names in `ops.batches`; what follows says which rules were asked.
PASSED_TABLES, PASSED_PUBLICATION = "gate of tables: ", "rules of the publication: "


def judge_tables(
    warehouse: Warehouse,
    contracts: Contracts,
    news: Mapping[str, Mapping[str, Version]],
    *,
    without_news: Mapping[str, Mapping[str, Version]],
    already: Mapping[str, Version],
    passed: Mapping[str, Version],
    changed: ChangedKeys,
    run_id: str,
) -> list[Result]:
    """Judge the live rows of the silver tables, as they are at the versions in `news` (source: feed: version).

    Those of sources `without_news` too, by the rules that may come out otherwise all the same: by the time, or by
    tables that have changed. `already`: the versions that gold has taken. `passed`: those with which tables last
    passed, with these very rules: a rule with `scope: changes` is asked about what has changed since.
    """
    versions = {feed: version for feeds in (*news.values(), *without_news.values()) for feed, version in feeds.items()}
    source_of = {feed: source for source, feeds in {**news, **without_news}.items() for feed in feeds}
    with_changes = {feed for feed, version in versions.items() if already.get(version.table) != version}
    tables: dict[str, list[TableCheck]] = {}
    for feed, version in versions.items():
        table, rules = contracts.silver.tables[feed], contracts.gold_gate.rules(feed)
        last = passed.get(version.table)
        if source_of[feed] in without_news:
            rules = tuple(rule for rule in rules if _may_have_changed(rule, with_changes))
            if not rules:
                continue
        elif last == version:
            # Nothing has changed: what rules say of these rows alone would come out as it did.
            rules = tuple(rule for rule in rules if _looks_beyond(rule))
        keys = changed.since(last, version) if any(rule.scope == "changes" for rule in rules) else None
        of_changes, of_table = _by_scope(rules, is_known=keys is not None)
        rows = _live(warehouse, feed, version)
        judged = TableCheck(rows, (), keys=table.keys, sensitive=table.sensitive_columns)
        parts = tables.setdefault(feed, [])
        if keys is not None and of_changes:
            views = _live_views(warehouse, contracts, of_changes, versions)
            kept = changed.rows(version, keys).where(_is_live())
            parts.append(replace(judged, rows=kept, rules=of_changes, views=views))
        if of_table:
            parameters = _rows_before(of_table, already.get(version.table), version, partial(_live, warehouse, feed))
            views = _live_views(warehouse, contracts, of_table, versions)
            parts.append(replace(judged, rules=of_table, parameters=parameters, views=views))
    return [
        _result(verdict, run_id=run_id, gate=TABLES, source=source_of[feed], feed=feed)
        for feed, of_rules in (validate_tables(tables) if tables else {}).items()
        for verdict in of_rules
    ]


def with_rows(version: Version, gate: TableGate, results: Iterable[Result], already: Version | None) -> Version:
    """The version of a silver table with the number of its live rows, where a rule has just counted them, or before."""
    counting = {
        rule.name for rule in gate.expectations if rule.type == _ROW_COUNT and "row_condition" not in rule.kwargs
    }
    counted = [
        int(result.observed)
        for result in results
        if result.table == version.table and result.rule in counting and result.observed is not None
    ]
    if counted:
        return replace(version, rows=counted[0])
    return already if already == version and already is not None else version


@dataclass(frozen=True)
class OrdersOfSilver:
    """What silver says of a source's orders: of all; and of the `keys` that changed, where it is known which.

    They are materialized: else every query would compute them again.
    """

    of_all: Callable[[], DataFrame]
    keys: Keys | None = None
    of_keys: DataFrame | None = None


def judge_publication(
    warehouse: Warehouse,
    contracts: Contracts,
    orders: Mapping[str, OrdersOfSilver],
    *,
    unchanged: Mapping[str, OrdersOfSilver],
    now: Version,
    passed: Mapping[str, Version],
    run_id: str,
) -> list[Result]:
    """Judge gold's rows of these sources, as they are at version `now`, by what silver says of their orders.

    Those of `unchanged` sources by the rules about the time alone. `passed`: with which versions of gold they passed
    last.
    """
    tables: dict[str, list[TableCheck]] = {}
    with ExitStack() as stack:
        for name, of_silver in {**orders, **unchanged}.items():
            rules = contracts.gold_gate.publication
            if name in unchanged:
                rules = tuple(rule for rule in rules if _may_have_changed(rule, ()))
            if not rules:
                continue
            is_own = of_source(contracts, name)
            rows = warehouse.read(UNIFIED, version=now.number).where(is_own)
            judged = TableCheck(rows, (), keys=("composite_key",), sensitive=contracts.sensitive_in_gold)
            of_changes, of_table = _by_scope(rules, is_known=of_silver.keys is not None)
            parts = tables.setdefault(name, [])
            if of_silver.keys is not None and of_silver.of_keys is not None and of_changes:
                views = {ORDERS_OF_SILVER: of_silver.of_keys}
                kept = stack.enter_context(
                    materialized_or_fetched(rows_of(rows, of_silver.keys), count=of_silver.keys.count)
                )
                parts.append(replace(judged, rows=kept, rules=of_changes, views=views))
            if of_table:

                def earlier(before: Version, is_own: Column = is_own) -> DataFrame:
                    return warehouse.read(UNIFIED, version=before.number).where(is_own)

                is_named = bool(_named(of_table, [ORDERS_OF_SILVER]))
                views = {ORDERS_OF_SILVER: of_silver.of_all()} if is_named else {}
                parts.append(
                    replace(
                        judged,
                        rules=of_table,
                        parameters=_rows_before(of_table, passed.get(name), now, earlier),
                        views=views,
                    )
                )
        verdicts = validate_tables(tables) if tables else {}
    return [
        _result(verdict, run_id=run_id, gate=PUBLICATION, source=name, feed=None)
        for name, of_rules in verdicts.items()
        for verdict in of_rules
    ]


def _by_scope(
    rules: Iterable[TableExpectation], *, is_known: bool
) -> tuple[list[TableExpectation], list[TableExpectation]]:
    """The rules that are asked about changed rows, and those about all. `is_known`: whether one knows what changed."""
    of_changes = [rule for rule in rules if is_known and rule.scope == "changes"]
    return of_changes, [rule for rule in rules if rule not in of_changes]


def _looks_beyond(rule: TableExpectation) -> bool:
    """Whether the rule can come out otherwise about the same rows: by the time, or by other tables."""
    return rule.scope == "table" and (rule.type == SQL_RULE or looks_at_the_time(rule))


def _may_have_changed(rule: TableExpectation, with_changes: Collection[str]) -> bool:
    """Whether the rule can come out otherwise about the same rows now: by the time, or by tables `with_changes`."""
    return _looks_beyond(rule) and (looks_at_the_time(rule) or bool(_named([rule], with_changes)))


def asks_about_the_time(gate: TableGate) -> bool:
    """Whether a rule of the gate can come out otherwise later, though nothing has changed."""
    return any(_may_have_changed(rule, ()) for rule in (*gate.expectations, *gate.publication))


def _live_views(
    warehouse: Warehouse, contracts: Contracts, rules: Sequence[Expectation], versions: Mapping[str, Version]
) -> dict[str, DataFrame]:
    """The silver tables that the rules name in SQL, their live rows."""
    named = _named(rules, contracts.silver.tables)
    return {name: _live(warehouse, name, versions.get(name)) for name in named}


def columns_asked(contracts: Contracts) -> dict[str, set[str]]:
    """Of the silver tables, by name, the columns that gold takes and rules about changed rows name.

    Not of a table that such a rule asks about in SQL, which may name any.
    """
    found = {}
    for feed, table in contracts.silver.tables.items():
        rules = [rule for rule in contracts.gold_gate.rules(feed) if rule.scope == "changes"]
        if not any(rule.type == SQL_RULE for rule in rules):
            words = {word for rule in rules for word in re.findall(r"\w+", str(rule.kwargs))}
            found[f"silver.{feed}"] = {*contracts.gold.columns, contracts.gold.key, *table.keys, "_is_deleted", *words}
    return found


def of_source(contracts: Contracts, name: str) -> Column:
    """Whether a row of gold is of this source, or of OTHERS."""
    if name in contracts.gold.sources:
        return F.col("source_database") == contracts.gold.sources[name].name
    return ~F.col("source_database").isin(*[source.name for source in contracts.gold.sources.values()])


def passed_versions(known: ConsumedVersions, sources: Iterable[str]) -> dict[str, Version]:
    """The version of gold up to which each source, and OTHERS, may be published; `known`: all that was taken."""
    found = {name: known.get(may_be_published(name), {}).get(UNIFIED) for name in (*sources, OTHERS)}
    return {name: version for name, version in found.items() if version is not None}


def blocked_sources(known: ConsumedVersions, sources: Iterable[str]) -> dict[str, list[str]]:
    """The sources that a gate blocks, by the gate: TABLES blocks them from gold, PUBLICATION from the topic."""
    held = {
        gate: [name for name in sources if not blocked_at(gate, [name]).isdisjoint(known)]
        for gate in (TABLES, PUBLICATION)
    }
    return {gate: names for gate, names in held.items() if names}


def blocked_at(gate: str, sources: Iterable[str]) -> set[str]:
    """Who has taken the versions of gold at which a gate began to block these sources, in `ops.batches`."""
    return {f"blocked at the gate of {gate}: {name}" for name in sources}


def may_be_published(source: str) -> str:
    """Who has taken the version of gold up to which a source may be published, in `ops.batches`."""
    return f"publication gate: {source}"


def passed_tables(gate: TableGate) -> str:
    """Who has taken the versions of silver tables that passed with the rules that the gate has now."""
    return f"{PASSED_TABLES}{_digest(*gate.feeds, *gate.expectations)}"


def passed_publication(gate: TableGate, source: str) -> str:
    """Who has taken the versions of gold, and of silver's tables, with which a source passed these very rules."""
    return f"{PASSED_PUBLICATION}{source} {_digest(*gate.publication)}"


def _digest(*parts: Expectation | str) -> str:
    told = [part if isinstance(part, str) else part.model_dump_json() for part in parts]
    return sha256("\n".join(told).encode()).hexdigest()[:16]


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


def _named(rules: Sequence[Expectation], names: Iterable[str]) -> list[str]:
    """Of these names, those that are in a query of the rules."""
    words = {word for rule in rules for word in re.findall(r"\w+", str(rule.kwargs.get("unexpected_rows_query", "")))}
    return [name for name in names if name in words]


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
