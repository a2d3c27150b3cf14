"""Laws of decoding over records that are nearly as declared, for a feed of each kind, and over values as written."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.contracts.models import Feed
from silver.decode.fast.json_records import typed
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import Record
from silver.decode.reference.table import TWO_OPS
from silver.decode.reference.values import reader
from tests.support.decoding import batch_of, column, decoded, field_of
from tests.support.events import EPOCH, base64_decimal
from tests.support.feeds import feed
from tests.support.near_records import FEEDS, ODD, near_record

COLUMNS = FEEDS["all types"].columns
EVERY_KIND = {
    **FEEDS,
    "mariadb": feed(kind="mariadb", columns=COLUMNS),
    "append-only": feed(columns=COLUMNS, append_only=True, keys=()),
    "of tables": feed(columns=COLUMNS, tables=("public.things",), table_patterns=("shop.*",)),
    "outbox": feed(envelope="outbox", columns=COLUMNS, sequence_by="kafka_offset"),
    "outbox of types": feed(
        envelope="outbox",
        columns=COLUMNS,
        sequence_by="kafka_offset",
        apply_as_deletes=("d", "Gone"),
        apply_as_upserts=("x",),
    ),
    "partial outbox": feed(envelope="outbox", columns=COLUMNS, sequence_by="kafka_offset", payload="partial"),
}
KINDS = ("change", "truncate", "tombstone", "ignored", "unreadable")
CHANCE = st.randoms(use_true_random=True)


def same(one: Event, other: Event) -> bool:
    """Whether two events are the same, NaN being itself, and zeros by their sign."""
    return repr(_comparable(one)) == repr(_comparable(other))


def _comparable(event: Event) -> dict[str, object]:
    source = event.source and event.source._replace(sequence=event.source.sequence and list(event.source.sequence))
    return {**event._asdict(), "row": event.row and list(event.row), "source": source}


def in_json(value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON and nearly JSON, nested, with fields that tell something."""
    names = st.sampled_from(
        [
            "op",
            "before",
            "after",
            "source",
            "payload",
            "schema",
            "type",
            "fields",
            "field",
            "id",
            "note",
            "ts_ms",
            "name",
        ]
    )
    return st.recursive(
        value,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]"),
            st.lists(st.tuples(names, inner), max_size=4).map(
                lambda parts: f"{{{','.join(f'{json.dumps(name)}:{one}' for name, one in parts)}}}"
            ),
        ),
        max_leaves=8,
    )


NEARLY_JSON = in_json(st.one_of(st.sampled_from([*ODD, '"c"', '"u"', '"d"', '"t"', '"m"']), st.text(max_size=5)))
ANY_BYTES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    NEARLY_JSON.map(str.encode),
    NEARLY_JSON.map(lambda text: f'{{"schema":{{}},"payload":{text}}}'.encode()),
    st.tuples(NEARLY_JSON, st.integers(0, 60), st.binary(max_size=2)).map(
        lambda told: told[0].encode()[: told[1]] + told[2] + told[0].encode()[told[1] :]
    ),
)
HEADER = st.sampled_from(
    [
        "id",
        "eventType",
        "__debezium.oldkey",
        "__debezium.newkey",
        "__debezium.context.runId",
        "__op",
        "__deleted",
        "__lsn",
    ]
)


def check_form(event: Event, of: Feed) -> None:
    """An event is of one kind; with a reason where it is unreadable; with one value a column where it has a row."""
    assert event.kind in KINDS
    assert (event.kind == "unreadable") <= bool(event.problems)
    assert event.row is None or len(event.row) == len(of.columns)
    # Spark's text is UTF-8.
    repr(event._asdict()).encode()


