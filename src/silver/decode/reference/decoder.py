"""The definition: what a record of a feed states, in whichever shape it came, and why where it states nothing.

Every record is one of six kinds:

    change      an insert, update or delete of one key
    truncate    all rows of the table are gone
    tombstone   no value: Kafka's marker for compaction, after a delete or in its place
    ignored     a heartbeat, transaction metadata, a schema change, a logical message, the removal of an outbox row
    erased      what stands in the place of a record that was erased
    unreadable  anything else; `problems` says why

Of a field that does not fit its column, `problems` says what came and what was expected, never the value itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import NamedTuple
from uuid import UUID

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import WHOLE_NUMBERS, ArrayType, DecimalType
from lakehouse.contracts.tables import Column, Metadata
from silver.decode.avro import Schemas
from silver.decode.drift import NO_DRIFT, KnownColumns
from silver.decode.reference.erased import erased_statement
from silver.decode.reference.message import FieldSchema, Json, MessageSchema, Number, Record, Source, Statement, text_of
from silver.decode.reference.numbers import NUMBER, digits_of, from_base64, is_decimal
from silver.decode.reference.outbox import outbox_statement
from silver.decode.reference.table import fields_of, is_own, table_statement
from silver.decode.reference.values import (
    CONVERSION_ERROR,
    Reader,
    Value,
    carries_precise_decimals,
    epoch_unit,
    is_known,
    is_of_other_format,
    meaning,
    pairs_of,
    reader,
)
from silver.decode.reference.wrapper import Unwrapping

# Of the metadata what must be looked for in the message.
OF_DEFINITION: tuple[Metadata, ...] = ("schema", "source.properties")
# The changes that state every column, unless the key was changed: then a create may leave a large value unchanged too.
WHOLE_ROWS = ("r", "c")
# The header that names the run of the connector (Debezium's context headers).
RUN_ID = "__debezium.context.runId"

# What a text should have been.
_EXPECTED_TEXT: Mapping[str, str] = {
    "TIMESTAMP": "ISO 8601 time",
    "timestamp": "ISO 8601 time",
    "timestamptz": "ISO 8601 time",
    "DATE": "ISO 8601 date",
    "date": "ISO 8601 date",
    "time": "time of day",
    "timetz": "time of day with a zone",
    "interval": "ISO 8601 duration",
    "bit": "base64 of so many bits",
    "varbit": "base64",
    "bytes": "binary value in the declared mode",
    "BINARY": "binary value in the declared mode",
    "uuid": "UUID",
    "BOOLEAN": "true or false",
    **dict.fromkeys((*WHOLE_NUMBERS, "year", "unsigned_bigint"), "whole number"),
}
_IN_HEX = "hex:"
_NOT_NUMBERS = ("NaN", "NAN", "Infinity", "-Infinity")
_FINER_THAN_MICROS = re.compile(r"[0-9]{4}-.*\.[0-9]{6}0*[1-9]")


class Event(NamedTuple):
    """What a record states. Times: `source_ts` in microseconds, `read_ms` in milliseconds (when the connector read it).

    `row`: the contract's columns in its order, typed; of a delete only the key. `absent`: the columns that the event
    has no field for. `unchanged_toast`: those whose large value is unchanged and not sent. `unsent_columns`: those
    whose value it does not state. `old_key`, `new_key`: of a changed key the JSON text of the one before and after.
    `run_id`: one run of the connector; empty where the record does not say. `drift`: where it shows that its table has
    other columns than silver's (silver.decode.drift).
    """

    kind: str
    run_id: str
    op: str | None
    is_delete: bool
    source_ts: int | None
    read_ms: int | None
    source: Source | None
    event_id: str | None
    old_key: str | None
    new_key: str | None
    row: Sequence[Value] | None
    absent: Sequence[str]
    unchanged_toast: Sequence[str]
    unsent_columns: Sequence[str]
    problems: Sequence[str]
    drift: Sequence[str] = ()


def large_columns(feed: Feed) -> tuple[str, ...]:
    """The columns that a change may leave unchanged: PostgreSQL moves only values of variable length out of the row."""
    if feed.kind != "postgresql" or feed.envelope != "table" or feed.append_only:
        return ()
    return tuple(
        name
        for name, declared in feed.columns.items()
        if name not in feed.keys and declared.is_of_row and declared.type.ddl.startswith(("STRING", "BINARY", "ARRAY"))
    )


def placeholders(configured: str) -> tuple[str, ...]:
    """What Debezium writes for a large value that a change did not touch: the texts of a field that stand for it.

    Text and JSON have the placeholder `configured` as it is, bytes in base64 or hex, arrays a single element of their
    type or one number a byte, hstore a map of it to itself, arrays of UUIDs the UUID that is made of its bytes.
    Debezium documentation, PostgreSQL connector, "Toasted values" and `unavailable.value.placeholder`.
    """
    raw = bytes.fromhex(configured.removeprefix(_IN_HEX)) if configured.startswith(_IN_HEX) else configured.encode()
    text = raw.decode("utf-8", errors="replace")
    in_bytes = (base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode(), raw.hex())
    # Java's UUID.nameUUIDFromBytes: version 3 without a namespace.
    uuid = str(UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3))
    arrays = (
        *([one] for one in (text, *in_bytes, uuid)),
        [byte - 256 if byte > 127 else byte for byte in raw],  # Java's bytes have a sign
    )
    shapes = (text, *in_bytes, *map(_json, arrays), _json({text: text}))
    return tuple(dict.fromkeys(shapes))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def of_topic(pattern: re.Pattern[str], topic: str) -> str | None:
    """What the topic's name says of a column: which shard it is."""
    found = pattern.search(topic)
    return found[1] or None if found else None


