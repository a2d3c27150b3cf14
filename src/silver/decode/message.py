"""A Kafka message as JSON: its bytes, its headers, its key, and the schema that JsonConverter may put around it.

JSON is RFC 8259's: UTF-8, no comments, no NaN. Numbers stay as they are written (`Number`). Of a field that an object
has twice the last one counts, as for Debezium's own consumers. With `schemas.enable` a value or key is
`{"schema": …, "payload": …}` (Kafka Connect, JsonConverter).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, NamedTuple, NoReturn

# Deeper than any row: JSON columns of MySQL end at 100. Parsers go down by recursion, and Python ends at 1,000.
MOST_LEVELS = 500

# So many schemas are remembered: a topic has one, and another after a change of its table.
MOST_KNOWN = 16

AVRO = "The value is in the Confluent wire format (Avro or Protobuf): Connect's JsonConverter writes what is read here."
NOT_TEXT = "The value is not UTF-8 text."

Json = Any
Object = Mapping[str, Json]

# How a wrapped message begins, as JsonConverter writes it.
WRAPPED = '{"schema":'

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SPACE = " \t\n\r"


class Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


class MalformedError(Exception):
    """Text that is not read, and why, in words of no value; empty where it just is not JSON."""


class Record(NamedTuple):
    """What Kafka has of a record, as far as it says what it is."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    def header(self, name: str) -> str | None:
        """The text of the first header of that name; None without one."""
        for own, value in self.headers:
            if own == name:
                return None if value is None else value.decode("utf-8", errors="replace")
        return None


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """Of a field's schema (Kafka Connect), what says how to read it."""

    type: str | None = None
    name: str | None = None
    scale: int | None = None
    items: FieldSchema | None = None
    precision: int | None = None


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """The schema of a message: its type, and those of its fields and of their fields."""

    type: str | None
    fields: Mapping[str, FieldSchema]
    nested: Mapping[str, Mapping[str, FieldSchema]]


class Source(NamedTuple):
    """Of an event's source block, what a position is made of, and which table it is of."""

    name: str | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    snapshot: str | None = None
    sequence: Sequence[str | None] | None = None
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None


# Of these, the whole numbers.
NUMBERS_OF_SOURCE = ("ts_ms", "ts_us", "lsn", "pos", "row")


class Wrapped(NamedTuple):
    """A message without what may be around it."""

    payload: Json
    schema: MessageSchema | None = None


class Key(NamedTuple):
    """A record's key: the fields of an object, or the text of a single value."""

    fields: Object | None = None
    value: str | None = None


NO_KEY = Key()


@dataclass(slots=True)
class Statement:
    """What a record states, before its values are read. `problem`: of one that is unreadable, why.

    `row`: the fields of the row, or of an outbox's payload; of a delete those of the row before, where it alone has
    the key. Times: `source_ts` in microseconds, `read_ms` (when the connector read it) in milliseconds. `body`: of a
    table's topic, the value without what may be around it, whatever it is. `table`: as contracts name it.
    """

    kind: str
    problem: str | None = None
    op: str | None = None
    is_delete: bool = False
    row: Object | None = None
    key: Key = NO_KEY
    schemas: Mapping[str, FieldSchema] | None = None
    source: Source | None = None
    source_ts: int | None = None
    read_ms: int | None = None
    event_id: str | None = None
    table: str | None = None
    old_key: str | None = None
    new_key: str | None = None
    body: Json = None


def _refuse(_constant: str) -> NoReturn:
    raise ValueError


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_refuse)


def parsed(text: str, *, name: str) -> Json:
    """The one JSON value that `text` is. Raises MalformedError, which calls the text `name`, for anything else."""
    if text.count("[") + text.count("{") > MOST_LEVELS and _levels(text) > MOST_LEVELS:
        raise MalformedError(f"{name} is nested more than {MOST_LEVELS} levels deep.")
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise MalformedError from None
    if ("\\ud" in text or "\\uD" in text) and not _is_text(value):
        raise MalformedError(f"{name} has one half of a surrogate pair, which is no text.")
    return value


def has_twice(text: str, field: str) -> bool:
    """Whether an object in the JSON text has a field of this name more than once."""
    is_named_twice = text.count(f'"{field}"') > 1 and len(re.findall(rf'"{field}"[ \t\n\r]*:', text)) > 1
    # A name may be written with escapes.
    if not is_named_twice and "\\u00" not in text:
        return False
    found: list[bool] = []

    def look(pairs: list[tuple[str, Json]]) -> None:
        found.append(sum(name == field for name, _value in pairs) > 1)

    # Numbers stay text here too: Python refuses those of many digits.
    json.loads(text, object_pairs_hook=look, parse_int=Number, parse_float=Number)
    return any(found)


def text_of(value: Json) -> str | None:
    """A field as text: a scalar as it is written, an object or array as JSON without spaces; None of null."""
    if value is None or type(value) is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    return str(value) if isinstance(value, str) else compact(value)


def compact(value: Json) -> str:
    """JSON without spaces, its numbers as they were written. Not by recursion: `MOST_LEVELS` are more than its end."""
    written: list[str] = []
    rest: list[Json] = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict | list):
            rest.extend(reversed(_parts(one)))
        elif isinstance(one, str) and not isinstance(one, Number):
            written.append(encode_basestring(one))
        else:
            text = text_of(one)
            written.append("null" if text is None else text)
    return "".join(written)


