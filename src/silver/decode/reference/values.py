"""Fields of JSON events as values of the types that the contract declares, exactly or not at all.

`reader` makes of a column the function that reads its field: the value, None for null, or CONVERSION_ERROR;
`silver.decode.reasons` says what came then. Nothing here rounds or wraps. What the value is says the field's Kafka
Connect schema, where the record had one; else the contract, which names the connector's modes.

What no type of Spark holds is declared STRING, with the database's type; it has one text whatever the connector's mode
(docs/types.md). A STRING without a source type is the text as it came. Times are microseconds, dates days of the epoch.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import WHOLE_NUMBERS, ArrayType, DecimalType, SourceType
from lakehouse.contracts.tables import Column, EpochUnit
from silver.decode.reference.message import FieldSchema, Json, MalformedError, compact, parsed, text_of
from silver.decode.reference.numbers import (
    DECIMALS,
    NUMBER,
    Digits,
    as_decimal,
    digits_of,
    from_base64,
    is_base64,
    is_decimal,
    not_finite,
    number_of,
    plain_text,
    short_forms,
    shortest_double,
    unsigned,
    whole,
)
from silver.decode.reference.times import date, date_text, time_text, timestamp, timestamp_text, zoned_time_text


class _Error(Enum):
    CONVERSION_ERROR = "conversion error"


CONVERSION_ERROR = _Error.CONVERSION_ERROR
# What a reader returns: a value of the column's type in Python's types, None, or CONVERSION_ERROR.
Value = Any
Reader = Callable[[Json, FieldSchema | None], Value]

_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data", "io.debezium.time", "io.debezium.data"
_OWN_NAMES = ("org.apache.kafka.connect.", "io.debezium.")
_LOCAL_TIMESTAMPS = (
    *(f"{_TIME}.{name}" for name in ("Timestamp", "MicroTimestamp", "NanoTimestamp", "IsoTimestamp")),
    f"{_CONNECT}.Timestamp",
)
_DATES = (f"{_TIME}.Date", f"{_TIME}.IsoDate", f"{_CONNECT}.Date")
# The semantic types of Connect that each meaning may come as; one that is not here may come as none.
_SEMANTIC_TYPES: Mapping[str, tuple[str, ...]] = {
    "TIMESTAMP": (*_LOCAL_TIMESTAMPS, f"{_TIME}.ZonedTimestamp"),
    "timestamp": _LOCAL_TIMESTAMPS,
    "timestamptz": (f"{_TIME}.ZonedTimestamp",),
    "DATE": _DATES,
    "date": _DATES,
    "time": (*(f"{_TIME}.{name}" for name in ("Time", "MicroTime", "NanoTime", "IsoTime")), f"{_CONNECT}.Time"),
    "timetz": (f"{_TIME}.ZonedTime",),
    "interval": (f"{_TIME}.MicroDuration", f"{_TIME}.Interval"),
    "bit": (f"{_DATA}.Bits",),
    "varbit": (f"{_DATA}.Bits",),
    "uuid": (f"{_DATA}.Uuid",),
    "json": (f"{_DATA}.Json",),
    "map": (f"{_DATA}.Json",),  # hstore
    "enum": (f"{_DATA}.Enum",),
    "set": (f"{_DATA}.EnumSet",),
    "year": (f"{_TIME}.Year",),
    "SMALLINT": (f"{_TIME}.Year",),
    "INT": (f"{_TIME}.Year",),
    "BIGINT": (f"{_TIME}.Year",),
    "numeric": DECIMALS,
    "unsigned_bigint": DECIMALS,
}
BITS = {"SMALLINT": 15, "INT": 31, "BIGINT": 63}
# Bytes without a name are none of these, however they look.
_NEVER_BYTES = ("time", "timestamp", "TIMESTAMP", "interval", "BOOLEAN", *WHOLE_NUMBERS)
_IN_TEXT = ("date", "DATE", "time", "timestamp", "timestamptz", "TIMESTAMP")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ISO_DURATION = re.compile(r"-?P[-0-9YMWDTHS.]+")
_DATE_AND_TIME = re.compile("[+-]?[0-9]+-[0-9]{2}-[0-9]{2}([T ])")
_SAYS_SOME = re.compile(r"[^eE]*[1-9]")


def reader(declared: Column, feed: Feed) -> Reader:
    """The function that reads the fields of a column: the field and its schema, where the record has one."""
    of_one = _reader(declared, feed)
    return partial(_elements, of_one) if isinstance(declared.type, ArrayType) else of_one


def is_table(feed: Feed) -> bool:
    """Whether the connector's modes say how values are written; the payloads of an outbox its application writes."""
    return feed.envelope == "table"


