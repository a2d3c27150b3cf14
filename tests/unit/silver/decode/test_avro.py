"""Avro in the Confluent wire format reads as the same values in JSON do, and what cannot be read stops nothing.

`avro/` has what Debezium 3.6.1 wrote of the same tables with Apicurio's converter for Avro (`way` avro) and with
JsonConverter and its schemas (`way` schemas), and the schemas that the registry had in the end.
"""

from __future__ import annotations

import base64
import gzip
import inspect
import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.tables import Column
from lakehouse.registered import ABSENT, AVRO, RegisteredSchema
from silver.decode.arrow import decode_batches
from silver.decode.avro import AvroSchema, keys_of
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import MalformedError, Record
from tests.support.avro import Registered, avro_schema, confluent
from tests.support.captures import SMALL, TABLES, contracts_of_captures, feed_of
from tests.support.decoding import batch_of, events_of, row_of, said
from tests.support.events import mysql_source, postgres_source
from tests.support.feeds import feed
from tests.support.live.contracts import CASE, contracts_of_stories

SAMPLES = Path(__file__).with_name("avro")
OF_STORIES = {
    "live_postgres": ("life", "emptied", "grown", "large_default", "large_full", "orders_types"),
    "live_mysql": ("life", "emptied", "grown", "orders_types"),
}
LONG = 60
NOT_OF_SCHEMA = "is not Avro of the schema that its id names."
NOT_AVRO = "The registry's schema of the record is not Avro."
# Columns whose names Avro forbids, and columns with a default that may be NULL.
ODD: Mapping[str, Any] = {
    "order_id": "BIGINT",
    "dashed": {"type": "INT", "fields": ["a-b c", "a_b_c"]},
    "digit": {"type": "INT", "fields": ["1st", "_1st"]},
    "letter": {"type": "STRING", "fields": ["naïve", "na_ve"]},
    "with_default": "INT",
    "text_default": "STRING",
    "dec_default": "DECIMAL(10,2)",
}
DEFAULTS = {"with_default": 7, "text_default": "seven", "dec_default": "7.50"}
CAPTURES = [capture for capture in SMALL if capture.name.endswith("_schema-include")]


# What connectors wrote in both ways.


@cache
def registered() -> dict[int, RegisteredSchema]:
    with gzip.open(SAMPLES / "schemas.json.gz", "rt", encoding="utf-8") as file:
        return {int(number): RegisteredSchema(*one) for number, one in json.load(file).items()}


