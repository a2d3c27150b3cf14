"""Which expectations a gate may name, and their arguments: what `lakehouse validate` checks without Spark.

Row rules (gate 1) are those that `lakehouse.quality.row_rules` compiles. Table rules (gate 2) are all of Great
Expectations' own: `gallery.json` is made from the installed package by `make generated`. A table rule may compute with
parameters (`min_value: {$PARAMETER: "rows_before * 0.9"}`) in the form of Great Expectations' suite parameters.
Imports without it.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import cast

from pydantic import BaseModel, ConfigDict

from lakehouse.contracts.checks.mistakes import did_you_mean
from lakehouse.contracts.models import Expectation


class Arguments(BaseModel):
    """The arguments of one expectation; of `one_of`, if there are any, at least one must be given."""

    model_config = ConfigDict(frozen=True)

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()


# The rule whose condition is SQL; that about the number of rows; and that about a column's type, not its values.
SQL_RULE = "unexpected_rows_expectation"
ROW_COUNT = "expect_table_row_count_to_be_between"
OF_THE_COLUMN = "expect_column_values_to_be_of_type"
_BOUNDS = ("min_value", "max_value")
_CONDITION = ("row_condition", "condition_parser")
_OF_VALUES = ("mostly", *_CONDITION)
_OF_ROWS = (*_OF_VALUES, "ignore_row_if")


def _of_column(*required: str, optional: tuple[str, ...] = ()) -> Arguments:
    return Arguments(required=("column", *required), optional=(*optional, *_OF_VALUES))


_BETWEEN = Arguments(required=("column",), optional=(*_BOUNDS, "strict_min", "strict_max", *_OF_VALUES), one_of=_BOUNDS)
_LIKE = _of_column("like_pattern", optional=("escape",))
ROW_RULES: Mapping[str, Arguments] = {
    "expect_column_values_to_not_be_null": _of_column(),
    "expect_column_values_to_be_null": _of_column(),
    "expect_column_values_to_be_in_set": _of_column("value_set"),
    "expect_column_values_to_not_be_in_set": _of_column("value_set"),
    "expect_column_values_to_be_between": _BETWEEN,
    "expect_column_values_to_match_regex": _of_column("regex"),
    "expect_column_values_to_not_match_regex": _of_column("regex"),
    "expect_column_values_to_match_like_pattern": _LIKE,
    "expect_column_values_to_not_match_like_pattern": _LIKE,
    "expect_column_value_lengths_to_be_between": _BETWEEN,
    "expect_column_value_lengths_to_equal": _of_column("value"),
    OF_THE_COLUMN: _of_column("type_"),
    "expect_column_values_to_be_json_parseable": _of_column(),
    "expect_column_values_to_be_unique": _of_column(),
    "expect_compound_columns_to_be_unique": Arguments(required=("column_list",), optional=_OF_ROWS),
    "expect_column_pair_values_to_be_equal": Arguments(required=("column_A", "column_B"), optional=_OF_ROWS),
    "expect_column_pair_values_a_to_be_greater_than_b": Arguments(
        required=("column_A", "column_B"), optional=("or_equal", *_OF_ROWS)
    ),
    "expect_multicolumn_sum_to_equal": Arguments(required=("column_list", "sum_total"), optional=_OF_ROWS),
    SQL_RULE: Arguments(required=("unexpected_rows_query",)),
}
# What a row fails by the other rows of its batch: not the same in every cut of the batches.
OF_THE_BATCH = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")
# The arguments that are SQL, and what gives the present time in it.
_SQL_ARGUMENTS = ("unexpected_rows_query", "row_condition")
_TIME_IN_SQL = re.compile(
    r"\b(?:now\s*\(|current_(?:date|time|timestamp)\b|localtimestamp\b|curdate\s*\(|unix_timestamp\s*\(\s*\))",
    re.IGNORECASE,
)
# Great Expectations' name of a type on Spark: Spark SQL's, without its sizes.
SPARK_TYPES: Mapping[str, str] = {
    "StringType": "string",
    "BooleanType": "boolean",
    "ShortType": "smallint",
    "IntegerType": "int",
    "LongType": "bigint",
    "FloatType": "float",
    "DoubleType": "double",
    "DecimalType": "decimal",
    "DateType": "date",
    "TimestampType": "timestamp",
    "BinaryType": "binary",
    "ArrayType": "array",
}
_QUERY = re.compile(r"\s*SELECT\s+\*\s+FROM\s+\{batch\}\s+WHERE\s+(?P<condition>.+?)\s*", re.IGNORECASE | re.DOTALL)


def condition_of(rule: Expectation) -> str:
    """The condition of an `unexpected_rows_expectation` as row rule; "" where its query has another form."""
    found = _QUERY.fullmatch(str(rule.kwargs.get("unexpected_rows_query", "")))
    condition = found["condition"] if found else ""
    return "" if re.search(r"\bSELECT\b", condition, re.IGNORECASE) else condition


def columns_of(rule: Expectation) -> tuple[str, ...]:
    """The columns that the rule names as arguments."""
    named = [rule.kwargs[name] for name in ("column", "column_A", "column_B") if name in rule.kwargs]
    return tuple(str(name) for name in (*named, *rule.kwargs.get("column_list", ())))


def columns_asked(rule: Expectation, known: Iterable[str]) -> tuple[str, ...]:
    """The columns that the rule asks about: of a condition in SQL, those of `known` that it names."""
    if rule.type != SQL_RULE:
        return columns_of(rule)
    words = {word.lower() for word in re.findall(r"\w+", condition_of(rule))}
    return tuple(name for name in known if name.lower() in words)


def reason(rule: Expectation) -> str:
    """Why a row that fails the rule goes to quarantine: its columns, and the sentence of the contract."""
    columns = ", ".join(columns_of(rule))
    return f"{columns}: {rule.description}" if columns else rule.description


@cache
def table_rules() -> Mapping[str, Arguments]:
    """The expectations of Great Expectations, by name."""
    entries = json.loads((files("lakehouse.quality") / "gallery.json").read_text(encoding="utf-8"))
    return {name: Arguments(**entry) for name, entry in entries.items()}


def argument_mistakes(rule: Expectation, known: Mapping[str, Arguments]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with the name and the arguments of an expectation: the key below it, and a sentence."""
    if rule.type not in known:
        meant = did_you_mean(rule.type, known)
        yield ("type",), f"no expectation {rule.type!r} here{meant} There are: {', '.join(sorted(known))}"
        return
    arguments = known[rule.type]
    valid = (*arguments.required, *arguments.optional)
    for name in rule.kwargs:
        if name not in valid:
            meant = did_you_mean(name, valid)
            yield ("kwargs", name), f"{rule.type} has no argument {name!r}{meant} It takes: {', '.join(valid)}"
    for name in arguments.required:
        if name not in rule.kwargs:
            yield ("kwargs",), f"{rule.type} needs the argument {name!r}"
    if arguments.one_of and not set(arguments.one_of) & set(rule.kwargs):
        yield ("kwargs",), f"{rule.type} needs at least one of {', '.join(arguments.one_of)}"
    yield from _value_mistakes(rule)


