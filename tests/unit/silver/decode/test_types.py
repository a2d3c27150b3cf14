"""Every form in which a connector writes a value gives the same value, or a sentence that says what came.

The forms are those of Debezium's documentation and of its recordings; Python's decimal and datetime are the judges.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.contracts.models import Feed
from lakehouse.contracts.tables import Column
from silver.decode.reference.message import FieldSchema
from silver.decode.reference.wrapper import message_schema
from tests.support.conversions import came_to, conversion
from tests.support.events import EPOCH
from tests.support.feeds import feed
from tests.unit.silver.decode.test_values import base64_json, few_large_examples

Schema = Mapping[str, Any]
TABLE, OUTBOX = feed(), feed(envelope="outbox")
STRING_DECIMALS, DOUBLES = feed(decimal_handling_mode="string"), feed(decimal_handling_mode="double")
ISO, CONNECT = feed(time_precision_mode="isostring"), feed(time_precision_mode="connect")
MICROS, NANOS = feed(time_precision_mode="microseconds"), feed(time_precision_mode="nanoseconds")
ALL_TIMES = [
    *(TABLE, ISO, CONNECT, MICROS, NANOS, feed(time_precision_mode="adaptive_time_microseconds")),
]


SENT = "the value is a number out of its range"


@dataclass(frozen=True)
class Case:
    """A value of JSON as text, in a column of a feed, with its schema or none; its text in silver, or the sentence."""

    column: Column
    feed: Feed
    value: str
    schema: Schema | None
    expected: str | None


def column(declared: str, source: str | None = None, **options: Any) -> Column:
    given = {"source_type": source} if source else {}
    return Column.model_validate({"type": declared, **given, **options})


def semantic(name: str, type_: str = "int64", **parameters: str) -> Schema:
    """A schema of Connect as the JSON converter writes it."""
    full = {"Decimal": "org.apache.kafka.connect.data.Decimal"}.get(name, name)
    return {"type": type_, "name": full, "parameters": parameters or None}


def plain(type_: str, **items: Any) -> Schema:
    return {"type": type_, **({"items": items} if items else {})}


def cases(
    declared: Column, of: Feed | Sequence[Feed], values: Mapping[str, str | None], schema: Schema | None = None
) -> list[Case]:
    """The same values in each of the feeds; expected is the text of the value, `!` and the sentence, or NULL."""
    feeds = [of] if isinstance(of, Feed) else of
    return [Case(declared, each, value, schema, text) for each in feeds for value, text in values.items()]


def check(all_cases: Iterable[Case]) -> None:
    """What becomes of every case."""
    wrong = []
    for case in all_cases:
        got = came_to(case.value, case.column, case.feed, schema_of(case.schema))
        if got != case.expected:
            wrong.append((case.column.type.ddl, case.column.source_name, case.value, case.schema, got, case.expected))
    assert wrong == []


def schema_of(schema: Schema | None) -> FieldSchema | None:
    """The schema as a record brings it."""
    if schema is None:
        return None
    read = message_schema({"type": "struct", "fields": [{**schema, "field": "v"}]})
    return None if read is None else read.fields["v"]


def variable(number: Decimal) -> str:
    """A decimal of PostgreSQL's numeric without limits."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    return f'{{"scale":{-exponent},"value":{base64_json(unscaled)}}}'


# Of a record without a schema, in a batch that has others with one.
NO_SCHEMA: Schema = {}


