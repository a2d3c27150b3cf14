"""Decimal numbers in every form that a connector writes them in: exactly, or not at all."""

from __future__ import annotations

import binascii
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import NamedTuple

from lakehouse.contracts.parts.column_types import DecimalType
from silver.decode.reference.message import FieldSchema, Json, Number, text_of

# A number has so many digits before and behind the point at most: in bytes of an unscaled number, these.
MAX_LENGTH, MAX_BYTES = 400, 167
DECIMALS = ("org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal")
# Sign, whole part, fraction, exponent.
NUMBER = re.compile(r"(-?)([0-9]++)(?:\.([0-9]++))?+(?:[eE]([+-]?[0-9]{1,9}+))?+")
_WHOLE = re.compile(r"-?[0-9]+")

_EXACT = Context(prec=2 * MAX_LENGTH)
_NOT_FINITE = {
    **dict.fromkeys(("NaN", "NAN"), "NaN"),
    **dict.fromkeys(("Infinity", "POSITIVE_INFINITY"), "Infinity"),
    **dict.fromkeys(("-Infinity", "NEGATIVE_INFINITY"), "-Infinity"),
}


class Digits(NamedTuple):
    """A decimal number: its digits without zeros at either end (of zero there are none), and the last one's power."""

    sign: str
    digits: str
    unit: int

    @property
    def decimal_places(self) -> int:
        """How many digits stand behind the point."""
        return -self.unit

    @property
    def before_point(self) -> int:
        """How many digits stand before the point."""
        return len(self.digits) + self.unit


def whole(text: str | None) -> int | None:
    """The text as a whole number of 64 bits; None when it is none."""
    if text is None or len(text) > MAX_LENGTH or not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def from_base64(text: str) -> bytes | None:
    """The bytes of base64 with its padding; None of anything else."""
    if len(text) % 4 or text.endswith("==="):  # Python lets too much padding pass
        return None
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return None


def unscaled(text: str) -> int | None:
    """Connect's Decimal: base64 of the unscaled number, big-endian two's complement, of up to `MAX_BYTES` bytes."""
    found = from_base64(text)
    return int.from_bytes(found, "big", signed=True) if found and len(found) <= MAX_BYTES else None


def is_base64(field: Json, schema: FieldSchema | None, *, by_contract: bool, bytes_are_numbers: bool) -> bool:
    """Whether a text is base64 of an unscaled number: as its schema says, if it has one.

    `bytes_are_numbers`: what the schema calls bytes, the converter writes as a number.
    """
    if isinstance(field, Number):
        return False
    if schema is None or schema.type is None or bytes_are_numbers:
        return by_contract
    return schema.type == "bytes"


def is_decimal(schema: FieldSchema | None) -> bool:
    """Whether a field of that schema can be a decimal number: nothing is known of it, or it is said to be a number."""
    if schema is None:
        return True
    if schema.name is None:
        return schema.type not in ("bytes", "struct", "array")
    return schema.name in DECIMALS


def number_of(field: Json, *, is_encoded: bool, scale: int | None) -> Digits | None:
    """The decimal number that a field is: a number, or text that is written like one; an object of scale and value;
    or (`is_encoded`) base64 of an unscaled number of that scale. None of anything else.
    """
    if isinstance(field, dict):
        value, own = text_of(field.get("value")), text_of(field.get("scale"))
        scale = int(own) if own is not None and re.fullmatch("-?[0-9]{1,9}", own) else None
        return _encoded(value, scale)
    text = text_of(field)
    if is_encoded:
        return _encoded(text, scale)
    return digits_of(text) if text is not None else None


def _encoded(text: str | None, scale: int | None) -> Digits | None:
    if text is None or scale is None or not -MAX_LENGTH <= scale <= MAX_LENGTH:
        return None
    number = unscaled(text)
    if number is None:
        return None
    digits = str(abs(number))
    kept = digits.rstrip("0")
    return Digits("-" if number < 0 else "", kept.lstrip("0"), len(digits) - len(kept) - scale)


def digits_of(text: str) -> Digits | None:
    """A JSON number, or text that is written like one."""
    found = NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, before, behind, exponent = found.groups(default="")
    digits = before + behind
    kept = digits.rstrip("0")
    unit = int(exponent or 0) - len(behind) + len(digits) - len(kept)
    return Digits(sign, kept.lstrip("0"), unit)


def as_decimal(number: Digits, declared: DecimalType) -> Decimal | None:
    """The number in the declared type; None when it does not fit."""
    if not number.digits:
        return Decimal(0).scaleb(-declared.scale)
    if number.decimal_places > declared.scale or number.before_point > declared.precision - declared.scale:
        return None
    return _decimal(number).quantize(Decimal(1).scaleb(-declared.scale), context=_EXACT)


def _decimal(number: Digits) -> Decimal:
    return Decimal(f"{number.sign}{number.digits}E{number.unit}")


def shortest_double(number: Digits, declared: DecimalType) -> Decimal | None:
    """The shortest number of the declared type that is the same double as this one, which is a double in full length.

    MySQL writes some numbers of JSON columns with all their binary digits (99999999.98999999463558197021484375 is the
    double 99999999.99).
    """
    if len(number.digits) <= 15 or not 1 <= number.decimal_places <= MAX_LENGTH or number.before_point > MAX_LENGTH:
        return None
    exact = _decimal(number)
    double = float(exact)
    if Decimal(double) != exact:
        return None
    near = Decimal(repr(double)).quantize(Decimal(1).scaleb(-declared.scale), ROUND_HALF_UP, context=_EXACT)
    return near if float(near) == double and near.adjusted() < declared.precision - declared.scale else None


def plain_text(number: Digits, sizes: tuple[int, ...]) -> str | None:
    """A number written without an exponent: with as many digits behind the point as `sizes`, the database's precision
    and scale, say; without them, with no zero at its end. None when it does not fit.
    """
    if not number.digits:
        return f"0.{'0' * sizes[1]}" if sizes and sizes[1] else "0"
    limit, scale = (sizes[0] - sizes[1], sizes[1]) if sizes else (MAX_LENGTH, MAX_LENGTH)
    if number.decimal_places > scale or number.before_point > limit:
        return None
    decimal_places = max(number.decimal_places, 0)
    digits = (number.digits + "0" * max(number.unit, 0)).rjust(decimal_places + 1, "0")
    before, behind = digits[: len(digits) - decimal_places], digits[len(digits) - decimal_places :]
    if sizes:
        behind = behind.ljust(sizes[1], "0")
    return f"{number.sign}{before}.{behind}" if behind else f"{number.sign}{before}"


def not_finite(text: str | None) -> str | None:
    """The name of a value that PostgreSQL's numeric has beside its numbers, as the connector writes it; else None."""
    return _NOT_FINITE.get(text or "")


def unsigned(number: Digits) -> str | None:
    """The digits of a number of 64 bits without a sign, which may come with its highest bit taken for one."""
    text = plain_text(number, ())
    if text is None or "." in text or len(text) > 20:
        return None
    value = int(text)
    if -(2**63) <= value < 0:
        value += 2**64
    return str(value) if 0 <= value < 2**64 else None


def shortest_single(single: float) -> float:
    """The number of the fewest digits that is this float of 32 bits: what Java writes for it."""
    return next(float(number) for number in short_forms(single))


def short_forms(single: float) -> list[str]:
    """The numbers of few digits that are this float of 32 bits and no other, the shortest first."""
    numbers = [f"{single:.{digits}g}" for digits in range(1, 10)]
    return [number for number in numbers if struct.unpack("f", struct.pack("f", float(number)))[0] == single]