@pytest.mark.parametrize("name", EVERY_KIND)
@given(key=ANY_BYTES, value=ANY_BYTES, headers=st.lists(st.tuples(HEADER, ANY_BYTES), max_size=2))
@settings(max_examples=40, deadline=None)
def test_nothing_that_is_sent_raises(
    name: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    of = EVERY_KIND[name]
    check_form(ReferenceDecoder(of).event(Record("shop.things", key, value, headers)), of)


@pytest.mark.parametrize("name", EVERY_KIND)
@given(random=CHANCE)
@settings(max_examples=6, deadline=None)
def test_nothing_that_is_nearly_right_raises(name: str, random: Random) -> None:
    of = EVERY_KIND[name]
    explaining = ReferenceDecoder(of)
    for mutations in range(30):
        check_form(explaining.event(near_record(random, of, mutations=mutations % 4)), of)


@pytest.mark.parametrize("name", FEEDS)
def test_a_good_share_is_read_fast(name: str) -> None:
    """Of records with one thing that is not usual; else the law below would say little."""
    of, random = FEEDS[name], Random(1)  # noqa: S311
    records = [near_record(random, of, mutations=1) for _ in range(300)]
    pairs = [(record.key, record.value) for record in records if record.key and record.value]
    reads = typed(of)
    assert reads is not None
    taken = reads.read([key for key, _value in pairs], [value for _key, value in pairs]).at
    assert 0.2 < len(taken) / len(pairs) < 0.8


@pytest.mark.parametrize("name", FEEDS)
@given(random=CHANCE)
@settings(max_examples=6, deadline=None)
def test_what_is_read_fast_is_read_as_the_definition_reads_it(name: str, random: Random) -> None:
    of = FEEDS[name]
    # Large batches are read column by column, unless one of their cells is not as usual.
    batches = [
        [near_record(random, of, mutations=random.choice([0, 1, 1, 1, 2])) for _ in range(number)]
        for number in (1, 15, 40)
    ]
    records = [record for batch in batches for record in batch]
    starts = [0, 1, 16]
    check_same(records, [batch_of(batch, offset=start) for batch, start in zip(batches, starts, strict=True)], of)


def check_same(records: list[Record], batches: Iterable[Any], of: Feed) -> None:
    found, explaining = decoded(batches, of), ReferenceDecoder(of)
    assert sorted(found) == list(range(len(records)))
    for offset, record in enumerate(records):
        expected = explaining.event(record)
        assert same(found[offset], expected), (record, found[offset], expected)


PLACES = {
    "the row": lambda odd: event_text(after=f',"other":{odd}'),
    "the row before": lambda odd: event_text(before=f',"other":{odd}'),
    "the source": lambda odd: event_text(source=f',"other":{odd}'),
    "the envelope": lambda odd: event_text(event=f',"other":{odd}'),
    "the envelope, first": lambda odd: f'{{"other":{odd},{event_text()[1:]}',
    "a column": lambda odd: event_text(after=f',"note":{odd},"ints":{odd},"double":{odd}'),
}


def event_text(*, before: str = "", after: str = "", source: str = "", event: str = "") -> str:
    row = '"id":1,"note":"a","ints":[1],"double":1.5'
    return (
        f'{{"before":{{"id":1{before}}},"after":{{{row}{after}}},"source":{{"lsn":5,"sequence":"[null,\\"5\\"]"{source}}},'
        f'"op":"u","ts_ms":17{event}}}'
    )


@pytest.mark.parametrize("place", PLACES)
def test_odd_json_beside_the_declared_fields_is_read_the_same(place: str) -> None:
    of = feed(columns={name: COLUMNS[name] for name in ("id", "note", "ints", "double")})
    reads = typed(of)
    assert reads is not None
    assert reads.read([b'{"id":1}'], [event_text().encode()]).at == [0]
    records = [Record("shop.things", b'{"id":1}', PLACES[place](odd).encode()) for odd in ODD]
    # All at once, and each by itself: what is wrong with one record is no other's.
    check_same(records, [batch_of(records)], of)
    check_same(records, [batch_of([record], offset=number) for number, record in enumerate(records)], of)
    keys = [Record("shop.things", f'{{"id":1,"other":{odd}}}'.encode(), event_text().encode()) for odd in ODD]
    check_same(keys, [batch_of(keys)], of)


@pytest.mark.parametrize("wrap", ["%s", '{"schema":{"type":"struct","fields":[{"field":"op"}]},"payload":%s}'])
@pytest.mark.parametrize("name", ["op", "\\u006fp", "o\\u0070", "\\u006F\\u0070"])
def test_an_op_that_is_there_twice_is_seen_however_it_is_written(wrap: str, name: str) -> None:
    of = feed()
    event = '{"op":"c","after":{"id":1},"source":{},"ts_ms":1%s}'
    values = [(wrap % (event % more)).encode() for more in ("", f',"{name}":"d"', "", f',"{name}":"c"')]
    records = [Record("shop.things", b'{"id":1}', value) for value in values]
    check_same(records, [batch_of([record], offset=number) for number, record in enumerate(records)], of)
    problems = [event.problems for event in map(ReferenceDecoder(of).event, records)]
    assert problems == [[], [TWO_OPS], [], [TWO_OPS]]


def connect_schema(of: Feed) -> dict[str, Any]:
    """What Connect says of these records with `schemas.enable`."""
    types = {"BIGINT": "int64", "STRING": "string", "DATE": "int32", "TIMESTAMP": "int64", "DECIMAL(10,2)": "bytes"}
    names: dict[str, dict[str, Any]] = {
        "DATE": {"name": "io.debezium.time.Date"},
        "TIMESTAMP": {"name": "io.debezium.time.MicroTimestamp"},
        "DECIMAL(10,2)": {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    }
    fields = [
        {"field": name, "type": types.get(one.type.ddl, "array"), **names.get(one.type.ddl, {})}
        for name, one in of.columns.items()
    ]
    rows = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    return {"type": "struct", "fields": [*rows, {"field": "op", "type": "string"}]}


@given(random=CHANCE)
@settings(max_examples=15, deadline=None)
def test_messages_with_schemas_are_read_the_same(random: Random) -> None:
    of = FEEDS["few types"]
    schemas = [connect_schema(of), {**connect_schema(of), "version": 2}]
    schemas[1]["fields"][1]["fields"][2]["parameters"] = {"scale": "3"}
    records = []
    for _ in range(60):
        record = near_record(random, of, mutations=random.choice([0, 0, 1]))
        schema = json.dumps(random.choice(schemas), separators=random.choice([(",", ":"), (",", ":"), (", ", ": ")]))
        wrapped = [
            part
            and f'{{"schema":{random.choice(["", "", " "])}{schema},"payload":'.encode()
            + part
            + random.choice([b"}", b"}", b"}", b',"x":1}', b"}x"])
            for part in (record.key, record.value)
        ]
        records.append(record._replace(key=random.choice([record.key, wrapped[0]]), value=wrapped[1]))
    check_same(records, [batch_of(records[at : at + 20], offset=at) for at in (0, 20, 40)], of)


# How each mode of a connector writes a value of a type, and what is read.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BIGINTS, DAYS = st.integers(-(2**63), 2**63 - 1), st.dates()
AMOUNTS = st.integers(1 - 10**10, 10**10 - 1).map(lambda cents: Decimal(cents).scaleb(-2))
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))
Write = Callable[[Any], str]


