"""Row rules: Great Expectations' expectations, compiled to Spark columns that run inside the silver pass.

A rule is True where the row fails it, False everywhere else, never NULL. As in Great Expectations, rules on values skip
NULL cells, and a verdict of NULL on a value is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.contracts import Expectation

if TYPE_CHECKING:
    from pyspark.sql import Column

Rule = Callable[[Callable[[str], "Column"], Mapping[str, Any]], "Column"]


def fails(expectation: Expectation, cell: Callable[[str], Column]) -> Column:
    """Whether the row fails: a column of True and False. `cell` gives the column of a contract's column name."""
    return _COMPILED[expectation.type](cell, expectation.kwargs)


def _not_null(cell: Callable[[str], Column], arguments: Mapping[str, Any]) -> Column:
    return cell(arguments["column"]).isNull()


def _in_set(cell: Callable[[str], Column], arguments: Mapping[str, Any]) -> Column:
    value = cell(arguments["column"])
    return _unmet(value, value.isin(list(arguments["value_set"])))


def _between(cell: Callable[[str], Column], arguments: Mapping[str, Any]) -> Column:
    value = cell(arguments["column"])
    return _unmet(value, _within(value, arguments))


def _match_regex(cell: Callable[[str], Column], arguments: Mapping[str, Any]) -> Column:
    value = cell(arguments["column"])
    return _unmet(value, value.rlike(arguments["regex"]))


def _lengths_between(cell: Callable[[str], Column], arguments: Mapping[str, Any]) -> Column:
    value = cell(arguments["column"])
    return _unmet(value, _within(F.length(value), arguments))


def _unmet(value: Column, met: Column) -> Column:
    return value.isNotNull() & ~F.coalesce(met, F.lit(False))


def _within(number: Column, arguments: Mapping[str, Any]) -> Column:
    low, high = arguments.get("min_value"), arguments.get("max_value")
    met = F.lit(True)
    if low is not None:
        met = met & ((number > F.lit(low)) if arguments.get("strict_min") else (number >= F.lit(low)))
    if high is not None:
        met = met & ((number < F.lit(high)) if arguments.get("strict_max") else (number <= F.lit(high)))
    return met


# Their names and arguments are in lakehouse.rule_arguments, and checked when a contract is loaded.
_COMPILED: Mapping[str, Rule] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_match_regex": _match_regex,
    "expect_column_value_lengths_to_be_between": _lengths_between,
}
