"""Avro in the Confluent wire format: a zero byte, a schema's id in four bytes, and the datum.

A record is read with the schema that wrote it, as JsonConverter would write the same values: so every shape and every
declared type is read by the one definition. Avro specification 1.12, "Schema Resolution", "Logical Types"; Confluent
documentation, "Wire format"; Kafka Connect's Avro converters name Connect's types by `connect.name` and
`connect.parameters`.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from lakehouse.registered import ABSENT, AVRO, RegisteredSchema
from silver.decode.reference.message import FieldSchema, Json, MalformedError, MessageSchema, Number, parsed
from silver.decode.reference.numbers import shortest_single

HEAD = 5

NO_REGISTRY = "is in the Confluent wire format (Avro), and no schema registry is named: set schema_registry."
NOT_OF_SCHEMA = "is not Avro of the schema that its id names."
RECURSIVE = "The schema of the record contains itself, which no row does."

_CONNECT, _TIME = "org.apache.kafka.connect.data", "io.debezium.time"
# What Avro's logical types are as semantic types; `connect.name` goes before them.
_SEMANTIC = {
    "decimal": f"{_CONNECT}.Decimal",
    "date": f"{_CONNECT}.Date",
    "time-millis": f"{_CONNECT}.Time",
    "time-micros": f"{_TIME}.MicroTime",
    "timestamp-millis": f"{_CONNECT}.Timestamp",
    "timestamp-micros": f"{_TIME}.MicroTimestamp",
    "timestamp-nanos": f"{_TIME}.NanoTimestamp",
    "local-timestamp-millis": f"{_CONNECT}.Timestamp",
    "local-timestamp-micros": f"{_TIME}.MicroTimestamp",
    "local-timestamp-nanos": f"{_TIME}.NanoTimestamp",
    "uuid": "io.debezium.data.Uuid",
}
_TYPES = {"int": "int32", "long": "int64", "record": "struct", "fixed": "bytes", "enum": "string"}

Convert = Callable[[Any], Any]


def is_confluent(value: bytes) -> bool:
    """The Confluent wire format begins with a zero byte and the four of a schema id."""
    return len(value) > HEAD and value[0] == 0


def schema_id(value: bytes) -> int:
    """The id of the schema of such a value."""
    return int.from_bytes(value[1:HEAD], "big")


@dataclass(frozen=True)
class AvroSchema:
    """A schema of the registry, made ready to read with. Raises MalformedError where nothing can be read with it."""

    text: str

    @cached_property
    def declared(self) -> Any:
        """The schema with every name in place of which it stands."""
        try:
            schema = msgspec.json.decode(self.text)
            return _resolved(schema, {}, "", ())
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, RecursionError):
            raise MalformedError("The registry's schema of the record is not Avro.") from None

    @cached_property
    def message(self) -> MessageSchema:
        """What the schema says of the fields."""
        declared = _plain(self.declared)
        fields = {one["name"]: one["type"] for one in _fields(declared)}
        return MessageSchema(
            type=_type(declared),
            fields={name: _field_schema(one) for name, one in fields.items()},
            nested={
                name: {inner["name"]: _field_schema(inner["type"]) for inner in _fields(_plain(one))}
                for name, one in fields.items()
            },
        )

    @cached_property
    def _read(self) -> Convert:
        from fastavro import parse_schema, schemaless_reader

        try:
            # Logical types are read by the definition, not here: as JsonConverter leaves them.
            wire = parse_schema(_without_logical_types(msgspec.json.decode(self.text)))
        except Exception:  # whatever the library finds wrong in it
            raise MalformedError("The registry's schema of the record is not Avro.") from None
        # One that contains itself is found here: a value of it could go down deeper than the library's stack.
        _ = self.declared

        def read(datum: io.BytesIO) -> Any:
            return schemaless_reader(datum, wire, None)

        return read

    @cached_property
    def _convert(self) -> Convert | None:
        return _conversion(self.declared)

    def require(self) -> None:
        """Raise MalformedError where no value can be read with it."""
        _ = self._read

    def value(self, message: bytes, *, name: str) -> Any:
        """The value of a message, in Python: what JSON has no number for as text. Raises MalformedError."""
        datum = io.BytesIO(message)
        datum.seek(HEAD)
        try:
            value = self._read(datum)
        except MalformedError:
            raise
        except Exception:  # the library raises what it happens upon: EOFError, IndexError, UnicodeDecodeError …
            raise MalformedError(f"{name} {NOT_OF_SCHEMA}") from None
        if datum.tell() != len(message):
            raise MalformedError(f"{name} {NOT_OF_SCHEMA}")
        return value if self._convert is None else self._convert(value)

    def json(self, message: bytes, *, name: str) -> Json:
        """The message as JsonConverter would write it. Raises MalformedError."""
        try:
            text = msgspec.json.encode(self.value(message, name=name)).decode()
        except RecursionError:
            raise MalformedError(f"{name} {NOT_OF_SCHEMA}") from None
        return parsed(text, name=name)


class Schemas:
    """The schemas of a registry that are known, by id; None: no registry is named."""

    def __init__(self, registered: Mapping[int, RegisteredSchema] | None) -> None:
        self._registered = registered
        self._ready: dict[int, AvroSchema] = {}

    def of(self, message: bytes, *, name: str) -> AvroSchema:
        """The schema of a message. Raises MalformedError where there is none to read with."""
        if self._registered is None:
            raise MalformedError(f"{name} {NO_REGISTRY}")
        number = schema_id(message)
        ready = self._ready.get(number)
        if ready is not None:
            return ready
        known = self._registered.get(number)
        if known is None:
            raise MalformedError(f"{name} names schema {number}, which is not known here.")
        if known.kind == ABSENT:
            raise MalformedError(f"{name} names schema {number}, which the registry does not have.")
        if known.kind != AVRO:
            raise MalformedError(f"{name} names schema {number}, which is {known.kind}: {AVRO} is read.")
        self._ready[number] = AvroSchema(known.text)
        return self._ready[number]


def keys_of(number: int, registered: Mapping[int, RegisteredSchema]) -> list[bytes]:
    """The keys that are this number: in each of these schemas that is a whole number, or a record of one."""
    from fastavro import schemaless_writer

    found = []
    for schema_number, one in registered.items():
        if one.kind != AVRO:
            continue
        try:
            declared = AvroSchema(one.text).declared
        except MalformedError:
            continue
        fields = _fields(declared)
        kinds = [field["type"] for field in fields] if fields else [declared]
        if [_type(_plain(kind)) for kind in kinds] in (["int8"], ["int16"], ["int32"], ["int64"]):
            datum = io.BytesIO()
            datum.write(b"\0" + schema_number.to_bytes(HEAD - 1, "big"))
            # A number that is too large is no key of this schema.
            with suppress(ValueError, OverflowError):
                schemaless_writer(datum, declared, {fields[0]["name"]: number} if fields else number)
                found.append(datum.getvalue())
    return found


def _resolved(schema: Any, known: dict[str, Any], namespace: str, inside: tuple[str, ...]) -> Any:
    """The schema without references to names. Raises MalformedError for one that contains itself."""
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return schema
        name = _full_name(schema, namespace)
        name = name if name in known or name in inside else schema
        if name in inside:
            raise MalformedError(RECURSIVE)
        return known[name]
    if isinstance(schema, list):
        return [_resolved(one, known, namespace, inside) for one in schema]
    kind = schema["type"]
    if kind == "array":
        return {**schema, "items": _resolved(schema["items"], known, namespace, inside)}
    if kind == "map":
        return {**schema, "values": _resolved(schema["values"], known, namespace, inside)}
    if kind not in ("record", "error", "enum", "fixed"):
        return schema
    name = _full_name(schema["name"], schema.get("namespace", namespace))
    own = name.rpartition(".")[0]
    found = dict(schema)
    if kind in ("record", "error"):
        found["fields"] = [
            {**one, "type": _resolved(one["type"], known, own, (*inside, name))} for one in schema["fields"]
        ]
    known[name] = found
    return found


_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # Defaults are of readers' schemas, and this one is the writer's.
    return {
        name: _without_logical_types(value) if name in ("type", "fields", "items", "values") else value
        for name, value in schema.items()
        if name not in ("logicalType", "default")
    }


def _plain(schema: Any) -> Any:
    """What is in a union beside null, where that is one; else the schema itself."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        return others[0] if len(others) == 1 else schema
    return schema


