"""Contracts: topics, feeds, tables and gates as frozen typed models, one a YAML file. Imports without pyspark.

`lakehouse.contracts.files` reads them from a folder, `lakehouse.contracts.checks.references` compares them with one
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from lakehouse.contracts.by_rule import DiscoveredTable, may_make
from lakehouse.contracts.joins import Join
from lakehouse.contracts.parts.base import Model
from lakehouse.contracts.parts.column_types import ColumnType
from lakehouse.contracts.parts.names import Name, TopicName
from lakehouse.contracts.tables import SilverTable, SilverTables
from lakehouse.contracts.thresholds import Thresholds
from lakehouse.contracts.topics import FeedTopics, Source, SourceKind, Topics
from lakehouse.errors import SettingsError
from lakehouse.registered import RegisteredSchema, SchemaIds

PublishedColumn = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$")]
FieldPrefix = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")]


class Sibling(Model):
    """A feed as another one of its source sees it, with which it may share topics.

    `keys`: of each column of its key the fields that may hold it. `is_first`: whether the contract names it first.
    """

    topics: FeedTopics
    keys: tuple[tuple[str, ...], ...]
    is_first: bool


class Feed(FeedTopics, SilverTable):
    """A feed with its silver table: what silver needs to know of it, put together from both contracts."""

    name: Name
    source: Name
    kind: SourceKind
    siblings: tuple[Sibling, ...] = ()
    """The feeds with which it may share topics."""
    schemas: dict[int, RegisteredSchema] | None = None
    """The schemas of the registry that are known, by id; None where no registry is named."""
    discovered: DiscoveredTable | None = None
    """What a rule knows of it, of a feed that a rule has made: then a record that has other columns says so."""

    @property
    def key_fields(self) -> tuple[tuple[str, ...], ...]:
        """Of each column of the key that stands in the records, the fields that may hold it."""
        return key_fields(self)

    @property
    def history_table(self) -> str:
        """Where the versions of its rows are, if it `has_history`."""
        return f"silver.{self.name}_history"

    @property
    def silver_tables(self) -> tuple[str, ...]:
        """Its silver table, and that of its history where it has one."""
        return (f"silver.{self.name}", *([self.history_table] if self.has_history else []))

    @property
    def is_sharded(self) -> bool:
        """Whether the topic is part of the key: then every topic has rows of its own."""
        return any(self.columns[key].from_topic is not None for key in self.keys)


def key_fields(table: SilverTable) -> tuple[tuple[str, ...], ...]:
    """Of each column of the key that stands in the records, the fields that may hold it."""
    return tuple(table.fields_of(key) for key in table.keys if table.columns[key].is_of_row)


OnFailure = Literal["warn", "quarantine", "fail"]


class Expectation(Model):
    """One expectation in Great Expectations' own name and arguments, with what happens when it is not met."""

    name: Name
    type: Annotated[str, StringConstraints(pattern=r"^(expect_[a-z_]+|unexpected_rows_expectation)$")]
    kwargs: dict[str, Any]
    on_failure: OnFailure
    description: str
    feeds: tuple[Name, ...] = Field(default=(), strict=False)
    """The feeds it is about; default: all of its gate."""

    def is_met(self, *, failed: int, evaluated: int) -> bool:
        """Whether so few failures of so many rows are within what `mostly` allows; by default none is."""
        return not evaluated or (evaluated - failed) / evaluated >= self.kwargs.get("mostly", 1)


class TableExpectation(Expectation):
    """An expectation about a table, or about the rows of it that changed."""

    scope: Literal["table", "changes"] = "table"
    """table: it is about all rows. changes: about the rows of the keys that changed since the table last passed with
    these rules; about all where they are unknown. For what is true of a table when it is true of each key by itself."""


class Gate(Model):
    """A `gate.yaml`: for each feed it names, the expectations that its rows or its table must meet."""

    feeds: tuple[Name, ...] = Field(default=(), strict=False)
    expectations: tuple[Expectation, ...] = Field(default=(), strict=False)

    def rules(self, feed: str) -> tuple[Expectation, ...]:
        """The expectations that a feed must meet; none for a feed that the gate does not name."""
        return tuple(rule for rule in self.expectations if self.is_about(rule, feed))

    def is_about(self, rule: Expectation, feed: str) -> bool:
        """Whether the rule is asked about this feed."""
        return feed in self.feeds and (not rule.feeds or feed in rule.feeds)


class TableGate(Gate):
    """`gold/gate.yaml`: what the silver tables must meet before gold takes them, and gold before it is published."""

    expectations: tuple[TableExpectation, ...] = Field(default=(), strict=False)
    publication: tuple[TableExpectation, ...] = Field(default=(), strict=False)
    """The expectations that the rows of each source in `gold.unified_orders` must meet before they are published."""

    def rules(self, feed: str) -> tuple[TableExpectation, ...]:
        """The expectations that the table of a feed must meet; none for a feed that the gate does not name."""
        return tuple(rule for rule in self.expectations if self.is_about(rule, feed))