def row_rule_mistakes(rule: Expectation) -> Iterator[tuple[tuple[str, ...], str]]:
    """What else is wrong with a rule that judges row by row: the key below it, and a sentence."""
    if rule.type == SQL_RULE and not condition_of(rule):
        wanted = "SELECT * FROM {batch} WHERE <condition on the columns of one row>"
        yield ("kwargs", "unexpected_rows_query"), f"as a row rule the query is: {wanted}"
    if rule.type == OF_THE_COLUMN and rule.kwargs.get("type_") not in SPARK_TYPES:
        yield ("kwargs", "type_"), f"no type {rule.kwargs.get('type_')!r} here. There are: {', '.join(SPARK_TYPES)}"
    if rule.type in OF_THE_BATCH and rule.on_failure != "warn":
        what = "which rows come in one batch is chance, and must not decide what silver holds: only `warn` is possible"
        yield ("on_failure",), f"{what}. A rule of gold/gate.yaml sees the whole table"
    for name in expressions(rule):
        yield ("kwargs", name), "a row is judged by itself: parameters are for the rules of gold/gate.yaml"


def table_rule_mistakes(rule: Expectation) -> Iterator[tuple[tuple[str, ...], str]]:
    """What else is wrong with a rule that judges a table: the key below it, and a sentence."""
    if rule.type == SQL_RULE and "{batch}" not in str(rule.kwargs.get("unexpected_rows_query", "{batch}")):
        yield ("kwargs", "unexpected_rows_query"), "the query names the table that is judged: {batch}"
    yield from parameter_mistakes(rule)


def why_not_of_changes(rule: Expectation, keys: Iterable[str]) -> str:
    """Why the verdict on a table does not follow from the rows of its changed keys; empty where it does."""
    if expressions(rule):
        return "a bound that is computed again is about all rows"
    if "mostly" in rule.kwargs:
        return "a share is a share of all rows"
    if rule.type in OF_THE_BATCH and not set(keys) <= set(columns_of(rule)):
        return f"two rows with other keys may be equal there; only with the key ({', '.join(keys)}) it is known"
    if rule.type not in (SQL_RULE, *ROW_RULES):
        return f"{rule.type} is about a whole column or table"
    return ""


def _value_mistakes(rule: Expectation) -> Iterator[tuple[tuple[str, ...], str]]:
    given = rule.kwargs
    if "row_condition" in given and given.get("condition_parser") != "spark":
        yield ("kwargs", "condition_parser"), "a row_condition is Spark SQL here: say `condition_parser: spark`"
    if "mostly" in given and not (isinstance(given["mostly"], int | float) and 0 <= given["mostly"] <= 1):
        yield ("kwargs", "mostly"), "mostly is a share, from 0 to 1"