@cache
def samples(source: str, table: str, way: str) -> list[Record]:
    with gzip.open(SAMPLES / f"{source.removeprefix('live_')}.jsonl.gz", "rt", encoding="utf-8") as lines:
        told = [json.loads(line) for line in lines]
    return [
        Record(one["topic"], _bytes(one["key"]), _bytes(one["value"]), [(n, _bytes(v)) for n, v in one["headers"]])
        for one in told
        if one["way"] == way and one["topic"].endswith(table)
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def knowing(of_table: Feed, schemas: Mapping[int, RegisteredSchema]) -> Feed:
    """The feed with the schemas of a registry, as they are and as they will be."""
    return of_table.model_copy(update={"schemas": schemas})


def by_key(of_table: Feed, records: Sequence[Record]) -> dict[Any, list[dict[str, Any]]]:
    """What records state of each key, in order; without what another connector, at another time, says otherwise."""
    explaining = ReferenceDecoder(of_table)
    found: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        event = explaining.event(record)._replace(run_id="", source=None, source_ts=None, read_ms=None)
        row = None if event.row is None else {**row_of(event, of_table), CASE: None}
        key = None if row is None else row["order_id"]
        found.setdefault(key, []).append({**event._asdict(), "row": row})
    return found


@pytest.mark.parametrize(("source", "table"), [(one, table) for one, told in OF_STORIES.items() for table in told])
def test_a_table_reads_the_same_in_both_ways(contracts: Contracts, source: str, table: str) -> None:
    of_table = contracts_of_stories(contracts, OF_STORIES).feeds[f"{source}_{table}"]
    in_avro = by_key(knowing(of_table, registered()), samples(source, f".{table}", "avro"))
    in_json = by_key(of_table, samples(source, f".{table}", "schemas"))
    pairs = [pair for key, told in in_avro.items() for pair in zip(told, in_json.get(key, []), strict=False)]
    for one, other in pairs:
        assert one == other
    # Of a long table the sample ends somewhere, in one way of writing at another place than in the other.
    most = len(samples(source, f".{table}", "avro"))
    assert len(pairs) == most if most < LONG else len(pairs) > most / 2
    kinds = {one["kind"] for one, _other in pairs}
    assert "change" in kinds
    assert "unreadable" not in kinds
    assert any(one["unchanged_toast"] for one, _other in pairs) is (table == "large_default")


@pytest.mark.parametrize(("source", "kind"), [("live_postgres", "postgresql"), ("live_mysql", "mysql")])
def test_what_the_converter_itself_changes_is_read_as_it_came(source: str, kind: str) -> None:
    """The converter writes a column's default where the source has NULL, and `_` for what Avro forbids in names."""
    topics = (f"{source}_schemas.ns.odd",)
    odd = feed(name="odd", kind=kind, topics=topics, keys=("order_id",), columns=ODD, schemas=registered())
    rows: dict[str, list[dict[str, Any]]] = {}
    for way in ("avro", "schemas"):
        events = [ReferenceDecoder(odd).event(record) for record in samples(source, ".odd", way)]
        assert all(event.problems == [] for event in events)
        changes = [event for event in events if event.kind == "change" and not event.is_delete]
        assert all(event.absent == [] for event in changes)
        rows[way] = sorted(({**row_of(event, odd), "op": event.op} for event in changes), key=repr)

    def with_defaults(row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, **{name: value for name, value in DEFAULTS.items() if row[name] is None}}

    def plain(row: Mapping[str, Any]) -> dict[str, Any]:
        decimal = row["dec_default"]
        return {**row, "dec_default": None if decimal is None else f"{decimal:.2f}"}

    of_json = [plain(row) for row in rows["schemas"]]
    assert any(row[name] is None for row in of_json for name in DEFAULTS)
    assert sorted(map(plain, rows["avro"]), key=repr) == sorted(map(with_defaults, of_json), key=repr)


def test_schemas_made_here_are_those_that_the_converter_registered() -> None:
    made = set()
    for source in OF_STORIES:
        for record in samples(source, "", "schemas"):
            for message in (record.key, record.value):
                if message is not None:
                    schema = avro_schema(json.loads(message)["schema"])
                    made.add(json.dumps(schema, sort_keys=True).replace("_schemas.", "_avro."))
    assert made == {json.dumps(json.loads(one.text), sort_keys=True) for one in registered().values()}


# Recordings with schemas, written again in Avro.


def captured(capture: Any, table: str) -> list[Record]:
    """The records of a table; of `orders` those of no table too: heartbeats, transactions, schema changes."""
    return [
        Record(one["topic"], _text(one["key"]), _text(one["value"]), [(n, _text(v)) for n, v in one["headers"]])
        for one in capture.records("plain")
        if one["topic"].endswith(f".{table}") or (table == "orders" and one["topic"].rpartition(".")[2] not in TABLES)
    ]


def _text(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def in_avro(records: Sequence[Record]) -> tuple[list[Record], dict[int, RegisteredSchema]]:
    """The same records in the wire format, and the schemas that they name."""
    registry = Registered()
    told = [
        record._replace(
            key=record.key and registry.encoded(record.key), value=record.value and _encoded(record, registry)
        )
        for record in records
    ]
    return told, registry.schemas


def _encoded(record: Record, registry: Registered) -> bytes | None:
    return None if record.value is None else registry.encoded(record.value)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.name)
def test_a_recording_written_again_in_avro_is_the_same(contracts: Contracts, capture: Any, table: str) -> None:
    of_table = feed_of(contracts_of_captures(contracts), capture, table)
    records = captured(capture, table)
    told, schemas = in_avro(records)
    in_both = knowing(of_table, schemas)
    of_json, of_avro = ReferenceDecoder(of_table), ReferenceDecoder(in_both)
    for one, other in zip(records, told, strict=True):
        assert comparable(of_avro.event(other)) == comparable(of_json.event(one))
    expected = in_rows(of_table, records, definition_alone=False)
    for definition_alone in (False, True):
        assert in_rows(in_both, told, definition_alone=definition_alone) == expected
    # Both forms in one batch, as while a connector changes its converter.
    mixed = [pair[number % 2] for number, pair in enumerate(zip(records, told, strict=True))]
    found = in_rows(in_both, mixed, definition_alone=False)
    assert by_offset(found) == by_offset(expected)


def comparable(value: Any) -> Any:
    """The same, with text for what is not equal to itself."""
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def by_offset(rows: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows[offset] for offset in sorted(rows)]


def in_rows(of_table: Feed, records: Sequence[Record], *, definition_alone: bool) -> dict[int, dict[str, Any]]:
    """What `decode_batches` makes of the records of the feed's topics, by offset; without key and value."""
    own = [record._replace(topic=_own_topic(of_table, record.topic)) for record in records]
    found: dict[int, dict[str, Any]] = {}
    for batch in decode_batches([batch_of(own)], feeds=[of_table], definition_alone=definition_alone):
        for row in batch.to_pylist():
            assert row["offset"] not in found
            told = {name: value for name, value in row.items() if name not in ("key", "value")}
            found[row["offset"]] = {name: comparable(value) for name, value in told.items()}
    assert len(found) == len(records)
    return found


def _own_topic(of_table: Feed, topic: str) -> str:
    """A topic of the feed: what is of no table comes in one of them."""
    if of_table.has_topic(topic):
        return topic
    (pattern,) = of_table.topic_patterns
    return f"recorded.{topic.split('.')[1]}.plain.{pattern.rpartition('.')[2]}"


def test_a_batch_has_records_of_an_older_and_of_a_newer_schema(contracts: Contracts) -> None:
    """The newer has one column more, with a default: it says nothing of records that were written before."""
    registry = Registered()
    older = flat(amount="double")
    newer = flat(amount="double")
    newer["fields"].append({"name": "channel", "type": "string", "default": "web"})
    things = of_columns(registry, amount="DOUBLE", channel={"type": "STRING", "optional": True})
    values = [
        registry.message(older, {"id": 1, "amount": 1.5}),
        registry.message(newer, {"id": 2, "amount": 2.5, "channel": "shop"}),
        registry.message(older, {"id": 3, "amount": 3.5}),
    ]
    told = events_of(things, *[(None, value) for value in values])
    assert [said(event) for event in told] == [("change", [])] * 3
    assert [event.row for event in told] == [[1, 1.5, None], [2, 2.5, "shop"], [3, 3.5, None]]
    assert [event.absent for event in told] == [["channel"], [], ["channel"]]


# Types.


def flat(**types: Any) -> dict[str, Any]:
    """The schema of a flattened row with a number and these fields."""
    fields = [{"name": "id", "type": "long"}, *({"name": name, "type": one} for name, one in types.items())]
    return {"type": "record", "name": "Row", "namespace": "shop", "fields": fields}


def of_columns(registry: Registered, **columns: Any) -> Feed:
    return knowing(feed(columns={"id": "BIGINT", **columns}), registry.schemas)


def field_read(schema: Any, value: object, declared: Any) -> Event:
    """A row with one field of this Avro type, read into a column."""
    registry = Registered()
    message = registry.message(flat(v=schema), {"id": 1, "v": value})
    (event,) = events_of(of_columns(registry, v=declared), (None, message))
    return event


ENUM = {"type": "enum", "name": "Size", "symbols": ["small", "large"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
IN_CONNECT = {
    **DECIMAL,
    "scale": 7,
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}


def logical(plain: str, name: str) -> dict[str, Any]:
    return {"type": plain, "logicalType": name}


@pytest.mark.parametrize(
    ("schema", "value", "declared", "read"),
    [
        ("boolean", True, "BOOLEAN", True),
        ("int", -(2**31), "INT", -(2**31)),
        ("long", 2**63 - 1, "BIGINT", 2**63 - 1),
        (["null", "long"], None, "BIGINT", None),
        (["null", "long"], 7, "BIGINT", 7),
        (["long", "null"], 7, "BIGINT", 7),
        # Of several types the value decides.
        (["null", "long", "string"], "seven", "STRING", "seven"),
        (["null", "long", "string"], 7, "STRING", "7"),
        ("string", "注文 \u2028 \\", "STRING", "注文 \u2028 \\"),
        (ENUM, "large", "STRING", "large"),
        ("bytes", b"\x00\xff", "BINARY", b"\x00\xff"),
        ({"type": "fixed", "name": "Two", "size": 2}, b"\x00\xff", "BINARY", b"\x00\xff"),
        ({"type": "array", "items": ["null", "int"]}, [1, None], "ARRAY<INT>", [1, None]),
        ({"type": "array", "items": ["null", "float"]}, [0.5, None], "ARRAY<FLOAT>", [0.5, None]),
        ({"type": "map", "values": "long"}, {"a": 1}, "STRING", '{"a":1}'),
        ({"type": "map", "values": "float"}, {"a": 0.5}, "STRING", '{"a":0.5}'),
        # The shortest number that is the float, as Java writes it.
        ("float", 0.1, "STRING", "0.1"),
        ("float", 0.1, "FLOAT", 0.10000000149011612),
        ("float", float("inf"), "FLOAT", float("inf")),
        ("double", 0.1, "DOUBLE", 0.1),
        ("double", float("-inf"), "DOUBLE", float("-inf")),
        (["null", "double"], float("inf"), "DOUBLE", float("inf")),
        (logical("int", "date"), -1, "DATE", -1),
        (logical("long", "timestamp-millis"), 1, "TIMESTAMP", 1000),
        (logical("long", "timestamp-micros"), 1, "TIMESTAMP", 1),
        (logical("long", "local-timestamp-millis"), 1, "TIMESTAMP", 1000),
        (logical("long", "local-timestamp-micros"), 1, "TIMESTAMP", 1),
        (logical("long", "timestamp-nanos"), 1000, "TIMESTAMP", 1),
        (
            logical("int", "time-millis"),
            1500,
            {"type": "STRING", "source_type": "time"},
            "00:00:01.5",
        ),
        (
            logical("long", "time-micros"),
            1_500_000,
            {"type": "STRING", "source_type": "time"},
            "00:00:01.5",
        ),
        (
            logical("string", "uuid"),
            "00000000-0000-0000-0000-000000000001",
            "STRING",
            "00000000-0000-0000-0000-000000000001",
        ),
        # What nobody knows is its type alone.
        (logical("long", "of another time"), 1, "BIGINT", 1),
    ],
)
def test_a_field_is_read_by_its_type(schema: Any, value: object, declared: Any, read: object) -> None:
    event = field_read(schema, value, declared)
    assert said(event) == ("change", [])
    assert event.row == [1, read]


@pytest.mark.parametrize("schema", [DECIMAL, IN_CONNECT, ["null", DECIMAL]])
def test_a_decimal_is_read_by_its_scale(schema: Any) -> None:
    """Connect's parameters go before Avro's: a converter may write what was there before."""
    event = field_read(schema, (-1234).to_bytes(2, "big", signed=True), "DECIMAL(10,2)")
    assert said(event) == ("change", [])
    assert event.row is not None
    assert str(event.row[1]) == "-12.34"


def test_a_number_that_is_none_is_read_as_json_has_it() -> None:
    (nan, not_held) = (field_read("double", float("nan"), declared) for declared in ("DOUBLE", "DECIMAL(10,2)"))
    assert said(nan) == ("change", [])
    assert nan.row is not None
    assert comparable(nan.row) == [1, "NaN"]
    assert not_held.problems == ["v: the value is NaN or infinity; the column is DECIMAL(10,2)."]


@pytest.mark.parametrize("marked", [{"name": "MapEntry"}, {"name": "Named", "connect.internal.type": "MapEntry"}])
@pytest.mark.parametrize(("of_value", "held"), [("float", 0.5), ("int", 5)])
def test_a_map_whose_keys_are_not_text_is_pairs(marked: Mapping[str, str], of_value: str, held: float) -> None:
    """As JsonConverter writes it. The converter marks an entry by its name, or beside it where the map has its own."""
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": of_value}]
    schema = {"type": "array", "items": {"type": "record", "namespace": "of.converter", **marked, "fields": fields}}
    assert field_read(schema, [{"key": 1, "value": held}], "STRING").row == [1, f"[[1,{held}]]"]


def test_an_array_of_records_that_only_look_like_entries_stays_one() -> None:
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": "int"}]
    schema = {"type": "array", "items": {"type": "record", "name": "Pair", "fields": fields}}
    assert field_read(schema, [{"key": 1, "value": 2}], "STRING").row == [1, '[{"key":1,"value":2}]']


def test_a_type_has_a_name_and_is_named_again() -> None:
    """In its own namespace, in that of what is around it, and by the whole name."""
    inner = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "float"}]}
    size = {"type": "fixed", "name": "of.another.Two", "size": 2}
    registry = Registered()
    schema = flat(a=inner, b="Point", c=["null", "shop.Point"], d=size, e="of.another.Two")
    row = {"id": 1, "a": {"x": 0.1}, "b": {"x": 0.2}, "c": None, "d": b"ab", "e": b"cd"}
    things = of_columns(registry, a="STRING", b="STRING", c="STRING", d="BINARY", e="BINARY")
    (event,) = events_of(things, (None, registry.message(schema, row)))
    assert said(event) == ("change", [])
    assert event.row == [1, '{"x":0.1}', '{"x":0.2}', None, b"ab", b"cd"]


