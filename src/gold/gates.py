"""Gate 2: the silver tables before gold takes them, and gold before it is published.

Every verdict goes into `quality.results`. Up to which version of gold a source may be published is kept in
`ops.progress`: the publication takes nothing beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.columns import UNIFIED
from lakehouse.checkpoint import Judged, Verdict, validate_tables
from lakehouse.contracts import Contracts, Expectation
from lakehouse.held import held
from lakehouse.parameters import ROWS_BEFORE, needed
from lakehouse.progress import Version, record_for, taken_by
from lakehouse.results import PUBLICATION, RESULTS, TABLES, Result, result_rows
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The rows of gold whose source the contract does not name any more.
OTHERS = "no source of the contract"
ORDERS_OF_SILVER = "orders_of_silver"


def judge_tables(
    warehouse: Warehouse,
    contracts: Contracts,
    news: Mapping[str, Mapping[str, Version]],
    *,
    already: Mapping[str, Version],
    run_id: str,
) -> tuple[str, ...]:
    """Judge the live rows of the silver tables, as they are at the versions in `news` (source: feed: version).

    `already`: the versions that gold has taken. Returns the sources that do not pass.
    """
    versions = {feed: version for feeds in news.values() for feed, version in feeds.items()}
    source_of = {feed: source for source, feeds in news.items() for feed in feeds}
    tables = {}
    for feed, version in versions.items():
        rules, table = contracts.gold_gate.rules(feed), contracts.silver.tables[feed]
        before = already.get(version.table)
        is_same_table = before is not None and before.created_ms == version.created_ms
        tables[feed] = Judged(
            rows=_live(warehouse, feed, version),
            rules=rules,
            keys=table.keys,
            sensitive=table.sensitive_columns,
            parameters=_rows_before(rules, _live(warehouse, feed, before) if is_same_table else None),
            views={name: _live(warehouse, name, versions.get(name)) for name in _named(rules, contracts.silver.tables)},
        )
    verdicts = validate_tables({feed: table for feed, table in tables.items() if table.rules})
    results = [
        _result(verdict, run_id=run_id, gate=TABLES, source=source_of[feed], feed=feed)
        for feed, of_rules in verdicts.items()
        for verdict in of_rules
    ]
    return _stored(warehouse, results)


def judge_publication(
    warehouse: Warehouse,
    contracts: Contracts,
    orders: Mapping[str, DataFrame],
    *,
    now: Version,
    passed: Mapping[str, Version],
    run_id: str,
) -> tuple[str, ...]:
    """Judge gold's rows of these sources, as they are at version `now`; `orders` are what silver tells of each.

    `passed`: with which versions they passed last. Returns the sources that do not pass.
    """
    rules = contracts.gold_gate.publication
    if not rules or not orders:
        return ()
    tables = {}
    with ExitStack() as stack:
        for name, of_silver in orders.items():
            is_own = of_source(contracts, name)
            before = passed.get(name)
            is_same_table = before is not None and before.created_ms == now.created_ms
            earlier = warehouse.read(UNIFIED, version=before.number).where(is_own) if before and is_same_table else None
            is_named = bool(_named(rules, [ORDERS_OF_SILVER]))
            tables[name] = Judged(
                rows=warehouse.read(UNIFIED, version=now.number).where(is_own),
                rules=rules,
                keys=("composite_key",),
                sensitive=contracts.sensitive_in_gold,
                parameters=_rows_before(rules, earlier),
                # Every query on them would compute them again.
                views={ORDERS_OF_SILVER: stack.enter_context(held(of_silver))} if is_named else {},
            )
        verdicts = validate_tables(tables)
    results = [
        _result(verdict, run_id=run_id, gate=PUBLICATION, source=name, feed=None)
        for name, of_rules in verdicts.items()
        for verdict in of_rules
    ]
    return _stored(warehouse, results)


def of_source(contracts: Contracts, name: str) -> Column:
    """Whether a row of gold is of this source, or of OTHERS."""
    if name in contracts.gold.sources:
        return F.col("source_database") == contracts.gold.sources[name].name
    return ~F.col("source_database").isin(*[source.name for source in contracts.gold.sources.values()])


def passed_versions(warehouse: Warehouse, sources: Iterable[str]) -> dict[str, Version]:
    """The version of gold with which each source, and OTHERS, last passed the gate before the publication."""
    names = {_consumer(name): name for name in (*sources, OTHERS)}
    return {names[who]: version for who, version in taken_by(warehouse, UNIFIED, names).items()}


def record_passed(warehouse: Warehouse, sources: Collection[str], version: Version) -> None:
    """Write down that these sources may be published up to this version of gold."""
    if sources:
        record_for(warehouse, [_consumer(name) for name in sources], version)


def _consumer(source: str) -> str:
    return f"publication gate: {source}"


def _live(warehouse: Warehouse, feed: str, version: Version | None) -> DataFrame:
    rows = warehouse.read(f"silver.{feed}", version=version.number if version else None)
    return rows.where(~F.col("_is_deleted"))


def _rows_before(rules: Sequence[Expectation], earlier: DataFrame | None) -> Mapping[str, int]:
    """The parameter, where a rule needs it and there is something to count."""
    is_needed = any(ROWS_BEFORE in needed(rule) for rule in rules)
    return {ROWS_BEFORE: earlier.count()} if is_needed and earlier is not None else {}


def _named(rules: Sequence[Expectation], names: Iterable[str]) -> list[str]:
    """Of these names, those that stand in a query of the rules."""
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


def _stored(warehouse: Warehouse, results: Sequence[Result]) -> tuple[str, ...]:
    """Store the results; the sources of those that hold."""
    if results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, results))
    return tuple(sorted({result.source for result in results if result.on_failure == "fail" and not result.passed}))
