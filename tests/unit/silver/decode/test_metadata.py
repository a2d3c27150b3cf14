"""Columns with `metadata`: what the envelope and Kafka say of a record, in every shape and by both ways of reading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from lakehouse.contracts.models import Feed
from lakehouse.contracts.tables import Metadata
from silver.decode.arrow import decode_batches
from silver.decode.reference.decoder import OF_DEFINITION, ReferenceDecoder
from silver.decode.reference.message import Record
from tests.support.avro import Registered
from tests.support.decoding import batch_of
from tests.support.events import EPOCH, change, compact, mysql_source, postgres_source
from tests.support.feeds import feed
from tests.unit.silver.decode.test_typed_avro import envelope, knowing, left
from tests.unit.silver.decode.test_typed_avro import record as struct

TYPES = {
    **dict.fromkeys(("ingestion-timestamp", "source.timestamp", "timestamp"), "TIMESTAMP"),
    "partition": "INT",
    "offset": "BIGINT",
}
KEY, ROW = b'{"id":1}', {"id": 1, "note": "a"}
HEADERS: Sequence[tuple[str, bytes | None]] = [("a", b"1"), ("b", b"\xff!"), ("a", b"2"), ("c", None), ("d", b"")]
HEADERS_AS_JSON = '{"a":"2","b":"\ufffd!","c":null,"d":""}'
OF_KAFKA = {"topic": "shop.things", "partition": 0, "offset": 0, "timestamp": EPOCH, "headers": HEADERS_AS_JSON}
NOTHING = dict.fromkeys(get_args(Metadata))


def column(name: str) -> str:
    """The column of a metadata's name."""
    return f"m_{name.replace('.', '_').replace('-', '_')}"


def columns(*names: str) -> dict[str, Any]:
    return {column(name): {"type": TYPES.get(name, "STRING"), "metadata": name} for name in names}


NAMES = get_args(Metadata)
# Without those for which the definition reads each record.
QUICK = [name for name in NAMES if name not in OF_DEFINITION]


def of_things(*names: str, **given: Any) -> Feed:
    """A feed with these metadata columns, between those of the row."""
    return feed(columns={**columns(*names[:3]), "id": "BIGINT", **columns(*names[3:]), "note": "STRING"}, **given)


def told(of: Feed, *records: Record, definition_alone: bool = False) -> list[Any]:
    """The metadata of each record, by name; None of a record without a row."""
    found: dict[int, Any] = {}
    for batch in decode_batches([batch_of(records)], feeds=[of], definition_alone=definition_alone):
        for one in batch.to_pylist():
            row = one[f"row_{of.name}"]
            names = {name: column(name) for name in NAMES}
            found[one["offset"]] = row and {name: row[held] for name, held in names.items() if held in row}
            assert not {*one["absent"], *one["unsent_columns"], *one["unchanged_toast"]} & {*names.values()}
    return [found[offset] for offset in range(len(records))]


def in_both_ways(*records: Record, **given: Any) -> list[Any]:
    """The same by the definition and by the fast way, which reads less of it but reads it the same."""
    whole, quick = (of_things(*names, **given) for names in (NAMES, QUICK))
    found = told(whole, *records)
    assert told(whole, *records, definition_alone=True) == found
    for definition_alone in (False, True):
        less = [row and {name: value for name, value in row.items() if name in QUICK} for row in found]
        assert told(quick, *records, definition_alone=definition_alone) == less
    return found


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def of_value(value: str | bytes | None, *, headers: Any = HEADERS, topic: str = "shop.things") -> Record:
    return Record(topic, KEY, value.encode() if isinstance(value, str) else value, headers)


READ_MS, MADE_MS = 1_767_225_600_500, 1_767_225_600_123
POSTGRES = postgres_source(100, last_commit=90, ts_ms=MADE_MS, ts_us=MADE_MS * 1000 + 456)
MYSQL = mysql_source(700, row=3, ts_ms=MADE_MS, ts_us=MADE_MS * 1000)
OF_SOURCES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "postgresql": (
        POSTGRES,
        {"source.schema": "public", "source.timestamp": at(MADE_MS) + timedelta(microseconds=456)},
    ),
    "mysql": (MYSQL, {"source.schema": None, "source.timestamp": at(MADE_MS)}),
}


def expected(kind: str, **more: Any) -> dict[str, Any]:
    block, own = OF_SOURCES[kind]
    of_source = {"source.database": "ecommerce", "source.table": "orders", "source.properties": compact(block)}
    return {**OF_KAFKA, **of_source, "schema": None, "ingestion-timestamp": at(READ_MS), **own, **more}