def test_what_a_schema_says_of_no_type_is_passed_over() -> None:
    strange = {"type": "int", "connect.parameters": "none", "connect.name": 5, "logicalType": ["date"]}
    assert field_read(strange, 7, "INT").row == [1, 7]
    no_scale = {**IN_CONNECT, "connect.parameters": {"scale": "two"}}
    read = AvroSchema(json.dumps(flat(v=no_scale))).message.fields["v"]
    assert (read.name, read.scale, read.precision) == (IN_CONNECT["connect.name"], None, 10)


# What cannot be read.


def without_schemas(value: bytes, schemas: Any, key: bytes | None = None) -> tuple[str, list[str]]:
    (event,) = events_of(feed(schemas=schemas), (key, value))
    return said(event)


RECURSIVE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize(
    ("schemas", "sentence"),
    [
        (
            None,
            "The value is in the Confluent wire format (Avro), and no schema registry is named: set schema_registry.",
        ),
        ({}, "The value names schema 7, which is not known here."),
        ({7: RegisteredSchema(ABSENT, "")}, "The value names schema 7, which the registry does not have."),
        ({7: RegisteredSchema("PROTOBUF", "")}, "The value names schema 7, which is PROTOBUF: AVRO is read."),
        (
            {7: RegisteredSchema("AVRO with references", "")},
            "The value names schema 7, which is AVRO with references: AVRO is read.",
        ),
        ({7: RegisteredSchema(AVRO, "{")}, NOT_AVRO),
        ({7: RegisteredSchema(AVRO, '"of nothing"')}, NOT_AVRO),
        ({7: RegisteredSchema(AVRO, "[" * 100_000)}, NOT_AVRO),
        (
            {7: RegisteredSchema(AVRO, json.dumps(RECURSIVE))},
            "The schema of the record contains itself, which no row does.",
        ),
        (
            {7: RegisteredSchema(AVRO, '["null", "string", "float"]')},
            "The schema of the record has a union of several types, with a float among them.",
        ),
        ({7: RegisteredSchema(AVRO, '"bytes"')}, f"The value {NOT_OF_SCHEMA}"),
        ({7: RegisteredSchema(AVRO, '"long"')}, f"The value {NOT_OF_SCHEMA}"),
    ],
)
def test_a_value_that_cannot_be_read_says_why(schemas: Any, sentence: str) -> None:
    """The value is the second of three types, and text of one letter."""
    assert without_schemas(b"\0\0\0\0\7\2\2a", schemas) == ("unreadable", [sentence])


