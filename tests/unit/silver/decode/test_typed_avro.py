"""The fast way of Avro: what it takes, the definition reads the same; and it takes what is as declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.contracts.models import Feed
from lakehouse.registered import AVRO, RegisteredSchema
from silver.decode.arrow import decode_batches
from silver.decode.reference.decoder import ReferenceDecoder
from silver.decode.reference.message import SNAPSHOT_WORDS, Record, unknown_word
from silver.decode.reference.table import OTHER_TABLE
from tests.support.avro import Registered, confluent
from tests.support.decoding import batch_of, decoded, said
from tests.support.events import mysql_source, postgres_source
from tests.support.feeds import feed
from tests.unit.silver.decode.test_laws import check_same

CHANCE = st.randoms(use_true_random=True)
PLACEHOLDER = "__debezium_unavailable_value"
TIME, DATA, CONNECT = "io.debezium.time", "io.debezium.data", "org.apache.kafka.connect.data"
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800

Avro = Any
Any_ = Callable[[Random], Any]


def knowing(registry: Registered, **given: Any) -> Feed:
    """A feed with the schemas of a registry, as they are and as they will be."""
    return feed(**given).model_copy(update={"schemas": registry.schemas})


# Rows of every type.


def named(kind: str, name: str, **more: Any) -> Avro:
    return {"type": kind, "connect.name": name, **more}


def decimal(scale: int, precision: int = 10) -> Avro:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    logical = {"logicalType": "decimal", "scale": scale, "precision": precision}
    return {"type": "bytes", **logical, "connect.name": f"{CONNECT}.Decimal", "connect.parameters": parameters}


def one_of(*values: Any) -> Any_:
    return lambda random: random.choice(values)


def near(*edges: int) -> Any_:
    """Numbers at these edges, and small ones."""
    return lambda random: random.choice([*edges, random.randrange(-1000, 1000)]) + random.randrange(-1, 2)


def within(low: int, beyond: int) -> Any_:
    return lambda random: random.choice([low, beyond - 1, random.randrange(low, beyond)])


def unscaled(digits: int) -> Any_:
    """The bytes of a decimal's number."""

    def made(random: Random) -> bytes:
        number: int = random.choice([0, -1, 10**digits - 1, 1 - 10**digits, random.randrange(-1000, 1000)])
        return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)

    return made


@dataclass(frozen=True)
class Told:
    """A column: what the contract declares, the type in Avro, usual values, and some that are not."""

    declared: Any
    avro: Avro
    usual: Any_
    odd: Any_