@pytest.mark.parametrize("kind", OF_SOURCES)
@pytest.mark.parametrize("op", ["c", "u", "r", "d"])
def test_a_change_says_where_it_comes_from(kind: str, op: str) -> None:
    """A delete too: its row has the key, and what the envelope says."""
    block, _own = OF_SOURCES[kind]
    value = change(op, block, None if op == "d" else ROW, ts_ms=READ_MS)
    assert in_both_ways(of_value(value), kind=kind) == [expected(kind)]


def test_the_fast_way_reads_what_is_not_of_the_message() -> None:
    record = of_value(change("c", POSTGRES, ROW, ts_ms=READ_MS))
    assert left(of_things(*QUICK), [record]) == []
    for name in OF_DEFINITION:
        assert left(of_things(name), [record]) == [0]


def test_a_tombstone_says_what_kafka_says() -> None:
    """It has no value: no source block, and no schema."""
    (found,) = in_both_ways(of_value(None))
    assert found == {**NOTHING, **OF_KAFKA}


def test_a_record_without_a_row_has_no_metadata() -> None:
    assert in_both_ways(of_value("no JSON"), of_value(change("m", POSTGRES, None))) == [None, None]


SCHEMA = '{"type":"struct","fields":[{"field":"op","type": "string"}],"version":1.0}'


def test_the_schema_around_a_message_is_there_as_it_is_written() -> None:
    """Of the first record as of those that follow, when it is known."""
    value = change("c", POSTGRES, ROW, ts_ms=READ_MS)
    wrapped = of_value(f'{{"schema":{SCHEMA},"payload":{value}}}')
    found = in_both_ways(wrapped, wrapped, wrapped)
    assert [row["schema"] for row in found] == [SCHEMA] * 3
    assert [row["offset"] for row in found] == [0, 1, 2]
    assert {**found[0], "schema": None} == expected("postgresql")


def test_a_schema_in_another_form_is_there_as_json() -> None:
    value = change("c", POSTGRES, ROW, ts_ms=READ_MS)
    forms = [f'{{ "schema": {SCHEMA}, "payload": {value}}}', f'{{"payload":{value},"schema":{SCHEMA}}}']
    nulls = [f'{{"schema":null,"payload":{value}}}', f'{{"schema": null,"payload":{value}}}'] * 2
    found = in_both_ways(*map(of_value, [*forms, *nulls]))
    assert [row["schema"] for row in found] == [SCHEMA.replace(": ", ":")] * 2 + [None] * 4


def test_the_source_block_is_there_with_its_numbers_as_written() -> None:
    block = '{"lsn":100,"table":"things","of":{"x":[1.50,1e2,true,null]},"text":"注文 \\"a\\""}'
    value = f'{{"op":"c","after":{json.dumps(ROW)},"source":{block}}}'
    (found,) = in_both_ways(of_value(value))
    assert found["source.properties"] == block
    assert (found["source.table"], found["source.database"], found["source.timestamp"]) == ("things", None, None)


@pytest.mark.parametrize("source", ["", ',"source":null'])
def test_a_change_without_a_source_block_says_nothing_of_it(source: str) -> None:
    value = f'{{"op":"c","after":{json.dumps(ROW)}{source},"ts_ms":{READ_MS}}}'
    (found,) = in_both_ways(of_value(value), sequence_by="kafka_offset")
    assert found == {**NOTHING, **OF_KAFKA, "ingestion-timestamp": at(READ_MS)}


