"""Gate 2 asked of whole tables, by Great Expectations alone; and what gold has counted from run to run beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gold.change_feed.changes import ChangedKeys
from gold.plan import definition_of
from gold.quality.gate import TablesJudged, judge_tables
from gold.quality.gate_rules import rules_of_tables
from gold.state_store import StateStore
from gold.unify import UNIFIED
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import current
from lakehouse.quality.counting import Counts
from lakehouse.quality.results import RESULTS, Result, result_rows
from lakehouse.versions import Version


@dataclass(frozen=True)
class CountedOtherwise:
    """A rule of which gold has counted something else than the table has, at the same version of it."""

    table: str
    rule: str
    carried: Counts
    found: Counts


@dataclass(frozen=True)
class Audit:
    """How every rule about silver tables comes out of whole tables, and where gold has counted otherwise."""

    results: Sequence[Result]
    differing: Sequence[CountedOtherwise]


def audit(warehouse: Warehouse, contracts: Contracts, *, run_id: str) -> Audit:
    """Judge whole silver tables, as gold has them; a table that never passed, as it is.

    The results go to `quality.results`; nothing else changes, and nothing is blocked by them. Raises TableError when a
    table is not there, and ContractError when Great Expectations refuses the arguments of a rule.
    """
    state = StateStore().read(warehouse)
    passed = state.passed.under(rules_of_tables(contracts.gold_gate))
    definition = definition_of(contracts.gold, created_ms=current(warehouse, UNIFIED).created_ms)
    versions = {
        name: {feed: _version(warehouse, passed, f"silver.{feed}") for feed in source.feeds}
        for name, source in contracts.gold.sources.items()
    }
    with ExitStack() as stack:
        judged = judge_tables(
            warehouse,
            contracts,
            versions,
            without_news={},
            consumed=state.orders.under(definition),
            passed={},
            changed=ChangedKeys(warehouse, key=contracts.gold.key, stack=stack),
            run_id=run_id,
            is_audit=True,
        )
    warehouse.ensure(RESULTS)
    if judged.results:
        warehouse.append(RESULTS.name, result_rows(warehouse.spark, judged.results))
    judged_at = {version.table: version for of_feeds in versions.values() for version in of_feeds.values()}
    same = {table: version for table, version in passed.items() if judged_at.get(table) == version}
    return Audit(judged.results, tuple(_differing(judged, same)))


def _version(warehouse: Warehouse, passed: Mapping[str, Version], table: str) -> Version:
    now = current(warehouse, table)
    last = passed.get(table)
    return last if last is not None and last.goes_on_to(now) else now


def _differing(judged: TablesJudged, passed: Mapping[str, Version]) -> Iterator[CountedOtherwise]:
    """`passed`: the versions of which both have counted."""
    for table, version in passed.items():
        counts = judged.counts.get(table, {})
        for rule in version.counts.keys() & counts.keys():
            if version.counts[rule] != counts[rule]:
                yield CountedOtherwise(table, rule, version.counts[rule], counts[rule])