def test_decimals_in_every_form() -> None:
    amount = column("DECIMAL(10,2)")
    decimal = semantic("Decimal", "bytes", scale="2")
    values = {
        "12.34": base64_json(1234),
        "-0.01": base64_json(-1),
        "0.00": base64_json(0),
        "99999999.99": base64_json(9_999_999_999),
    }
    check(
        [
            *cases(amount, TABLE, {form: text for text, form in values.items()}),
            *cases(amount, TABLE, {"null": None}),
            *cases(amount, TABLE, {form: text for text, form in values.items()}, NO_SCHEMA),
            *cases(amount, STRING_DECIMALS, {f'"{text}"': text for text in values}, NO_SCHEMA),
            *cases(amount, [TABLE, STRING_DECIMALS], {form: text for text, form in values.items()}, decimal),
            *cases(amount, STRING_DECIMALS, {f'"{text}"': text for text in values}),
            *cases(amount, DOUBLES, {text: text for text in values}),
            *cases(amount, [TABLE, DOUBLES, STRING_DECIMALS], {text: text for text in values if text != "0.00"}),
            *cases(amount, feed(decimal_format="numeric"), {"12.34": "12.34", "1234": "1234.00"}),
            *cases(amount, feed(decimal_format="numeric"), {"12.34": "12.34", "1234": "1234.00"}, decimal),
            *cases(amount, [TABLE, DOUBLES], {f'"{text}"': text for text in values}, plain("string")),
            *cases(amount, TABLE, {"1E+2": "100.00", "1234": "1234.00"}, plain("double")),
            *cases(amount, [TABLE, STRING_DECIMALS], {variable(Decimal("12.3")): "12.30"}),
            *cases(
                amount,
                [TABLE, DOUBLES],
                {
                    variable(Decimal("-12.34")): "-12.34",
                    variable(
                        Decimal("0.345")
                    ): "!c: the value is io.debezium.data.VariableScaleDecimal that does not fit;"
                    " the column is DECIMAL(10,2).",
                },
                semantic("io.debezium.data.VariableScaleDecimal", "struct"),
            ),
            # A scale that changed in mid-stream.
            *cases(
                amount,
                TABLE,
                {
                    base64_json(123400): "12.34",
                    base64_json(
                        123456
                    ): "!c: the value is org.apache.kafka.connect.data.Decimal of scale 4 that does not fit;"
                    " the column is DECIMAL(10,2).",
                    base64_json(
                        10**13
                    ): "!c: the value is org.apache.kafka.connect.data.Decimal of scale 4 that does not fit;"
                    " the column is DECIMAL(10,2).",
                },
                semantic("Decimal", "bytes", scale="4"),
            ),
            *cases(
                column("DECIMAL(38,10)"),
                TABLE,
                {base64_json(15 * 10**29 * 10**9): "1500000000.0000000000"},
                semantic("Decimal", "bytes", scale="30"),
            ),
            *cases(
                amount,
                STRING_DECIMALS,
                {
                    '"1.234"': "!c: the value is a number with 3 decimal places; the column is DECIMAL(10,2).",
                    '"123456789"': "!c: the value is a number with 9 digits before the point;"
                    " the column is DECIMAL(10,2).",
                    '"x"': "!c: the value is text that is no number; the column is DECIMAL(10,2).",
                    '"NAN"': "!c: the value is NaN or infinity; the column is DECIMAL(10,2).",
                    "true": "!c: the value is true or false; the column is DECIMAL(10,2).",
                    "[1]": "!c: the value is an array; the column is DECIMAL(10,2).",
                    variable(
                        Decimal("1.234")
                    ): "!c: the value is a number with 3 decimal places; the column is DECIMAL(10,2).",
                    # A double in full length is only written in somebody's own JSON.
                    "9.98999999463558197021484375": "!c: the value is a number with 26 decimal places;"
                    " the column is DECIMAL(10,2).",
                },
            ),
            *cases(
                amount,
                TABLE,
                {
                    base64_json(
                        10**10
                    ): "!c: the value is base64 of a number with too many digits; the column is DECIMAL(10,2).",
                    '"x!"': "!c: the value is text that is no base64 of a number; the column is DECIMAL(10,2).",
                    "0.001": "!c: the value is a number with 3 decimal places; the column is DECIMAL(10,2).",
                },
            ),
            *cases(
                amount,
                TABLE,
                {"1": "!c: the value is io.debezium.time.MicroTimestamp; the column is DECIMAL(10,2)."},
                semantic("io.debezium.time.MicroTimestamp"),
            ),
            *cases(
                amount,
                TABLE,
                {'"AA=="': "!c: the value is Connect's bytes; the column is DECIMAL(10,2)."},
                plain("bytes"),
            ),
        ],
    )


