"""What a topic is, by its name and a few of its records: changes of tables, and of which; or something else.

What is said of it has counts and names in it, and no value of a record. Imports without pyspark.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from lakehouse.registered import RegisteredSchema
from silver.by_rule.events import Event, NoEvent, events_of, schema_ids, seen
from silver.decode.reference.message import Json, Key, MalformedError, Object, Record, decoded_text, text_of
from silver.decode.reference.table import is_heartbeat, is_schema_change
from silver.decode.reference.wrapper import Unwrapping, read_key

What = Literal["events", "heartbeats", "schema changes", "schema history", "internal", "empty", "unread", "other"]

HEARTBEAT = "__debezium-heartbeat."
# Of Kafka, of schema registries, and of Kafka Connect's workers.
_INTERNAL = re.compile(
    r"__.*|_schemas.*|_confluent.*|kafkasql-.*"
    r"|(.*[-_.])?connect(ors?)?([-_.].*)?[-_.](configs?|offsets?|status(es)?)"
)
_KEY_OF_CONNECT = re.compile(
    r"(connector|task|commit|target-state|restart-connector|task-count-record|logger-cluster|status-connector"
    r"|status-task|status-topic)-.+|session-key"
)
INTERNAL, EMPTY = "internal: of Kafka or of Kafka Connect", "no records"
_HINTS: Mapping[NoEvent, str] = {
    NoEvent.FLAT_ROW: "such a table (ExtractNewRecordState) is declared by hand",
    NoEvent.BINARY: "of Avro, name schema_registry in the file of --kafka-config",
}


class TableOrigin(NamedTuple):
    """Where change events are from, by their source block."""

    connector: str
    database: str
    schema: str | None


@dataclass(frozen=True)
class Looked:
    """A topic that was looked at, or not: then `summary` is why."""

    topic: str
    what: What
    summary: str
    records: int | None = None
    """How many were looked at."""
    sample: Sequence[Record] = ()
    events: Sequence[Event] = ()
    """The change events of tables."""
    origins: frozenset[TableOrigin] = frozenset()
    databases: frozenset[str] = frozenset()
    """Of schema changes: the databases that they are of."""
    prefixes: frozenset[str] = frozenset()
    """The `topic.prefix` of the connectors that its records are of."""

    @property
    def tables(self) -> frozenset[str]:
        """The tables that the events are of, alone."""
        return frozenset(event.source.table or "" for event in self.events if event.source is not None)

    def light(self) -> Looked:
        """The same without its records."""
        return replace(self, sample=(), events=())


def is_internal(topic: str) -> bool:
    """Whether it is of Kafka, of a schema registry or of Kafka Connect, by its name: nobody needs to read it."""
    return not topic.startswith(HEARTBEAT) and _INTERNAL.fullmatch(topic) is not None


def by_name(topic: str) -> Looked | None:
    """A topic that need not be read, for its name says what it is; None of any other."""
    if topic.startswith(HEARTBEAT):
        prefixes = frozenset({topic.removeprefix(HEARTBEAT)})
        return Looked(topic, "heartbeats", "heartbeats", prefixes=prefixes)
    return Looked(topic, "internal", INTERNAL) if is_internal(topic) else None


def looked_at(topic: str, records: Sequence[Record], registered: Mapping[int, RegisteredSchema] | None) -> Looked:
    """What a topic is that has these records. `registered`: the registry's schemas that they name."""
    if not records:
        return Looked(topic, "empty", EMPTY, 0)
    readings = events_of(records, registered)
    events = [one for one in readings if isinstance(one, Event) and one.envelope == "table"]
    summary = seen(readings)
    if events:
        return Looked(
            topic,
            "events",
            summary,
            len(records),
            sample=records,
            events=events,
            origins=frozenset(origin for event in events if (origin := _origin(event)) is not None),
            prefixes=frozenset(event.logical_name for event in events if event.logical_name),
        )
    unwrapped = Unwrapping(registered)
    if NoEvent.SCHEMA_CHANGE in readings:
        return _of_schema_changes(topic, records, summary, unwrapped)
    if NoEvent.HEARTBEAT in readings:
        keys = (key for key, body in _messages(records, unwrapped) if is_heartbeat(body, key))
        servers = frozenset(server for key in keys if (server := text_of((key.fields or {}).get("serverName"))))
        return Looked(topic, "heartbeats", summary, len(records), prefixes=servers)
    if all(_is_of_connect(record.key) for record in records):
        return Looked(topic, "internal", INTERNAL, len(records))
    return Looked(topic, "other", _other(records, readings, summary, registered), len(records))


def _origin(event: Event) -> TableOrigin | None:
    source = event.source
    if source is None or not source.db:
        return None
    return TableOrigin(event.connector or "", source.db, source.schema)


def _of_schema_changes(topic: str, records: Sequence[Record], summary: str, unwrapped: Unwrapping) -> Looked:
    """Changes of schemas, or the history of them that a connector keeps for itself: that one has a `position`."""
    bodies = [body for _key, body in _messages(records, unwrapped) if is_schema_change(body)]
    if all("position" in body for body in bodies):
        return Looked(topic, "schema history", "a connector's own history of schemas", len(records))
    sources = [body["source"] for body in bodies if isinstance(body["source"], dict)]
    return Looked(
        topic,
        "schema changes",
        summary,
        len(records),
        databases=frozenset(name for body in bodies if (name := text_of(body["databaseName"]))),
        prefixes=frozenset(name for source in sources if (name := text_of(source.get("name")))),
    )


def _messages(records: Sequence[Record], unwrapped: Unwrapping) -> Iterator[tuple[Key, Object]]:
    """The keys and values of those whose value is an object."""
    for record in records:
        try:
            body: Json = unwrapped.message(record.value or b"null", name="The value")[0].payload
            key = read_key(record.key, unwrapped)
        except MalformedError:
            continue
        if isinstance(body, dict):
            yield key, body


def _is_of_connect(key: bytes | None) -> bool:
    """Whether it is the key of a record that a worker of Kafka Connect keeps its state in."""
    text = decoded_text(key or b"") or ""
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return len(parts) == 2 and isinstance(parts[0], str) and isinstance(parts[1], dict)
    return _KEY_OF_CONNECT.fullmatch(text) is not None


def _other(
    records: Sequence[Record],
    readings: Sequence[Event | NoEvent],
    summary: str,
    registered: Mapping[int, RegisteredSchema] | None,
) -> str:
    if any(isinstance(one, Event) for one in readings):
        if all(record.header("id") is None for record in records):
            return f"no change events: {len(records)} record{'' if len(records) == 1 else 's'} without an envelope"
        return f"{summary}; an outbox is proposed with --from-topic"
    (most, _count), *_rest = Counter(one for one in readings if isinstance(one, NoEvent)).most_common(1)
    is_unknown_avro = most is not NoEvent.BINARY or (bool(schema_ids(records)) and registered is None)
    hint = _HINTS.get(most) if is_unknown_avro else None
    return f"{summary}; {hint}" if hint else summary
