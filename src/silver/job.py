"""What every batch of one source needs to know: its feeds, those that rules have made among them, and its rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import DataFrame

from lakehouse.batches import release
from lakehouse.contracts.models import Contracts, Expectation, Feed
from lakehouse.spark.tables import Address, Warehouse
from silver.audit import Memory
from silver.by_rule.tables import MadeTables, Making
from silver.order.ranges import Reach
from silver.order.state import Stored, SuspensionCause
from silver.quarantine import contract_version
from silver.schemas import Schemas
from silver.suspended import Suspension


class OfSource(NamedTuple):
    """The feeds of a source, and those whose tables rules could not make yet."""

    feeds: Mapping[str, Feed]
    not_made: Mapping[str, Feed]


@dataclass(frozen=True)
class SilverJob:
    """What every batch of one source needs to know.

    `accepted`: the tables whose rejects go to quarantine, however many they are. `memory`: of the source's state.
    `schemas`: of the registry, as far as they are known. `made`: the tables that rules have made, of all sources.
    `accepts_missing`: whether it goes on without records that bronze has lost. `counted`: the audit rows that its
    batches have written so far.
    """

    source: str
    contracts: Contracts
    address: Address
    run: str
    accepted: frozenset[str] = frozenset()
    memory: Memory = field(default_factory=Memory)
    schemas: Schemas = field(default_factory=Schemas)
    made: MadeTables = field(default_factory=MadeTables)
    accepts_missing: bool = False
    counted: list[Stored] = field(default_factory=list)
    _put_together: dict[int, OfSource] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """The feeds of the source, by name, with the schemas that there are."""
        return self._of_source.feeds

    @property
    def not_made(self) -> Mapping[str, Feed]:
        """The feeds whose tables rules could not make yet."""
        return self._of_source.not_made

    @property
    def _of_source(self) -> OfSource:
        """Put together again when a table was made, or changed."""
        if self.made.changes not in self._put_together:
            made = list(self.made.known.values())  # a copy: another source may make a table meanwhile
            contracts = self.contracts.with_made(made) if made else self.contracts
            known = {"schemas": self.schemas.known}
            feeds = {name: one.model_copy(update=known) for name, one in contracts.of_source(self.source).items()}
            self._put_together.clear()
            self._put_together[self.made.changes] = OfSource(feeds, contracts.not_made(self.source))
        return self._put_together[self.made.changes]

    def count(self, written: Iterable[Stored]) -> None:
        """Remember what rows of `ops.batches` say of records that were read, or moved to another outcome."""
        self.counted.extend(row for row in written if row.get("read") is not None)

    def learn(self, warehouse: Warehouse, records: DataFrame, reaches: Sequence[Reach]) -> None:
        """Know the schemas of what is there of the feeds' topics, and the tables that rules make of topics."""
        source = self.contracts.topics.sources[self.source]
        of_feeds = [reach for reach in reaches if reach.place[0] not in source.ignored_topics]
        self.schemas.learn(warehouse, {number for reach in of_feeds for number in reach.schema_ids})
        if source.by_rule:
            self.making(warehouse).make(records, {reach.place: (reach.first, reach.last) for reach in reaches})

    def making(self, warehouse: Warehouse) -> Making:
        """What makes and changes tables by rule."""
        return Making(warehouse, self.source, self.contracts, self.made, self.schemas.known)

    def cause(self, feed: Feed, suspension: Suspension) -> SuspensionCause:
        """The suspension of a feed's table, as it is written down."""
        return SuspensionCause(suspension.rule, suspension.why, self.contract(feed))

    def contract(self, feed: Feed) -> str:
        """What decides, beside its records, whether a table goes on: the release, its contract, what is accepted."""
        contract = contract_version(feed.model_copy(update={"schemas": None}), self.rules(feed.name))
        accepted = (" rejects", feed.name in self.accepted), (" columns", feed.name in self.made.accepted)
        return f"{release()} {contract}" + "".join(what for what, is_accepted in accepted if is_accepted)

    def rules(self, feed: str) -> Sequence[Expectation]:
        """The row rules of gate 1 for a feed."""
        return self.contracts.silver_gate.rules(feed)