def days_of(day: date) -> int:
    return day.toordinal() - EPOCH.toordinal()


def micros_of(moment: datetime) -> int:
    return (moment - EPOCH.replace(tzinfo=None)) // timedelta(microseconds=1)


def quoted(write: Callable[[Any], object]) -> Write:
    return lambda value: json.dumps(str(write(value)))


def same_value(value: Any) -> Any:
    return value


def in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


TIMES: dict[str, Write] = {
    "adaptive": lambda moment: str(micros_of(moment)),
    "microseconds": lambda moment: str(micros_of(moment)),
    "isostring": quoted(lambda moment: f"{moment.isoformat()}Z"),
}
WRITTEN: list[tuple[str, dict[str, Any], st.SearchStrategy[Any], Write, Callable[[Any], Any]]] = [
    *[("BIGINT", {}, BIGINTS, write, same_value) for write in (str, quoted(str))],
    ("INT", {}, st.integers(-(2**31), 2**31 - 1), str, same_value),
    ("SMALLINT", {}, st.integers(-(2**15), 2**15 - 1), str, same_value),
    *[
        ("STRING", {}, TEXTS, write, same_value)
        for write in (json.dumps, lambda text: json.dumps(text, ensure_ascii=False))
    ],
    *[("BOOLEAN", {}, st.booleans(), write, same_value) for write in (json.dumps, lambda is_so: str(int(is_so)))],
    ("DOUBLE", {}, st.floats(allow_nan=False, allow_infinity=False), repr, same_value),
    ("FLOAT", {}, st.floats(width=32, allow_nan=False, allow_infinity=False), repr, same_value),
    ("DECIMAL(10,2)", {}, AMOUNTS, quoted(lambda amount: base64_decimal(str(amount))), same_value),
    ("DECIMAL(10,2)", {"decimal_handling_mode": "string"}, AMOUNTS, quoted(str), same_value),
    ("DECIMAL(10,2)", {"decimal_handling_mode": "double"}, AMOUNTS, lambda amount: repr(float(amount)), same_value),
    ("DECIMAL(10,2)", {"decimal_format": "numeric"}, AMOUNTS, str, same_value),
    ("DATE", {}, DAYS, lambda day: str(days_of(day)), days_of),
    ("DATE", {"time_precision_mode": "isostring"}, DAYS, quoted(lambda day: f"{day.isoformat()}Z"), days_of),
    *[("TIMESTAMP", {"time_precision_mode": mode}, MOMENTS, write, micros_of) for mode, write in TIMES.items()],
    (
        "TIMESTAMP",
        {"time_precision_mode": "connect"},
        MOMENTS.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
        lambda moment: str(micros_of(moment) // 1000),
        micros_of,
    ),
    (
        "TIMESTAMP",
        {"time_precision_mode": "nanoseconds"},
        st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)),
        lambda moment: str(micros_of(moment) * 1000),
        micros_of,
    ),
    ("BINARY", {}, st.binary(), quoted(in_base64), same_value),
    ("BINARY", {"binary_handling_mode": "base64"}, st.binary(), quoted(in_base64), same_value),
    ("BINARY", {"binary_handling_mode": "hex"}, st.binary(), quoted(bytes.hex), same_value),
    (
        "BINARY",
        {"binary_handling_mode": "base64-url-safe"},
        st.binary(),
        quoted(lambda value: base64.urlsafe_b64encode(value).decode()),
        same_value,
    ),
    ("ARRAY<BIGINT>", {}, st.lists(st.one_of(st.none(), BIGINTS)), json.dumps, same_value),
    ("ARRAY<STRING>", {}, st.lists(st.one_of(st.none(), TEXTS)), json.dumps, same_value),
]


