"""Events of an outbox, in every shape that the EventRouter gives them, and what is none."""

from __future__ import annotations

import json

import pytest

from lakehouse.contracts.models import Contracts, Feed
from silver.decode.reference.message import Record
from silver.decode.reference.outbox import NEITHER, NO_FIELD, NO_PAYLOAD, NO_TYPE, TWO_TYPES, UNKNOWN_TYPE
from tests.support.decoding import batch_of, decoded, events_of, row_of, said
from tests.support.events import compact
from tests.support.feeds import feed

ROW = '{"order_id":1,"amount":1.50}'
NO_OP = "op: the value is none of c, r, u, d, t and m."
TABLE_ROW = {"id": "7", "aggregatetype": "order", "aggregateid": "1", "type": "made", "payload": ROW}


@pytest.mark.parametrize(
    "value",
    [
        json.dumps(ROW),
        compact({"payload": ROW, "timestamp": 1}),
        ROW,
        compact({"payload": json.loads(ROW), "timestamp": None}),
        compact({"schema": {"type": "string"}, "payload": ROW}),
        compact({"schema": {"type": "struct", "fields": []}, "payload": json.loads(ROW)}),
        compact({"op": "c", "after": TABLE_ROW, "source": {"ts_ms": 5}}),
        compact({"op": "r", "after": {**TABLE_ROW, "payload": json.loads(ROW)}}),
    ],
    ids=["plain", "envelope", "expanded", "object", "wrapped text", "wrapped object", "table", "table, expanded"],
)
def test_a_payload_is_the_same_in_every_shape(contracts: Contracts, value: str) -> None:
    feed = contracts.feeds["postgres_outbox_orders"].model_copy(update={"aggregate_types": ()})
    (found,) = events_of(feed, (b'"1"', value.encode()))
    assert said(found) == ("change", [])
    row = row_of(found, feed)
    assert (row["order_id"], str(row["total_amount"])) == (1, "1.50")


@pytest.mark.parametrize(
    ("value", "kind", "problems"),
    [
        ("[1]", "unreadable", [NEITHER]),
        ("7", "unreadable", [NEITHER]),
        ("{}", "unreadable", [NO_FIELD]),
        ("", "tombstone", []),
        *((compact({"op": op, "after": TABLE_ROW}), "ignored", []) for op in ("u", "d", "t", "m")),
        *((compact({"op": op, "after": TABLE_ROW}), "unreadable", [NO_OP]) for op in ("x", "C", "", None, 1)),
        (compact({"op": "d", "after": None}), "ignored", []),
        (compact({"op": "t", "after": None}), "ignored", []),
        (compact({"op": "c", "after": {**TABLE_ROW, "aggregatetype": "other"}}), "ignored", []),
        (compact({"op": "c", "after": {**TABLE_ROW, "payload": None}}), "unreadable", [NO_PAYLOAD]),
    ],
)
def test_what_is_no_event_says_why(contracts: Contracts, value: str, kind: str, problems: list[str]) -> None:
    feed = contracts.feeds["postgres_outbox_orders"].model_copy(update={"aggregate_types": ("order",)})
    (found,) = events_of(feed, (b'"1"', value.encode()))
    assert said(found) == (kind, problems)


# Deletes by their type, whose payload names the key alone.
TYPED = feed(
    envelope="outbox",
    sequence_by="kafka_offset",
    columns={"id": "BIGINT", "name": "STRING"},
    apply_as_deletes=("OrderDeleted", "OrderCancelled"),
)
LISTED = TYPED.model_copy(update={"apply_as_upserts": ("OrderPlaced",)})
PAYLOAD = '{"id":1}'
SHAPES = {
    "plain": json.dumps(PAYLOAD),
    "envelope": compact({"payload": PAYLOAD, "timestamp": 1}),
    "expanded": PAYLOAD,
    "expanded envelope": compact({"payload": json.loads(PAYLOAD), "timestamp": 1}),
}


Stated = tuple[str, str | None, bool, list[str]]


def typed(of: Feed, value: str, *headers: tuple[str, bytes | None]) -> Stated:
    (event,) = events_of(of, (b'"1"', value.encode()), headers=headers)
    is_change = event.kind == "change"
    return event.kind, event.op if is_change else None, is_change and event.is_delete, list(event.problems)


def of_table(**row: object) -> str:
    return compact({"op": "c", "after": {"id": "7", "aggregateid": "1", "payload": PAYLOAD, **row}})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("of", [TYPED, LISTED], ids=["deletes", "both"])
def test_where_types_decide_an_event_without_one_waits(shape: str, of: Feed) -> None:
    value, waits = SHAPES[shape], ("unreadable", None, False, [NO_TYPE])
    assert typed(of, value) == waits
    for name, header in (("type", b"OrderDeleted"), ("eventtype", b"OrderDeleted"), ("eventType", None)):
        assert typed(of, value, (name, header)) == waits
    for empty in (b"", b" ", b'""', b"null"):
        assert typed(of, value, ("eventType", empty)) == waits
    assert typed(of, value, ("eventType", b"OrderDeleted")) == ("change", "OrderDeleted", True, [])
    assert typed(of, value, ("eventType", b"OrderPlaced")) == ("change", "OrderPlaced", False, [])
    # A tombstone is no event.
    assert typed(of, "") == ("tombstone", None, False, [])


