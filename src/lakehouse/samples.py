"""A few keys of the rows that fail a table rule: a bounded look, only taken once the rule has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehouse.contracts import Expectation
from lakehouse.parameters import expressions
from lakehouse.rule_arguments import OF_THE_BATCH, ROW_RULES, SQL_RULE, columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_KEYS = 5
# What `{batch}` stands for: a view of the rows, which the caller makes.
BATCH_VIEW = "rows_to_judge"
# What Great Expectations judges by the column's type alone, not row by row.
_OF_THE_COLUMN = "expect_column_values_to_be_of_type"


def sample_keys(rule: Expectation, rows: DataFrame, *, keys: Sequence[str]) -> tuple[str, ...]:
    """At most MOST_KEYS keys of `rows` that fail the rule, as text, several columns with a comma between them.

    None where the rule is not about single rows, or its SQL does not give the keys. `rows` must be the view BATCH_VIEW
    too.
    """
    failing = _failing_keys(rule, rows, keys) if keys else None
    if failing is None:
        return ()
    return tuple(",".join(str(value) for value in row) for row in failing.limit(MOST_KEYS).collect())


def _failing_keys(rule: Expectation, rows: DataFrame, keys: Sequence[str]) -> DataFrame | None:
    from pyspark.sql import functions as F

    from lakehouse.expectations import fails, is_asked

    if rule.type == SQL_RULE:
        query = str(rule.kwargs["unexpected_rows_query"]).rstrip("; \n")
        found = rows.sparkSession.sql(query.format(batch=BATCH_VIEW))
        return found.select(*keys) if set(keys) <= set(found.columns) else None
    if rule.type not in ROW_RULES or rule.type == _OF_THE_COLUMN or expressions(rule):
        return None
    if rule.type in OF_THE_BATCH:
        several = rows.where(is_asked(rule)).groupBy(*columns_of(rule))
        first = several.agg(F.count(F.lit(1)).alias("_times"), F.min(F.struct(*keys)).alias("_first"))
        return first.where(F.col("_times") > 1).select("_first.*")
    return rows.where(fails(rule, keys=keys, is_judged=F.lit(True))).select(*keys)