@pytest.mark.parametrize(
    ("declared", "modes", "values", "write", "read"),
    WRITTEN,
    ids=[" ".join([declared, *modes.values()]) for declared, modes, *_rest in WRITTEN],
)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_what_was_written_is_read(
    declared: str,
    modes: dict[str, Any],
    values: st.SearchStrategy[Any],
    write: Write,
    read: Callable[[Any], Any],
    data: Any,
) -> None:
    value = data.draw(values)
    of = feed(columns={"id": "BIGINT", "v": declared}, **modes)
    fragment = write(value)
    found = reader(column(declared), of)(field_of(fragment), None)
    assert found == read(value)
    if isinstance(value, float):
        assert math.copysign(1, found) == math.copysign(1, value)
    # The same through Arrow.
    row = f'{{"id":1,"v":{fragment}}}'
    record = Record("shop.things", b'{"id":1}', f'{{"op":"c","after":{row},"source":{{}}}}'.encode())
    (event,) = decoded([batch_of([record])], of).values()
    assert (event.kind, event.problems, event.row) == ("change", [], [1, read(value)])


MARK = "7346519"
MARKS = (
    *(MARK, f"{MARK}.{MARK}", f"-{MARK}e{MARK}", f'"{MARK}"', f'"{MARK}{MARK}{MARK}{MARK}"', f'"x{MARK}="'),
    *(f'{{"{MARK}":{MARK}}}', f'{{"scale":9,"value":"{MARK}="}}', f'["{MARK}"]', f"[{MARK}.5]"),
    *(f'"2024-02-30T{MARK}"', f'"\\ud83d{MARK}"', f"{MARK}x", f'{{"op":{MARK},"op":{MARK}}}', f'"[{MARK}"'),
)


@pytest.mark.parametrize("name", EVERY_KIND)
@given(random=CHANCE)
@settings(max_examples=5, deadline=None)
def test_no_problem_shows_what_came(name: str, random: Random) -> None:
    of = EVERY_KIND[name]
    explaining = ReferenceDecoder(of)
    said: list[str] = []
    for _ in range(60):
        record = near_record(random, of, mutations=0)
        event = json.loads(record.value or b"")
        parts = [part for part in (event, event["after"], event["before"], event["source"]) if part]
        chosen = random.choice(parts)
        chosen[random.choice([*chosen])] = "MARK"
        if of.envelope == "outbox":
            event = event["after"] or event["before"] or {"payload": "MARK"}
        mark = random.choice(MARKS)
        value = json.dumps(event).replace('"MARK"', mark).encode()
        key = random.choice([record.key, mark.encode(), f'{{"id":{mark}}}'.encode()])
        said += explaining.event(record._replace(key=key, value=value)).problems
    assert said
    assert [sentence for sentence in said if MARK in sentence] == []


def test_decoding_needs_no_spark() -> None:
    program = "import sys, silver.decode.arrow; sys.exit(any(name.startswith('pyspark') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
