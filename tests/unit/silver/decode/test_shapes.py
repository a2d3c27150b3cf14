"""Flattened rows: the words that state their operation, and records of other tools that only look like rows."""

from __future__ import annotations

from typing import Any

import pytest

from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import SNAPSHOT_WORDS, Record
from silver.decode.reference.outbox import NO_FIELD
from silver.decode.reference.shapes import OTHER_SHAPE
from silver.decode.reference.table import NOT_OF_SHAPE, OTHER_TABLE, OWN_OP
from tests.support.decoding import batch_of, decoded, events_of, said
from tests.support.events import compact
from tests.support.feeds import feed

KEY = b'{"id":1}'
COLUMNS = {"id": "BIGINT", "name": "STRING"}
ROW = {"id": 1, "name": "a"}
FLAT = feed(columns=COLUMNS, sequence_by="kafka_offset")
OP = "__op: the value is none of r, c, u and d."
DELETED = "__deleted: the value is none of true and false."
SNAPSHOT = (
    "snapshot: the value is none of true, first, first_in_data_collection, last_in_data_collection, last, false and"
    " incremental."
)


def stated(
    value: Any, *, of: Any = FLAT, key: bytes | None = KEY, headers: Any = ()
) -> tuple[str, str | None, list[str]]:
    (event,) = events_of(of, (key, compact(value).encode()), headers=headers)
    return event.kind, event.op if event.kind == "change" else None, list(event.problems)


@pytest.mark.parametrize("word", ["r", "c", "u", "d", None])
def test_the_words_of_an_operation(word: str | None) -> None:
    assert stated({**ROW, "__op": word}) == ("change", word, [])
    header = None if word is None else word.encode()
    assert stated(ROW, headers=[("__op", header)]) == ("change", word, [])
    assert stated({**ROW, "__op": word}, headers=[("__op", header)]) == ("change", word, [])


@pytest.mark.parametrize("word", [1, 0, True, "D", "delete", "x", "", " d", "t", "m", "i", "C", ["d"], {"op": "d"}])
def test_another_word_for_an_operation_states_nothing(word: Any) -> None:
    assert stated({**ROW, "__op": word}) == ("unreadable", None, [OP])
    assert stated({**ROW, "__op": word, "__deleted": "true"}) == ("unreadable", None, [OP])
    if isinstance(word, str):
        assert stated(ROW, headers=[("__op", word.encode())]) == ("unreadable", None, [OP])
        assert stated({**ROW, "__op": "c"}, headers=[("__op", word.encode())]) == ("unreadable", None, [OP])


@pytest.mark.parametrize(("word", "op"), [("true", "d"), (True, "d"), ("false", None), (False, None), (None, None)])
def test_the_words_of_a_deletion(word: Any, op: str | None) -> None:
    assert stated({**ROW, "__deleted": word}) == ("change", op, [])


@pytest.mark.parametrize("word", ["True", "TRUE", "1", 1, 0, "", "yes", "t", "d", "null", [True]])
def test_another_word_for_a_deletion_states_nothing(word: Any) -> None:
    assert stated({**ROW, "__deleted": word}) == ("unreadable", None, [DELETED])
    assert stated({**ROW, "__op": "u", "__deleted": word}) == ("unreadable", None, [DELETED])
    if isinstance(word, str):
        header = [("__deleted", b'"null"' if word == "null" else word.encode())]
        assert stated(ROW, headers=header) == ("unreadable", None, [DELETED])


def test_a_row_that_is_deleted_is_a_delete_and_its_field_goes_before_the_header() -> None:
    assert stated({**ROW, "__op": "d", "__deleted": "true"}, headers=[("__op", b"d")]) == ("change", "d", [])
    assert stated({**ROW, "__op": "u", "__deleted": "false"}) == ("change", "u", [])
    assert stated({**ROW, "__op": "u"}, headers=[("__deleted", b"true")]) == ("change", "d", [])
    assert stated({**ROW, "__op": "u"}, headers=[("__op", b"c")]) == ("change", "u", [])


def test_a_row_of_another_table_says_so_first() -> None:
    of = feed(columns=COLUMNS, sequence_by="kafka_offset", tables=("public.things",))
    row = {**ROW, "__op": "x", "__table": "others", "__schema": "public"}
    assert stated(row, of=of) == ("unreadable", None, [OTHER_TABLE])
    assert stated(row, of=of.model_copy(update={"other_tables": "ignore"})) == ("ignored", None, [])


@pytest.mark.parametrize("word", [*SNAPSHOT_WORDS, True, False, None])
def test_the_words_of_a_snapshot(word: Any) -> None:
    assert stated({"op": "r", "after": ROW, "source": {"snapshot": word}}) == ("change", "r", [])
    assert stated({**ROW, "__source_snapshot": word}) == ("change", None, [])


