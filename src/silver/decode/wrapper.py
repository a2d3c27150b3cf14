"""What is around a message: the schema that JsonConverter puts there, or the registry's that Avro names by an id.

With `schemas.enable` a value or key is `{"schema": …, "payload": …}` (Kafka Connect, JsonConverter).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from lakehouse.registered import RegisteredSchema
from silver.decode.avro import Schemas, is_confluent
from silver.decode.message import (
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
MOST_KNOWN = 16

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
        if len(self.known) >= MOST_KNOWN:
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

    Raises MalformedError for Avro that cannot be read: it is no text.
    """
    if key and is_confluent(key):
        value = unwrapped.message(key, name="The key")[0].payload
        return Key(fields=value) if isinstance(value, dict) else Key(value=text_of(value))
    text = decoded_text(key) if key else None
    if text is None:
        return NO_KEY
    try:
        value = unwrapped(text, name="The key").payload
    except MalformedError:
        return Key(value=None if text.lstrip(SPACE)[:1] in ("{", "[", '"') else text)
    if isinstance(value, dict):
        return Key(fields=value)
    # White space around a value is of a text: JsonConverter writes none.
    is_bare = text != text.strip(SPACE) and not text.lstrip(SPACE).startswith(('"', "{"))
    return Key(value=text if is_bare else text_of(value))