def absent_is_null(feed: Feed) -> bool:
    """Whether an event that lacks a field says that its value is null, as whole payloads of an outbox may.

    Debezium's rows have every column that the table has at the time, and partial payloads leave columns as they are.
    """
    return feed.envelope == "outbox" and feed.payload == "full"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the contract, and how its field is found and read."""

    name: str
    declared: Column
    fields: tuple[str, ...]
    read: Reader
    is_key: bool
    is_large: bool
    from_topic: re.Pattern[str] | None


class ReferenceDecoder:
    """Reads the records of one feed."""

    def __init__(self, feed: Feed) -> None:
        """Look at the contract once, for all records."""
        self.feed = feed
        large = large_columns(feed)
        self._columns = [
            _Column(
                name=name,
                declared=declared,
                fields=feed.fields_of(name),
                read=reader(declared, feed),
                is_key=name in feed.keys,
                is_large=name in large,
                from_topic=None if declared.from_topic is None else re.compile(declared.from_topic),
            )
            for name, declared in feed.columns.items()
        ]
        self._fields = fields_of(feed)
        self._known = KnownColumns(feed)
        self._placeholders = frozenset(placeholders(feed.unavailable_value_placeholder))
        self._unwrapped = Unwrapping(feed.schemas)
        self._read = table_statement if feed.envelope == "table" else outbox_statement

    def schemas(self) -> Mapping[str, MessageSchema | None]:
        """The schemas that messages came with, by the text before the payload."""
        return self._unwrapped.known

    @property
    def registered(self) -> Schemas:
        """The schemas of the registry, ready to read with."""
        return self._unwrapped.schemas

    def fields(self, record: Record) -> Collection[str]:
        """The names of the fields of the record's row."""
        return (self._read(record, self._fields, self._unwrapped).row or {}).keys()

    def table(self, record: Record) -> str | None:
        """The table that the record says it is of, as contracts name tables; None where it says none."""
        return self._read(record, self._fields, self._unwrapped).table

    def event(self, record: Record) -> Event:
        """What the record states."""
        return self.typed(self.statement(record), record)

    def statement(self, record: Record) -> Statement:
        """The same, before its values are read."""
        return erased_statement(record) or self._read(record, self._fields, self._unwrapped)

    def own_event(self, record: Record) -> Event | None:
        """The same; None where the record is of another feed that shares the topic."""
        if not self.feed.siblings:
            return self.event(record)
        statement = self.statement(record)
        return self.typed(statement, record) if is_own(statement, record.topic, self._fields) else None

    def typed(self, statement: Statement, record: Record) -> Event:
        """The statement with its values in the types of the contract, and with what did not fit."""
        feed, is_change = self.feed, statement.kind == "change"
        has_row = is_change and (not statement.is_delete or feed.append_only)
        has_key = is_change or statement.kind == "tombstone" or (feed.append_only and statement.kind == "truncate")
        may_leave_out = statement.op not in WHOLE_ROWS or statement.old_key is not None
        row: list[Value] = []
        absent: list[str] = []
        unchanged_toast: list[str] = []
        problems = [statement.problem] if statement.problem is not None else _too_large(record, statement, feed)
        for column in self._columns if has_key else ():
            if column.declared.metadata is not None:
                row.append(self._metadata(statement, column.declared.metadata))
                continue
            field = self._field(statement, column, record) if has_row or column.is_key or column.from_topic else None
            if field is None or column.from_topic is not None:
                row.append(field)
                if field is None and column.is_key and is_change:
                    problems.append(f"{column.name}: the record has no value for this key.")
                elif has_row and self._is_absent(statement, column):
                    absent.append(column.name)
                continue
            if column.is_large and may_leave_out and text_of(field) in self._placeholders:
                row.append(None)
                unchanged_toast.append(column.name)
                continue
            schema = None
            if statement.schemas is not None:
                schema = next((statement.schemas[part] for part in column.fields if part in statement.schemas), None)
            value = column.read(field, schema)
            if value is CONVERSION_ERROR:
                row.append(None)
                problems.append(conversion_error(field, column.declared, feed, name=column.name, schema=schema))
            else:
                row.append(value)
        shown = NO_DRIFT
        if is_change or statement.kind == "tombstone":
            row_of_fields = None if statement.is_delete else statement.row
            shown = self._known.drift(row_of_fields, statement.schemas, statement.key)
            problems += shown.problems
        # A tombstone with a key that does not fit names a row all the same: it may be the only delete of it.
        is_lost = statement.kind == "tombstone" and bool(problems)
        return Event(
            kind="unreadable" if is_lost else statement.kind,
            run_id=record.header(RUN_ID) or "",
            op=statement.op,
            is_delete=statement.is_delete,
            source_ts=statement.source_ts,
            read_ms=statement.read_ms,
            source=statement.source,
            event_id=statement.event_id,
            old_key=statement.old_key,
            new_key=statement.new_key,
            row=row if has_key and not is_lost else None,
            absent=absent,
            unchanged_toast=unchanged_toast,
            unsent_columns=unchanged_toast if absent_is_null(feed) else [*unchanged_toast, *absent],
            problems=problems,
            drift=shown.marks,
        )

    def _metadata(self, statement: Statement, name: Metadata) -> str | None:
        """What only the definition reads; the others follow from the rest of the event (silver.decode.arrow)."""
        if name == "schema":
            return text_of(statement.schema)
        return text_of(statement.block) if name == "source.properties" else None

    def _is_absent(self, statement: Statement, column: _Column) -> bool:
        """Whether the row has no field for a column that it would have one for."""
        if column.is_key or column.from_topic is not None or statement.row is None:
            return False
        return not any(part in statement.row for part in column.fields)

    def _field(self, statement: Statement, column: _Column, record: Record) -> Json:
        """The field of a column, wherever the event has it; None where it has none, or null.

        A key's value stands in the record's key, whatever the envelope; a delete may have no row.
        """
        if column.from_topic is not None:
            return of_topic(column.from_topic, record.topic)
        of_row = _first(statement.row, column.fields)
        if not column.is_key:
            return of_row
        if self.feed.envelope != "table" and of_row is not None:
            return of_row
        of_key = _first(statement.key.fields, column.fields)
        if of_key is None and self._fields.single_key:
            of_key = statement.key.value
        return of_row if of_key is None else of_key


