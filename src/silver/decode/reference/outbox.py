"""The events of an outbox, in every shape that the EventRouter gives them, and as the outbox table's own changes.

    plain       a JSON string that holds the payload as JSON text
    envelope    {"payload": "<JSON text>", "timestamp": …}
    expanded    the payload itself, which falls back to plain where the converter can infer no schema
    table       an insert into the outbox table, read without the EventRouter, or its row, flattened

Debezium documentation: "Outbox Event Router".
"""

from __future__ import annotations

from dataclasses import replace

from silver.decode.reference.message import (
    Json,
    Key,
    MalformedError,
    Object,
    Record,
    Statement,
    parsed,
    text_of,
    unknown_word,
    whole_number,
)
from silver.decode.reference.shapes import other_shape
from silver.decode.reference.table import Fields, flat_operation
from silver.decode.reference.times import instant, timestamp
from silver.decode.reference.wrapper import Unwrapping, read_key

NOT_JSON = "The value is not JSON text."
NEITHER = "The value is not an outbox event: neither an object nor text that holds one."
NO_TYPE = "The event has no type, and types say which events delete: event_type names the header or field that has it."
UNKNOWN_TYPE = "The event's type is none of those that the contract lists (apply_as_upserts, apply_as_deletes)."
TWO_TYPES = "The event has one type in its header, and another one in its envelope."
NO_PAYLOAD = "The value has no payload."
NOT_A_ROW = "The payload is not a JSON object of the declared shape."
NO_FIELD = "The event has none of the declared fields."

# An insert states an event. As the EventRouter does, silver passes over what becomes of the row later: updates (a relay
# marks rows that it has sent), removals, and logical messages.
_EVENTS, _NO_EVENTS = ("c", "r"), ("u", "d", "t", "m")
# What a row of the outbox table has, and no envelope of the EventRouter.
_OF_ROW = {"id", "aggregateid", "payload"}


def outbox_statement(record: Record, fields: Fields, unwrapped: Unwrapping) -> Statement:
    """What a record of an outbox's topic states: `op` is the event's type, `row` the payload."""
    try:
        return _of_value(record, fields, unwrapped)
    except MalformedError as why:  # of the key
        return Statement("unreadable", str(why))


def _of_value(record: Record, fields: Fields, unwrapped: Unwrapping) -> Statement:
    event_type = fields.feed.event_type
    key = Key(value=read_key(record.key, unwrapped).value)
    found = _of_type(Statement("unreadable", key=key, event_id=record.header("id")), fields, record.header(event_type))
    if not record.value:
        return replace(found, kind="tombstone")
    try:
        message, _text = unwrapped.message(record.value, name="The value")
    except MalformedError as why:
        return replace(found, problem=str(why) or NOT_JSON)
    body, found.schema = message.payload, message.whole
    if body is None:
        return replace(found, kind="tombstone")
    if isinstance(body, dict):
        found.schemas = None if message.schema is None else message.schema.fields
        return _of_object(found, fields, body, record)
    return _of_payload(found, fields, body) if type(body) is str else replace(found, problem=NEITHER)


def _of_object(found: Statement, fields: Fields, body: Object, record: Record) -> Statement:
    """A value that is an object: of the outbox table, an envelope, or the payload itself, which alone has schemas."""
    if "op" in body and "after" in body and "payload" not in body:
        return _of_table(replace(found, schemas=None), fields, body)
    # An order may have a column of that name itself.
    if "payload" not in body or "payload" in fields.declared:
        return _of_row(found, fields, body)
    found = replace(found, schemas=None)
    if body.keys() >= _OF_ROW:
        return _of_flat_table(found, fields, body, record)
    time, event_type = text_of(body.get("timestamp")), text_of(body.get(fields.feed.event_type))
    found.source_ts = None if time is None else timestamp(time, epoch_unit="micros")
    if event_type and found.op and event_type != found.op:
        return replace(found, problem=TWO_TYPES)
    return _of_payload(_of_type(found, fields, event_type) if event_type else found, fields, body["payload"])


def _of_flat_table(found: Statement, fields: Fields, row: Object, record: Record) -> Statement:
    """A row of the outbox table that ExtractNewRecordState has flattened."""
    op, unknown = flat_operation(row, record)
    if unknown is not None:
        return replace(found, problem=unknown)
    has_type = "type" in row or fields.feed.event_type in row
    return _of_table(found, fields, {"op": op or "c", "after": row if has_type else {**row, "type": found.op}})


def _of_table(found: Statement, fields: Fields, body: Object) -> Statement:
    """A change of the outbox table itself."""
    op, row, source = text_of(body["op"]), body["after"], body.get("source")
    row = row if isinstance(row, dict) else {}
    found = _of_type(found, fields, text_of(row["type"] if "type" in row else row.get(fields.feed.event_type)))
    found.key = Key(value=text_of(row.get("aggregateid")))
    found.event_id = text_of(row.get("id")) or found.event_id
    if isinstance(source, dict):
        found.source_ts = instant(whole_number(source.get("ts_ms")), epoch_unit="millis")
    found.read_ms = whole_number(body.get("ts_ms"))
    of_type = text_of(row.get("aggregatetype"))
    types = fields.feed.aggregate_types
    is_of_others = bool(types) and of_type is not None and of_type not in types
    if op in _NO_EVENTS or is_of_others:
        return replace(found, kind="ignored")
    if op not in _EVENTS:
        return replace(found, problem=unknown_word("op", (*_EVENTS, *_NO_EVENTS)))
    return _of_payload(found, fields, row.get("payload"))


def _of_payload(found: Statement, fields: Fields, payload: Json) -> Statement:
    """An event whose payload is JSON text, or an object already."""
    if payload is None:
        return replace(found, problem=NO_PAYLOAD)
    if not isinstance(payload, dict):
        try:
            payload = parsed(text_of(payload) or "", name="The payload")
        except MalformedError as why:
            return replace(found, problem=str(why) or NOT_A_ROW)
    return _of_row(found, fields, payload) if isinstance(payload, dict) else replace(found, problem=NOT_A_ROW)


def _of_row(found: Statement, fields: Fields, row: Object) -> Statement:
    """Any object would be an order without columns: it is none unless it has one of them at least."""
    if (foreign := other_shape(row, fields.declared)) is not None:
        return replace(found, problem=foreign)
    if fields.declared.isdisjoint(row):
        return replace(found, row=row, problem=NO_FIELD)
    if (problem := _why_no_type(found.op, fields)) is not None:
        return replace(found, row=row, problem=problem)
    return replace(found, row=row, kind="change")


def _of_type(found: Statement, fields: Fields, event_type: str | None) -> Statement:
    """The statement as one of an event of this type."""
    return replace(found, op=event_type, is_delete=event_type in fields.feed.apply_as_deletes)


def _why_no_type(event_type: str | None, fields: Fields) -> str | None:
    """What is wrong with the type of an event, where types decide: None where it is known, or may be any other."""
    feed = fields.feed
    listed = (*feed.apply_as_deletes, *feed.apply_as_upserts)
    if not feed.types_decide or event_type in listed:
        return None
    if event_type is None or not event_type.strip():
        return NO_TYPE
    # Blanks that a column of fixed width has, or capitals, make no other type.
    is_nearly_one = _plain(event_type) in map(_plain, listed)
    return UNKNOWN_TYPE if feed.apply_as_upserts or is_nearly_one else None


def _plain(event_type: str) -> str:
    return event_type.strip().casefold()
