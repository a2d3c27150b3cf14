"""What is said of a field that does not fit its column: what came and what was expected, never the value itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.column_types import ArrayType, DecimalType
from lakehouse.contracts import Column as Declared
from lakehouse.contracts import Feed
from silver.decimals import digits_of, is_decimal
from silver.fields import MARK, NUMBER, let, unmarked
from silver.values import WHOLE, carries_precise_decimals, epoch_unit, is_known, meaning

if TYPE_CHECKING:
    from pyspark.sql import Column

# What a text should have been.
_EXPECTED_TEXT: Mapping[str, str] = {
    "TIMESTAMP": "ISO 8601 time",
    "timestamp": "ISO 8601 time",
    "timestamptz": "ISO 8601 time",
    "DATE": "ISO 8601 date",
    "date": "ISO 8601 date",
    "time": "time of day",
    "timetz": "time of day with a zone",
    "interval": "ISO 8601 duration",
    "bit": "base64 of so many bits",
    "varbit": "base64",
    "bytes": "binary value in the declared mode",
    "BINARY": "binary value in the declared mode",
    "uuid": "UUID",
    "BOOLEAN": "true or false",
    **dict.fromkeys((*WHOLE, "year", "unsigned_bigint"), "whole number"),
}


def misfit(
    field: Column, value: Column, declared: Declared, feed: Feed, *, name: str, schema: Column | None = None
) -> Column:
    """The sentence, when the field is not NULL and its `typed` value is; else NULL."""
    expected = declared.type.ddl + (f" of {declared.source_type.text}" if declared.source_type else "")
    came = _came(field, declared, feed, schema)
    sentence = F.concat(F.lit(f"{name}: came "), came, F.lit(f", expected {expected}."))
    return F.when(field.isNotNull() & value.isNull(), sentence)


def _came(field: Column, declared: Declared, feed: Feed, schema: Column | None) -> Column:
    """What came in place of the declared type, in words."""
    plain = _kind(field, declared, feed)
    if isinstance(declared.type, ArrayType):
        return F.when(field.startswith("["), "an array with an element that does not fit").otherwise(plain)
    if schema is None:
        return plain
    # A name may be anything: no more of it than names have.
    name = F.left(F.regexp_replace(schema["name"], r"[^A-Za-z0-9._$-]", "?"), F.lit(100))
    numbers = isinstance(declared.element_type, DecimalType) or declared.source_name == "numeric"
    known = is_decimal(schema) if numbers else is_known(schema, declared)
    scale = F.coalesce(F.concat(F.lit(" of scale "), schema["parameters"]["scale"].try_cast("int")), F.lit(""))
    told = F.concat(name, scale if numbers else F.lit(""))
    nameless = F.concat(F.lit("Connect's "), F.regexp_replace(schema["type"], "[^a-z0-9]", "?"))
    return (
        F.when(~known, F.coalesce(name, nameless))
        .when(schema["name"].isNotNull(), F.concat(told, F.lit(" that does not fit")))
        .otherwise(plain)
    )


def _kind(field: Column, declared: Declared, feed: Feed) -> Column:
    """What the field is as JSON, and why it does not fit."""
    held = declared.element_type
    is_number = field.rlike(NUMBER)
    special = F.when(unmarked(field).isin("NaN", "NAN", "Infinity", "-Infinity"), "NaN or infinity")
    if isinstance(held, DecimalType) and declared.source_name != "unsigned_bigint":
        return F.coalesce(special, _kind_of_decimal(field, held, feed))
    json_kind = (
        F.when(field.startswith("{"), "an object")
        .when(field.startswith("["), "an array")
        .when(field.isin("true", "false"), "true or false")
    )
    told = meaning(declared)
    number, fraction = "a number out of its range", "a number with a fraction or an exponent"
    text = f"text that is no {_EXPECTED_TEXT.get(told, 'number')}"
    if told in ("DOUBLE", "FLOAT", "numeric"):
        fraction = number
    if told == "TIMESTAMP" or declared.element_type.ddl == "TIMESTAMP":
        unit = epoch_unit(declared, feed)
        number = "a number outside of years 1 to 9999" if unit else "a number in place of ISO 8601 text"
        if unit == "nanos":
            number = "a number of nanoseconds outside of years 1 to 9999, or with a part below microseconds"
        is_infinite = field.isin("infinity", "-infinity")
        special = F.when(is_infinite, "infinity").when(
            field.rlike(r"^[0-9]{4}-.*\.[0-9]{6}0*[1-9]"), "a time finer than microseconds"
        )
    elif told == "DATE":
        number = "a number of days outside of years 1 to 9999"
        special = F.when(field.isin("infinity", "-infinity"), "infinity")
    return F.coalesce(
        json_kind,
        special,
        F.when(is_number, F.when(field.rlike("[.eE]"), fraction).otherwise(F.lit(number))).otherwise(F.lit(text)),
    )


def _kind_of_decimal(field: Column, held: DecimalType, feed: Feed) -> Column:
    def number(parts: Column) -> Column:
        places = -parts["unit"]
        before = F.greatest(F.length(parts["digits"]) + parts["unit"], F.lit(0))
        return F.when(places > held.scale, _count(places, "decimal place")).otherwise(
            _count(before, "digit", " before the point")
        )

    is_number = field.rlike(NUMBER)
    if carries_precise_decimals(feed):
        is_number = is_number & field.startswith(MARK)
        is_base64 = F.try_to_binary(field, F.lit("base64")).isNotNull() & (field != "")
        other = F.when(is_base64, "base64 of a number with too many digits").otherwise(
            F.lit("text that is no base64 of a number")
        )
    else:
        other = F.when(field.isin("true", "false"), "true or false").otherwise(F.lit("text that is no number"))
    scale = F.get_json_object(field, "$.scale").try_cast("int")
    return (
        F.when(scale > held.scale, _count(scale, "decimal place"))
        .when(field.startswith("{"), "an object with no number that fits")
        .when(field.startswith("["), "an array")
        .when(is_number, let(digits_of(field), number))
        .otherwise(other)
    )


def _count(number: Column, what: str, where: str = "") -> Column:
    plural = F.when(number == 1, what).otherwise(F.lit(f"{what}s"))
    return F.concat(F.lit("a number with "), number.cast("string"), F.lit(" "), plural, F.lit(where))
