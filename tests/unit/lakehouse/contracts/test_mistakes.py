"""The sentences about a name that is not there."""

from __future__ import annotations

import pytest

from lakehouse.contracts.checks.mistakes import did_you_mean, unknown

KNOWN = ("order_id", "customer_id", "status")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("statu", "; did you mean 'status'?"),
        ("oder_id", "; did you mean 'order_id'?"),
        ("STATUS", "; did you mean 'status'?"),
        ("amount", "."),
    ],
)
def test_the_closest_name_is_asked_for(name: str, said: str) -> None:
    assert did_you_mean(name, KNOWN) == said


def test_the_question_has_the_form_and_the_number_of_names_that_are_wanted() -> None:
    assert did_you_mean("a{}c", ["a{}d"], form=" ({})") == " (did you mean 'a{}d'?)"
    assert did_you_mean("x", KNOWN, otherwise="") == ""
    assert did_you_mean("orders", ["order", "orders_2", "users"], most=2) == "; did you mean 'order' or 'orders_2'?"


def test_every_name_that_there_is_is_listed() -> None:
    assert unknown("column", "oder_id", KNOWN, where="columns") == (
        "no column 'oder_id' in columns; did you mean 'order_id'? There are: customer_id, order_id, status"
    )
    assert unknown("feed", "x", ["y"], where="z") == "no feed 'x' in z. There is: y"
    assert unknown("feed", "x", [], where="z") == "no feed 'x' in z; there is none"
