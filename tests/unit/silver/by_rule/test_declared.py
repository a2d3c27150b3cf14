"""Where the database defines a column otherwise than a contract reads it, and what says nothing of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lakehouse.contracts.models import Feed
from silver.by_rule.declared import bare_rows, contradictions
from silver.by_rule.definitions import definitions, encoding
from silver.decode.reference.message import Number, Record
from tests.support.by_rule import TOPIC, connect, defined, event, rule
from tests.support.feeds import feed

TABLE: Mapping[str, Any] = {"kind": "mysql", "topics": (TOPIC,), "tables": ("order_dw.user",)}


def things(column: Any, **given: Any) -> Feed:
    columns = {"id": "BIGINT", "cell": column, "shard": {"type": "STRING", "from_topic": "(.*)"}}
    return feed(columns=columns, **{**TABLE, **given})


def found(of: Feed, *types: str, values: Sequence[Any] = ()) -> list[str]:
    by = definitions([defined({"id": "BIGINT", "cell": one}) for one in types])
    return contradictions(of, by, [{"cell": value} for value in values])


@pytest.mark.parametrize(
    ("declared", "defined_as"),
    [
        ("DECIMAL(10,2)", "DECIMAL(10,4)"),
        ("DECIMAL(10,2)", "DECIMAL(10)"),
        ("DECIMAL(10,2)", "DECIMAL(12,2)"),
        ("DECIMAL(20,0)", "BIGINT UNSIGNED"),
        ({"type": "STRING", "source_type": "numeric(65,30)"}, "DECIMAL(65,20)"),
        ({"type": "DECIMAL(10,2)", "source_type": "numeric(10,4)"}, "DECIMAL(10,2)"),
        ("TIMESTAMP", "DATETIME"),
        ("TIMESTAMP", "DATE"),
        ({"type": "TIMESTAMP", "epoch_unit": "millis"}, "DATETIME(6)"),
        ({"type": "STRING", "source_type": "timestamp"}, "DATETIME(3)"),
        ("DATE", "DATETIME"),
        ({"type": "DECIMAL(20,0)", "source_type": "unsigned_bigint"}, "BIGINT"),
    ],
)
def test_another_scale_precision_unit_or_sign_contradicts_the_contract(declared: Any, defined_as: str) -> None:
    modes = {"bigint_unsigned_handling_mode": "precise"} if defined_as == "BIGINT UNSIGNED" else {}
    if declared == "DECIMAL(20,0)":
        # Both are base64 of a whole number.
        assert found(things(declared, **modes), defined_as) == []
        return
    (why,) = found(things(declared), defined_as)
    assert why.startswith(f"the column cell is {defined_as} in the database, and the contract reads its values, which ")


@pytest.mark.parametrize(
    ("declared", "defined_as"),
    [
        ("DECIMAL(10,2)", "DECIMAL(10,2)"),
        ("DECIMAL(12,2)", "DECIMAL(10,2)"),
        ("DECIMAL(10,2)", "INT"),
        ("DECIMAL(10,2)", "VARCHAR(20)"),
        ({"type": "STRING", "source_type": "numeric"}, "DECIMAL(10,2)"),
        ("TIMESTAMP", "DATETIME(6)"),
        ("TIMESTAMP", "TIMESTAMP"),
        ({"type": "STRING", "source_type": "timestamptz"}, "TIMESTAMP"),
        ({"type": "TIMESTAMP", "epoch_unit": "millis"}, "DATETIME"),
        ({"type": "STRING", "source_type": "time"}, "TIME"),
        ("DATE", "DATE"),
        ({"type": "DECIMAL(20,0)", "source_type": "unsigned_bigint"}, "BIGINT UNSIGNED"),
        ("BIGINT", "BIGINT UNSIGNED"),
        ("STRING", "DECIMAL(10,4)"),
    ],
)
def test_a_definition_that_says_the_same_contradicts_nothing(declared: Any, defined_as: str) -> None:
    assert found(things(declared), defined_as) == []


def test_every_definition_counts_for_records_of_each_are_there() -> None:
    (why,) = found(things("DECIMAL(12,4)"), "DECIMAL(10,2)", "DECIMAL(12,4)")
    assert why == (
        "the column cell was DECIMAL(10,2) and DECIMAL(12,4) in turn in the database, and the contract reads its "
        "values, which have no schema, as DECIMAL(12,4) from an unscaled number of scale 4"
    )
    (why,) = found(things("BIGINT"), "BIGINT", "BIGINT UNSIGNED")
    assert why.endswith("which have no schema, as BIGINT")
    assert found(things("STRING"), "DECIMAL(10,2)", "DECIMAL(12,4)") == []


@pytest.mark.parametrize(
    ("mode", "declared", "defined_as"),
    [
        ({"decimal_handling_mode": "string"}, "DECIMAL(10,2)", "DECIMAL(10,4)"),
        ({"decimal_format": "numeric"}, "DECIMAL(10,2)", "DECIMAL(10,4)"),
        ({"time_precision_mode": "isostring"}, "TIMESTAMP", "DATETIME"),
        ({"time_precision_mode": "isostring"}, "DATE", "DATETIME"),
        ({"time_precision_mode": "connect"}, "TIMESTAMP", "DATETIME(6)"),
        ({"time_precision_mode": "microseconds"}, "TIMESTAMP", "DATETIME"),
        ({"time_precision_mode": "nanoseconds"}, "TIMESTAMP", "DATETIME"),
    ],
)
def test_a_mode_in_which_values_are_written_in_one_way_is_none_of_it(mode: Any, declared: str, defined_as: str) -> None:
    assert found(things(declared, **mode), defined_as) == []


def test_values_that_a_converter_wrote_as_text_show_what_they_are() -> None:
    assert found(things("TIMESTAMP"), "DATETIME", values=[None, "2026-01-01T00:00:00Z"]) == []
    assert len(found(things("TIMESTAMP"), "DATETIME", values=["2026-01-01T00:00:00Z", Number("1767225600000")])) == 1
    assert found(things("DECIMAL(10,2)"), "DECIMAL(10,4)", values=[Number("1.5")]) == []
    assert len(found(things("DECIMAL(10,2)"), "DECIMAL(10,4)", values=["A+g="])) == 1
    unsigned = things({"type": "DECIMAL(20,0)", "source_type": "unsigned_bigint"})
    assert len(found(unsigned, "BIGINT", values=[Number("-1")])) == 1


def test_a_table_is_the_feeds_by_its_contract_else_by_its_topic() -> None:
    other = definitions([defined({"cell": "DECIMAL(10,4)"}, table='"order_dw"."other"')])
    assert contradictions(things("DECIMAL(10,2)"), other, []) == []
    assert found(things("DECIMAL(10,2)", tables=()), "DECIMAL(10,4)") != []
    assert found(things("DECIMAL(10,2)", tables=(), topics=("shop.things",)), "DECIMAL(10,4)") == []


def test_rows_with_a_schema_are_read_by_it() -> None:
    with_schema = event({"id": 1, "cell": "AQ=="}, key={"id": 1}, schema=connect(id="int64", cell="bytes"))
    bare = event({"id": 1, "cell": "AQ=="}, key={"id": 1})
    nothing = Record(TOPIC, b'{"id":1}', None)
    of = things("DECIMAL(10,2)")
    assert bare_rows(of, [with_schema, nothing]) is None
    assert bare_rows(of, [with_schema, bare]) == [{"id": Number("1"), "cell": "AQ=="}]
    assert bare_rows(of, [nothing]) == []


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("BIT(1)", ""),
        ("BIT", ""),
        ("BIT(8)", "bytes"),
        ("VARBINARY(16)", "bytes"),
        ("TIME", "microseconds of a day"),
        ("DATE", "days"),
        ("JSON", ""),
        ("INT UNSIGNED", ""),
    ],
)
def test_what_a_value_stands_for_follows_from_its_type(sql: str, written: str) -> None:
    (column,) = definitions([defined({"cell": sql})])["order_dw.user"].columns.values()
    assert encoding(column, rule().declared) == written
