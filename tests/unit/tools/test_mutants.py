"""Mutants are what their texts say, and `make mutants` has a list that names mutants of the code as it is."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tools.mutants import PACKAGES, TIMED_OUT, Reviewed, in_child, main, modules_of, mutations_of, set_limit
from tools.mutations import Mutations, replace_code

SOURCE = '''
from functools import cached_property

LIMIT = 3


class Box:
    """A box."""

    @cached_property
    def size(self) -> int:
        return 1 + LIMIT


def fits(numbers: list[int], most: int = 7) -> bool:
    """Whether they do."""
    found = [one for one in numbers if one < most]
    if not found:
        raise ValueError("none")
    return max(found, key=lambda one: -one) in (1, 2)


ends = (lambda one: one > 0,)
'''


def mutants() -> list[tuple[str, str, str]]:
    return [(one.function, one.old, one.new) for one in Mutations("boxes", SOURCE, "boxes.py").mutants]


def test_a_mutant_replaces_one_expression_or_statement_of_a_function() -> None:
    comparison = "max(found, key=lambda one: -one) in (1, 2)"
    assert mutants() == [
        ("Box.size", "1 + LIMIT", "None"),
        ("Box.size", "1 + LIMIT", "1 - LIMIT"),
        ("Box.size", "1", "2"),
        ("fits", "one < most", "True"),
        ("fits", "one < most", "False"),
        ("fits", "one < most", "one <= most"),
        ("fits", "not found", "True"),
        ("fits", "not found", "False"),
        ("fits", "not found", "found"),
        ("fits", "raise ValueError('none')", "pass"),
        ("fits", comparison, "None"),
        ("fits", comparison, "max(found, key=lambda one: -one) not in (1, 2)"),
        ("fits", "max(found, key=lambda one: -one)", "min(found, key=lambda one: -one)"),
        ("fits", "max(found, key=lambda one: -one)", "max(found)"),
        ("fits", "-one", "one"),
        ("fits", "(1, 2)", "(2,)"),
        ("fits", "(1, 2)", "(1,)"),
        ("fits", "1", "2"),
        ("fits", "2", "3"),
        ("<lambda>", "one > 0", "one >= 0"),
        ("<lambda>", "0", "1"),
    ]


def test_equal_places_of_a_function_have_numbers_and_the_lines_of_their_statements() -> None:
    found = Mutations(
        "m", "def f(x):\n    if (x or\n            x):\n        return x or\\\n            x\n", "m.py"
    ).mutants
    assert [(one.nth, one.lines) for one in found if one.new == "x and x"] == [(1, range(2, 4)), (2, range(4, 6))]
    assert str(found[-1]) == "m:4 f: x or x -> x (the 4. of these)"


def namespace(mutations: Mutations) -> dict[str, Any]:
    """The module, imported."""
    found: dict[str, Any] = {}
    exec(mutations.code(), found)  # noqa: S102
    return found


@pytest.mark.parametrize(
    ("function", "new", "seen"),
    [
        ("Box.size", "1 - LIMIT", (-2, False, False)),
        ("fits", "max(found)", (4, True, False)),
        ("fits", "min(found, key=lambda one: -one)", (4, True, False)),
        ("<lambda>", "one >= 0", (4, False, True)),
    ],
)
def test_a_function_that_is_loaded_gets_the_code_of_the_mutant(
    function: str, new: str, seen: tuple[int, bool, bool]
) -> None:
    mutations = Mutations("boxes", SOURCE, "boxes.py")
    loaded = namespace(mutations)
    box, fits, is_positive = loaded["Box"], loaded["fits"], loaded["ends"][0]
    assert (box().size, fits([0, 2, 7]), is_positive(0)) == (4, False, False)
    (mutant,) = [one for one in mutations.mutants if (one.function, one.new) == (function, new)]
    replace_code([vars(box)["size"].func, fits, is_positive], mutations.code(), mutations.code(mutant))
    assert (box().size, fits([0, 2, 7]), is_positive(0)) == seen
    with pytest.raises(ValueError, match="No function of boxes"):
        replace_code([], mutations.code(), mutations.code(mutant))


def test_what_a_child_returns_raises_and_what_never_ends() -> None:
    assert in_child(lambda: ("x", 1)) == ("x", 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_child(lambda: 1 // 0)

    def forever() -> None:
        set_limit(0.05)
        while True:
            time.sleep(0 if time.process_time() else 1)

    assert in_child(forever) == TIMED_OUT


def test_the_reviewed_modules_are_of_the_packages() -> None:
    assert set(Reviewed.read().modules) <= {module for package in PACKAGES for module in modules_of(package)}


@pytest.mark.parametrize("module", Reviewed.read().modules)
def test_every_entry_of_the_list_is_a_mutant_of_the_code(module: str) -> None:
    entries = [one for one in Reviewed.read().survivors if one[0] == module]
    assert len(entries) == len({*entries})
    assert {*entries} - {one.identity for one in mutations_of(module).mutants} == set()


def test_every_entry_is_of_a_reviewed_module() -> None:
    reviewed = Reviewed.read()
    assert {one[0] for one in reviewed.survivors} <= {*reviewed.modules}


def test_a_part_that_no_module_is_of_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["silver.orders"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("No module's name begins with silver.orders. Modules are: silver.order.facts, ")
