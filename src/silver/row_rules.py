"""That every row rule can be compiled against its table, before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from lakehouse.contracts import Contracts, Expectation, Feed
from lakehouse.errors import ContractError, ContractProblem
from lakehouse.expectations import fails
from lakehouse.rule_arguments import SQL_RULE
from lakehouse.tables import small_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_rules(spark: SparkSession, contracts: Contracts) -> None:
    """Raise ContractError, naming every rule whose SQL is none, or names what its table does not have."""
    problems = [
        problem
        for feed in contracts.feeds.values()
        for rule in contracts.silver_gate.rules(feed.name)
        if rule.type == SQL_RULE or "row_condition" in rule.kwargs
        if (problem := _problem(spark, rule, feed)) is not None
    ]
    if problems:
        raise ContractError(problems)


def _problem(spark: SparkSession, rule: Expectation, feed: Feed) -> ContractProblem | None:
    columns = ", ".join(f"{name} {declared.type.ddl}" for name, declared in feed.columns.items())
    keys = list(feed.keys or feed.columns)
    argument = "unexpected_rows_query" if rule.type == SQL_RULE else "row_condition"
    try:
        table = small_table(spark, [], columns)
        _ = table.select(fails(rule, keys=keys, is_judged=F.lit(True))).schema
    except AnalysisException as error:
        what = f"not a condition on the columns of table {feed.name}: {str(error).splitlines()[0]}"
        return ContractProblem("silver/gate.yaml", None, f"expectations.{rule.name}.kwargs.{argument}", what)
    return None