def test_numbers_beyond_38_digits_are_text() -> None:
    wide, any_ = column("STRING", "numeric(65,30)"), column("STRING", "numeric")
    decimal = semantic("Decimal", "bytes", scale="30")
    numbers = [
        "123456789.987654321",
        "-100000000000000000000",
        "0",
        "0.5",
        "-0.000000000000000000000000000001",
        "9" * 35 + "." + "9" * 30,
    ]
    full = {number: f"{Decimal(number):.30f}" for number in numbers}
    encoded = {number: base64_json(int(Decimal(number).scaleb(30, Context(prec=80)))) for number in numbers}
    special = {'"NaN"': "NaN", '"NAN"': "NaN", '"POSITIVE_INFINITY"': "Infinity", '"-Infinity"': "-Infinity"}
    check(
        [
            *cases(wide, TABLE, {encoded[number]: full[number] for number in numbers}),
            *cases(wide, [TABLE, STRING_DECIMALS], {encoded[number]: full[number] for number in numbers}, decimal),
            *cases(wide, STRING_DECIMALS, {f'"{full[number]}"': full[number] for number in numbers}),
            *cases(wide, DOUBLES, {"0.5": full["0.5"], "1.0E20": f"1{'0' * 20}.{'0' * 30}"}),
            *cases(any_, [TABLE, STRING_DECIMALS], {variable(Decimal(number)): number for number in numbers}),
            *cases(any_, STRING_DECIMALS, {f'"{full[number]}"': number for number in numbers}),
            *cases(any_, [STRING_DECIMALS, DOUBLES], special),
            *cases(wide, TABLE, {encoded[number]: full[number] for number in numbers}, NO_SCHEMA),
            *cases(any_, TABLE, {variable(Decimal(number)): number for number in numbers}, NO_SCHEMA),
            *cases(
                any_,
                TABLE,
                {'"AAAA"': "!c: the value is text that is no number; the column is STRING of numeric."},
                NO_SCHEMA,
            ),
            *cases(
                any_,
                TABLE,
                {"null": None, '"AAAA"': "!c: the value is text that is no number; the column is STRING of numeric."},
            ),
            *cases(
                wide,
                STRING_DECIMALS,
                {
                    f'"0.{"0" * 30}1"': "!c: the value is a number out of its range;"
                    " the column is STRING of numeric(65,30).",
                    f'"1{"0" * 35}"': "!c: the value is a number out of its range;"
                    " the column is STRING of numeric(65,30).",
                },
            ),
        ],
    )


@given(
    numbers=st.lists(
        st.one_of(st.integers(-(2**1300), 2**1300), st.integers(-(2**70), 2**70), st.integers(-300, 300)),
        min_size=100,
        max_size=150,
    ),
    chance=st.randoms(use_true_random=False),
)
@few_large_examples
def test_numbers_of_any_length_keep_every_digit(numbers: list[int], chance: random.Random) -> None:
    edges = [
        sign * (base**power + near)
        for base in (2, 10)
        for power in (7, 9, 27, 28, 56, 63, 64, 120)
        for near in (-1, 0, 1)
        for sign in (1, -1)
    ]
    values = {}
    for number in [*numbers, *edges, 10**400 - 1, -(10**400) + 1]:
        decimal_places = chance.randrange(60) if abs(number) < 10**300 else 0
        decimal = Decimal(number).scaleb(-decimal_places, Context(prec=500))
        stripped = format(decimal.normalize(Context(prec=500)), "f") if number else "0"
        values[f'{{"scale":{decimal_places},"value":{base64_json(number)}}}'] = stripped
    too_long = {
        f'{{"scale":0,"value":{base64_json(10**402)}}}': "!c: the value is an object; the column is STRING of numeric."
    }
    check(cases(column("STRING", "numeric"), TABLE, {**values, **too_long}))


