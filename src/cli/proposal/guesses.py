"""What the records of a sample say of their table: its source, its key and its columns, each with the reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import TypeAdapter, ValidationError

from lakehouse.contracts.parts.names import TableName, as_name, column_name, unique
from lakehouse.contracts.published import GOLD_ADDS
from lakehouse.contracts.topics import SourceKind
from lakehouse.errors import SettingsError
from lakehouse.registered import RegisteredSchema
from silver.by_rule.events import Event, NoEvent, events_of
from silver.by_rule.events import seen as records_seen
from silver.by_rule.types import Guess, from_schemas, from_values, is_integer
from silver.decode.reference.message import Json, Number, Record
from silver.decode.reference.table import table_name

KINDS: tuple[str, ...] = get_args(SourceKind)
# What a topic's own words say of the database, where no record does.
_WORDS = {"postgres": "postgresql", "postgresql": "postgresql", "pg": "postgresql", "mysql": "mysql"}
_BY_HAND = "or begin without a sample: lakehouse init DIR."
_HINTS = {
    # Such a row does not say which of its fields the transform has added, nor what was there before.
    NoEvent.FLAT_ROW: "Silver reads flattened rows (ExtractNewRecordState), but a contract is proposed from whole"
    " envelopes only: begin without a sample, lakehouse init DIR, and declare the table by hand; with"
    " sequence_by: kafka_offset unless the transform adds op and the source position (add.fields).",
    NoEvent.BINARY: "Of Avro, name schema_registry in the file of --kafka-config (docs/kafka.md). Anything else is not "
    "read: let the connector write JSON, value.converter=org.apache.kafka.connect.json.JsonConverter.",
    NoEvent.UNREADABLE_KEY: "Let the connector write keys as JSON: "
    "key.converter=org.apache.kafka.connect.json.JsonConverter.",
    NoEvent.NOT_JSON: "Let the connector write JSON: value.converter=org.apache.kafka.connect.json.JsonConverter.",
    NoEvent.OTHER_SHAPE: "Name a topic that Debezium publishes change events or outbox events to.",
    NoEvent.HEARTBEAT: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.TRANSACTION: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.SCHEMA_CHANGE: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.MESSAGE: "Name the topic of a table (PREFIX.SCHEMA.TABLE) or of an outbox.",
    NoEvent.TOMBSTONE: f"Try again when the topic has an insert or an update, {_BY_HAND}",
    NoEvent.TRUNCATE: f"Try again when the topic has an insert or an update, {_BY_HAND}",
}


@dataclass(frozen=True)
class Guessed:
    """Something that a contract says, and why."""

    value: str
    why: str


@dataclass(frozen=True)
class _Key:
    """The key: the fields of the events that make it up, and why these."""

    fields: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class ProposedColumn:
    """A column of the silver table, the field that it comes from, and how many events lack that."""

    name: str
    field: str
    guess: Guess
    lacking: int


@dataclass(frozen=True)
class Proposal:
    """All that the five files say."""

    topic: str
    seen: str
    """What the records of the sample are."""
    envelope: Literal["table", "outbox"]
    events: int
    source: Guessed
    kind: Guessed
    table: str
    key: str
    key_why: str
    tables: Guessed | None
    """Which table the events are of."""
    columns: tuple[ProposedColumn, ...]
    ignored_topics: tuple[str, ...]

    @property
    def feed(self) -> str:
        """The name of the feed, and of its silver table."""
        return f"{self.source.value}_{self.table}"


def proposal_of(
    topic: str,
    records: Sequence[Record],
    ignored_topics: Iterable[str],
    registered: Mapping[int, RegisteredSchema] | None,
) -> Proposal:
    """What the files are to say. Raises SettingsError as `propose` does."""
    readings = events_of(records, registered)
    seen = records_seen(readings)
    events = _events(topic, readings, seen)
    envelope = events[0].envelope
    table = _table(topic, events)
    names = _names(_fields(events))
    key = _table_key(topic, events) if envelope == "table" else _outbox_key(table, events, names)
    if len(key.fields) > 1:
        raise SettingsError(
            f"The key of {topic} has several columns ({', '.join(key.fields)}), and gold goes by one.",
            hint="Begin with a topic whose table has a key of one column, then add this one to bronze/topics.yaml and"
            " silver/tables.yaml by hand: silver takes such keys.",
        )
    fields = tuple(dict.fromkeys([*(one for one in key.fields if one not in names), *names]))
    names = _names(fields)
    rows = [event.row for event in events if event.row is not None]
    kind = _kind(topic, events)
    return Proposal(
        topic=topic,
        seen=seen,
        envelope=envelope,
        events=len(rows),
        source=_source(topic, events),
        kind=kind,
        table=table,
        key=names[key.fields[0]],
        key_why=key.why,
        tables=_table_of_source(events, kind.value),
        columns=tuple(
            ProposedColumn(
                name=names[one],
                field=one,
                guess=_guess(names[one], one, events, key=key),
                lacking=0 if one in key.fields else sum(one not in row for row in rows),
            )
            for one in fields
        ),
        ignored_topics=tuple(ignored_topics),
    )


def _events(topic: str, readings: Sequence[Event | NoEvent], seen: str) -> Sequence[Event]:
    """The events of the envelope that most of them have. Raises SettingsError when none has a row."""
    if not readings:
        raise SettingsError(
            f"Topic {topic} has no records.",
            hint=f"Try again when the connector has published its first ones, {_BY_HAND}",
        )
    events = [reading for reading in readings if isinstance(reading, Event)]
    envelopes = Counter(event.envelope for event in events if event.row is not None or event.schemas)
    if not envelopes:
        others = [reading for reading in readings if isinstance(reading, NoEvent)]
        most_frequent = Counter(others).most_common(1)[0][0] if not events else NoEvent.TOMBSTONE
        raise SettingsError(f"Nothing in {topic} states a row. {seen}.", hint=_HINTS[most_frequent])
    envelope = envelopes.most_common(1)[0][0]
    return [event for event in events if event.envelope == envelope]


def _fields(events: Iterable[Event]) -> list[str]:
    """The fields of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(field for event in events for part in (event.schemas, event.row or {}) for field in part))


