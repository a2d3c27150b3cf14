"""Table rules: a Great Expectations checkpoint over the tables of a gate, and a few keys of the rows that fail.

Samples are a bounded look, taken only once a rule has failed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from lakehouse.contracts.models import Expectation
from lakehouse.failures import unreadable_file
from lakehouse.quality.arguments import (
    OF_THE_BATCH,
    OF_THE_COLUMN,
    ROW_RULES,
    SQL_RULE,
    columns_of,
    expressions,
    needed,
)
from lakehouse.quality.gx import as_great_expectation, quiet_context, refused

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
    from great_expectations.expectations.expectation import Expectation as GreatExpectation
    from pyspark.sql import DataFrame


MAX_VALUES_SHOWN = 10


@dataclass(frozen=True)
class TableCheck:
    """A table, or rows of it, with the rules that they must meet.

    `keys` identify its rows, and are what a failed rule samples; `sensitive` columns are never shown. `parameters`
    are what rules may compute with, `views` the tables that SQL may name beside `{batch}`.
    """

    rows: DataFrame
    rules: Sequence[Expectation]
    keys: Sequence[str] = ()
    sensitive: Collection[str] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    views: Mapping[str, DataFrame] = field(default_factory=dict)

    def is_asked(self, rule: Expectation) -> bool:
        """Whether everything is known that the rule computes with."""
        return needed(rule) <= set(self.parameters)


@dataclass(frozen=True)
class Verdict:
    """How one expectation came out: of `evaluated` rows or values, `failed` did not meet it.

    `observed`: of a rule on a whole column or table, what was found. `message`: why it could not be judged.
    `without_value`: how many of the evaluated rows the rule has passed over.
    """

    rule: Expectation
    passed: bool
    evaluated: int
    failed: int
    observed: str | None = None
    message: str | None = None
    sample_keys: tuple[str, ...] = ()
    without_value: int = 0


def validate_tables(tables: Mapping[str, Sequence[TableCheck]]) -> dict[str, list[Verdict]]:
    """For every table one verdict a rule, in their order; one Great Expectations checkpoint for each part of a table.

    A rule that cannot be evaluated is not passed. One that needs an earlier run, where there is none, is passed with
    nothing evaluated. Raises ContractError when Great Expectations refuses the values of arguments, and
    InstallationError when a package it needs is missing.
    """
    if not any(tables.values()):
        return {}
    context = quiet_context()
    from great_expectations.exceptions.exceptions import SuiteParameterError

    source = context.data_sources.add_spark(name="lakehouse", persist=False)
    verdicts: dict[str, list[Verdict]] = {}
    for name, parts in tables.items():
        verdicts[name] = []
        for number, part in enumerate(parts):
            part_name = f"{name} {number}"
            batch = source.add_dataframe_asset(name=part_name).add_batch_definition_whole_dataframe("whole")
            with views_of(part), _local_time_is_utc():
                try:
                    outcomes = _outcomes(context, part_name, batch, part)
                except SuiteParameterError as error:
                    raise refused(name, error) from None
                is_needed = any(rule.type == SQL_RULE for rule in part.rules)
                rows = _number_of_rows(part, outcomes) if is_needed else 0
                verdicts[name] += [
                    _verdict(rule, outcomes[rule.name], part, rows=rows) if rule.name in outcomes else not_asked(rule)
                    for rule in part.rules
                ]
    return verdicts


# Counts, and no rows: those would be read from the table into this process.
_COUNTS_ONLY = {"result_format": "BASIC", "partial_unexpected_count": 0}
# The view that Great Expectations makes for `{batch}`, and leaves behind.
_ITS_VIEW = "tmp_view"
_CONDITION = re.compile(r"^\W*(?:[\w.]+: )?\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
# What Great Expectations raises in place of the exception that says more.
_ITS_WRAPPER = "MetricResolutionError"
_EXCEPTION = re.compile(r"^(?:\w+\.)*(?P<name>\w+(?:Error|Exception))\b", re.MULTILINE)


def _outcomes(
    context: AbstractDataContext, name: str, batch: Any, table: TableCheck
) -> dict[str, ExpectationValidationResult]:
    """What Great Expectations says of every rule that is asked, by its name."""
    import great_expectations as gx

    asked = [rule for rule in table.rules if table.is_asked(rule)]
    if not asked:
        return {}
    suite = gx.ExpectationSuite(name=name, expectations=[_as_asked(rule) for rule in asked])
    validation = gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add(suite))
    context.validation_definitions.add(validation)
    checkpoint = gx.Checkpoint(name=name, validation_definitions=[validation], result_format=_COUNTS_ONLY)
    (result,) = (
        context.checkpoints.add(checkpoint)
        .run(batch_parameters={"dataframe": table.rows}, expectation_parameters=dict(table.parameters))
        .run_results.values()
    )
    return {
        outcome.expectation_config.meta["rule"]: outcome
        for outcome in result.results
        if outcome.expectation_config is not None and outcome.expectation_config.meta is not None
    }


def _as_asked(rule: Expectation) -> GreatExpectation:
    """The rule as Great Expectations has it, so that it is asked for counts alone."""
    own = as_great_expectation(rule)
    if rule.type != SQL_RULE:
        return own
    from lakehouse.quality.counted_rows import UnexpectedRowsCounted

    return UnexpectedRowsCounted(**rule.kwargs, description=rule.description, meta={"rule": rule.name})


def _number_of_rows(part: TableCheck, outcomes: Mapping[str, ExpectationValidationResult]) -> int:
    """How many rows were judged: as a rule has counted them that was asked about all; else they are counted."""
    for rule in part.rules:
        counted = outcomes[rule.name].result.get("element_count") if rule.name in outcomes else None
        if counted is not None and "row_condition" not in rule.kwargs:
            return int(counted)
    return part.rows.count()


def _verdict(rule: Expectation, outcome: ExpectationValidationResult, table: TableCheck, *, rows: int) -> Verdict:
    message = _why_not_evaluated(outcome.exception_info)
    if message is not None:
        return Verdict(rule=rule, passed=False, evaluated=0, failed=0, message=message)
    values, passed = outcome.result, bool(outcome.success)
    samples = () if passed else _samples(rule, table)
    if rule.type == SQL_RULE:
        failed = int(values["observed_value"])
        evaluated = max(rows, failed)  # a query may find rows that the table does not have
        return Verdict(rule=rule, passed=passed, evaluated=evaluated, failed=failed, sample_keys=samples)
    if "element_count" in values:
        evaluated, failed = int(values["element_count"]), int(values["unexpected_count"] or 0)
        without_value = int(values.get("missing_count") or 0)
        return Verdict(rule, passed, evaluated, failed, sample_keys=samples, without_value=without_value)
    # What is about a whole column or table is met or not, by one thing that was found.
    is_shown = not set(columns_of(rule)) & set(table.sensitive)
    observed = _shown(values.get("observed_value")) if is_shown else None
    return Verdict(rule=rule, passed=passed, evaluated=1, failed=int(not passed), observed=observed)


def not_asked(rule: Expectation) -> Verdict:
    """That of a rule that needs an earlier run, where there is none."""
    message = "Not asked: there is no earlier run to compare with."
    return Verdict(rule=rule, passed=True, evaluated=0, failed=0, message=message)


def _why_not_evaluated(raised: Mapping[str, Any]) -> str | None:
    """The kinds of the exceptions that the rule raised, as a sentence: their texts can quote rows.

    A file that cannot be read is no verdict on the rows: that is raised.
    """
    of_metrics = [raised] if "raised_exception" in raised else list(raised.values())
    kinds = set()
    for one in of_metrics:
        parsed = dict(one)
        if parsed.get("raised_exception"):
            condition = _CONDITION.search(str(parsed.get("exception_message") or ""))
            traceback = str(parsed.get("exception_traceback") or "")
            raised_as = RuntimeError(f"{parsed.get('exception_message')}\n{traceback}")
            if unreadable_file(raised_as) is not None:
                raise raised_as
            named = [name for name in _EXCEPTION.findall(traceback) if name != _ITS_WRAPPER]
            kinds.add(" ".join([*named[-1:], *([condition["condition"]] if condition else [])]) or "an exception")
    return f"It could not be evaluated: {', '.join(sorted(kinds))}." if kinds else None


def _shown(value: object) -> str | None:
    if value is None or isinstance(value, Mapping):
        return None
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, list | tuple | set):
        shown = [str(one) for one in list(value)[:MAX_VALUES_SHOWN]]
        return ", ".join([*shown, *(["…"] if len(value) > MAX_VALUES_SHOWN else [])])
    return str(value)


@contextmanager
def views_of(table: TableCheck) -> Iterator[None]:
    """Inside, SQL can name the table's views."""
    views = {**table.views, BATCH_VIEW: table.rows}
    try:
        for name, rows in views.items():
            rows.createOrReplaceTempView(name)
        yield
    finally:
        for name in (*views, _ITS_VIEW):
            table.rows.sparkSession.catalog.dropTempView(name)


