"""What the topic of schema changes says of tables: the last of each counts, and what cannot be read says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from silver.by_rule.definitions import DefinedColumn, Definition, definitions
from silver.decode.reference.message import Record
from tests.support.avro import Registered
from tests.support.by_rule import DDL_TOPIC, changing, defined

USER = Definition(("id",), {"id": DefinedColumn("BIGINT"), "name": DefinedColumn("VARCHAR", 50)})
CREATED = defined({"id": "BIGINT", "name": "VARCHAR(50)"})


def of(value: Any) -> Record:
    return Record(DDL_TOPIC, None, value if isinstance(value, bytes) else json.dumps(value).encode())


def test_the_last_definition_of_a_table_counts() -> None:
    altered = defined({"id": "BIGINT", "age": "INT UNSIGNED"}, keys=("id", "age"))
    assert definitions([CREATED]) == {"order_dw.user": USER}
    columns = {"id": DefinedColumn("BIGINT"), "age": DefinedColumn("INT", is_unsigned=True)}
    assert definitions([CREATED, altered]) == {"order_dw.user": Definition(("id", "age"), columns)}


def test_a_table_that_was_dropped_is_none() -> None:
    gone = changing({"type": "DROP", "id": '"order_dw"."user"', "table": None})
    assert definitions([CREATED, gone]) == {}
    assert definitions([gone, CREATED]) == {"order_dw.user": USER}
    assert definitions([CREATED, changing({"type": "DROP", "id": '"order_dw"."user"'})]) == {}


@pytest.mark.parametrize(
    "more",
    [
        {"table": '"order_dw"."user","order_dw"."people"'},
        {"table": '"order_dw"."people"', "previousId": '"order_dw"."user"'},
    ],
)
def test_a_table_that_was_renamed_has_its_new_name(more: dict[str, Any]) -> None:
    renamed = defined({"id": "BIGINT", "name": "VARCHAR(50)"}, **more)
    assert definitions([CREATED, renamed]) == {"order_dw.people": USER}


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ('"order_dw"."a.b"', "order_dw.a.b"),
        ('"order_dw"."a""b"', 'order_dw.a"b'),
        ('"order_dw"."a,b"', "order_dw.a,b"),
        ("order_dw.user", "order_dw.user"),
    ],
)
def test_a_name_may_be_quoted(identity: str, name: str) -> None:
    assert list(definitions([defined({"id": "BIGINT"}, table=identity)])) == [name]


def test_columns_stand_in_the_order_of_their_position() -> None:
    listed = [
        {"name": "b", "typeName": "INT", "position": 2},
        {"name": "a", "typeName": "INT", "position": 1},
        "none",
    ]
    told = changing({"id": '"d"."t"', "table": {"columns": listed}})
    assert list(definitions([told])["d.t"].columns) == ["a", "b"]
    assert definitions([told])["d.t"].keys == ()


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ({"typeName": "decimal", "length": 10, "scale": 2}, "DECIMAL(10,2)"),
        ({"typeName": "BIGINT UNSIGNED ZEROFILL", "length": 20}, "BIGINT(20) UNSIGNED"),
        ({"typeName": "INT SIGNED"}, "INT"),
        ({"typeName": "DOUBLE PRECISION"}, "DOUBLE PRECISION"),
        ({"typeName": None}, "UNKNOWN"),
        ({"typeName": "BIT", "length": "1"}, "BIT"),
    ],
)
def test_a_type_is_written_as_sql_has_it(column: dict[str, Any], text: str) -> None:
    told = changing({"id": '"d"."t"', "table": {"columns": [{"name": "a", **column}]}})
    assert definitions([told])["d.t"].columns["a"].text == text


def test_messages_may_have_schemas() -> None:
    fields = [{"field": "tableChanges", "type": "array", "items": {"type": "struct", "fields": []}}]
    whole = {"schema": {"type": "struct", "fields": fields}, "payload": json.loads(CREATED.value or b"")}
    assert definitions([of(whole)]) == {"order_dw.user": USER}
    registry, text = Registered(), {"type": "string"}
    change = {"name": "Change", "fields": [{"name": "id", "type": text}, {"name": "table", "type": ["null", "int"]}]}
    listed = {"type": "array", "items": {"type": "record", **change}}
    schema = {"type": "record", "name": "Value", "fields": [{"name": "tableChanges", "type": listed}]}
    gone = registry.message(schema, {"tableChanges": [{"id": '"order_dw"."user"', "table": None}]})
    assert definitions([CREATED, of(gone)], registry.schemas) == {}
    # Of a schema that is not known nothing is read.
    assert definitions([CREATED, of(gone)], {}) == {"order_dw.user": USER}


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\xff", b"{", [], 7, {}, {"tableChanges": None}, {"tableChanges": 7}, {"tableChanges": [1, None]}],
)
def test_what_cannot_be_read_is_passed_over(damaged: Any) -> None:
    assert definitions([of(damaged), CREATED, of(damaged), Record(DDL_TOPIC, None, None)]) == {"order_dw.user": USER}


def test_a_table_without_columns_is_defined() -> None:
    assert definitions([changing({"id": '"d"."t"', "table": {"columns": 7, "primaryKeyColumnNames": 7}})]) == {
        "d.t": Definition((), {})
    }