@pytest.mark.parametrize("word", ["True", "", "maybe", "LAST", 1, "last_in_data_collections"])
def test_another_word_for_a_snapshot_states_nothing(word: Any) -> None:
    envelope = {"op": "r", "after": ROW, "source": {"snapshot": word}}
    assert stated(envelope) == ("unreadable", None, [SNAPSHOT])
    assert stated({**ROW, "__snapshot": word}) == ("unreadable", None, [SNAPSHOT])
    # Nor is it taken the fast way.
    of = feed(columns=COLUMNS)
    record = Record("shop.things", KEY, compact(envelope).encode())
    assert said(decoded([batch_of([record])], of)[0]) == ("unreadable", [SNAPSHOT])


@pytest.mark.parametrize("op", ["x", "C", "", 1, True, ["c"], "delete", "i"])
def test_another_operation_of_an_envelope_states_nothing(op: Any) -> None:
    sentence = "The operation is not one of r, c, u with its row, d, t or m."
    assert stated({"op": op, "after": ROW, "source": {}}) == ("unreadable", None, [sentence])


@pytest.mark.parametrize("status", ["COMMIT", "begin", "", None, 1])
def test_another_status_of_a_transaction_states_nothing(status: Any) -> None:
    marker = {"status": status, "id": "775:1", "event_count": None, "data_collections": None}
    assert stated(marker) == ("unreadable", None, ["status: the value is none of BEGIN and END."])
    for known in ("BEGIN", "END"):
        assert stated({**marker, "status": known}) == ("ignored", None, [])


CLOUD = {"specversion": "1.0", "id": "17", "source": "/debezium/shop", "type": "io.debezium.DataChangeEvent", "time": 1}
MAXWELL = {"database": "shop", "table": "things", "ts": 1, "xid": 2}
CANAL = {"database": "shop", "table": "things", "es": 1, "id": 3, "pkNames": ["id"], "sql": "", "mysqlType": {}}
OGG = {"table": "SHOP.THINGS", "op_type": "U", "op_ts": "2026-01-01 00:00:00.000000", "pos": "0001"}
OTHERS: dict[str, list[dict[str, Any]]] = {
    "CloudEvents": [
        {**CLOUD, "data": {"before": None, "after": ROW, "op": "c", "source": {}}},
        {**CLOUD, "data": {"schema": None, "payload": ROW}, "iodebeziumop": "d", "iodebeziumtxid": None},
        {**CLOUD, "data_base64": "AA==", "name": "a"},
        {**{name: value for name, value in CLOUD.items() if name != "id"}, **ROW},
    ],
    "Maxwell": [
        {**MAXWELL, "type": "insert", "data": ROW},
        {**MAXWELL, "type": "delete", "data": ROW, "id": 1},
        {**MAXWELL, "type": "bootstrap-insert", "data": ROW, "name": "a"},
        {**MAXWELL, "type": "table-alter", "old": {}, "def": {}, "sql": "ALTER TABLE things", "id": 1},
        {"data": ROW, "type": "update", "old": {"name": "b"}},
    ],
    "Canal": [
        {**CANAL, "isDdl": False, "type": "INSERT", "data": [ROW], "old": None},
        {**CANAL, "isDdl": True, "type": "ALTER", "data": None},
        {**CANAL, "type": "DELETE", "data": [ROW]},
        {"data": [ROW], "type": "INSERT"},
    ],
    "OGG": [
        {**OGG, "before": ROW, "after": ROW},
        {**OGG, "op_type": "I", "after": ROW},
        {**OGG, "op_type": "D", "before": ROW},
        {**OGG, **ROW},
        {"op_type": "U", "before": ROW, "after": ROW},
    ],
    "the Iceberg sink's transforms (_cdc.op)": [
        {**ROW, "_cdc": {"op": "D", "ts": 1, "source": "shop.things"}},
        {**ROW, "_cdc.op": "D"},
        {**ROW, "_cdc_op": "U"},
    ],
    "AWS DMS": [{"data": ROW, "metadata": {"record-type": "data", "operation": "delete"}, "id": 1}],
    "Qlik Replicate": [{"data": ROW, "beforeData": None, "headers": {"operation": "DELETE", "changeSequence": "1"}}],
    "wal2json": [{"action": "D", "schema": "public", "table": "things", "identity": [{"name": "id"}], "id": 1}],
    "MongoDB's change events": [{"operationType": "delete", "documentKey": {"_id": 1}, "id": 1}],
}
ALL_OTHERS = [(name, value) for name, values in OTHERS.items() for value in values]


@pytest.mark.parametrize(("name", "value"), ALL_OTHERS)
@pytest.mark.parametrize("key", [None, KEY, b"1"])
def test_the_record_of_another_tool_is_no_row(name: str, value: dict[str, Any], key: bytes | None) -> None:
    expected = ("unreadable", None, [OTHER_SHAPE.format(name)])
    assert stated(value, key=key) == expected
    of_many = feed(columns={**COLUMNS, "type": "STRING", "source": "STRING"}, sequence_by="kafka_offset")
    assert stated(value, key=key, of=of_many) == expected
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": value}
    assert stated(wrapped, key=key) == expected


