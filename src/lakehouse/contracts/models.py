"""Contracts: topics, feeds, tables and gates as frozen typed models, one a YAML file. Imports without pyspark.

`lakehouse.contracts.files` reads them from a folder, `lakehouse.contracts.checks` compares them with one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lakehouse.contracts.base import Model
from lakehouse.contracts.column_types import ArrayType, ColumnSource, ColumnType, DecimalType, SimpleType
from lakehouse.contracts.thresholds import Thresholds
from lakehouse.registered import RegisteredSchema, SchemaIds


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


# Names become identifiers of tables and columns in Spark SQL: nothing else may be in them.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Pattern = Annotated[str, AfterValidator(_compiles)]
TableName = Annotated[str, StringConstraints(pattern=r"^[^.\x00-\x1f]+\..+$")]
PublishedColumn = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$")]
FieldPrefix = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")]
SourceKind = Literal["postgresql", "mysql", "mariadb"]


class StartAtTimestamp(Model):
    """Start at the first record of every partition that is not older than a time."""

    timestamp: datetime = Field(strict=False)
    """ISO 8601; without a zone it is UTC."""


class StartAtOffsets(Model):
    """Start at these offsets: topic, partition, offset. Partitions that are not named start at the earliest record."""

    offsets: dict[TopicName, dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]] = Field(min_length=1)


def _not_by_field(value: Any) -> Any:
    if value == "skip-field":
        raise ValueError(
            "skip-field would make a NULL of what is not NULL, and nobody would see it: write skip-record or fail"
        )
    return value


Start = Literal["earliest", "latest"] | StartAtTimestamp | StartAtOffsets


class FeedTopics(Model):
    """A table's changes in Kafka: the topics that state them, and how."""

    topics: tuple[TopicName, ...] = Field(default=(), strict=False)
    """The topics, by name. All of them must be on the broker."""
    topic_patterns: tuple[Pattern, ...] = Field(default=(), strict=False)
    """More topics, as regular expressions that match whole names. Each must match a topic of the broker."""
    envelope: Literal["table", "outbox"]
    """table: changes of a table's rows. outbox: events of an outbox table. Each record shows its own shape."""
    tables: tuple[TableName, ...] = Field(default=(), strict=False)
    """The tables that the records may be of, as Debezium's `table.include.list` names them: `schema.table` of
    PostgreSQL, `database.table` of MySQL and MariaDB. They distinguish feeds that share a topic. A record whose source
    block names a table of no feed is of `other_tables`. Without these and `table_patterns`, the table is not
    checked."""
    table_patterns: tuple[Pattern, ...] = Field(default=(), strict=False)
    """More tables, as regular expressions that match whole names: for a feed that is sharded."""
    other_tables: Literal["quarantine", "ignore"] = "quarantine"
    """What becomes of a record of a table that no feed of its topic names."""
    aggregate_types: tuple[str, ...] = Field(default=(), strict=False)
    """Of an outbox whose table is read without the EventRouter: the `aggregatetype`s of this feed; default: all."""
    snapshots: Literal["full", "partial"] = "full"
    """partial: the connector's snapshots may leave out rows (`snapshot.select.statement.overrides`), so they never
    state that a row is gone."""
    unavailable_value_placeholder: str = Field(default="__debezium_unavailable_value", min_length=1)
    """The connector's `unavailable.value.placeholder`: stands for a large value that a change did not touch."""
    decimal_handling_mode: Literal["precise", "string", "double"] = "precise"
    """The connector's `decimal.handling.mode`. This and all that follow are without meaning for an outbox."""
    decimal_format: Literal["base64", "numeric"] = "base64"
    """The JSON converter's `decimal.format`: how decimals are written where they are `precise`."""
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    """The connector's `time.precision.mode`."""
    bigint_unsigned_handling_mode: Literal["long", "precise"] = "long"
    """The connector's `bigint.unsigned.handling.mode`."""
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    """The connector's `binary.handling.mode`."""
    interval_handling_mode: Literal["numeric", "string"] = "numeric"
    """The connector's `interval.handling.mode`."""
    parse_errors: Annotated[Literal["skip-record", "fail"], BeforeValidator(_not_by_field)] = "skip-record"
    """What becomes of a record that cannot be read, or has a value that does not fit. skip-record: it goes to
    quarantine, and the others go on. fail: the table is suspended."""
    timestamp_format: Literal["any", "sql", "iso-8601"] = "any"
    """How times are written as text: sql `2024-01-31 10:00:00`, iso-8601 `2024-01-31T10:00:00`; any: as it comes."""
    map_null_key: Literal["fail", "drop", "literal"] = "fail"
    """What becomes of a key that is NULL in a column of `source_type: map`. fail: the value does not fit. drop: the
    entry is left out. literal: `map_null_key_literal` stands for the key."""
    map_null_key_literal: str = "null"
    """The key in place of NULL."""

    @model_validator(mode="after")
    def _check(self) -> FeedTopics:
        if not self.topics and not self.topic_patterns:
            raise ValueError("a feed needs `topics` or `topic_patterns`")
        return self

    def has_topic(self, topic: str) -> bool:
        """Whether the topic is one of this feed's."""
        return topic in self.topics or any(re.fullmatch(pattern, topic) for pattern in self.topic_patterns)

    def may_share(self, other: FeedTopics) -> bool:
        """Whether some topic may have records of both feeds."""
        if not self.topic_patterns and not other.topic_patterns:
            return not set(self.topics).isdisjoint(other.topics)
        named = any(map(other.has_topic, self.topics)) or any(map(self.has_topic, other.topics))
        return named or bool(self.topic_patterns and other.topic_patterns)