def carries_precise_decimals(feed: Feed) -> bool:
    """Whether decimals come as base64 of the unscaled number (Debezium's decimal.handling.mode=precise)."""
    return is_table(feed) and feed.decimal_handling_mode == "precise" and feed.decimal_format == "base64"


def meaning(declared: Column) -> str:
    """What is read: the database's type where the contract says it, else the type."""
    return declared.source_name or declared.element_type.ddl


def is_known(schema: FieldSchema | None, declared: Column) -> bool:
    """Whether the schema names the declared meaning, or none, or is of a custom converter that writes text."""
    means = meaning(declared)
    if schema is None or means == "STRING":
        return True
    if schema.name is None:
        return schema.type is None or schema.type != "bytes" or means not in _NEVER_BYTES
    if schema.name in _SEMANTIC_TYPES.get(means, ()):
        return True
    return means in _IN_TEXT and schema.type == "string" and not schema.name.startswith(_OWN_NAMES)


def epoch_unit(declared: Column, feed: Feed) -> EpochUnit | None:
    """What a number counts that stands for a time; None: it stands for none."""
    if declared.epoch_unit is not None or not is_table(feed):
        return declared.epoch_unit or "micros"
    if declared.source_name == "timestamptz":
        return None  # in every mode it is text
    by_mode: dict[str, EpochUnit | None] = {"connect": "millis", "nanoseconds": "nanos", "isostring": None}
    return by_mode.get(feed.time_precision_mode, "micros")


def _reader(declared: Column, feed: Feed) -> Reader:
    held, source = declared.element_type, declared.source_name
    if source == "unsigned_bigint":
        return partial(_unsigned, feed, held if isinstance(held, DecimalType) else None)
    if isinstance(held, DecimalType):
        return partial(_decimal, feed, held, scale_of(declared, held))
    if held.name == "STRING":
        if not source:
            return _as_it_is
        if source == "numeric":
            return partial(_numeric, feed, _sizes(declared))
    return partial(_if_known, declared, _of_known(declared, feed))


def _of_known(declared: Column, feed: Feed) -> Reader:
    """The reader of a field whose schema names the declared meaning, or none."""
    held, unit = declared.element_type, epoch_unit(declared, feed)
    if held.ddl == "TIMESTAMP":
        of_text = _of_text_and_schema(lambda text, schema: timestamp(text, epoch_unit=unit, schema=schema))
        return partial(_in_format, feed, of_text)
    if held.ddl == "BINARY":
        return partial(_binary, feed)
    if held.ddl != "STRING":
        return _of_text(_SIMPLE[held.ddl])
    source = declared.source_name
    if source in ("timestamp", "timestamptz"):
        zoned = source == "timestamptz"
        of_text = _of_text_and_schema(
            lambda text, schema: timestamp_text(text, zoned=zoned, epoch_unit=unit, schema=schema)
        )
        return partial(_in_format, feed, of_text)
    if source == "time":
        return _of_text_and_schema(lambda text, schema: time_text(text, epoch_unit=unit, schema=schema))
    if source == "interval":
        return _of_text_and_schema(partial(_interval, feed))
    if source in ("bit", "varbit"):
        return partial(_bits, _sizes(declared))
    if source == "bytes":
        return partial(_base64, feed)
    if source == "map":
        return partial(_map, feed)
    return _of_text(_TEXTS[source])


def _of_text(read: Callable[[str], Value]) -> Reader:
    def of(field: Json, _schema: FieldSchema | None) -> Value:
        return _fitting(read(text_of(field) or ""))

    return of


def _of_text_and_schema(read: Callable[[str, FieldSchema | None], Value]) -> Reader:
    def of(field: Json, schema: FieldSchema | None) -> Value:
        return _fitting(read(text_of(field) or "", schema))

    return of


def is_of_other_format(text: str, feed: Feed) -> bool:
    """Whether a time is written in another way than the contract says."""
    found = _DATE_AND_TIME.match(text)
    return found is not None and found[1] == {"sql": "T", "iso-8601": " "}.get(feed.timestamp_format)


def _in_format(feed: Feed, read: Reader, field: Json, schema: FieldSchema | None) -> Value:
    return CONVERSION_ERROR if is_of_other_format(text_of(field) or "", feed) else read(field, schema)


def _fitting(value: Value) -> Value:
    return CONVERSION_ERROR if value is None else value


