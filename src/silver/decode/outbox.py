"""The events of an outbox, in every shape that the EventRouter gives them, and as the outbox table's own changes.

    plain       a JSON string that holds the payload as JSON text
    envelope    {"payload": "<JSON text>", "timestamp": …}
    expanded    the payload itself, which falls back to plain where the converter can infer no schema
    table       an insert into the outbox table, read without the EventRouter

Debezium documentation: "Outbox Event Router".
"""

from __future__ import annotations

from dataclasses import replace

from silver.decode.message import (
    Json,
    Key,
    MalformedError,
    Object,
    Record,
    Statement,
    parsed,
    text_of,
    whole_number,
)
from silver.decode.shapes import other_shape
from silver.decode.table import Fields
from silver.decode.times import instant, timestamp
from silver.decode.wrapper import Unwrapping, read_key

NOT_JSON = "The value is not JSON text."
NEITHER = "The value is not an outbox event: neither an object nor text that holds one."
ROW_CHANGED = "A row of the outbox table was changed: an event is stated by its insert alone."
NO_PAYLOAD = "The value has no payload."
NOT_A_ROW = "The payload is not a JSON object of the declared shape."
NO_FIELD = "The event has none of the declared fields."


def outbox_statement(record: Record, fields: Fields, unwrapped: Unwrapping) -> Statement:
    """What a record of an outbox's topic states: `op` is the event's type, `row` the payload."""
    try:
        return _of_value(record, fields, unwrapped)
    except MalformedError as why:  # of the key
        return Statement("unreadable", str(why))


def _of_value(record: Record, fields: Fields, unwrapped: Unwrapping) -> Statement:
    key = Key(value=read_key(record.key, unwrapped).value)
    event_type = record.header("eventType")
    found = Statement(
        "unreadable",
        op=event_type,
        is_delete=event_type in fields.feed.apply_as_deletes,
        key=key,
        event_id=record.header("id"),
    )
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
        if "op" in body and "after" in body and "payload" not in body:
            return _of_table(found, fields, body)
        # An order may have a column of that name itself.
        if "payload" in body and "payload" not in fields.declared:
            time = text_of(body.get("timestamp"))
            found.source_ts = None if time is None else timestamp(time, epoch_unit="micros")
            return _of_payload(found, fields, body["payload"])
        found.schemas = None if message.schema is None else message.schema.fields
        return _of_row(found, fields, body)
    return _of_payload(found, fields, body) if type(body) is str else replace(found, problem=NEITHER)


def _of_table(found: Statement, fields: Fields, body: Object) -> Statement:
    """A change of the outbox table itself."""
    op, row, source = text_of(body["op"]), body["after"], body.get("source")
    row = row if isinstance(row, dict) else {}
    found.op, found.key = text_of(row.get("type")), Key(value=text_of(row.get("aggregateid")))
    found.is_delete = found.op in fields.feed.apply_as_deletes
    found.event_id = text_of(row.get("id")) or found.event_id
    if isinstance(source, dict):
        found.source_ts = instant(whole_number(source.get("ts_ms")), epoch_unit="millis")
    found.read_ms = whole_number(body.get("ts_ms"))
    of_type = text_of(row.get("aggregatetype"))
    types = fields.feed.aggregate_types
    is_of_others = bool(types) and of_type is not None and of_type not in types
    if op in ("d", "t") or is_of_others:  # removals are of rows that were sent
        return replace(found, kind="ignored")
    if op is not None and op not in ("c", "r"):
        return replace(found, problem=ROW_CHANGED)
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
    return replace(found, row=row, kind="change")
