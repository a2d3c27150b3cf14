"""Dates and times in every form that a connector writes them in: exactly, or not at all.

Debezium documentation, "Temporal values" of the connectors. What no type of Spark holds is text of one form: ISO 8601
with the digits behind the second that there are, years before 1 as astronomers count them, `infinity` and `-infinity`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import EpochUnit
from silver.fields import let

if TYPE_CHECKING:
    from pyspark.sql import Column

# In seconds from the epoch.
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
SECONDS_OF_DAY = 86_400
_SECOND, _HOUR, _DAY = 1_000_000, 3_600_000_000, 86_400_000_000
# MySQL's longest TIME is 838:59:59.999999.
_LONGEST_TIME = 839 * _HOUR

# What the PostgreSQL connector writes for infinity. As a time: the driver's own sentinel as micros, in later versions
# as millis, and what that is cut to where it does not fit.
_LATEST, _EARLIEST = (9_223_372_036_825_200_000, 2**63 - 1), (-9_223_372_036_832_400_000, -(2**63))
_LATEST_TEXTS = ("infinity", "+294247-01-10T04:00:25.2Z", "+292278994-08-16T23:00:00Z")
_EARLIEST_TEXTS = ("-infinity", "-290308-12-21T19:59:27.6Z", "-292275055-05-16T23:00:00Z")
# As a date: a day number that wrapped around; later versions have +5877611-06-21 for the positive one.
_LAST_DAYS, _FIRST_DAYS = (-2_147_472_692, 2_146_033_979), (-2_147_472_691,)
_LAST_DATES = ("infinity", "-5877611-06-21", "+5877611-06-21")
_FIRST_DATES = ("-infinity", "-5877611-06-22")

_DATE = r"[+-]?[0-9]{4,9}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01][0-9]|2[0-4]):[0-5][0-9]:[0-5][0-9]"
# Whole part, fraction without zeros at its end, zone.
_FRACTION = r"(?:\.([0-9]*?)0*)?"
_TIMESTAMP = rf"^({_DATE})[T ]({_TIME}){_FRACTION}(Z|[+-]00(?::?00)?)?\z"
_OTHER_ZONE = r"[+-][0-9]{2}(?::?[0-9]{2})?\z"
_ANY_TIME = rf"^(-?[0-9]{{2,3}}:[0-5][0-9]:[0-5][0-9]){_FRACTION}()Z?\z"
_ZONED_TIME = rf"^({_TIME}){_FRACTION}(Z|[+-][0-9]{{2}}(?::?[0-9]{{2}}){{0,2}})\z"


def whole(field: Column) -> Column:
    """The field as a whole number; NULL when it is none."""
    return F.when(field.rlike(r"^-?[0-9]+\z"), field.try_cast("bigint"))


def date(field: Column) -> Column:
    """Days from the epoch (Debezium's and Connect's Date), or ISO 8601 text, with or without Z. Years 1 to 9999."""
    days = F.when(field.rlike(r"^-?[0-9]{1,7}\z"), field.try_cast("int"))
    within = F.when(days.between(YEAR_1 // SECONDS_OF_DAY, YEAR_10000 // SECONDS_OF_DAY - 1), days)
    is_iso = field.rlike(r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}Z?\z")
    return F.coalesce(F.date_from_unix_date(within), F.when(is_iso, F.left(field, F.lit(10)).try_cast("date")))


def timestamp(field: Column, *, epoch_unit: EpochUnit | None, schema: Column | None = None) -> Column:
    """An integer counted from the epoch in `epoch_unit`, or ISO 8601 text; without a zone it is UTC.

    Years 1 to 9999: what lies outside is BC, or how PostgreSQL's ±infinity travels, and fits no timestamp here. Text
    finer than microseconds does not fit either, nor nanoseconds.
    """
    is_iso = field.rlike(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]") & ~field.rlike(r"\.[0-9]{6}0*[1-9]")
    text = F.when(is_iso, field.try_cast("timestamp"))
    number = instant(epoch_micros(field, epoch_unit=epoch_unit, kind="Timestamp", schema=schema), epoch_unit="micros")
    return F.coalesce(number, instant(F.unix_micros(text), epoch_unit="micros"))


def instant(number: Column, *, epoch_unit: EpochUnit) -> Column:
    """The time that many `epoch_unit` after the epoch; NULL outside of years 1 to 9999."""
    micros = in_micros(number, epoch_unit)
    return F.timestamp_micros(F.when(micros.between(YEAR_1 * _SECOND, YEAR_10000 * _SECOND - 1), micros))


def epoch_micros(field: Column, *, epoch_unit: EpochUnit | None, kind: str, schema: Column | None) -> Column:
    """A whole number of the field as microseconds: counted as its schema says, else in `epoch_unit`.

    `kind` is Timestamp or Time. Infinite times stay numbers outside of all years; without a unit numbers are NULL.
    """
    number = whole(field)
    own = in_micros(number, epoch_unit) if epoch_unit else F.lit(None).cast("bigint")
    if schema is None:
        return own
    name = schema["name"]
    millis = name.isin(f"io.debezium.time.{kind}", f"org.apache.kafka.connect.data.{kind}")
    return (
        F.when(name.isNull(), own)
        .when(name == f"io.debezium.time.Micro{kind}", number)
        .when(millis, in_micros(number, "millis"))
        .when(name == f"io.debezium.time.Nano{kind}", in_micros(number, "nanos"))
    )


def in_micros(number: Column, unit: EpochUnit) -> Column:
    """A number of `unit` as microseconds; NULL when it is not a whole number of them, or too large."""
    if unit == "micros":
        return number
    if unit == "millis":
        # The sentinels of later versions do not fit when they are multiplied.
        is_infinite = number.isin(_LATEST[0], _EARLIEST[0])
        return F.when(is_infinite, number).otherwise(F.try_multiply(number, F.lit(1000)))
    is_infinite = number.isin(_LATEST[1], _EARLIEST[1])
    return F.when(is_infinite, number).when(number % 1000 == 0, F.call_function("div", number, F.lit(1000)))


def date_text(field: Column) -> Column:
    """A date as ISO 8601 text, in any year, or infinity."""
    day = F.regexp_extract(field, rf"^({_DATE})Z?\z", 1)
    days = F.when(field.rlike(r"^-?[0-9]{1,10}\z"), field.try_cast("int"))
    text = (
        F.when(field.isin(*_LAST_DATES) | day.isin(*_LAST_DATES), "infinity")
        .when(field.isin(*_FIRST_DATES) | day.isin(*_FIRST_DATES), "-infinity")
        .when(_is_date(day), day)
    )
    number = F.when(days.isin(*_LAST_DAYS), "infinity").when(days.isin(*_FIRST_DAYS), "-infinity")
    return F.coalesce(number.otherwise(let(days, _iso_date)), text)


def timestamp_text(field: Column, *, zoned: bool, epoch_unit: EpochUnit | None, schema: Column | None) -> Column:
    """A time as ISO 8601 text, in any year, or infinity: with Z at its end if `zoned`, else without a zone."""
    micros = epoch_micros(field, epoch_unit=epoch_unit, kind="Timestamp", schema=schema)
    end = F.lit("Z" if zoned else "")
    number = let(
        micros,
        lambda value: (
            F.when(value.isin(*_LATEST), "infinity")
            .when(value.isin(*_EARLIEST), "-infinity")
            .otherwise(F.concat(_iso_timestamp(value), end))
        ),
    )
    day = F.regexp_extract(field, _TIMESTAMP, 1)
    written = F.concat(day, F.lit("T"), F.regexp_extract(field, _TIMESTAMP, 2), _fraction(field, _TIMESTAMP, 3), end)
    text = (
        F.when(field.isin(*_LATEST_TEXTS), "infinity")
        .when(field.isin(*_EARLIEST_TEXTS), "-infinity")
        .when(_is_date(day), written)
    )
    if zoned:
        # Of another zone. The connectors send UTC.
        is_other = ~field.rlike(r"\.[0-9]{6}0*[1-9]") & field.rlike(_OTHER_ZONE)
        instants = F.when(is_other, F.unix_micros(F.when(field.rlike("^[0-9]{4}-"), field.try_cast("timestamp"))))
        text = text.otherwise(F.concat(let(instants, _iso_timestamp), end))
    return F.coalesce(number, text)


def time_text(field: Column, *, epoch_unit: EpochUnit | None, schema: Column | None) -> Column:
    """A time of day, or a length of time as MySQL's TIME: `-838:59:59.5`."""
    micros = epoch_micros(field, epoch_unit=epoch_unit, kind="Time", schema=schema)
    within = F.when((micros > -_LONGEST_TIME) & (micros < _LONGEST_TIME), micros)
    text = F.concat(F.regexp_extract(field, _ANY_TIME, 1), _fraction(field, _ANY_TIME, 2))
    return F.coalesce(let(within, _iso_time), F.when(field.rlike(_ANY_TIME), text))