def _type(schema: Any) -> str | None:
    """The type as Kafka Connect calls it."""
    if isinstance(schema, list):
        return None
    if isinstance(schema, str):
        return _TYPES.get(schema, schema)
    if schema.get("connect.type") in ("int8", "int16"):
        return str(schema["connect.type"])
    kind = str(schema["type"])
    return _TYPES.get(kind, kind)


def _fields(schema: Any) -> list[Any]:
    return list(schema["fields"]) if isinstance(schema, dict) and schema["type"] in ("record", "error") else []


def _field_schema(schema: Any) -> FieldSchema:
    plain = _plain(schema)
    if not isinstance(plain, dict):
        return FieldSchema(type=_type(plain))
    parameters = plain.get("connect.parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    name = plain.get("connect.name") or _SEMANTIC.get(str(plain.get("logicalType")))
    is_decimal = name == _SEMANTIC["decimal"]
    return FieldSchema(
        type=_type(plain),
        name=name if isinstance(name, str) else None,
        scale=_number(parameters.get("scale", plain.get("scale", 0))) if is_decimal else None,
        items=_field_schema(plain["items"]) if plain["type"] == "array" else None,
        precision=_number(parameters.get("connect.decimal.precision", plain.get("precision"))) if is_decimal else None,
    )


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _conversion(schema: Any) -> Convert | None:
    """What makes of a value that was read what JSON has in its place; None where they are the same."""
    if isinstance(schema, list):
        return _of_union(schema)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in ("float", "double"):
        return _single if kind == "float" else _double
    if kind == "array":
        return _of_items(schema["items"])
    if kind == "map":
        of_value = _conversion(schema["values"])
        return None if of_value is None else lambda value: {name: of_value(one) for name, one in value.items()}
    return _of_record(schema) if kind in ("record", "error") else None


def _of_union(schema: list[Any]) -> Convert | None:
    plain = _plain(schema)
    if isinstance(plain, list):
        # Which branch it was the value does not say; Kafka Connect has no such types but of its own.
        return None if all(_conversion(one) is None for one in plain) else _refused
    convert = _conversion(plain)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _refused(_value: Any) -> Any:
    raise MalformedError("The schema of the record has a union of several types, with a float among them.")


def _of_items(items: Any) -> Convert | None:
    if _is_map_entry(items):
        # A map whose keys are not text: JsonConverter writes pairs.
        of_key, of_value = (_conversion(one["type"]) or _same for one in items["fields"])
        return lambda value: [[of_key(one["key"]), of_value(one["value"])] for one in value]
    of_item = _conversion(items)
    return None if of_item is None else lambda value: [of_item(one) for one in value]


def _is_map_entry(items: Any) -> bool:
    """The record is called so where the map has no name, and marked so where the map has one."""
    if [one["name"] for one in _fields(items)] != ["key", "value"]:
        return False
    name = str(items["name"]).rpartition(".")[2]
    return "MapEntry" in (name, items.get("connect.internal.type"))


def _of_record(schema: Any) -> Convert | None:
    found = {one["name"]: _conversion(one["type"]) for one in schema["fields"]}
    conversions = {name: convert for name, convert in found.items() if convert is not None}
    if not conversions:
        return None

    def of_record(value: dict[str, Any]) -> dict[str, Any]:
        for name, convert in conversions.items():
            value[name] = convert(value[name])
        return value

    return of_record


def _same(value: Any) -> Any:
    return value


def _double(value: float) -> Any:
    """What JSON has no number for is text, as JsonConverter writes it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _single(value: float) -> Any:
    return shortest_single(value) if math.isfinite(value) else _double(value)


def as_json(kind: str, value: Any) -> Json:
    """A value of a primitive type as the field of a message that JsonConverter writes."""
    if kind in ("float", "double"):
        value = _single(value) if kind == "float" else _double(value)
        return value if isinstance(value, str) else Number(msgspec.json.encode(value).decode())
    if kind == "bytes":
        return base64.b64encode(value).decode()
    return Number(value) if kind in ("int", "long") else value