def test_a_value_of_a_schema_that_contains_itself_is_not_read_at_all() -> None:
    """Read, it could go down as deep as it is long."""
    schemas = {7: RegisteredSchema(AVRO, json.dumps(RECURSIVE))}
    kind, problems = without_schemas(b"\0\0\0\0\7" + b"\2" * 1_000_000, schemas)
    assert (kind, problems) == ("unreadable", ["The schema of the record contains itself, which no row does."])


def test_what_is_no_schema_says_nothing_of_fields() -> None:
    with pytest.raises(MalformedError, match="is not Avro"):
        _ = AvroSchema('{"type": "record"}').message


def test_a_value_deeper_than_any_row_is_not_read() -> None:
    schema: Any = "int"
    for _level in range(120):
        schema = {"type": "array", "items": schema}
    value: Any = 1
    for _level in range(120):
        value = [value]
    assert field_read(schema, value, "STRING").problems == []
    damaged = RegisteredSchema(AVRO, '{"type":"array","items":' * 900 + '"int"' + "}" * 900)
    assert without_schemas(b"\0\0\0\0\7\0", {7: damaged})[0] == "unreadable"


def test_a_value_that_goes_deeper_than_python_does_stops_nothing() -> None:
    """As one of a hundred levels does when it is read with few calls left."""
    schema: Any = "float"
    value: Any = 0.5
    for _level in range(100):
        schema, value = {"type": "array", "items": schema}, [value]
    ready = AvroSchema(json.dumps(schema))
    message = confluent(7, schema, value)
    assert ready.json(message, name="The value") == json.loads("[" * 100 + '"0.5"' + "]" * 100)

    def after(calls: int) -> Any:
        return after(calls - 1) if calls else ready.json(message, name="The value")

    with pytest.raises(MalformedError, match=NOT_OF_SCHEMA):
        after(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)