def test_unsigned_integers() -> None:
    numbers = {0: 0, 1: 1, 2**63 - 1: 2**63 - 1, 2**63: -(2**63), 2**64 - 1: -1}
    long = {str(sent): str(number) for number, sent in numbers.items()}
    precise = {base64_json(number): str(number) for number in numbers}
    exact = feed(bigint_unsigned_handling_mode="precise")
    text_mode = feed(bigint_unsigned_handling_mode="precise", decimal_handling_mode="string")
    told = []
    for declared in (column("DECIMAL(20,0)", "unsigned_bigint"), column("STRING", "unsigned_bigint")):
        told += cases(declared, [TABLE, DOUBLES], long)
        told += cases(declared, [TABLE, exact], long, plain("int64"))
        told += cases(declared, [exact, text_mode], precise)
        told += cases(declared, TABLE, precise, semantic("Decimal", "bytes", scale="0"))
    amount, expected = column("DECIMAL(20,0)", "unsigned_bigint"), "the column is DECIMAL(20,0) of unsigned_bigint."
    told += cases(
        amount,
        STRING_DECIMALS,
        {
            str(-(2**63) - 1): f"!c: {SENT}; {expected}",
            str(2**64): f"!c: {SENT}; {expected}",
            "1.5": f"!c: the value is a number with a fraction or an exponent; {expected}",
            '"x"': f"!c: the value is text that is no whole number; {expected}",
        },
    )
    check(told)


