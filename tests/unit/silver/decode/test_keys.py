"""Keys in the form of each converter of Kafka Connect: one that cannot be read is a reason, for a tombstone too."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from lakehouse.registered import AVRO, RegisteredSchema
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import Record
from silver.decode.reference.wrapper import KEY_NOT_JSON, KEY_OF_STRUCT, OF_KEY
from tests.support.decoding import batch_of, decoded, events_of, said
from tests.support.feeds import feed

ROW = b'{"id":200,"name":"a"}'
ENVELOPE = b'{"before":null,"after":{"id":200,"name":"a"},"source":{"lsn":1},"op":"c","ts_ms":1}'
DELETE = b'{"before":{"id":200},"after":null,"source":{"lsn":1},"op":"d","ts_ms":1}'
NUMBERS = feed(columns={"id": "BIGINT", "name": "STRING"})
TEXTS = feed(columns={"id": "STRING", "name": "STRING"})
TWO = feed(columns={"id": "BIGINT", "name": "STRING"}, keys=("id", "name"))
EVENTS = feed(columns={"id": "BIGINT", "name": "STRING"}, envelope="outbox", sequence_by="kafka_offset")
KEYLESS = feed(columns={"id": "BIGINT", "name": "STRING"}, keys=(), append_only=True)


def binary(number: int, converters: str = "") -> str:
    written = f", as {converters} writes them" if converters else ""
    return f"The key is {number} bytes that are no text{written}: set key.converter to JsonConverter."


INTEGER = binary(4, "IntegerConverter or FloatConverter")
LONG = binary(8, "LongConverter or DoubleConverter")
NO_REGISTRY = "The key is in the Confluent wire format (Avro), and no schema registry is named: set schema_registry."
UNREADABLE = [
    *((struct.pack(">i", number), INTEGER) for number in (200, 65, 0, 1, -1, 16909060, 2**31 - 1, -(2**31))),
    *((struct.pack(">q", number), f"{NO_REGISTRY} {LONG}") for number in (200, 65, 0, 2**40, 2**55)),
    *((struct.pack(">q", number), LONG) for number in (-1, 2**62, -(2**63))),
    *((struct.pack(">h", number), binary(2, "ShortConverter")) for number in (200, 1, -1)),
    (struct.pack(">d", 200.0), LONG),
    (struct.pack(">f", 200.0), INTEGER),
    *((flag, binary(1, "BooleanConverter")) for flag in (b"\x00", b"\x01")),
    (b"\0\0\0\0\x07", binary(5)),
    (b"\xc8\xc9\xca", binary(3)),
    (b"abc\x00", INTEGER),
    (b"Struct{id=200}", KEY_OF_STRUCT),
    (b"Struct{id=200,name=a}", KEY_OF_STRUCT),
    (b'\xef\xbb\xbf{"id":200}', KEY_NOT_JSON),
    (b'\xef\xbb\xbf"200"', KEY_NOT_JSON),
    (b"\xef\xbb\xbf200", KEY_NOT_JSON),
    *(
        (f'{unseen}{{"id":200}}'.encode(), KEY_NOT_JSON)
        for unseen in ("\u00a0", "\u200b", "\u2028", " \ufeff", "\ufeff ")
    ),
    ('{"id":200}'.encode("utf-16"), binary(22)),
    *((text, KEY_NOT_JSON) for text in (b'{"id":200', b'{"id":200}}', b'{"id":200}{"id":200}', b"{id:200}", b' {"a')),
    *((text, KEY_NOT_JSON) for text in (b'"200', b'"a"b"', b"[200", b"[1,]", b"['a']")),
    (b'"\\ud83d"', "The key has one half of a surrogate pair, which is no text."),
    (b"[" * 501 + b"]" * 501, "The key is nested more than 500 levels deep."),
]


@pytest.mark.parametrize(("key", "problem"), UNREADABLE)
@pytest.mark.parametrize("of", [NUMBERS, TEXTS, TWO, EVENTS, KEYLESS], ids=["number", "text", "two", "outbox", "none"])
def test_a_key_that_cannot_be_read_is_a_reason_for_changes_and_tombstones(key: bytes, problem: str, of: Any) -> None:
    values = [ROW, ENVELOPE, DELETE, None, b"", b"null"]
    expected = [("unreadable", [problem])] * len(values)
    assert [said(event) for event in events_of(of, *[(key, value) for value in values])] == expected
    # A table whose keys cannot be read is suspended by this.
    assert problem.startswith(OF_KEY)
    records = [Record("shop.things", key, value) for value in values]
    assert [said(event) for event in decoded([batch_of(records)], of).values()] == expected


@pytest.mark.parametrize(
    ("key", "row"),
    [
        (b'{"id":200}', [200, None]),
        (b'{"schema":{"type":"struct"},"payload":{"id":200}}', [200, None]),
        (b"200", [200, None]),
        (b'"200"', [200, None]),
        (b"-0", [0, None]),
    ],
)
def test_a_key_that_is_read_is_that_of_the_tombstone(key: bytes, row: list[Any]) -> None:
    (event,) = events_of(NUMBERS, (key, None))
    assert (event.kind, event.row, event.problems) == ("tombstone", row, [])


@pytest.mark.parametrize("text", ["abc", "a b", "a\tb", "注文", "200", " 200", "1e5", "Struct", "x{", "a\\ud83d"])
def test_a_text_is_a_key_of_a_column_of_text(text: str) -> None:
    (event,) = events_of(TEXTS, (text.encode(), None))
    assert (event.kind, event.row, event.problems) == ("tombstone", [text, None], [])


@pytest.mark.parametrize("key", [b"abc", b'{"id":"abc"}', b'{"id":1.5}', b"ABCD", b'{"id":{"a":1}}', b"1e400"])
@pytest.mark.parametrize("of", [NUMBERS, EVENTS], ids=["table", "outbox"])
def test_a_tombstone_whose_key_does_not_fit_is_no_tombstone(key: bytes, of: Any) -> None:
    (event,) = events_of(of, (key, None))
    if of is EVENTS and key.startswith(b"{"):  # an outbox's key is a single value: no row is named
        assert said(event) == ("tombstone", [])
        return
    assert (event.kind, event.row, len(event.problems)) == ("unreadable", None, 1)
    assert event.problems[0].startswith("id: the value is ")


def test_records_without_a_key_are_read_as_before() -> None:
    for key in (None, b""):
        change, tombstone = events_of(NUMBERS, (key, ENVELOPE), (key, None))
        assert (said(change), said(tombstone)) == (("change", []), ("tombstone", []))
    # message.key.columns: the key is of other columns.
    assert [said(one) for one in events_of(NUMBERS, (b'{"other":1}', ENVELOPE), (b'{"other":1}', None))] == [
        ("change", []),
        ("tombstone", []),
    ]


def test_a_long_number_may_be_meant_where_a_registry_is_named() -> None:
    of = NUMBERS.model_copy(update={"schemas": {1: RegisteredSchema(AVRO, '"string"')}})
    (unknown, no_avro) = events_of(of, (struct.pack(">q", 200), None), (struct.pack(">q", 2**24), None))
    assert said(unknown) == ("unreadable", [f"The key names schema 0, which is not known here. {LONG}"])
    assert said(no_avro) == ("unreadable", [f"The key is not Avro of the schema that its id names. {LONG}"])
    explaining = ReferenceDecoder(of)
    longer = explaining.event(Record("shop.things", struct.pack(">q", 200) + b"0", None))
    assert said(longer) == ("unreadable", ["The key names schema 0, which is not known here."])
