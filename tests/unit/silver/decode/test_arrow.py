"""Batches of records into batches of events: which records, how many at a time, and in which columns."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from silver.decode import arrow
from silver.decode.arrow import MAX_OF_NAME, decode_batches, name_batches, row_of, table_batches
from silver.decode.reference.message import Record
from silver.order.narrow_events import ddl, narrow_batches
from tests.support.decoding import batch_of, decoded
from tests.support.feeds import feed
from tests.support.near_records import FEEDS

THINGS = feed(columns={"id": "BIGINT", "note": "STRING"})
OTHERS = feed(name="others", topics=("shop.others",))


def insert(number: int, *, topic: str = "shop.things", note: str = "a") -> Record:
    """An insert just as declared."""
    row = f'{{"id":{number},"note":"{note}"}}'
    return Record(topic, f'{{"id":{number}}}'.encode(), f'{{"op":"c","after":{row},"source":{{}}}}'.encode())


def rows(batches: list[pa.RecordBatch], *feeds: object) -> list[dict[str, object]]:
    """What becomes of them, in the order of offsets."""
    found = [row for batch in decode_batches(batches, feeds=feeds) for row in batch.to_pylist()]  # type: ignore[arg-type]
    return sorted(found, key=lambda row: row["offset"])


def test_every_record_goes_to_its_feed_and_those_of_no_feed_are_left_out() -> None:
    records = [insert(0), insert(1, topic="shop.others"), insert(2, topic="of nobody"), insert(3)]
    found = rows([batch_of(records)], THINGS, OTHERS)
    assert [(row["offset"], row["feed"]) for row in found] == [(0, "things"), (1, "others"), (3, "things")]
    assert [row[row_of("things")] for row in found] == [{"id": 0, "note": "a"}, None, {"id": 3, "note": "a"}]
    assert [row[row_of("others")] for row in found] == [None, {"id": 1}, None]
    # The record is there as it came.
    assert [(row["key"], row["value"]) for row in found] == [(records[n].key, records[n].value) for n in (0, 1, 3)]


@pytest.mark.parametrize(("most_records", "most_bytes"), [(7, 10**9), (10**9, 500), (1, 1), (10**9, 10**9)])
def test_large_batches_are_decoded_in_parts(
    monkeypatch: pytest.MonkeyPatch, most_records: int, most_bytes: int
) -> None:
    monkeypatch.setattr(arrow, "MAX_RECORDS", most_records)
    monkeypatch.setattr(arrow, "MAX_BYTES", most_bytes)
    records = [
        *(insert(number, note="n" * (number % 5) * 100) for number in range(30)),
        Record("shop.things", None, None),
    ]
    batches = list(decode_batches([batch_of(records)], feeds=[THINGS]))
    assert sorted(row["offset"] for batch in batches for row in batch.to_pylist()) == list(range(31))
    assert all(batch.num_rows <= most_records for batch in batches)
    events = decoded([batch_of(records)], THINGS)
    assert [events[number].row for number in range(30)] == [[n, "n" * (n % 5) * 100] for n in range(30)]
    assert events[30].kind == "tombstone"


@pytest.mark.parametrize("was_on", [True, False])
def test_decoding_leaves_the_garbage_collector_as_it_was(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        assert len(decoded([batch_of([insert(0), insert(1)])], THINGS)) == 2
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_a_date_that_no_calendar_has_is_no_other_records_problem() -> None:
    """It has the form of a date, by which a batch is read column by column."""
    of = feed(columns={"id": "BIGINT", "day": "DATE"}, time_precision_mode="isostring")
    rows_of_days = [f'{{"id":{n},"day":"{day}"}}' for n, day in enumerate(("2024-02-29", "2023-02-29", "1970-01-02"))]
    records = [
        Record("shop.things", f'{{"id":{n}}}'.encode(), f'{{"op":"c","after":{row},"source":{{}}}}'.encode())
        for n, row in enumerate(rows_of_days)
    ]
    events = decoded([batch_of(records)], of)
    assert [events[n].row for n in range(3)] == [[0, 19_782], [1, None], [2, 1]]
    assert [events[n].problems for n in (0, 2)] == [[], []]
    assert events[1].problems == ["day: the value is text that is no ISO 8601 date; the column is DATE."]


def test_a_part_of_a_batch_is_read_like_the_whole() -> None:
    records = [
        insert(0),
        Record("shop.things", b'{"id":1}', None),
        insert(2),
        Record("shop.things", None, b"{}"),
        insert(4),
    ]
    whole = decoded([batch_of(records)], THINGS)
    assert decoded([batch_of(records).slice(1, 3)], THINGS) == {n: whole[n] for n in (1, 2, 3)}
    assert decoded([batch_of([])], THINGS) == {}


def test_the_run_is_that_of_the_first_header_of_its_name() -> None:
    run = "__debezium.context.runId"
    headers: list[list[tuple[str, bytes | None]]] = [
        [],
        [("other", b"x"), (run, b"one"), (run, b"two")],
        [(run, None)],
        [(run, b"\xffa")],
    ]
    events = decoded([batch_of([insert(n)._replace(headers=one) for n, one in enumerate(headers)])], THINGS)
    assert [events[n].run_id for n in range(4)] == ["", "one", "", "\ufffda"]
    assert {event.kind for event in events.values()} == {"change"}


def test_a_record_may_have_no_headers_at_all() -> None:
    columns = batch_of([insert(0), insert(1)])
    none = columns.set_column(7, "headers", pa.nulls(2, columns.schema.field("headers").type))
    assert [event.run_id for event in decoded([none], THINGS).values()] == ["", ""]


@pytest.mark.parametrize("name", FEEDS)
def test_the_columns_are_those_that_spark_is_told(name: str) -> None:
    """`mapInArrow` takes columns by name and type: a batch that was read fast has the same as any other."""
    of = FEEDS[name]
    fast, other = insert(1), Record("shop.things", None, b"no JSON")
    schemas = {batch.schema for batch in narrow_batches([batch_of([fast]), batch_of([other])], feeds=[of, OTHERS])}
    (schema,) = schemas
    told = [part.split(" ")[0] for part in ddl([of, OTHERS]).split(", ") if part.split(" ")[1:]]
    assert [field for field in schema.names if field not in told] == []
    assert {"value", "headers", "source"}.isdisjoint(schema.names)


def test_the_names_of_all_fields_that_rows_have() -> None:
    records = [insert(0), Record("shop.things", b'{"id":1}', b'{"op":"d","before":{"id":1,"gone":2},"source":{}}')]
    records += [Record("shop.things", None, b"no JSON"), Record("shop.things", None, b'{"after":{"new":1},"op":"c"}')]
    (batch,) = name_batches([batch_of(records)], feed=THINGS)
    assert batch.column("field").to_pylist() == ["id", "new", "note"]


def test_each_record_names_the_table_that_it_is_of() -> None:
    def of(source: str) -> Record:
        return Record("shop.things", b'{"id":1}', f'{{"op":"c","after":{{"id":1}},"source":{source}}}'.encode())

    odd = '{"schema":"[b]Straße","table":"' + "x" * 300 + '"}'
    records = [of('{"schema":"shop","table":"others"}'), of("{}"), of(odd), Record("shop.things", None, b"\xff")]
    tables = [row["name"] for batch in table_batches([batch_of(records)], feed=THINGS) for row in batch.to_pylist()]
    assert tables == ["shop.others", None, f"?b?Straße.{'x' * 300}"[:MAX_OF_NAME], None]
