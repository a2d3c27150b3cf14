"""Table rules on Delta tables: met and not met, what is stored of each, and that no value leaves a sensitive column."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation
from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from lakehouse.quality.table_rules import TableCheck, Verdict, validate_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "order_id BIGINT, customer_id BIGINT, status STRING, amount DECIMAL(10,2), updated_at TIMESTAMP"
UNKNOWN_CUSTOMERS = """
    SELECT o.order_id FROM {batch} o LEFT ANTI JOIN customers c ON o.customer_id = c.customer_id
"""
WHERE = {"condition_parser": "spark"}
FRESH = {"column": "updated_at", "min_value": {"$PARAMETER": "now() - timedelta(hours=24)"}}
# Name: the rule; of the bad table how many of how many fail, what is observed, and which keys are named.
Found = tuple[int, int, str | None, set[str]]
RULES: Mapping[str, tuple[str, Mapping[str, Any], Found]] = {
    "unique": ("expect_column_values_to_be_unique", {"column": "order_id"}, (2, 6, None, {"3"})),
    "unique_together": (
        "expect_compound_columns_to_be_unique",
        {"column_list": ["order_id", "status"]},
        (2, 6, None, {"3"}),
    ),
    "rows": ("expect_table_row_count_to_be_between", {"min_value": 1, "max_value": 5}, (1, 1, "6", set())),
    "rows_since": (
        "expect_table_row_count_to_be_between",
        {"min_value": {"$PARAMETER": "rows_before * 0.9"}, "max_value": {"$PARAMETER": "round(rows_before * 1.1)"}},
        (1, 1, "6", set()),
    ),
    "fresh": ("expect_column_max_to_be_between", FRESH, (1, 1, "2020-01-01T00:00:00", set())),
    "paid_lately": (
        "expect_column_values_to_be_between",
        {"column": "updated_at", "min_value": "2025-01-01T00:00:00", "row_condition": "amount > 0", **WHERE},
        (1, 1, None, {"1"}),
    ),
    "sum": ("expect_column_sum_to_be_between", {"column": "amount", "max_value": 100}, (1, 1, "999.0", set())),
    "distinct": (
        "expect_column_distinct_values_to_be_in_set",
        {"column": "status", "value_set": ["paid", "pending"]},
        (1, 1, None, set()),
    ),
    "known_customers": (
        "unexpected_rows_expectation",
        {"unexpected_rows_query": UNKNOWN_CUSTOMERS},
        (1, 6, None, {"5"}),
    ),
    "no_keys": (
        "unexpected_rows_expectation",
        {"unexpected_rows_query": "SELECT status FROM {batch} WHERE status = 'lost'"},
        (1, 6, None, set()),
    ),
    "status_given": ("expect_column_values_to_not_be_null", {"column": "status"}, (1, 6, None, {"2"})),
}
BEFORE = {"rows_before": 4}
BAD_ROWS: list[dict[str, Any]] = [
    {"order_id": 1, "customer_id": 1, "status": "paid", "amount": "999.00"},
    {"order_id": 2, "customer_id": 1, "status": None, "amount": "0.00"},
    {"order_id": 3, "customer_id": 2, "status": "paid", "amount": "0.00"},
    {"order_id": 3, "customer_id": 2, "status": "paid", "amount": "0.00"},
    {"order_id": 4, "customer_id": 2, "status": "lost", "amount": "0.00"},
    {"order_id": 5, "customer_id": 9, "status": "paid", "amount": "0.00"},
]
GOOD_ROWS: list[dict[str, Any]] = [
    {"order_id": n, "customer_id": 1 + n % 2, "status": "paid", "amount": "10.00", "updated_at": "now"}
    for n in range(1, 5)
]


def rule(name: str, kind: str, **kwargs: Any) -> Expectation:
    return Expectation(name=name, type=kind, kwargs=kwargs, on_failure="fail", description=f"About {name}.")


def table(warehouse: Warehouse, name: str, *rows: Mapping[str, Any]) -> DataFrame:
    """A Delta table of these rows; `updated_at` "now" is half an hour ago, and by default long ago."""
    warehouse.ensure(TableSpec(f"silver.{name}", COLUMNS))
    texts = COLUMNS.replace("DECIMAL(10,2)", "STRING").replace("TIMESTAMP", "STRING")
    long_ago, now = F.lit("2020-01-01").cast("timestamp"), F.current_timestamp() - F.expr("INTERVAL 30 MINUTES")
    typed = inline_rows(warehouse.spark, rows, texts).withColumns(
        {
            "amount": F.col("amount").cast("decimal(10,2)"),
            "updated_at": F.when(F.col("updated_at") == "now", now).otherwise(long_ago),
        }
    )
    warehouse.append(f"silver.{name}", typed)
    return warehouse.read(f"silver.{name}")


def judged(rows: DataFrame, *rules: Expectation, **given: Any) -> list[Verdict]:
    return validate_tables({"rows": [TableCheck(rows, rules, **given)]})["rows"]


@pytest.fixture(scope="module")
def verdicts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Verdict, Verdict]]:
    """Of every rule the verdict on a table that meets it, and on one that does not."""
    location = str(tmp_path_factory.mktemp("tables") / "warehouse")
    warehouse = Warehouse(spark, location, f"{location}/_checkpoints")
    good, bad = table(warehouse, "good", *GOOD_ROWS), table(warehouse, "bad", *BAD_ROWS)
    customers = table(warehouse, "customers", {"customer_id": 1}, {"customer_id": 2})
    rules = [rule(name, kind, **kwargs) for name, (kind, kwargs, _found) in RULES.items()]
    tables = {
        name: [TableCheck(rows, rules, keys=("order_id",), parameters=BEFORE, views={"customers": customers})]
        for name, rows in (("good", good), ("bad", bad))
    }
    found = validate_tables(tables)
    return {one.name: (met, not_met) for one, met, not_met in zip(rules, found["good"], found["bad"], strict=True)}


@pytest.mark.parametrize("name", RULES)
def test_a_table_rule_is_met_by_one_table_and_not_by_another(
    verdicts: Mapping[str, tuple[Verdict, Verdict]], name: str
) -> None:
    met, not_met = verdicts[name]
    assert (met.passed, met.failed, met.sample_keys, met.message) == (True, 0, (), None)
    assert met.evaluated in (1, len(GOOD_ROWS))
    failed, evaluated, observed, keys = RULES[name][2]
    assert (not_met.passed, not_met.failed, not_met.evaluated) == (False, failed, evaluated)
    assert (not_met.observed, set(not_met.sample_keys)) == (observed, keys)
    assert not_met.message is None


def test_a_rule_that_compares_with_an_earlier_run_is_not_asked_in_the_first(warehouse: Warehouse) -> None:
    kind, kwargs, _found = RULES["rows_since"]
    (verdict,) = judged(table(warehouse, "orders", *BAD_ROWS), rule("rows_since", kind, **kwargs))
    assert (verdict.passed, verdict.evaluated, verdict.failed) == (True, 0, 0)
    assert verdict.message == "Not asked: there is no earlier run to compare with."


@pytest.fixture
def far_from_utc() -> Iterator[None]:
    """This process thinks that it stands in New York."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    assert os.environ.pop("TZ") == "America/New_York"
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_times_are_utc_wherever_the_machine_stands(warehouse: Warehouse) -> None:
    rows = table(warehouse, "orders", *GOOD_ROWS)
    newest = "expect_column_max_to_be_between"
    an_hour, ten_minutes = ({"$PARAMETER": f"now() - timedelta(minutes={minutes})"} for minutes in (60, 10))
    utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 3600))
    found = judged(
        rows,
        rule("an_hour", newest, column="updated_at", min_value=an_hour),
        rule("ten_minutes", newest, column="updated_at", min_value=ten_minutes),
        rule("a_bound", newest, column="updated_at", min_value=utc, max_value={"$PARAMETER": "now()"}),
        rule("every_row", "expect_column_values_to_be_between", column="updated_at", min_value=ten_minutes),
    )
    assert [verdict.passed for verdict in found] == [True, False, True, False]
    assert found[1].observed is not None
    assert found[1].observed > utc


