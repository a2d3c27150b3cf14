"""What suspends a table, by the counts of its records alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lakehouse.contracts.models import Expectation
from lakehouse.contracts.tables import MaxRejectRatio
from silver.order.facts import ignored_facts
from silver.order.state import SuspensionCause
from silver.rejects.suspended import (
    BUDGET,
    COORDINATES,
    FIELDS,
    FIELDS_GONE,
    KEYS,
    PARSE_ERRORS,
    Suspension,
    fields_gone,
    in_words,
    regressed,
    suspended_error,
    suspension_of,
)
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
    none |= {"keyed": 10, "unread_keys": 0, "key_problem": None}
    assert {*none, *given} <= {*ignored_facts(("t", "", 0), first=0, last=0, records=1, first_ms=0)}
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


OTHER = "It is of another table, shop.others."
TEXT = "total_amount: text that is no number."


def test_reasons_are_said_with_their_counts_the_most_frequent_first() -> None:
    budgeted = feed(max_reject_ratio=MaxRejectRatio(share=0.1))
    rows = [counted(quarantined=1_205, failed_rules={"amount_not_negative": 4}), counted(quarantined=0)]
    asked: list[str] = []

    def problems(condition: str) -> Mapping[str, int]:
        asked.append(condition)
        return {TEXT: 3, OTHER: 1_200}

    found = suspension_of(budgeted, RULES, rows, problems=problems)
    assert found is not None
    assert found.why == (
        "1,205 of 1,225 records may not pass, and the budget is 10% (It is of another table, shop.others: 1,200; "
        "amount_not_negative 4; total_amount: text that is no number: 3)"
    )
    assert asked == ["kind = 'quarantined'"]
    strict = suspension_of(feed(parse_errors="fail"), [], [counted(unread=1_203)], problems=problems)
    assert strict is not None
    assert strict.why == (
        "of its records 1,203 cannot be read, or have a value that does not fit (parse_errors: fail; It is of another "
        "table, shop.others: 1,200; total_amount: text that is no number: 3)"
    )
    assert asked[1:] == ["is_unread"]


def test_problems_are_counted_only_where_they_suspend_a_table() -> None:
    def problems(_condition: str) -> Mapping[str, int]:
        pytest.fail("the table is not suspended")

    rows = [counted(quarantined=1, unread=1)]
    assert suspension_of(feed(max_reject_ratio=MaxRejectRatio(share=0.5)), RULES, rows, problems=problems) is None


def test_of_many_reasons_the_most_frequent_are_said_and_the_others_counted() -> None:
    reasons = {f"rule_{number}": number for number in range(9)}
    assert in_words(reasons) == ["rule_8 8", "rule_7 7", "rule_6 6", "rule_5 5", "rule_4 4", "3 more reasons: 6"]
    assert in_words({"a": 2, "b": 2, "c": 0}) == ["a 2", "b 2"]
    assert in_words({}) == []


def test_what_to_do_is_said_once_for_tables_of_one_kind() -> None:
    causes = {"b": (BUDGET, "many"), "a": ("a rule", "it fails"), "c": (FIELDS, "no field")}
    said = str(suspended_error({name: SuspensionCause(*cause) for name, cause in causes.items()}))
    assert "silver.a is suspended: it fails; silver.b is suspended: many; silver.c is suspended: no field." in said
    assert "lakehouse silver --accept-rejects a --accept-rejects b." in said
    assert "lakehouse silver --resume c." in said


BYTES = "The key is 4 bytes that are no text, as IntegerConverter or FloatConverter writes them."


def test_keys_none_of_which_can_be_read_suspend_and_their_converter_is_named() -> None:
    bad = {"unread": 2, "quarantined": 2, "changes": 0, "keyed": 2, "unread_keys": 2, "key_problem": BYTES}
    expected = Suspension(
        KEYS,
        "The keys of records can be read.",
        f"the keys of all its 4 records cannot be read: {BYTES.removesuffix('.')}",
        failed=4,
        judged=4,
    )
    for of in (feed(), feed(parse_errors="fail"), feed(max_reject_ratio=MaxRejectRatio(share=1))):
        assert suspension_of(of, RULES, [counted(**bad), counted(**bad)]) == expected
    error = suspended_error({"things": SuspensionCause(expected.rule, expected.why)})
    assert "IntegerConverter" in error.what
    assert "key.converter" in error.hint
    assert error.hint.endswith("lakehouse silver --accept-rejects things.")


def test_some_keys_that_cannot_be_read_go_to_quarantine() -> None:
    bad = {"unread": 2, "quarantined": 2, "keyed": 2, "unread_keys": 2, "key_problem": BYTES}
    assert suspension_of(feed(), RULES, [counted(**bad), counted()]) is None
    # One alone says nothing of the others.
    assert suspension_of(feed(), RULES, [counted(**{**bad, "keyed": 1, "unread_keys": 1})]) is None
    # Records without a key do not count.
    assert suspension_of(feed(), RULES, [counted(keyed=0)]) is None


def test_a_field_that_is_gone_is_named_with_the_one_that_is_new() -> None:
    found = fields_gone(["name"], ["full_name"], judged=3)
    assert found.rule == FIELDS_GONE
    assert found.why == "the field name is in none of 3 changes, and earlier ones had it; new: full_name (renamed?)"
    both = fields_gone(["a", "b"], [], judged=1)
    assert both.why == (
        "the fields a, b are in none of 1 changes, and earlier ones had them; none is new (dropped, or left out while "
        "it is unchanged?)"
    )
    error = suspended_error({"things": SuspensionCause(FIELDS_GONE, found.why)})
    assert "`optional: true`" in str(error) and "--accept-rejects things" in str(error)


def test_records_without_a_run_that_fall_behind_suspend_and_the_way_on_is_said() -> None:
    assert regressed({}) is None
    suspension = regressed({("shop.things", "id", 1): (70, 2), ("shop.things", "id", 0): (1_000, 3)})
    assert suspension is not None
    assert (suspension.rule, suspension.failed) == (COORDINATES, 5)
    assert suspension.why.startswith("from offset 1,000 of shop.things, partition 0, 5 records are behind")
    error = suspended_error(
        {"things": SuspensionCause(suspension.rule, suspension.why), "others": SuspensionCause(None, "so")}
    )
    assert "__debezium.context.runId" in error.what
    assert "extended.headers.enabled=true" in error.hint
    assert error.hint.endswith("be superseded: lakehouse silver --accept-rejects things.")
    assert (
        "run silver again, or let such records go to quarantine: lakehouse silver --accept-rejects others."
        in error.hint
    )
