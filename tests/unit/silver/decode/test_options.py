"""What a feed says of how its values are written: times as text, maps, and records that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from lakehouse.registered import AVRO, RegisteredSchema
from silver.decode.arrow import key_texts
from silver.decode.reference.decoder import Event
from silver.decode.reference.message import Record
from tests.support.avro import Registered
from tests.support.decoding import batch_of, decoded
from tests.support.feeds import feed
from tests.unit.silver.decode.test_laws import check_same
from tests.unit.silver.decode.test_typed_avro import record as struct


def field_read(fragment: str, declared: Any, *, schema: Any = None, **options: Any) -> Event:
    """A row with one field of this JSON, read into a column."""
    of = feed(columns={"id": "BIGINT", "v": declared}, **options)
    value = f'{{"op":"c","after":{{"id":1,"v":{fragment}}},"source":{{}}}}'
    if schema is not None:
        after = {"field": "after", "fields": [{"field": "v", **schema}]}
        value = f'{{"schema":{json.dumps({"type": "struct", "fields": [after]})},"payload":{value}}}'
    record = Record("shop.things", b'{"id":1}', value.encode())
    check_same([record, record], [batch_of([record, record])], of)
    (event,) = decoded([batch_of([record])], of).values()
    return event


def read(fragment: str, declared: Any, **options: Any) -> Any:
    """What the column has; what is wrong where it does not fit."""
    event = field_read(fragment, declared, **options)
    assert event.row is not None
    return event.problems[0] if event.problems else event.row[1]


# Times.

SQL, ISO = '"2024-01-31 10:00:00Z"', '"2024-01-31T10:00:00Z"'
MICROS = 1_706_695_200_000_000
MOMENT = {"type": "STRING", "source_type": "timestamp"}
ZONED = {"type": "STRING", "source_type": "timestamptz"}


@pytest.mark.parametrize("mode", ["adaptive", "isostring"])
@pytest.mark.parametrize(("own", "other", "option"), [(SQL, ISO, "sql"), (ISO, SQL, "iso-8601")])
def test_times_are_written_as_the_contract_says(own: str, other: str, option: str, mode: str) -> None:
    modes = {"time_precision_mode": mode}
    assert [read(one, "TIMESTAMP", **modes) for one in (own, other)] == [MICROS, MICROS]
    assert read(own, "TIMESTAMP", timestamp_format=option, **modes) == MICROS
    assert read(other, "TIMESTAMP", timestamp_format=option, **modes) == (
        f"v: the value is a time that is not written as timestamp_format says ({option}); the column is TIMESTAMP."
    )


@pytest.mark.parametrize("declared", [MOMENT, ZONED])
@pytest.mark.parametrize(("own", "other", "option"), [(SQL, ISO, "sql"), (ISO, SQL, "iso-8601")])
def test_so_are_times_that_are_read_as_text(own: str, other: str, option: str, declared: Any) -> None:
    of_text = [one if declared is ZONED else one.replace("Z", "") for one in (own, other)]
    assert [read(one, declared) for one in of_text] == [read(of_text[0], declared)] * 2
    assert read(of_text[0], declared, timestamp_format=option) == read(of_text[0], declared)
    sentence = f"v: the value is a time that is not written as timestamp_format says ({option})"
    assert read(of_text[1], declared, timestamp_format=option).startswith(sentence)


@pytest.mark.parametrize("option", ["any", "sql", "iso-8601"])
def test_numbers_and_what_is_no_time_are_no_matter_of_the_format(option: str) -> None:
    options = {"timestamp_format": option}
    assert read(str(MICROS), "TIMESTAMP", **options) == MICROS
    assert read("null", "TIMESTAMP", **options) is None
    assert "text that is no ISO 8601 time" in read('"soon"', "TIMESTAMP", **options)
    assert "infinity" in read('"infinity"', "TIMESTAMP", **options)
    assert "outside of years" in read(str(2**63 - 1), "TIMESTAMP", **options)
    # A date alone has no time to be written otherwise.
    assert read('"2024-01-31"', "DATE", time_precision_mode="isostring", **options) == 19_753


@pytest.mark.parametrize("year", ["-0044", "+12024"])
def test_a_year_of_any_length_has_the_same_format(year: str) -> None:
    of_sql, of_iso = (f'"{year}-01-31{mark}10:00:00"' for mark in (" ", "T"))
    for option, wrong in (("sql", of_iso), ("iso-8601", of_sql)):
        assert "timestamp_format" in read(wrong, MOMENT, timestamp_format=option)


# Maps.

MAP = {"type": "STRING", "source_type": "map"}
NO_MAP = "v: the value is no map; the column is STRING of map."
WITH_NULL = "v: the value is a map with a key that is NULL (map_null_key); the column is STRING of map."


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ('{"a":1.50,"b":null,"c":"x"}', '{"a":1.50,"b":null,"c":"x"}'),
        ("{}", "{}"),
        # As Connect writes a map whose keys are not text.
        ("[]", "{}"),
        ('[[1,"a"],[2,null]]', '{"1":"a","2":null}'),
        ("[[true,1],[1.50,2]]", '{"true":1,"1.50":2}'),
        ("[[[1,2],1]]", '{"[1,2]":1}'),
        ('[[{"a":1},1]]', '{"{\\"a\\":1}":1}'),
        # What it holds may be anything.
        ('{"a":{"b":[1,{"c":null}]}}', '{"a":{"b":[1,{"c":null}]}}'),
        ('[[1,{"b":[1]}]]', '{"1":{"b":[1]}}'),
        # The text of a map.
        ('"{\\"a\\": 1.50}"', '{"a":1.50}'),
        ('"[[1, \\"a\\"]]"', '{"1":"a"}'),
        # Of a key that is there twice the last counts.
        ('[[1,"a"],["1","b"]]', '{"1":"b"}'),
        ("null", None),
    ],
)
@pytest.mark.parametrize("option", ["fail", "drop", "literal"])
def test_a_map_is_an_object(written: str, held: str | None, option: str) -> None:
    assert read(written, MAP, map_null_key=option) == held


@pytest.mark.parametrize("written", ["[[null,1],[2,3]]", '"[[null, 1], [2, 3]]"'])
def test_a_key_that_is_null_fails_is_left_out_or_has_a_name(written: str) -> None:
    assert read(written, MAP) == WITH_NULL
    assert read(written, MAP, map_null_key="drop") == '{"2":3}'
    assert read(written, MAP, map_null_key="literal") == '{"null":1,"2":3}'
    assert read(written, MAP, map_null_key="literal", map_null_key_literal="none") == '{"none":1,"2":3}'


@pytest.mark.parametrize(
    "written", ["1", "true", '"x"', '""', '"1"', '"null"', '"[1"', "[1]", "[[1]]", "[[1,2,3]]", '[{"a":1}]', '["ab"]']
)
@pytest.mark.parametrize("option", ["fail", "drop", "literal"])
def test_what_is_no_map_does_not_fit(written: str, option: str) -> None:
    assert read(written, MAP, map_null_key=option) == NO_MAP


def test_a_map_comes_with_its_schema() -> None:
    """Of Connect, or of the JSON that an hstore is by default; not with one of something else."""
    of_connect = {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}
    assert read('{"a":"b"}', MAP, schema=of_connect) == '{"a":"b"}'
    of_json = {"type": "string", "name": "io.debezium.data.Json"}
    assert read('"{\\"a\\":\\"b\\"}"', MAP, schema=of_json) == '{"a":"b"}'
    uuid = {"type": "string", "name": "io.debezium.data.Uuid"}
    assert read('"{}"', MAP, schema=uuid) == "v: the value is io.debezium.data.Uuid; the column is STRING of map."


def test_a_map_in_avro_is_the_same() -> None:
    registry = Registered()
    entry = struct("MapEntry", {"key": ["null", "int"], "value": "string"})
    schema = struct("Row", {"id": "long", "v": {"type": "array", "items": entry}})
    pairs = [{"key": 1, "value": "a"}, {"key": None, "value": "b"}]
    value = registry.message(schema, {"id": 1, "v": pairs})
    found = {}
    for option in ("fail", "drop", "literal"):
        of = feed(columns={"id": "BIGINT", "v": MAP}, map_null_key=option, schemas=registry.schemas)
        (event,) = decoded([batch_of([Record("shop.things", None, value)])], of).values()
        found[option] = (event.row, event.problems)
    assert found == {
        "fail": ([1, None], [WITH_NULL]),
        "drop": ([1, '{"1":"a"}'], []),
        "literal": ([1, '{"1":"a","null":"b"}'], []),
    }


# Records that cannot be read.


def test_what_cannot_be_read_is_a_record_or_a_table() -> None:
    assert [feed(parse_errors=one).parse_errors for one in ("skip-record", "fail")] == ["skip-record", "fail"]
    assert feed().parse_errors == "skip-record"


@pytest.mark.parametrize(
    ("given", "said"),
    [("skip-field", "skip-field would make a NULL of what is not NULL"), ("ignore", "'skip-record' or 'fail'")],
)
def test_a_field_is_never_passed_over(given: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        feed(parse_errors=given)


# Keys as text.


def test_keys_in_avro_have_a_text() -> None:
    """As headers of changed keys have it."""
    registry = Registered()
    keys = [
        registry.message(struct("Key", {"id": "long", "of": "string"}), {"id": 7, "of": 'a "b"'}),
        registry.message("long", 7),
        registry.message("string", "注文"),
    ]
    registry.schemas[99] = RegisteredSchema(AVRO, "{")
    others = [b'{"id":7}', b"", None, keys[0][:-1], b"\0\0\0\0\x63x", b"\0\0\0\0\x64x", b"\0\0\0\0\1"]
    found = key_texts(pa.array([*keys, *others], pa.binary()), registry.schemas)
    assert found.to_pylist() == ['{"id":7,"of":"a \\"b\\""}', "7", '"注文"', *[None] * len(others)]
    assert found.type == pa.string()
    assert key_texts(pa.array([], pa.binary()), {}).to_pylist() == []
