"""`bronze/topics.yaml`: the source databases, and the Kafka topics with their changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from lakehouse.contracts.parts.base import Model
from lakehouse.contracts.parts.names import Name, Pattern, Route, TableName, TopicName
from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from lakehouse.contracts.tables import MaxRejectRatio

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


ParseErrors = Annotated[Literal["skip-record", "fail"], BeforeValidator(_not_by_field)]
Start = Literal["earliest", "latest"] | StartAtTimestamp | StartAtOffsets


class ConnectorOptions(Model):
    """What a connector does otherwise than by default, and what becomes of what cannot be read."""

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
    parse_errors: ParseErrors = "skip-record"
    """What becomes of a record that cannot be read, or has a value that does not fit. skip-record: it goes to
    quarantine, and the others go on. fail: the table is suspended."""
    timestamp_format: Literal["any", "sql", "iso-8601"] = "any"
    """How times are written as text: sql `2024-01-31 10:00:00`, iso-8601 `2024-01-31T10:00:00`; any: as it comes."""
    map_null_key: Literal["fail", "drop", "literal"] = "fail"
    """What becomes of a key that is NULL in a column of `source_type: map`. fail: the value does not fit. drop: the
    entry is left out. literal: `map_null_key_literal` stands for the key."""
    map_null_key_literal: str = "null"
    """The key in place of NULL."""


class FeedTopics(ConnectorOptions):
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
    event_type: str = Field(default="eventType", min_length=1)
    """Of an outbox: the name under which the EventRouter places the event's type (`table.fields.additional.placement`:
    `type:header:eventType`), in a header or in the envelope. Of the outbox's own table it is the column `type`."""

    @model_validator(mode="after")
    def _check(self) -> FeedTopics:
        if not self.topics and not self.topic_patterns:
            raise ValueError("a feed needs `topics` or `topic_patterns`")
        return self

    def has_topic(self, topic: str) -> bool:
        """Whether the topic is one of this feed's."""
        return topic in self.topics or _is_one(topic, self.topic_patterns)

    def may_share(self, other: FeedTopics) -> bool:
        """Whether some topic may have records of both feeds."""
        if not self.topic_patterns and not other.topic_patterns:
            return not set(self.topics).isdisjoint(other.topics)
        named = any(map(other.has_topic, self.topics)) or any(map(self.has_topic, other.topics))
        return named or bool(self.topic_patterns and other.topic_patterns)


class TableRule(ConnectorOptions):
    """The tables of a database without a contract for each: silver makes a table for every topic that has events.

    Keys are those of the records. Columns and their types are what the messages' schemas say (of JSON, or of the schema
    registry), else the topic of schema changes, else what the values are. A feed or table that a contract names itself
    is left to that.
    """

    include: tuple[Pattern, ...] = Field(min_length=1, strict=False)
    """The topics, as regular expressions that match whole names; each has the changes of one table. Names that begin
    with `__` are Kafka's and Debezium's own: they are never meant."""
    exclude: tuple[Pattern, ...] = Field(default=(), strict=False)
    """Topics that are left out of these: bronze does not read them."""
    name: Route = "{database}_{table}"
    """How silver tables are called: {database}, {schema} and {table} are of the source, `<>` is {table}, {topic} is the
    topic. In small letters; what a name cannot have becomes `_`."""
    names: dict[TableName, Name] = Field(default_factory=dict)
    """The names of single tables, by `database.table` (of PostgreSQL `schema.table`)."""
    schema_changes: TopicName | None = None
    """The connector's topic of schema changes (MySQL, MariaDB: `topic.prefix`). Where messages have no schema, columns
    have the types of the database that are stated there."""
    scd_type: Literal[1, 2] = 1
    """As in silver/tables.yaml, of each table with a key: 2 keeps the history of its rows."""
    parse_errors: ParseErrors = "fail"
    """What becomes of a record that cannot be read, or has a value that does not fit. fail: its table is suspended, for
    nobody has declared the columns. skip-record: it goes to quarantine, and the others go on."""
    max_reject_ratio: MaxRejectRatio | None = None
    """As in silver/tables.yaml, of each table."""
    max_record_bytes: int = Field(default=8_000_000, ge=1)
    """As in silver/tables.yaml, of each table."""
    on_schema_change: OnSchemaChange = OnSchemaChange()
    """What becomes of a table whose source changes its columns."""
    on_schema_change_of: dict[TableName, OnSchemaChange] = Field(default_factory=dict)
    """The same of single tables, by `database.table` (of PostgreSQL `schema.table`)."""

    @model_validator(mode="after")
    def _keys_stay(self) -> TableRule:
        if any(one.key == "evolve" for one in (self.on_schema_change, *self.on_schema_change_of.values())):
            raise ValueError("`key: evolve` is of tables with a contract: the key of a table by rule is its records'")
        return self

    def policy_of(self, table: str) -> OnSchemaChange:
        """What becomes of a table whose source changes its columns."""
        return self.on_schema_change_of.get(table, self.on_schema_change)

    def has_topic(self, topic: str) -> bool:
        """Whether a topic of this name is for the rule; never one of Kafka's or Debezium's own (`__…`)."""
        return not topic.startswith("__") and _is_one(topic, self.include) and not _is_one(topic, self.exclude)

    @property
    def options(self) -> dict[str, Any]:
        """What it has of `ConnectorOptions`."""
        return {name: getattr(self, name) for name in ConnectorOptions.model_fields}


