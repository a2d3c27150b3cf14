"""Dates and times in every form that a connector writes them in: exactly, or not at all.

Debezium documentation, "Temporal values" of the connectors. Times are microseconds from the epoch, in UTC; dates are
days. What no type of Spark holds is text of one form: ISO 8601 with the digits behind the second that there are, years
before 1 as astronomers count them, `infinity` and `-infinity`.
"""

from __future__ import annotations

import re
from datetime import date as calendar_date

from lakehouse.contracts.tables import EpochUnit
from silver.decode.reference.message import FieldSchema
from silver.decode.reference.numbers import whole

# In seconds from the epoch.
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
SECONDS_OF_DAY = 86_400
_EPOCH = calendar_date(1970, 1, 1).toordinal()
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
_TIMESTAMP = re.compile(rf"({_DATE})[T ]({_TIME}){_FRACTION}(Z|[+-]00(?::?00)?)?")
_ANY_TIME = re.compile(rf"(-?[0-9]{{2,3}}:[0-5][0-9]:[0-5][0-9]){_FRACTION}()Z?")
_ZONED_TIME = re.compile(rf"({_TIME}){_FRACTION}(Z|[+-][0-9]{{2}}(?::?[0-9]{{2}}){{0,2}})")
_UTC = re.compile(r"[+-]00(?::?00)*")
_DAY_TEXT = re.compile(rf"({_DATE})Z?")
_ISO_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})Z?")
_ISO_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,30}))?)?"
    r"(?:Z|([+-])([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_DAYS = re.compile(r"-?[0-9]{1,10}")


def date(text: str) -> int | None:
    """Days from the epoch: such a number (Debezium's and Connect's Date), or ISO 8601 text, with or without Z.

    Years 1 to 9999.
    """
    if re.fullmatch(r"-?[0-9]{1,7}", text):
        days = int(text)
        return days if YEAR_1 // SECONDS_OF_DAY <= days < YEAR_10000 // SECONDS_OF_DAY else None
    found = _ISO_DATE.fullmatch(text)
    return _days(found[1], found[2], found[3]) if found else None


def _days(year: str, month: str, day: str) -> int | None:
    try:
        return calendar_date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None


def timestamp(text: str, *, epoch_unit: EpochUnit | None, schema: FieldSchema | None = None) -> int | None:
    """An integer counted from the epoch in `epoch_unit`, or ISO 8601 text; without a zone it is UTC.

    Years 1 to 9999: what lies outside is BC, or how PostgreSQL's ±infinity travels, and fits no timestamp here. Text
    finer than microseconds does not fit either, nor nanoseconds.
    """
    micros = epoch_micros(text, epoch_unit=epoch_unit, kind="Timestamp", schema=schema)
    return within_years(iso_micros(text) if micros is None else micros)


def within_years(micros: int | None) -> int | None:
    """The time, where it lies in years 1 to 9999."""
    return micros if micros is not None and YEAR_1 * _SECOND <= micros < YEAR_10000 * _SECOND else None


def instant(number: int | None, *, epoch_unit: EpochUnit) -> int | None:
    """The time that many `epoch_unit` after the epoch; None outside of years 1 to 9999."""
    return None if number is None else within_years(in_micros(number, epoch_unit))


def iso_micros(text: str) -> int | None:
    """A time of years 0 to 9999 in ISO 8601, to the microsecond; without a zone it is UTC. None of anything else."""
    found = _ISO_TIMESTAMP.fullmatch(text)
    if found is None:
        return None
    day, hours, minutes, seconds, fraction, sign, *zone = found.groups(default="")
    zone_hours, zone_minutes, zone_seconds = (int(part or 0) for part in zone)
    digits = fraction.rstrip("0")
    days = _days(*day.split("-"))
    of_zone = zone_hours * 3600 + zone_minutes * 60 + zone_seconds
    is_time = int(hours) < 24 and int(minutes) < 60 and int(seconds or 0) < 60
    if days is None or not is_time or len(digits) > 6 or of_zone > 18 * 3600 or max(zone_minutes, zone_seconds) > 59:
        return None
    of_day = int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)
    shift = -of_zone if sign == "+" else of_zone
    return (days * SECONDS_OF_DAY + of_day + shift) * _SECOND + int(digits.ljust(6, "0"))


def epoch_micros(text: str, *, epoch_unit: EpochUnit | None, kind: str, schema: FieldSchema | None) -> int | None:
    """A whole number as microseconds: counted as its schema says, else in `epoch_unit`.

    `kind` is Timestamp or Time. Infinite times stay numbers outside of all years; without a unit numbers are None.
    """
    number = whole(text)
    if number is None:
        return None
    name = None if schema is None else schema.name
    if name is None:
        return in_micros(number, epoch_unit) if epoch_unit else None
    if name == f"io.debezium.time.Micro{kind}":
        return number
    if name in (f"io.debezium.time.{kind}", f"org.apache.kafka.connect.data.{kind}"):
        return in_micros(number, "millis")
    return in_micros(number, "nanos") if name == f"io.debezium.time.Nano{kind}" else None