@pytest.mark.parametrize(
    ("ms", "read"),
    [
        (-62_135_596_800_000, datetime(1, 1, 1, tzinfo=UTC)),
        (-62_135_596_800_001, None),
        (253_402_300_799_999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
        ("null", None),
    ],
)
def test_a_time_outside_of_all_years_is_none(ms: Any, read: datetime | None) -> None:
    value = change("c", POSTGRES, ROW).replace(f'"ts_ms":{POSTGRES["ts_ms"]}}}', f'"ts_ms":{ms}}}')
    assert value.endswith(f'"op":"c","ts_ms":{ms}}}')
    (found,) = in_both_ways(of_value(value))
    assert found["ingestion-timestamp"] == read


def test_a_record_may_have_no_headers() -> None:
    value = change("c", POSTGRES, ROW, ts_ms=READ_MS)
    assert in_both_ways(of_value(value, headers=[]))[0]["headers"] == "{}"


def test_a_flattened_row_says_what_was_added_to_it() -> None:
    """Its source block is gone; a column of that name is none."""
    row = {**ROW, "__op": "u", "__source_table": "orders", "__db": "ecommerce", "__source_ts_ms": MADE_MS}
    (found,) = in_both_ways(of_value(compact({**row, "source": {"of": "the row"}})))
    of_source = {"source.table": "orders", "source.database": "ecommerce", "source.timestamp": at(MADE_MS)}
    assert found == {**NOTHING, **OF_KAFKA, **of_source}
    deleted = in_both_ways(of_value(compact({**row, "__deleted": "true"})))
    assert deleted == [found]


OF_OUTBOX = {
    "an event": b'{"payload":"{\\"id\\":1,\\"note\\":\\"a\\"}"}',
    "expanded": b'{"id":1,"note":"a"}',
    "with a schema": b'{"schema":' + SCHEMA.encode() + b',"payload":{"id":1,"note":"a"}}',
    "the table's own change": (
        b'{"op":"c","after":{"aggregateid":"1","payload":"{\\"id\\":1}"},"source":{"table":"outbox","ts_ms":5},"ts_ms":7}'
    ),
}


@pytest.mark.parametrize("shape", OF_OUTBOX)
def test_an_event_of_an_outbox_has_no_source(shape: str) -> None:
    """Of the outbox table's own changes the table is no order's: what they say of it is left out, but for the times."""
    (found,) = in_both_ways(of_value(OF_OUTBOX[shape]), envelope="outbox", sequence_by="kafka_offset")
    own: dict[str, Any] = {"schema": SCHEMA} if shape == "with a schema" else {}
    if shape == "the table's own change":
        own = {"source.timestamp": at(5), "ingestion-timestamp": at(7)}
    assert found == {**NOTHING, **OF_KAFKA, **own}


def test_avro_says_the_same_and_its_schema_is_the_registrys() -> None:
    registry = Registered()
    types = {"lsn": "long", "table": "string", "schema": "string", "db": "string", "ts_ms": "long", "rate": "double"}
    block = {"lsn": 5, "table": "orders", "schema": "public", "db": "ecommerce", "ts_ms": MADE_MS, "rate": 0.5}
    schema = envelope({"id": "long", "note": "string"}, struct("Source", types))
    values = [
        registry.message(schema, {"before": None, "after": row, "source": block, "op": op, "ts_ms": READ_MS})
        for op, row in (("c", ROW), ("d", None))
    ]
    records = [of_value(value) for value in values]
    whole, quick = (of_things(*names).model_copy(update={"schemas": registry.schemas}) for names in (NAMES, QUICK))
    found = told(whole, *records)
    own = {
        **{"source.properties": compact(block), "schema": json.dumps(schema), "ingestion-timestamp": at(READ_MS)},
        **{"source.timestamp": at(MADE_MS), "source.table": "orders", "source.schema": "public"},
        "source.database": "ecommerce",
    }
    assert found == [{**OF_KAFKA, **own}, {**OF_KAFKA, **own, "offset": 1}]
    less = [{name: value for name, value in row.items() if name in QUICK} for row in found]
    assert left(quick, records) == []
    assert [told(quick, *records, definition_alone=alone) for alone in (False, True)] == [less, less]


def test_metadata_is_no_field_of_the_row() -> None:
    """A field of the column's name is none of it, and no row is one by it."""
    of = knowing(Registered(), columns={"id": "BIGINT", "topic": {"type": "STRING", "metadata": "topic"}})
    row = {"id": 1, "topic": "of the row"}
    (batch,) = decode_batches([batch_of([of_value(change("c", POSTGRES, row))])], feeds=[of])
    assert batch.column("row_things").to_pylist() == [{"id": 1, "topic": "shop.things"}]
    event = ReferenceDecoder(of).event(of_value('{"topic":"of the row"}'))
    assert event.kind == "unreadable"


def test_an_append_only_table_has_them_of_every_change() -> None:
    """Of a truncate too, which is a row of such a table."""
    values = [change("d", POSTGRES, None, before=ROW, ts_ms=READ_MS), change("t", POSTGRES, None, ts_ms=READ_MS)]
    found = in_both_ways(*map(of_value, values), append_only=True, keys=())
    assert found == [expected("postgresql"), expected("postgresql", offset=1)]
