"""Which expectations a gate may name, and their arguments: what `lakehouse validate` checks without Spark.

Row rules (gate 1) are those that `lakehouse.expectations` compiles. Table rules (gate 2) are all of Great
Expectations' own: `gallery.json` is made from the installed package by `make generated`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict

from lakehouse.contracts import Expectation


class Arguments(BaseModel):
    """The arguments of one expectation; of `one_of`, if there are any, at least one must be given."""

    model_config = ConfigDict(frozen=True)

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()


_BOUNDS = ("min_value", "max_value")
_BETWEEN = Arguments(required=("column",), optional=(*_BOUNDS, "strict_min", "strict_max"), one_of=_BOUNDS)
ROW_RULES: Mapping[str, Arguments] = {
    "expect_column_values_to_not_be_null": Arguments(required=("column",)),
    "expect_column_values_to_be_in_set": Arguments(required=("column", "value_set")),
    "expect_column_values_to_be_between": _BETWEEN,
    "expect_column_values_to_match_regex": Arguments(required=("column", "regex")),
    "expect_column_value_lengths_to_be_between": _BETWEEN,
}


@cache
def table_rules() -> Mapping[str, Arguments]:
    """The expectations of Great Expectations, by name."""
    entries = json.loads((files("lakehouse") / "gallery.json").read_text(encoding="utf-8"))
    return {name: Arguments(**entry) for name, entry in entries.items()}


def argument_mistakes(rule: Expectation, known: Mapping[str, Arguments]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with the name and the arguments of an expectation: the key below it, and a sentence."""
    if rule.type not in known:
        close = get_close_matches(rule.type, known, n=1)
        hint = f" did you mean {close[0]!r}?" if close else ""
        yield ("type",), f"no expectation {rule.type!r} here;{hint} There are: {', '.join(sorted(known))}"
        return
    arguments = known[rule.type]
    valid = (*arguments.required, *arguments.optional)
    for name in rule.kwargs:
        if name not in valid:
            close = get_close_matches(name, valid, n=1)
            hint = f" did you mean {close[0]!r}?" if close else ""
            yield ("kwargs", name), f"{rule.type} has no argument {name!r};{hint} It takes: {', '.join(valid)}"
    for name in arguments.required:
        if name not in rule.kwargs:
            yield ("kwargs",), f"{rule.type} needs the argument {name!r}"
    if arguments.one_of and not set(arguments.one_of) & set(rule.kwargs):
        yield ("kwargs",), f"{rule.type} needs at least one of {', '.join(arguments.one_of)}"
