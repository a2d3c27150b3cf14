"""Which rules may come out otherwise later, about the same rows; and what a computed bound comes to."""

from __future__ import annotations

from typing import Any

import pytest

from gold.quality.gate_rules import asks_about_the_time
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import TableExpectation
from lakehouse.quality.arguments import SQL_RULE, evaluate_bound, is_arithmetic, looks_at_the_time

BETWEEN = "expect_column_max_to_be_between"


def rule(kind: str, **kwargs: Any) -> TableExpectation:
    return TableExpectation(name="r", type=kind, kwargs=kwargs, on_failure="warn", description="A rule of this test.")


def sql(condition: str) -> TableExpectation:
    return rule(SQL_RULE, unexpected_rows_query=f"SELECT * FROM {{batch}} WHERE {condition}")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (rule(BETWEEN, column="a", min_value={"$PARAMETER": "now() - timedelta(hours=1)"}), True),
        (rule(BETWEEN, column="a", min_value={"$PARAMETER": "rows_before * 0.9"}), False),
        (rule(BETWEEN, column="a", min_value=1), False),
        (sql("a < now() - INTERVAL 1 DAY"), True),
        (sql("a < CURRENT_TIMESTAMP"), True),
        (sql("a < current_timestamp() - INTERVAL 1 DAY"), True),
        (sql("to_date(a) < current_date"), True),
        (sql("a < unix_timestamp( )"), True),
        (sql("a < unix_timestamp(b) AND known > 1 AND current_dates = 2"), False),
        (rule(BETWEEN, column="a", min_value=1, row_condition="b > now()", condition_parser="spark"), True),
    ],
)
def test_a_rule_about_the_time(one: TableExpectation, expected: bool) -> None:
    assert looks_at_the_time(one) is expected
    gate = load_contracts().gold_gate
    assert not asks_about_the_time(gate), "the packaged rules cost a run without news nothing"
    for update in ({"expectations": (one,)}, {"publication": (one,)}):
        assert asks_about_the_time(gate.model_copy(update=update)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("rows_before * 0.9", 9), ("-rows_before + 1e1", 0), ("round(rows_before / 3) - trunc(1.9)", 2), ("abs(-7)", 7)],
)
def test_what_a_bound_comes_to(text: str, expected: float) -> None:
    assert is_arithmetic(text)
    assert evaluate_bound(text, {"rows_before": 10}) == expected


@pytest.mark.parametrize("text", ["now()", "rows_before ^ 2", "round(1, 2)", "timedelta(hours=1)"])
def test_what_is_more_than_arithmetic_is_not_computed_here(text: str) -> None:
    assert not is_arithmetic(text)