def _if_known(declared: Column, read: Reader, field: Json, schema: FieldSchema | None) -> Value:
    if field is None:
        return None
    if schema is None or (is_known(schema, declared) and not _is_foreign_number(field, schema, declared)):
        return read(field, schema)
    return CONVERSION_ERROR


def _is_foreign_number(field: Json, schema: FieldSchema, declared: Column) -> bool:
    """Whether a custom converter wrote a number for a date or time: what it counts is not known."""
    is_foreign = schema.name is not None and not schema.name.startswith(_OWN_NAMES)
    return is_foreign and meaning(declared) in _IN_TEXT and whole(text_of(field)) is not None


def _as_it_is(field: Json, _schema: FieldSchema | None) -> Value:
    return text_of(field)


def _elements(read: Reader, field: Json, schema: FieldSchema | None) -> Value:
    """Every element as the declared type. An array may come as the text of one."""
    if field is None:
        return None
    if isinstance(field, str) and field.startswith("["):
        try:
            field = parsed(field, name="")
        except MalformedError:
            return CONVERSION_ERROR
    if not isinstance(field, list):
        return CONVERSION_ERROR
    items = None if schema is None else schema.items
    values = [read(one, items) for one in field]
    return CONVERSION_ERROR if CONVERSION_ERROR in values else values


def _sizes(declared: Column) -> tuple[int, ...]:
    source: SourceType | None = declared.source_type
    return source.sizes if source else ()


def scale_of(declared: Column, held: DecimalType) -> int:
    """The scale of an unscaled number, as the contract says it."""
    sizes = _sizes(declared)
    return sizes[1] if len(sizes) == 2 else held.scale


def _number(
    feed: Feed, field: Json, schema: FieldSchema | None, *, encoded_by_contract: bool, scale: int | None
) -> Digits | None:
    """The decimal number of a field whose schema, or the contract, says how it is written."""
    bytes_are_numbers = feed.decimal_format == "numeric"
    encoded = is_base64(field, schema, by_contract=encoded_by_contract, bytes_are_numbers=bytes_are_numbers)
    if schema is not None and schema.scale is not None and not bytes_are_numbers:
        scale = schema.scale
    return number_of(field, is_encoded=encoded, scale=scale) if is_decimal(schema) else None


def _decimal(feed: Feed, held: DecimalType, scale: int, field: Json, schema: FieldSchema | None) -> Value:
    if field is None:
        return None
    number = _number(feed, field, schema, encoded_by_contract=carries_precise_decimals(feed), scale=scale)
    if number is None:
        return CONVERSION_ERROR
    value = as_decimal(number, held)
    if value is None and not is_table(feed):
        value = shortest_double(number, held)
    return _fitting(value)


def _numeric(feed: Feed, sizes: tuple[int, ...], field: Json, schema: FieldSchema | None) -> Value:
    if field is None:
        return None
    # A number without limits travels with its own scale: then there is none to read base64 with.
    scale, precise = sizes[1] if sizes else None, carries_precise_decimals(feed)
    number = _number(feed, field, schema, encoded_by_contract=precise, scale=scale)
    if number is not None:
        return _fitting(plain_text(number, sizes))
    bytes_are_numbers = feed.decimal_format == "numeric"
    encoded = is_base64(field, schema, by_contract=precise, bytes_are_numbers=bytes_are_numbers)
    return CONVERSION_ERROR if encoded or not is_decimal(schema) else _fitting(not_finite(text_of(field)))


def _unsigned(feed: Feed, held: DecimalType | None, field: Json, schema: FieldSchema | None) -> Value:
    """The digits of a number of 64 bits without a sign, or the number."""
    if field is None:
        return None
    is_precise = feed.bigint_unsigned_handling_mode == "precise" and feed.decimal_format == "base64"
    number = _number(feed, field, schema, encoded_by_contract=is_table(feed) and is_precise, scale=0)
    digits = unsigned(number) if number is not None else None
    if digits is None or held is None:
        return _fitting(digits)
    parts = digits_of(digits)
    return CONVERSION_ERROR if parts is None else _fitting(as_decimal(parts, held))


def _binary(feed: Feed, field: Json, schema: FieldSchema | None) -> Value:
    text, encoding = _encoded(field), feed.binary_handling_mode if is_table(feed) else "base64"
    kind = None if schema is None else schema.type
    if encoding == "bytes" and kind not in (None, "bytes"):
        return CONVERSION_ERROR  # Connect's bytes are base64; of a mode for text nothing is said
    if kind == "bytes" or encoding in ("bytes", "base64"):
        return _fitting(from_base64(text))
    if encoding == "hex":
        return _from_hex(text)
    return CONVERSION_ERROR if "+" in text or "/" in text else _fitting(from_base64(_standard(text)))


