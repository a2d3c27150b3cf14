"""Values as they travel in JSON events, turned into the types that the contract declares, exactly or not at all.

`parsed` reads a JSON text; the other functions map a field of it to a typed column that is NULL when the value does not
fit; whoever calls tells "does not fit" from "was NULL" by the field. Nothing here rounds, wraps or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.column_types import DecimalType
from lakehouse.contracts import Column as Declared
from lakehouse.contracts import Feed

if TYPE_CHECKING:
    from pyspark.sql import Column

# In seconds from the epoch.
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
SECONDS_OF_DAY = 86_400

# JSON as RFC 8259 has it: by default Spark also takes 'text' and NaN.
_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "columnNameOfCorruptRecord": "malformed"}

# Stands before a number that must be kept as it is written. A noncharacter: Unicode leaves those to programs.
_MARK = "\ufdd0"
_SPACE = r"[ \t\n\r]*+"
_STRING = r'"(?:[^"\\]++|\\.)*+"'
# A JSON number with a fraction or an exponent, as a value: never the name of a field.
_FRACTION = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?+|[eE][+-]?[0-9]++)" rf"(?={_SPACE}(?:[,}}\]]|\z))"
# The end of one: quick to look for, found wherever there is one, and seldom elsewhere (inside a string).
_SOME_FRACTION = rf"[.eE][-+]?[0-9]++(?:[eE][-+]?[0-9]++)?+{_SPACE}(?:[,}}\]]|\z)"
# From the end of the last match to the next such number. Possessive throughout: no backtracking, no deep recursion.
_NEXT_FRACTION = rf'\G((?:[^"0-9-]++|{_STRING}|(?!{_FRACTION})[0-9-][0-9A-Za-z.+-]*+)*+)({_FRACTION})'
_MARKED = rf'^{_MARK}|"{_MARK}([^"]*+)"'

_HEX = "[0-9a-fA-F]"
# Text in which every escaped half of a surrogate pair has its other half.
_PAIRED = (
    rf"^(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F]){_HEX}{{4}}"
    rf"|\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})*+\z"
)

# Sign, whole part, fraction, exponent.
_NUMBER = rf"^{_MARK}?(-?)([0-9]++)(?:\.([0-9]++))?+(?:[eE]([+-]?[0-9]{{1,9}}+))?+\z"

# Of a double in full length: so many digits behind the point; all doubles from 2**-48 on have no more.
MOST_PLACES = 100
_PIECE, _WIDTH = 18, 72
_POWERS_OF_FIVE = "".join(f"{5**n:0{_WIDTH}}" for n in range(MOST_PLACES + 1))

# 2**64: the weight of the upper of two 64-bit halves.
_UPPER_HALF = "18446744073709551616"


def parsed(text: Column, json_type: str) -> Column:
    """STRUCT<json: `json_type`, malformed: STRING>: the one JSON value that `text` is.

    `malformed` is NULL exactly when `text` is one JSON value of that type (RFC 8259) with nothing but white space
    around it, and has no `flaw`. Types of fields are STRING, BIGINT (a whole number), or structs and maps of them.
    STRING takes everything: objects and arrays as JSON without spaces, scalars as they are written; numbers with a
    fraction or an exponent stand behind a mark that `typed` and `unmarked` take away.
    """
    # In Spark 4.1 from_json reads a number into STRING by way of a double, and into DECIMAL rounds it; text it keeps.
    exact = F.when(text.rlike(_SOME_FRACTION), F.regexp_replace(text, _NEXT_FRACTION, f'$1"{_MARK}$2"')).otherwise(text)
    # It stops where the first value ends. Text that goes on cannot end both an array and an object in its own middle.
    is_one = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    wrapped = F.concat(F.lit('{"json":'), exact, F.lit("}"))
    readable = F.when(is_one & flaw(text, name="").isNull(), wrapped).otherwise(F.lit("not JSON"))
    return F.from_json(readable, f"json {json_type}, malformed STRING", _STRICT)


def flaw(text: Column, *, name: str) -> Column:
    """A sentence about `name`, when `text` is JSON with a string that cannot be kept as it is; else NULL."""
    has_escapes = text.contains("\\u")
    halved = has_escapes & text.rlike(r"\\u[dD][89a-fA-F]") & ~text.rlike(_PAIRED)
    marked = text.contains(_MARK) | (has_escapes & text.rlike(r"(?i)\\ufdd0"))
    return F.when(halved, f"{name} has one half of a surrogate pair, which is no text.").when(
        marked, f"{name} has the noncharacter U+FDD0, which cannot be kept."
    )


def unmarked(field: Column) -> Column:
    """A field that was read as STRING, with its numbers as they are written."""
    return F.when(field.contains(_MARK), F.regexp_replace(field, _MARKED, "$1")).otherwise(field)


def typed(field: Column, declared: Declared, *, precise: bool) -> Column:
    """The field as the declared type; NULL when it is NULL or does not fit."""
    if isinstance(declared.type, DecimalType):
        return decimal_from_base64(field, declared.type) if precise else decimal_from_number(field, declared.type)
    if declared.type.name == "TIMESTAMP":
        return timestamp(field, epoch_unit=declared.epoch_unit)
    return _SIMPLE[declared.type.name](field)


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
    """A JSON number, or a text that is written like one.

    One with more digits than the column has is taken only when it is a double in full length: MySQL writes some numbers
    of JSON columns with all their binary digits (99999999.98999999463558197021484375 is the double 99999999.99). There
    the shortest number that is the same double is the value.
    """
    decimal_type = declared.ddl.lower()

    def value(number: Column) -> Column:
        text = F.concat(number["sign"], number["digits"], F.lit("E"), number["unit"])
        before_point = F.length(number["digits"]) + number["unit"]
        fits = (number["unit"] >= -declared.scale) & (before_point <= declared.precision - declared.scale)
        exact = F.when(F.length(number["digits"]) == 0, "0").when(fits, text).try_cast(decimal_type)
        return F.coalesce(exact, F.when(_may_be_a_double(number), _let(text.try_cast("double"), shortest(number))))

    def shortest(number: Column) -> Callable[[Column], Column]:
        def of(double: Column) -> Column:
            near = double.try_cast(decimal_type)
            return F.when((near.cast("double") == double) & _is_double(number, double), near)

        return of

    # Most numbers, quickly: as many digits as the column has, and no exponent.
    whole = max(declared.precision - declared.scale, 1)
    fraction = rf"(?:\.[0-9]{{1,{declared.scale}}})?" if declared.scale else ""
    is_plain = field.rlike(rf"^{_MARK}?-?[0-9]{{1,{whole}}}{fraction}\z")
    plain = F.when(is_plain, F.ltrim(field, F.lit(_MARK)).try_cast(decimal_type))
    return F.coalesce(plain, F.when(field.rlike(_NUMBER), _let(_digits(field), value)))


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """`body` of the value, which stands in the plan once however often the body names it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