def test_a_rule_that_cannot_be_evaluated_says_which_exception_and_no_value(warehouse: Warehouse) -> None:
    rows = table(warehouse, "orders", {"order_id": 1, "status": "SECRET"})
    query = "SELECT * FROM {batch} WHERE CAST(status AS INT) = 1"
    absent = query.replace("status", "absent")
    found = judged(
        rows,
        rule("casts", "unexpected_rows_expectation", unexpected_rows_query=query),
        rule("absent", "unexpected_rows_expectation", unexpected_rows_query=absent),
        rule("good", "expect_column_values_to_not_be_null", column="order_id"),
        keys=("order_id",),
    )
    assert [verdict.message for verdict in found] == [
        "It could not be evaluated: NumberFormatException CAST_INVALID_INPUT.",
        "It could not be evaluated: AnalysisException UNRESOLVED_COLUMN.WITH_SUGGESTION.",
        None,
    ]
    assert [(verdict.passed, verdict.evaluated) for verdict in found] == [(False, 0), (False, 0), (True, 1)]


def test_no_value_of_a_sensitive_column_is_in_a_verdict(warehouse: Warehouse) -> None:
    rows = table(warehouse, "orders", {"order_id": 4711, "amount": "999.00", "status": "SECRET"})
    rules = [
        rule("sum", "expect_column_sum_to_be_between", column="amount", max_value=100),
        rule("set", "expect_column_values_to_be_in_set", column="status", value_set=["paid"]),
        rule("most", "expect_column_most_common_value_to_be_in_set", column="status", value_set=["paid"]),
        rule("sql", "unexpected_rows_expectation", unexpected_rows_query="SELECT * FROM {batch}"),
    ]
    shown = judged(rows, *rules, keys=("order_id",))
    assert "999.0" in str(shown)
    assert [verdict.sample_keys for verdict in shown] == [(), ("4711",), (), ("4711",)]
    hidden = judged(rows, *rules, keys=("order_id",), sensitive={"order_id", "amount", "status"})
    assert not any(verdict.passed for verdict in hidden)
    assert [value for value in ("4711", "999", "SECRET") if value in str(hidden)] == []


def test_nothing_is_left_in_the_session(warehouse: Warehouse) -> None:
    orders = table(warehouse, "orders", {"order_id": 1})
    query = "SELECT * FROM {batch} JOIN customers USING (customer_id)"
    judged(orders, rule("sql", "unexpected_rows_expectation", unexpected_rows_query=query), views={"customers": orders})
    for view in ("customers", "tmp_view", "rows_to_judge"):
        assert not warehouse.spark.catalog.tableExists(view)
