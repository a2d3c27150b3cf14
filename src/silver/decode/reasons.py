"""What is said of a field that does not fit its column: what came and what was expected, never the value itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lakehouse.column_types import ArrayType, DecimalType
from lakehouse.contracts import Column, Feed
from silver.decode.message import FieldSchema, Json, Number, text_of
from silver.decode.numbers import NUMBER, digits_of, from_base64, is_decimal
from silver.decode.values import WHOLE, carries_precise_decimals, epoch_unit, is_known, meaning

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
_NOT_NUMBERS = ("NaN", "NAN", "Infinity", "-Infinity")
_FINER_THAN_MICROS = re.compile(r"[0-9]{4}-.*\.[0-9]{6}0*[1-9]")


def conversion_error(field: Json, declared: Column, feed: Feed, *, name: str, schema: FieldSchema | None = None) -> str:
    """The sentence about a field of column `name` that its reader does not take."""
    expected = declared.type.ddl + (f" of {declared.source_type.text}" if declared.source_type else "")
    return f"{name}: came {_came(field, declared, feed, schema)}, expected {expected}."


def _came(field: Json, declared: Column, feed: Feed, schema: FieldSchema | None) -> str:
    """What came in place of the declared type, in words."""
    text = text_of(field) or ""
    if isinstance(declared.type, ArrayType):
        return "an array with an element that does not fit" if text.startswith("[") else _kind(field, declared, feed)
    if schema is None:
        return _kind(field, declared, feed)
    numbers = isinstance(declared.element_type, DecimalType) or declared.source_name == "numeric"
    # A name may be anything: no more of it than names have.
    name = None if schema.name is None else re.sub(r"[^A-Za-z0-9._$-]", "?", schema.name)[:100]
    if not (is_decimal(schema) if numbers else is_known(schema, declared)):
        return name if name is not None else f"Connect's {re.sub('[^a-z0-9]', '?', schema.type or '')}"
    if name is None:
        return _kind(field, declared, feed)
    scale = f" of scale {schema.scale}" if numbers and schema.scale is not None else ""
    return f"{name}{scale} that does not fit"


def _kind(field: Json, declared: Column, feed: Feed) -> str:
    """What the field is as JSON, and why it does not fit."""
    text, means = text_of(field) or "", meaning(declared)
    held = declared.element_type
    is_of_decimals = isinstance(held, DecimalType) and means != "unsigned_bigint"
    is_of_times = means == "DATE" or "TIMESTAMP" in (means, held.ddl)
    if (is_of_decimals or not is_of_times) and text in _NOT_NUMBERS:
        return "NaN or infinity"
    if isinstance(held, DecimalType) and is_of_decimals:
        return _kind_of_decimal(field, text, held, feed)
    if text.startswith(("{", "[")):
        return "an object" if text.startswith("{") else "an array"
    if text in ("true", "false"):
        return "true or false"
    if means == "TIMESTAMP" or held.ddl == "TIMESTAMP":
        return _kind_of_timestamp(text, declared, feed)
    if means == "DATE" and text in ("infinity", "-infinity"):
        return "infinity"
    if not NUMBER.fullmatch(text):
        return f"text that is no {_EXPECTED_TEXT.get(means, 'number')}"
    if means == "DATE" and not re.search("[.eE]", text):
        return "a number of days outside of years 1 to 9999"
    is_fraction = re.search("[.eE]", text) and means not in ("DOUBLE", "FLOAT", "numeric")
    return "a number with a fraction or an exponent" if is_fraction else "a number out of its range"


def _kind_of_timestamp(text: str, declared: Column, feed: Feed) -> str:
    if text in ("infinity", "-infinity"):
        return "infinity"
    if _FINER_THAN_MICROS.match(text):
        return "a time finer than microseconds"
    if not NUMBER.fullmatch(text):
        return f"text that is no {_EXPECTED_TEXT.get(meaning(declared), 'number')}"
    if re.search("[.eE]", text):
        return "a number with a fraction or an exponent"
    unit = epoch_unit(declared, feed)
    if unit == "nanos":
        return "a number of nanoseconds outside of years 1 to 9999, or with a part below microseconds"
    return "a number outside of years 1 to 9999" if unit else "a number in place of ISO 8601 text"


def _kind_of_decimal(field: Json, text: str, held: DecimalType, feed: Feed) -> str:
    if isinstance(field, dict):
        scale = text_of(field.get("scale"))
        is_finer = scale is not None and re.fullmatch("[0-9]{1,9}", scale) and int(scale) > held.scale
        return _count(int(scale or 0), "decimal place") if is_finer else "an object with no number that fits"
    if text.startswith("["):
        return "an array"
    precise = carries_precise_decimals(feed)
    number = digits_of(text) if not precise or isinstance(field, Number) else None
    if number is not None:
        if number.places > held.scale:
            return _count(number.places, "decimal place")
        return _count(max(number.before_point, 0), "digit", " before the point")
    if precise:
        is_encoded = text and from_base64(text) is not None
        return "base64 of a number with too many digits" if is_encoded else "text that is no base64 of a number"
    return "true or false" if text in ("true", "false") else "text that is no number"


def _count(number: int, what: str, where: str = "") -> str:
    return f"a number with {number} {what}{'' if number == 1 else 's'}{where}"