def in_micros(number: int, unit: EpochUnit) -> int | None:
    """A number of `unit` as microseconds; None when it is not a whole number of them, or too large for 64 bits."""
    if unit == "micros":
        return number
    if unit == "millis":
        # The sentinels of later versions do not fit when they are multiplied.
        if number in (_LATEST[0], _EARLIEST[0]):
            return number
        return number * 1000 if -(2**63) <= number * 1000 < 2**63 else None
    if number in (_LATEST[1], _EARLIEST[1]):
        return number
    return None if number % 1000 else number // 1000


def date_text(text: str) -> str | None:
    """A date as ISO 8601 text, in any year, or infinity."""
    if _DAYS.fullmatch(text):
        days = int(text)
        if days in _LAST_DAYS:
            return "infinity"
        if days in _FIRST_DAYS:
            return "-infinity"
        return _iso_date(days) if -(2**31) <= days < 2**31 else None
    found = _DAY_TEXT.fullmatch(text)
    day = found[1] if found else ""
    if text in _LAST_DATES or day in _LAST_DATES:
        return "infinity"
    if text in _FIRST_DATES or day in _FIRST_DATES:
        return "-infinity"
    return day if _is_date(day) else None


def timestamp_text(text: str, *, zoned: bool, epoch_unit: EpochUnit | None, schema: FieldSchema | None) -> str | None:
    """A time as ISO 8601 text, in any year, or infinity: with Z at its end if `zoned`, else without a zone."""
    end = "Z" if zoned else ""
    micros = epoch_micros(text, epoch_unit=epoch_unit, kind="Timestamp", schema=schema)
    if micros is not None:
        if micros in _LATEST or micros in _EARLIEST:
            return "infinity" if micros > 0 else "-infinity"
        return f"{_iso_timestamp(micros)}{end}"
    if text in _LATEST_TEXTS:
        return "infinity"
    if text in _EARLIEST_TEXTS:
        return "-infinity"
    found = _TIMESTAMP.fullmatch(text)
    if found:
        return f"{found[1]}T{found[2]}{_fraction(found[3])}{end}" if _is_date(found[1]) else None
    if zoned and re.search(r"[+-][0-9]{2}(?::?[0-9]{2}){0,2}\Z", text):
        # Of another zone. The connectors send UTC.
        micros = iso_micros(text)
        return None if micros is None else f"{_iso_timestamp(micros)}{end}"
    return None


def time_text(text: str, *, epoch_unit: EpochUnit | None, schema: FieldSchema | None) -> str | None:
    """A time of day, or a length of time as MySQL's TIME: `-838:59:59.5`."""
    micros = epoch_micros(text, epoch_unit=epoch_unit, kind="Time", schema=schema)
    if micros is not None and -_LONGEST_TIME < micros < _LONGEST_TIME:
        return _iso_time(micros)
    found = _ANY_TIME.fullmatch(text)
    return f"{found[1]}{_fraction(found[2])}" if found else None


def zoned_time_text(text: str) -> str | None:
    """A time of day with its zone: `12:34:56.5Z`."""
    found = _ZONED_TIME.fullmatch(text)
    if found is None:
        return None
    zone = "Z" if _UTC.fullmatch(found[3]) else found[3]
    return f"{found[1]}{_fraction(found[2])}{zone}"


def _fraction(digits: str | None) -> str:
    return f".{digits}" if digits else ""


def _is_date(day: str) -> bool:
    """Whether the text, of the form of a date, is one; looked up in the calendar of years 1 to 9999."""
    if not day:
        return False
    year, month, of_month = day.rsplit("-", 2)
    if len(year) != 4 or year == "0000":
        return True
    return _days(year, month, of_month) is not None


def _iso_date(days: int) -> str:
    """The date in the proleptic Gregorian calendar, whose 400 years have 146,097 days."""
    eras, of_era = divmod(days + _EPOCH - 1, 146_097)
    day = calendar_date.fromordinal(of_era + 1)
    year = day.year + 400 * eras
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{day.month:02d}-{day.day:02d}"


def _iso_timestamp(micros: int) -> str:
    days, of_day = divmod(micros, _DAY)
    return f"{_iso_date(days)}T{_iso_time(of_day)}"


def _iso_time(micros: int) -> str:
    seconds, rest = divmod(abs(micros), _SECOND)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