class GoldSource(Model):
    """What one source database gives to gold."""

    name: Name
    """Its `source_database` in gold."""
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]*$")]
    """The beginning of its composite keys: `PG` makes `PG-1001`."""
    feeds: tuple[Name, ...] = Field(min_length=1, strict=False)
    """Its feeds; of every key, the first that knows it is taken, deleted or not."""


class Fulfillment(Model):
    """How `fulfillment_status` follows from a column."""

    column: Name
    values: dict[str, str]
    """Value of the column: fulfillment_status."""
    otherwise: str
    """For every other value, and for none."""


PublicationFormat = Literal["json", "connect-json", "avro"]


class CompactedTopic(Model):
    """A topic that keeps the last record of every key, as it is created when it is absent."""

    topic: TopicName
    format: PublicationFormat = "json"
    """json: flat, for every reader. connect-json: with its schema, for Kafka Connect's BigQuery sink. avro: in the
    Confluent wire format, with a schema registry. After a change of the format every row is sent again, and the keys of
    the old format are deleted."""
    partitions: int = Field(ge=1)
    replication_factor: int = Field(ge=1)
    max_message_bytes: int = Field(default=8_388_608, ge=1_000, le=1_000_000_000)
    """The topic's `max.message.bytes`: with less, a topic that is there is refused. Higher than the `max_record_bytes`
    of every feed whose rows it gets, by 65,536 at least. A change of it sends nothing again."""

    @property
    def progress_topic(self) -> str:
        """The topic with the publish positions, which are written in the same transactions."""
        return f"{self.topic}.progress"


class Publication(CompactedTopic):
    """The topic that gold is published to."""


class UpsertTopic(CompactedTopic):
    """A topic with the rows of one table as they are: of every key its row, or a null value once there is none."""

    table: Annotated[str, StringConstraints(pattern=r"^(silver|gold)\.[a-z][a-z0-9_]*$")]
    """`silver.<feed>`, `gold.unified_orders`, `gold.<mart>` or `gold.<join>`. Its key is the record's key: of a feed
    its `keys`, of the unified orders `composite_key`, of a mart its groups, of a join the key of its own table."""
    key_prefix: FieldPrefix = ""
    """Before the name of each field of the record's key."""
    value_prefix: FieldPrefix = ""
    """Before the name of each field of the record's value."""
    value_fields: Literal["all", "except_key"] = "all"
    """except_key: the columns of the key stand in the record's key alone."""
    columns: tuple[PublishedColumn, ...] = Field(default=(), strict=False)
    """The columns of the value, and of silver's own `_op`, `_source_ts`, `_topic`, `_partition`, `_offset` and
    `_applied_at`. Default: all of the contract that are not sensitive. A sensitive one has to be named, also when it is
    in the key."""


class Mart(Model):
    """A table of gold with one row for every group of orders: how many there are, and sums of their columns."""

    day: Name | None = None
    """The column whose date, in UTC, is the group column `day`; without it there is none."""
    by: tuple[Name, ...] = Field(default=(), strict=False)
    """The other columns that make a group; NULL is a group of its own."""
    count: Name
    """The name of the column with the number of orders."""
    sums: dict[Name, Name] = Field(default_factory=dict)
    """Column of the mart: the column of gold that it is the sum of; NULL where no order of the group has a value."""


NO_UNIFIED = "There are no unified orders: gold/tables.yaml does not declare them."
# What unified orders are declared by, all of it, and what only they have.
_OF_UNIFIED, _WITH_UNIFIED = ("key", "columns", "sources", "publication"), ("fulfillment", "marts")