def _table_key(topic: str, events: Sequence[Event]) -> _Key:
    keys = [event.key.fields for event in events if event.key.fields]
    fields = tuple(dict.fromkeys(field for key in keys for field in key))
    if not fields:
        raise SettingsError(
            f"The events of {topic} have no key: silver could not know which row a change is about.",
            hint="Give the table a primary key, or the connector message.key.columns, and take a new snapshot.",
        )
    return _Key(fields, f"the key of {len(keys)} of {len(events)} events")


def _outbox_key(table: str, events: Sequence[Event], names: Mapping[str, str]) -> _Key:
    """The field that is the aggregateid; else one of a key's name, best one that differs in every event."""
    rows = [(event.row, event.key.value) for event in events if event.row is not None]
    own = f"{_singular(table)}_id"
    by_name = [field for like in (own, "order_id", "id") for field, name in names.items() if name == like]
    for field in [*by_name, *(field for field in names if field not in by_name)]:
        pairs = [(row[field], key) for row, key in rows if field in row and key is not None]
        if pairs and all(_is_scalar(value) and str(value) == str(key) for value, key in pairs):
            return _Key((field,), f"in {len(pairs)} of {len(rows)} events equals the aggregateid (the record's key)")
    for field in by_name:
        values = [row[field] for row, _key in rows if field in row]
        if all(_is_scalar(value) for value in values) and len({str(value) for value in values}) == len(values):
            why = f"another value in each of {len(values)} events, but not the aggregateid: check"
            return _Key((field,), why)
    if by_name:
        return _Key((by_name[0],), "by its name alone, and it is not the aggregateid (the record's key): check")
    return _Key((own,), "no field of the payload looks like a key: the aggregateid (the record's key) is taken")