def _encoded(field: Json) -> str:
    """Text of an encoding: a number is none, whatever its digits."""
    return field if type(field) is str else "?"


def _standard(url_safe: str) -> str:
    return url_safe.translate({ord("-"): "+", ord("_"): "/"})


def _from_hex(text: str) -> Value:
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return CONVERSION_ERROR


def _base64(feed: Feed, field: Json, schema: FieldSchema | None) -> Value:
    """One encoding for all, in one line."""
    found = _binary(feed, field, schema)
    return found if found is CONVERSION_ERROR else base64.b64encode(found).decode()


def pairs_of(field: Json) -> list[Any] | None:
    """The entries of a map, keys with values; None of anything else.

    Kafka Connect writes a map whose keys are not all text as pairs. It may be the text of either.
    """
    if type(field) is str:
        try:
            field = parsed(field, name="")
        except MalformedError:
            return None
    if isinstance(field, dict):
        return list(field.items())
    is_of_pairs = isinstance(field, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in field)
    return field if is_of_pairs else None


def _map(feed: Feed, field: Json, _schema: FieldSchema | None) -> Value:
    """A map as a JSON object."""
    pairs = pairs_of(field)
    if pairs is None or (feed.map_null_key == "fail" and any(key is None for key, _value in pairs)):
        return CONVERSION_ERROR
    literal = feed.map_null_key_literal if feed.map_null_key == "literal" else None
    named = [(literal if key is None else text_of(key), value) for key, value in pairs]
    return compact({key: value for key, value in named if key is not None})


def _bits(sizes: tuple[int, ...], field: Json, _schema: FieldSchema | None) -> Value:
    """Bits as 0 and 1, the most significant first: of base64 of bytes, the least significant first.

    `sizes` holds how many there are; without it zeros in front are left out, which the connector leaves out too.
    """
    text = text_of(field) or ""
    if sizes == (1,):
        return {"true": "1", "1": "1", "false": "0", "0": "0"}.get(text, CONVERSION_ERROR)
    found = from_base64(_encoded(field))
    if found is None:
        return CONVERSION_ERROR
    number = int.from_bytes(found, "little")
    bits = f"{number:b}" if number else ""
    if not sizes:
        return bits
    return bits.rjust(sizes[0], "0") if len(bits) <= sizes[0] else CONVERSION_ERROR


def _interval(feed: Feed, text: str, schema: FieldSchema | None) -> str | None:
    """As it comes: a number of microseconds, in which a month is an average one, or an ISO 8601 duration."""
    is_text = is_table(feed) and feed.interval_handling_mode == "string"
    if schema is not None and schema.name is not None:
        is_text = schema.name == f"{_TIME}.Interval"
    if is_text:
        return text if _ISO_DURATION.fullmatch(text) else None
    return text if whole(text) is not None else None


def _whole(bits: int, text: str) -> int | None:
    number = whole(text)
    return number if number is not None and -(1 << bits) <= number < 1 << bits else None


def _double(text: str) -> float | None:
    """The double nearest to a number; NaN and the infinities only where they are written out."""
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    if not NUMBER.fullmatch(text):
        return None
    number = float(text)
    is_lost = number == 0 and _SAYS_SOME.match(text)
    return None if math.isinf(number) or is_lost else number


def _float(text: str) -> float | None:
    """A number that is a float of 32 bits: as short as it is written, or in full length as the double that it is."""
    double = _double(text)
    if double is None or not math.isfinite(double):
        return double
    near: float = struct.unpack("f", struct.pack("f", double))[0]
    return near if near == double or Decimal(text) in map(Decimal, short_forms(near)) else None


def _boolean(text: str) -> bool | None:
    """true and false, and 1 and 0, which MySQL has in their place."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text)


def _uuid(text: str) -> str | None:
    return text.lower() if _UUID.fullmatch(text) else None


def _same(text: str) -> str:
    return text


_SIMPLE: Mapping[str, Callable[[str], Value]] = {
    "BOOLEAN": _boolean,
    "DATE": date,
    "DOUBLE": _double,
    "FLOAT": _float,
    **{name: partial(_whole, bits) for name, bits in BITS.items()},
}
_TEXTS: Mapping[str, Callable[[str], Value]] = {
    "date": date_text,
    "timetz": zoned_time_text,
    "uuid": _uuid,
    **dict.fromkeys(("json", "enum", "set"), _same),
}
