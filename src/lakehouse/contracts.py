"""Contracts: topics, feeds, tables and gates as frozen typed models, read from the YAML files beside the code.

Reading one checks all of it and reports the first mistake with file, line and key. Imports without pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from lakehouse.errors import ContractError

# Names become identifiers of tables and columns in Spark SQL: nothing else may stand in them.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
SourceKind = Literal["postgresql", "mysql"]


class Model(BaseModel):
    """A part of a contract: frozen, and with no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Source(Model):
    """One source database: its topics all land in `bronze.<name>_events`."""

    kind: SourceKind
    topics: tuple[TopicName, ...] = Field(min_length=1, strict=False)
    # Read into bronze when they exist; silver counts their records and ignores them.
    heartbeat_topics: tuple[TopicName, ...] = Field(default=(), strict=False)


class Topics(Model):
    """`src/bronze/topics.yaml`: the source databases and the Kafka topics that tell of them."""

    sources: dict[Name, Source] = Field(min_length=1)


class DecimalType(Model):
    """A fixed-point number, of at most 38 digits as in Spark."""

    precision: int = Field(ge=1, le=38)
    scale: int = Field(ge=0, le=38)

    @property
    def ddl(self) -> str:
        """The type in Spark SQL."""
        return f"DECIMAL({self.precision},{self.scale})"


class SimpleType(Model):
    """A type without parameters."""

    name: Literal["BIGINT", "STRING", "TIMESTAMP"]

    @property
    def ddl(self) -> str:
        """The type in Spark SQL."""
        return self.name


def _parse_type(text: object) -> object:
    if not isinstance(text, str):
        return text
    decimal = re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", text)
    if decimal:
        return DecimalType(precision=int(decimal[1]), scale=int(decimal[2]))
    return SimpleType(name=text)  # type: ignore[arg-type]  # pydantic checks the name


ColumnType = Annotated[DecimalType | SimpleType, BeforeValidator(_parse_type)]


class Column(Model):
    """One column of a silver table: its type, and how the value travels in the change event."""

    type: ColumnType
    # The fields of the event that hold the value: the first of them that is present is taken. Default: the column name.
    fields: tuple[str, ...] = Field(default=(), strict=False)
    # What an integer means where a TIMESTAMP is expected (Debezium: time.precision.mode, by the column's precision).
    epoch_unit: Literal["micros", "millis"] = "micros"


