"""The type that a column seems to have: from Kafka Connect's schema of it, or from a sample of its values.

A reason says counts and shapes, never a value. Imports without pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lakehouse.contracts.parts.column_types import MAX_DIGITS
from lakehouse.contracts.tables import EpochUnit
from lakehouse.contracts.topics import FeedTopics
from silver.decode.reference.decoder import placeholders
from silver.decode.reference.message import FieldSchema, Json, Number, text_of, whole_number
from silver.decode.reference.numbers import digits_of, from_base64

_UNAVAILABLE = placeholders(FeedTopics.model_fields["unavailable_value_placeholder"].default)

_TIME_NAME = re.compile(r"(.*_)?(at|time|ts|timestamp|datetime|date|on)|(ts|time|timestamp)(\d+|tz)|ts_.*|dt")
_DATE_NAME = re.compile(r"(.*_)?(date|dt|day|on)|birthday|dob")
_MONEY_NAME = re.compile(r".*(amount|price|total|cost|fee|balance|sum|tax|rate|discount|payment).*")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?")
_BEYOND_ISO = re.compile(r"[+-]\d+-\d\d-\d\d(T.*|Z)?|-?infinity")
_FINER_THAN_MICROS = re.compile(r".*\.\d{6}0*[1-9]")
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\dZ?")
_DECIMAL_TEXT = re.compile(r"-?\d+(\.\d+)?|NAN")
_NOT_FINITE = {"NaN", "Infinity", "-Infinity"}

# Integers of 15 or 16 digits are years 1973 to 2286 in microseconds, of 12 or 13 digits in milliseconds.
_MICROS, _MILLIS, _SECONDS = range(10**14, 10**16), range(10**11, 10**13), range(10**9, 10**10)
_DAYS = range(-100_000, 100_000)

DecimalMode = Literal["precise", "string", "double"]


@dataclass(frozen=True)
class Guess:
    """A type as a contract writes it, and why it seems to be the one."""

    type: str
    why: str
    epoch_unit: EpochUnit | None = None
    """Of a time that travels as an integer."""
    decimals: DecimalMode | None = None
    """If the values look like decimals: the `decimal.handling.mode` that writes them so."""
    source_type: str | None = None
    """What the column is in its database, where the type alone does not say how to read it."""


def from_values(name: str, values: Sequence[Json], *, of_table: bool) -> Guess:
    """The type of a column of that name with these values of its sample, NULLs included.

    `of_table`: the values are Debezium's own writing of a table's columns, not somebody's JSON in an outbox.
    """
    known = [value for value in values if value is not None and text_of(value) not in _UNAVAILABLE]
    if not known:
        return Guess("STRING", "no value in the sample: check the type")
    if all(is_integer(value) for value in known):
        return _from_integers(name, known, of_table=of_table)
    if any(type(value) is Number for value in known) and all(_is_a_double(value) for value in known):
        return _from_fractions(known, of_table=of_table)
    if all(type(value) is str for value in known):
        return _from_texts(name, known, of_table=of_table)
    return _from_others(known)


def from_schemas(schemas: Sequence[FieldSchema]) -> Guess:
    """The type that Kafka Connect's schemas of a column declare, the newest last."""
    guesses = list(dict.fromkeys(_from_schema(schema) for schema in schemas))
    if len(guesses) == 1:
        return guesses[0]
    declared = ", ".join(guess.type for guess in guesses)
    decimals = [re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", guess.type) for guess in guesses]
    widest = _widest([(int(one[1]), int(one[2])) for one in decimals if one])
    if widest is not None and all(decimals):
        return Guess(widest, f"it changed in the sample ({declared}): wide enough for all; check", decimals="precise")
    last = guesses[-1]
    return Guess(
        last.type,
        f"it changed in the sample ({declared}); the last: {last.why}",
        last.epoch_unit,
        source_type=last.source_type,
    )


def weakest(values: Sequence[Json]) -> Guess:
    """The weakest type that holds all of these values as they are, and whatever may come like them."""
    known = [value for value in values if value is not None and text_of(value) not in _UNAVAILABLE]
    if known and all(isinstance(value, bool) for value in known):
        return Guess("BOOLEAN", f"{_of(len(known), known)} are true or false")
    if known and all(is_integer(value) and whole_number(value) is not None for value in known):
        return Guess("BIGINT", f"{_of(len(known), known)} are whole numbers")
    return Guess("STRING", "STRING keeps each value as it is written")


def _of(count: int, values: Sequence[Json]) -> str:
    return f"{count} of {len(values)} values"


def _digits(count: int) -> str:
    return f"{count} digit{'' if count == 1 else 's'}"


def is_integer(value: Json) -> bool:
    """Whether it is a number without fraction or exponent, of any size."""
    return type(value) is Number and re.fullmatch("-?[0-9]+", value) is not None


def _is_a_double(value: Json) -> bool:
    return type(value) is Number or (type(value) is str and value in _NOT_FINITE)


def _from_others(values: Sequence[Json]) -> Guess:
    count = _of(len(values), values)
    if all(isinstance(value, bool) for value in values):
        return Guess("BOOLEAN", f"{count} are true or false")
    if all(isinstance(value, dict) and value.keys() == {"scale", "value"} for value in values):
        return Guess(
            "STRING", f"{count} are a decimal without a fixed scale: STRING keeps scale and value as JSON text"
        )
    if all(isinstance(value, dict | list) for value in values):
        return Guess("STRING", f"{count} are objects or arrays: STRING keeps their JSON text")
    return Guess("STRING", "values of several kinds: STRING keeps each as it is written")


def _from_integers(name: str, values: Sequence[Number], *, of_table: bool) -> Guess:
    numbers = [number for value in values if (number := whole_number(value)) is not None]
    if len(numbers) < len(values):
        return Guess("STRING", "whole numbers, some too large for BIGINT: STRING keeps every digit")
    return _time_of_integers(name, numbers, of_table=of_table) or _whole_numbers(name, numbers)


def _time_of_integers(name: str, values: Sequence[int], *, of_table: bool) -> Guess | None:
    """A time or a date, if the name means one and at least half of the values are as large as today's would be."""
    micros, millis, days = (sum(value in one for value in values) for one in (_MICROS, _MILLIS, _DAYS))
    at_least = (len(values) + 1) // 2
    if _TIME_NAME.fullmatch(name) and micros >= at_least:
        return Guess("TIMESTAMP", f"{_of(micros, values)} are numbers of 15 or 16 digits: epoch micros", "micros")
    if _TIME_NAME.fullmatch(name) and millis >= at_least:
        return Guess("TIMESTAMP", f"{_of(millis, values)} are numbers of 12 or 13 digits: epoch millis", "millis")
    if of_table and _DATE_NAME.fullmatch(name) and days >= at_least:
        return Guess("DATE", f"{_of(days, values)} are small whole numbers: days since 1970, by the column's name")
    return None


def _whole_numbers(name: str, values: Sequence[int]) -> Guess:
    why = f"{_of(len(values), values)} are whole numbers"
    if _TIME_NAME.fullmatch(name) and all(value in _SECONDS for value in values):
        why += " of 10 digits: if they are epoch seconds, TIMESTAMP cannot read them"
    elif all(value in _MICROS for value in values) or all(value in _MILLIS for value in values):
        unit = "micros" if values[0] in _MICROS else "millis"
        why += f" that could be epoch {unit}: then TIMESTAMP with epoch_unit: {unit}"
    elif _MONEY_NAME.fullmatch(name):
        why += ": write DECIMAL(p,s) if they are amounts that may have a fraction"
    return Guess("BIGINT", why)


def _from_fractions(values: Sequence[Json], *, of_table: bool) -> Guess:
    numbers = [digits_of(value) for value in values if type(value) is Number]
    known = [number for number in numbers if number is not None]  # an exponent beyond all limits is of no number
    before = max((number.before_point for number in known), default=0)
    after = max((number.decimal_places for number in known), default=0)
    is_exact = len(known) == len(numbers) and after > 0 and max(before, 0) + after <= MAX_DIGITS
    exact = f", up to {_digits(after)} after the point" if is_exact else ""
    why = f"{_of(len(values), values)} are numbers{exact}: write DECIMAL(p,s) if they are exact amounts"
    return Guess("DOUBLE", why, decimals="double" if of_table else None)


def _from_texts(name: str, values: Sequence[str], *, of_table: bool) -> Guess:
    count = _of(len(values), values)
    for pattern, type_, what in ((_ISO_TIME, "TIMESTAMP", "ISO 8601 times"), (_ISO_DATE, "DATE", "ISO dates")):
        shaped = [value for value in values if pattern.fullmatch(value)]
        if shaped and all(pattern.fullmatch(value) or _BEYOND_ISO.fullmatch(value) for value in values):
            if any(_FINER_THAN_MICROS.match(value) for value in shaped):
                return Guess(
                    "STRING", f"{count} are {what}, some finer than microseconds: TIMESTAMP would refuse those"
                )
            return Guess(type_, f"{_of(len(shaped), values)} are {what}")
    if any("." in value for value in values) and all(_DECIMAL_TEXT.fullmatch(value) for value in values):
        after = max(len(value.partition(".")[2]) for value in values)
        why = f"text of numbers, up to {_digits(after)} after the point: write DECIMAL(p,s) if it is one"
        return Guess("STRING", why, decimals="string")
    if of_table and _could_be_decimals(name, values):
        return Guess(
            "STRING", "text that could be base64 of a decimal: write DECIMAL(p,s) if it is one", decimals="precise"
        )
    return Guess("STRING", f"{count} are text")


def _could_be_decimals(name: str, values: Sequence[str]) -> bool:
    """Whether all are base64 of integers, as Connect's Decimal writes them: two's complement without a byte too many.

    Words of 4 or 8 letters are base64 too; padding, or a name that means money, decides.
    """
    is_told = any(value.endswith("=") for value in values) or _MONEY_NAME.fullmatch(name) is not None
    numbers = map(from_base64, values)
    return is_told and all(number is not None and _is_minimal(number) for number in numbers)


def _is_minimal(number: bytes) -> bool:
    if len(number) < 2:
        return len(number) == 1
    return (number[0], number[1] >= 0x80) not in {(0x00, False), (0xFF, True)}


def _widest(decimals: Sequence[tuple[int, int]]) -> str | None:
    """The DECIMAL that holds all of these; None without any, and if it had more digits than Spark's."""
    scale = max((scale for _precision, scale in decimals), default=0)
    precision = max((precision - scale for precision, scale in decimals), default=0) + scale
    return f"DECIMAL({precision},{scale})" if 1 <= precision <= MAX_DIGITS else None


_BASE_TYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "BIGINT"),
    **dict.fromkeys(("float", "double"), "DOUBLE"),
    **{"boolean": "BOOLEAN", "string": "STRING"},
}
_NO_SPARK_TYPE = "{}: Spark has no such type, STRING keeps it as text"
# By the name that Debezium or Connect gives a schema, its package left away.
_NAMED: Mapping[str, Guess] = {
    "Date": Guess("DATE", "a Date in the events' schema"),
    "IsoDate": Guess("DATE", "an IsoDate in the events' schema"),
    "Timestamp": Guess("TIMESTAMP", "a Timestamp in the events' schema: epoch millis", "millis"),
    "MicroTimestamp": Guess("TIMESTAMP", "a MicroTimestamp in the events' schema: epoch micros", "micros"),
    "ZonedTimestamp": Guess(
        "TIMESTAMP", "a ZonedTimestamp in the events' schema: ISO 8601 text", source_type="timestamptz"
    ),
    "IsoTimestamp": Guess("TIMESTAMP", "an IsoTimestamp in the events' schema: ISO 8601 text"),
    "NanoTimestamp": Guess("TIMESTAMP", "a NanoTimestamp in the events' schema: epoch nanos", "nanos"),
    "VariableScaleDecimal": Guess(
        "STRING", "a decimal without a fixed scale: STRING keeps all its digits", source_type="numeric"
    ),
    "Time": Guess("STRING", _NO_SPARK_TYPE.format("a time of day"), "millis", source_type="time"),
    "NanoTime": Guess("STRING", _NO_SPARK_TYPE.format("a time of day"), "nanos", source_type="time"),
    **{
        name: Guess("STRING", _NO_SPARK_TYPE.format(what), source_type=source)
        for what, source, names in (
            ("a time of day", "time", ("MicroTime", "IsoTime")),
            ("a time of day", "timetz", ("ZonedTime",)),
            ("a duration", "interval", ("MicroDuration", "Interval")),
            ("a duration", None, ("NanoDuration",)),
        )
        for name in names
    },
}
_PACKAGES = ("org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data.")


