"""Records into changes: what each record is, and that nothing a producer may send stops the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lakehouse.contracts.models import Contracts, Feed
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import Record
from silver.decode.reference.table import KEY_CHANGED, KEYS_DIFFER, NEGATIVE, OTHER_TABLE, TWO_OPS
from silver.decode.reference.wrapper import KEY_NOT_JSON
from tests.support.conversions import at_most, text_in_spark
from tests.support.decoding import events_of
from tests.support.events import change, compact, mysql_image, mysql_source, order, postgres_image, postgres_source

KEY = b'{"order_id":1}'
SOURCE = postgres_source(100, last_commit=100)
GOOD = change("c", SOURCE, postgres_image(order(1))).encode()
NOT_JSON = "The value is not JSON of the declared shape."
DEEP = "The value is nested more than 500 levels deep."
NOT_TEXT = "The value is not UTF-8 text."
NO_ROW = "The operation is not one of r, c, u with its row, d, t or m."
WIRE_FORMAT = "The value is in the Confluent wire format (Avro), and no schema registry is named: set schema_registry."
NO_CHANGE = "The value is not a change event: it has no op, and none of the declared fields."

Headers = Sequence[tuple[str, bytes | None]]


def read(feed: Feed, *records: tuple[bytes | None, bytes | None], headers: Headers | None = ()) -> list[dict[str, Any]]:
    """The records (key and value, in bytes) as events, in their order; the row by column."""
    explaining = ReferenceDecoder(feed)
    return [of_event(explaining.event(Record(feed.topics[0], *one, headers or ())), feed) for one in records]


def of_event(event: Event, feed: Feed) -> dict[str, Any]:
    row = None if event.row is None else dict(zip(feed.columns, event.row, strict=True))
    return {**event._asdict(), "row": row}


def said(row: dict[str, Any]) -> tuple[str, list[str]]:
    return row["kind"], [*row["problems"]]


def image(**columns: Any) -> bytes:
    """An insert whose row has other JSON in these columns."""
    return compact({"after": {**postgres_image(order(1)), **columns}, "source": SOURCE, "op": "c"}).encode()


def test_a_change_is_read_whole(contracts: Contracts) -> None:
    feed = contracts.feeds["mysql_orders"]
    row = order(1, status="paid", total_amount="-0.01", note="注文", updated_at="2026-01-02T03:04:05.000006")
    source = mysql_source(700, row=3, ts_ms=1_767_225_600_123)
    headers = [("other", b"x"), ("__debezium.context.runId", b"run-1"), ("__debezium.context.runId", b"run-2")]
    (found,) = read(feed, (KEY, change("u", source, mysql_image(row)).encode()), headers=headers)
    assert said(found) == ("change", [])
    assert (found["op"], found["is_delete"], found["run_id"], found["event_id"]) == ("u", False, "run-1", None)
    assert found["source_ts"] == 1_767_225_600_123_000
    as_text = {name: text_in_spark(value, feed.columns[name].type.ddl) for name, value in found["row"].items()}
    assert as_text == {name: None if value is None else str(value).replace("T", " ") for name, value in row.items()}


def test_a_delete_has_its_key_and_nothing_else(contracts: Contracts) -> None:
    event = {"before": postgres_image(order(1)), "after": None, "source": SOURCE, "op": "d"}
    (found,) = read(contracts.feeds["postgres_orders"], (KEY, compact(event).encode()))
    assert said(found) == ("change", [])
    assert found["is_delete"]
    assert {name for name, value in found["row"].items() if value is not None} == {"order_id"}


@pytest.mark.parametrize("headers", [None, (), [("id", None)], [("eventType", b"x")]], ids=str)
def test_headers_may_be_missing(contracts: Contracts, headers: Headers | None) -> None:
    payload = compact({"payload": '{"order_id":1,"amount":1}'}).encode()
    (table,) = read(contracts.feeds["postgres_orders"], (KEY, GOOD), headers=headers)
    (outbox,) = read(contracts.feeds["postgres_outbox_orders"], (b'"1"', payload), headers=headers)
    assert (table["kind"], table["run_id"]) == ("change", "")
    assert (outbox["kind"], outbox["run_id"], outbox["event_id"]) == ("change", "", None)


def test_damaged_records_of_a_table_are_unreadable(contracts: Contracts) -> None:
    deep = b"[" * 3000
    expected = [
        (GOOD, "change", []),
        (None, "tombstone", []),
        (b"", "tombstone", []),
        (b" ", "unreadable", [NOT_JSON]),
        (b"{}", "unreadable", [NO_CHANGE]),
        (b"\xff" + GOOD, "unreadable", [NOT_TEXT]),
        (GOOD.replace(b'"pending"', b'"pend\xe9"'), "unreadable", [NOT_TEXT]),
        (GOOD[:-1], "unreadable", [NOT_JSON]),
        (deep, "unreadable", [DEEP]),
        (GOOD.replace(b'"note":null', b'"x":' + deep + b"]" * 3000), "unreadable", [DEEP]),
        # A number of any length is read, and fits no column.
        (
            GOOD.replace(b'"customer_id":7', b'"customer_id":' + b"7" * 3000),
            "change",
            ["customer_id: the value is a number out of its range; the column is BIGINT."],
        ),
        (compact({"op": "c", "after": "text", "source": SOURCE}).encode(), "unreadable", [NOT_JSON]),
        (compact({"op": "m", "message": {}, "source": SOURCE}).encode(), "ignored", []),
        (compact({"op": "x", "after": {}, "source": SOURCE}).encode(), "unreadable", [NO_ROW]),
        (compact({"op": "u", "after": None, "source": SOURCE}).encode(), "unreadable", [NO_ROW]),
        (compact({"op": "t", "after": None, "source": SOURCE}).encode(), "truncate", []),
        (b"\x00\x00\x00\x00\x07Obj", "unreadable", [WIRE_FORMAT]),
        (
            image(customer_id=2**63),
            "change",
            ["customer_id: the value is a number out of its range; the column is BIGINT."],
        ),
        (
            image(created_at=2**63 - 1),
            "change",
            ["created_at: the value is a number outside of years 1 to 9999; the column is TIMESTAMP."],
        ),
        (
            image(total_amount={"scale": 3, "value": "ZQ=="}),
            "change",
            ["total_amount: the value is a number with 3 decimal places; the column is DECIMAL(10,2)."],
        ),
        (image(note={"a": 1}), "change", []),
    ]
    feed = contracts.feeds["postgres_orders"]
    found = read(feed, *[(KEY, value) for value, _kind, _problems in expected])
    assert [said(row) for row in found] == [(kind, problems) for _value, kind, problems in expected]


def test_a_record_with_more_bytes_than_its_table_takes_has_that_problem(contracts: Contracts) -> None:
    limit = len(KEY) + len(GOOD)
    note = "x" * limit
    too_large = f"The record has %d bytes; the limit is {limit} (max_record_bytes)."
    delete = compact({"before": postgres_image(order(1, note=note)), "after": None, "source": SOURCE, "op": "d"})
    expected: list[tuple[bytes | None, bytes | None, str, list[str]]] = [
        (KEY, GOOD, "change", []),
        (KEY, GOOD.replace(b'"pending"', b'"pending!"'), "change", [too_large % (limit + 1)]),
        (b'{"order_id": 1}', GOOD, "change", [too_large % (limit + 1)]),
        (KEY, delete.encode(), "change", []),
        (KEY, None, "tombstone", []),
        (KEY, compact({"op": "m", "message": {"content": note}, "source": SOURCE}).encode(), "ignored", []),
    ]
    feed = contracts.feeds["postgres_orders"].model_copy(update={"max_record_bytes": limit})
    found = read(feed, *[(key, value) for key, value, _kind, _problems in expected])
    assert [said(row) for row in found] == [(kind, problems) for _key, _value, kind, problems in expected]

    payload = compact({"payload": compact({"order_id": 1, "amount": 1, "note": note})}).encode()
    outbox = contracts.feeds["postgres_outbox_orders"].model_copy(
        update={"max_record_bytes": limit, "apply_as_deletes": ("OrderDeleted",)}
    )
    (changed,) = read(outbox, (b'"1"', payload), headers=[("eventType", b"OrderChanged")])
    assert said(changed) == ("change", [too_large % (len(payload) + 3)])
    (deleted,) = read(outbox, (b'"1"', payload), headers=[("eventType", b"OrderDeleted")])
    assert said(deleted) == ("change", [])


def test_damaged_outbox_events_are_unreadable(contracts: Contracts) -> None:
    def event(payload: str) -> bytes:
        return compact({"payload": payload, "timestamp": 1_767_225_600_000_000}).encode()

    no_amount = "total_amount: the value is text that is no number; the column is DECIMAL(10,2)."
    vast = "total_amount: the value is a number with 401 digits before the point; the column is DECIMAL(10,2)."
    no_object = "The payload is not a JSON object of the declared shape."
    expected = [
        (event('{"order_id":1,"amount":1}'), "change", []),
        (None, "tombstone", []),
        (event('{"order_id":1,"amount":1}')[:-1], "unreadable", ["The value is not JSON text."]),
        (event('{"note":"é"}').decode().encode("latin-1"), "unreadable", ["The value is not UTF-8 text."]),
        (event('{"order_id":1,"amount":"abc"}'), "change", [no_amount]),
        (event('{"order_id":1,"amount":1e400}'), "change", [vast]),
        (event('{"order_id":1,"amount":1' + "0" * 2000 + "}"), "change", [vast.replace("401", "2001")]),
        (event("[1]"), "unreadable", [no_object]),
        (event(""), "unreadable", [no_object]),
        (compact({"payload": None}).encode(), "unreadable", ["The value has no payload."]),
    ]
    feed = contracts.feeds["postgres_outbox_orders"]
    found = read(feed, *[(b'"1"', value) for value, _kind, _problems in expected])
    assert [said(row) for row in found] == [(kind, problems) for _value, kind, problems in expected]


@pytest.mark.parametrize("times", [{"ts_ms": 2**63 - 1}, {"ts_ms": -(2**63)}, {"ts_us": 2**63 - 1}], ids=str)
def test_a_time_of_the_source_beyond_all_years_does_not_stop_the_batch(
    contracts: Contracts, times: dict[str, int]
) -> None:
    event = compact({"op": "c", "after": postgres_image(order(1)), "source": {"lsn": 1, **times}}).encode()
    found = read(contracts.feeds["postgres_orders"], (KEY, event), (KEY, GOOD))
    assert [row["source_ts"] for row in found] == [None, SOURCE["ts_us"]]


def test_a_record_of_more_than_one_json_value_is_unreadable(contracts: Contracts) -> None:
    outbox = json.dumps({"payload": '{"order_id":1,"amount":1}'}).encode()
    tables = read(contracts.feeds["postgres_orders"], (KEY, GOOD + GOOD), (KEY, GOOD + b" and more"))
    events = read(contracts.feeds["postgres_outbox_orders"], (b'"1"', outbox + outbox))
    assert [row["kind"] for row in (*tables, *events)] == ["unreadable"] * 3


def test_half_a_surrogate_pair_is_no_text(contracts: Contracts) -> None:
    halved = GOOD.replace(b'"pending"', b'"\\ud83d"')
    paired = GOOD.replace(b'"pending"', b'"\\ud83d\\ude80"')
    assert halved != GOOD
    one_half, both = read(contracts.feeds["postgres_orders"], (KEY, halved), (KEY, paired))
    assert (one_half["kind"], both["kind"]) == ("unreadable", "change")
    assert "one half of a surrogate pair" in one_half["problems"][0]
    assert both["row"]["status"] == "🚀"


def test_a_field_that_is_absent_is_told_from_one_that_is_null(contracts: Contracts) -> None:
    event = json.loads(GOOD)
    event["after"]["note"] = None
    del event["after"]["updated_at"], event["after"]["order_id"]
    (found,) = read(contracts.feeds["postgres_orders"], (KEY, json.dumps(event).encode()))
    # The key has its value in the record's key.
    assert (found["kind"], found["absent"]) == ("change", ["updated_at"])
    delete = json.dumps({**event, "op": "d", "after": None}).encode()
    (found,) = read(contracts.feeds["postgres_orders"], (KEY, delete))
    assert (found["is_delete"], found["absent"]) == (True, [])


def test_a_key_of_more_than_one_json_value_is_no_key(contracts: Contracts) -> None:
    delete = compact({"op": "d", "after": None, "source": SOURCE}).encode()
    keys = [KEY, KEY + KEY, KEY + b"," + KEY, KEY + b"}", b'{"order_id":1},"json":{"order_id":2}']
    found = read(contracts.feeds["postgres_orders"], *[(key, delete) for key in keys])
    assert said(found[0]) == ("change", [])
    assert [said(row) for row in found[1:]] == [("unreadable", [KEY_NOT_JSON])] * 4
    event = compact({"payload": '{"amount":1.5}'}).encode()
    keys = [b'"1"', b"1", b'1,"id":2', b"1 2", b"1e16000000"]
    found = read(contracts.feeds["postgres_outbox_orders"], *[(key, event) for key in keys])
    assert [row["row"]["order_id"] for row in found] == [1, 1, None, None, None]


@pytest.mark.parametrize(
    ("number", "digits"),
    [
        ("1e16000000", "16000001 digits before the point"),
        ("1e-16000000", "16000000 decimal places"),
        ("-1e16000000", "16000001 digits before the point"),
    ],
)
def test_a_vast_number_anywhere_holds_nobody_up(contracts: Contracts, number: str, digits: str) -> None:
    vast = b":" + number.encode()
    decimal_places = [
        *(b'"customer_id":7', b'"total_amount":"A+g="', b'"created_at":1767225600000000', b'"note":null'),
        *(b'"before":null', b'"lsn":100', b'"schema":"public"', b'"ts_ms":1767225600000', b'"op":"c"'),
    ]
    records = [GOOD.replace(place, place.split(b":")[0] + vast) for place in decimal_places]
    assert GOOD not in records
    feed = contracts.feeds["postgres_orders"]
    other = GOOD.replace(b'"op"', b'"other"' + vast + b',"op"')
    with at_most(1):
        found = read(feed, *[(KEY, value) for value in records], (KEY, other))
    assert [said(row) for row in found] == [
        ("change", ["customer_id: the value is a number with a fraction or an exponent; the column is BIGINT."]),
        ("change", [f"total_amount: the value is a number with {digits}; the column is DECIMAL(10,2)."]),
        ("change", ["created_at: the value is a number with a fraction or an exponent; the column is TIMESTAMP."]),
        ("change", []),
        ("change", []),
        ("unreadable", [NOT_JSON]),
        ("unreadable", [OTHER_TABLE]),
        ("unreadable", [NOT_JSON]),
        ("unreadable", [NO_ROW]),
        ("change", []),
    ]
    assert found[3]["row"]["note"] == number


def test_a_record_of_another_table_waits(contracts: Contracts) -> None:
    for name, source, own, other in (
        ("postgres_orders", postgres_source(100, last_commit=100), "public.orders", {"schema": "archive"}),
        ("mysql_orders", mysql_source(100), "ecommerce.orders", {"db": "archive"}),
    ):
        feed = contracts.feeds[name]
        assert feed.tables == (own,)
        bare = {part: value for part, value in source.items() if part not in ("db", "schema", "table")}
        made = postgres_image if name == "postgres_orders" else mysql_image
        events = [
            *[change("c", one, made(order(1))) for one in (source, bare, {**source, **other})],
            change("t", {**source, "table": "customers"}, None),
            change("r", {**source, "table": "customers", "snapshot": "true"}, made(order(1))),
        ]
        # A logical message is of no table.
        message = {"op": "m", "message": {}, "source": {**source, "schema": "", "table": ""}}
        (ignored,) = read(feed, (KEY, compact(message).encode()))
        assert said(ignored) == ("ignored", [])
        records = [(KEY, event.encode()) for event in events]
        waits = ("unreadable", [OTHER_TABLE])
        rows = read(feed, *records)
        assert [said(row) for row in rows] == [("change", [])] * 2 + [waits] * 3
        # Nor does it say anything of this table's runs and snapshots.
        assert [row["source"] is None for row in rows][2:] == [True] * 3
        several = feed.model_copy(update={"tables": (own, "public.customers"), "table_patterns": (r"ecommerce\..*",)})
        kinds = [row["kind"] for row in read(several, *records)]
        assert kinds == ["change", "change", "unreadable", "truncate", "change"]
        of_any = feed.model_copy(update={"tables": ()})
        assert [row["kind"] for row in read(of_any, *records)].count("unreadable") == 0


def test_records_that_contradict_themselves_wait(contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    one, two = postgres_image(order(1)), postgres_image(order(2))
    good = change("u", SOURCE, one, before=one).encode()
    negative = [{**SOURCE, "sequence": None, "lsn": -1}, {**SOURCE, "sequence": '["-5","100"]'}]
    expected = [
        (KEY, good, "change", []),
        (KEY, change("u", SOURCE, one, before=two).encode(), "unreadable", [KEY_CHANGED]),
        (KEY, change("c", SOURCE, two).encode(), "unreadable", [KEYS_DIFFER]),
        (KEY, change("d", SOURCE, None, before=two).encode(), "unreadable", [KEYS_DIFFER]),
        (b'{"customer_id":7}', good, "change", []),  # message.key.columns: no column of the key is in both
        (KEY, good[:-1] + b',"op":"d"}', "unreadable", [TWO_OPS]),
        (KEY, good.replace(b'"note":null', b'"op":"x"'), "change", []),
        *[(KEY, change("c", source, one).encode(), "unreadable", [NEGATIVE]) for source in negative],
    ]
    found = read(feed, *[(key, value) for key, value, _kind, _problems in expected])
    assert [said(row) for row in found] == [(kind, problems) for _key, _value, kind, problems in expected]


def test_a_null_in_json_is_a_tombstone(contracts: Contracts) -> None:
    feed = contracts.feeds["postgres_orders"]
    values = (b"null", b" null\n", b'{"payload": null}', b'{"schema":null,"payload":null}')
    assert [row["kind"] for row in read(feed, *[(KEY, value) for value in values])] == ["tombstone"] * 4
    (event,) = read(contracts.feeds["postgres_outbox_orders"], (b'"1"', b"null"))
    assert event["kind"] == "tombstone"


def test_an_upsert_topic_may_have_the_key_in_the_records_key_alone() -> None:
    """As Flink's upsert-kafka writes with `key.fields-prefix` and `value.fields-include` EXCEPT_KEY, and as we do."""
    declared = {"id": {"type": "BIGINT", "fields": ["key_id"]}, "name": "STRING"}
    feed = Feed.model_validate(
        {
            **{"name": "users", "source": "shop", "kind": "mysql", "topics": ["users"], "envelope": "table"},
            **{"keys": ["id"], "sequence_by": "kafka_offset", "columns": declared},
        }
    )
    key = b'{"key_id":2}'
    events = events_of(feed, (key, b'{"name":"Tom"}'), (key, b'{"name":null}'), (key, None), (None, b'{"name":"Tom"}'))
    assert [(event.kind, event.row) for event in events] == [
        ("change", [2, "Tom"]),
        ("change", [2, None]),
        ("tombstone", [2, None]),
        ("change", [None, "Tom"]),
    ]
    assert [list(event.problems) for event in events] == [[], [], [], ["id: the record has no value for this key."]]
