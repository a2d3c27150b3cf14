"""What gate 2 goes on from: counts of the very version and the very rules, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gold.quality.gate import with_counts
from lakehouse.contracts.models import TableExpectation, TableGate
from lakehouse.quality.counting import Counts
from lakehouse.versions import Version

NOW = Version("silver.orders", created_ms=1, number=7)
RULE = TableExpectation(
    name="known",
    type="expect_column_values_to_not_be_null",
    kwargs={"column": "customer_id", "mostly": 0.9},
    on_failure="warn",
    description="Nine orders in ten name their customer.",
)
OF_CHANGES = RULE.model_copy(update={"name": "of_changes", "kwargs": {"column": "order_id"}, "scope": "changes"})
GATE = TableGate(feeds=("orders",), expectations=(RULE, OF_CHANGES))
COUNTED = replace(NOW, rows=9, counts={"known": Counts(9, failed=1)})


def kept(version: Version) -> tuple[int | None, dict[str, Counts]]:
    return version.rows, dict(version.counts)


def test_what_this_run_has_counted_of_whole_tables_is_kept() -> None:
    counts = {"known": Counts(8), "of_changes": Counts(8), "gone": Counts(8)}
    assert kept(with_counts(NOW, GATE, counts, None, COUNTED)) == (8, {"known": Counts(8)})


def test_a_version_that_has_passed_with_these_rules_keeps_its_counts() -> None:
    assert kept(with_counts(NOW, GATE, {}, None, COUNTED)) == (9, {"known": Counts(9, failed=1)})


def test_what_other_rules_of_the_same_name_have_counted_is_not_gone_on_from() -> None:
    assert kept(with_counts(NOW, GATE, {}, COUNTED, None)) == (9, {})


@pytest.mark.parametrize("earlier", [replace(COUNTED, number=6), replace(COUNTED, created_ms=2)])
def test_what_was_counted_of_another_version_is_not_kept(earlier: Version) -> None:
    assert kept(with_counts(NOW, GATE, {}, earlier, earlier)) == (None, {})