TEXTS = one_of("a", "", "注文 🚀", 'a "b" \\ \n', "7", "\u2028")
ODD_TEXTS = one_of(PLACEHOLDER, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "NaN", "\x00", "x" * 300)
TIMES = one_of("2024-02-29T12:34:56.5Z", "1999-12-31T23:59:59Z", "2024-02-29T00:00:00.123456Z")
ODD_TIMES = one_of("2024-02-30T00:00:00Z", "2024-02-29T12:34:56+02:00", "soon", "0001-01-01T00:00:00Z", "1", "infinity")
FLOATS = (0.0, -0.0, 0.1, 1.5, 3.4028234663852886e38, 1e-45, float("nan"), float("inf"), float("-inf"))
SECONDS = within(YEAR_1, YEAR_10000)
ODD_BYTES = one_of(b"", b"\x00" * 20, b"\x7f" + b"\xff" * 30, PLACEHOLDER.encode())
COLUMNS: Mapping[str, Told] = {
    "id": Told("BIGINT", "long", within(-(2**63), 2**63), near(0)),
    "number": Told("INT", "int", within(-(2**31), 2**31), near(2**31, -(2**31), 2**62)),
    "small": Told(
        "SMALLINT", {"type": "int", "connect.type": "int16"}, within(-(2**15), 2**15), near(2**15, -(2**15), 2**31)
    ),
    "flag": Told("BOOLEAN", "boolean", one_of(True, False), one_of(True)),
    "tiny": Told("BOOLEAN", {"type": "int", "connect.type": "int16"}, one_of(0, 1), one_of(2, -1)),
    "note": Told("STRING", "string", TEXTS, ODD_TEXTS),
    "class": Told("STRING", "long", within(0, 10), near(2**62)),
    "doc": Told(
        {"type": "STRING", "source_type": "json"}, named("string", f"{DATA}.Json"), one_of('{"a": 1.50}'), ODD_TEXTS
    ),
    "amount": Told("DECIMAL(10,2)", decimal(2), unscaled(10), ODD_BYTES),
    "wide": Told("DECIMAL(38,10)", decimal(10, 38), unscaled(38), ODD_BYTES),
    "coarse": Told("DECIMAL(10,4)", decimal(2), unscaled(8), ODD_BYTES),
    "of_text": Told("DECIMAL(10,2)", "string", one_of("1.50", "-0.01", "1e2"), one_of("1.505", "x", "NaN", "")),
    "of_double": Told("DECIMAL(10,2)", "double", one_of(1.5, -0.25, 0.0), one_of(*FLOATS)),
    "whole_text": Told("BIGINT", "string", one_of("7", "-0"), ODD_TEXTS),
    "unsigned": Told(
        {"type": "DECIMAL(20,0)", "source_type": "unsigned_bigint"}, "long", within(-(2**63), 2**63), near(0)
    ),
    "day": Told("DATE", named("int", f"{TIME}.Date"), within(-719_162, 2_932_897), near(-719_163, 2_932_897)),
    "day_text": Told(
        "DATE", named("string", f"{TIME}.IsoDate"), one_of("2024-02-29", "2024-02-29Z"), one_of("2024-02-30", "7")
    ),
    "at": Told(
        "TIMESTAMP",
        named("long", f"{TIME}.MicroTimestamp"),
        lambda random: SECONDS(random) * 10**6,
        near(YEAR_1 * 10**6, YEAR_10000 * 10**6, 2**62),
    ),
    "plain_at": Told(
        "TIMESTAMP", "long", lambda random: SECONDS(random) * 10**6, near(YEAR_1 * 10**6, YEAR_10000 * 10**6)
    ),
    "in_millis": Told(
        "TIMESTAMP",
        named("long", f"{TIME}.Timestamp"),
        lambda random: SECONDS(random) * 1000,
        near(YEAR_1 * 1000, YEAR_10000 * 1000, -(2**62)),
    ),
    "in_nanos": Told("TIMESTAMP", named("long", f"{TIME}.NanoTimestamp"), one_of(1000, -1000, 0), one_of(1, 2**62)),
    "zoned_at": Told("TIMESTAMP", named("string", f"{TIME}.ZonedTimestamp"), TIMES, ODD_TIMES),
    "of_another": Told("TIMESTAMP", named("string", "com.shop.Time"), TIMES, ODD_TIMES),
    "zoned": Told(
        {"type": "STRING", "source_type": "timestamptz"}, named("string", f"{TIME}.ZonedTimestamp"), TIMES, ODD_TIMES
    ),
    "time": Told(
        {"type": "STRING", "source_type": "time"},
        named("long", f"{TIME}.MicroTime"),
        within(0, 86_400 * 10**6),
        near(-1, 86_400 * 10**6),
    ),
    "uuid": Told(
        {"type": "STRING", "source_type": "uuid"},
        named("string", f"{DATA}.Uuid"),
        one_of("00000000-0000-0000-0000-00000000000A"),
        one_of("x", ""),
    ),
    "double": Told("DOUBLE", "double", one_of(*FLOATS), one_of(*FLOATS)),
    "single": Told("FLOAT", "float", one_of(*FLOATS), one_of(*FLOATS)),
    "near_double": Told("DOUBLE", "float", one_of(*FLOATS), one_of(*FLOATS)),
    "bytes": Told("BINARY", "bytes", one_of(b"", b"\x00\xff"), ODD_BYTES),
    "bits": Told(
        {"type": "STRING", "source_type": "bit(8)"},
        named("bytes", f"{DATA}.Bits"),
        one_of(b"\x05"),
        one_of(b"\x05\x05"),
    ),
}
TEXT_FORMS = {
    "id": COLUMNS["id"],
    "amount": Told("DECIMAL(10,2)", "string", one_of("1.50", "-99999999.99"), one_of("1.505", "NaN", "1e2")),
    "at": Told("TIMESTAMP", named("string", f"{TIME}.IsoTimestamp"), TIMES, ODD_TIMES),
    "day": Told("DATE", named("string", f"{TIME}.IsoDate"), one_of("2024-02-29"), one_of("2024-02-30", "-1")),
}
CONNECT_FORMS = {
    "id": COLUMNS["id"],
    "amount": Told("DECIMAL(10,2)", "double", one_of(1.5, -0.25), one_of(*FLOATS)),
    "at": Told("TIMESTAMP", named("long", f"{CONNECT}.Timestamp"), lambda random: SECONDS(random) * 1000, near(2**62)),
    "day": Told("DATE", named("int", f"{CONNECT}.Date"), near(0), near(2**30)),
}


def some(*names: str) -> dict[str, Told]:
    return {name: COLUMNS[name] for name in names}


SOURCES: Mapping[str, Mapping[str, Avro]] = {
    "postgresql": {
        "version": "string",
        "name": "string",
        "ts_ms": "long",
        "snapshot": ["null", "string"],
        "db": "string",
        "sequence": ["null", "string"],
        "ts_us": ["null", "long"],
        "schema": "string",
        "table": "string",
        "lsn": ["null", "long"],
    },
    "mysql": {
        "name": "string",
        "ts_ms": "long",
        "db": "string",
        "table": ["null", "string"],
        "file": "string",
        "pos": "long",
        "row": "int",
    },
    "nearly none": {"lsn": "long"},
}


def record(name: str, fields: Mapping[str, Avro]) -> Avro:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": of} for one, of in fields.items()]}


def envelope(row: Mapping[str, Avro], source: Any, **more: Avro) -> Avro:
    """The schema of a change."""
    before = {"before": ["null", record("Value", row)], "after": ["null", "Value"]}
    return record("Envelope", {**before, "source": source, "op": "string", "ts_ms": ["null", "long"], **more})


