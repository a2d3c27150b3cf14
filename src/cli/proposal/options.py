"""What the values of events show of their connector's options, where the messages do not say their types.

The reasons are counts and shapes, never a value. Imports without pyspark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.contracts.parts.names import column_name
from silver.by_rule.definitions import DefinedColumn, Definition
from silver.by_rule.events import Event
from silver.by_rule.types import DecimalMode, from_values
from silver.decode.reference.message import Json, Number, whole_number

_DECIMALS = ("DECIMAL", "NUMERIC", "DEC", "FIXED")
# Of times since the year 2001: so many digits have milliseconds, microseconds and nanoseconds.
_MILLIS, _MICROS, _NANOS = (12, 13), (15, 16), (18, 19)
_MILLIS_DIGITS = 3


@dataclass(frozen=True)
class Option:
    """An option of `by_rule`, its value, and why."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class _Values:
    """The values that a column has in events, NULLs left out, and what the database says that it is."""

    name: str
    values: Sequence[Json]
    defined: DefinedColumn | None


def options(tables: Mapping[str, Sequence[Event]], defined: Mapping[str, Definition]) -> Sequence[Option]:
    """The options that differ from a connector's defaults, as far as values show it.

    `tables`: events by table; those whose messages have schemas say nothing, for the schemas do. `defined`: as the
    database defines the tables, where that is known.
    """
    columns = [column for table, events in tables.items() for column in _columns(events, defined.get(table))]
    found = (_decimals(columns), _times(columns), _unsigned(columns))
    return [option for option in found if option is not None]


def _columns(events: Sequence[Event], definition: Definition | None) -> Iterator[_Values]:
    rows = [event.row for event in events if event.row is not None and not event.schemas]
    for number, field in enumerate(dict.fromkeys(field for row in rows for field in row), start=1):
        values = [row[field] for row in rows if row.get(field) is not None]
        defined = None if definition is None else definition.columns.get(field, DefinedColumn("UNKNOWN"))
        if values:
            yield _Values(column_name(field, number=number), values, defined)


def _decimals(columns: Sequence[_Values]) -> Option | None:
    modes = Counter[DecimalMode]()
    for column in columns:
        if column.defined is None:
            guessed = from_values(column.name, column.values, of_table=True).decimals
        else:
            guessed = _mode_of_decimal(column.values) if column.defined.type in _DECIMALS else None
        modes.update([guessed] if guessed else [])
        if column.defined is not None and guessed == "double" and any(_ends_in_zero(one) for one in column.values):
            return Option("decimal_format", "numeric", "decimals are numbers that keep the zeros at their end")
    if not modes or "precise" in modes:
        return None
    mode: DecimalMode = "string" if "string" in modes else "double"
    how = "text of numbers" if mode == "string" else "numbers with a fraction"
    count = modes[mode]
    why = f"{count} column{' is' if count == 1 else 's are'} {how}, none could be base64 of a decimal"
    return Option("decimal_handling_mode", mode, why if mode == "string" else f"{why}; or decimal_format: numeric")


def _mode_of_decimal(values: Sequence[Json]) -> DecimalMode | None:
    """How a column travels that is a decimal in the database; None where its values may be of two ways."""
    if all(type(value) is Number for value in values):
        return "double" if any("." in value for value in values) else None
    texts = [value for value in values if type(value) is str]
    return "string" if any("." in text for text in texts) else "precise" if texts else None


def _ends_in_zero(value: Json) -> bool:
    return type(value) is Number and re.fullmatch(r"-?\d+\.\d+0", value) is not None


def _times(columns: Sequence[_Values]) -> Option | None:
    """By the columns that are DATETIME or DATE in the database."""
    for column in columns:
        kind = "" if column.defined is None else column.defined.type
        if kind in ("DATE", "DATETIME") and all(type(value) is str for value in column.values):
            return Option("time_precision_mode", "isostring", f"values of {kind} are text")
        if kind == "DATETIME" and column.defined is not None:
            is_short = (column.defined.length or 0) <= _MILLIS_DIGITS
            for digits, mode, is_so in (
                (_NANOS, "nanoseconds", True),
                (_MICROS, "microseconds", is_short),
                (_MILLIS, "connect", not is_short),
            ):
                if is_so and all(_has_digits(value, digits) for value in column.values):
                    why = f"values of {column.defined.text} have {digits[0]} or {digits[1]} digits"
                    return Option("time_precision_mode", mode, why)
    return None


def _has_digits(value: Json, digits: tuple[int, int]) -> bool:
    number = whole_number(value)
    return number is not None and len(str(abs(number))) in digits


def _unsigned(columns: Sequence[_Values]) -> Option | None:
    for column in columns:
        is_unsigned = column.defined is not None and column.defined.is_unsigned and column.defined.type == "BIGINT"
        if is_unsigned and all(type(value) is str for value in column.values):
            return Option("bigint_unsigned_handling_mode", "precise", "values of BIGINT UNSIGNED are text")
    return None