class Source(Model):
    """One source database: all its topics land in `bronze.<name>_events`."""

    kind: SourceKind
    """The database, which decides what a source position is."""
    start: Start = "earliest"
    """Where the very first run begins; every later one continues where the one before ended."""
    feeds: dict[Name, FeedTopics] = Field(min_length=1)
    """The feeds; each has a silver table of its own name."""
    ignored_topics: tuple[TopicName, ...] = Field(default=(), strict=False)
    """Heartbeats, transactions, schema changes: read into bronze when they exist; silver counts and ignores them."""

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics that the feeds name."""
        return tuple(topic for feed in self.feeds.values() for topic in feed.topics)

    def names(self, topic: str) -> bool:
        """Whether the contract gives this topic to the source."""
        return topic in self.ignored_topics or any(feed.has_topic(topic) for feed in self.feeds.values())

    def assigned(self, known: Iterable[str]) -> tuple[str, ...]:
        """Of the topics that a broker has, those that this source reads."""
        return tuple(sorted(topic for topic in known if self.names(topic)))


class Topics(Model):
    """`bronze/topics.yaml`: the source databases and the Kafka topics with their changes."""

    sources: dict[Name, Source] = Field(min_length=1)


EpochUnit = Literal["millis", "micros", "nanos"]
Metadata = Literal[
    "schema",
    "ingestion-timestamp",
    "source.timestamp",
    "source.database",
    "source.schema",
    "source.table",
    "source.properties",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "headers",
]


class Column(Model):
    """One column of a silver table: its type, and how the value travels in the change event. A type alone will do."""

    type: ColumnType
    fields: tuple[str, ...] = Field(default=(), strict=False)
    """The fields of the event that may hold the value: the first that is present counts. Default: the column's name."""
    from_topic: Pattern | None = None
    """The value is what the one group of this regular expression matches in the topic's name: which shard it is."""
    metadata: Metadata | None = None
    """The value is not of the row: it is what the envelope or Kafka says of the record, by Flink's name for it
    (docs/from-flink.md)."""
    source_type: ColumnSource | None = None
    """What the column is in its database, where the type alone does not say: `time`, `numeric(65,30)`, `bit(8)` …"""
    epoch_unit: EpochUnit | None = None
    """What an integer counts that stands for a time. Default: what the feed's `time_precision_mode` says, else micros.
    Under `adaptive`, a column of at most three digits behind the second has millis."""
    allow_cut_digits: bool = False
    """The connector may have cut digits of this column before they came here, and that is accepted."""
    optional: bool = False
    """The events may all lack the field: then it is NULL. Otherwise a field that no event has is an error."""
    sensitive: bool = False
    """Its values are for the tables alone: no report, no list and no sample of keys shows them."""

    @model_validator(mode="before")
    @classmethod
    def _from_type(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Column) else {"type": value}

    @property
    def is_of_row(self) -> bool:
        """Whether its value stands in a field of the event's row."""
        return self.from_topic is None and self.metadata is None

    @property
    def element_type(self) -> DecimalType | SimpleType:
        """Of an array the type of what it holds, else the type."""
        return self.type.element if isinstance(self.type, ArrayType) else self.type

    @property
    def source_name(self) -> str:
        """The name of the source type without its sizes; empty without one."""
        return self.source_type.name if self.source_type else ""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [whole["properties"]["type"], whole]}


