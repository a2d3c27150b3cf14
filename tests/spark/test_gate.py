"""Row rules: compiled to Spark columns, and counted, they come out as Great Expectations itself has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation
from lakehouse.delta.tables import inline_rows
from lakehouse.quality.arguments import ROW_COUNT, ROW_RULES, evaluate_bound, is_arithmetic
from lakehouse.quality.counting import Carried, Judged, counts_of, is_carried, is_counted, judge_by_counting
from lakehouse.quality.gx import quiet_context
from lakehouse.quality.row_rules import fails
from lakehouse.quality.table_rules import TableCheck, Verdict, validate_tables
from silver.batch.changelog import judged
from tools.generated import expectations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

TEXTS = [
    *("", " ", "a", "A", "paid", "paid ", "PAID", "two words", "line\n", "line\nline", "null", "12", "x" * 10_001),
    *("é", "é", "注文", "🚀", "🚀🚀", "naïve Ωμέγα", 'a "b" \\ c', "$^", "\u0000", "\u00a0"),
]
AMOUNTS = ["0.00", "0.01", "-0.01", "1.00", "9.99", "10.00", "10.01", "-99999999.99", "99999999.99", "99999999.98"]
NUMBERS = [0, 1, -1, 2, 10, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
DAYS = ["0001-01-01", "1970-01-01", "2024-02-29", "2026-07-01", "9999-12-31"]
DOUBLES = ["0.0", "-0.0", "1.5", "NaN", "Infinity", "-Infinity", "1e-320", "1.7976931348623157e308"]
DOCUMENTS = [
    "{}",
    "[]",
    "1",
    '"a"',
    "null",
    "",
    "{",
    '{"a": 1',
    '{"a": [1, {"b": "é"}]}',
    "{a: 1}",
    "1 2",
    "[1] ]",
    "1}",
    "1,2",
    "注",
]
IN_SET, BETWEEN = "expect_column_values_to_be_in_set", "expect_column_values_to_be_between"
NOT_IN_SET, UNIQUE = "expect_column_values_to_not_be_in_set", "expect_column_values_to_be_unique"
REGEX, LENGTHS = "expect_column_values_to_match_regex", "expect_column_value_lengths_to_be_between"
NOT_REGEX, LENGTH = "expect_column_values_to_not_match_regex", "expect_column_value_lengths_to_equal"
LIKE, NOT_LIKE = "expect_column_values_to_match_like_pattern", "expect_column_values_to_not_match_like_pattern"
NOT_NULL, NULL = "expect_column_values_to_not_be_null", "expect_column_values_to_be_null"
EQUAL, GREATER = "expect_column_pair_values_to_be_equal", "expect_column_pair_values_a_to_be_greater_than_b"
SUM, COMPOUND = "expect_multicolumn_sum_to_equal", "expect_compound_columns_to_be_unique"
OF_TYPE, JSON, SQL = (
    "expect_column_values_to_be_of_type",
    "expect_column_values_to_be_json_parseable",
    "unexpected_rows_expectation",
)
PAIR = {"column_A": "number", "column_B": "other"}
WHERE = {"condition_parser": "spark"}


def expectation(kind: str, number: int = 0, **kwargs: Any) -> Expectation:
    return Expectation(
        name=f"rule_{number}", type=kind, kwargs=kwargs, on_failure="quarantine", description="A rule of this test."
    )


def rows_where(condition: str) -> dict[str, Any]:
    return {"unexpected_rows_query": f"SELECT * FROM {{batch}} WHERE {condition}"}


ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    (NOT_NULL, {"column": "text"}),
    (NOT_NULL, {"column": "amount"}),
    (NULL, {"column": "text"}),
    (NULL, {"column": "other", "row_condition": "number > 0", **WHERE}),
    (IN_SET, {"column": "text", "value_set": ["paid", "注文", "", "🚀"]}),
    (IN_SET, {"column": "number", "value_set": [1, 2, 2**63 - 1]}),
    (IN_SET, {"column": "amount", "value_set": [1, 9.99, 10]}),
    (IN_SET, {"column": "nothing", "value_set": ["a"]}),
    (IN_SET, {"column": "day", "value_set": ["2024-02-29", "1970-01-01"]}),
    (NOT_IN_SET, {"column": "text", "value_set": ["paid", "注文", "", "🚀"]}),
    (NOT_IN_SET, {"column": "amount", "value_set": [1, 9.99, 10]}),
    (BETWEEN, {"column": "amount", "min_value": 0}),
    (BETWEEN, {"column": "amount", "min_value": 0, "max_value": 99999999.99}),
    (BETWEEN, {"column": "amount", "min_value": 0, "strict_min": True}),
    (BETWEEN, {"column": "amount", "min_value": -0.01, "max_value": 10.01}),
    (BETWEEN, {"column": "amount", "max_value": 10, "strict_max": True}),
    (BETWEEN, {"column": "amount", "min_value": 0, "row_condition": "text = 'paid'", **WHERE}),
    (BETWEEN, {"column": "amount", "min_value": 0, "row_condition": "other > number", **WHERE, "mostly": 0.5}),
    # Bounds beyond 2**53 pass through a double in Great Expectations, and not in ours.
    (BETWEEN, {"column": "number", "min_value": 10, "strict_min": True}),
    (BETWEEN, {"column": "number", "min_value": 1, "max_value": 2**52}),
    (BETWEEN, {"column": "day", "min_value": "1970-01-01", "max_value": "2026-06-30"}),
    (BETWEEN, {"column": "day", "min_value": "1970-01-01", "strict_min": True}),
    (BETWEEN, {"column": "moment", "max_value": "2026-07-01T00:00:00", "strict_max": True}),
    (BETWEEN, {"column": "share", "min_value": 0}),
    (BETWEEN, {"column": "share", "min_value": 0, "max_value": 1.5}),
    (BETWEEN, {"column": "share", "max_value": 0, "strict_max": True}),
    (REGEX, {"column": "text", "regex": "^[A-Za-z0-9_-]+$"}),
    (REGEX, {"column": "text", "regex": "a"}),
    (REGEX, {"column": "text", "regex": "^.$"}),
    (REGEX, {"column": "text", "regex": r"^\w+$"}),
    (REGEX, {"column": "text", "regex": ""}),
    (REGEX, {"column": "nothing", "regex": "^a$"}),
    (NOT_REGEX, {"column": "text", "regex": "a"}),
    (NOT_REGEX, {"column": "text", "regex": "^.$"}),
    (LENGTHS, {"column": "text", "max_value": 10_000}),
    (LENGTHS, {"column": "text", "min_value": 1, "max_value": 1}),
    (LENGTHS, {"column": "text", "min_value": 2}),
    (LENGTHS, {"column": "text", "min_value": 1, "strict_min": True, "max_value": 4, "strict_max": True}),
    (LENGTH, {"column": "text", "value": 1}),
    (LENGTH, {"column": "text", "value": 4}),
    (JSON, {"column": "document"}),
    (EQUAL, PAIR),
    (EQUAL, {**PAIR, "ignore_row_if": "either_value_is_missing"}),
    (EQUAL, {**PAIR, "ignore_row_if": "neither"}),
    (GREATER, PAIR),
    (GREATER, {**PAIR, "or_equal": True}),
    (GREATER, {**PAIR, "or_equal": True, "ignore_row_if": "neither"}),
    (GREATER, {"column_A": "day", "column_B": "later", "ignore_row_if": "either_value_is_missing"}),
    (SUM, {"column_list": ["number", "other"], "sum_total": 3}),
    (SUM, {"column_list": ["number", "other"], "sum_total": 3, "ignore_row_if": "any_value_is_missing"}),
    (SUM, {"column_list": ["number", "other"], "sum_total": 0, "ignore_row_if": "never"}),
    (SUM, {"column_list": ["amount", "amount", "amount"], "sum_total": 30}),
    (UNIQUE, {"column": "amount"}),
    (UNIQUE, {"column": "text", "row_condition": "number > 0", **WHERE}),
    (UNIQUE, {"column": "id"}),
    (COMPOUND, {"column_list": ["amount", "number"]}),
    (COMPOUND, {"column_list": ["amount", "day"], "ignore_row_if": "any_value_is_missing"}),
    (SQL, rows_where("amount < 0")),
    (SQL, rows_where("number > other OR text LIKE 'p%'")),
    (SQL, rows_where("share IS NULL AND day > DATE '2000-01-01'")),
]
RULES = [expectation(kind, number, **kwargs) for number, (kind, kwargs) in enumerate(ARGUMENTS)]


# Great Expectations judges the type of a column, not of its rows; and on Spark it knows no LIKE.
TYPES = [("text", "StringType", True), ("amount", "DecimalType", True), ("day", "DateType", True)]
TYPES += [("number", "IntegerType", False), ("moment", "DateType", False)]
PATTERNS = [("p%", None), ("_", None), ("%o_o%", None), ("", None), ("%\\", "/"), ("$^", None)]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    """Rows in which every value stands beside many others, NULL among them."""
    columns: dict[str, list[Any]] = {
        "text": [*TEXTS, None],
        "amount": [*AMOUNTS, None],
        "number": [*NUMBERS, None, None],
        "other": [*reversed(NUMBERS), 1, None, 3],
        "day": [*DAYS, None],
        "later": [None, *reversed(DAYS), "1970-01-01"],
        "share": [*DOUBLES, None],
        "document": [*DOCUMENTS, None],
    }
    count = 13 * 23
    rows = [{"id": n, **{name: told[n % len(told)] for name, told in columns.items()}} for n in range(count)]
    declared = ", ".join(f"{name} {'BIGINT' if name in ('number', 'other') else 'STRING'}" for name in columns)
    return inline_rows(spark, rows, f"id BIGINT, {declared}, nothing STRING").withColumns(
        {
            "amount": F.col("amount").cast("decimal(10,2)"),
            "share": F.col("share").cast("double"),
            "day": F.col("day").cast("date"),
            "later": F.col("later").cast("date"),
            # Python, and so the rows that Great Expectations shows, has no timestamps of the year 1 in some time zones.
            "moment": F.when(F.col("day").between("1970-01-01", "2026-12-31"), F.col("day").cast("timestamp")),
        }
    )


def failing(rule: Expectation) -> Column:
    return fails(rule, keys=["id"], is_judged=F.lit(True))


@pytest.fixture(scope="module")
def counted_by_us(table: DataFrame) -> Mapping[str, int]:
    apart = table.select(*[failing(rule).alias(rule.name) for rule in RULES])
    failures = [F.count_if(rule.name).alias(rule.name) for rule in RULES]
    return apart.agg(*failures).collect()[0].asDict()


@pytest.fixture(scope="module")
def of_great_expectations(table: DataFrame) -> Mapping[str, Verdict]:
    """The verdict of every rule."""
    return {one.rule.name: one for one in validate_tables({"rows": [TableCheck(table, RULES)]})["rows"]}


@pytest.fixture(scope="module")
def counted_by_great_expectations(of_great_expectations: Mapping[str, Verdict]) -> Mapping[str, int]:
    return {name: verdict.failed for name, verdict in of_great_expectations.items()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.type.removeprefix('expect_')} {rule.kwargs}")
def test_a_row_rule_counts_what_great_expectations_counts(
    counted_by_us: Mapping[str, int], counted_by_great_expectations: Mapping[str, int], rule: Expectation
) -> None:
    assert counted_by_us[rule.name] == counted_by_great_expectations[rule.name]


def outcome(verdict: Verdict) -> tuple[Any, ...]:
    """What a verdict says, but for the keys that it samples."""
    observed = None if verdict.observed is None else int(verdict.observed)
    return verdict.passed, verdict.evaluated, verdict.failed, verdict.without_value, observed, verdict.message


@pytest.fixture(scope="module")
def by_counting(table: DataFrame) -> Judged:
    """The same by one query for all."""
    return judge_by_counting({}, {"rows": TableCheck(table, RULES, keys=("id",))}, {})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.type.removeprefix('expect_')} {rule.kwargs}")
def test_a_rule_that_is_counted_comes_out_as_great_expectations_has_it(
    by_counting: Judged, of_great_expectations: Mapping[str, Verdict], rule: Expectation
) -> None:
    assert is_counted(rule)
    (found,) = (one for one in by_counting.verdicts["rows"] if one.rule.name == rule.name)
    assert outcome(found) == outcome(of_great_expectations[rule.name])
    assert bool(found.sample_keys) == (not found.passed)


def test_what_is_counted_of_a_whole_table_is_carried_on(
    by_counting: Judged, of_great_expectations: Mapping[str, Verdict]
) -> None:
    assert by_counting.counts["rows"] == counts_of(list(of_great_expectations.values()))


# Bounds of a number of rows, some of them of the 298 that the table has in the end.
BOUNDS: list[dict[str, Any]] = [
    {"min_value": 298, "max_value": 298},
    {"min_value": 298, "strict_min": True},
    {"max_value": 298, "strict_max": True},
    {"max_value": 297},
    {"min_value": 299},
    {"min_value": {"$PARAMETER": "rows_before * 0.9"}, "max_value": {"$PARAMETER": "round(rows_before * 1.1)"}},
    {"min_value": {"$PARAMETER": "rows_before * 3"}},
]


def test_what_was_counted_of_a_table_is_carried_by_the_rows_that_went_and_came(table: DataFrame) -> None:
    rules = [
        *(rule for rule in RULES if is_carried(rule)),
        *(expectation(ROW_COUNT, 1_000 + number, **bounds) for number, bounds in enumerate(BOUNDS)),
        # Half of the texts are not "a", or "A", or "": bounds of shares that are met, and just not met.
        *(
            expectation(NOT_IN_SET, 2_000 + number, column="text", value_set=TEXTS[:8], mostly=mostly)
            for number, mostly in enumerate((0.0, 0.5, 0.6, 0.61, 0.62, 1.0))
        ),
    ]
    assert {SQL, UNIQUE, COMPOUND}.isdisjoint(rule.type for rule in rules)
    before, after = table.where("id < 290"), table.where("id >= 5").unionByName(table.where("id IN (7, 8, 9, 10)"))
    removed, added = table.where("id < 5"), table.where("id >= 290 OR id IN (7, 8, 9, 10)")
    parameters = {"rows_before": 290}
    checks = {"before": [TableCheck(before, rules, parameters=parameters)]}
    judged = validate_tables(checks)["before"]
    known = counts_of(judged)
    assert known.keys() == {rule.name for rule in rules}
    check = TableCheck(after, rules, parameters=parameters)
    carried = judge_by_counting({}, {}, {"rows": Carried(check, known, removed, added)})
    wanted = validate_tables({"rows": [check]})["rows"]
    assert [outcome(one) for one in carried.verdicts["rows"]] == [outcome(one) for one in wanted]
    assert len({one.passed for one in wanted if one.rule.type == ROW_COUNT}) == 2
    assert len({one.passed for one in wanted if "mostly" in one.rule.kwargs}) == 2
    assert carried.counts["rows"] == counts_of(wanted)


@pytest.mark.parametrize(
    "text",
    [
        "rows_before",
        "rows_before * 0.9",
        "rows_before - 10 - 2 * 3 / 4",
        "-rows_before + 1e3",
        "2 * (rows_before + 1) / -3",
        "round(rows_before * 1.1) + trunc(rows_before / 7)",
        "abs(10 - rows_before)",
        "+rows_before / 3",
    ],
)
def test_a_bound_comes_to_what_great_expectations_computes(text: str) -> None:
    quiet_context()  # before Great Expectations is loaded
    from great_expectations.core.suite_parameters import parse_suite_parameter

    assert is_arithmetic(text)
    for rows in (0, 1, 298, 10_000_000):
        assert evaluate_bound(text, {"rows_before": rows}) == parse_suite_parameter(text, {"rows_before": rows})


def test_a_bound_that_divides_by_zero_is_not_passed_and_says_so(table: DataFrame) -> None:
    divides = expectation(ROW_COUNT, 1, min_value={"$PARAMETER": "100 / rows_before"})
    check = TableCheck(table, [divides], parameters={"rows_before": 0})
    (verdict,) = judge_by_counting({}, {"rows": check}, {}).verdicts["rows"]
    assert (verdict.passed, verdict.evaluated) == (False, 0)
    assert verdict.message == "It could not be evaluated: ZeroDivisionError."


def test_every_kind_of_row_rule_is_compared() -> None:
    assert {rule.type for rule in RULES} | {OF_TYPE, LIKE, NOT_LIKE} == set(ROW_RULES)


def test_a_column_is_of_the_type_that_great_expectations_sees(table: DataFrame) -> None:
    rules = [expectation(OF_TYPE, n, column=column, type_=name) for n, (column, name, _is) in enumerate(TYPES)]
    verdicts = validate_tables({"rows": [TableCheck(table, rules)]})["rows"]
    counts = table.agg(*[F.count_if(failing(rule)).alias(rule.name) for rule in rules]).collect()[0]
    is_met = [expected for _column, _name, expected in TYPES]
    assert [verdict.passed for verdict in verdicts] == is_met
    assert [count == 0 for count in counts] == is_met


@pytest.mark.parametrize(("pattern", "escape"), PATTERNS)
def test_like_is_as_sql_has_it(table: DataFrame, pattern: str, escape: str | None) -> None:
    kwargs = {"column": "text", "like_pattern": pattern, **({"escape": escape} if escape else {})}
    like, unlike = expectation(LIKE, 1, **kwargs), expectation(NOT_LIKE, 2, **kwargs)
    rows = table.select("text", failing(like).alias("like"), failing(unlike).alias("unlike")).collect()
    regex = "".join({"%": ".*", "_": "."}.get(part, re.escape(part)) for part in pattern)
    for row in rows:
        is_like = row["text"] is not None and re.fullmatch(regex, row["text"], re.DOTALL) is not None
        assert (row["like"], row["unlike"]) == (row["text"] is not None and not is_like, is_like), pattern


def test_great_expectations_has_no_like_on_spark(table: DataFrame) -> None:
    """When it has one, LIKE can be compared like the others."""
    rule = expectation(LIKE, column="text", like_pattern="p%")
    (verdict,) = validate_tables({"rows": [TableCheck(table, [rule])]})["rows"]
    assert not verdict.passed
    assert verdict.message == "It could not be evaluated: MetricProviderError."


def test_the_rules_are_not_met_by_some_rows_and_met_by_others(
    table: DataFrame, counted_by_us: Mapping[str, int]
) -> None:
    always = {
        rule.name for rule in RULES if rule.kwargs.get("column") in ("nothing", "id") or rule.kwargs.get("regex") == ""
    }
    rows = table.count()
    assert {name for name, failed in counted_by_us.items() if not 0 < failed < rows} == always


def test_a_verdict_is_never_null(table: DataFrame) -> None:
    apart = table.select(*[failing(rule).alias(rule.name) for rule in RULES])
    assert set(apart.agg(*[F.count_if(F.col(rule.name).isNull()) for rule in RULES]).collect()[0]) == {0}


def test_a_value_of_one_key_may_come_again(table: DataFrame) -> None:
    """Successive changes of a row have the same values: only another key's row is one too many."""
    twice = table.unionByName(table).select(failing(expectation(UNIQUE, column="id")).alias("fails"))
    assert twice.where("fails").isEmpty()


