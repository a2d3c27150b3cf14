"""Suspended tables: gate 1 found their records too bad to go on with, so nothing of the batch is applied to them.

The other tables of the source go on. The records of a suspended table stay pending in bronze, and their ranges of
offsets in `ops.batches`; every run reads them again, and goes on when the rules of today, or a person, let it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.errors import FeedSuspendedError
from silver.decode.explain import RUN_ID
from silver.order.runs import TopicPartition
from silver.order.state import suspended_row

if TYPE_CHECKING:
    from pyspark.sql import Row

BUDGET = "max_reject_ratio"
PARSE_ERRORS = "parse_errors"
# Coordinates fall where records do not name their connector run.
COORDINATES = "coordinates"
# Of a table by rule: its events have other columns, or do not say what the table is.
COLUMNS, NOT_MADE = "columns", "table"


@dataclass(frozen=True)
class Reach:
    """What a batch has of a topic-partition. `schema_ids`: of the registry's schemas that its records name."""

    place: TopicPartition
    first: int
    last: int
    records: int
    value_bytes: int = 0
    schema_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Suspension:
    """Why a table is suspended: the rule (or BUDGET), what it says, why, and of so many records how many failed."""

    rule: str
    description: str
    why: str
    failed: int = 0
    judged: int = 0


def suspension_of(feed: Feed, rules: Sequence[Expectation], rows: Iterable[Row]) -> Suspension | None:
    """What suspends the table: a rule with `on_failure: fail` that is not met, a record that cannot be read where the
    contract says `parse_errors: fail`, or rejects beyond `max_reject_ratio`.

    `rows`: the counts (COUNTS) of its records.
    """
    counted = list(rows)
    judged = sum(row["judged"] for row in counted)
    failures = {
        rule.name: sum(row["failed_rules"].get(rule.name, 0) for row in counted)
        for rule in rules
        if rule.on_failure != "warn"
    }
    for rule in rules:
        if rule.on_failure == "fail" and not rule.is_met(failed=failures[rule.name], evaluated=judged):
            why = f"{failures[rule.name]:,} of {judged:,} changes fail {rule.name} ({rule.description})"
            return Suspension(rule.name, rule.description, why, failures[rule.name], judged)
    unread = sum(row["unread"] for row in counted) if feed.parse_errors == "fail" else 0
    if unread:
        why = f"of its records {unread:,} cannot be read, or have a value that does not fit (parse_errors: fail)"
        return Suspension(PARSE_ERRORS, "Every record can be read, and its values fit.", why, unread, unread)
    rejected = sum(row["quarantined"] for row in counted)
    read = rejected + sum(row["changes"] + row["truncates"] for row in counted)
    budget = feed.max_reject_ratio
    if budget is None or rejected <= budget.records or rejected <= budget.share * read:
        return None
    most = sorted((name for name in failures if failures[name]), key=lambda name: -failures[name])
    by_rule = ", ".join(f"{name} {failures[name]:,}" for name in most) or "values that do not fit, unreadable records"
    why = f"{rejected:,} of {read:,} records may not pass, and the budget is {budget.share:.0%} ({by_rule})"
    return Suspension(BUDGET, "Not too many records of a batch are rejected.", why, rejected, read)


def regressed(places: Mapping[TopicPartition, tuple[int, int]]) -> Suspension | None:
    """What suspends a table whose log seems to have begun again: records without a run fall behind, and repeat nothing.

    `places`: by topic-partition the first offset of such records, and how many there are.
    """
    if not places:
        return None
    (topic, _topic_id, partition), (first, _records) = min(places.items())
    records = sum(many for _first, many in places.values())
    why = (
        f"from offset {first:,} of {topic}, partition {partition}, {records:,} records are behind the source positions"
        f" before them and repeat no record. They do not name their connector run (header {RUN_ID}), so a log that"
        " has begun again (a failover, RESET MASTER, a restored backup) cannot be distinguished from old changes"
    )
    return Suspension(COORDINATES, "Without the name of its run, no record falls behind those before it.", why, records)


def pending_records(
    reaches: Iterable[Reach], feeds: Collection[Feed], new: Mapping[str, Suspension]
) -> list[dict[str, Any]]:
    """What a batch has for suspended tables, as rows of `ops.batches`. `new`: those that it suspends."""
    return [
        suspended_row(
            feed.name,
            reach.place,
            first=reach.first,
            last=reach.last,
            records=reach.records,
            rule=new[feed.name].rule if feed.name in new else None,
            why=new[feed.name].why if feed.name in new else None,
        )
        for reach in reaches
        for feed in feeds
        if feed.has_topic(reach.place[0])
    ]


def suspended_error(reasons: Mapping[str, str], rules: Mapping[str, str] | None = None) -> FeedSuspendedError:
    """What the run ends with: the tables that it has left as they were, and what to do. `rules`: that suspend them."""
    named = "; ".join(f"silver.{feed} is suspended: {why}" for feed, why in sorted(reasons.items()))
    remedies = []
    for rule, (what, option) in _REMEDIES.items():
        feeds = [feed for feed in sorted(reasons) if _kind((rules or {}).get(feed)) == rule]
        if feeds:
            command = " ".join(["lakehouse silver", *[f"{option} {feed}" for feed in feeds]]) if option else ""
            remedies.append(f"{what}{command}.")
    return FeedSuspendedError(
        f"{named}. Nothing of this was applied; the other tables went on.", remedy=" ".join(remedies)
    )


def _kind(rule: str | None) -> str:
    return rule if rule in (COLUMNS, NOT_MADE, COORDINATES) else ""


# What to do, and the option of `lakehouse silver` that goes on; by the rule, where it is one of a table by rule.
_REMEDIES = {
    "": (
        "Fix the rule or the contract and run silver again, or let such records go to quarantine: ",
        "--accept-rejects",
    ),
    COLUMNS: (
        "Declare the table in bronze/topics.yaml and silver/tables.yaml, or go on with the columns that its events have"
        " now (one that is gone stays, NULL in rows that change from now on): ",
        "--accept-columns",
    ),
    COORDINATES: (
        "Have the connector name its runs (Debezium 3.2 or later, extended.headers.enabled=true) and take a full"
        " snapshot, which then begins the new log; and let what is behind be superseded: ",
        "--accept-rejects",
    ),
    NOT_MADE: (
        "Leave the topic out of the rule (`exclude` in bronze/topics.yaml), give it a feed of its own there, or run"
        " again when it has events",
        "",
    ),
}