@pytest.mark.parametrize(("name", "value"), ALL_OTHERS)
def test_the_record_of_another_tool_is_no_outbox_event(name: str, value: dict[str, Any]) -> None:
    of = feed(columns=COLUMNS, envelope="outbox", sequence_by="kafka_offset")
    for one in (value, {"payload": compact(value)}, {"payload": value}, compact(value)):
        assert stated(one, of=of, key=b'"1"') == ("unreadable", None, [OTHER_SHAPE.format(name)])


def test_a_table_may_have_such_columns() -> None:
    declared = {"id": "BIGINT", **dict.fromkeys(("specversion", "source", "type"), "STRING")}
    of = feed(columns=declared, sequence_by="kafka_offset")
    assert stated({"id": 1, "specversion": "1", "source": "web", "type": "x"}, of=of) == ("change", None, [])
    columns: list[dict[str, Any]] = [{"type": "insert", "data": "text"}, {"type": "sale", "data": [1]}]
    columns += [
        {"op_type": "retail"},
        {"metadata": {"operation": "create"}},
        {"headers": {}},
        {"_cdc": None},
        {"action": "D"},
    ]
    for more in columns:
        assert stated({**ROW, **more}) == ("change", None, [])


def test_an_outbox_payload_without_a_declared_field_says_so() -> None:
    of = feed(columns=COLUMNS, envelope="outbox", sequence_by="kafka_offset")
    assert stated({"payload": '{"type":"x"}'}, of=of, key=b'"1"') == ("unreadable", None, [NO_FIELD])


@pytest.mark.parametrize("keys", [("id",), ("id", "name")])
def test_a_row_without_its_key_is_none(keys: tuple[str, ...]) -> None:
    of = feed(columns={**COLUMNS, "note": "STRING"}, keys=keys, sequence_by="kafka_offset")
    found = stated({"note": "a", "id": None}, of=of, key=None)
    assert found[2] == [f"{name}: the record has no value for this key." for name in keys]


WITH_OP = feed(columns={"id": "BIGINT", "op": "STRING"}, sequence_by="kafka_offset")
OF_ALL = {"id": "BIGINT", **dict.fromkeys(("op", "source", "before", "after"), "STRING")}


def test_a_row_may_have_a_column_op() -> None:
    for op in ("sell", "d", "", None, 7):
        (event,) = events_of(WITH_OP, (KEY, compact({"id": 1, "op": op}).encode()))
        assert (event.kind, event.op, event.problems) == ("change", None, [])
        assert event.row == [1, None if op is None else str(op)]
    assert stated({"id": 1, "op": "sell", "__op": "d"}, of=WITH_OP) == ("change", "d", [])
    of_all = feed(columns=OF_ALL, sequence_by="kafka_offset")
    row = {"id": 1, "op": "sell", "source": "web", "before": "x", "after": "y"}
    assert stated(row, of=of_all) == ("change", None, [])


def test_an_envelope_stays_one_where_op_is_a_column_too() -> None:
    for op in ("c", "u", "r"):
        envelope = {"before": None, "after": {"id": 1, "op": "sell"}, "source": {"lsn": 1}, "op": op, "ts_ms": 1}
        assert stated(envelope, of=WITH_OP) == ("change", op, [])
    assert stated({"before": ROW, "after": None, "source": {}, "op": "d"}, of=WITH_OP) == ("change", "d", [])
    for broken in ({"after": "text"}, {"after": {"id": 1}, "source": 5}, {"before": None}):
        kind, _op, problems = stated({"op": "c", **broken}, of=WITH_OP)
        assert (kind, len(problems)) == ("unreadable", 1)
    assert stated({"op": None, "after": ROW, "before": None}, of=WITH_OP)[0] == "unreadable"


def test_both_decoders_agree_where_op_and_source_are_columns() -> None:
    of = feed(columns={"id": "BIGINT", "op": "STRING", "source": "STRING"}, sequence_by="kafka_offset")
    values = [
        {"id": 1, "op": "d", "source": {}},
        {"id": 1, "op": "d", "source": "web"},
        {"before": {"id": 1}, "after": None, "op": "d", "source": {}},
        {"before": None, "after": {"id": 1, "op": "x", "source": "y"}, "op": "c", "source": {"lsn": 5}, "ts_ms": 1},
    ]
    records = [Record("shop.things", KEY, compact(value).encode()) for value in values]
    found = decoded([batch_of(records)], of)
    events = [ReferenceDecoder(of).event(record) for record in records]
    assert [(found[n].op, list(found[n].row or ())) for n in range(4)] == [(e.op, list(e.row or ())) for e in events]
    assert [event.op for event in events] == [None, None, "d", "c"]


def test_a_field_op_that_is_no_column_may_be_the_operation() -> None:
    assert stated({**ROW, "op": "d"}) == ("unreadable", None, [OWN_OP])
    assert stated({**ROW, "op": "sell"}) == ("unreadable", None, [OWN_OP])
    assert stated({**ROW, "op": "sell", "source": "web"}) == ("unreadable", None, [NOT_OF_SHAPE])
