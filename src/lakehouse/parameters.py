"""What a table rule learns when it is asked: `min_value: {$PARAMETER: "rows_before * 0.9"}`.

The form, and what can be computed in it, are Great Expectations' own (its "suite parameters"). Imports without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from lakehouse.contracts import Expectation

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


def expressions(rule: Expectation) -> Mapping[str, str]:
    """The arguments of the rule that are parameters, each with its expression."""
    return {name: str(value[_KEY]) for name, value in rule.kwargs.items() if _is_parameter(value)}


def needed(rule: Expectation) -> frozenset[str]:
    """The parameters that the rule cannot be asked without."""
    trees = [ast.walk(ast.parse(text, mode="eval")) for text in expressions(rule).values()]
    names = {node.id for tree in trees for node in tree if isinstance(node, ast.Name)}
    return frozenset(names & set(PARAMETERS))


def looks_at_the_time(rule: Expectation) -> bool:
    """Whether the rule may come out otherwise later, about the same rows."""
    trees = [ast.walk(ast.parse(text, mode="eval")) for text in expressions(rule).values()]
    return any(isinstance(node, ast.Name) and node.id == "now" for tree in trees for node in tree)


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
        close = get_close_matches(name, valid, n=1)
        hint = f" did you mean {close[0]!r}?" if close else ""
        yield f"no {what} {name!r};{hint} There {'is' if len(valid) == 1 else 'are'}: {', '.join(valid)}"
