"""Row rules: Great Expectations' expectations, compiled to Spark columns that run inside the silver pass.

A rule is judged where its `row_condition` holds and its columns have values, as Great Expectations does it: rules on
values skip NULLs, rules on several columns skip rows as `ignore_row_if` says. A verdict of NULL on what is judged
is a failure. tests/spark/test_gate.py compares every kind that Great Expectations has on Spark with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation
from lakehouse.quality.arguments import OF_THE_BATCH, SPARK_TYPES, SQL_RULE, columns_of, condition_of

if TYPE_CHECKING:
    from pyspark.sql import Column

Met = Callable[[Mapping[str, Any]], "Column"]


def fails(rule: Expectation, *, keys: Sequence[str], is_judged: Column) -> Column:
    """Whether the row fails the rule: a column of True and False, never NULL.

    The columns of the contract are those of the DataFrame, by name. `keys` identify its rows, for the rules on
    uniqueness: a value is one too many when a judged row of another key has it too. `is_judged`: which rows are asked.
    """
    asked = is_judged & is_asked(rule)
    if rule.type == SQL_RULE:
        # SQL's own reading: only a condition that is true makes a row unexpected.
        return asked & F.coalesce(F.expr(condition_of(rule)), F.lit(False))
    if rule.type in OF_THE_BATCH:
        return asked & _is_of_other_keys(columns_of(rule), keys, asked)
    return asked & ~F.coalesce(_MET[rule.type](rule.kwargs), F.lit(False))


def is_asked(rule: Expectation) -> Column:
    """Whether the rule is about the row: its `row_condition` holds, and the row has the values it is asked about."""
    return is_chosen(rule) & ~is_skipped(rule)


def is_chosen(rule: Expectation) -> Column:
    """Whether the rule's `row_condition` holds; true without one."""
    if "row_condition" not in rule.kwargs:
        return F.lit(True)
    return F.coalesce(F.expr(rule.kwargs["row_condition"]), F.lit(False))


def is_skipped(rule: Expectation) -> Column:
    """Whether the row has no value that the rule could be asked about."""
    if rule.type in (*_ON_NULLS, SQL_RULE):
        return F.lit(False)
    are_null = [F.col(column).isNull() for column in columns_of(rule)]
    if "column" in rule.kwargs:
        return are_null[0]
    when = rule.kwargs.get(
        "ignore_row_if", "both_values_are_missing" if len(are_null) == 2 else "all_values_are_missing"
    )
    if when in ("both_values_are_missing", "all_values_are_missing"):
        return reduce(operator.and_, are_null)
    if when in ("either_value_is_missing", "any_value_is_missing"):
        return reduce(operator.or_, are_null)
    return F.lit(False)


def _is_of_other_keys(columns: Sequence[str], keys: Sequence[str], is_judged: Column) -> Column:
    """Whether judged rows of several keys have these values."""
    same_values = Window.partitionBy(is_judged, *columns)
    key = F.struct(*keys)
    return F.min(key).over(same_values) != F.max(key).over(same_values)


def _in_set(arguments: Mapping[str, Any]) -> Column:
    return F.col(arguments["column"]).isin(list(arguments["value_set"]))


def _not_in_set(arguments: Mapping[str, Any]) -> Column:
    return ~_in_set(arguments)


def _between(arguments: Mapping[str, Any]) -> Column:
    return _within(F.col(arguments["column"]), arguments)


def _match_regex(arguments: Mapping[str, Any]) -> Column:
    return F.col(arguments["column"]).rlike(arguments["regex"])


def _not_match_regex(arguments: Mapping[str, Any]) -> Column:
    return ~_match_regex(arguments)


def _match_like(arguments: Mapping[str, Any]) -> Column:
    escape = arguments.get("escape")
    pattern = F.lit(arguments["like_pattern"])
    column = F.col(arguments["column"])
    return F.like(column, pattern) if escape is None else F.like(column, pattern, F.lit(escape))


def _not_match_like(arguments: Mapping[str, Any]) -> Column:
    return ~_match_like(arguments)


def _lengths_between(arguments: Mapping[str, Any]) -> Column:
    return _within(F.length(arguments["column"]), arguments)


def _lengths_equal(arguments: Mapping[str, Any]) -> Column:
    return F.length(arguments["column"]) == F.lit(arguments["value"])


def _of_type(arguments: Mapping[str, Any]) -> Column:
    wanted = SPARK_TYPES[arguments["type_"]]
    return F.regexp_extract(F.typeof(arguments["column"]), r"^\w+", 0) == F.lit(wanted)


def _json(arguments: Mapping[str, Any]) -> Column:
    text = F.col(arguments["column"])
    # Spark reads the first value and looks no further. Text that goes on cannot end both an array and an object.
    in_array, in_object = F.concat(F.lit("["), text, F.lit("]")), F.concat(F.lit('{"":'), text, F.lit("}"))
    is_one = F.json_array_length(in_array) == 1
    return is_one & F.try_parse_json(in_array).isNotNull() & F.try_parse_json(in_object).isNotNull()


def _pair_equal(arguments: Mapping[str, Any]) -> Column:
    return F.col(arguments["column_A"]).eqNullSafe(F.col(arguments["column_B"]))


def _pair_greater(arguments: Mapping[str, Any]) -> Column:
    first, second = F.col(arguments["column_A"]), F.col(arguments["column_B"])
    # A row whose values cannot be compared passes; `ignore_row_if` only says whether it is counted.
    met = first.isNull() | second.isNull() | (first > second)
    return met | (first == second) if arguments.get("or_equal") else met


def _sum_equal(arguments: Mapping[str, Any]) -> Column:
    numbers = [F.coalesce(F.col(column), F.lit(0)) for column in arguments["column_list"]]
    return reduce(F.try_add, numbers) == F.lit(arguments["sum_total"])


def _within(number: Column, arguments: Mapping[str, Any]) -> Column:
    low, high = arguments.get("min_value"), arguments.get("max_value")
    met = F.lit(True)
    if low is not None:
        met = met & ((number > F.lit(low)) if arguments.get("strict_min") else (number >= F.lit(low)))
    if high is not None:
        met = met & ((number < F.lit(high)) if arguments.get("strict_max") else (number <= F.lit(high)))
    return met


_ON_NULLS = ("expect_column_values_to_not_be_null", "expect_column_values_to_be_null")
# Their names and arguments are in lakehouse.quality.arguments, and checked when a contract is loaded.
_MET: Mapping[str, Met] = {
    "expect_column_values_to_not_be_null": lambda arguments: F.col(arguments["column"]).isNotNull(),
    "expect_column_values_to_be_null": lambda arguments: F.col(arguments["column"]).isNull(),
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": _not_in_set,
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_match_regex": _match_regex,
    "expect_column_values_to_not_match_regex": _not_match_regex,
    "expect_column_values_to_match_like_pattern": _match_like,
    "expect_column_values_to_not_match_like_pattern": _not_match_like,
    "expect_column_value_lengths_to_be_between": _lengths_between,
    "expect_column_value_lengths_to_equal": _lengths_equal,
    "expect_column_values_to_be_of_type": _of_type,
    "expect_column_values_to_be_json_parseable": _json,
    "expect_column_pair_values_to_be_equal": _pair_equal,
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_greater,
    "expect_multicolumn_sum_to_equal": _sum_equal,
}