# The live rows of the table when its source last passed the gate.
ROWS_BEFORE = "rows_before"
PARAMETERS = (ROWS_BEFORE,)
# Of Great Expectations' functions those that a bound can need; times are UTC.
FUNCTIONS = ("now", "timedelta", "datetime", "round", "trunc", "abs")
# The arguments that may be a parameter: numbers and times.
BOUNDS = ("min_value", "max_value", "value", "sum_total")
_KEY = "$PARAMETER"
_PARTS = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.keyword, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitXor, ast.UAdd, ast.USub),
)
_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_NUMBER_FUNCTIONS: Mapping[str, Callable[[float], float]] = {"round": round, "trunc": int, "abs": abs}
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Call, ast.UAdd, ast.USub, *_OPERATIONS)


def expressions(rule: Expectation) -> Mapping[str, str]:
    """The arguments of the rule that are parameters, each with its expression."""
    return {name: str(value[_KEY]) for name, value in rule.kwargs.items() if _is_parameter(value)}


def needed(rule: Expectation) -> frozenset[str]:
    """The parameters that the rule cannot be asked without."""
    trees = [ast.walk(ast.parse(text, mode="eval")) for text in expressions(rule).values()]
    names = {node.id for tree in trees for node in tree if isinstance(node, ast.Name)}
    return frozenset(names & set(PARAMETERS))


def is_arithmetic(text: str) -> bool:
    """Whether the expression is made of numbers, parameters, + - * / and functions of one number alone."""
    tree = ast.parse(text, mode="eval")
    return all(
        isinstance(node, (*_ARITHMETIC, ast.Constant, ast.Name, ast.Load, ast.Expression))
        and (not isinstance(node, ast.Name) or node.id in (*PARAMETERS, *_NUMBER_FUNCTIONS))
        and (not isinstance(node, ast.Call) or (len(node.args) == 1 and not node.keywords))
        for node in ast.walk(tree)
    )


def evaluate_bound(text: str, parameters: Mapping[str, int]) -> float:
    """The value of an arithmetic expression (`rows_before * 0.9`). Raises ZeroDivisionError."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left, operation, right):
                return _OPERATIONS[type(operation)](value(left), value(right))
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.UnaryOp(_, operand):
                return value(operand)
            case ast.Call(ast.Name(name), [argument]):
                return _NUMBER_FUNCTIONS[name](value(argument))
            case ast.Name(name):
                return parameters[name]
            case ast.Constant(number):
                return cast(float, number)
        raise ValueError(f"no arithmetic: {text}")

    return value(ast.parse(text, mode="eval").body)


def looks_at_the_time(rule: Expectation) -> bool:
    """Whether the rule may come out otherwise later, about the same rows: by a bound, or by SQL."""
    trees = [ast.walk(ast.parse(text, mode="eval")) for text in expressions(rule).values()]
    is_in_bound = any(isinstance(node, ast.Name) and node.id == "now" for tree in trees for node in tree)
    return is_in_bound or any(_TIME_IN_SQL.search(str(rule.kwargs.get(name, ""))) for name in _SQL_ARGUMENTS)


def parameter_mistakes(rule: Expectation) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with the parameters of a table rule: the key below it, and a sentence."""
    for name, value in rule.kwargs.items():
        here = ("kwargs", name)
        if _is_parameter(value):
            if name not in BOUNDS:
                yield here, f"{name} cannot be a parameter; these can: {', '.join(BOUNDS)}"
            else:
                yield from ((here, what) for what in _expression_mistakes(value[_KEY]))
        elif isinstance(value, Mapping) and name in BOUNDS:
            yield here, f'{name} is a number, a time, or {{{_KEY}: "{ROWS_BEFORE} * 0.9"}}'


def _is_parameter(value: object) -> bool:
    return isinstance(value, Mapping) and set(value) == {_KEY}


def _expression_mistakes(text: object) -> Iterator[str]:
    try:
        tree = ast.parse(str(text), mode="eval")
    except SyntaxError:
        yield f"{text!r} is no expression: it is made of numbers, + - * / ^, parameters and functions"
        return
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) in functions:
            yield from _unknown("function", node.id, FUNCTIONS)
        elif isinstance(node, ast.Name):
            yield from _unknown("parameter", node.id, PARAMETERS)
        elif not isinstance(node, _PARTS) or (isinstance(node, ast.Constant) and not _is_number(node.value)):
            yield f"{text!r} has more than numbers, + - * / ^, parameters and functions"
            return


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unknown(what: str, name: str, valid: tuple[str, ...]) -> Iterator[str]:
    if name not in valid:
        verb = "is" if len(valid) == 1 else "are"
        yield f"no {what} {name!r}{did_you_mean(name, valid)} There {verb}: {', '.join(valid)}"