def micros_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def forms(micros: int) -> dict[str, str]:
    """The time without a zone in each mode, by the name of its schema."""
    moment = EPOCH + timedelta(microseconds=micros)
    texts = {
        "io.debezium.time.MicroTimestamp": str(micros),
        "io.debezium.time.IsoTimestamp": f'"{moment.replace(tzinfo=None).isoformat()}Z"',
    }
    if micros % 1000 == 0:
        texts["io.debezium.time.Timestamp"] = texts["org.apache.kafka.connect.data.Timestamp"] = str(micros // 1000)
    if abs(micros) < 2**63 // 1000:
        texts["io.debezium.time.NanoTimestamp"] = str(micros * 1000)
    return texts


@given(
    moments=st.lists(
        st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)), min_size=40, max_size=60
    )
)
@few_large_examples
def test_times_in_every_mode(moments: list[datetime]) -> None:
    moments += [
        EPOCH,
        EPOCH - timedelta(microseconds=1),
        datetime(2024, 2, 29, 12, 34, 56, 789012, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC),
    ]
    moments += [moment.replace(microsecond=moment.microsecond // 1000 * 1000) for moment in moments]
    told = []
    for moment in dict.fromkeys(moments):
        micros = micros_of(moment)
        iso = moment.replace(tzinfo=None).isoformat()
        text = iso.rstrip("0") if "." in iso else iso
        as_spark = text.replace("T", " ")
        for declared, expected in ((column("TIMESTAMP"), as_spark), (column("STRING", "timestamp"), text)):
            named = forms(micros)
            for name, form in named.items():
                told += cases(declared, TABLE, {form: expected}, semantic(name))
            told += cases(declared, [TABLE, MICROS], {named["io.debezium.time.MicroTimestamp"]: expected})
            told += cases(declared, [ISO, TABLE], {named["io.debezium.time.IsoTimestamp"]: expected})
            if "io.debezium.time.Timestamp" in named:
                told += cases(declared, CONNECT, {named["io.debezium.time.Timestamp"]: expected})
                millis = declared.model_copy(update={"epoch_unit": "millis"})
                told += cases(millis, [TABLE, ISO], {named["io.debezium.time.Timestamp"]: expected})
            if "io.debezium.time.NanoTimestamp" in named:
                told += cases(declared, NANOS, {named["io.debezium.time.NanoTimestamp"]: expected})
        zoned = {f'"{iso}Z"': f"{text}Z", f'"{iso}+00:00"': f"{text}Z"}
        told += cases(column("STRING", "timestamptz"), ALL_TIMES[:2], zoned)
        told += cases(
            column("STRING", "timestamptz"), TABLE, zoned, semantic("io.debezium.time.ZonedTimestamp", "string")
        )
    check(told)


def test_times_that_no_timestamp_holds() -> None:
    local, zoned = column("STRING", "timestamp"), column("STRING", "timestamptz")
    caesar = -63_517_824_000_000_000
    micros = {
        "9223372036825200000": "infinity",
        "-9223372036832400000": "-infinity",
        str(caesar): "-0043-03-15T00:00:00",
    }
    millis = {
        "9223372036825200": "infinity",
        "-9223372036832400": "-infinity",
        str(caesar // 1000): "-0043-03-15T00:00:00",
    }
    texts = {
        '"+294247-01-10T04:00:25.2Z"': "infinity",
        '"-290308-12-21T19:59:27.6Z"': "-infinity",
        '"-0043-03-15T00:00:00Z"': "-0043-03-15T00:00:00",
        '"+12024-01-01T00:00:00.5Z"': "+12024-01-01T00:00:00.5",
    }
    check(
        [
            *cases(local, [TABLE, MICROS], micros),
            *cases(local, TABLE, micros, NO_SCHEMA),
            *cases(local, [CONNECT, feed(time_precision_mode="connect", kind="mysql")], millis),
            *cases(local, NANOS, {str(2**63 - 1): "infinity", str(-(2**63)): "-infinity"}),
            *cases(local, ISO, texts),
            *cases(local, [TABLE, ISO], micros, semantic("io.debezium.time.MicroTimestamp")),
            *cases(local, TABLE, millis, semantic("io.debezium.time.Timestamp")),
            *cases(
                local,
                TABLE,
                {
                    '"2024-02-30T00:00:00Z"': "!c: the value is text that is no ISO 8601 time;"
                    " the column is STRING of timestamp."
                },
            ),
            *cases(
                zoned,
                [TABLE, ISO],
                {
                    '"infinity"': "infinity",
                    '"-infinity"': "-infinity",
                    '"-0043-03-15T00:00:00Z"': "-0043-03-15T00:00:00Z",
                    '"2024-01-01T01:00:00+02:00"': "2023-12-31T23:00:00Z",
                },
            ),
            *cases(
                column("TIMESTAMP"),
                TABLE,
                {
                    "9223372036825200000": "!c: the value is a number outside of years 1 to 9999;"
                    " the column is TIMESTAMP.",
                    '"-infinity"': "!c: the value is infinity; the column is TIMESTAMP.",
                    '"x"': "!c: the value is text that is no ISO 8601 time; the column is TIMESTAMP.",
                    '"2024-01-01T00:00:00.1234567Z"': "!c: the value is a time finer than microseconds;"
                    " the column is TIMESTAMP.",
                    "1.5": "!c: the value is a number with a fraction or an exponent; the column is TIMESTAMP.",
                    "{}": "!c: the value is an object; the column is TIMESTAMP.",
                },
            ),
            *cases(
                column("TIMESTAMP"),
                NANOS,
                {
                    "1001": "!c: the value is a number of nanoseconds outside of years 1 to 9999,"
                    " or with a part below microseconds; the column is TIMESTAMP."
                },
            ),
            *cases(
                column("TIMESTAMP"),
                ISO,
                {"1001": "!c: the value is a number in place of ISO 8601 text; the column is TIMESTAMP."},
            ),
            *cases(
                column("TIMESTAMP"),
                TABLE,
                {"1": "!c: the value is io.debezium.time.MicroTime; the column is TIMESTAMP."},
                semantic("io.debezium.time.MicroTime"),
            ),
            *cases(
                column("BIGINT"),
                TABLE,
                {"1": "!c: the value is io.debezium.time.MicroTimestamp; the column is BIGINT."},
                semantic("io.debezium.time.MicroTimestamp"),
            ),
        ],
    )


def test_dates() -> None:
    days = {"19782": "2024-02-29", "-719162": "0001-01-01", "0": "1970-01-01"}
    beyond = {"-735160": "-0043-03-15", "-2147472692": "infinity", "-2147472691": "-infinity", "2146033979": "infinity"}
    texts = {'"2024-02-29Z"': "2024-02-29", '"2024-02-29"': "2024-02-29"}
    texts_beyond = {
        '"-0043-03-15Z"': "-0043-03-15",
        '"-5877611-06-21Z"': "infinity",
        '"-5877611-06-22Z"': "-infinity",
        '"+5877611-06-21Z"': "infinity",
    }
    names = [semantic(name, "int32") for name in ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")]
    check(
        [
            *cases(column("DATE"), ALL_TIMES, {**days, **texts}),
            *cases(column("STRING", "date"), ALL_TIMES[:3], {**days, **beyond, **texts, **texts_beyond}),
            *[case for name in names for case in cases(column("STRING", "date"), TABLE, {**days, **beyond}, name)],
            *cases(column("DATE"), TABLE, texts, semantic("io.debezium.time.IsoDate", "string")),
            *cases(
                column("DATE"),
                TABLE,
                {
                    "-735160": "!c: the value is a number of days outside of years 1 to 9999; the column is DATE.",
                    '"2024-02-30"': "!c: the value is text that is no ISO 8601 date; the column is DATE.",
                },
            ),
            *cases(
                column("DATE"),
                TABLE,
                {"1": "!c: the value is io.debezium.time.Year; the column is DATE."},
                semantic("io.debezium.time.Year"),
            ),
        ],
    )


def test_times_of_day() -> None:
    time = column("STRING", "time")
    micros = {
        "86399999999": "23:59:59.999999",
        "0": "00:00:00",
        "3020399000000": "838:59:59",
        "-3020399000000": "-838:59:59",
        "-500000": "-00:00:00.5",
        "86400000000": "24:00:00",
    }
    nanos = {f"{number}000": text for number, text in micros.items() if number != "0"}
    texts = {
        '"23:59:59.999999Z"': "23:59:59.999999",
        '"00:00:00Z"': "00:00:00",
        '"12:00:00.500000"': "12:00:00.5",
        '"-838:59:59"': "-838:59:59",
    }
    millis = {"45296789": "12:34:56.789", "0": "00:00:00"}
    check(
        [
            *cases(time, [TABLE, MICROS, feed(time_precision_mode="adaptive_time_microseconds")], micros),
            *cases(time, NANOS, nanos),
            *cases(time, CONNECT, millis),
            *cases(column("STRING", "time", epoch_unit="millis"), TABLE, millis),
            *cases(time, ISO, texts),
            *cases(time, [TABLE, ISO], micros, semantic("io.debezium.time.MicroTime")),
            *cases(time, TABLE, micros, NO_SCHEMA),
            *cases(time, TABLE, millis, semantic("io.debezium.time.Time", "int32")),
            *cases(time, TABLE, millis, semantic("org.apache.kafka.connect.data.Time", "int32")),
            *cases(time, TABLE, nanos, semantic("io.debezium.time.NanoTime")),
            *cases(time, TABLE, texts, semantic("io.debezium.time.IsoTime", "string")),
            *cases(
                time,
                TABLE,
                {
                    "9999999999999": f"!c: {SENT}; the column is STRING of time.",
                    '"noon"': "!c: the value is text that is no time of day; the column is STRING of time.",
                },
            ),
            *cases(
                column("STRING", "timetz"),
                ALL_TIMES[:2],
                {
                    '"12:34:56.500000Z"': "12:34:56.5Z",
                    '"12:34:56+00:00"': "12:34:56Z",
                    '"12:34:56+02:00"': "12:34:56+02:00",
                },
            ),
            *cases(
                column("STRING", "interval"),
                TABLE,
                {
                    "37091106789000": "37091106789000",
                    '"P1Y"': "!c: the value is text that is no ISO 8601 duration; the column is STRING of interval.",
                },
            ),
            *cases(
                column("STRING", "interval"),
                [feed(interval_handling_mode="string")],
                {'"P1Y2M3DT4H5M6.789S"': "P1Y2M3DT4H5M6.789S", '"P0Y-1M0DT0H0M0S"': "P0Y-1M0DT0H0M0S"},
            ),
            *cases(
                column("STRING", "interval"), TABLE, {'"P1Y"': "P1Y"}, semantic("io.debezium.time.Interval", "string")
            ),
        ],
    )


def test_bits_and_bytes() -> None:
    def sent(data: bytes, *, encode: Any = base64.b64encode) -> str:
        return json.dumps(encode(data).decode())

    data = {b"\x00\xff\x10": "00FF10", b"": "", b"\xfb\xff\xfe": "FBFFFE"}
    hexed, safe = feed(binary_handling_mode="hex"), feed(binary_handling_mode="base64-url-safe")
    as_hex = {json.dumps(part.hex()): text for part, text in data.items()}
    as_safe = {sent(part, encode=base64.urlsafe_b64encode): text for part, text in data.items()}
    as_base64 = {sent(part): text for part, text in data.items()}
    standard = {text: base64.b64encode(part).decode() for part, text in data.items()}
    told = []
    for declared, of in ((column("BINARY"), lambda text: text), (column("STRING", "bytes"), standard.__getitem__)):
        for mode, values in (
            (TABLE, as_base64),
            (feed(binary_handling_mode="base64"), as_base64),
            (hexed, as_hex),
            (safe, as_safe),
            (OUTBOX, as_base64),
        ):
            told += cases(declared, mode, {form: of(text) for form, text in values.items()})
        for mode in (TABLE, hexed, safe):
            told += cases(declared, mode, {form: of(text) for form, text in as_base64.items()}, plain("bytes"))
        told += cases(declared, hexed, {form: of(text) for form, text in as_hex.items()}, plain("string"))
    refused = "!c: the value is text that is no binary value in the declared mode; the column is BINARY."
    told += cases(column("BINARY"), TABLE, dict.fromkeys(as_safe, refused), plain("string"))
    told += cases(column("STRING", "bytes"), TABLE, {sent(b"x" * 300): base64.b64encode(b"x" * 300).decode()})
    told += cases(
        column("BINARY"),
        hexed,
        {'"abc"': "!c: the value is text that is no binary value in the declared mode; the column is BINARY."},
    )
    bits = {sent(b"\x05\x80"): "1000000000000101", sent(b"\x01\x00"): "0000000000000001", sent(b"\x00\x00"): "0" * 16}
    told += cases(column("STRING", "bit(16)"), TABLE, bits)
    told += cases(column("STRING", "bit(16)"), TABLE, bits, semantic("io.debezium.data.Bits", "bytes", length="16"))
    told += cases(
        column("STRING", "bit(3)"),
        TABLE,
        {
            sent(b"\x05"): "101",
            sent(b"\x0d"): "!c: the value is text that is no base64 of so many bits; the column is STRING of bit(3).",
        },
    )
    told += cases(column("STRING", "varbit", allow_cut_digits=True), TABLE, {sent(b"\x05"): "101", '""': ""})
    told += cases(column("STRING", "bit(1)"), TABLE, {"true": "1", "false": "0"})
    told += cases(column("BOOLEAN", "bit(1)"), TABLE, {"true": "true", "false": "false"})
    check(told)


def test_numbers_texts_and_arrays() -> None:
    ints, texts = column("ARRAY<INT>"), column("ARRAY<STRING>")
    money = column("ARRAY<DECIMAL(10,2)>")
    check(
        [
            *cases(
                column("INT"),
                TABLE,
                {
                    str(2**31 - 1): str(2**31 - 1),
                    str(2**31): f"!c: {SENT}; the column is INT.",
                    "1.0": "!c: the value is a number with a fraction or an exponent; the column is INT.",
                    '"x"': "!c: the value is text that is no whole number; the column is INT.",
                    "true": "!c: the value is true or false; the column is INT.",
                },
            ),
            *cases(column("SMALLINT"), TABLE, {"-32768": "-32768", "32768": f"!c: {SENT}; the column is SMALLINT."}),
            *cases(column("INT", "year"), TABLE, {"2024": "2024"}, semantic("io.debezium.time.Year", "int32")),
            *cases(
                column("FLOAT"),
                TABLE,
                {
                    "0.1": "0.1",
                    "3.4028235E38": "3.4028235E38",
                    "0.10000000149011612": "0.1",
                    '"NaN"': "NaN",
                    "0": "0.0",
                    "1.4E-45": "1.4E-45",
                    "16777217": f"!c: {SENT}; the column is FLOAT.",
                    "0.123456789": f"!c: {SENT}; the column is FLOAT.",
                    "1e39": f"!c: {SENT}; the column is FLOAT.",
                },
            ),
            *cases(
                column("DOUBLE"),
                TABLE,
                {
                    "0.1": "0.1",
                    '"NaN"': "NaN",
                    '"-Infinity"': "-Infinity",
                    '"Infinity"': "Infinity",
                    "1e+308": "1.0E308",
                },
            ),
            *cases(
                column("STRING", "uuid"),
                TABLE,
                {
                    '"00000000-0000-0000-0000-00000000000A"': "00000000-0000-0000-0000-00000000000a",
                    '"x"': "!c: the value is text that is no UUID; the column is STRING of uuid.",
                },
            ),
            *cases(
                column("STRING", "json"),
                TABLE,
                {'"{\\"a\\": 1.50}"': '{"a": 1.50}'},
                semantic("io.debezium.data.Json", "string"),
            ),
            *cases(
                column("STRING", "set"),
                TABLE,
                {'"x,z"': "x,z", '""': ""},
                semantic("io.debezium.data.EnumSet", "string"),
            ),
            *cases(
                ints,
                TABLE,
                {
                    "[1,null,3]": "[1,null,3]",
                    "[]": "[]",
                    "[1.5]": "!c: the value is an array with an element that does not fit; the column is ARRAY<INT>.",
                    '"x"': "!c: the value is text that is no whole number; the column is ARRAY<INT>.",
                    "null": None,
                },
            ),
            *cases(ints, TABLE, {"[1,null,3]": "[1,null,3]"}, plain("array", type="int32")),
            *cases(ints, TABLE, {"[1,null,3]": "[1,null,3]"}, NO_SCHEMA),
            *cases(column("BIGINT"), TABLE, {"1": "1"}, NO_SCHEMA),
            *cases(column("BINARY"), TABLE, {'"AP8Q"': "00FF10"}, NO_SCHEMA),
            *cases(texts, TABLE, {'["a,\\"]",null,""]': '["a,\\"]",null,""]', "[1.50]": '["1.50"]'}),
            *cases(money, STRING_DECIMALS, {'["1.50",null]': "[1.50,null]", "[1.5]": "[1.50]"}),
            *cases(
                money,
                TABLE,
                {f"[{base64_json(15000)}]": "[1.50]"},
                plain("array", **semantic("Decimal", "bytes", scale="4")),
            ),
            *cases(column("STRING"), TABLE, {"[1,null,1.50]": "[1,null,1.50]"}),
        ],
    )


def test_no_sentence_shows_the_value() -> None:
    values = [
        '"SECRET"',
        '"SECRET="',
        "7654321.7654321",
        "76543210765432107654321076543210",
        '{"SECRET":1}',
        '["SECRET"]',
    ]
    types = ["SMALLINT", "FLOAT", "DECIMAL(3,1)", "BOOLEAN", "DATE", "TIMESTAMP", "BINARY", "ARRAY<INT>"]
    sources = ["time", "timetz", "timestamp", "timestamptz", "date", "interval", "uuid", "bytes", "bit(8)", "numeric"]
    columns = [*map(column, types), *(column("STRING", source) for source in sources)]
    schemas = (None, FieldSchema("int64", "io.debezium.time.MicroDuration"))
    said = [
        sentence
        for value in values
        for each in columns
        for given in schemas
        if (sentence := conversion(value, each, STRING_DECIMALS, given)[1]) is not None
    ]
    assert len(said) > len(values) * len(columns)
    assert [sentence for sentence in said if "SECRET" in sentence or "76543" in sentence] == []
