"""Decimal numbers in every form that a connector writes them in: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.column_types import DecimalType
from silver.fields import MARK, NUMBER, let

if TYPE_CHECKING:
    from pyspark.sql import Column

# Of a double in full length: so many digits behind the point; all doubles from 2**-48 on have no more.
MOST_PLACES = 100
_PIECE, _WIDTH = 18, 72
_POWERS_OF_FIVE = "".join(f"{5**n:0{_WIDTH}}" for n in range(MOST_PLACES + 1))

# A number is told in so many digits before and behind the point at most: in bytes of an unscaled number, these.
MOST_LENGTH, MOST_BYTES = 400, 167
# Of the long way from bytes to digits: 28 bits are taken at a time, and nine decimal digits kept together.
_HEX_PIECE, _GROUP = 7, 9
DECIMALS = ("org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal")

# 2**64: the weight of the upper of two 64-bit halves.
_UPPER_HALF = "18446744073709551616"
_UPPER_BIT = "9223372036854775808"


def decimal(
    field: Column,
    declared: DecimalType,
    *,
    base64: bool,
    scale: int,
    full_doubles: bool,
    schema: Column | None,
    bytes_are_numbers: bool = False,
) -> Column:
    """The field as the declared type.

    Without a schema the contract says whether text is base64 of an unscaled number, and of which scale; with one, the
    schema does. A number with a mark and an object of scale and value show themselves what they are.
    """
    is_base64, given_scale = as_declared(base64, scale, schema, bytes_are_numbers=bytes_are_numbers)
    number = let(
        number_text(field, is_base64=is_base64, scale=given_scale),
        lambda text: _exact(text, declared, full_doubles=full_doubles),
    )
    if schema is None:
        if not base64:
            return F.coalesce(_plain(field, declared), number)
        if scale == declared.scale:
            shows_itself = field.startswith(MARK) | field.startswith("{")
            return F.coalesce(decimal_from_base64(field, declared), F.when(shows_itself, number))
        return number
    quick = is_base64 & (given_scale == declared.scale)
    value = F.when(quick, decimal_from_base64(field, declared)).when(~is_base64, _plain(field, declared))
    return F.when(is_decimal(schema), F.coalesce(value, number))


def as_declared(
    base64: bool, scale: int | None, schema: Column | None, *, bytes_are_numbers: bool
) -> tuple[Column, Column]:
    """Whether the field is base64 of an unscaled number, and the scale of that: as its schema says, if it has one.

    `bytes_are_numbers`: what the schema calls bytes, the converter writes as a number.
    """
    if schema is None or bytes_are_numbers:
        return F.lit(base64), F.lit(scale).cast("int")
    is_base64 = F.when(schema["type"].isNull(), F.lit(base64)).otherwise(schema["type"] == "bytes")
    return is_base64, F.coalesce(schema["parameters"]["scale"].try_cast("int"), F.lit(scale).cast("int"))


def is_decimal(schema: Column) -> Column:
    """Whether a field of that schema can be a decimal number: nothing is known of it, or it is said to be a number."""
    unnamed = schema["name"].isNull() & ~F.coalesce(schema["type"].isin("bytes", "struct", "array"), F.lit(False))
    return unnamed | F.coalesce(schema["name"].isin(*DECIMALS), F.lit(False))


def decimal_from_base64(field: Column, declared: DecimalType) -> Column:
    """Connect's Decimal: base64 of the unscaled value, big-endian two's complement; the scale is the declared one."""
    digits = F.hex(F.try_to_binary(field, F.lit("base64")))
    text = F.concat(_short_text(digits), F.lit(f"E-{declared.scale}"))
    fits = F.length(digits).between(2, 32)
    return F.when(fits, text.try_cast(declared.ddl.lower()))


def _short_text(digits: Column) -> Column:
    """The whole number of which these are the hex digits, two's complement, 32 at most; NULL beyond 38 digits."""
    negative = F.substring(digits, 1, 1) >= "8"
    # -n is the complement of n, plus one: so the digits of a magnitude need no sign.
    complement = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    magnitude = F.lpad(F.when(negative, complement).otherwise(digits), 32, "0")
    upper = F.conv(F.substring(magnitude, 1, 16), 16, 10).try_cast("decimal(20,0)")
    lower = F.conv(F.substring(magnitude, 17, 16), 16, 10).try_cast("decimal(20,0)")
    unsigned = F.try_add(F.try_multiply(upper, F.lit(_UPPER_HALF).cast("decimal(20,0)")), lower)
    size = F.when(negative, F.try_add(unsigned, F.lit(1).cast("decimal(1,0)"))).otherwise(unsigned)
    # The sign is put in front of the text: negating a decimal in Spark rounds it to 34 digits.
    return F.concat(F.when(negative, "-").otherwise(F.lit("")), size.cast("string"))


