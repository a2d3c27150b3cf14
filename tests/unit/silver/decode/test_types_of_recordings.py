"""The table of all types, recorded with several connectors, reads as its database had it in the end.

The columns are declared as docs/types.md shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from silver.decode.reference.message import FieldSchema
from silver.decode.reference.wrapper import message_schema
from tests.support.captures import SMALL, TEXTS, Capture, columns_of_page
from tests.support.conversions import conversion, text_in_spark
from tests.support.feeds import feed
from tests.support.final_state import final_rows
from tests.support.recordings import read

CAPTURES = {capture.name: capture for capture in SMALL}
Row = Mapping[str, Any]


def events(capture: Capture) -> list[tuple[Row, Mapping[str, Row] | None]]:
    """The rows that were written, in order, each with the schemas of its fields if the record has them."""
    found: list[tuple[Row, Mapping[str, Row] | None]] = []
    for record in read(capture.file):
        value = json.loads(record["value"]) if record["value"] and "orders_types" in record["topic"] else None
        if value is not None and "payload" in value:
            (after,) = [part for part in value["schema"]["fields"] if part["field"] == "after"]
            schemas = {field["field"]: field for field in after["fields"]}
            found.append((value["payload"]["after"], schemas))
        elif value is not None:
            found.append((value["after"], None))
    return found


def schema_of(schema: Row) -> FieldSchema:
    """The schema as a record brings it."""
    read = message_schema({"type": "struct", "fields": [{**schema, "field": "v"}]})
    assert read is not None
    return read.fields["v"]


@pytest.mark.parametrize(
    ("recording", "modes"),
    [
        ("pg_default", {}),
        ("pg_full", {}),
        ("pg_schema-include", {}),
        # What the records say themselves counts.
        ("pg_schema-include", TEXTS),
        ("pg_decimal-string_time-isostring", TEXTS),
        ("mysql", {}),
        ("mysql_schema-include", {}),
        ("mysql_schema-include", {**TEXTS, "bigint_unsigned_handling_mode": "precise"}),
    ],
)
def test_all_types_end_as_their_source(recording: str, modes: Row) -> None:
    capture = CAPTURES[recording]
    columns, told = columns_of_page(capture.kind), events(capture)
    of_feed = feed(kind=capture.kind, **modes)
    has_schemas = told[0][1] is not None
    found: list[dict[str, Any]] = []
    for number, (after, schemas) in enumerate(told):
        row: dict[str, Any] = {"number": number}
        for name, column in columns.items():
            schema = None if schemas is None else schema_of(schemas[name])
            value, sentence = conversion(json.dumps(after[name]), column, of_feed, schema)
            assert sentence is None
            row[name] = text_in_spark(value, column.type.ddl)
        found.append(row)
    ends = {str(row["order_id"]): row for row in sorted(found, key=lambda row: row["number"])}
    truth = final_rows(capture.final, "orders_types", kind=capture.kind)
    is_precise = not modes or has_schemas
    lost = {"dnum": None} if capture.kind == "postgresql" and is_precise else {}  # NaN, by the connector
    expected = {key: {**row, **(lost if row["dnum"] == "NaN" else {})} for key, row in truth.items()}
    assert {key: {name: row[name] for name in columns} for key, row in ends.items()} == expected
    if has_schemas:
        # The scale of d10_2 changed after these.
        assert {row["number"]: row["d10_2"] for row in found}[0] == "-12.3400"
