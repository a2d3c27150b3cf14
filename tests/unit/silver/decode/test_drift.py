"""Records that have other columns than a made table are marked; and no fast way takes one that is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from silver.decode.arrow import decode_batches
from silver.decode.drift import MAX_MARKS, NO_DRIFT, KnownColumns, came_as, new_fields
from silver.decode.fast.avro_records import typed_avro
from silver.decode.fast.json_records import FastDecoder, typed
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import FieldSchema, Record
from tests.support.avro import Registered
from tests.support.by_rule import TOPIC, connect, event, feed_of, made
from tests.support.decoding import batch_of, decoded
from tests.support.near_records import ODD
from tests.unit.silver.by_rule.test_discovered import _whole, decimal, named
from tests.unit.silver.decode.test_laws import check_same

DECIMAL = "org.apache.kafka.connect.data.Decimal"
CHANCE = st.randoms(use_true_random=True)
MILLIS = named("int64", "io.debezium.time.Timestamp")
SCHEMA: Mapping[str, Any] = {"id": "int64", "name": "string", "amount": decimal(2, 10), "at": MILLIS}
ROW = {"id": 1, "name": "Tom", "amount": "AQ==", "at": 1_767_225_600_123}
KEY = {"id": 1}
# Other schemas of these columns: wider, narrower, of another meaning; and other columns.
OTHERS: Sequence[Mapping[str, Any]] = [
    SCHEMA,
    {**SCHEMA, "id": "int32"},
    {**SCHEMA, "name": "int64"},
    {**SCHEMA, "amount": decimal(2, 12)},
    {**SCHEMA, "amount": decimal(4, 10)},
    {**SCHEMA, "at": named("int64", "io.debezium.time.MicroTimestamp")},
    {**SCHEMA, "age": "int32"},
    {name: one for name, one in SCHEMA.items() if name != "name"},
    {"called" if name == "name" else name: one for name, one in SCHEMA.items()},
]


def usual(kind: Any, name: str) -> Any:
    """A value of this type."""
    return ROW[name] if kind == SCHEMA.get(name) or not isinstance(kind, str) else {"string": "x"}.get(kind, 7)


def with_schemas(row: Mapping[str, Any], schema: Mapping[str, Any], **more: Any) -> Record:
    """An event whose key and value have their schemas."""
    of_key = {"schema": {"type": "struct", "fields": connect(id=schema["id"])}, "payload": KEY}
    record = event(row, key=of_key, schema=connect(**schema), **more)
    return record._replace(key=json.dumps(of_key, separators=(",", ":")).encode())


BY_SCHEMAS = feed_of(made(with_schemas(ROW, SCHEMA)))
BY_VALUES = feed_of(made(event(ROW, key=KEY)))
NOT_MADE = BY_SCHEMAS.model_copy(update={"discovered": None})


def marks(of: Feed, record: Record) -> list[str]:
    return list(ReferenceDecoder(of).event(record).drift)


# Marks.


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (0, []),
        (1, ["~id :: int32"]),
        (2, ["~name :: int64"]),
        (3, [f"~amount :: {DECIMAL}(12,2)"]),
        (4, [f"~amount :: {DECIMAL}(10,4)"]),
        (5, ["~at :: io.debezium.time.MicroTimestamp"]),
        (6, ["+age"]),
        (7, []),
        (8, ["+called"]),
    ],
)
def test_a_record_of_other_schemas_is_marked(schema: int, found: list[str]) -> None:
    other = OTHERS[schema]
    record = with_schemas({name: ROW.get(name) for name in other}, other)
    assert marks(BY_SCHEMAS, record) == found
    assert marks(NOT_MADE, record) == []
    # Of a delete its schemas say it.
    assert marks(BY_SCHEMAS, with_schemas({}, other, op="d")._replace(value=_delete(other))) == found


def _delete(schema: Mapping[str, Any]) -> bytes | None:
    told = json.loads(with_schemas({}, schema, op="d").value or b"")
    told["payload"] |= {"before": KEY, "after": None}
    return json.dumps(told, separators=(",", ":")).encode()


def test_a_record_of_more_fields_is_marked() -> None:
    more = {**ROW, "age": 1, "__op": "c", "Name": "x"}
    assert marks(BY_VALUES, event(more, key=KEY)) == ["+age", "+Name"]
    assert marks(BY_VALUES.model_copy(update={"discovered": None}), event(more, key=KEY)) == []
    assert marks(BY_VALUES, event(ROW, key=KEY)) == []
    assert marks(BY_VALUES, event({"id": 1}, key=KEY)) == []
    # Without a row and without schemas nothing is known.
    assert marks(BY_VALUES, event(None, key=KEY, op="d")) == []
    assert marks(BY_VALUES, Record(TOPIC, b'{"id":1}', None)) == []
    assert marks(BY_VALUES, Record(TOPIC, b'{"id":1}', b"{")) == []


def test_schemas_retype_only_what_schemas_have_typed() -> None:
    other = with_schemas(ROW, {**SCHEMA, "name": "int64"})
    assert marks(BY_VALUES, other) == []
    # A column that came without a schema is known by its values.
    assert BY_SCHEMAS.discovered is not None
    columns = dict(BY_SCHEMAS.discovered.columns)
    columns["name"] = columns["name"].model_copy(update={"came_as": ()})
    known = BY_SCHEMAS.model_copy(update={"discovered": BY_SCHEMAS.discovered.model_copy(update={"columns": columns})})
    assert marks(known, other) == []


def test_a_column_is_marked_by_its_field() -> None:
    of = feed_of(made(event({"id": 1, "Full Name": "Tom"}, schema=connect(id="int64", **{"Full Name": "string"}))))
    renamed = event({"id": 1, "full_name": "Tom"}, schema=connect(id="int64", full_name="string"))
    retyped = event({"id": 1, "Full Name": 1}, schema=connect(id="int64", **{"Full Name": "int64"}))
    assert (marks(of, renamed), marks(of, retyped)) == (["+full_name"], ["~Full Name :: int64"])


def test_so_many_marks_are_shown() -> None:
    assert len(new_fields([f"f{number}" for number in range(MAX_MARKS + 1)], ())) == MAX_MARKS
    assert KnownColumns(BY_VALUES).drift(None, None, None) == NO_DRIFT


# The record's own key.


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ({"id": 1}, []),
        ({"id": 1, "line": 2}, ["#id, line"]),
        ({"line": 2}, ["#line"]),
        ({"id": 1, "__dbz__physicalTableIdentifier": "a.b.c"}, []),
        (None, ["#no field"]),
    ],
)
def test_a_record_of_another_key_is_marked(key: Any, found: list[str]) -> None:
    record = event({**ROW, "line": 2}, key=key)
    of = made(event({**ROW, "line": 2}, key=KEY))
    assert marks(feed_of(of), record) == found
    assert fast(feed_of(of), [record]) == ([0] if not found else [])
    # A delete and its tombstone too: either would delete another row.
    delete = event({}, key=key, op="d")._replace(
        value=b'{"before":{"id":1},"after":null,"op":"d","source":{"db":"order_dw","table":"user"}}'
    )
    assert marks(feed_of(of), delete) == found
    if key is not None:
        assert marks(feed_of(of), Record(TOPIC, json.dumps(key).encode(), None)) == found


def test_a_contract_may_name_a_key_that_records_have_not() -> None:
    declared = BY_VALUES.model_copy(update={"discovered": None})
    assert marks(declared, event(ROW, key=None)) == []
    assert marks(declared, event(ROW, key={"line": 1})) == []
    # More than its key: rows that differ would be one, unless it says that its key counts.
    record = event(ROW, key={"id": 1, "name": "Tom"})
    assert marks(declared, record) == ["#id, name"]
    assert fast(declared, [record]) == []
    counts = declared.model_copy(update={"on_schema_change": OnSchemaChange(key="evolve")})
    assert (marks(counts, record), fast(counts, [record])) == ([], [0])
    registry, records = in_avro([with_schemas(ROW, SCHEMA), _with_two_keys()])
    in_registry = NOT_MADE.model_copy(update={"schemas": registry.schemas})
    assert fast(in_registry, records) == [0]


def _with_two_keys() -> Record:
    record, key = with_schemas(ROW, SCHEMA), {"id": 1, "name": "Tom"}
    of_key = {"schema": {"type": "struct", "fields": connect(id="int64", name="string")}, "payload": key}
    return record._replace(key=json.dumps(of_key, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("kind", "schema", "said"),
    [
        ("narrow", {**SCHEMA, "id": "int32"}, "the field id as int32"),
        ("retype", {**SCHEMA, "name": "int64"}, "the field name as int64"),
        ("retype", {**SCHEMA, "amount": decimal(2, 12)}, "the field amount as"),
        ("add", {**SCHEMA, "age": "int32"}, "the field age"),
    ],
)
def test_what_is_to_go_to_quarantine_has_a_problem_and_no_mark(kind: str, schema: Mapping[str, Any], said: str) -> None:
    of = BY_SCHEMAS.model_copy(update={"on_schema_change": OnSchemaChange.model_validate({kind: "quarantine"})})
    record = with_schemas({name: ROW.get(name, 1) for name in schema}, schema)
    found = ReferenceDecoder(of).event(record)
    assert found.drift == []
    ours = [one for one in found.problems if "on_schema_change: quarantine" in one]
    assert len(ours) == 1
    assert said in ours[0]
    assert fast(of, [record]) == []
    assert ReferenceDecoder(of).event(with_schemas(ROW, SCHEMA)).problems == []


def test_a_key_that_is_to_go_to_quarantine_takes_its_tombstone_along() -> None:
    of = BY_VALUES.model_copy(update={"on_schema_change": OnSchemaChange(key="quarantine")})
    key = b'{"id":1,"line":2}'
    found = ReferenceDecoder(of).event(Record(TOPIC, key, None))
    assert (found.kind, found.row) == ("unreadable", None)
    assert found.problems == [
        "The record has the key id, line, which its table has not (on_schema_change: quarantine)."
    ]


def test_a_contract_may_have_every_field_named() -> None:
    more = event({**ROW, "age": 1}, key=KEY)
    for policy, found in (("evolve", ([], [])), ("suspend", (["+age"], [])), ("quarantine", ([], [1]))):
        declared = BY_VALUES.model_copy(
            update={"discovered": None, "on_schema_change": OnSchemaChange.model_validate({"add": policy})}
        )
        event_of = ReferenceDecoder(declared).event(more)
        assert (event_of.drift, [1 for _one in event_of.problems]) == found
        assert fast(declared, [more]) == ([0] if policy == "evolve" else [])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (FieldSchema("int64"), "int64"),
        (FieldSchema("bytes", "org.x.Decimal", scale=2, precision=10), "org.x.Decimal(10,2)"),
        (FieldSchema("bytes", "org.x.Decimal", scale=2), "org.x.Decimal(2)"),
        (FieldSchema("array", items=FieldSchema("int32")), "array<int32>"),
        (FieldSchema(), "unknown"),
        (FieldSchema("string", "a'b;c"), "a?b?c"),
        (FieldSchema("string", "x" * 300), "x" * 200),
    ],
)
def test_a_type_is_written_in_the_words_of_its_schema(schema: FieldSchema, text: str) -> None:
    assert came_as(schema) == text


# The fast ways.


def fast(of: Feed, records: Sequence[Record]) -> list[int]:
    """Which records the definition is not asked about, once it has met their schemas."""
    asked = set[tuple[bytes | None, bytes | None]]()

    class Asked(ReferenceDecoder):
        def own_event(self, record: Record) -> Any:
            asked.add((record.key, record.value))
            return super().own_event(record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("silver.decode.arrow.ReferenceDecoder", Asked)
        list(decode_batches([batch_of(records)], feeds=[of]))
    return [number for number, record in enumerate(records) if (record.key, record.value) not in asked]


def in_avro(records: Sequence[Record]) -> tuple[Registered, list[Record]]:
    """The same records in Avro, and the registry with their schemas."""
    registry = Registered()
    told = [
        record._replace(key=registry.encoded(record.key or b""), value=registry.encoded(_whole(record)))
        for record in records
    ]
    return registry, told


ALL = [with_schemas({name: usual(kind, name) for name, kind in other.items()}, other) for other in OTHERS]


def test_what_is_as_made_is_read_fast() -> None:
    assert fast(BY_SCHEMAS, ALL[:1]) == [0]
    assert fast(BY_VALUES, [event(ROW, key=KEY)]) == [0]
    registry, records = in_avro(ALL[:1])
    assert fast(BY_SCHEMAS.model_copy(update={"schemas": registry.schemas}), records) == [0]


def test_what_is_marked_is_read_by_the_definition() -> None:
    assert fast(BY_SCHEMAS, ALL) == [0]
    assert fast(BY_VALUES, [event({**ROW, "age": 1}, key=KEY), event({**ROW, "__op": 1}, key=KEY)]) == []
    registry, records = in_avro(ALL)
    assert fast(BY_SCHEMAS.model_copy(update={"schemas": registry.schemas}), records) == [0]


def test_a_field_that_is_absent_is_read_by_the_definition() -> None:
    record = event({"id": 1, "name": "Tom", "amount": "AQ=="}, key=KEY)
    assert fast(BY_VALUES, [record]) == []
    assert decoded([batch_of([record])], BY_VALUES)[0].absent == ["at"]


def test_a_reader_is_made_of_schemas_that_say_what_the_table_says() -> None:
    message = ReferenceDecoder(BY_SCHEMAS)
    for record in ALL:
        message.event(record)
    readers = [
        typed(BY_SCHEMAS, schema) for schema in message.schemas().values() if schema and "after" in schema.nested
    ]
    assert [isinstance(reader, FastDecoder) for reader in readers] == [True, *[False] * 6, True, False]
    registry, records = in_avro(ALL)
    of = BY_SCHEMAS.model_copy(update={"schemas": registry.schemas})
    schemas = ReferenceDecoder(of).registered
    found = [
        typed_avro(of, schemas.of(one.value or b"", name=""), schemas.of(one.key or b"", name="")) for one in records
    ]
    assert [reader is not None for reader in found] == [True, *[False] * 8]
    assert typed_avro(NOT_MADE, schemas.of(records[6].value or b"", name=""), None) is not None


def near(random: Random, *, schemas: bool) -> Record:
    """A record that is as made, or nearly so."""
    schema = random.choice(OTHERS) if random.randrange(3) else SCHEMA
    row = {name: ROW.get(name, 7) for name in schema}
    change = random.choice(["none", "none", "new", "absent", "null", "added", "odd"])
    name = random.choice([*ROW][1:])
    if change == "new":
        row[random.choice(["age", "Name", "", "c0"])] = random.choice([1, None, "x"])
    elif change == "absent":
        row.pop(name, None)
    elif change == "null":
        row[name] = None
    elif change == "added":
        row["__op"] = "c"
    op = random.choice("rcud")
    record = with_schemas(row, schema, op=op) if schemas else event(row, key=KEY, op=op)
    if op == "d":
        record = record._replace(
            value=(record.value or b"").replace(b'"before":null,"after":', b'"after":null,"before":')
        )
    if change == "odd":
        shown = json.dumps(row.get(name), separators=(",", ":"))
        odd = f'"{name}":{random.choice(ODD)}'.encode()
        record = record._replace(value=(record.value or b"").replace(f'"{name}":{shown}'.encode(), odd))
    return record


@pytest.mark.parametrize("schemas", [False, True], ids=["without schemas", "with schemas"])
@given(random=CHANCE)
@settings(max_examples=12, deadline=None)
def test_what_is_read_fast_has_no_marks(schemas: bool, random: Random) -> None:
    of = BY_SCHEMAS if schemas else BY_VALUES
    records = [near(random, schemas=schemas) for _ in range(60)]
    check_same(records, [batch_of(records[at : at + 20], offset=at) for at in (0, 20, 40)], of)
    explaining = ReferenceDecoder(of)
    for number in fast(of, records):
        assert list(explaining.event(records[number]).drift) == []


@given(random=CHANCE)
@settings(max_examples=12, deadline=None)
def test_what_is_read_fast_in_avro_has_no_marks(random: Random) -> None:
    told = []
    for _ in range(40):
        schema = random.choice(OTHERS) if random.randrange(3) else SCHEMA
        row = {name: usual(schema[name], name) if random.randrange(4) else None for name in schema} | KEY
        told.append(with_schemas(row, schema))
    registry, records = in_avro(told)
    of = BY_SCHEMAS.model_copy(update={"schemas": registry.schemas})
    check_same(records, [batch_of(records)], of)
    taken, explaining = fast(of, records), ReferenceDecoder(of)
    assert all(list(explaining.event(records[number]).drift) == [] for number in taken)
    unmarked = [n for n, one in enumerate(records) if not explaining.event(one).drift]
    assert set(taken) <= set(unmarked)