class Writing:
    """The feed of some columns, and its records in Avro."""

    def __init__(
        self,
        columns: Mapping[str, Told],
        *,
        source: str = "postgresql",
        in_json: bool = False,
        more: Any = (),
        **given: Any,
    ):
        self._registry = Registered()
        self._columns = columns
        self._in_json, self._of_source = in_json, SOURCES[source]
        declared = {name: told.declared for name, told in columns.items()}
        tables = {"tables": ("public.things", "shop.things")}
        kind = "mysql" if source == "mysql" else "postgresql"
        self.feed = knowing(self._registry, **{"kind": kind, **tables, **given, "columns": {**declared, **dict(more)}})
        self._keys = [name for name in columns if name in self.feed.keys]
        shapes: list[Callable[[Avro], Avro]] = [lambda of: ["null", of], lambda of: [of, "null"], lambda of: of]
        types = {
            name: told.avro if name in self._keys else shapes[number % 3](told.avro)
            for number, (name, told) in enumerate(columns.items())
        }
        # What no column is declared for.
        types |= {"passed": "string", "more": ["null", record("More", {"x": "double", "y": ["null", "bytes"]})]}
        self._may_be_null = {name for name, of in types.items() if isinstance(of, list)}
        of_block = record("Source", self._of_source)
        self._value = envelope(types, of_block)
        # Another that says the same, but for a block that may be null.
        self._other = envelope(types, ["null", of_block], transaction=["null", "string"])
        self._key = record("Key", {name: columns[name].avro for name in self._keys})

    def row(self, random: Random, *, odd: float = 0.0) -> dict[str, Any]:
        """A row; of so many of its values what is not usual."""
        row = {
            name: (told.odd if random.random() < odd else told.usual)(random) for name, told in self._columns.items()
        }
        row |= {"passed": TEXTS(random), "more": random.choice([None, {"x": 0.5, "y": None}, {"x": 0.5, "y": b"ab"}])}
        for name in self._may_be_null:
            if random.random() < 0.2:
                row[name] = None
        return row

    def block(self, random: Random) -> dict[str, Any]:
        lsn = random.randrange(10**6)
        told = postgres_source(lsn, last_commit=5) if "sequence" in self._of_source else mysql_source(lsn)
        told |= {"table": "things", "lsn": lsn} if self.feed.kind == "postgresql" else {"table": "things", "db": "shop"}
        return {name: told.get(name) for name in self._of_source}

    def key(self, row: Mapping[str, Any]) -> bytes:
        own = {name: row[name] for name in self._keys}
        return json.dumps(own).encode() if self._in_json else self._registry.message(self._key, own)

    def value(self, event: Mapping[str, Any], *, other: bool = False) -> bytes:
        schema = self._other if other else self._value
        text = json.dumps(schema)
        # As a long it is written alike, and the library minds no range.
        return confluent(self._registry.number_of(text), json.loads(text.replace('"int"', '"long"')), event)

    def good(self, random: Random, op: str = "") -> Record:
        """A record that is as declared."""
        row, op = self.row(random), op or random.choice("rcuud")
        before = random.choice([None, {**self.row(random), **{name: row[name] for name in self._keys}}])
        event = {
            "before": before if op in "ud" else None,
            "after": None if op == "d" else row,
            "source": self.block(random),
            "op": op,
            "ts_ms": random.choice([17, None]),
        }
        return Record(self.feed.topics[0], self.key(row), self.value(event, other=random.random() < 0.3), [])

    def near(self, random: Random) -> Record:
        """A record with something that is not usual, most of the time."""
        row, op = self.row(random, odd=random.choice([0, 0, 0.1])), random.choice("rcuud")
        source: dict[str, Any] | None = self.block(random)
        after: dict[str, Any] | None = None if op == "d" else row
        before = random.choice(
            [None, self.row(random), {**self.row(random), **{name: row[name] for name in self._keys}}]
        )
        key, headers, other = self.key(row), random.choice([[], [], [("__debezium.context.runId", b"\xff")]]), False
        kind = random.choice(["op", "after", "before", "source", "no source", "key", "headers", "bytes", "", "", ""])
        if kind == "op":
            op = random.choice("tmxrcud ")
        elif kind == "after":
            after = random.choice([None, row])
        elif kind == "before":
            before = self.row(random)
        elif kind == "source" and source is not None:
            name = random.choice([*source])
            numbers = [-1, 0, YEAR_1 * 1000 - 1, YEAR_10000 * 1000, YEAR_10000 * 10**6, 2**63 - 1, -(2**63)]
            texts = ["", "false", "other", "[null]", '["-5","7"]', '[ null,"7"]', "x"]
            source[name] = random.choice(numbers if isinstance(source[name], int) else texts)
        elif kind == "no source":
            source, other = None, True
        elif kind == "key":
            own = random.choice([self.row(random), row])
            key = random.choice([b"", b"x", b'"7"', b"7", b'{"id":7}', b"null", key[:-1], key + b"\x00", self.key(own)])
        elif kind == "headers":
            headers = [(random.choice(["__debezium.oldkey", "__debezium.newkey", "id"]), b'{"id":1}')]
        event = {
            "before": before,
            "after": after,
            "source": source,
            "op": op,
            "ts_ms": random.choice([17, None, -(2**63)]),
        }
        value = self.value(event, other=other)
        if kind == "bytes":
            key, value = (key, damaged(random, value)) if random.random() < 0.8 else (damaged(random, key), value)
        return Record(self.feed.topics[0], key, value, headers)