def number_text(field: Column, *, is_base64: Column, scale: Column) -> Column:
    """The field as a decimal number in text, with or without an exponent; what is none stays as it is, or is NULL."""
    is_object = field.startswith("{")
    is_encoded = is_object | (is_base64 & ~field.startswith(MARK))
    parts = F.when(is_object, _struct(F.get_json_object(field, "$.value"), F.get_json_object(field, "$.scale")))
    encoded = parts.otherwise(_struct(field, scale))

    def decoded(number: Column) -> Column:
        exponent = F.when(number["scale"].between(-MOST_LENGTH, MOST_LENGTH), -number["scale"])
        return F.concat(unscaled_text(number["value"]), F.lit("E"), exponent.cast("string"))

    return F.when(is_encoded, let(encoded, decoded)).otherwise(field)


def _struct(value: Column, scale: Column) -> Column:
    return F.struct(value.alias("value"), scale.try_cast("int").alias("scale"))


def unscaled_text(field: Column) -> Column:
    """The whole number of which the field is base64 (big-endian two's complement), of up to `MOST_BYTES` bytes."""

    def signed(digits: Column) -> Column:
        negative = F.substring(digits, 1, 1) >= "8"
        complement = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
        length = F.ceil(F.length(digits) / F.lit(_HEX_PIECE)).cast("int") * _HEX_PIECE
        padded = F.lpad(F.when(negative, complement).otherwise(digits), length, F.lit("0"))
        number = F.struct(negative.alias("negative"), padded.alias("digits"), length.alias("length"))
        # Most numbers are short, and read the quicker way: of 15 bytes all fit Spark's decimals.
        is_short, is_long = F.length(digits).between(2, 30), F.length(digits).between(32, 2 * MOST_BYTES)
        return F.when(is_short, _short_text(digits)).when(is_long, let(number, text))

    def text(number: Column) -> Column:
        size = F.aggregate(_pieces(number), F.array().cast("array<bigint>"), _next_piece)
        groups = F.transform(F.reverse(size), lambda group: F.lpad(group.cast("string"), _GROUP, "0"))
        whole = F.ltrim(F.array_join(groups, ""), F.lit("0"))
        return F.when(whole == "", "0").otherwise(F.concat(F.when(number["negative"], "-").otherwise(F.lit("")), whole))

    return let(F.hex(F.try_to_binary(field, F.lit("base64"))), signed)


def _pieces(number: Column) -> Column:
    """The magnitude in pieces of 28 bits, the most significant first. That of a negative number is one more than the
    complement."""

    def piece(start: Column) -> Column:
        bits = F.conv(F.substring(number["digits"], start, F.lit(_HEX_PIECE)), 16, 10).cast("bigint")
        is_last = start == number["length"] - (_HEX_PIECE - 1)
        return F.when(number["negative"] & is_last, bits + F.lit(1)).otherwise(bits)

    return F.transform(F.sequence(F.lit(1), number["length"], F.lit(_HEX_PIECE)), piece)