def _parts(value: Json) -> list[Json]:
    """The values in an object or array, and what stands between them, which is written as numbers are: as it is."""
    names = [f"{encode_basestring(name)}:" for name in value] if isinstance(value, dict) else [""] * len(value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    parts: list[Json] = [Number(opening)]
    for number, (name, one) in enumerate(zip(names, value.values() if isinstance(value, dict) else value, strict=True)):
        parts += [Number(f",{name}" if number else name), one]
    return [*parts, Number(closing)]


def whole_number(value: Json) -> int | None:
    """A JSON number of 64 bits without fraction or exponent; None of anything else."""
    if type(value) is not Number or len(value) > 20:
        return None
    try:
        number = int(value)
    except ValueError:  # a fraction, or an exponent
        return None
    return number if -(2**63) <= number < 2**63 else None


def is_confluent(value: bytes) -> bool:
    """The Confluent wire format begins with a zero byte and the four of a schema id."""
    return len(value) > 5 and value[0] == 0


def decoded_text(value: bytes) -> str | None:
    """The bytes as text; None when they are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


class Unwrapping:
    """Takes the wrapper off messages. Their schemas repeat from record to record: read once, they are known again."""

    def __init__(self) -> None:
        """Begin with no schema known. `known`: by the text up to the payload."""
        self.known: dict[str, MessageSchema | None] = {}

    def __call__(self, text: str, *, name: str) -> Wrapped:
        """The message that the text is. Raises MalformedError."""
        if text.startswith(WRAPPED):
            for prefix, schema in self.known.items():
                if text.startswith(prefix) and text.endswith("}"):
                    # With more behind the payload it is none: then all of it is read.
                    with suppress(MalformedError):
                        return Wrapped(parsed(text[len(prefix) : -1], name=name), schema)
        message = parsed(text, name=name)
        if not isinstance(message, dict) or len(message) != 2 or "schema" not in message or "payload" not in message:
            return Wrapped(message)
        schema = message_schema(message["schema"])
        self._remember(text, message, schema)
        return Wrapped(message["payload"], schema)

    def _remember(self, text: str, message: Object, schema: MessageSchema | None) -> None:
        prefix = _up_to_payload(text, message)
        if prefix is not None:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.known[prefix] = schema


def _up_to_payload(text: str, message: Object) -> str | None:
    """What stands before the payload of a wrapped message, as JsonConverter writes it: the schema first, no spaces."""
    if not text.startswith(WRAPPED) or text[len(WRAPPED)] in _SPACE:
        return None
    schema, end = _DECODER.raw_decode(text, len(WRAPPED))
    prefix = text[:end] + ',"payload":'
    # Of a schema that is there twice the last one counts.
    return prefix if text.startswith(prefix) and schema == message["schema"] else None


def message_schema(schema: Json) -> MessageSchema | None:
    """What a wrapper says of its payload; None when it says nothing."""
    if not isinstance(schema, dict):
        return None
    fields, nested = {}, {}
    for name, one in _named(schema):
        fields[name] = _field_schema(one)
        nested[name] = {inner: _field_schema(of) for inner, of in _named(one)}
    return MessageSchema(text_of(schema.get("type")), fields, nested)


def _named(schema: Object) -> list[tuple[str, Object]]:
    fields = schema.get("fields")
    found = [one for one in fields if isinstance(one, dict)] if isinstance(fields, list) else []
    return [(name, one) for one in found if isinstance(name := one.get("field"), str)]


def _field_schema(one: Object) -> FieldSchema:
    parameters, items = one.get("parameters"), one.get("items")
    parameters = parameters if isinstance(parameters, dict) else {}
    return FieldSchema(
        type=text_of(one.get("type")),
        name=text_of(one.get("name")),
        scale=_parameter(parameters.get("scale")),
        items=_field_schema(items) if isinstance(items, dict) else None,
        precision=_parameter(parameters.get("connect.decimal.precision")),
    )


def _parameter(value: Json) -> int | None:
    text = text_of(value)
    return int(text) if text is not None and re.fullmatch("-?[0-9]{1,9}", text) else None


def read_key(key: bytes | None, unwrapped: Unwrapping) -> Key:
    """What a record's key is. One that is not JSON is the text of a single value, as StringConverter writes it."""
    text = decoded_text(key) if key else None
    if text is None:
        return NO_KEY
    try:
        value = unwrapped(text, name="The key").payload
    except MalformedError:
        return Key(value=None if text.lstrip(_SPACE)[:1] in ("{", "[", '"') else text)
    if isinstance(value, dict):
        return Key(fields=value)
    # White space around a value is of a text: JsonConverter writes none.
    is_bare = text != text.strip(_SPACE) and not text.lstrip(_SPACE).startswith(('"', "{"))
    return Key(value=text if is_bare else text_of(value))


def _levels(text: str) -> int:
    """How deep the brackets go, outside of strings."""
    deepest = level = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def _is_text(value: Json) -> bool:
    """Whether no string in it has half of a surrogate pair."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += [*one, *one.values()]
        elif isinstance(one, list):
            rest += one
        elif isinstance(one, str):
            try:
                one.encode()
            except UnicodeEncodeError:
                return False
    return True
