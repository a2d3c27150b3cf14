"""Values as they travel in JSON events, turned into the types that the contract declares, exactly or not at all.

`typed` maps a field of an event to a typed column that is NULL when the value does not fit; `silver.misfits` says what
came then. Nothing here rounds, wraps or raises. What the value is says the field's Kafka Connect schema, where the
record had one; else the contract, which names the connector's modes.

What no type of Spark holds is declared STRING, with the database's type; it has one text whatever the connector's mode
(docs/types.md). A STRING without a source type is the text as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.column_types import ArrayType, DecimalType
from lakehouse.contracts import Column as Declared
from lakehouse.contracts import EpochUnit, Feed
from silver.decimals import (
    DECIMALS,
    as_declared,
    decimal,
    is_decimal,
    not_finite,
    number_text,
    plain_text,
    unsigned,
)
from silver.fields import NUMBER, let, parsed, unmarked
from silver.times import date, date_text, time_text, timestamp, timestamp_text, whole, zoned_time_text

if TYPE_CHECKING:
    from pyspark.sql import Column

_ONE_SCHEMA = "type: STRING, name: STRING, parameters: MAP<STRING,STRING>"
# Of a Kafka Connect schema of a field, what says how to read it.
SCHEMA = f"STRUCT<{_ONE_SCHEMA}, items: STRUCT<{_ONE_SCHEMA}>>"

_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data", "io.debezium.time", "io.debezium.data"
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
    "enum": (f"{_DATA}.Enum",),
    "set": (f"{_DATA}.EnumSet",),
    "year": (f"{_TIME}.Year",),
    "SMALLINT": (f"{_TIME}.Year",),
    "INT": (f"{_TIME}.Year",),
    "BIGINT": (f"{_TIME}.Year",),
    "numeric": DECIMALS,
    "unsigned_bigint": DECIMALS,
}
WHOLE = ("SMALLINT", "INT", "BIGINT")
_MOST_UNSIGNED = str(2**64 - 1)


def typed(field: Column, declared: Declared, feed: Feed, *, schema: Column | None = None) -> Column:
    """The field as the declared type; NULL when it is NULL or does not fit.

    `schema` is the field's `SCHEMA`, NULL in a record that has none; leave it out when no record has one.
    """
    if isinstance(declared.type, ArrayType):
        return _array(field, declared, feed, None if schema is None else schema["items"])
    return _value(field, declared, feed, schema)


def carries_precise_decimals(feed: Feed) -> bool:
    """Whether decimals come as base64 of the unscaled number (Debezium's decimal.handling.mode=precise)."""
    return _is_table(feed) and feed.decimal_handling_mode == "precise" and feed.decimal_format == "base64"


def _is_table(feed: Feed) -> bool:
    return feed.envelope == "table"


def meaning(declared: Declared) -> str:
    """What is read: the database's type where the contract says it, else the type."""
    return declared.source_name or declared.element_type.ddl


def _value(field: Column, declared: Declared, feed: Feed, schema: Column | None) -> Column:
    held = declared.element_type
    if isinstance(held, DecimalType):
        if declared.source_name == "unsigned_bigint":
            return _unsigned(field, feed, schema).try_cast(held.ddl.lower())
        return decimal(
            field,
            held,
            base64=carries_precise_decimals(feed),
            scale=_scale(declared, held),
            full_doubles=not _is_table(feed),
            schema=schema,
            bytes_are_numbers=feed.decimal_format == "numeric",
        )
    if held.name == "STRING":
        return _text(field, declared, feed, schema)
    if held.name == "TIMESTAMP":
        return _if_known(schema, declared, timestamp(field, epoch_unit=epoch_unit(declared, feed), schema=schema))
    if held.name == "BINARY":
        return _if_known(schema, declared, F.try_to_binary(*_binary(field, feed, schema)))
    return _if_known(schema, declared, _SIMPLE[held.name](field))


def _text(field: Column, declared: Declared, feed: Feed, schema: Column | None) -> Column:
    """The one text of the value, whatever the connector's mode."""
    source, unit = declared.source_name, epoch_unit(declared, feed)
    sizes = declared.source_type.sizes if declared.source_type else ()
    if not source:
        return unmarked(field)
    if source == "numeric":
        return _numeric(field, sizes, feed, schema)
    if source == "unsigned_bigint":
        return _unsigned(field, feed, schema)
    if source in ("timestamp", "timestamptz"):
        text = timestamp_text(field, zoned=source == "timestamptz", epoch_unit=unit, schema=schema)
    elif source == "time":
        text = time_text(field, epoch_unit=unit, schema=schema)
    elif source == "interval":
        text = _interval(field, feed, schema)
    elif source in ("bit", "varbit"):
        text = _bits(field, sizes)
    elif source == "bytes":
        # One encoding for all, in one line.
        text = F.translate(F.base64(F.try_to_binary(*_binary(field, feed, schema))), "\r\n", "")
    else:
        text = _TEXTS[source](field)
    return _if_known(schema, declared, text)


def _if_known(schema: Column | None, declared: Declared, value: Column) -> Column:
    """The value when its schema names no other meaning than the declared one."""
    if schema is None:
        return value
    return F.when(is_known(schema, declared), value)


def is_known(schema: Column, declared: Declared) -> Column:
    """Whether the schema names the declared meaning, or none."""
    names = _SEMANTIC_TYPES.get(meaning(declared), ())
    if meaning(declared) == "STRING":
        return F.lit(True)
    unnamed = schema["name"].isNull()
    if meaning(declared) in ("time", "timestamp", "TIMESTAMP", "interval", "BOOLEAN", *WHOLE):
        # Bytes without a name are none of these, however they look.
        unnamed = unnamed & F.coalesce(schema["type"] != "bytes", F.lit(True))
    return unnamed | F.coalesce(schema["name"].isin(*names), F.lit(False)) if names else unnamed


def epoch_unit(declared: Declared, feed: Feed) -> EpochUnit | None:
    """What a number counts that stands for a time; None: it stands for none."""
    if declared.epoch_unit is not None or not _is_table(feed):
        return declared.epoch_unit or "micros"
    if declared.source_name == "timestamptz":
        return None  # in every mode it is text
    by_mode: dict[str, EpochUnit | None] = {"connect": "millis", "nanoseconds": "nanos", "isostring": None}
    return by_mode.get(feed.time_precision_mode, "micros")


def _scale(declared: Declared, held: DecimalType) -> int:
    """Of an unscaled number, where the contract says it."""
    sizes = declared.source_type.sizes if declared.source_type else ()
    return sizes[1] if len(sizes) == 2 else held.scale


def _array(field: Column, declared: Declared, feed: Feed, items: Column | None) -> Column:
    """Every element as the declared type; NULL when one does not fit."""

    def elements(fields: Column) -> Column:
        values = F.transform(fields, lambda field: _value(field, declared, feed, items))
        return let(values, lambda values: F.when(_nulls(values) == _nulls(fields), values))

    return F.when(field.startswith("["), let(parsed(unmarked(field), "ARRAY<STRING>")["json"], elements))


def _nulls(values: Column) -> Column:
    return F.size(F.filter(values, lambda value: value.isNull()))


def _as_declared(base64: bool, scale: int | None, feed: Feed, schema: Column | None) -> tuple[Column, Column]:
    return as_declared(base64, scale, schema, bytes_are_numbers=feed.decimal_format == "numeric")


def _numeric(field: Column, sizes: tuple[int, ...], feed: Feed, schema: Column | None) -> Column:
    # A number without limits travels with its own scale: then there is none to read base64 with.
    by_contract = sizes[1] if sizes else None
    is_base64, scale = _as_declared(carries_precise_decimals(feed), by_contract, feed, schema)
    text = number_text(field, is_base64=is_base64, scale=scale)
    value = F.coalesce(let(text, lambda number: plain_text(number, sizes)), F.when(~is_base64, not_finite(field)))
    return value if schema is None else F.when(is_decimal(schema), value)


def _unsigned(field: Column, feed: Feed, schema: Column | None) -> Column:
    """The digits of a number of 64 bits without a sign."""
    by_contract = (
        _is_table(feed) and feed.bigint_unsigned_handling_mode == "precise" and feed.decimal_format == "base64"
    )
    is_base64, scale = _as_declared(by_contract, 0, feed, schema)

    def text(number: Column) -> Column:
        whole_text = let(plain_text(number, ()), unsigned)
        return let(whole_text, lambda digits: F.when(_is_unsigned(digits), digits))

    value = let(number_text(field, is_base64=is_base64, scale=scale), text)
    return value if schema is None else F.when(is_decimal(schema), value)


def _is_unsigned(digits: Column) -> Column:
    return digits.rlike(r"^[0-9]{1,20}\z") & (
        digits.try_cast("decimal(20,0)") <= F.lit(_MOST_UNSIGNED).cast("decimal(20,0)")
    )


def _binary(field: Column, feed: Feed, schema: Column | None) -> tuple[Column, Column]:
    """The field as text of an encoding, and its name."""
    mode = feed.binary_handling_mode if _is_table(feed) else "base64"
    if mode == "hex":
        text, encoding = F.when(field.rlike(r"^(?:[0-9a-fA-F]{2})*\z"), field), "hex"
    elif mode == "base64-url-safe":
        text, encoding = F.translate(F.when(~field.rlike("[+/]"), field), "-_", "+/"), "base64"
    else:
        text, encoding = field, "base64"
    if schema is None:
        return text, F.lit(encoding)
    # Connect's own bytes are base64, however the connector writes text; and without a mode for text there is none.
    is_bytes = schema["type"] == "bytes"
    if mode == "bytes":
        return F.when(is_bytes | schema["type"].isNull(), field), F.lit("base64")
    if encoding == "base64":
        return F.when(is_bytes, field).otherwise(text), F.lit("base64")
    return F.when(is_bytes, F.hex(F.try_to_binary(field, F.lit("base64")))).otherwise(text), F.lit("hex")


def _bits(field: Column, sizes: tuple[int, ...]) -> Column:
    """Bits as 0 and 1, the most significant first: of base64 of bytes, the least significant first.

    `sizes` holds how many there are; without it zeros in front are left out, which the connector leaves out too.
    """

    def text(digits: Column) -> Column:
        starts = F.sequence(F.length(digits) - 1, F.lit(1), F.lit(-2))
        byte = lambda start: F.lpad(F.conv(F.substring(digits, start, F.lit(2)), 16, 2), 8, "0")  # noqa: E731
        return F.when(digits == "", "").otherwise(F.array_join(F.transform(starts, byte), ""))

    bits = F.ltrim(let(F.hex(F.try_to_binary(field, F.lit("base64"))), text), F.lit("0"))
    if not sizes:
        return bits
    if sizes == (1,):
        return F.when(field.isin("true", "1"), "1").when(field.isin("false", "0"), "0")
    return let(bits, lambda found: F.when(F.length(found) <= sizes[0], F.lpad(found, sizes[0], "0")))


def _interval(field: Column, feed: Feed, schema: Column | None) -> Column:
    """As it comes: a number of microseconds, in which a month is an average one, or an ISO 8601 duration."""
    number = F.when(whole(field).isNotNull(), field)
    text = F.when(field.rlike(r"^-?P[-0-9YMWDTHS.]+\z"), unmarked(field))
    by_contract = text if _is_table(feed) and feed.interval_handling_mode == "string" else number
    if schema is None:
        return by_contract
    return (
        F.when(schema["name"] == f"{_TIME}.MicroDuration", number)
        .when(schema["name"] == f"{_TIME}.Interval", text)
        .otherwise(by_contract)
    )


def _uuid(field: Column) -> Column:
    return F.when(field.rlike(r"^(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"), F.lower(field))


def _double(field: Column) -> Column:
    """The double nearest to a number; NaN and the infinities only where they are written out."""
    text = unmarked(field)
    number = F.when(field.rlike(NUMBER), text.try_cast("double"))
    is_finite = F.abs(number) < F.lit(float("inf"))
    is_lost = (number == 0) & field.rlike(r"^[^eE]*[1-9]")
    return F.coalesce(F.when(is_finite & ~is_lost, number), _not_finite(text).try_cast("double"))


def _float(field: Column) -> Column:
    """A number that is a float of 32 bits: as short as it is written, or in full length as the double that it is."""

    def exact(double: Column) -> Column:
        near = double.try_cast("float")
        # Two ways to be the same number: in value, and in the shortest digits.
        same = (near.cast("double") == double) | (near.cast("string").try_cast("double") == double)
        return F.when(same & (F.abs(near) < F.lit(float("inf"))), near)

    return F.coalesce(let(_double(field), exact), _not_finite(unmarked(field)).try_cast("float"))


def _not_finite(text: Column) -> Column:
    return F.when(text.isin("NaN", "Infinity", "-Infinity"), text)


def _boolean(field: Column) -> Column:
    """true and false, and 1 and 0, which MySQL has in their place."""
    return F.when(field.isin("true", "1"), F.lit(True)).when(field.isin("false", "0"), F.lit(False))


_SIMPLE: Mapping[str, Callable[[Column], Column]] = {
    "BIGINT": whole,
    "BOOLEAN": _boolean,
    "DATE": date,
    "DOUBLE": _double,
    "FLOAT": _float,
    "INT": lambda field: whole(field).try_cast("int"),
    "SMALLINT": lambda field: whole(field).try_cast("smallint"),
}
_TEXTS: Mapping[str, Callable[[Column], Column]] = {
    "date": date_text,
    "timetz": zoned_time_text,
    "uuid": _uuid,
    "json": unmarked,
    "enum": unmarked,
    "set": unmarked,
}