def _next_piece(groups: Column, piece: Column) -> Column:
    """`groups` * 2**28 + `piece`, in groups of nine decimal digits, the least significant first."""
    base = F.lit(10**_GROUP).cast("bigint")

    def carried(done: Column, group: Column) -> Column:
        product = group * F.lit(1 << 4 * _HEX_PIECE).cast("bigint") + done["carry"]
        return let(
            product,
            lambda sum_: F.struct(
                F.call_function("div", sum_, base).alias("carry"),
                F.concat(done["groups"], F.array(sum_ % base)).alias("groups"),
            ),
        )

    start = F.struct(piece.alias("carry"), F.array().cast("array<bigint>").alias("groups"))
    return F.aggregate(
        groups,
        start,
        carried,
        lambda done: F.when(done["carry"] > 0, F.concat(done["groups"], F.array(done["carry"]))).otherwise(
            done["groups"]
        ),
    )


def plain_text(number: Column, sizes: tuple[int, ...]) -> Column:
    """A decimal number in text, written without an exponent: with as many digits behind the point as `sizes`, the
    database's precision and scale, say; without them, with no zero at its end. NULL when it does not fit.
    """

    def text(parts: Column) -> Column:
        digits, unit = parts["digits"], parts["unit"]
        places = F.greatest(-unit, F.lit(0))
        before_point = F.length(digits) + unit
        raised = F.concat(digits, F.repeat(F.lit("0"), F.greatest(unit, F.lit(0))))
        filled = F.lpad(raised, F.greatest(F.length(raised), places + 1), F.lit("0"))
        whole, fraction = F.left(filled, F.length(filled) - places), F.right(filled, places)
        sign = F.when(F.length(digits) > 0, parts["sign"]).otherwise(F.lit(""))
        if sizes:
            precision, scale = sizes
            fits = (unit >= -scale) & (before_point <= precision - scale)
            point = F.lit("." if scale else "")
            written = F.concat(sign, whole, point, F.rpad(fraction, scale, "0") if scale else F.lit(""))
        else:
            fits = (unit >= -MOST_LENGTH) & (before_point <= MOST_LENGTH)
            written = F.concat(sign, whole, F.when(places > 0, F.concat(F.lit("."), fraction)).otherwise(F.lit("")))
        zero = f"0.{'0' * sizes[1]}" if sizes and sizes[1] else "0"
        return F.when(F.length(digits) == 0, zero).when(fits, written)

    return F.when(number.rlike(NUMBER), let(digits_of(number), text))


def not_finite(field: Column) -> Column:
    """The name of a value that PostgreSQL's numeric has beside its numbers, as the connector writes it; else NULL."""
    return (
        F.when(field.isin("NaN", "NAN"), "NaN")
        .when(field.isin("Infinity", "POSITIVE_INFINITY"), "Infinity")
        .when(field.isin("-Infinity", "NEGATIVE_INFINITY"), "-Infinity")
    )


def unsigned(number: Column) -> Column:
    """A number of 64 bits in text, which is negative where its highest bit was taken for a sign, without one."""
    wrapped = number.try_cast("decimal(20,0)") + F.lit(_UPPER_HALF).cast("decimal(20,0)")
    is_wrapped = number.rlike(r"^-[0-9]{1,19}\z")
    lifted = F.when(
        is_wrapped,
        F.when(wrapped >= F.lit(_UPPER_BIT).cast("decimal(20,0)"), wrapped.cast("decimal(20,0)").cast("string")),
    )
    return lifted.otherwise(number)


def _plain(field: Column, declared: DecimalType) -> Column:
    """Most numbers, quickly: as many digits as the column has, and no exponent."""
    whole = max(declared.precision - declared.scale, 1)
    fraction = rf"(?:\.[0-9]{{1,{declared.scale}}})?" if declared.scale else ""
    is_plain = field.rlike(rf"^{MARK}?-?[0-9]{{1,{whole}}}{fraction}\z")
    return F.when(is_plain, F.ltrim(field, F.lit(MARK)).try_cast(declared.ddl.lower()))


