"""Which table rules are counted, which counts are carried from one run to the next, and what a count decides."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.contracts.models import Expectation
from lakehouse.quality.arguments import ROW_COUNT, SQL_RULE
from lakehouse.quality.counting import Counts, counted_before, counts_of, is_carried, is_counted, rows_of_table
from lakehouse.quality.table_rules import Verdict

NOT_NULL, UNIQUE = "expect_column_values_to_not_be_null", "expect_column_values_to_be_unique"
BETWEEN = "expect_column_values_to_be_between"
WHERE = {"condition_parser": "spark"}


def rule(kind: str, name: str = "of_this_test", **kwargs: Any) -> Expectation:
    return Expectation(name=name, type=kind, kwargs=kwargs, on_failure="warn", description="A rule of this test.")


@pytest.mark.parametrize(
    ("one", "counted", "carried"),
    [
        (rule(NOT_NULL, column="a", mostly=0.9), True, True),
        (rule(NOT_NULL, column="a", row_condition="b > 0", **WHERE), True, True),
        (rule(NOT_NULL, column="a", row_condition="b > current_date()", **WHERE), True, False),
        (rule(ROW_COUNT, min_value={"$PARAMETER": "rows_before * 0.9"}), True, True),
        (rule(ROW_COUNT, min_value={"$PARAMETER": "round(rows_before * 0.9)"}), True, True),
        (rule(ROW_COUNT, min_value={"$PARAMETER": "rows_before ^ 2"}), False, False),
        (rule(ROW_COUNT, min_value=1, row_condition="b > 0", **WHERE), False, False),
        # Two rows that are the same in these columns may be far apart; and what a query finds may be anything.
        (rule(UNIQUE, column="a"), True, False),
        (rule(SQL_RULE, unexpected_rows_query="SELECT * FROM {batch}"), True, False),
        (rule(SQL_RULE, unexpected_rows_query="SELECT * FROM {batch}", row_condition="b > 0", **WHERE), False, False),
        # A bound that is computed, the type of a column, and what is about a whole column.
        (rule(BETWEEN, column="a", min_value={"$PARAMETER": "now()"}), False, False),
        (rule("expect_column_values_to_be_of_type", column="a", type_="LongType"), False, False),
        (rule("expect_column_max_to_be_between", column="a", min_value=1), False, False),
        (rule(NOT_NULL, column="a", of_a_later_release=True), False, False),
    ],
    ids=lambda value: str(getattr(value, "kwargs", value)),
)
def test_what_is_counted_and_what_is_carried(one: Expectation, counted: bool, carried: bool) -> None:
    assert (is_counted(one), is_carried(one)) == (counted, carried)


def test_counts_are_added_and_taken_off() -> None:
    assert Counts(5, 2, 1) - Counts(3, 1, 1) + Counts(1, 0, 1) == Counts(3, 1, 1)


def test_only_rules_that_are_carried_go_on_from_what_was_counted() -> None:
    known, unique = rule(NOT_NULL, "known", column="a"), rule(UNIQUE, "unique", column="a")
    rows, new = rule(ROW_COUNT, "rows", min_value=1), rule(NOT_NULL, "new", column="b")
    counts = {"known": Counts(7, 0, 2), "unique": Counts(7), "gone": Counts(7)}
    assert counted_before([known, unique, rows, new], counts, 8) == {"known": Counts(7, 0, 2), "rows": Counts(8)}
    assert counted_before([rows], {}, None) == {}


def test_what_great_expectations_has_counted_is_gone_on_from() -> None:
    known, rows = rule(NOT_NULL, "known", column="a"), rule(ROW_COUNT, "rows", min_value=1)
    failed = Verdict(
        rule(NOT_NULL, "failed", column="c"), False, 0, 0, message="It could not be evaluated: an exception."
    )
    verdicts = [Verdict(known, True, 9, 2, without_value=1), Verdict(rows, True, 1, 0, observed="9"), failed]
    assert counts_of(verdicts) == {"known": Counts(9, 1, 2), "rows": Counts(9)}


def test_the_rows_of_a_table_are_known_from_a_rule_about_all_of_them() -> None:
    some = rule(NOT_NULL, "some", column="a", row_condition="b > 0", **WHERE)
    every = rule(NOT_NULL, "every", column="a")
    counts = {"some": Counts(3), "every": Counts(8)}
    assert rows_of_table([some, every], counts) == 8
    assert rows_of_table([some], counts) is None
