"""Which records are of the keys that are to be erased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lakehouse.erasure.names import ERASED_HEADER
from silver.decode.reference.message import Record
from silver.erasure.matches import WantedKeys, match_batches, parse_keys
from tests.support.decoding import batch_of
from tests.support.events import change, compact, postgres_source
from tests.support.feeds import feed

THINGS = feed(columns={"id": "BIGINT", "note": "STRING"})
LINES = feed(keys=("id", "line"), columns={"id": "BIGINT", "line": "STRING", "note": "STRING"})
EVENTS = feed(envelope="outbox", sequence_by="kafka_offset", payload="full", columns={"id": "BIGINT", "note": "STRING"})


def of(
    key: object, op: str = "c", *, row: Mapping[str, Any] | None = None, links: Sequence[tuple[str, bytes]] = ()
) -> Record:
    image = {"id": 1, "note": "x"} if row is None else row
    value = change(op, postgres_source(1, last_commit=1), None if op == "d" else image)
    return Record("shop.things", compact(key).encode(), value.encode(), links)


def matched(records: Sequence[Record], keys: set[tuple[Any, ...]], own: Any = THINGS) -> dict[int, str]:
    """Of the records that are named: `own`, `linked`, or `may be`."""
    found = {}
    for part in match_batches([batch_of(records)], wanted=WantedKeys(own, frozenset(keys))):
        for row in part.to_pylist():
            assert {one["key"] for one in row["headers"]} >= {ERASED_HEADER}
            found[row["offset"]] = "own" if row["is_own"] else "linked" if row["is_linked"] else "may be"
    return found


def test_a_record_is_of_the_key_that_it_states_whatever_its_kind() -> None:
    tombstone = Record("shop.things", b'{"id":1}', None)
    records = [of({"id": 1}), of({"id": 2}, row={"id": 2, "note": "y"}), of({"id": 1}, "d"), tombstone]
    assert matched(records, {(1,)}) == {0: "own", 2: "own", 3: "own"}
    assert matched([of({"id": 1}), Record("elsewhere", b'{"id":1}', None)], {(1,)}) == {0: "own"}


def test_a_record_that_states_no_key_is_of_its_kafka_key() -> None:
    unreadable = Record("shop.things", b'{"id":1}', b"not JSON")
    strange = Record("shop.things", b"strange", b"not JSON")
    nothing = Record("shop.things", None, b"not JSON")
    assert matched([unreadable, strange, nothing], {(1,)}) == {0: "own", 1: "may be"}


def test_a_changed_key_links_two_keys() -> None:
    links = [("__debezium.newkey", b'{"id":2}')]
    back = [("__debezium.oldkey", compact({"schema": {}, "payload": {"id": 1}}).encode())]
    records = [of({"id": 1}, "d", links=links), of({"id": 2}, row={"id": 2, "note": "x"}, links=back)]
    assert matched(records, {(1,)}) == {0: "own", 1: "linked"}
    assert matched(records, {(1,), (2,)}) == {0: "own", 1: "own"}
    assert matched([of({"id": 3}, row={"id": 3, "note": ""}, links=[("__debezium.oldkey", b"no JSON")])], {(1,)}) == {}


def test_a_composite_key_is_all_of_its_columns() -> None:
    rows = [{"id": 1, "line": line, "note": "x"} for line in ("a", "b")]
    records = [of({"id": 1, "line": row["line"]}, row=row) for row in rows]
    records.append(Record("shop.things", b'{"id":1,"line":"b"}', b"not JSON"))
    assert matched(records, {(1, "b")}, LINES) == {1: "own", 2: "own"}


def test_events_of_an_outbox_and_what_becomes_of_their_rows() -> None:
    events = [
        Record("shop.things", b"1", compact({"id": 1, "note": "x"}).encode(), [("id", b"a")]),
        Record("shop.things", b"1", compact({"id": 2, "note": "x"}).encode(), [("id", b"b")]),
        Record("shop.things", b'"9"', compact({"id": 1, "note": "x"}).encode(), [("id", b"c")]),
    ]
    assert matched(events, {(1,)}, EVENTS) == {0: "own", 2: "own"}
    row = {"id": "e", "aggregatetype": "t", "aggregateid": "1", "type": "x", "payload": '{"id":1,"note":"x"}'}
    removed = compact({"op": "d", "before": row, "after": None, "source": {}, "ts_ms": 1})
    updated = compact({"op": "u", "before": None, "after": row, "source": {}, "ts_ms": 1})
    wrapped = compact({"schema": {}, "payload": {"op": "m", "before": None, "after": None, "source": {}}})
    values = (updated, removed, removed.replace('"1"', '"2"'), wrapped)
    records = [Record("shop.things", b'{"id":"e"}', value.encode()) for value in values]
    assert matched(records, {(1,)}, EVENTS) == {0: "own", 1: "own"}


def test_what_was_erased_is_of_no_key() -> None:
    assert matched([Record("shop.things", None, None, [(ERASED_HEADER, b"{}")])], {(1,)}) == {}


def test_keys_are_values_or_objects() -> None:
    assert parse_keys(["1", "x y"], THINGS) == [{"id": "1"}, {"id": "x y"}]
    assert parse_keys(['{"id": 1}'], THINGS) == [{"id": "1"}]
    assert parse_keys(['{"line": "a", "id": 12}'], LINES) == [{"id": "12", "line": "a"}]


@pytest.mark.parametrize("text", ["1", "{", "[1]", '{"id": 1}', '{"id": 1, "line": null}', '{"id": 1, "lin": "a"}'])
def test_what_is_no_key_is_named_by_its_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^2$"):
        parse_keys(['{"id": 1, "line": "a"}', text], LINES)
