"""What sampled Kafka records are: events that tell of a row, or something else. Imports without pyspark.

Shapes: Debezium documentation, "Data change events" of the connectors, "Outbox Event Router" and "New Record State
Extraction"; each with Kafka Connect's in-message schema or without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class SampledRecord:
    """A Kafka record as its topic has it; without a value it is a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def header(self, name: str) -> str | None:
        """The text of the first header of that name; None without one, and for bytes that are not text."""
        for own, value in self.headers:
            if own == name and value is not None:
                try:
                    return value.decode("utf-8")
                except UnicodeDecodeError:
                    return None
        return None


@dataclass(frozen=True)
class Event:
    """What a record says of one row."""

    envelope: Literal["table", "outbox"]
    row: Fields | None
    """The fields of the row, or of the payload; None for a delete."""
    key: Any
    """Of a table the fields of the key, of an outbox the aggregateid; None without one."""
    schemas: Mapping[str, Fields] = field(default_factory=dict)
    """Of a table whose messages carry their schema: Kafka Connect's schema of every field of the row."""
    connector: str | None = None
    """The kind of database, as Debezium calls its connector."""
    logical_name: str | None = None
    """The connector's `topic.prefix`."""
    table: str | None = None


class NoEvent(Enum):
    """A record that tells of no row: what to call one, and many."""

    TOMBSTONE = ("tombstone", "tombstones")
    HEARTBEAT = ("heartbeat", "heartbeats")
    TRANSACTION = ("transaction marker", "transaction markers")
    SCHEMA_CHANGE = ("schema change", "schema changes")
    TRUNCATE = ("truncate", "truncates")
    MESSAGE = ("logical message", "logical messages")
    FLAT_ROW = ("row without an envelope", "rows without an envelope")
    BINARY = ("binary value", "binary values")
    NOT_JSON = ("value that is not JSON", "values that are not JSON")
    OTHER_SHAPE = ("value of another shape", "values of another shape")


def read(record: SampledRecord) -> Event | NoEvent:
    """The event that a record is, or what else it is."""
    if not record.value:
        return NoEvent.TOMBSTONE
    try:
        text = record.value.decode("utf-8")
    except UnicodeDecodeError:
        return NoEvent.BINARY
    if text.startswith("\0"):  # the Confluent wire format: Avro, Protobuf, or JSON with its schema elsewhere
        return NoEvent.BINARY
    try:
        schema, value = _unwrapped(_parsed(text))
    except _NOT_JSON:
        return NoEvent.NOT_JSON
    key = _key(record.key)
    if isinstance(value, dict):
        return _change(value, schema, key) or _told_apart(value, key) or _outbox_object(record, value, key)
    payload = _object_in(value)
    return _outbox(record, payload, key) if payload is not None else NoEvent.OTHER_SHAPE


# An integer of thousands of digits, an exponent beyond all limits, brackets without end: JSON, but nobody's row.
_NOT_JSON = (ValueError, ArithmeticError, RecursionError)


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _unwrapped(value: Any) -> tuple[Fields, Any]:
    """The message's schema, empty without one, and what it is the schema of."""
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        schema, payload = value["schema"], value["payload"]
        if schema is None or (isinstance(schema, dict) and "type" in schema):
            return schema or {}, payload
    return {}, value


def _key(key: bytes | None) -> Any:
    """The key as JSON; a key that is not JSON is its text, and bytes that are not text are no key."""
    if key is None:
        return None
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        return None
    try:
        return _unwrapped(_parsed(text))[1]
    except _NOT_JSON:
        return text


def _change(value: Fields, schema: Fields, key: Any) -> Event | NoEvent | None:
    """Debezium's change event of a table; None for any other object."""
    source = value.get("source")
    if "op" not in value or not isinstance(source, dict):
        return None
    row = value.get("after")
    op = _text(value["op"])
    if op in {"t", "m"}:
        return NoEvent.TRUNCATE if op == "t" else NoEvent.MESSAGE
    is_delete = op == "d"
    if not is_delete and not (op in {"r", "c", "u"} and isinstance(row, dict)):
        return NoEvent.OTHER_SHAPE
    return Event(
        envelope="table",
        row=None if is_delete else row,
        key=key if isinstance(key, dict) else None,
        schemas=_schemas_of_row(schema),
        connector=_text(source.get("connector")),
        logical_name=_text(source.get("name")),
        table=_text(source.get("table")),
    )


def _schemas_of_row(schema: Fields) -> Mapping[str, Fields]:
    after = _field_schemas(schema).get("after", {})
    return _field_schemas(after)


def _field_schemas(schema: Fields) -> Mapping[str, Fields]:
    fields = schema.get("fields")
    own = [one for one in fields if isinstance(one, dict)] if isinstance(fields, list) else []
    return {one["field"]: one for one in own if isinstance(one.get("field"), str)}


def _told_apart(value: Fields, key: Any) -> NoEvent | None:
    """The connector's own records: heartbeats, transaction metadata and schema changes."""
    if "ts_ms" in value and isinstance(key, dict) and "serverName" in key:
        return NoEvent.HEARTBEAT
    if {"status", "id", "event_count", "data_collections"} <= value.keys():
        return NoEvent.TRANSACTION
    if {"source", "ddl", "tableChanges"} <= value.keys():
        return NoEvent.SCHEMA_CHANGE
    return None


def _outbox_object(record: SampledRecord, value: Fields, key: Any) -> Event | NoEvent:
    """An object from the EventRouter: the payload in an envelope of its own, or expanded.

    The EventRouter gives every record the header `id`, and the aggregateid as its key; a flattened row has neither.
    """
    is_routed = record.header("id") is not None or (key is not None and not isinstance(key, dict))
    if not is_routed:
        return NoEvent.FLAT_ROW
    payload = _object_in(value.get("payload"))
    return _outbox(record, value if payload is None else payload, key)


def _outbox(record: SampledRecord, payload: Fields, key: Any) -> Event:
    return Event(
        envelope="outbox",
        row=payload,
        key=None if isinstance(key, dict | list) else key,
        connector=record.header("__debezium.context.connectorName"),
        logical_name=record.header("__debezium.context.connectorLogicalName"),
    )


def _object_in(value: Any) -> Fields | None:
    """A JSON object, or the one that a JSON text holds."""
    if isinstance(value, str):
        try:
            value = _parsed(value)
        except _NOT_JSON:
            return None
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
