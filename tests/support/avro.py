"""Messages of JsonConverter as Kafka Connect's Avro converters would have written them, without a converter.

Confluent documentation, "Avro Schema Serializer and Deserializer" and "Wire format"; as AvroData of Confluent and of
Apicurio have it: a struct is a record, what is optional a union with null, and names, versions and parameters of
Connect stand beside the type as `connect.name`, `connect.version` and `connect.parameters`.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fastavro import parse_schema, schemaless_writer

from lakehouse.registered import AVRO, RegisteredSchema
from silver.decode.reference.message import Record

DECIMAL = "org.apache.kafka.connect.data.Decimal"
# What the converter calls a struct, or a map's entry, that has no name.
UNNAMED, ENTRY, NAMESPACE = "ConnectDefault", "MapEntry", "io.confluent.connect.avro"
_LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
_PRIMITIVES = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}

Connect = Mapping[str, Any]


@dataclass
class Registered:
    """The schemas of a registry, numbered as they come."""

    first: int = 1
    schemas: dict[int, RegisteredSchema] = field(default_factory=dict)

    def number_of(self, text: str) -> int:
        """The id of an Avro schema, which is there from now on."""
        for number, one in self.schemas.items():
            if one == (AVRO, text):
                return number
        number = self.first + len(self.schemas)
        self.schemas[number] = RegisteredSchema(AVRO, text)
        return number

    def message(self, schema: Any, value: object) -> bytes:
        """A value in the wire format, by an Avro schema."""
        return confluent(self.number_of(json.dumps(schema)), schema, value)

    def encoded(self, message: bytes) -> bytes:
        """A message of JsonConverter with its schema in the wire format."""
        return encoded(message, self.number_of)


def avro_schema(connect_schema: Connect) -> Any:
    """The Avro schema of a schema of Kafka Connect, as JsonConverter writes it."""
    return _optional(connect_schema, set(), "")


def encoded(message: bytes, number_of: Callable[[str], int]) -> bytes:
    """A message `{"schema": …, "payload": …}` in the wire format. `number_of`: the id of a schema's text."""
    told = json.loads(message)
    schema, text = _avro_of(json.dumps(told["schema"]))
    return confluent(number_of(text), schema, _datum(told["schema"], told["payload"]))


@cache
def _avro_of(connect_schema: str) -> tuple[Any, str]:
    schema = avro_schema(json.loads(connect_schema))
    return schema, json.dumps(schema, ensure_ascii=False)


def confluent(number: int, schema: Any, value: object) -> bytes:
    """A value in the wire format: a zero byte, the id, and the value as this Avro schema writes it."""
    body = io.BytesIO()
    # As it is on the wire: bytes of a decimal are bytes.
    schemaless_writer(body, parse_schema(_without_logical_types(schema)), value)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    left = {name: value for name, value in schema.items() if name not in ("logicalType", "default")}
    return {
        name: _without_logical_types(value) if name in ("type", "fields", "items", "values") else value
        for name, value in left.items()
    }


def _optional(schema: Connect, names: set[str], namespace: str) -> Any:
    made = _plain(schema, names, namespace)
    if not schema.get("optional"):
        return made
    return [made, "null"] if schema.get("default") is not None else ["null", made]