def test_a_type_in_the_payload_is_placed_nowhere() -> None:
    payload = compact({"id": 1, "eventType": "OrderDeleted", "type": "OrderDeleted"})
    for value in (payload, json.dumps(payload), compact({"payload": payload})):
        assert typed(TYPED, value) == ("unreadable", None, False, [NO_TYPE])


@pytest.mark.parametrize("alias", ["eventType", "type", "event type"])
def test_a_type_is_read_where_the_event_router_places_it(alias: str) -> None:
    of = TYPED.model_copy(update={"event_type": alias})
    deleted: Stated = ("change", "OrderDeleted", True, [])
    for payload in (PAYLOAD, json.loads(PAYLOAD)):
        in_envelope = compact({"payload": payload, alias: "OrderDeleted"})
        assert typed(of, in_envelope) == deleted
        assert typed(of, in_envelope, (alias, b"OrderDeleted")) == deleted
        assert typed(of, in_envelope, (alias, b'"OrderDeleted"')) == deleted
        assert typed(of, in_envelope, (alias, None)) == deleted
        assert typed(of, in_envelope, (alias, b"OrderPlaced")) == ("unreadable", None, False, [TWO_TYPES])
    assert typed(of, compact({"payload": PAYLOAD}), (alias, b"OrderDeleted")) == deleted
    wrapped = compact({"schema": {"type": "struct"}, "payload": {"payload": PAYLOAD, alias: "OrderDeleted"}})
    assert typed(of, wrapped) == deleted
    # Without the router, the row has it; in a column of the alias where there is no column type.
    assert typed(of, of_table(type="OrderDeleted")) == deleted
    assert typed(of, of_table(**{alias: "OrderDeleted"})) == deleted
    for row in ({}, {"type": None}, {"type": ""}):
        assert typed(of, of_table(**row)) == ("unreadable", None, False, [NO_TYPE])


@pytest.mark.parametrize("kind", ["orderdeleted", "OrderDeleted ", " OrderDeleted", "ORDERDELETED", "ordercancelled\t"])
def test_a_type_that_is_nearly_one_of_the_deletes_waits(kind: str) -> None:
    for of in (TYPED, LISTED):
        assert typed(of, SHAPES["plain"], ("eventType", kind.encode())) == ("unreadable", None, False, [UNKNOWN_TYPE])
        assert typed(of, of_table(type=kind)) == ("unreadable", None, False, [UNKNOWN_TYPE])


@pytest.mark.parametrize("kind", ["OrderMoved", "orderplaced", "OrderPlaced ", "1", "Order"])
def test_where_the_contract_lists_all_types_any_other_waits(kind: str) -> None:
    header = ("eventType", kind.encode())
    assert typed(LISTED, SHAPES["plain"], header) == ("unreadable", None, False, [UNKNOWN_TYPE])
    assert typed(TYPED, SHAPES["plain"], header) == ("change", kind, False, [])
    only_upserts = LISTED.model_copy(update={"apply_as_deletes": ()})
    assert typed(only_upserts, SHAPES["plain"], header) == ("unreadable", None, False, [UNKNOWN_TYPE])
    assert typed(only_upserts, SHAPES["plain"]) == ("unreadable", None, False, [NO_TYPE])


def test_where_types_do_not_decide_an_event_needs_none() -> None:
    of = TYPED.model_copy(update={"apply_as_deletes": ()})
    for value in (*SHAPES.values(), of_table()):
        assert typed(of, value) == ("change", None, False, [])
        assert typed(of, value, ("eventType", b"OrderDeleted"))[0] == "change"


def test_a_row_of_the_outbox_table_may_be_flattened() -> None:
    row = {"id": "e-7", "aggregatetype": "order", "aggregateid": "1", "type": "OrderDeleted", "payload": PAYLOAD}
    deleted: Stated = ("change", "OrderDeleted", True, [])
    for added in ({}, {"__op": "c"}, {"__op": "r", "__deleted": "false"}):
        assert typed(TYPED, compact({**row, **added})) == deleted
    (event,) = events_of(TYPED, (b'{"id":"e-7"}', compact(row).encode()))
    assert (event.event_id, event.row) == ("e-7", [1, None])
    # An update of the row, and its removal, are no events.
    for added in ({"__op": "u"}, {"__op": "d"}, {"__deleted": "true"}):
        assert typed(TYPED, compact({**row, **added})) == ("ignored", None, False, [])
    assert typed(TYPED, compact(row), ("__op", b'"u"')) == ("ignored", None, False, [])
    unknown = ("unreadable", None, False, ["__op: the value is none of r, c, u and d."])
    assert typed(TYPED, compact({**row, "__op": "x"})) == unknown
    # Its type may be renamed, or be in a header; where it is nowhere the event waits.
    rest = {name: value for name, value in row.items() if name != "type"}
    assert typed(TYPED, compact({**rest, "eventType": "OrderDeleted"})) == deleted
    assert typed(TYPED, compact(rest), ("eventType", b"OrderDeleted")) == deleted
    assert typed(TYPED, compact(rest)) == ("unreadable", None, False, [NO_TYPE])


def test_the_same_through_arrow() -> None:
    records = [Record("shop.things", b'"1"', value.encode()) for value in SHAPES.values()]
    found = decoded([batch_of(records)], TYPED)
    assert [said(found[number]) for number in range(len(SHAPES))] == [("unreadable", [NO_TYPE])] * len(SHAPES)