def _too_large(record: Record, statement: Statement, feed: Feed) -> list[str]:
    """What is said of a record that leads to a row, and is larger than its table takes."""
    size, most = len(record.key or b"") + len(record.value or b""), feed.max_record_bytes
    if statement.kind != "change" or statement.is_delete or size <= most:
        return []
    return [f"The record has {size} bytes; the limit is {most} (max_record_bytes)."]


def _first(fields: Json, names: Sequence[str]) -> Json:
    if fields is not None:
        for name in names:
            if fields.get(name) is not None:
                return fields[name]
    return None


def conversion_error(field: Json, declared: Column, feed: Feed, *, name: str, schema: FieldSchema | None = None) -> str:
    """The sentence about a field of column `name` that its reader does not take."""
    expected = declared.type.ddl + (f" of {declared.source_type.text}" if declared.source_type else "")
    return f"{name}: the value is {_came(field, declared, feed, schema)}; the column is {expected}."


def _came(field: Json, declared: Column, feed: Feed, schema: FieldSchema | None) -> str:
    """What came in place of the declared type, in words."""
    text = text_of(field) or ""
    if isinstance(declared.type, ArrayType):
        return "an array with an element that does not fit" if text.startswith("[") else _kind(field, declared, feed)
    if schema is None:
        return _kind(field, declared, feed)
    numbers = isinstance(declared.element_type, DecimalType) or declared.source_name == "numeric"
    # A name may be anything: no more of it than names have.
    name = None if schema.name is None else re.sub(r"[^A-Za-z0-9._$-]", "?", schema.name)[:100]
    if not (is_decimal(schema) if numbers else is_known(schema, declared)):
        return name if name is not None else f"Connect's {re.sub('[^a-z0-9]', '?', schema.type or '')}"
    if name is None:
        return _kind(field, declared, feed)
    scale = f" of scale {schema.scale}" if numbers and schema.scale is not None else ""
    return f"{name}{scale} that does not fit"