# Keys.


def test_a_key_is_a_record_or_a_single_value() -> None:
    registry = Registered()
    things = knowing(feed(columns={"id": "STRING"}), registry.schemas)
    of_record = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}
    keys = [registry.message(of_record, {"id": "one"}), registry.message("string", "two"), registry.message("long", 3)]
    told = events_of(things, *[(key, None) for key in keys])
    assert [(event.kind, event.row) for event in told] == [("tombstone", [key]) for key in ("one", "two", "3")]


@pytest.mark.parametrize("envelope", ["table", "outbox"])
@pytest.mark.parametrize("value", [b'{"id":1,"op":"c","after":{"id":1}}', None])
def test_a_key_that_cannot_be_read_makes_the_record_unreadable(envelope: str, value: bytes | None) -> None:
    """Also one without a value: nobody can say which row it deletes."""
    things = feed(envelope=envelope, sequence_by="kafka_offset", schemas={})
    (event,) = events_of(things, (b"\0\0\0\0\7\2", value))
    assert said(event) == ("unreadable", ["The key names schema 7, which is not known here."])


def test_a_number_is_a_key_in_every_schema_of_one_whole_number() -> None:
    numbers = [
        "long",
        ["null", "int"],
        {"type": "int", "connect.type": "int8"},
        struct("Key", id="long"),
        struct("Key", id={"type": "int", "connect.type": "int16"}),
    ]
    registry = Registered()
    keys = [registry.message(one, 7 if not _is_record(one) else {"id": 7}) for one in numbers]
    for other in ("string", struct("Key", id="string"), struct("Key", id="long", shop="long"), RECURSIVE):
        registry.number_of(json.dumps(other))
    registry.schemas[99] = RegisteredSchema("PROTOBUF", "")
    assert keys_of(7, registry.schemas) == keys
    things = knowing(feed(), registry.schemas)
    assert [event.row for event in events_of(things, *[(key, None) for key in keys])] == [[7]] * len(keys)
    # What no whole number of Avro holds is no key.
    assert keys_of(2**70, registry.schemas) == []


