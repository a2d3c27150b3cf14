"""What is around a message: the schema that JsonConverter puts there, or the registry's that Avro names by an id.

With `schemas.enable` a value or key is `{"schema": …, "payload": …}` (Kafka Connect, JsonConverter).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from lakehouse.registered import RegisteredSchema
from silver.decode.avro import Schemas, is_confluent
from silver.decode.reference.message import (
    DECODER,
    NO_KEY,
    SPACE,
    FieldSchema,
    Json,
    Key,
    MalformedError,
    MessageSchema,
    Object,
    Wrapped,
    decoded_text,
    parsed,
    text_of,
)

# So many schemas are remembered: a topic has one, and another after a change of its table.
MAX_KNOWN = 16

# How every sentence about a key that cannot be read begins.
OF_KEY = "The key "
# What the converters of Kafka Connect for single numbers write, by its length.
_NUMBERS = {
    1: "BooleanConverter",
    2: "ShortConverter",
    4: "IntegerConverter or FloatConverter",
    8: "LongConverter or DoubleConverter",
}
_READABLE = "set key.converter to JsonConverter."
KEY_OF_STRUCT = f"The key is the text Struct{{…}}, as StringConverter writes a key of columns: {_READABLE}"
KEY_NOT_JSON = "The key begins as JSON does, and is not JSON."
_STRUCT = "Struct{"
# How texts that are no single value begin, behind what nobody sees: what is meant to be JSON, or a struct's text.
_NO_TEXT = ("{", "[", '"', _STRUCT)
_MARK = "\ufeff"
_UNSEEN = f"{SPACE}{_MARK}\u0085\u00a0\u200b\u200c\u200d\u2028\u2029\u2060"
# What no text of a key has, and numbers in binary do.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")

# How a wrapped message begins, as JsonConverter writes it.
WRAPPED = '{"schema":'
PAYLOAD = ',"payload":'


class Unwrapping:
    """Reads messages without what is around them. Schemas repeat from record to record: read once, they are known."""

    def __init__(self, registered: Mapping[int, RegisteredSchema] | None = None) -> None:
        """Begin with no schema known but those of the registry. `known`: by the text up to the payload."""
        self.known: dict[str, MessageSchema | None] = {}
        self.schemas = Schemas(registered)

    def message(self, data: bytes, *, name: str) -> tuple[Wrapped, str]:
        """The message that the bytes are, and its text; none of Avro. Raises MalformedError."""
        if is_confluent(data):
            schema = self.schemas.of(data, name=name)
            return Wrapped(schema.json(data, name=name), schema.message, schema.text), ""
        text = decoded_text(data)
        if text is None:
            raise MalformedError(f"{name} is not UTF-8 text.")
        return self(text, name=name), text

    def __call__(self, text: str, *, name: str) -> Wrapped:
        """The message that the text is. Raises MalformedError."""
        if text.startswith(WRAPPED):
            for prefix, schema in self.known.items():
                if text.startswith(prefix) and text.endswith("}"):
                    # With more behind the payload it is none: then all of it is read.
                    with suppress(MalformedError):
                        payload = parsed(text[len(prefix) : -1], name=name)
                        return Wrapped(payload, schema, _schema_of(prefix))
        message = parsed(text, name=name)
        if not isinstance(message, dict) or len(message) != 2 or "schema" not in message or "payload" not in message:
            return Wrapped(message)
        schema = message_schema(message["schema"])
        begins = _up_to_payload(text, message)
        if begins is None:
            return Wrapped(message["payload"], schema, message["schema"])
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known[begins] = schema
        return Wrapped(message["payload"], schema, _schema_of(begins))


def _up_to_payload(text: str, message: Object) -> str | None:
    """What stands before the payload of a wrapped message, as JsonConverter writes it: the schema first, no spaces."""
    if not text.startswith(WRAPPED) or text[len(WRAPPED)] in SPACE:
        return None
    schema, end = DECODER.raw_decode(text, len(WRAPPED))
    prefix = text[:end] + PAYLOAD
    # Of a schema that is there twice the last one counts.
    return prefix if text.startswith(prefix) and schema == message["schema"] else None


def _schema_of(prefix: str) -> str | None:
    """The text of the schema, as it is written."""
    text = prefix[len(WRAPPED) : -len(PAYLOAD)]
    return None if text == "null" else text


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
    """What a record's key is. One that is not JSON is the text of a single value, as StringConverter writes it.

    Raises MalformedError for a key that cannot be read: its sentence begins with OF_KEY.
    """
    if not key:
        return NO_KEY
    if is_confluent(key):
        return _avro_key(key, unwrapped)
    text = decoded_text(key)
    if text is None or _CONTROL.search(text):
        raise MalformedError(_of_bytes(key))
    try:
        value = unwrapped(text, name="The key").payload
    except MalformedError as why:
        if str(why):
            raise
        begins = text.lstrip(_UNSEEN)
        if begins.startswith(_NO_TEXT) or _MARK in text:
            raise MalformedError(KEY_OF_STRUCT if begins.startswith(_STRUCT) else KEY_NOT_JSON) from None
        return Key(value=text)
    if isinstance(value, dict):
        return Key(fields=value)
    # White space around a value is of a text: JsonConverter writes none.
    is_bare = text != text.strip(SPACE) and not text.lstrip(SPACE).startswith(('"', "{"))
    return Key(value=text if is_bare else text_of(value))


def _avro_key(key: bytes, unwrapped: Unwrapping) -> Key:
    try:
        value = unwrapped.message(key, name="The key")[0].payload
    except MalformedError as why:
        # As many bytes as a whole number of 64 bits, which most often begins with zeros.
        more = f" {_of_bytes(key)}" if len(key) in _NUMBERS else ""
        raise MalformedError(f"{why}{more}") from None
    return Key(fields=value) if isinstance(value, dict) else Key(value=text_of(value))


def _of_bytes(key: bytes) -> str:
    """The sentence about a key that is no text: how many bytes it has, and which converters write so many."""
    converters = _NUMBERS.get(len(key))
    written = f", as {converters} writes them" if converters else ""
    return f"{OF_KEY}is {len(key)} bytes that are no text{written}: {_READABLE}"