class MaxRejectRatio(Model):
    """How many of a batch's records may be rejected before the table is suspended: beyond both numbers it is."""

    share: float = Field(gt=0, le=1, strict=False)
    """Of the changes and truncates of a batch."""
    records: int = Field(default=0, ge=0)
    """So many never suspend the table: a small batch may be all bad."""


class SilverTable(Model):
    """One silver table: its keys and columns, and how the changes of its feed are applied."""

    keys: tuple[Name, ...] = Field(default=(), strict=False)
    """The columns that make up the key. A table without a primary key has a declared one, or is `append_only`."""
    append_only: bool = False
    """The table is the list of its changes, one row each: for a table without columns that identify a row."""
    sequence_by: Literal["source_position", "kafka_offset"]
    """source_position: the database's own order. kafka_offset: for feeds whose events carry no position."""
    payload: Literal["full", "partial"] = "full"
    """Of an outbox: whether every event is a whole row, or leaves the columns that it does not name as they are."""
    apply_as_deletes: tuple[str, ...] = Field(default=(), strict=False)
    """Of an outbox: the event types that delete the row. In a table feed the operation `d` does."""
    max_reject_ratio: MaxRejectRatio | None = None
    """Beyond it, nothing of the batch is applied and the table is suspended; default: any number may be rejected."""
    max_record_bytes: int = Field(default=8_000_000, ge=1)
    """A record whose key and value have more bytes goes to quarantine, unless it deletes its row. So a row of silver
    fits the published topic: its `max_message_bytes` is higher by 65,536 at least."""
    columns: dict[Name, Column] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_an_identity(self) -> SilverTable:
        if bool(self.keys) == self.append_only:
            raise ValueError("a table needs `keys`, or `append_only: true` without keys")
        return self

    @property
    def sensitive_columns(self) -> frozenset[str]:
        """The columns whose values are for the table alone."""
        return frozenset(name for name, column in self.columns.items() if column.sensitive)

    def fields_of(self, column: str) -> tuple[str, ...]:
        """The fields of the event that may hold this column, the preferred one first."""
        return self.columns[column].fields or (column,)


class SilverTables(Model):
    """`silver/tables.yaml`: the silver tables, each of the feed of its name."""

    tables: dict[Name, SilverTable] = Field(min_length=1)


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

    @property
    def key_fields(self) -> tuple[tuple[str, ...], ...]:
        """Of each column of the key that stands in the records, the fields that may hold it."""
        return key_fields(self)

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

    feeds: tuple[Name, ...] = Field(min_length=1, strict=False)
    expectations: tuple[Expectation, ...] = Field(min_length=1, strict=False)

    def rules(self, feed: str) -> tuple[Expectation, ...]:
        """The expectations that a feed must meet; none for a feed that the gate does not name."""
        return tuple(rule for rule in self.expectations if self.is_about(rule, feed))

    def is_about(self, rule: Expectation, feed: str) -> bool:
        """Whether the rule is asked about this feed."""
        return feed in self.feeds and (not rule.feeds or feed in rule.feeds)


class TableGate(Gate):
    """`gold/gate.yaml`: what the silver tables must meet before gold takes them, and gold before it is published."""

    expectations: tuple[TableExpectation, ...] = Field(min_length=1, strict=False)
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
    """`silver.<feed>`, `gold.unified_orders` or `gold.<mart>`. Its key is the record's key: of a feed its `keys`, of
    the unified orders `composite_key`, of a mart its groups."""
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


class GoldTables(Model):
    """`gold/tables.yaml`: what the unified orders are made of, and where they are published."""

    key: Name
    """The column that numbers the orders of a source; the only key of every feed that gold takes."""
    columns: dict[Name, ColumnType] = Field(min_length=1)
    """The columns that gold takes from the feeds, in the type they have there; NULL where a feed has no such column."""
    sources: dict[Name, GoldSource] = Field(min_length=1)
    fulfillment: Fulfillment | None = None
    """Without it, `fulfillment_status` is NULL."""
    marts: dict[Name, Mart] = Field(default_factory=dict)
    """Tables `gold.<name>`, kept up with `gold.unified_orders`."""
    publication: Publication
    upsert_topics: dict[Name, UpsertTopic] = Field(default_factory=dict)
    """More compacted topics, each with the rows of one table."""


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

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """Every feed that has a silver table, by name."""
        return {
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
