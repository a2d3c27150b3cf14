"""Values of JSON events as typed columns: exactly, or NULL. Python's decimal and datetime are the judges."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse.contracts.parts.column_types import DecimalType, SimpleType
from lakehouse.contracts.tables import Column
from silver.decode.reference.message import parsed
from silver.decode.reference.values import reader
from tests.support.conversions import at_most, read_value
from tests.support.events import EPOCH, base64_decimal
from tests.support.feeds import feed

AMOUNT = Column(type=DecimalType(precision=10, scale=2))
DECIMALS = [
    AMOUNT,
    *(Column(type=DecimalType(precision=38, scale=scale)) for scale in (0, 10, 38)),
    Column(type=DecimalType(precision=1, scale=0)),
]
BIGINT = Column(type=SimpleType(name="BIGINT"))
STRING = Column(type=SimpleType(name="STRING"))
MICROS = Column(type=SimpleType(name="TIMESTAMP"))
MILLIS = Column(type=SimpleType(name="TIMESTAMP"), epoch_unit="millis")

PRECISE, OUTBOX = feed(), feed(envelope="outbox")

few_large_examples = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def read(fragments: Sequence[str], *columns: Column, precise: bool = False) -> list[list[Any]]:
    """For each JSON value what every column makes of it; times as micros from the epoch, None where it does not fit."""
    of_feed = PRECISE if precise else OUTBOX
    return [[read_value(fragment, column, of_feed) for column in columns] for fragment in fragments]


def one(fragments: Sequence[str], column: Column, *, precise: bool = False) -> dict[str, Any]:
    """The same for one column, by JSON value."""
    return {
        fragment: cell for fragment, (cell,) in zip(fragments, read(fragments, column, precise=precise), strict=True)
    }


def fitting(value: Decimal, column: Column) -> Decimal | None:
    """The value when the column can hold it exactly."""
    declared = column.type
    assert isinstance(declared, DecimalType)
    unscaled = value.scaleb(declared.scale, Context(prec=60))
    return value if unscaled == int(unscaled) and abs(int(unscaled)) < 10**declared.precision else None


def base64_json(unscaled: int, padding: int = 0) -> str:
    """An unscaled number as Connect sends it, in so many more bytes than it needs."""
    length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return json.dumps(base64.b64encode(unscaled.to_bytes(length + padding, "big", signed=True)).decode())


UNSCALED = st.one_of(
    st.integers(-(2**127), 2**127 - 1),
    st.integers(-300, 300),
    st.builds(
        lambda power, sign, near: sign * (10**power + near),
        st.integers(0, 38),
        st.sampled_from([1, -1]),
        st.integers(-1, 1),
    ),
    st.builds(lambda bits, near: 2**bits + near, st.integers(0, 126), st.integers(-1, 1)),
)


@given(numbers=st.lists(UNSCALED, min_size=100, max_size=150))
@few_large_examples
def test_base64_decimals_are_exact_or_null(numbers: list[int]) -> None:
    numbers = [*numbers, 0, -1, 10**10 - 1, -(10**10) + 1, 10**10, -(10**10), 10**38 - 1, -(10**38) + 1, 10**38]
    found = read([base64_json(number) for number in numbers], *DECIMALS, precise=True)
    for number, cells in zip(numbers, found, strict=True):
        for column, cell in zip(DECIMALS, cells, strict=True):
            scale = getattr(column.type, "scale", 0)
            exact = Decimal(number).scaleb(-scale, Context(prec=60))
            assert cell == fitting(exact, column), (number, column.type.ddl)


def test_negative_decimals_keep_all_38_digits() -> None:
    column = Column(type=DecimalType(precision=38, scale=0))
    fit = [-(10**34) - 1, -12345678901234567890123456789012345678]
    found = one([base64_json(number) for number in fit], column, precise=True)
    assert found == {base64_json(number): Decimal(number) for number in fit}


@pytest.mark.parametrize("number", [-(10**38) + 1, -(10**38), 10**38])
def test_a_number_of_38_digits_and_more_does_not_fit_an_amount(number: int) -> None:
    assert read([base64_json(number)], AMOUNT, precise=True) == [[None]]


def test_base64_decimals_may_have_leading_bytes() -> None:
    numbers = {base64_json(number, padding): number for number in (0, 1, 12345, -1, -12345) for padding in (1, 8, 13)}
    found = one(list(numbers), AMOUNT, precise=True)
    assert found == {fragment: Decimal(number).scaleb(-2) for fragment, number in numbers.items()}


def test_base64_has_its_padding_and_nothing_else() -> None:
    broken = ['"ZQ"', '"ZQ="', '"ZQ==="', '"AAAA===="', '"UdLR="', '" ZQ=="', '"Z Q=="', '"ZQ==\\n"', '"Zg-_"']
    assert one(broken, Column(type=SimpleType("BINARY"))) == dict.fromkeys(broken)
    assert one(['"ZQ=="', '""'], Column(type=SimpleType("BINARY"))) == {'"ZQ=="': b"e", '""': b""}


def test_what_is_no_base64_decimal_is_null() -> None:
    broken = ['""', '"===="', '"not base64!"', '"Z"', '"é"', "null", "{}", '"__8="', f'"{"A" * 400}"']
    assert one(broken, AMOUNT, precise=True) == dict.fromkeys(broken)


def test_numbers_are_taken_when_they_fit() -> None:
    expected = {
        "0": "0.00",
        "-0": "0.00",
        "0.01": "0.01",
        "-0.01": "-0.01",
        "12.3": "12.30",
        "12.34": "12.34",
        "12.34000000": "12.34",
        "1e2": "100.00",
        "1.5E-1": "0.15",
        "9.999999999E7": "99999999.99",
        "-99999999.99": "-99999999.99",
        '"12.34"': "12.34",
        '"9.999999999E7"': "99999999.99",
    }
    assert one(list(expected), AMOUNT) == {fragment: Decimal(text) for fragment, text in expected.items()}


def test_numbers_that_do_not_fit_are_null() -> None:
    conversion_errors = [
        *("0.005", "-0.005", "12.345", "99999999.995", "100000000", "-100000000", "1e8", "1e-3", "1e400", "9" * 60),
        *('"abc"', '"NaN"', '"Infinity"', '""', "true", "null", "{}", "[1]"),
    ]
    assert one(conversion_errors, AMOUNT) == dict.fromkeys(conversion_errors)


def test_a_comma_is_no_part_of_a_number() -> None:
    assert one(['"1,50"', '"1,234.50"'], AMOUNT) == {'"1,50"': None, '"1,234.50"': None}


@given(
    cents=st.lists(st.integers(-(10**10) + 1, 10**10 - 1), min_size=100, max_size=150),
    other=st.lists(st.floats(1e-9, 1e9), min_size=50, max_size=100),
)
@few_large_examples
def test_a_double_in_full_length_is_its_shortest_number(cents: list[int], other: list[float]) -> None:
    full = {format(Decimal(cent / 100), "f"): fitting(Decimal(cent).scaleb(-2), AMOUNT) for cent in cents}
    full |= {format(Decimal(number), "f"): fitting(Decimal(repr(number)), AMOUNT) for number in other}
    full["99999999.98999999463558197021484375"] = Decimal("99999999.99")
    full["0.3000000000000000444089209850062616169452667236328125"] = None  # 0.1 + 0.2
    assert one(list(full), AMOUNT) == full


def test_a_number_near_a_fitting_one_is_null() -> None:
    near = [
        *("12.340000000000000001", "99999999.990000001", "12.33999999999999999"),
        *("1e-40", "10.00000000000000000000000000000000001"),
    ]
    assert one(near, AMOUNT) == dict.fromkeys(near)


def test_a_double_in_full_length_is_its_shortest_number_and_its_neighbours_are_null() -> None:
    full = {
        f"{sign}{Decimal(float(text))}": Decimal(f"{sign}{text}")
        for text in ("12.34", "99999999.99", "1000.01", "2.01")
        for sign in ("", "-")
    }
    # One more or less in the last digit is another number, which has the same nearest double.
    near = [f"{number[:-1]}{digit}" for number in full for digit in "46"]
    assert one([*full, *near], AMOUNT) == {**full, **dict.fromkeys(near)}


def test_huge_exponents_are_refused_at_once() -> None:
    huge = ["1e16000000", "-1E999999999", "1e-16000000", '"1e16000000"', "1e99999999999999999999"]
    with at_most(1):
        for column in (AMOUNT, Column(type=SimpleType("BIGINT")), Column(type=SimpleType("DOUBLE")), MICROS):
            assert one(huge, column) == dict.fromkeys(huge), column


def test_dates() -> None:
    fitting = {
        "0": "1970-01-01",
        "-1": "1969-12-31",
        "19782": "2024-02-29",
        '"2024-02-29"': "2024-02-29",
        '"2024-02-29Z"': "2024-02-29",
        "-719162": "0001-01-01",
        "2932896": "9999-12-31",
    }
    conversion_errors = [
        "-719163",
        "2932897",
        '"0000-00-00"',
        '"0000-12-31"',
        '"2023-02-29"',
        "1.0",
        '"2024-2-9"',
        "true",
        "null",
    ]
    found = one([*fitting, *conversion_errors], Column(type=SimpleType("DATE")))
    assert {text: day and day.isoformat() for text, day in found.items()} == {
        **fitting,
        **dict.fromkeys(conversion_errors),
    }


def test_doubles_and_booleans() -> None:
    doubles = {"0.1": 0.1, "-5e-324": -5e-324, "1": 1.0, "1.7976931348623157e308": 1.7976931348623157e308, '"0.5"': 0.5}
    conversion_errors = ["1e400", "-1e400", '"x"', "true", '""']
    assert one([*doubles, *conversion_errors], Column(type=SimpleType("DOUBLE"))) == {
        **doubles,
        **dict.fromkeys(conversion_errors),
    }
    assert math.isnan(one(['"NaN"'], Column(type=SimpleType("DOUBLE")))['"NaN"'])
    truths = {"true": True, "1": True, "false": False, "0": False, "2": None, '"yes"': None, "1.0": None}
    assert one(list(truths), Column(type=SimpleType("BOOLEAN"))) == truths


def test_whole_numbers_are_exact_or_null() -> None:
    expected = {
        **{str(number): number for number in (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63))},
        **{f'"{number}"': number for number in (7, -7, 2**63 - 1)},
    }
    conversion_errors = [
        str(2**63),
        str(-(2**63) - 1),
        "1.0",
        "1e3",
        "true",
        '""',
        '" 5"',
        '"+5"',
        '"١٢"',
        "null",
        "{}",
        "9" * 60,
    ]
    assert one([*expected, *conversion_errors], BIGINT) == {**expected, **dict.fromkeys(conversion_errors)}


def test_text_is_as_it_was() -> None:
    texts = [
        "",
        " ",
        "null",
        "注文 🚀",
        'a "b" \\ c',
        "line\r\n\tline",
        "\u0000",
        "\u2028",
        "{}",
        "é",
        "é",
        "x" * 70_000,
    ]
    fragments = {json.dumps(text): text for text in texts}
    assert one(list(fragments), STRING) == fragments
    assert one(["null"], STRING) == {"null": None}


def test_a_number_in_a_text_column_keeps_its_value() -> None:
    numbers = ["1", "1.10", "-0.5", "12345678901234567890.123456789012345678901"]
    found = one(numbers, STRING)
    assert {number: Decimal(text) for number, text in found.items()} == {number: Decimal(number) for number in numbers}


INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))


@given(instants=st.lists(INSTANTS, min_size=60, max_size=100))
@few_large_examples
def test_the_same_instant_in_every_form(instants: list[datetime]) -> None:
    instants += [EPOCH, EPOCH - timedelta(microseconds=1), datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)]
    expected: dict[str, int] = {}
    for instant in instants:
        micros = (instant - EPOCH) // timedelta(microseconds=1)
        expected[str(micros)] = micros
        local = instant.replace(tzinfo=None)
        texts = [local.isoformat(), local.isoformat(sep=" "), f"{local.isoformat()}Z", instant.isoformat()]
        for offset in (timedelta(hours=2), -timedelta(hours=5, minutes=30)):
            texts.append(instant.astimezone(timezone(offset)).isoformat())
        expected |= {json.dumps(text): micros for text in texts}
    assert one(list(expected), MICROS) == expected


def test_epoch_numbers_count_in_the_declared_unit() -> None:
    last = 253_402_300_799_999
    numbers = [
        0,
        1,
        -1,
        1_704_067_200_000,
        last,
        last + 1,
        -62_135_596_800_000,
        -62_135_596_800_001,
        2**63 - 1,
        -(2**63),
    ]
    found = read([str(number) for number in numbers], MICROS, MILLIS)
    fit = [True] * 5 + [False, True, False, False, False]
    assert [millis for _micros, millis in found] == [
        number * 1000 if fits else None for number, fits in zip(numbers, fit, strict=True)
    ]
    assert [micros for micros, _millis in found] == [*numbers[:-2], None, None]


def test_what_is_no_time_is_null() -> None:
    garbage = [
        *(
            '""',
            '"yesterday"',
            '"2024-13-01T00:00:00"',
            '"2023-02-29T00:00:00"',
            '"2024-01-01T25:00:00Z"',
            '"12:00:00"',
        ),
        *('"24-01-01T00:00:00"', '"01/02/2024 00:00:00"', '"2024-01-01"', '"2024-01-01T00:00:00+25:00"', '"infinity"'),
        *("1.5", "1e3", "true", "null", "{}", "9" * 30),
    ]
    assert one(garbage, MICROS) == dict.fromkeys(garbage)


def test_times_outside_the_years_1_to_9999_are_null() -> None:
    outside = [
        *('"0000-12-31T23:59:59Z"', '"0001-01-01T00:00:00+02:00"', '"9999-12-31T23:59:59-05:00"'),
        *(str(-62_135_596_800_000_001), str(253_402_300_800_000_000), str(2**63 - 1), str(-(2**63))),
    ]
    assert one(outside, MICROS) == dict.fromkeys(outside)


def test_a_time_finer_than_microseconds_is_null() -> None:
    zeros = '"2024-01-01T00:00:00.123456000Z"'
    finer = ['"2024-01-01T00:00:00.1234567Z"', '"2024-01-01T00:00:00.000000001Z"']
    found = one([zeros, *finer], MICROS)
    assert [found[time] for time in finer] == [None, None]
    assert found[zeros] == 1_704_067_200_123_456


def test_helpers_speak_as_connect_does() -> None:
    # Connect's documentation of Decimal: the unscaled number, big-endian two's complement.
    assert [base64_decimal(text) for text in ("1.00", "-0.01", "0.00", "327.68")] == ["ZA==", "/w==", "AA==", "AIAA"]


def test_a_number_beside_a_double_in_full_length_is_null() -> None:
    full = [format(Decimal(cents / 100), "f") for cents in (1, -29, 1234, 9_999_999_999)]
    beside = [f"{number}{digit}" for number in full for digit in ("1", "0000000000000000000000000000000000000001")]
    beside += [f"{number[:-1]}{digit}" for number in full for digit in "46"]
    found = one([*full, *beside], AMOUNT)
    assert [found[number] for number in full] == [Decimal(text) for text in ("0.01", "-0.29", "12.34", "99999999.99")]
    assert [number for number in beside if found[number] is not None] == []


def test_a_number_beyond_the_floats_of_32_bits_is_null() -> None:
    largest = "3.4028234663852886e38"
    beyond = ["3.5e38", "-3.5e38", "1e39", "1e308", "1e400", f"1{'0' * 39}"]
    found = one([largest, f"-{largest}", *beyond, '"Infinity"'], Column(type=SimpleType("FLOAT")))
    assert [found[largest], found[f"-{largest}"], found['"Infinity"']] == [float(largest), -float(largest), math.inf]
    assert [number for number in beyond if found[number] is not None] == []
    assert one(["3.5e38"], Column(type=SimpleType("DOUBLE"))) == {"3.5e38": 3.5e38}


def test_digits_far_behind_the_point_are_not_cut() -> None:
    column = Column(type=DecimalType(precision=38, scale=38))
    numbers = [
        f"0.{'0' * 37}1",
        f"0.{'0' * 30}12345678",
        f"-0.{'9' * 38}",
        "1e-38",
        "0.5",
        f"0.{'0' * 38}1",
        "1e-39",
        "1",
    ]
    fit = [None if Decimal(number) == 1 else fitting(Decimal(number), column) for number in numbers]
    assert fit[-3:] == [None] * 3
    assert one(numbers, column) == dict(zip(numbers, fit, strict=True))


@given(
    numbers=st.lists(
        st.tuples(st.integers(-(10**40), 10**40), st.integers(-45, 10)).map(lambda pair: f"{pair[0]}E{pair[1]}"),
        min_size=100,
        max_size=150,
    )
)
@few_large_examples
def test_numbers_in_any_notation_are_exact_or_null(numbers: list[str]) -> None:
    numbers += [f"{number}E{unit}" for number in (0, 1, -10, 10**9, 12_340, 10**38 - 1) for unit in range(-40, 4, 3)]
    plain = [format(Decimal(number), "f") for number in numbers]
    found = read([*numbers, *plain], *DECIMALS)
    for number, cells in zip([*numbers, *plain], found, strict=True):
        for column, cell in zip(DECIMALS, cells, strict=True):
            assert cell == fitting(Decimal(number), column), (number, column.type.ddl)


def test_a_number_too_large_to_write_down_is_refused_at_once() -> None:
    vast = [f"{sign}1e{exponent}16000000" for sign in ("", "-") for exponent in ("", "-")] + ["1e99999999999999999999"]
    numbers = [*vast, *(f'"{number}"' for number in vast)]
    with at_most(1):
        found = read(numbers, AMOUNT, *DECIMALS, BIGINT, MICROS)
    assert found == [[None] * 8] * len(numbers)
    assert one(numbers, STRING) == {number: number.strip('"') for number in numbers}


def test_an_object_in_a_text_column_keeps_its_numbers() -> None:
    expected = {
        '{"a": 1.10, "b" : [1e400,-0.50 , 7], "1.5": "2.5"}': '{"a":1.10,"b":[1e400,-0.50,7],"1.5":"2.5"}',
        '[0.1000000000000000055, "\\"1.5,", {}]': '[0.1000000000000000055,"\\"1.5,",{}]',
        '"{\\"a\\": 1.10}"': '{"a": 1.10}',
        '"1.10"': "1.10",
        '":1.5,"': ":1.5,",
    }
    assert one(list(expected), STRING) == expected


def test_a_long_text_is_read_beside_a_number() -> None:
    long = {json.dumps(part * 200_000): part * 200_000 for part in ('a"\\', "1.5,", "🚀é", '{"a":[')}
    rows = [f'{{"w":{text},"v":1.50}}' for text in long]
    for text, row in zip(long.values(), rows, strict=True):
        fields = parsed(row, name="It")
        assert [reader(STRING, OUTBOX)(fields[name], None) for name in ("w", "v")] == [text, "1.50"]