def struct(name: str, **types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": of} for field, of in types.items()]}


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "record"


def test_a_delete_and_its_tombstone_have_an_avro_key() -> None:
    registry = Registered()
    of_key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    key = registry.message(of_key, {"id": 7})
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    fields = [("before", ["null", row]), ("after", ["null", "Value"]), ("op", "string")]
    envelope = {"type": "record", "name": "Envelope", "fields": [{"name": n, "type": one} for n, one in fields]}
    value = registry.message(envelope, {"before": {"id": 7}, "after": None, "op": "d"})
    things = feed(schemas=registry.schemas)
    records = [Record("shop.things", key, value), Record("shop.things", key, None)]
    told = [row for batch in decode_batches([batch_of(records)], feeds=[things]) for row in batch.to_pylist()]
    assert [(one["kind"], one["is_delete"], one["row_things"]) for one in told] == [
        ("change", True, {"id": 7}),
        ("tombstone", False, {"id": 7}),
    ]


# Events of an outbox.

ROW = '{"order_id":1,"amount":1.50}'
OF_EVENT = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "order_id", "type": "long"}, {"name": "amount", "type": DECIMAL}],
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("string", ROW),
        (["null", "string"], ROW),
        (
            {
                "type": "record",
                "name": "Envelope",
                "fields": [{"name": "payload", "type": "string"}, {"name": "timestamp", "type": ["null", "long"]}],
            },
            {"payload": ROW, "timestamp": 1},
        ),
        (OF_EVENT, {"order_id": 1, "amount": (150).to_bytes(2, "big")}),
    ],
    ids=["plain", "plain, optional", "envelope", "expanded"],
)
def test_an_event_of_an_outbox_is_the_same_in_every_shape(contracts: Contracts, schema: Any, value: object) -> None:
    registry = Registered()
    outbox = contracts.feeds["postgres_outbox_orders"].model_copy(update={"schemas": registry.schemas})
    message = registry.message(schema, value)
    (event,) = events_of(outbox, (registry.message("string", "1"), message))
    assert said(event) == ("change", [])
    row = row_of(event, outbox)
    assert (row["order_id"], str(row["total_amount"])) == (1, "1.50")


