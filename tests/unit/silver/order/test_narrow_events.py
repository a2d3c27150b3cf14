"""Narrow events: what a decoded event states, and where it is in the log, without what only bronze needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.contracts.topics import SourceKind
from silver.decode.arrow import decode_batches
from silver.decode.reference.message import Record
from silver.order.narrow_events import ddl, log_columns, narrow_batches, narrow_events
from tests.support.decoding import batch_of
from tests.support.events import compact
from tests.support.feeds import feed
from tests.support.positions import coordinates, located

POSTGRES: Mapping[str, Any] = {"connector": "postgresql", "name": "pg", "lsn": 9, "sequence": '["7","8"]'}
MYSQL: Mapping[str, Any] = {"connector": "mysql", "name": "my", "file": "mysql-bin.000003", "pos": 4, "row": 2}


def change(source: Mapping[str, Any] | None, **after: object) -> Record:
    value = compact({"before": None, "after": {"id": 1, **after}, "source": source, "op": "c", "ts_ms": 1})
    return Record("shop.things", b'{"id":1}', value.encode())


def narrow(kind: SourceKind, *records: Record) -> pa.Table:
    of = feed(columns={"id": "BIGINT", "note": "STRING"}, kind=kind)
    return pa.Table.from_batches(narrow_batches([batch_of(records)], feeds=[of]))


@pytest.mark.parametrize(("kind", "source"), [("postgresql", POSTGRES), ("mysql", MYSQL)])
def test_an_event_has_no_bytes_of_its_record_and_no_list_that_is_null(
    kind: SourceKind, source: Mapping[str, Any]
) -> None:
    """Spark writes a list that is NULL to Python in a time that grows with the rows before it."""
    records = [
        change(source, note="as declared"),
        change(source, note={"not": "declared"}),
        change(None, note="without a source"),
        Record("shop.things", b'{"id":1}', None),
        Record("shop.things", None, b"no JSON"),
    ]
    events = narrow(kind, *records)
    assert events.num_rows == len(records)
    assert {"value", "headers", "source"}.isdisjoint(events.column_names)
    lists = [column for column in events.columns if pa.types.is_list(column.type)]
    assert [column.null_count for column in lists] == [0] * 5
    known = feed(columns={"id": "BIGINT", "note": "STRING"}, kind=kind)
    (decoded,) = {batch.num_rows for batch in decode_batches([batch_of(records[:1])], feeds=[known])}
    assert decoded == 1


def test_where_postgres_has_an_event_is_two_whole_numbers() -> None:
    odd = {**POSTGRES, "sequence": '[null,"0/16B6C50"]', "snapshot": "last"}
    short = {**POSTGRES, "sequence": '[" 6 "]'}
    sources = (POSTGRES, odd, short, {**short, "sequence": "[]"})
    events = narrow("postgresql", *(change(one, note="a") for one in sources), change(None))
    found = [tuple(row[name] for name in log_columns("postgresql")) for row in events.to_pylist()]
    assert sorted(found, key=str) == sorted(
        [
            (None, None, 7, 8),
            ("last", "pg", None, 9),
            (None, None, 6, 9),
            (None, None, None, 9),
            (None, None, None, None),
        ],
        key=str,
    )


def test_where_mysql_has_an_event_is_three_whole_numbers() -> None:
    sources = [MYSQL, {**MYSQL, "file": "no-number", "row": None}, {**MYSQL, "snapshot": "true"}, None]
    events = narrow("mysql", *(change(one, note="a") for one in sources))
    found = [tuple(row[name] for name in log_columns("mysql")) for row in events.to_pylist()]
    assert sorted(found, key=str) == sorted(
        [(None, None, 3, 4, 2), (None, None, None, 4, 0), ("true", "my", 3, 4, 2), (None, None, None, None, 0)],
        key=str,
    )


def test_an_event_that_was_streamed_says_nothing_of_a_snapshot() -> None:
    """Also where its block says `false`: what is NULL takes no room."""
    (decoded,) = decode_batches(
        [batch_of([change({**POSTGRES, "snapshot": "false"}, note="a")])],
        feeds=[feed(columns={"id": "BIGINT", "note": "STRING"})],
    )
    (row,) = narrow_events(decoded, "postgresql").to_pylist()
    assert (row["snapshot"], row["source_name"], row["lsn"]) == (None, None, 8)
    assert located([None], "postgresql").rows() == [(None, None, None, None)]
    assert coordinates(None, "postgresql") is None


@pytest.mark.parametrize(("kind", "source"), [("postgresql", POSTGRES), ("mysql", MYSQL)])
def test_spark_knows_the_columns_that_events_have(kind: SourceKind, source: Mapping[str, Any]) -> None:
    events = narrow(kind, change({**source, "snapshot": "last"}, note="a"))
    declared = dict(one.split(" ", 1) for one in ddl([feed(columns={"id": "BIGINT"}, kind=kind)]).split(", "))
    assert [*declared] == events.column_names
    assert {name: declared[name] for name in log_columns(kind)} == log_columns(kind)
    # Spark does not take Polars' large strings for its own.
    types = {"STRING": pa.string(), "BIGINT": pa.int64()}
    assert {name: events.schema.field(name).type for name in log_columns(kind)} == {
        name: types[spark] for name, spark in log_columns(kind).items()
    }
