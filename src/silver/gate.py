"""Gate 1, before anything is applied: every row rule compiles against its table, and every required column has a field.

A column that no event has a field for is a name in the contract that is not the source's: it suspends its table before
NULLs are written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from lakehouse.contracts.checks.mistakes import did_you_mean
from lakehouse.contracts.models import Contracts, Expectation, Feed
from lakehouse.delta.tables import inline_rows
from lakehouse.errors import ContractError, ContractProblem
from lakehouse.quality.arguments import SQL_RULE
from lakehouse.quality.row_rules import fails
from silver.batch.events import fields_of_events
from silver.order.facts import Facts
from silver.rejects.suspended import FIELDS, Suspension

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        table = inline_rows(spark, [], columns)
        _ = table.select(fails(rule, keys=keys, is_judged=F.lit(True))).schema
    except AnalysisException as error:
        what = f"not a condition on the columns of table {feed.name}: {str(error).splitlines()[0]}"
        return ContractProblem("silver/gate.yaml", None, f"expectations.{rule.name}.kwargs.{argument}", what)
    return None


MAX_FIELDS = 200
EVENTS_THAT_TELL = 100


def missing_fields(
    records: DataFrame,
    feed: Feed,
    rows: Sequence[Facts],
    *,
    before: Sequence[Mapping[str, Any]],
    sent: Collection[str],
) -> Suspension | None:
    """What suspends the table: a column that is not `optional` has never had a field in any event of the feed.

    `rows`: the counts of these records; `before`: of those before them (silver.order.state). `sent`: the columns of a
    table that earlier events had a field for; the counts say nothing of a column that is declared since. Debezium's
    rows have all fields. The payloads of an outbox may leave out what is null: there it takes EVENTS_THAT_TELL of them;
    partial payloads say nothing.
    """
    judged = sum(row["judged"] for row in rows)
    lacking = [
        column
        for column, declared in feed.columns.items()
        if column not in feed.keys
        and not declared.optional
        and judged
        and judged == sum(row["absent_columns"].get(column, 0) for row in rows)
    ]
    if not lacking or feed.payload == "partial":
        return None
    judged_before = sum(row["judged"] for row in before)
    never = [
        column
        for column in lacking
        if column not in sent
        and (feed.envelope == "table" or judged_before == sum(row["absent_columns"].get(column, 0) for row in before))
    ]
    judged += judged_before
    if not never or (feed.envelope == "outbox" and judged < EVENTS_THAT_TELL):
        return None
    fields = sorted(row["field"] for row in fields_of_events(records, feed).limit(MAX_FIELDS).collect())
    named = "; ".join(_never_had(feed, column, fields) for column in never)
    why = (
        f"in not one of {judged:,} events is there {named}. They have: {', '.join(fields)}. A column that may be absent"
        " needs `optional: true`"
    )
    return Suspension(FIELDS, "Every column of the contract has a field in the events.", why, judged, judged)


def _never_had(feed: Feed, column: str, fields: Sequence[str]) -> str:
    wanted = feed.fields_of(column)
    hint = did_you_mean(wanted[0], fields, form=", {}", otherwise="")
    return f"a field {' or '.join(wanted)} (silver/tables.yaml: tables.{feed.name}.columns.{column}{hint})"
