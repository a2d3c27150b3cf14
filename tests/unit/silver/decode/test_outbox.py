"""Events of an outbox, in every shape that the EventRouter gives them, and what is none."""

from __future__ import annotations

import json

import pytest

from lakehouse.contracts.models import Contracts
from silver.decode.outbox import NEITHER, NO_FIELD, NO_PAYLOAD, ROW_CHANGED
from tests.support.decoding import events_of, row_of, said
from tests.support.events import compact

ROW = '{"order_id":1,"amount":1.50}'
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
        (compact({"op": "u", "after": TABLE_ROW}), "unreadable", [ROW_CHANGED]),
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