def _from_schema(schema: FieldSchema) -> Guess:
    full_name, base = schema.name or "", schema.type or ""
    name = full_name.rsplit(".", 1)[-1] if full_name.startswith(_PACKAGES) else ""
    if name == "Decimal":
        return _from_decimal_schema(schema)
    if name in _NAMED:
        return _NAMED[name]
    if base == "bytes":
        return Guess("STRING", "bytes in the events' schema: STRING keeps their base64")
    if base in {"array", "map", "struct"}:
        return Guess("STRING", f"{base} in the events' schema: STRING keeps its JSON text")
    if base in _BASE_TYPES:
        return Guess(_BASE_TYPES[base], f"{base} in the events' schema")
    return Guess("STRING", "a type in the events' schema that is not known here: check")


def _from_decimal_schema(schema: FieldSchema) -> Guess:
    """`scale` is Connect's; `connect.decimal.precision` is what Debezium adds."""
    scale, precision = schema.scale, schema.precision
    if scale is None or not 0 <= scale <= (precision or MAX_DIGITS):
        return Guess("STRING", "a Decimal in the events' schema with a scale that fits no DECIMAL: base64 text")
    if precision is None:
        return Guess(
            f"DECIMAL({MAX_DIGITS},{scale})",
            "a Decimal in the events' schema, which states its scale alone: check the precision",
            decimals="precise",
        )
    if precision > MAX_DIGITS:
        why = f"a Decimal in the events' schema, of more than {MAX_DIGITS} digits: STRING keeps them all"
        return Guess("STRING", why, decimals="precise", source_type=f"numeric({precision},{scale})")
    return Guess(f"DECIMAL({precision},{scale})", "a Decimal in the events' schema", decimals="precise")