def _is_one(topic: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)


VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class DatabaseServer(Model):
    """A database server that `lakehouse status` and `doctor` may connect to, and the secrets that they may send there.

    Whoever may change a connector of Kafka Connect decides what its configuration says: it alone opens no connection
    and reads no variable.
    """

    host: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_:]([A-Za-z0-9_.:-]*[A-Za-z0-9_:])?$", to_lower=True)]
    """As `database.hostname` of the connectors has it, in letters of any case."""
    port: int = Field(ge=1, le=65_535)
    password_variables: tuple[VariableName, ...] = Field(default=(), strict=False)
    """The environment variables whose values may be sent there: those that `database.password` of the connectors name
    (`${env:NAME}`)."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Source(Model):
    """One source database: all its topics land in `bronze.<name>_events`."""

    kind: SourceKind
    """The database, which decides what a source position is."""
    start: Start = "earliest"
    """Where the very first run begins; every later one continues where the one before ended."""
    feeds: dict[Name, FeedTopics] = Field(default_factory=dict)
    """The feeds; each has a silver table of its own name."""
    by_rule: dict[Name, TableRule] = Field(default_factory=dict)
    """Whole databases, or parts of them, whose tables are made by a rule (docs/by-rule.md)."""
    ignored_topics: tuple[TopicName, ...] = Field(default=(), strict=False)
    """Heartbeats, transactions, schema changes: read into bronze when they exist; silver counts and ignores them."""
    databases: tuple[DatabaseServer, ...] = Field(default=(), strict=False)
    """The servers of the database that `lakehouse status` and `doctor` may connect to. Default: none is asked."""

    @model_validator(mode="after")
    def _has_tables(self) -> Source:
        if not self.feeds and not self.by_rule:
            raise ValueError("a source needs `feeds` or `by_rule`")
        return self

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics that the feeds name."""
        return tuple(topic for feed in self.feeds.values() for topic in feed.topics)

    def names(self, topic: str) -> bool:
        """Whether the contract gives this topic to the source."""
        is_named = topic in self.ignored_topics or any(feed.has_topic(topic) for feed in self.feeds.values())
        return is_named or any(rule.has_topic(topic) or rule.schema_changes == topic for rule in self.by_rule.values())

    def rule_of(self, topic: str) -> str | None:
        """The rule that makes a table of this topic; None where a feed has it, or it is ignored."""
        if topic in self.ignored_topics or any(feed.has_topic(topic) for feed in self.feeds.values()):
            return None
        if any(rule.schema_changes == topic for rule in self.by_rule.values()):
            return None
        return next((name for name, rule in self.by_rule.items() if rule.has_topic(topic)), None)

    def assigned(self, known: Iterable[str]) -> tuple[str, ...]:
        """Of the topics that a broker has, those that this source reads."""
        return tuple(sorted(topic for topic in known if self.names(topic)))


class Topics(Model):
    """`bronze/topics.yaml`: the source databases and the Kafka topics with their changes."""

    sources: dict[Name, Source] = Field(min_length=1)