def _digits(field: Column) -> Column:
    """STRUCT<sign, digits, unit> of a decimal number: its digits without zeros at either end (of zero there are none),
    and the power of ten of the last one.
    """
    names = ("sign", "whole", "fraction", "exponent")
    parts = F.struct(*[F.regexp_extract(field, _NUMBER, n).alias(name) for n, name in enumerate(names, start=1)])

    def stripped(number: Column) -> Column:
        all_digits = F.concat(number["whole"], number["fraction"])
        kept = F.rtrim(all_digits, F.lit("0"))
        exponent = F.coalesce(number["exponent"].try_cast("int"), F.lit(0))
        unit = exponent - F.length(number["fraction"]) + F.length(all_digits) - F.length(kept)
        return F.struct(number["sign"].alias("sign"), F.ltrim(kept, F.lit("0")).alias("digits"), unit.alias("unit"))

    return _let(parts, stripped)


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
        return _let(
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


def date(field: Column) -> Column:
    """Days from the epoch (Debezium's and Connect's Date), or ISO 8601 text, with or without Z. Years 1 to 9999."""
    days = F.when(field.rlike(r"^-?[0-9]{1,7}$"), field.try_cast("int"))
    within = F.when(days.between(YEAR_1 // SECONDS_OF_DAY, YEAR_10000 // SECONDS_OF_DAY - 1), days)
    is_iso = field.rlike(r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}Z?$")
    return F.coalesce(F.date_from_unix_date(within), F.when(is_iso, F.left(field, F.lit(10)).try_cast("date")))


def double(field: Column) -> Column:
    """The double nearest to a number; NaN and the infinities only where they are written out."""
    text = unmarked(field)
    number = F.when(field.rlike(_NUMBER), text.try_cast("double"))
    is_finite = F.abs(number) < F.lit(float("inf"))
    is_lost = (number == 0) & field.rlike(r"^[^eE]*[1-9]")
    named = F.when(text.isin("NaN", "Infinity", "-Infinity"), text.try_cast("double"))
    return F.coalesce(F.when(is_finite & ~is_lost, number), named)


def whole_number(field: Column) -> Column:
    """A number without fraction or exponent."""
    return F.when(field.rlike(r"^-?[0-9]+$"), field.try_cast("bigint"))


def boolean(field: Column) -> Column:
    """true and false, and 1 and 0, which MySQL has in their place."""
    return F.when(field.isin("true", "1"), F.lit(True)).when(field.isin("false", "0"), F.lit(False))


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


_SIMPLE: Mapping[str, Callable[[Column], Column]] = {
    "BIGINT": whole_number,
    "BOOLEAN": boolean,
    "DATE": date,
    "DOUBLE": double,
    "STRING": unmarked,
}