def test_an_outbox_without_an_event_says_why(contracts: Contracts) -> None:
    registry = Registered()
    outbox = contracts.feeds["postgres_outbox_orders"].model_copy(update={"schemas": registry.schemas})
    message = registry.message("string", ROW)
    cut, unknown = message[:-1], b"\0\0\0\0\xff" + message[5:]
    told = events_of(outbox, (b'"1"', cut), (b'"1"', unknown))
    assert [event.problems for event in told] == [
        [f"The value {NOT_OF_SCHEMA}"],
        ["The value names schema 255, which is not known here."],
    ]


# Damage.

HIDDEN = "Zq9Zq9Zq9Zq9"


@cache
def whole() -> tuple[Feed, bytes, bytes]:
    """A feed, and key and value of one of its changes: all its text is HIDDEN."""
    registry = Registered()
    types = {
        "note": ["null", "string"],
        "total": ["null", DECIMAL],
        "rate": "double",
        "near": "float",
        "tags": {"type": "array", "items": "string"},
        "more": {"type": "map", "values": "string"},
        "discovered": logical("long", "timestamp-micros"),
        "size": ENUM,
    }
    row = {**flat(**types), "name": "Value"}
    of_source = dict.fromkeys(("name", "snapshot", "sequence", "schema", "table"), "string")
    of_source |= {"lsn": "long", "ts_ms": "long"}
    source = {"type": "record", "name": "Source", "fields": [{"name": n, "type": t} for n, t in of_source.items()]}
    fields = [("before", ["null", row]), ("after", ["null", "Value"]), ("source", source), ("op", "string")]
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop",
        "fields": [*({"name": n, "type": one} for n, one in fields), {"name": "ts_ms", "type": ["null", "long"]}],
    }
    after = {
        "id": 1,
        "note": HIDDEN,
        "total": b"\x01\x02",
        "rate": 0.5,
        "near": 0.1,
        "tags": [HIDDEN, HIDDEN],
        "more": {HIDDEN: HIDDEN},
        "discovered": 1_700_000_000_000_000,
        "size": "large",
    }
    block = {**postgres_source(100, last_commit=90), "name": HIDDEN, "table": "things"}
    value = registry.message(
        envelope, {"before": None, "after": after, "source": {n: block[n] for n in of_source}, "op": "c", "ts_ms": 5}
    )
    key = registry.message({"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}, {"id": 1})
    columns = {
        "id": "BIGINT",
        "note": "INT",
        "total": "DECIMAL(10,2)",
        "rate": "DOUBLE",
        "near": "FLOAT",
        "tags": "ARRAY<STRING>",
        "more": "STRING",
        "discovered": "TIMESTAMP",
        "size": "STRING",
    }
    return feed(columns=columns, tables=("public.things",), schemas=registry.schemas), key, value


def read_damaged(key: bytes, value: bytes) -> Event:
    (event,) = events_of(whole()[0], (key, value))
    assert not any("Zq9" in problem for problem in event.problems)
    return event


def test_the_record_that_is_damaged_below_is_a_change() -> None:
    _feed, key, value = whole()
    event = read_damaged(key, value)
    problem = "note: the value is text that is no whole number; the column is INT."
    assert (event.kind, event.problems) == ("change", [problem])


def test_a_record_that_is_cut_off_anywhere_is_unreadable() -> None:
    _feed, key, value = whole()
    for length in range(1, len(value)):
        event = read_damaged(key, value[:length])
        assert event.kind == "unreadable"
        assert length <= 5 or event.problems == [f"The value {NOT_OF_SCHEMA}"]
    assert read_damaged(key[:-1] + b"\x80", value).problems == [f"The key {NOT_OF_SCHEMA}"]


@given(st.binary(min_size=1))
@settings(deadline=None)
def test_a_record_with_anything_behind_it_is_unreadable(more: bytes) -> None:
    _feed, key, value = whole()
    event = read_damaged(key, value + more)
    assert said(event) == ("unreadable", [f"The value {NOT_OF_SCHEMA}"])
    # Eight bytes may be a number of LongConverter's.
    is_long = len(key + more) == 8
    kind, (problem,) = said(read_damaged(key + more, value))
    assert (kind, problem.endswith(f"The key {NOT_OF_SCHEMA}")) == ("unreadable", not is_long)
    assert problem.startswith(f"The key {NOT_OF_SCHEMA}")
    assert ("LongConverter" in problem) is is_long


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4), st.booleans())
@settings(deadline=None)
def test_a_record_with_other_bytes_stops_nothing(flips: list[tuple[int, int]], of_key: bool) -> None:
    """What is still Avro of its schema may state something else: another operation, no row."""
    _feed, key, value = whole()
    damaged = bytearray(key if of_key else value)
    for place, bits in flips:
        damaged[place % len(damaged)] ^= bits
    event = read_damaged(bytes(damaged), value) if of_key else read_damaged(key, bytes(damaged))
    assert event.kind in ("change", "truncate", "ignored", "unreadable")


