"""What suspends a table, by the counts of its records alone."""

from __future__ import annotations

from typing import Any

from lakehouse.contracts.models import Expectation
from lakehouse.contracts.tables import MaxRejectRatio
from silver.batch.events import COUNTS, column_names
from silver.suspended import BUDGET, COORDINATES, PARSE_ERRORS, Suspension, regressed, suspended_error, suspension_of
from tests.support.feeds import feed

NOT_NEGATIVE = Expectation(
    name="amount_not_negative",
    type="expect_column_values_to_be_between",
    kwargs={"column": "total_amount", "min_value": 0},
    on_failure="quarantine",
    description="An order's amount is zero or more.",
)
MUST_HOLD = NOT_NEGATIVE.model_copy(update={"name": "must_hold", "on_failure": "fail"})
RULES = [NOT_NEGATIVE, MUST_HOLD]


def counted(**given: Any) -> Any:
    """The counts of some records: all are good where nothing is said."""
    none = {"judged": 10, "unread": 0, "failed_rules": {}, "quarantined": 0, "changes": 10, "truncates": 0}
    assert {*none, *given} <= {*column_names(COUNTS)}
    return {**none, **given}


def test_the_first_record_that_cannot_be_read_suspends_where_the_contract_says_so() -> None:
    rows = [counted(), counted(unread=1, quarantined=1), counted(unread=2, quarantined=2)]
    assert suspension_of(feed(parse_errors="fail"), RULES, rows[:1]) is None
    assert suspension_of(feed(parse_errors="fail"), RULES, rows) == Suspension(
        PARSE_ERRORS,
        "Every record can be read, and its values fit.",
        "of its records 3 cannot be read, or have a value that does not fit (parse_errors: fail)",
        failed=3,
        judged=3,
    )
    assert suspension_of(feed(), RULES, rows) is None


def test_records_that_fail_a_rule_can_be_read() -> None:
    rows = [counted(quarantined=5, failed_rules={"amount_not_negative": 5})]
    assert suspension_of(feed(parse_errors="fail"), RULES, rows) is None


def test_a_rule_that_must_hold_is_said_first_and_the_budget_last() -> None:
    budgeted = {"max_reject_ratio": MaxRejectRatio(share=0.1)}
    rows = [counted(unread=4, quarantined=5, failed_rules={"must_hold": 1})]
    of = {True: feed(parse_errors="fail", **budgeted), False: feed(**budgeted)}
    found = [suspension_of(of[is_strict], rules, rows) for is_strict, rules in ((True, RULES), (True, []), (False, []))]
    assert [one and one.rule for one in found] == ["must_hold", PARSE_ERRORS, BUDGET]


def test_records_without_a_run_that_fall_behind_suspend_and_the_way_on_is_said() -> None:
    assert regressed({}) is None
    suspension = regressed({("shop.things", "id", 1): (70, 2), ("shop.things", "id", 0): (1_000, 3)})
    assert suspension is not None
    assert (suspension.rule, suspension.failed) == (COORDINATES, 5)
    assert suspension.why.startswith("from offset 1,000 of shop.things, partition 0, 5 records are behind")
    error = suspended_error({"things": suspension.why, "others": "so"}, {"things": suspension.rule})
    assert "__debezium.context.runId" in error.what
    assert "extended.headers.enabled=true" in error.remedy
    assert error.remedy.endswith("be superseded: lakehouse silver --accept-rejects things.")
    assert (
        "run silver again, or let such records go to quarantine: lakehouse silver --accept-rejects others."
        in error.remedy
    )