def _column(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


class Feed(Model):
    """One table's story, told by a set of topics: its silver table is `silver.<name>`."""

    source: Name
    topics: tuple[TopicName, ...] = Field(min_length=1, strict=False)
    # table: before/after/source/op of a table topic. outbox: EventRouter with envelope placement.
    envelope: Literal["table", "outbox"]
    keys: tuple[Name, ...] = Field(min_length=1, strict=False)
    # source_position: the database's own order (LSN, binlog). kafka_offset: for feeds whose events carry no position.
    sequence_by: Literal["source_position", "kafka_offset"]
    # The connector's decimal.handling.mode.
    decimal_handling_mode: Literal["precise", "string", "double"] = "precise"
    columns: dict[Name, Annotated[Column, BeforeValidator(_column)]] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Feed:
        for key in self.keys:
            if key not in self.columns:
                raise ValueError(_unknown("column", key, self.columns))
        position_known = self.envelope == "table"
        if position_known != (self.sequence_by == "source_position"):
            raise ValueError("table envelopes go by source_position, outbox events carry none: kafka_offset")
        if self.envelope == "outbox" and len(self.keys) != 1:
            raise ValueError("an outbox feed has exactly one key: the aggregateid stands for it where it is absent")
        return self

    def fields_of(self, column: str) -> tuple[str, ...]:
        """The fields of the event that may hold this column, the preferred one first."""
        return self.columns[column].fields or (column,)


class SilverTables(Model):
    """`src/silver/tables.yaml`: the feeds, each with its silver table."""

    feeds: dict[Name, Feed] = Field(min_length=1)

    def of_source(self, source: str) -> dict[str, Feed]:
        """The feeds of one source, by name."""
        return {name: feed for name, feed in self.feeds.items() if feed.source == source}


OnFailure = Literal["warn", "quarantine", "fail"]


class Expectation(Model):
    """One expectation in Great Expectations' own name and arguments, with what happens when it is not met."""

    name: Name
    type: Annotated[str, StringConstraints(pattern=r"^expect_[a-z_]+$")]
    kwargs: dict[str, Any]
    on_failure: OnFailure
    description: str
    # The feeds it is about; default: all of its gate.
    feeds: tuple[Name, ...] = Field(default=(), strict=False)


class Gate(Model):
    """A `gate.yaml`: for each feed it names, the expectations that its rows or its table must meet."""

    feeds: tuple[Name, ...] = Field(min_length=1, strict=False)
    expectations: tuple[Expectation, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _check(self) -> Gate:
        names = [expectation.name for expectation in self.expectations]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two expectations are named {name}")
        for expectation in self.expectations:
            for feed in expectation.feeds:
                if feed not in self.feeds:
                    raise ValueError(_unknown("feed", feed, self.feeds))
        return self

    def rules(self, feed: str) -> tuple[Expectation, ...]:
        """The expectations that a feed must meet; none for a feed that the gate does not name."""
        if feed not in self.feeds:
            return ()
        return tuple(rule for rule in self.expectations if not rule.feeds or feed in rule.feeds)


class GoldSource(Model):
    """What one source database gives to gold: its name there, its key prefix, its feeds in order of precedence."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]*$")]
    feeds: tuple[Name, ...] = Field(min_length=1, strict=False)


class Publication(Model):
    """The topic that gold is published to, as it is created when it is absent."""

    topic: TopicName
    partitions: int = Field(ge=1)
    replication_factor: int = Field(ge=1)


class GoldTables(Model):
    """`src/gold/tables.yaml`: which sources make up the unified orders, and where they are published."""

    sources: dict[Name, GoldSource] = Field(min_length=1)
    fulfillment: dict[str, str]
    fulfillment_otherwise: str
    publication: Publication

    @model_validator(mode="after")
    def _check(self) -> GoldTables:
        for attribute in ("name", "prefix"):
            values = [getattr(source, attribute) for source in self.sources.values()]
            if len(set(values)) < len(values):
                raise ValueError(f"two sources have the same {attribute}: their orders would overwrite each other")
        return self


class Contracts(Model):
    """All contracts of a deployment, checked against one another."""

    topics: Topics
    silver: SilverTables
    silver_gate: Gate
    gold: GoldTables
    gold_gate: Gate


M = TypeVar("M", bound=Model)


def load(model: type[M], file: Traversable) -> M:
    """The contract in `file`.

    Raises ContractError with file, line and key when the YAML does not parse or does not fit the model.
    """
    text = file.read_text(encoding="utf-8")
    where = f"{file.name}" if not hasattr(file, "parent") else f"{file.parent.name}/{file.name}"
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ContractError(
            f"not valid YAML: {error.problem}.", file=where, line=line, key="(file)", remedy="Mend the syntax."
        ) from None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        # A misspelt key is absent under its right name, too: the misspelling is what a person must see.
        first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
        path = tuple(part for part in first["loc"] if not isinstance(part, str) or "[" not in part)
        raise ContractError(
            _sentence(first["type"], first["msg"]),
            file=where,
            line=_line_of(root, path),
            key=".".join(str(part) for part in path) or "(file)",
            remedy="Mend it and run the command again.",
        ) from None


def load_packaged() -> Contracts:
    """The contracts that the wheel carries, each read and all checked against one another."""
    silver_tables = files("silver") / "tables.yaml"
    gold_tables = files("gold") / "tables.yaml"
    contracts = Contracts(
        topics=load(Topics, files("bronze") / "topics.yaml"),
        silver=load(SilverTables, silver_tables),
        silver_gate=load(Gate, files("silver") / "gate.yaml"),
        gold=load(GoldTables, gold_tables),
        gold_gate=load(Gate, files("gold") / "gate.yaml"),
    )
    check_references(contracts)
    return contracts


def check_references(contracts: Contracts) -> None:
    """Raise ContractError when one contract names a source, topic, feed or column that another does not have."""
    _check_feeds(contracts.topics, contracts.silver)
    _check_gate(contracts.silver_gate, contracts.silver, file="silver/gate.yaml")
    _check_gate(contracts.gold_gate, contracts.silver, file="gold/gate.yaml")
    for name, source in contracts.gold.sources.items():
        for feed in source.feeds:
            _must_know("feed", feed, contracts.silver.feeds, file="gold/tables.yaml", key=f"sources.{name}.feeds")


def _check_feeds(topics: Topics, silver: SilverTables) -> None:
    """Every feed names a source and topics of it; every topic belongs to exactly one feed."""
    file = "silver/tables.yaml"
    owners: dict[str, str] = {}
    for name, feed in silver.feeds.items():
        _must_know("source", feed.source, topics.sources, file=file, key=f"feeds.{name}.source")
        for topic in feed.topics:
            key = f"feeds.{name}.topics"
            _must_know("topic", topic, topics.sources[feed.source].topics, file=file, key=key)
            if topic in owners:
                raise _refused(f"topic {topic} belongs to {owners[topic]} too.", file=file, key=key)
            owners[topic] = name
    for name, source in topics.sources.items():
        for topic in source.topics:
            if topic not in owners:
                raise _refused(
                    f"topic {topic} belongs to no feed.", file="bronze/topics.yaml", key=f"sources.{name}.topics"
                )


def _check_gate(gate: Gate, silver: SilverTables, *, file: str) -> None:
    for feed in gate.feeds:
        _must_know("feed", feed, silver.feeds, file=file, key="feeds")
        for expectation in gate.rules(feed):
            column = expectation.kwargs.get("column")
            if column is not None:
                key = f"expectations.{expectation.name}.kwargs.column"
                _must_know("column", column, silver.feeds[feed].columns, file=file, key=key)


def _must_know(what: str, name: str, valid: Iterable[str], *, file: str, key: str) -> None:
    if name not in valid:
        raise _refused(_unknown(what, name, valid), file=file, key=key)


def _refused(what: str, *, file: str, key: str) -> ContractError:
    return ContractError(what, file=file, line=1, key=key, remedy="Mend the name, or declare it there.")


def _unknown(what: str, name: str, valid: Iterable[str]) -> str:
    known = sorted(valid)
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(known)}."
    return f"no {what} {name!r}; {hint}"


def _sentence(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "this key is not known here."
    if kind == "missing":
        return "this key is required and absent."
    text = message.removeprefix("Value error, ")
    return text if text.endswith((".", "?")) else f"{text}."


def _line_of(root: yaml.Node | None, path: Iterable[object]) -> int:
    """The line of the deepest node on `path` that the YAML really has."""
    node, line = root, 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    node, line = value, key.start_mark.line + 1
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line
