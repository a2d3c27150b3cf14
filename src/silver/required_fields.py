"""Columns that no event has a field for: a name in the contract that is not the source's, found before NULLs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from lakehouse.contracts import Feed
from lakehouse.errors import ContractError, ContractProblem
from silver.events import fields_of_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

MOST_FIELDS = 200
EVENTS_THAT_TELL = 100


def require_fields(records: DataFrame, feed: Feed, rows: Sequence[Row], *, before: Sequence[Mapping[str, Any]]) -> None:
    """Raise ContractError when a column that is not `optional` has never had a field in any event of the feed.

    `rows`: the counts of these records; `before`: of those before them (silver.order.state). Debezium's rows have all
    fields. The payloads of an outbox may leave out what is null: there it takes EVENTS_THAT_TELL of them; partial
    payloads tell nothing.
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
        return
    judged_before = sum(row["judged"] for row in before)
    never = [
        column for column in lacking if judged_before == sum(row["absent_columns"].get(column, 0) for row in before)
    ]
    judged += judged_before
    if not never or (feed.envelope == "outbox" and judged < EVENTS_THAT_TELL):
        return
    fields = sorted(row["field"] for row in fields_of_events(records, feed).limit(MOST_FIELDS).collect())
    raise ContractError([_never_had(feed, column, fields, events=judged) for column in never])


def _never_had(feed: Feed, column: str, fields: Sequence[str], *, events: int) -> ContractProblem:
    wanted = feed.fields_of(column)
    close = get_close_matches(wanted[0], fields, n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    what = (
        f"not one of {events:,} events has a field {' or '.join(wanted)};{hint} They have: {', '.join(fields)}."
        " A column that may be absent needs `optional: true`"
    )
    return ContractProblem("silver/tables.yaml", None, f"tables.{feed.name}.columns.{column}", what)
