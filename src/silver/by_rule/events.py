"""What records are before there is a contract: events that state a row, or something else.

Silver's decoder reads them, with a contract that declares none of their fields: a flattened row is then no event, and
any object may be an outbox's payload. Imports without pyspark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import SimpleType
from lakehouse.contracts.tables import Column
from lakehouse.registered import RegisteredSchema
from silver.decode.avro import is_confluent, schema_id
from silver.decode.reference.message import FieldSchema, Key, Object, Record, Source, Statement, decoded_text, text_of
from silver.decode.reference.outbox import outbox_statement
from silver.decode.reference.shapes import other_shape
from silver.decode.reference.table import (
    Fields,
    fields_of,
    is_heartbeat,
    is_schema_change,
    is_transaction,
    table_statement,
)
from silver.decode.reference.wrapper import OF_KEY, Unwrapping


@dataclass(frozen=True)
class Event:
    """What a record says of one row."""

    envelope: Literal["table", "outbox"]
    row: Object | None
    """The fields of the row, or of the payload; None for a delete."""
    key: Key
    """Of an outbox the aggregateid, a single value."""
    schemas: Mapping[str, FieldSchema] = field(default_factory=dict)
    """Of a table whose messages carry their schema: Kafka Connect's schema of every field of the row."""
    connector: str | None = None
    """The kind of database, as Debezium calls its connector."""
    logical_name: str | None = None
    """The connector's `topic.prefix`."""
    source: Source | None = None
    """Of a table, the event's source block."""


class NoEvent(Enum):
    """A record that states no row: what to call one, and many."""

    TOMBSTONE = ("tombstone", "tombstones")
    HEARTBEAT = ("heartbeat", "heartbeats")
    TRANSACTION = ("transaction marker", "transaction markers")
    SCHEMA_CHANGE = ("schema change", "schema changes")
    TRUNCATE = ("truncate", "truncates")
    MESSAGE = ("logical message", "logical messages")
    FLAT_ROW = ("row without an envelope", "rows without an envelope")
    UNREADABLE_KEY = ("record whose key cannot be read", "records whose keys cannot be read")
    BINARY = ("binary value", "binary values")
    NOT_JSON = ("value that is not JSON", "values that are not JSON")
    OTHER_SHAPE = ("value of another shape", "values of another shape")


def schema_ids(records: Iterable[Record]) -> set[int]:
    """The ids of the registry's schemas that the records name."""
    messages = (message for record in records for message in (record.key, record.value) if message)
    return {schema_id(message) for message in messages if is_confluent(message)}


def events_of(
    records: Iterable[Record], registered: Mapping[int, RegisteredSchema] | None = None
) -> Sequence[Event | NoEvent]:
    """The event that each record is, or what else it is. `registered`: the registry's schemas that they name."""
    unwrapped = Unwrapping(registered)
    return [_event(record, unwrapped) for record in records]


def _declaring(column: str, declared: Column) -> Fields:
    """What a contract says that has this one column."""
    return fields_of(
        Feed(
            name="sampled",
            source="sampled",
            kind="postgresql",
            topics=("sampled",),
            envelope="table",
            append_only=True,
            sequence_by="kafka_offset",
            columns={column: declared},
        )
    )


_STRING = SimpleType("STRING")
_NO_FIELD = _declaring("topic", Column(type=_STRING, from_topic="(.*)"))
# For an outbox event that is an object whose `payload` holds no object: it is a field of the payload itself.
_PAYLOAD = _declaring("payload", Column(type=_STRING))


def _is_binary(value: bytes) -> bool:
    return is_confluent(value) or decoded_text(value) is None


def _event(record: Record, unwrapped: Unwrapping) -> Event | NoEvent:
    statement = table_statement(record, _NO_FIELD, unwrapped)
    has_unread_key = (statement.problem or "").startswith(OF_KEY)
    if has_unread_key:
        statement = table_statement(record._replace(key=None), _NO_FIELD, unwrapped)
    if statement.kind == "tombstone":
        return NoEvent.TOMBSTONE
    body = statement.body
    if body is None:
        return NoEvent.BINARY if _is_binary(record.value or b"") else NoEvent.NOT_JSON
    if not isinstance(body, dict):
        return _outbox(record, statement, unwrapped)
    source = body.get("source")
    if "op" in body and isinstance(source, dict):
        if has_unread_key:
            return NoEvent.UNREADABLE_KEY
        return _change(statement, connector=text_of(source.get("connector")))
    if is_heartbeat(body, statement.key):
        return NoEvent.HEARTBEAT
    if is_transaction(body):
        return NoEvent.TRANSACTION
    if is_schema_change(body):
        return NoEvent.SCHEMA_CHANGE
    if other_shape(body, ()) is not None:
        return NoEvent.OTHER_SHAPE
    # The EventRouter gives every record the header `id`, and the aggregateid as its key; a flattened row has neither.
    is_routed = record.header("id") is not None or statement.key.value is not None
    return _outbox(record, statement, unwrapped) if is_routed else NoEvent.FLAT_ROW


def _change(statement: Statement, *, connector: str | None) -> Event | NoEvent:
    """Debezium's change event of a table, whole: with its op and its source block."""
    if statement.kind != "change" or statement.source is None:
        others = {"truncate": NoEvent.TRUNCATE, "ignored": NoEvent.MESSAGE}
        return others.get(statement.kind, NoEvent.OTHER_SHAPE)
    return Event(
        envelope="table",
        row=None if statement.is_delete else statement.row,
        key=statement.key,
        schemas=statement.schemas or {},
        connector=connector,
        logical_name=statement.source.name,
        source=statement.source,
    )


def _outbox(record: Record, statement: Statement, unwrapped: Unwrapping) -> Event | NoEvent:
    rows = (outbox_statement(record, declared, unwrapped).row for declared in (_NO_FIELD, _PAYLOAD))
    row = next((one for one in rows if one is not None), None)
    if row is None:
        return NoEvent.OTHER_SHAPE
    return Event(
        envelope="outbox",
        row=row,
        key=Key(value=statement.key.value),
        connector=record.header("__debezium.context.connectorName"),
        logical_name=record.header("__debezium.context.connectorLogicalName"),
    )


def seen(readings: Sequence[Event | NoEvent]) -> str:
    """`12 records: 10 change events, 2 heartbeats`, the most frequent first."""
    labels = Counter(_label(reading) for reading in readings)
    parts = [f"{count} {label[0 if count == 1 else 1]}" for label, count in sorted(labels.items(), key=_frequent_first)]
    return f"{len(readings)} record{'' if len(readings) == 1 else 's'}: {', '.join(parts)}"


def _frequent_first(counted: tuple[tuple[str, str], int]) -> tuple[int, tuple[str, str]]:
    label, count = counted
    return -count, label


def _label(reading: Event | NoEvent) -> tuple[str, str]:
    if isinstance(reading, NoEvent):
        return reading.value
    if reading.row is None:
        return "delete", "deletes"
    name = "change event" if reading.envelope == "table" else "outbox event"
    return name, f"{name}s"
