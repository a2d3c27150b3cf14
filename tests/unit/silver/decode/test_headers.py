"""Headers, in the form of each converter that Kafka Connect has for them: they state the same."""

from __future__ import annotations

import json

import pytest

from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record, header_text
from tests.support.decoding import batch_of, decoded, events_of, said
from tests.support.events import compact
from tests.support.feeds import feed


def plain(text: str) -> bytes:
    """As SimpleHeaderConverter and StringConverter write it."""
    return text.encode()


def quoted(text: str) -> bytes:
    """As JsonConverter writes it with `schemas.enable=false`; JSON is itself."""
    return text.encode() if text.startswith("{") else json.dumps(text).encode()


def with_schema(text: str) -> bytes:
    payload = json.loads(text) if text.startswith("{") else text
    kind = "struct" if text.startswith("{") else "string"
    return compact({"schema": {"type": kind, "optional": False}, "payload": payload}).encode()


def in_bytes(text: str) -> bytes:
    """JSON that writes letters with escapes."""
    return ('"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"').encode()


FORMS = [plain, quoted, with_schema]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"OrderDeleted", "OrderDeleted"),
        (b'"OrderDeleted"', "OrderDeleted"),
        (in_bytes("OrderDeleted"), "OrderDeleted"),
        (with_schema("OrderDeleted"), "OrderDeleted"),
        ('"注文 \\"🚀\\""'.encode(), '注文 "🚀"'),
        (b'{"schema":null,"payload":"x"}', "x"),
        (b'{"schema":{"type":"int64"},"payload":5}', "5"),
        (b'{"schema":{"type":"boolean"},"payload":true}', "true"),
        (b'{"schema":{"type":"string","optional":true},"payload":null}', None),
        (b"null", None),
        (b'"null"', "null"),
        (b"", ""),
        (b'""', ""),
        (b"17", "17"),
        (b"true", "true"),
        (b"\xff", "\ufffd"),
        # A key, as both converters write it without a schema, stays as it is written.
        (b'{"order_id": 1.50}', '{"order_id": 1.50}'),
        (b'{"schema":1,"payload":2}', '{"schema":1,"payload":2}'),
        (b'{"schema":null,"payload":1,"more":2}', '{"schema":null,"payload":1,"more":2}'),
        # What begins as JSON, and is none.
        (b'"half', '"half'),
        (b"{half", "{half"),
        (b'"\\ud83d"', '"\\ud83d"'),
        (b'"a" and "b"', '"a" and "b"'),
    ],
)
def test_the_text_of_a_header(value: bytes, text: str | None) -> None:
    assert header_text(value) == text


@pytest.mark.parametrize("form", FORMS)
def test_every_header_that_is_read_is_read_in_every_form(form: object) -> None:
    assert callable(form)
    outbox = feed(envelope="outbox", sequence_by="kafka_offset", apply_as_deletes=("Gone",), columns={"id": "BIGINT"})
    headers = [("id", form("e-1")), ("eventType", form("Gone")), ("__debezium.context.runId", form("run-1"))]
    (event,) = events_of(outbox, (b'"1"', compact({"payload": '{"id":1}'}).encode()), headers=headers)
    assert said(event) == ("change", [])
    assert (event.event_id, event.op, event.is_delete, event.run_id) == ("e-1", "Gone", True, "run-1")

    table = feed(columns={"id": "BIGINT"})
    moved = [("__debezium.oldkey", form('{"id":7}')), ("__debezium.newkey", form('{"id":8}'))]
    (event,) = events_of(table, (b'{"id":1}', b'{"op":"c","after":{"id":1},"source":{}}'), headers=moved)
    assert (event.old_key, event.new_key) == ('{"id":7}', '{"id":8}')

    added = [("__op", form("u")), ("__source_lsn", form("17")), ("__source_snapshot", form("last"))]
    (event,) = events_of(table, (b'{"id":1}', b'{"id":1}'), headers=added)
    assert (event.kind, event.op, event.source and event.source[:6]) == (
        "change",
        "u",
        (None, None, None, "last", None, 17),
    )
    (event,) = events_of(table, (b'{"id":1}', b'{"id":1}'), headers=[("__deleted", form("true"))])
    assert (event.kind, event.is_delete) == ("change", True)


def test_the_run_of_a_record_that_is_read_fast_is_the_same() -> None:
    of = feed(columns={"id": "BIGINT"})
    runs = [b"run-1", b'"run-1"', with_schema("run-1"), b"\xff", b"null", None, b"", b'"half', b"run-2", b'"run-1"']
    event = b'{"before":null,"after":{"id":1},"source":{"lsn":1},"op":"c","ts_ms":1}'
    headers = [[("__debezium.context.runId", run), ("__debezium.context.runId", b"later")] for run in runs]
    records = [Record("shop.things", b'{"id":1}', event, both) for both in [*headers, []]]
    found = decoded([batch_of(records)], of)
    expected = [ReferenceDecoder(of).event(record).run_id for record in records]
    assert [found[number].run_id for number in range(len(records))] == expected
    assert expected == ["run-1", "run-1", "run-1", "\ufffd", "", "", "", '"half', "run-2", "run-1", ""]