@given(st.binary(max_size=200), st.binary(max_size=50))
@settings(deadline=None)
def test_any_bytes_behind_the_number_of_a_schema_stop_nothing(value: bytes, key: bytes) -> None:
    things, *_messages = whole()
    numbers = [number.to_bytes(4, "big") for number in things.schemas or ()]
    for number in numbers:
        assert read_damaged(b"\0" + number + key, b"\0" + number + value).kind in KINDS


KINDS = ("change", "truncate", "ignored", "unreadable", "tombstone")


@pytest.mark.parametrize(("source", "table"), [("live_postgres", "orders_types"), ("live_mysql", "orders_types")])
@given(data=st.data())
@settings(deadline=None)
def test_a_damaged_record_of_a_connector_stops_nothing(
    contracts: Contracts, source: str, table: str, data: st.DataObject
) -> None:
    of_table = contracts_of_stories(contracts, OF_STORIES).feeds[f"{source}_{table}"]
    record = data.draw(st.sampled_from([one for one in samples(source, table, "avro") if one.value]))
    assert record.value is not None
    place, bits = data.draw(st.integers(1, len(record.value) - 1)), data.draw(st.integers(1, 255))
    damaged = record.value[:place] + bytes([record.value[place] ^ bits]) + record.value[place + 1 :]
    event = ReferenceDecoder(of_table.model_copy(update={"schemas": registered()})).event(
        record._replace(value=damaged)
    )
    assert event.kind in KINDS


def test_mysql_positions_are_read_from_avro() -> None:
    """As the source block has them: in fields of their own."""
    registry = Registered()
    block = mysql_source(700, row=3)
    of_source = {name: "long" if isinstance(value, int) else ["null", "string"] for name, value in block.items()}
    source = {"type": "record", "name": "Source", "fields": [{"name": n, "type": t} for n, t in of_source.items()]}
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    fields = [("after", row), ("source", source), ("op", "string")]
    envelope = {"type": "record", "name": "Envelope", "fields": [{"name": n, "type": one} for n, one in fields]}
    message = confluent(
        registry.number_of(json.dumps(envelope)), envelope, {"after": {"id": 1}, "source": block, "op": "c"}
    )
    (event,) = events_of(feed(kind="mysql", schemas=registry.schemas), (None, message))
    assert event.source is not None
    assert (event.source.file, event.source.pos, event.source.row) == ("mysql-bin.000002", 700, 3)


def test_a_column_may_be_declared_as_anything() -> None:
    """What does not fit is said as it is of JSON."""
    event = field_read("string", HIDDEN, Column.model_validate({"type": "BIGINT"}))
    assert event.problems == ["v: the value is text that is no whole number; the column is BIGINT."]