def _is_scalar(value: Json) -> bool:
    return type(value) is str or is_integer(value)


def _guess(name: str, field: str, events: Sequence[Event], *, key: _Key) -> Guess:
    schemas = [event.schemas[field] for event in events if field in event.schemas]
    if schemas:
        return from_schemas(schemas)
    values = [event.row[field] for event in events if event.row is not None and field in event.row]
    of_table = events[0].envelope == "table"
    if field in key.fields and (of_table or not values):
        values = _values_of_key(field, events)
    return from_values(name, values, of_table=of_table)


def _values_of_key(field: str, events: Sequence[Event]) -> list[Json]:
    """What the records' keys say of a column of the key: the aggregateid of an outbox is text, maybe of a number."""
    if events[0].envelope == "table":
        return [event.key.fields[field] for event in events if event.key.fields and field in event.key.fields]
    ids = [event.key.value for event in events if event.key.value is not None]
    numbers = [Number(one) for one in ids if re.fullmatch(r"-?[0-9]{1,18}", one)]
    return numbers if len(numbers) == len(ids) else ids


def _source(topic: str, events: Sequence[Event]) -> Guessed:
    logical = Counter(event.logical_name for event in events if event.logical_name)
    if logical:
        name, count = logical.most_common(1)[0]
        return Guessed(as_name(name) or "source", f"the connector's topic.prefix, in {count} of {len(events)} events")
    return Guessed(
        as_name(topic.partition(".")[0]) or "source", "the topic's first part: no record names its connector"
    )


def _kind(topic: str, events: Sequence[Event]) -> Guessed:
    connectors = Counter(event.connector for event in events if event.connector)
    if connectors:
        connector, count = connectors.most_common(1)[0]
        if connector not in KINDS:
            raise SettingsError(
                f"The events of {topic} are from the connector {connector!r}: silver cannot order its positions.",
                hint=f"Name a topic of {', '.join(KINDS)}.",
            )
        return Guessed(connector, f"the connector of {count} of {len(events)} events")
    words = re.split(r"[^a-z0-9]+", topic.lower())
    guessed = next((_WORDS.get(word, word) for word in words if word in _WORDS or word in KINDS), KINDS[0])
    return Guessed(guessed, "no record names the database: check")


def _table(topic: str, events: Sequence[Event]) -> str:
    tables = {event.source.table for event in events if event.source and event.source.table}
    last = topic.rsplit(".", 1)[-1]
    return as_name(tables.pop() if len(tables) == 1 else last) or "rows"


def _table_of_source(events: Sequence[Event], kind: str) -> Guessed | None:
    """The table that all source blocks name, if they agree: records of another one are then no rows of the feed."""
    blocks = [event.source for event in events if event.source is not None]
    names = [table_name(source.table, source, kind) for source in blocks if source.table]
    if len(set(names)) != 1 or not _is_table_name(names[0]):
        return None
    return Guessed(
        names[0], f"in {len(names)} of {len(events)} events; a record of another table goes to quarantine: check"
    )


def _is_table_name(name: str) -> bool:
    try:
        TypeAdapter(TableName).validate_python(name)
    except ValidationError:
        return False
    return True


def _singular(plural: str) -> str:
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("ss", "ss")):
        if plural.endswith(ending):
            return plural.removesuffix(ending) + instead
    return plural.removesuffix("s") or plural


def _names(fields: Iterable[str]) -> dict[str, str]:
    """A name of its own for every field, the field's own where a contract and gold can have it."""
    names: dict[str, str] = {}
    for number, field in enumerate(fields, start=1):
        name = column_name(field, number=number)
        names[field] = unique(f"{name}_of_source" if name in GOLD_ADDS else name, names.values())
    return names
