"""Row rules: compiled to Spark columns, they count what Great Expectations itself counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse.checkpoint import validate_tables
from lakehouse.contracts import Expectation
from lakehouse.expectations import fails
from lakehouse.rule_arguments import ROW_RULES
from lakehouse.tables import small_table
from silver.changelog import judged
from tools.generated import expectations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TEXTS = [
    *("", " ", "a", "A", "paid", "paid ", "PAID", "two words", "line\n", "line\nline", "null", "12", "x" * 10_001),
    *("é", "é", "注文", "🚀", "🚀🚀", "naïve Ωμέγα", 'a "b" \\ c', "$^", "\u0000", "\u00a0"),
]
AMOUNTS = ["0.00", "0.01", "-0.01", "1.00", "9.99", "10.00", "10.01", "-99999999.99", "99999999.99", "99999999.98"]
NUMBERS = [0, 1, -1, 2, 10, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
IN_SET, BETWEEN = "expect_column_values_to_be_in_set", "expect_column_values_to_be_between"
REGEX, LENGTHS = "expect_column_values_to_match_regex", "expect_column_value_lengths_to_be_between"
NOT_NULL = "expect_column_values_to_not_be_null"


def expectation(kind: str, number: int = 0, **kwargs: Any) -> Expectation:
    return Expectation(
        name=f"rule_{number}", type=kind, kwargs=kwargs, on_failure="quarantine", description="A rule of this test."
    )


ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    (NOT_NULL, {"column": "text"}),
    (NOT_NULL, {"column": "amount"}),
    (IN_SET, {"column": "text", "value_set": ["paid", "注文", "", "🚀"]}),
    (IN_SET, {"column": "number", "value_set": [1, 2, 2**63 - 1]}),
    (IN_SET, {"column": "amount", "value_set": [1, 9.99, 10]}),
    (IN_SET, {"column": "nothing", "value_set": ["a"]}),
    (BETWEEN, {"column": "amount", "min_value": 0}),
    (BETWEEN, {"column": "amount", "min_value": 0, "max_value": 99999999.99}),
    (BETWEEN, {"column": "amount", "min_value": 0, "strict_min": True}),
    (BETWEEN, {"column": "amount", "min_value": -0.01, "max_value": 10.01}),
    (BETWEEN, {"column": "amount", "max_value": 10, "strict_max": True}),
    # Bounds beyond 2**53 pass through a double in Great Expectations, and not in ours.
    (BETWEEN, {"column": "number", "min_value": 10, "strict_min": True}),
    (BETWEEN, {"column": "number", "min_value": 1, "max_value": 2**52}),
    (REGEX, {"column": "text", "regex": "^[A-Za-z0-9_-]+$"}),
    (REGEX, {"column": "text", "regex": "a"}),
    (REGEX, {"column": "text", "regex": "^.$"}),
    (REGEX, {"column": "text", "regex": r"^\w+$"}),
    (REGEX, {"column": "text", "regex": ""}),
    (REGEX, {"column": "nothing", "regex": "^a$"}),
    (LENGTHS, {"column": "text", "max_value": 10_000}),
    (LENGTHS, {"column": "text", "min_value": 1, "max_value": 1}),
    (LENGTHS, {"column": "text", "min_value": 2}),
    (LENGTHS, {"column": "text", "min_value": 1, "strict_min": True, "max_value": 4, "strict_max": True}),
]
RULES = [expectation(kind, number, **kwargs) for number, (kind, kwargs) in enumerate(ARGUMENTS)]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    rows = [
        {"text": text, "amount": amount, "number": number}
        for start, text in enumerate([*TEXTS, None])
        for amount, number in zip(
            [*AMOUNTS, None][start % 3 :: 2], [*NUMBERS, None, None][start % 5 :: 2], strict=False
        )
    ]
    columns = "text STRING, amount STRING, number BIGINT, nothing STRING"
    return small_table(spark, rows, columns).withColumn("amount", F.col("amount").cast("decimal(10,2)"))


@pytest.fixture(scope="module")
def counted_by_us(table: DataFrame) -> Mapping[str, int]:
    failures = [F.count_if(fails(rule, F.col)).alias(rule.name) for rule in RULES]
    return table.agg(*failures).collect()[0].asDict()


@pytest.fixture(scope="module")
def counted_by_great_expectations(table: DataFrame) -> Mapping[str, int]:
    return {verdict.rule.name: verdict.failed for verdict in validate_tables({"rows": table}, {"rows": RULES})["rows"]}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.type.removeprefix('expect_')} {rule.kwargs}")
def test_a_row_rule_counts_what_great_expectations_counts(
    counted_by_us: Mapping[str, int], counted_by_great_expectations: Mapping[str, int], rule: Expectation
) -> None:
    assert counted_by_us[rule.name] == counted_by_great_expectations[rule.name]


def test_every_kind_of_row_rule_is_compared() -> None:
    assert {rule.type for rule in RULES} == set(ROW_RULES)


def test_the_rules_are_not_met_by_some_rows_and_met_by_others(
    table: DataFrame, counted_by_us: Mapping[str, int]
) -> None:
    always_met = {rule.name for rule in RULES if rule.kwargs["column"] == "nothing" or rule.kwargs.get("regex") == ""}
    rows = table.count()
    assert {name for name, failed in counted_by_us.items() if not 0 < failed < rows} == always_met


def test_a_verdict_is_never_null(table: DataFrame) -> None:
    verdicts = [F.count_if(fails(rule, F.col).isNull()).alias(rule.name) for rule in RULES]
    assert set(table.agg(*verdicts).collect()[0]) == {0}


def test_the_gate_stops_changes_and_never_a_delete(spark: SparkSession) -> None:
    wait = expectation(NOT_NULL, 1, column="text")
    warn = expectation(BETWEEN, 2, column="amount", min_value=0).model_copy(update={"on_failure": "warn"})
    good, bad = {"text": "a", "amount": 1}, {"text": None, "amount": -1}
    both, no_position = ["rule_1", "rule_2"], "The record has no source position."
    cases: list[tuple[str, bool, dict[str, Any] | None, bool, tuple[str, list[str], list[str], bool]]] = [
        # kind, is_delete, row, has a position: kind, problems, failed rules, is judged
        ("change", False, good, True, ("change", [], [], True)),
        ("change", False, bad, True, ("quarantined", ["text: A rule of this test."], both, True)),
        ("change", False, {**bad, "text": "a"}, True, ("change", [], ["rule_2"], True)),
        ("change", False, good, False, ("quarantined", [no_position], [], True)),
        ("change", True, bad, True, ("change", [], [], False)),
        ("change", True, bad, False, ("quarantined", [no_position], [], False)),
        ("tombstone", False, None, False, ("tombstone", [], [], False)),
        ("ignored", False, None, False, ("ignored", [], [], False)),
        ("unreadable", False, None, False, ("quarantined", [], [], False)),
    ]
    names = ("kind", "is_delete", "row", "positioned")
    rows: list[dict[str, Any]] = [
        {"number": n, **dict(zip(names, case, strict=False)), "problems": []} for n, case in enumerate(cases)
    ]
    columns = (
        "number BIGINT, kind STRING, is_delete BOOLEAN, row STRUCT<text: STRING, amount: BIGINT>,"
        " positioned BOOLEAN, problems ARRAY<STRING>"
    )
    read = judged(small_table(spark, rows, columns), [wait, warn], has_position=F.col("positioned")).collect()
    found = [
        (row["kind"], row["problems"], row["failed_rules"], row["is_judged"])
        for row in sorted(read, key=lambda row: int(row["number"]))
    ]
    assert found == [expected for *_case, expected in cases]


def test_the_gallery_is_that_of_the_installed_great_expectations() -> None:
    stale = [str(path) for path, text in expectations().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make generated`"