def _plain(schema: Connect, names: set[str], namespace: str) -> Any:
    """The type without what makes it optional: a name alone where it says nothing more."""
    kind, name, parameters = schema["type"], schema.get("name"), schema.get("parameters") or {}
    made: dict[str, Any] = {}
    if kind == "struct":
        full = name or f"{NAMESPACE}.{UNNAMED}"
        if full in names:
            return full.removeprefix(f"{namespace}.")
        made |= _record(full, namespace)
        names.add(full)
        made["fields"] = [_field(one, names, full.rpartition(".")[0]) for one in schema["fields"]]
    elif kind == "array":
        made |= {"type": "array", "items": _optional(schema["items"], names, namespace)}
    elif kind == "map" and schema["keys"]["type"] == "string" and not schema["keys"].get("optional"):
        made |= {"type": "map", "values": _optional(schema["values"], names, namespace)}
    elif kind == "map":
        made |= {"type": "array", "items": _entry(schema, names, namespace)}
    else:
        made["type"] = _PRIMITIVES[kind]
        if kind in ("int8", "int16"):
            made["connect.type"] = kind
    if name == DECIMAL:
        made |= {"logicalType": "decimal", "scale": int(parameters["scale"])}
        if "connect.decimal.precision" in parameters:
            made["precision"] = int(parameters["connect.decimal.precision"])
    elif name in _LOGICAL:
        made["logicalType"] = _LOGICAL[name]
    told = {
        "connect.doc": schema.get("doc"),
        "connect.version": schema.get("version"),
        "connect.parameters": dict(parameters) or None,
        "connect.default": _default(schema),
        "connect.name": name,
    }
    made |= {key: value for key, value in told.items() if value is not None}
    return made["type"] if list(made) == ["type"] else made


def _record(full: str, namespace: str) -> dict[str, Any]:
    own, _dot, short = full.rpartition(".")
    return {"type": "record", "name": short, **({} if own == namespace else {"namespace": own})}


def _field(one: Connect, names: set[str], namespace: str) -> dict[str, Any]:
    made = {"name": adjusted(one["field"]), "type": _optional(one, names, namespace)}
    default = _default(one)
    return {**made, "default": default} if one.get("optional") or default is not None else made


def _entry(schema: Connect, names: set[str], namespace: str) -> dict[str, Any]:
    """An entry of a map whose keys are not text: the converter marks it where the map has a name of its own."""
    name = schema.get("name")
    made = _record(name or f"{NAMESPACE}.{ENTRY}", namespace)
    own = (name or f"{NAMESPACE}.{ENTRY}").rpartition(".")[0]
    made["fields"] = [_field({**schema[of], "field": part}, names, own) for of, part in _PARTS]
    return {**made, "connect.internal.type": ENTRY} if name else made


_PARTS = (("keys", "key"), ("values", "value"))


def _default(schema: Connect) -> Any:
    """The default as Avro has it: bytes as text, a sign a byte."""
    value = schema.get("default")
    return base64.b64decode(value).decode("latin-1") if schema["type"] == "bytes" and value is not None else value


def adjusted(name: str) -> str:
    """A field's name with `_` for what Avro forbids in names (Debezium, `field.name.adjustment.mode`: avro)."""
    legal = re.sub("[^A-Za-z0-9_]", "_", name)
    return f"_{legal}" if legal[:1].isdigit() else legal


def _datum(schema: Connect, value: Any) -> Any:
    """The value of a payload as it is written."""
    if value is None:
        return None
    kind = schema["type"]
    if kind == "struct":
        return {adjusted(one["field"]): _datum(one, value.get(one["field"])) for one in schema["fields"]}
    if kind == "array":
        return [_datum(schema["items"], one) for one in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _datum(schema["values"], one) for name, one in value.items()}
    if kind == "map":
        return [{part: _datum(schema[of], one[n]) for n, (of, part) in enumerate(_PARTS)} for one in value]
    if kind == "bytes":
        return base64.b64decode(value)
    return float(value) if kind in ("float", "double") else value


def recorded_postgres() -> tuple[dict[int, RegisteredSchema], dict[str, list[Record]]]:
    """Recorded: tables by two connectors, through the Avro converter and as JSON: the schemas, the records by topic."""
    folder = Path(__file__).parents[1] / "unit" / "silver" / "decode" / "avro"
    with gzip.open(folder / "schemas.json.gz", "rt", encoding="utf-8") as text:
        registered = {int(number): RegisteredSchema(*one) for number, one in json.load(text).items()}
    of_topic: dict[str, list[Record]] = {}
    with gzip.open(folder / "postgres.jsonl.gz", "rt", encoding="utf-8") as lines:
        for one in map(json.loads, lines):
            key, value = (one[name] and base64.b64decode(one[name]) for name in ("key", "value"))
            of_topic.setdefault(one["topic"], []).append(Record(one["topic"], key, value))
    return registered, of_topic
