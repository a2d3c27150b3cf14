"""A Kafka message as JSON, and what it states before its values are read.

JSON is RFC 8259's: UTF-8, no comments, no NaN. Numbers stay as they are written (`Number`). Of a field that an object
has twice the last one counts, as for Debezium's own consumers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Literal, NamedTuple, NoReturn, get_args

# Deeper than any row: JSON columns of MySQL end at 100. Parsers go down by recursion, and Python ends at 1,000.
MAX_LEVELS = 500

Json = Any
Object = Mapping[str, Json]

# What a source block may state of snapshots (Debezium, `SnapshotRecord`).
SnapshotWord = Literal[
    "true", "first", "first_in_data_collection", "last_in_data_collection", "last", "false", "incremental"
]
SNAPSHOT_WORDS: tuple[str, ...] = get_args(SnapshotWord)

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
SPACE = " \t\n\r"


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
        """The text of the first header of that name (`header_text`); None without one, and of null."""
        for own, value in self.headers:
            if own == name:
                return None if value is None else header_text(value)
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
    """A message without what may be around it. `whole`: the schema as JSON, or the text of it."""

    payload: Json
    schema: MessageSchema | None = None
    whole: Json = None


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
    `schema`: of the message, as JSON or the text of it. `block`: the source block as it is.
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
    schema: Json = None
    block: Json = None


def unknown_word(field: str, words: Sequence[str]) -> str:
    """The sentence about a field whose value is none of the words that it may have."""
    return f"{field}: the value is none of {', '.join(words[:-1])} and {words[-1]}."


def _refuse(_constant: str) -> NoReturn:
    raise ValueError


DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_refuse)


def parsed(text: str, *, name: str) -> Json:
    """The one JSON value that `text` is. Raises MalformedError, which calls the text `name`, for anything else."""
    if text.count("[") + text.count("{") > MAX_LEVELS and _levels(text) > MAX_LEVELS:
        raise MalformedError(f"{name} is nested more than {MAX_LEVELS} levels deep.")
    try:
        value = DECODER.decode(text)
    except (ValueError, RecursionError):
        raise MalformedError from None
    if ("\\ud" in text or "\\uD" in text) and not _is_text(value):
        raise MalformedError(f"{name} has one half of a surrogate pair, which is no text.")
    return value


def header_text(value: bytes) -> str | None:
    """The text that a header's bytes are, whichever `header.converter` wrote them; None of null.

    SimpleHeaderConverter, which is the default, and StringConverter write text as it is. JsonConverter writes it in
    quotes, and with `schemas.enable` with its schema around it.
    """
    text = value.decode("utf-8", errors="replace")
    if not text.startswith(('"', "{")) and text != "null":
        return text
    try:
        message = parsed(text, name="The header")
    except MalformedError:  # text that begins as JSON does
        return text
    if isinstance(message, dict):
        is_wrapped = message.keys() == {"schema", "payload"} and isinstance(message["schema"], dict | None)
        return text_of(message["payload"]) if is_wrapped else text
    return text_of(message)


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
    """JSON without spaces, its numbers as they were written. Not by recursion: `MAX_LEVELS` are more than its end."""
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


def decoded_text(value: bytes) -> str | None:
    """The bytes as text; None when they are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


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