class GoldTables(Model):
    """`gold/tables.yaml`: what the unified orders are made of, and where they are published; more tables and topics.

    Each may be left out. Unified orders have `key`, `columns`, `sources` and `publication`, and only they have
    `fulfillment` and `marts`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "dependentRequired": {
                name: [other for other in _OF_UNIFIED if other != name] for name in (*_OF_UNIFIED, *_WITH_UNIFIED)
            }
        }
    )

    key: Name = ""
    """The column that numbers the orders of a source; the only key of every feed that gold takes."""
    columns: dict[Name, ColumnType] = Field(default_factory=dict, min_length=1)
    """The columns that gold takes from the feeds, in the type they have there; NULL where a feed has no such column."""
    sources: dict[Name, GoldSource] = Field(default_factory=dict, min_length=1)
    fulfillment: Fulfillment | None = None
    """Without it, `fulfillment_status` is NULL."""
    marts: dict[Name, Mart] = Field(default_factory=dict)
    """Tables `gold.<name>`, kept up with `gold.unified_orders`."""
    joins: dict[Name, Join] = Field(default_factory=dict)
    """More tables `gold.<name>`, kept up with the silver tables that they join."""
    publication: Publication | None = None
    """The topic of the unified orders."""
    upsert_topics: dict[Name, UpsertTopic] = Field(default_factory=dict)
    """More compacted topics, each with the rows of one table."""

    @model_validator(mode="after")
    def _all_of_unified(self) -> GoldTables:
        given = [name for name in (*_OF_UNIFIED, *_WITH_UNIFIED) if getattr(self, name)]
        absent = [name for name in _OF_UNIFIED if name not in given]
        if given and absent:
            raise ValueError(
                f"the unified orders are declared in part: add {', '.join(absent)}, or leave out {', '.join(given)}"
            )
        return self

    @property
    def has_unified(self) -> bool:
        """Whether there are unified orders."""
        return self.publication is not None

    @property
    def unified_topic(self) -> Publication:
        """The topic of the unified orders. Raises SettingsError where there are none."""
        if self.publication is None:
            raise SettingsError(NO_UNIFIED, hint="docs/gold.md says how they are declared.")
        return self.publication

    @property
    def unified_tables(self) -> tuple[str, ...]:
        """The tables of the unified orders by their whole names: theirs, and the marts; none where there are none."""
        return ("gold.unified_orders", *(f"gold.{mart}" for mart in self.marts)) if self.has_unified else ()

    @property
    def published_topics(self) -> tuple[CompactedTopic, ...]:
        """Every topic that gold is published to, that of the unified orders first."""
        return (*(() if self.publication is None else (self.publication,)), *self.upsert_topics.values())


class Contracts(Model):
    """All contracts of a deployment."""

    topics: Topics
    silver: SilverTables
    silver_gate: Gate
    gold: GoldTables
    gold_gate: TableGate
    thresholds: Thresholds
    schema_ids: dict[str, SchemaIds] = Field(default_factory=dict)
    """By topic, once they are asked for: of the topics that are published in Avro."""
    discovered: dict[Name, DiscoveredTable] = Field(default_factory=dict)
    """The tables that rules have made, by name, once they are read."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Contracts:
        """A copy, whose feeds are put together again."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("feeds", None)
        return copied

    def with_discovered(self, discovered: Iterable[DiscoveredTable]) -> Contracts:
        """The same with these tables in place of those that it had by rules.

        Left out are tables whose rule is gone, and those that a contract declares itself, by topic or by name.
        """
        base = self.declared
        sources = base.topics.sources
        taken = {
            one.name: one
            for one in discovered
            if one.source in sources
            and sources[one.source].rule_of(one.topic) == one.rule
            and one.name not in base.silver.tables
        }
        return base.model_copy(update={"discovered": taken})

    @property
    def declared(self) -> Contracts:
        """The same without the tables that rules have made."""
        return self.model_copy(update={"discovered": {}}) if self.discovered else self

    def may_be_discovered(self, name: str) -> bool:
        """Whether a rule may make a silver table of this name, which is not there."""
        return name not in self.feeds and any(may_make(source, name) for source in self.topics.sources.values())

    @cached_property
    def feeds(self) -> Mapping[str, Feed]:
        """Every feed that has a silver table, by name."""
        declared = {
            name: Feed(
                name=name,
                source=source_name,
                kind=source.kind,
                siblings=self._siblings(source, name),
                **vars(feed),
                **vars(self.silver.tables[name]),
            )
            for source_name, source in self.topics.sources.items()
            for name, feed in source.feeds.items()
            if name in self.silver.tables
        }
        return declared | {
            name: self._made_feed(discovered) for name, discovered in self.discovered.items() if discovered.is_made
        }

    def undiscovered(self, source: str) -> Mapping[str, Feed]:
        """The feeds of a source whose tables rules could not make yet, by name: their records wait."""
        of_source = {name: discovered for name, discovered in self.discovered.items() if discovered.source == source}
        return {name: self._made_feed(discovered) for name, discovered in of_source.items() if not discovered.is_made}

    def _made_feed(self, discovered: DiscoveredTable) -> Feed:
        source = self.topics.sources[discovered.source]
        rule = source.by_rule[discovered.rule]
        return Feed(
            name=discovered.name,
            source=discovered.source,
            kind=source.kind,
            discovered=discovered,
            **vars(discovered.feed(rule)),
            **vars(discovered.silver_table(rule)),
        )

    def _siblings(self, source: Source, name: str) -> tuple[Sibling, ...]:
        """The feeds of the source that may share topics with this one."""
        order = list(source.feeds)
        return tuple(
            Sibling(
                topics=FeedTopics(**vars(feed)),
                keys=key_fields(self.silver.tables[other]),
                is_first=order.index(other) < order.index(name),
            )
            for other, feed in source.feeds.items()
            if other != name and other in self.silver.tables and feed.may_share(source.feeds[name])
        )

    @property
    def sensitive_in_gold(self) -> frozenset[str]:
        """The columns of `gold.unified_orders` that are sensitive in a feed that gold takes."""
        feeds = [self.silver.tables[feed] for source in self.gold.sources.values() for feed in source.feeds]
        named = {name for feed in feeds for name in feed.sensitive_columns}
        return frozenset(named | ({"composite_key"} if self.gold.key in named else set()))

    def of_source(self, source: str) -> Mapping[str, Feed]:
        """The feeds of one source, by name."""
        return {name: feed for name, feed in self.feeds.items() if feed.source == source}