def _kind(field: Json, declared: Column, feed: Feed) -> str:
    """What the field is as JSON, and why it does not fit."""
    text, means = text_of(field) or "", meaning(declared)
    held = declared.element_type
    is_of_decimals = isinstance(held, DecimalType) and means != "unsigned_bigint"
    is_of_times = means == "DATE" or "TIMESTAMP" in (means, held.ddl)
    if (is_of_decimals or not is_of_times) and text in _NOT_NUMBERS:
        return "NaN or infinity"
    if isinstance(held, DecimalType) and is_of_decimals:
        return _kind_of_decimal(field, text, held, feed)
    if means == "map":
        return "no map" if pairs_of(field) is None else "a map with a key that is NULL (map_null_key)"
    if text.startswith(("{", "[")):
        return "an object" if text.startswith("{") else "an array"
    if text in ("true", "false"):
        return "true or false"
    if means in ("timestamp", "timestamptz", "TIMESTAMP") and is_of_other_format(text, feed):
        return f"a time that is not written as timestamp_format says ({feed.timestamp_format})"
    if means == "TIMESTAMP" or held.ddl == "TIMESTAMP":
        return _kind_of_timestamp(text, declared, feed)
    if means == "DATE" and text in ("infinity", "-infinity"):
        return "infinity"
    if not NUMBER.fullmatch(text):
        return f"text that is no {_EXPECTED_TEXT.get(means, 'number')}"
    if means == "DATE" and not re.search("[.eE]", text):
        return "a number of days outside of years 1 to 9999"
    is_fraction = re.search("[.eE]", text) and means not in ("DOUBLE", "FLOAT", "numeric")
    return "a number with a fraction or an exponent" if is_fraction else "a number out of its range"


def _kind_of_timestamp(text: str, declared: Column, feed: Feed) -> str:
    if text in ("infinity", "-infinity"):
        return "infinity"
    if _FINER_THAN_MICROS.match(text):
        return "a time finer than microseconds"
    if not NUMBER.fullmatch(text):
        return f"text that is no {_EXPECTED_TEXT.get(meaning(declared), 'number')}"
    if re.search("[.eE]", text):
        return "a number with a fraction or an exponent"
    unit = epoch_unit(declared, feed)
    if unit == "nanos":
        return "a number of nanoseconds outside of years 1 to 9999, or with a part below microseconds"
    return "a number outside of years 1 to 9999" if unit else "a number in place of ISO 8601 text"


def _kind_of_decimal(field: Json, text: str, held: DecimalType, feed: Feed) -> str:
    if isinstance(field, dict):
        scale = text_of(field.get("scale"))
        is_finer = scale is not None and re.fullmatch("[0-9]{1,9}", scale) and int(scale) > held.scale
        return _count(int(scale or 0), "decimal place") if is_finer else "an object with no number that fits"
    if text.startswith("["):
        return "an array"
    precise = carries_precise_decimals(feed)
    number = digits_of(text) if not precise or isinstance(field, Number) else None
    if number is not None:
        if number.decimal_places > held.scale:
            return _count(number.decimal_places, "decimal place")
        return _count(max(number.before_point, 0), "digit", " before the point")
    if precise:
        is_encoded = text and from_base64(text) is not None
        return "base64 of a number with too many digits" if is_encoded else "text that is no base64 of a number"
    return "true or false" if text in ("true", "false") else "text that is no number"


def _count(number: int, what: str, where: str = "") -> str:
    return f"a number with {number} {what}{'' if number == 1 else 's'}{where}"