def _exact(field: Column, declared: DecimalType, *, full_doubles: bool) -> Column:
    """A JSON number, or a text that is written like one.

    With `full_doubles`, one with more digits than the column has is taken when it is a double in full length: MySQL
    writes some numbers of JSON columns with all their binary digits (99999999.98999999463558197021484375 is the double
    99999999.99). There the shortest number that is the same double is the value.
    """
    decimal_type = declared.ddl.lower()

    def value(number: Column) -> Column:
        text = F.concat(number["sign"], number["digits"], F.lit("E"), number["unit"])
        before_point = F.length(number["digits"]) + number["unit"]
        fits = (number["unit"] >= -declared.scale) & (before_point <= declared.precision - declared.scale)
        exact = F.when(F.length(number["digits"]) == 0, "0").when(fits, text).try_cast(decimal_type)
        if not full_doubles:
            return exact
        return F.coalesce(exact, F.when(_may_be_a_double(number), let(text.try_cast("double"), shortest(number))))

    def shortest(number: Column) -> Callable[[Column], Column]:
        def of(double: Column) -> Column:
            near = double.try_cast(decimal_type)
            return F.when((near.cast("double") == double) & _is_double(number, double), near)

        return of

    return F.when(field.rlike(NUMBER), let(digits_of(field), value))


def digits_of(field: Column) -> Column:
    """STRUCT<sign, digits, unit> of a decimal number: its digits without zeros at either end (of zero there are none),
    and the power of ten of the last one.
    """
    names = ("sign", "whole", "fraction", "exponent")
    parts = F.struct(*[F.regexp_extract(field, NUMBER, n).alias(name) for n, name in enumerate(names, start=1)])

    def stripped(number: Column) -> Column:
        all_digits = F.concat(number["whole"], number["fraction"])
        kept = F.rtrim(all_digits, F.lit("0"))
        exponent = F.coalesce(number["exponent"].try_cast("int"), F.lit(0))
        unit = exponent - F.length(number["fraction"]) + F.length(all_digits) - F.length(kept)
        return F.struct(number["sign"].alias("sign"), F.ltrim(kept, F.lit("0")).alias("digits"), unit.alias("unit"))

    return let(parts, stripped)


def _may_be_a_double(number: Column) -> Column:
    """Whether it is long enough for a double in full length, and has no more digits behind the point than are told."""
    return (F.length(number["digits"]) > 15) & number["unit"].between(-MOST_PLACES, -1)


def _is_double(number: Column, nearest: Column) -> Column:
    """Whether the number is exactly the double `nearest`.

    Its digits are m * 5**places then, for the whole m = nearest * 2**places, which fits 53 bits. The product is written
    down in pieces of so many digits as Spark's decimals can multiply.
    """
    places = -number["unit"]
    m = F.abs(nearest) * F.pow(F.lit(2.0), places)

    def next_piece(done: Column, piece: Column) -> Column:
        five = F.substring(F.lit(_POWERS_OF_FIVE), places * _WIDTH + piece, F.lit(_PIECE)).cast("decimal(18,0)")
        product = F.lpad((five * m.cast("decimal(16,0)") + done["carry"]).cast("string"), 2 * _PIECE, "0")
        return let(
            product,
            lambda text: F.struct(
                F.left(text, F.lit(_PIECE)).cast("decimal(18,0)").alias("carry"),
                F.concat(F.right(text, F.lit(_PIECE)), done["digits"]).alias("digits"),
            ),
        )

    none = F.struct(F.lit(0).cast("decimal(18,0)").alias("carry"), F.lit("").alias("digits"))
    pieces = F.array(*[F.lit(start) for start in range(_WIDTH - _PIECE + 1, 0, -_PIECE)])
    product = F.aggregate(
        pieces,
        none,
        next_piece,
        lambda done: F.ltrim(F.concat(done["carry"].cast("string"), done["digits"]), F.lit("0")),
    )
    return F.when(m < F.lit(2.0**53), product == number["digits"])