def test_the_gate_stops_changes_and_never_a_delete(spark: SparkSession) -> None:
    wait = expectation(NOT_NULL, 1, column="text")
    warn = expectation(BETWEEN, 2, column="amount", min_value=0).model_copy(update={"on_failure": "warn"})
    good, bad = {"text": "a", "amount": 1}, {"text": None, "amount": -1}
    both, no_position = ["rule_1", "rule_2"], "The record has no source position."
    discarded, of_rule = "It was discarded by command.", "text: A rule of this test."
    no_text: dict[str, Any] = {"unsent_columns": ["text"]}
    cases: list[tuple[str, bool, Any, bool, dict[str, Any], tuple[str, list[str], list[str], bool]]] = [
        # kind, is_delete, row, has a position, more: kind, problems, failed rules, is judged
        ("change", False, good, True, {}, ("change", [], [], True)),
        ("change", False, bad, True, {}, ("quarantined", [of_rule], both, True)),
        ("change", False, {**bad, "text": "a"}, True, {}, ("change", [], ["rule_2"], True)),
        ("change", False, good, False, {}, ("quarantined", [no_position], [], True)),
        ("change", True, bad, True, {}, ("change", [], [], False)),
        ("change", True, bad, False, {}, ("quarantined", [no_position], [], False)),
        ("tombstone", False, None, False, {}, ("tombstone", [], [], False)),
        ("ignored", False, None, False, {}, ("ignored", [], [], False)),
        ("unreadable", False, None, False, {}, ("quarantined", [], [], False)),
        # What the event does not tell, no rule is asked about.
        ("change", False, bad, True, no_text, ("change", [], ["rule_2"], True)),
        # A person may overrule the rules, and nothing else.
        ("change", False, bad, True, {"decision": "released"}, ("change", [], both, True)),
        ("change", False, bad, False, {"decision": "released"}, ("quarantined", [no_position], both, True)),
        ("change", False, good, True, {"decision": "discarded"}, ("quarantined", [discarded], [], True)),
        ("change", True, bad, True, {"decision": "discarded"}, ("quarantined", [discarded], [], False)),
        ("tombstone", False, None, False, {"decision": "discarded"}, ("tombstone", [], [], False)),
        (
            "change",
            False,
            good,
            True,
            {"decision": "pending"},
            ("quarantined", ["It is pending in quarantine."], [], True),
        ),
    ]
    names = ("kind", "is_delete", "row", "positioned")
    rows: list[dict[str, Any]] = [
        {"number": n, **dict(zip(names, case, strict=False)), "problems": [], "unsent_columns": [], **case[4]}
        for n, case in enumerate(cases)
    ]
    columns = (
        "number BIGINT, kind STRING, is_delete BOOLEAN, row STRUCT<text: STRING, amount: BIGINT>,"
        " positioned BOOLEAN, problems ARRAY<STRING>, unsent_columns ARRAY<STRING>, decision STRING"
    )
    table = inline_rows(spark, rows, columns)
    read = judged(table, [wait, warn], keys=["amount"], has_position="positioned").collect()
    found = [
        (row["kind"], row["problems"], row["failed_rules"], row["is_judged"])
        for row in sorted(read, key=lambda row: int(row["number"]))
    ]
    assert found == [expected for *_case, expected in cases]


def test_the_gallery_is_that_of_the_installed_great_expectations() -> None:
    stale = [str(path) for path, text in expectations().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make generated`"
