"""What every batch of one source needs to know: its feeds, those that rules have made among them, and its rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import DataFrame

from lakehouse.batches import release
from lakehouse.contracts.models import Contracts, Expectation, Feed
from lakehouse.delta.address import Address
from lakehouse.delta.tables import Warehouse
from silver.accounts.audit import StateCache
from silver.by_rule.tables import DiscoveredTables, TableInference
from silver.fold.erased import ErasedKeys
from silver.order.ranges import RecordRange
from silver.order.state import Stored, SuspensionCause
from silver.rejects.quarantine import contract_version
from silver.rejects.suspended import Suspension
from silver.schema.schemas import Schemas


class SourceFeeds(NamedTuple):
    """The feeds of a source, and those whose tables rules could not make yet."""

    feeds: Mapping[str, Feed]
    undiscovered: Mapping[str, Feed]


@dataclass(frozen=True)
class SilverJob:
    """What every batch of one source needs to know.

    `accepted`: the tables whose rejects go to quarantine, however many they are. `memory`: of the source's state.
    `schemas`: of the registry, as far as they are known. `discovered`: the tables that rules have made, of all sources.
    `accepts_missing`: whether it goes on without records that bronze has lost. `counted`: the audit rows that its
    batches have written so far. `erased`: by table the keys whose rows were erased.
    """

    source: str
    contracts: Contracts
    address: Address
    run: str
    accepted: frozenset[str] = frozenset()
    memory: StateCache = field(default_factory=StateCache)
    schemas: Schemas = field(default_factory=Schemas)
    discovered: DiscoveredTables = field(default_factory=DiscoveredTables)
    accepts_missing: bool = False
    counted: list[Stored] = field(default_factory=list)
    erased: Mapping[str, ErasedKeys] = field(default_factory=dict)
    _feeds_by_change: dict[int, SourceFeeds] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """The feeds of the source, by name, with the schemas that there are."""
        return self._of_source.feeds

    @property
    def undiscovered(self) -> Mapping[str, Feed]:
        """The feeds whose tables rules could not make yet."""
        return self._of_source.undiscovered

    @property
    def _of_source(self) -> SourceFeeds:
        """Put together again when a table was made, or changed."""
        if self.discovered.changes not in self._feeds_by_change:
            discovered = list(self.discovered.known.values())  # a copy: another source may make a table meanwhile
            contracts = self.contracts.with_discovered(discovered) if discovered else self.contracts
            known = {"schemas": self.schemas.known}
            feeds = {name: one.model_copy(update=known) for name, one in contracts.of_source(self.source).items()}
            self._feeds_by_change.clear()
            self._feeds_by_change[self.discovered.changes] = SourceFeeds(feeds, contracts.undiscovered(self.source))
        return self._feeds_by_change[self.discovered.changes]

    def count(self, written: Iterable[Stored]) -> None:
        """Remember what rows of `ops.batches` say of records that were read, or moved to another outcome."""
        self.counted.extend(row for row in written if row.get("read") is not None)

    def learn(self, warehouse: Warehouse, records: DataFrame, record_ranges: Sequence[RecordRange]) -> None:
        """Know the schemas of what is there of the feeds' topics, and the tables that rules make of topics."""
        source = self.contracts.topics.sources[self.source]
        of_feeds = [reach for reach in record_ranges if reach.topic_partition[0] not in source.ignored_topics]
        self.schemas.learn(warehouse, {number for reach in of_feeds for number in reach.schema_ids})
        if source.by_rule:
            self.table_inference(warehouse).make(
                records, {reach.topic_partition: (reach.first, reach.last) for reach in record_ranges}
            )

    def table_inference(self, warehouse: Warehouse) -> TableInference:
        """What makes and changes tables by rule."""
        return TableInference(warehouse, self.source, self.contracts, self.discovered, self.schemas.known)

    def cause(self, feed: Feed, suspension: Suspension) -> SuspensionCause:
        """The suspension of a feed's table, as it is written down."""
        return SuspensionCause(suspension.rule, suspension.why, self.contract(feed))

    def contract(self, feed: Feed) -> str:
        """What decides, beside its records, whether a table goes on: the release, its contract, what is accepted."""
        contract = contract_version(feed.model_copy(update={"schemas": None}), self.rules(feed.name))
        return f"{release()} {contract}{' rejects' if feed.name in self.accepted else ''}"

    def rules(self, feed: str) -> Sequence[Expectation]:
        """The row rules of gate 1 for a feed."""
        return self.contracts.silver_gate.rules(feed)