@contextmanager
def _local_time_is_utc() -> Iterator[None]:
    """Inside, this process's local time is UTC: Great Expectations compares times as local ones, without a zone."""
    before = os.environ.get("TZ")
    try:
        os.environ["TZ"] = "UTC"
        time.tzset()
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


MAX_KEYS = 5
# What `{batch}` stands for: a view of the rows, which the caller makes.
BATCH_VIEW = "rows_to_judge"


def sampled(rule: Expectation, table: TableCheck) -> tuple[str, ...]:
    """`sample_keys` of a rule that the table does not meet, unless its keys are sensitive."""
    with views_of(table):
        return _samples(rule, table)


def _samples(rule: Expectation, table: TableCheck) -> tuple[str, ...]:
    return () if set(table.keys) & set(table.sensitive) else sample_keys(rule, table.rows, keys=table.keys)


def sample_keys(rule: Expectation, rows: DataFrame, *, keys: Sequence[str]) -> tuple[str, ...]:
    """At most MAX_KEYS keys of `rows` that fail the rule, as text, several columns with a comma between them.

    None where the rule is not about single rows, or its SQL does not give the keys. `rows` must be the view BATCH_VIEW
    too.
    """
    failing = _failing_keys(rule, rows, keys) if keys else None
    if failing is None:
        return ()
    return tuple(",".join(str(value) for value in row) for row in failing.limit(MAX_KEYS).collect())


def _failing_keys(rule: Expectation, rows: DataFrame, keys: Sequence[str]) -> DataFrame | None:
    from pyspark.sql import functions as F

    from lakehouse.quality.row_rules import fails, is_asked

    if rule.type == SQL_RULE:
        found = unexpected_rows(rows, rule)
        return found.select(*keys) if set(keys) <= set(found.columns) else None
    if rule.type not in ROW_RULES or rule.type == OF_THE_COLUMN or expressions(rule):
        return None
    if rule.type in OF_THE_BATCH:
        several = rows.where(is_asked(rule)).groupBy(*columns_of(rule))
        first = several.agg(F.count(F.lit(1)).alias("_times"), F.min(F.struct(*keys)).alias("_first"))
        return first.where(F.col("_times") > 1).select("_first.*")
    return rows.where(fails(rule, keys=keys, is_judged=F.lit(True))).select(*keys)


def unexpected_rows(rows: DataFrame, rule: Expectation) -> DataFrame:
    """What the query of a SQL_RULE finds. `rows` must be the view BATCH_VIEW too."""
    query = str(rule.kwargs["unexpected_rows_query"]).rstrip("; \n")
    return rows.sparkSession.sql(query.format(batch=BATCH_VIEW))