def zoned_time_text(field: Column) -> Column:
    """A time of day with its zone: `12:34:56.5Z`."""
    zone = F.regexp_extract(field, _ZONED_TIME, 3)
    end = F.when(zone.rlike(r"^[+-]00(?::?00)*\z"), "Z").otherwise(zone)
    text = F.concat(F.regexp_extract(field, _ZONED_TIME, 1), _fraction(field, _ZONED_TIME, 2), end)
    return F.when(field.rlike(_ZONED_TIME), text)


def _is_date(day: Column) -> Column:
    """Whether the text, of the form of a date, is one; looked up in the calendar where Spark has that year."""
    is_day = F.when(day.rlike(r"^(?!0000)[0-9]{4}-"), day.try_cast("date").isNotNull()).otherwise(F.lit(True))
    return (day != "") & is_day


def _fraction(field: Column, pattern: str, group: int) -> Column:
    digits = F.regexp_extract(field, pattern, group)
    return F.when(digits == "", "").otherwise(F.concat(F.lit("."), digits))


def _iso_date(days: Column) -> Column:
    day = F.date_from_unix_date(days)
    year = F.year(day)
    sign = F.when(year < 0, "-").when(year > 9999, "+").otherwise(F.lit(""))
    return F.when(days.isNotNull(), F.format_string("%s%04d-%02d-%02d", sign, F.abs(year), F.month(day), F.day(day)))


def _iso_timestamp(micros: Column) -> Column:
    of_day = F.pmod(micros, F.lit(_DAY))
    days = F.call_function("div", micros - of_day, F.lit(_DAY)).cast("int")
    # The earliest day of 64 bits of microseconds is not whole.
    return F.when(micros > _EARLIEST[1] + _DAY, F.concat(_iso_date(days), F.lit("T"), _iso_time(of_day)))


def _iso_time(micros: Column) -> Column:
    size = F.abs(micros)
    hours, minutes = F.call_function("div", size, F.lit(_HOUR)), F.call_function("div", size, F.lit(60 * _SECOND)) % 60
    seconds, rest = F.call_function("div", size, F.lit(_SECOND)) % 60, size % _SECOND
    sign = F.when(micros < 0, "-").otherwise(F.lit(""))
    fraction = F.rtrim(F.format_string(".%06d", rest), F.lit("0"))
    text = F.concat(
        F.format_string("%s%02d:%02d:%02d", sign, hours, minutes, seconds),
        F.when(rest == 0, "").otherwise(fraction),
    )
    return F.when(micros.isNotNull(), text)
