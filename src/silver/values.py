"""Values as they travel in JSON events, turned into the types that the contract declares, exactly or not at all.

Every function maps the field of a parsed event to a typed column that is NULL when the value does not fit; whoever
calls tells "does not fit" from "was NULL" by the field. Nothing here rounds, wraps or raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.column_types import DecimalType
from lakehouse.contracts import Column as Declared
from lakehouse.contracts import Feed

if TYPE_CHECKING:
    from pyspark.sql import Column

# In seconds from the epoch.
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800

# How JSON is read. The locale is one without a comma in its numbers: in others, Spark reads the text "1,50" as 150.
JSON_OPTIONS = {"locale": "de-CH"}

# 2**64: the weight of the upper of two 64-bit halves.
_UPPER_HALF = "18446744073709551616"


def json_type(declared: Declared, *, precise: bool) -> str:
    """The type to read the JSON field as: text, except numbers with a fraction, which text would pass through a double.

    Such a decimal keeps every integer digit its column can have, and all of the 38 digits left for the fraction.
    """
    if isinstance(declared.type, DecimalType) and not precise:
        return f"DECIMAL(38,{38 - (declared.type.precision - declared.type.scale)})"
    return "STRING"


def typed(field: Column, declared: Declared, *, precise: bool) -> Column:
    """The field as the declared type; NULL when it is NULL or does not fit."""
    if isinstance(declared.type, DecimalType):
        return decimal_from_base64(field, declared.type) if precise else decimal_from_number(field, declared.type)
    if declared.type.name == "BIGINT":
        return F.when(field.rlike(r"^-?[0-9]+$"), field.try_cast("bigint"))
    if declared.type.name == "TIMESTAMP":
        return timestamp(field, epoch_unit=declared.epoch_unit)
    return field


def carries_precise_decimals(feed: Feed) -> bool:
    """Whether decimals come as base64 of the unscaled number (Debezium's decimal.handling.mode=precise)."""
    return feed.envelope == "table" and feed.decimal_handling_mode == "precise"


def decimal_from_base64(field: Column, declared: DecimalType) -> Column:
    """Connect's Decimal: base64 of the unscaled value, big-endian two's complement; the scale is the declared one."""
    digits = F.hex(F.try_to_binary(field, F.lit("base64")))
    negative = F.substring(digits, 1, 1) >= "8"
    # -n is the complement of n, plus one: so the digits of a magnitude need no sign.
    complement = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    magnitude = F.lpad(F.when(negative, complement).otherwise(digits), 32, "0")
    upper = F.conv(F.substring(magnitude, 1, 16), 16, 10).try_cast("decimal(20,0)")
    lower = F.conv(F.substring(magnitude, 17, 16), 16, 10).try_cast("decimal(20,0)")
    unsigned = F.try_add(F.try_multiply(upper, F.lit(_UPPER_HALF).cast("decimal(20,0)")), lower)
    size = F.when(negative, F.try_add(unsigned, F.lit(1).cast("decimal(1,0)"))).otherwise(unsigned)
    # The sign is put in front of the text: negating a decimal in Spark rounds it to 34 digits.
    sign = F.when(negative, "-").otherwise(F.lit(""))
    text = F.concat(sign, size.cast("string"), F.lit(f"E-{declared.scale}"))
    fits = F.length(digits).between(2, 32)
    return F.when(fits, text.try_cast(declared.ddl.lower()))


def decimal_from_number(field: Column, declared: DecimalType) -> Column:
    """A JSON number or text. One with more digits than the column has is taken only when it is a double in full length.

    MySQL writes a JSON number that is a DOUBLE with all its binary digits (99999999.98999999463558... is the double
    99999999.99): there the shortest number that is the same double is the value. Numbers that have the same nearest
    double are not told apart.
    """
    exact = field.try_cast(declared.ddl.lower())
    shortest = field.cast("double").cast("string").try_cast(declared.ddl.lower())
    return F.when(exact == field, exact).when(shortest.cast("double") == field.cast("double"), shortest)


def timestamp(field: Column, *, epoch_unit: str) -> Column:
    """An integer counted from the epoch in `epoch_unit`, or ISO 8601 text; without a zone it is UTC.

    Years 1 to 9999: what lies outside is BC, or how PostgreSQL's ±infinity travels, and fits no timestamp here. Text
    finer than microseconds does not fit either.
    """
    number = F.when(field.rlike(r"^-?[0-9]+$"), field.try_cast("bigint"))
    is_iso = field.rlike(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]") & ~field.rlike(r"\.[0-9]{6}0*[1-9]")
    text = F.when(is_iso, field.try_cast("timestamp"))
    return F.coalesce(instant(number, epoch_unit=epoch_unit), instant(F.unix_micros(text), epoch_unit="micros"))


def instant(number: Column, *, epoch_unit: str) -> Column:
    """The time that many `epoch_unit` after the epoch; NULL outside of years 1 to 9999."""
    per_second = 1_000_000 if epoch_unit == "micros" else 1_000
    within = F.when(number.between(YEAR_1 * per_second, YEAR_10000 * per_second - 1), number)
    return F.timestamp_micros(within) if epoch_unit == "micros" else F.timestamp_millis(within)
