"""What a run of gold has to do: which silver tables have commits that gold does not have, and what all steps share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256

from gold.change_feed.changes import ChangedKeys
from gold.change_feed.feed import GoldFeed
from gold.quality.gate_rules import rules_of_tables
from gold.state import GoldState
from lakehouse.contracts.models import Contracts, GoldSource, GoldTables
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import current
from lakehouse.quality.results import RESULTS, Result, result_rows
from lakehouse.versions import Version


@dataclass(frozen=True)
class GoldJob:
    """What the steps of one run share.

    `state`: as the run before has left it. `before`: gold then, by `definition`; `consumed`: the commits of silver's
    tables that it has, by table. `versions`: the last commits of silver's tables, by source and feed; `news`: those of
    sources that have one which gold does not have. `changed`: of silver; `feed`: of gold. `stack` keeps rows that
    several steps ask about. `results`: of gate 2, not written yet.
    """

    warehouse: Warehouse
    contracts: Contracts
    run_id: str
    full_refresh: bool
    state: GoldState
    before: Version
    definition: str
    consumed: Mapping[str, Version]
    versions: Mapping[str, Mapping[str, Version]]
    news: Mapping[str, Mapping[str, Version]]
    changed: ChangedKeys
    feed: GoldFeed
    stack: ExitStack
    results: list[Result] = field(default_factory=list)

    @property
    def passed(self) -> Mapping[str, Version]:
        """The commits of silver's tables that last passed gate 2, by the rules that it has now.

        None in a full refresh, which judges whole tables.
        """
        return {} if self.full_refresh else self.state.passed.under(rules_of_tables(self.contracts.gold_gate))

    @property
    def empty(self) -> frozenset[Version]:
        """The silver tables, as they are now, that have no file."""
        return frozenset(
            one for of_feeds in self.versions.values() for one in of_feeds.values() if not one.size_in_bytes
        )

    def write_results(self) -> None:
        """Append the verdicts of gate 2 to `quality.results`, once, in one commit."""
        if self.results:
            self.warehouse.append(RESULTS.name, result_rows(self.warehouse.spark, self.results))
            self.results.clear()


def with_news(
    versions: Mapping[str, Mapping[str, Version]], *, consumed: Mapping[str, Version]
) -> dict[str, Mapping[str, Version]]:
    """The sources of which a silver table has commits that gold does not have: source, feed, and its last commit."""
    return {
        name: now
        for name, now in versions.items()
        if any(consumed.get(version.table) != version for version in now.values())
    }


def versions_now(warehouse: Warehouse, source: GoldSource) -> dict[str, Version]:
    """The last commit of the table of each feed."""
    return {feed: current(warehouse, f"silver.{feed}") for feed in source.feeds}


def definition_of(tables: GoldTables, *, created_ms: int) -> str:
    """The definition of gold's orders: this table, by this contract."""
    contract = tables.model_dump_json(exclude={"publication", "marts", "joins"})
    return f"{created_ms} {sha256(contract.encode()).hexdigest()[:16]}"


def goes_on(now: Mapping[str, Version], consumed: Mapping[str, Version]) -> bool:
    """Whether gold has an earlier commit of each of these very tables."""
    before = {version.table: consumed.get(version.table) for version in now.values()}
    return all((known := before[version.table]) is not None and known.goes_on_to(version) for version in now.values())