# What is no number of Avro, no length, no branch, no boolean, no text, or another one than was there.
PIECES = (
    *(b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x7f", b"\x80", b"\xff", b"\x80\x00", b"\x82\x80\x00"),
    *(b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 9 + b"\x01", b"\x80" * 9 + b"\x02"),
    *(b"\xff" * 9 + b"\x7f", b"\xff" * 9 + b"\x81\x00", b"\x80" * 10 + b"\x01", b"\xff" * 11, b"\x80" * 9 + b"\x00"),
    *(b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\x01" * 9, b""),
    *(
        b"\x02\xff",
        b"\x04\xc3\x28",
        b"\x06\xed\xa0\x80",
        b"\x04\xc3\xa9",
        b"\x02\x00",
        b"\x08\xf0\x9f\x9a\x80",
        b"\x02\xc3",
    ),
)


def damaged(random: Random, message: bytes) -> bytes:
    at = random.randrange(5, len(message) + 1)
    kind = random.choice(["cut", "flip", "more", "piece", "piece", "inserted"])
    if kind == "cut":
        return message[:at]
    if kind == "flip" and at < len(message):
        return message[:at] + bytes([message[at] ^ random.randrange(1, 256)]) + message[at + 1 :]
    if kind == "more":
        return message + random.choice(PIECES)
    return message[:at] + random.choice(PIECES) + message[at + (kind == "piece") :]


def left(of: Feed, records: Sequence[Record]) -> list[int]:
    """Which of these records the fast way leaves to the definition."""
    asked: list[Record] = []
    original = ReferenceDecoder.own_event

    def own_event(self: ReferenceDecoder, one: Record) -> Any:
        asked.append(one)
        return original(self, one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReferenceDecoder, "own_event", own_event)
        list(decode_batches([batch_of(records)], feeds=[of]))
    return [number for number, one in enumerate(records) if (one.key, one.value) in {(a.key, a.value) for a in asked}]


SHARD = {"shard": {"type": "STRING", "from_topic": r"(shop)\."}}
FEW = ("id", "note", "amount", "at", "day", "flag", "single", "bytes")
SHAPES: Mapping[str, Writing] = {
    "all types": Writing(COLUMNS),
    "few types": Writing(some(*FEW)),
    "keys in JSON": Writing(some(*FEW), in_json=True),
    "mysql": Writing(some(*FEW), source="mysql"),
    "nearly no source": Writing(some(*FEW), source="nearly none"),
    "texts": Writing(TEXT_FORMS, decimal_handling_mode="string", time_precision_mode="isostring"),
    "numbers": Writing(CONNECT_FORMS, decimal_handling_mode="double", time_precision_mode="connect"),
    "numeric format": Writing(some("id", "of_double", "of_text"), decimal_format="numeric"),
    "a text key": Writing(some("note", "amount", "doc"), keys=("note",)),
    "a text key in JSON": Writing(some("note", "amount"), keys=("note",), in_json=True),
    "a key of an unknown type": Writing(some("uuid", "zoned", "note"), keys=("uuid", "zoned")),
    "true or false": Writing(some("id", "flag", "note"), keys=("id", "flag")),
    "true or false in JSON": Writing(some("id", "flag", "note"), keys=("id", "flag"), in_json=True),
    "a decimal key": Writing(some("amount", "day", "at", "note"), keys=("amount", "day", "at")),
    "numbers as keys": Writing(some("small", "number", "note"), keys=("small", "number"), in_json=True),
    "a sharded table": Writing(some("id", "note", "day"), keys=("shard", "id"), more=SHARD, sequence_by="kafka_offset"),
    "times as SQL has them": Writing(some("id", "at", "zoned_at"), timestamp_format="sql"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_records_that_are_as_declared_are_read_fast(name: str) -> None:
    written, random = SHAPES[name], Random(1)  # noqa: S311
    for op in "rcud":
        few = [
            one
            for one in (written.good(random, op) for _ in range(12))
            if not said(ReferenceDecoder(written.feed).event(one))[1]
        ]
        # Values that do not fit every column by chance are the definition's.
        assert len(few) >= 3 or name == "times as SQL has them"
        assert left(written.feed, few) == []
        check_same(few, [batch_of(few)], written.feed)


@pytest.mark.parametrize("name", SHAPES)
@given(random=CHANCE)
@settings(max_examples=8, deadline=None)
def test_what_is_read_fast_is_read_as_the_definition_reads_it(name: str, random: Random) -> None:
    written = SHAPES[name]
    batches = [
        [random.choice([written.near, written.near, written.good])(random) for _ in range(number)]
        for number in (1, 9, 25)
    ]
    records = [one for batch in batches for one in batch]
    starts = [0, 1, 10]
    check_same(records, [batch_of(batch, offset=at) for batch, at in zip(batches, starts, strict=True)], written.feed)


def test_a_good_share_of_what_is_nearly_right_is_read_fast() -> None:
    """Else the law above would say little."""
    random = Random(2)  # noqa: S311
    records = [SHAPES["few types"].near(random) for _ in range(300)]
    assert 0.2 < len(left(SHAPES["few types"].feed, records)) / len(records) < 0.8


# Bytes, field by field.

PARTS: Mapping[str, tuple[Avro, bytes]] = {
    "id": ("long", b"\x02"),
    "kind": ("int", b"\x04"),
    "flag": ("boolean", b"\x01"),
    "note": (["null", "string"], b"\x02\x06abc"),
    "single": ("float", b"\x00\x00\x00\x3f"),
    "double": (["double", "null"], b"\x00" + b"\x00\x00\x00\x00\x00\x00\xe0\x3f"),
    "bytes": ("bytes", b"\x04\x00\xff"),
    "amount": (["null", decimal(2)], b"\x02\x04\x01\x02"),
    "at": (named("long", f"{TIME}.MicroTimestamp"), b"\x80\x80\x80\x80\x10"),
    # Nobody asks for these.
    "text": ("string", b"\x04\xc3\xa9"),
    "maybe": (["null", "string"], b"\x02\x02x"),
    "raw": ("bytes", b"\x02\xff"),
    "number": ("int", b"\x08"),
    "is_so": ("boolean", b"\x00"),
    "near": ("float", b"\x00\x00\x00\x3f"),
    "far": ("double", b"\x00" * 8),
}
OF_PARTS = {
    **{"id": "BIGINT", "kind": "SMALLINT", "flag": "BOOLEAN", "note": "STRING", "single": "FLOAT", "double": "DOUBLE"},
    **{"bytes": "BINARY", "amount": "DECIMAL(10,2)", "at": "TIMESTAMP"},
}
BY_HAND: Mapping[str, bytes] = {
    "before": b"\x00",
    "after": b"\x02",
    **{name: told for name, (_of, told) in PARTS.items()},
    "lsn": b"\x02\x0a",
    "table": b"\x0cthings",
    "op": b"\x02c",
    "ts_ms": b"\x02\x22",
}


def by_hand(parts: Mapping[str, bytes]) -> tuple[Feed, Record]:
    registry = Registered()
    source = record("Source", {"lsn": ["null", "long"], "table": "string"})
    number = registry.number_of(json.dumps(envelope({name: of for name, (of, _told) in PARTS.items()}, source)))
    of = knowing(registry, columns=OF_PARTS)
    return of, Record("shop.things", b'{"id":1}', b"\0" + number.to_bytes(4, "big") + b"".join(parts.values()))


def test_every_field_may_be_damaged_in_every_way() -> None:
    """One record of a batch, and alone: what is wrong with one is no other's."""
    of, whole = by_hand(BY_HAND)
    assert left(of, [whole]) == []
    for name in BY_HAND:
        records = [by_hand({**BY_HAND, name: piece})[1] for piece in PIECES]
        records += [by_hand({**BY_HAND, name: BY_HAND[name] + piece})[1] for piece in PIECES]
        records = [one for part in records for one in (part, whole)]
        check_same(records, [batch_of(records)], of)
        alone = records[::2]
        check_same(alone, [batch_of([one], offset=number) for number, one in enumerate(alone)], of)
        assert set(left(of, records)).isdisjoint(number for number, one in enumerate(records) if one == whole)


def test_a_record_may_be_cut_off_anywhere() -> None:
    of, whole = by_hand(BY_HAND)
    assert whole.value is not None
    records = [whole._replace(value=whole.value[:length]) for length in range(1, len(whole.value))]
    check_same([*records, whole], [batch_of([*records, whole])], of)
    check_same(records, [batch_of([one], offset=number) for number, one in enumerate(records)], of)
    assert left(of, [*records, whole]) == [*range(len(records))]


@pytest.mark.parametrize("name", ["note", "text", "maybe", "table", "op"])
@pytest.mark.parametrize("is_asked_with_others", [True, False])
def test_text_that_is_no_utf_8_is_of_no_schema(name: str, is_asked_with_others: bool) -> None:
    """Also in a field that no column is declared for, and beside text that is."""
    of, whole = by_hand(BY_HAND)
    branch = b"\x02" if name in ("note", "maybe") else b""
    wrong = by_hand({**BY_HAND, name: branch + b"\x04\xff\xfe"})[1]
    records = [whole, wrong, whole] if is_asked_with_others else [wrong]
    events = decoded([batch_of(records)], of)
    assert [event.kind for event in events.values()].count("unreadable") == 1
    assert len(left(of, records)) == 1
    check_same(records, [batch_of(records)], of)


# Batches.


def test_one_batch_has_both_schemas_and_both_formats() -> None:
    written, random = SHAPES["few types"], Random(3)  # noqa: S311
    in_avro = [written.good(random) for _ in range(20)]
    row = '{"id":1,"note":"a","amount":"ZA==","at":0,"day":0,"flag":true,"single":0.5,"bytes":"AA=="}'
    source = '{"lsn":1,"table":"things","schema":"public"}'
    in_json = Record("shop.things", b'{"id":1}', f'{{"op":"c","after":{row},"source":{source}}}'.encode())
    wrapped = in_json._replace(value=b'{"schema":{"type":"struct"},"payload":' + (in_json.value or b"") + b"}")
    ids = {one.value[:5] for one in in_avro if one.value}
    records = [part for one in in_avro for part in (one, in_json, wrapped, one._replace(value=None))]
    assert len(ids) == 2
    # A tombstone is the definition's; and the key tells it where it is one.
    assert left(written.feed, records) == [number for number, one in enumerate(records) if one.value is None]
    check_same([one for one in records if one.value], [batch_of([one for one in records if one.value])], written.feed)


def test_a_delete_that_is_read_fast_has_its_tombstone() -> None:
    written = SHAPES["few types"]
    delete = written.good(Random(4), "d")  # noqa: S311
    assert left(written.feed, [delete]) == []
    records = [delete, delete._replace(value=None)]
    (told, marked) = (
        row for batch in decode_batches([batch_of(records)], feeds=[written.feed]) for row in batch.to_pylist()
    )
    assert (told["is_delete"], marked["kind"]) == (True, "tombstone")
    assert told["row_things"]["id"] == marked["row_things"]["id"]


def test_a_value_that_an_update_leaves_out_is_told() -> None:
    written, random = SHAPES["few types"], Random(5)  # noqa: S311
    row = {**written.row(random), "note": PLACEHOLDER, "bytes": b"\x01"}
    rows = [row, {**row, "note": "a", "bytes": PLACEHOLDER.encode()}]
    source = written.block(random)
    records = []
    for op in "uc":
        for one in rows:
            event = {"before": None, "after": one, "source": source, "op": op, "ts_ms": 1}
            records.append(Record("shop.things", written.key(one), written.value(event)))
    events = decoded([batch_of(records)], written.feed)
    assert [[*events[number].unchanged_toast] for number in range(4)] == [["note"], ["bytes"], [], []]
    check_same(records, [batch_of(records)], written.feed)


def test_a_record_of_another_table_a_changed_key_and_a_large_record_are_left() -> None:
    written, random = SHAPES["few types"], Random(6)  # noqa: S311
    good = written.good(random, "c")
    row, source = written.row(random), {**written.block(random), "table": "others"}
    event = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1}
    other = Record("shop.things", written.key(row), written.value(event))
    headers = good._replace(headers=[("__debezium.newkey", b'{"id":2}')], value=written.good(random, "c").value)
    assert left(written.feed, [good, other]) == [1]
    assert [event.problems for event in decoded([batch_of([good, other])], written.feed).values()] == [
        [],
        [OTHER_TABLE],
    ]
    (told,) = decoded([batch_of([headers])], written.feed).values()
    assert told.new_key == '{"id":2}'
    size = len(good.key or b"") + len(good.value or b"")
    for limit in (size, size - 1):
        limited = written.feed.model_copy(update={"max_record_bytes": limit})
        assert left(limited, [good]) == ([] if limit == size else [0])
        check_same([good], [batch_of([good])], limited)


def test_a_source_block_with_another_word_for_a_snapshot_is_left() -> None:
    written, random = SHAPES["few types"], Random(8)  # noqa: S311
    row, source = written.row(random), {**written.block(random), "snapshot": "maybe"}
    event = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1}
    records = [written.good(random, "c"), Record("shop.things", written.key(row), written.value(event))]
    assert left(written.feed, records) == [1]
    good, other = decoded([batch_of(records)], written.feed).values()
    assert (said(good), said(other)) == (("change", []), ("unreadable", [unknown_word("snapshot", SNAPSHOT_WORDS)]))


def test_a_source_block_that_is_null_says_nothing() -> None:
    written, random = SHAPES["few types"], Random(7)  # noqa: S311
    row = written.row(random)
    event = {"before": None, "after": row, "source": None, "op": "c", "ts_ms": 1}
    bare = Record("shop.things", written.key(row), written.value(event, other=True))
    (told,) = decoded([batch_of([bare])], written.feed).values()
    assert (said(told), told.source) == (("change", []), None)


def test_a_feed_that_shares_its_topic_takes_no_record_without_a_table() -> None:
    """It may be of either: the first has it."""
    registry = Registered()
    columns = {"id": "BIGINT"}
    topics = {"topics": ("shop.things",), "envelope": "table", "tables": ("public.b",)}
    own = {"tables": ("public.a",), "columns": columns}
    first, second = (
        knowing(registry, **own, siblings=({"topics": topics, "keys": (("id",),), "is_first": is_first},))
        for is_first in (False, True)
    )
    schema = envelope({"id": "long"}, record("Source", {"lsn": "long", "table": ["null", "string"]}))
    event = {"before": None, "after": {"id": 1}, "op": "c", "ts_ms": 1}
    in_avro = registry.message(schema, {**event, "source": {"lsn": 1, "table": None}})
    in_json = b'{"op":"c","after":{"id":1},"source":{"lsn":1}}'
    records = [Record("shop.things", b'{"id":1}', value) for value in (in_avro, in_json)]
    assert [[*decoded([batch_of(records)], one)] for one in (first, second)] == [[0, 1], []]


# Schemas.

ROW: Mapping[str, Avro] = {"id": "long", "note": "string"}
OF_ROW = {"id": "BIGINT", "note": "STRING"}
BLOCK = record("Source", {"lsn": "long"})
EVENT: Mapping[str, Any] = {
    "before": None,
    "after": {"id": 1, "note": "a"},
    "source": {"lsn": 5},
    "op": "c",
    "ts_ms": 1,
}
OTHERS: Mapping[str, tuple[Avro, Mapping[str, Any]]] = {
    "an array": (envelope({**ROW, "x": {"type": "array", "items": "int"}}, BLOCK), {"x": [1, 2]}),
    "a map": (envelope({**ROW, "x": {"type": "map", "values": "int"}}, BLOCK), {"x": {"a": 1}}),
    "a union of several types": (envelope({**ROW, "x": ["null", "int", "string"]}, BLOCK), {"x": "a"}),
    "a union of two types without null": (envelope({**ROW, "x": ["int", "string"]}, BLOCK), {"x": "a"}),
    "an enum": (envelope({**ROW, "x": {"type": "enum", "name": "E", "symbols": ["a"]}}, BLOCK), {"x": "a"}),
    "a field that is null": (envelope({**ROW, "x": "null"}, BLOCK), {"x": None}),
    "a number for an operation": (
        {**envelope(ROW, BLOCK), "fields": [*envelope(ROW, BLOCK)["fields"][:3], {"name": "op", "type": "int"}]},
        {},
    ),
    "a text for a position": (envelope(ROW, record("Source", {"lsn": "string"})), {}),
    "a source without what is asked for": (envelope(ROW, record("Source", {"other": "long"})), {}),
    "a column's field as a record": (envelope({"id": "long", "note": record("Note", {"x": "int"})}, BLOCK), {}),
    "a row before with another key": (
        record(
            "Envelope",
            {
                **{"before": ["null", record("Before", {"id": "boolean"})], "after": ["null", record("Value", ROW)]},
                **{"source": BLOCK, "op": "string"},
            },
        ),
        {},
    ),
    "no source": (record("E", {"before": ["null", record("Value", ROW)], "after": "Value", "op": "string"}), {}),
    "no op": (record("E", {"before": ["null", record("Value", ROW)], "after": "Value", "source": BLOCK}), {}),
    "a declared column without a field": (envelope({"id": "long"}, BLOCK), {}),
    "a flattened row": (record("Value", ROW), {}),
    "a single value": ("string", {}),
}
FIXED: Mapping[str, Mapping[str, Any]] = {
    "a number for an operation": {"op": 7},
    "a text for a position": {"source": {"lsn": "5"}},
    "a source without what is asked for": {"source": {"other": 5}},
    "a column's field as a record": {"after": {"id": 1, "note": {"x": 1}}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_schema_with_something_else_in_it_is_read_by_the_definition(name: str) -> None:
    registry = Registered()
    schema, more = OTHERS[name]
    event: Any = {**EVENT, "after": {**EVENT["after"], **more}, **FIXED.get(name, {})}
    event = event["after"] if name == "a flattened row" else "text" if name == "a single value" else event
    of = knowing(registry, columns=OF_ROW)
    records = [Record("shop.things", b'{"id":1}', registry.message(schema, event))] * 2
    assert left(of, records) == [0, 1]
    check_same(records, [batch_of(records)], of)


def test_a_row_before_that_is_not_there_is_not_asked_for() -> None:
    registry = Registered()
    schema = record("E", {"after": ["null", record("Value", ROW)], "source": BLOCK, "op": "string"})
    of = knowing(registry, columns=OF_ROW)
    records = [Record("shop.things", b'{"id":1}', registry.message(schema, EVENT))]
    assert left(of, records) == []
    check_same(records, [batch_of(records)], of)


KEYS: Mapping[str, tuple[Any, Avro, Any, Avro]] = {
    # the column, its type in the row, its value, the schema of the key
    "another type": ("BIGINT", "long", 1, record("Key", {"id": "int"})),
    "no field of that name": ("BIGINT", "long", 1, record("Key", {"other": "long"})),
    "a single value": ("BIGINT", "long", 1, "long"),
    "an array": ("BIGINT", "long", 1, record("Key", {"id": "long", "x": {"type": "array", "items": "int"}})),
    "a float": ("DOUBLE", "double", 0.0, record("Key", {"id": "double"})),
    "one in JSON that is read cell by cell": ("BIGINT", "string", "1", None),
    "a float in JSON": ("DOUBLE", "double", 0.0, None),
    "a decimal in JSON": ("DECIMAL(10,2)", decimal(2), b"\x01", None),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_in_another_form_is_read_by_the_definition(name: str) -> None:
    """Of 0.0 and -0.0, which are equal, each is another key."""
    registry = Registered()
    declared, kind, own, of_key = KEYS[name]
    of = knowing(registry, columns={"id": declared})
    schema = envelope({"id": kind}, BLOCK)
    told = {"id": own, "other": own, "x": []}
    value = registry.message(schema, {**EVENT, "after": told})
    keys = [b'{"id":0}', b'{"id":-0.0}', b'{"id":"1"}']
    if of_key is not None:
        messages = [told, {**told, "id": -own}] if isinstance(of_key, dict) else [own]
        keys = [registry.message(of_key, one) for one in messages]
    records = [Record("shop.things", key, value) for key in keys]
    assert left(of, records) == [*range(len(records))]
    check_same(records, [batch_of(records)], of)


def test_a_feed_whose_records_are_not_as_declared_is_read_by_the_definition() -> None:
    registry = Registered()
    value = registry.message(envelope(ROW, BLOCK), EVENT)
    one = Record("shop.things", b'{"id":1}', value)
    for more in (
        {"columns": {**OF_ROW, "note": {"type": "STRING", "fields": ["note", "text"]}}},
        {"columns": {**OF_ROW, "whole": {"type": "STRING", "metadata": "schema"}}},
        {"columns": OF_ROW, "append_only": True, "keys": ()},
    ):
        of = knowing(registry, **more)
        assert left(of, [one]) == [0]
        check_same([one], [batch_of([one])], of)


def test_a_schema_that_is_not_known_is_said_by_the_definition() -> None:
    registry = Registered()
    value = registry.message(envelope(ROW, BLOCK), EVENT)
    registry.schemas[7] = RegisteredSchema("PROTOBUF", "")
    of = knowing(registry, columns=OF_ROW)
    key = registry.message(record("Key", {"id": "long"}), {"id": 1})
    numbers = [b"\0\0\0\0\7", b"\0\0\0\0\x63"]
    records = [Record("shop.things", key, value), *(Record("shop.things", key, one + value[5:]) for one in numbers)]
    records += [Record("shop.things", one + key[5:], value) for one in numbers]
    assert left(of, records) == [1, 2, 3, 4]
    check_same(records, [batch_of(records)], of)


NO_SCHEMAS = (
    "",
    "{",
    "5",
    "[" * 100_000,
    '{"type":"record"}',
    '{"type":"record","name":"E","fields":"abc"}',
    '{"type":"record","name":"E","fields":[{"type":"int"}]}',
    '{"type":"record","name":"E","fields":[{"name":"x","type":{"type":{"type":"int"}}}]}',
    '{"type":"record","name":"E","fields":[{"name":"x","type":{"type":["null","int"]}}]}',
    '{"type":"record","name":"E","fields":[{"name":"x","type":{"type":"E"}}]}',
    '{"type":"record","name":"a b","fields":[{"name":"x","type":"int"}]}',
)


@pytest.mark.parametrize("text", NO_SCHEMAS)
def test_a_schema_that_is_none_stops_nothing(text: str) -> None:
    schemas = {7: RegisteredSchema(AVRO, text), 8: RegisteredSchema(AVRO, json.dumps(envelope(ROW, BLOCK)))}
    of = feed(columns=OF_ROW, schemas=schemas)
    bodies = [b"\0\0\0\0\7" + body for body in (b"\x02", b"\x00\x02\x02a\x0a\x02c\x00")]
    records = [Record("shop.things", b'{"id":1}', body) for body in bodies]
    records += [Record("shop.things", body, b"\0\0\0\0\x08\x00\x02\x02\x02a\x0a\x02c\x00") for body in bodies]
    check_same(records, [batch_of(records)], of)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ('{"type":"record","name":"r%d","fields":[{"name":"a","type":', "}]}"),
        ('{"type":"array","items":', "}"),
        ('["null",{"type":"array","items":', "}]"),
    ],
)
def test_a_schema_of_any_depth_stops_nothing(opening: str, closing: str) -> None:
    schemas = {}
    for depth in (*range(10, 500, 35), *range(500, 1_200, 100)):
        text = "".join(opening.replace("%d", str(number)) for number in range(depth)) + '"int"' + closing * depth
        schemas[depth] = RegisteredSchema(AVRO, text)
    of = feed(columns=OF_ROW, schemas=schemas)
    records = [Record("shop.things", b'{"id":1}', b"\0" + one.to_bytes(4, "big") + b"\0\0") for one in schemas]
    events = decoded([batch_of(records)], of)
    assert {event.kind for event in events.values()} == {"unreadable"}


def test_a_field_that_is_there_twice_is_read_by_the_definition() -> None:
    """A registry would not have such a schema."""
    schema = envelope(ROW, BLOCK)
    schema["fields"].append({"name": "op", "type": ["null", "string"]})
    schemas = {1: RegisteredSchema(AVRO, json.dumps(schema))}
    of = feed(columns=OF_ROW, schemas=schemas)
    value = b"\0\0\0\0\1" + b"\x00\x02\x02\x02a\x0a\x02c\x00"
    records = [Record("shop.things", b'{"id":1}', value + more) for more in (b"\x00", b"\x02\x02u")]
    assert left(of, records) == [0, 1]
    check_same(records, [batch_of(records)], of)
