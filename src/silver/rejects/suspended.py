"""Suspended tables: gate 1 found their records too bad to go on with, so nothing of the batch is applied to them.

The other tables of the source go on. The records of a suspended table stay pending in bronze, and their ranges of
offsets in `ops.batches`. Nothing of it is read again until its contract or its rules change, or a command asks for it:
then all of it is tried, after everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.errors import FeedSuspendedError
from silver.decode.drift import KEY, NEW
from silver.decode.reference.decoder import RUN_ID
from silver.order.facts import Facts
from silver.order.ranges import RecordRange
from silver.order.runs import TopicPartition
from silver.order.state import SuspensionCause, suspended_row

BUDGET = "max_reject_ratio"
PARSE_ERRORS = "parse_errors"
KEYS = "readable_keys"
# Coordinates fall where records do not name their connector run.
COORDINATES = "coordinates"
# Of a table by rule: its events have other columns, or do not say what the table is.
COLUMNS, NOT_MADE = "columns", "table"
# Of a table of a contract: its events have a field, or of any table: its records have a key, that it does not have.
CONTRACT, OTHER_KEY = "contract", "key"
# A column of the contract that no event has a field for, and one whose field the events of a declared table had. Of any
# table: nothing says how its values are written.
FIELDS, FIELDS_GONE, ENCODING = "fields", "fields_gone", "encoding"


# So many reasons of a suspended table are said one by one.
MAX_REASONS = 5
# By problem, how many of the judged records that a condition (SQL) chooses have it.
CountProblems = Callable[[str], Mapping[str, int]]


@dataclass(frozen=True)
class Suspension:
    """Why a table is suspended: the rule (or BUDGET), what it says, why, and of so many records how many failed."""

    rule: str
    description: str
    why: str
    failed: int = 0
    judged: int = 0


def suspension_of(
    feed: Feed,
    rules: Sequence[Expectation],
    rows: Iterable[Facts],
    *,
    problems: CountProblems = lambda _condition: {},
) -> Suspension | None:
    """What suspends the table: a rule with `on_failure: fail` that is not met, keys none of which can be read, a record
    that cannot be read where the contract says `parse_errors: fail`, or rejects beyond `max_reject_ratio`.

    `rows`: the facts (silver.order.facts) of its records. `problems`: for what else than rules records are rejected,
    counted where that suspends the table.
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
    keyed, unread_keys = (sum(row[name] for row in counted) for name in ("keyed", "unread_keys"))
    if unread_keys == keyed > 1:  # one alone may be damaged
        problem = max(row["key_problem"] or "" for row in counted)
        why = f"the keys of all its {keyed:,} records cannot be read: {problem.removesuffix('.')}"
        return Suspension(KEYS, "The keys of records can be read.", why, keyed, keyed)
    unread = sum(row["unread"] for row in counted) if feed.parse_errors == "fail" else 0
    if unread:
        reasons = "; ".join(["parse_errors: fail", *in_words(problems("is_unread"))])
        why = f"of its records {unread:,} cannot be read, or have a value that does not fit ({reasons})"
        return Suspension(PARSE_ERRORS, "Every record can be read, and its values fit.", why, unread, unread)
    rejected = sum(row["quarantined"] for row in counted)
    read = rejected + sum(row["changes"] + row["truncates"] for row in counted)
    budget = feed.max_reject_ratio
    if budget is None or rejected <= budget.records or rejected <= budget.share * read:
        return None
    reasons = "; ".join(in_words({**problems("kind = 'quarantined'"), **failures}))
    why = f"{rejected:,} of {read:,} records may not pass, and the budget is {budget.share:.0%} ({reasons})"
    return Suspension(BUDGET, "Not too many records of a batch are rejected.", why, rejected, read)


def in_words(reasons: Mapping[str, int]) -> list[str]:
    """Names of rules and sentences with their counts, the most frequent first. A record may have several."""
    counted = sorted(((count, reason) for reason, count in reasons.items() if count), key=lambda one: (-one[0], one[1]))
    sentences = [
        f"{reason.removesuffix('.')}{':' if ' ' in reason else ''} {count:,}" for count, reason in counted[:MAX_REASONS]
    ]
    more = counted[MAX_REASONS:]
    return [*sentences, f"{len(more):,} more reasons: {sum(count for count, _reason in more):,}"] if more else sentences


def fields_gone(gone: Sequence[str], new: Sequence[str], *, judged: int) -> Suspension:
    """That these fields are gone from a batch of so many rows, in whose place these `new` ones may be."""
    is_one = len(gone) == 1
    fields = f"field {gone[0]} is" if is_one else f"fields {', '.join(gone)} are"
    what = f"the {fields} in none of {judged:,} changes, and earlier ones had {'it' if is_one else 'them'}"
    came = f"new: {', '.join(new)} (renamed?)" if new else "none is new (dropped, or left out while it is unchanged?)"
    return Suspension(FIELDS_GONE, "A field that events had is not gone.", f"{what}; {came}", judged, judged)


def contract_differs(feed: Feed, marks: Sequence[str]) -> Suspension:
    """That events have what the contract does not name, by these marks (silver.decode.drift)."""
    keys = [mark.removeprefix(KEY) for mark in marks if mark.startswith(KEY)]
    if keys:
        found = "; ".join(keys[:MAX_REASONS])
        why = f"the key of its records is {found}, and that of its contract {', '.join(feed.keys)}"
        return Suspension(OTHER_KEY, "The key of the records is that of the table.", why)
    fields = [mark.removeprefix(NEW) for mark in marks if mark.startswith(NEW)]
    why = f"its events have fields that its contract does not name: {', '.join(fields[:MAX_REASONS])}"
    return Suspension(CONTRACT, "The contract names every field of the events.", why)


def regressed(topic_partitions: Mapping[TopicPartition, tuple[int, int]]) -> Suspension | None:
    """What suspends a table whose log seems to have begun again: records without a run fall behind, and repeat nothing.

    `topic_partitions`: by topic-partition the first offset of such records, and how many there are.
    """
    if not topic_partitions:
        return None
    (topic, _topic_id, partition), (first, _records) = min(topic_partitions.items())
    records = sum(many for _first, many in topic_partitions.values())
    why = (
        f"from offset {first:,} of {topic}, partition {partition}, {records:,} records are behind the source positions"
        f" before them and repeat no record. They do not name their connector run (header {RUN_ID}), so a log that"
        " has begun again (a failover, RESET MASTER, a restored backup) cannot be distinguished from old changes"
    )
    return Suspension(COORDINATES, "Without the name of its run, no record falls behind those before it.", why, records)


def pending_records(
    ranges: Iterable[RecordRange], feeds: Collection[Feed], new: Mapping[str, SuspensionCause]
) -> list[dict[str, Any]]:
    """What a batch has for suspended tables, as rows of `ops.batches`. `new`: those that it suspends."""
    return [
        suspended_row(
            feed.name,
            reach.topic_partition,
            first=reach.first,
            last=reach.last,
            records=reach.records,
            new=new.get(feed.name),
        )
        for reach in ranges
        for feed in feeds
        if feed.has_topic(reach.topic_partition[0])
    ]


def suspended_error(causes: Mapping[str, SuspensionCause]) -> FeedSuspendedError:
    """What the run ends with: the tables that it has left as they were, and what to do."""
    named = "; ".join(f"silver.{feed} is suspended: {cause.why}" for feed, cause in sorted(causes.items()))
    hints = []
    for rule, (what, command) in _HINTS.items():
        feeds = [feed for feed, cause in sorted(causes.items()) if _kind(cause.rule) == rule]
        if feeds:
            named_feeds = [part for feed in feeds for part in (*command[1:], feed)] if command else []
            hints.append(f"{what}{' '.join([*command[:1], *named_feeds])}.")
    return FeedSuspendedError(f"{named}. Nothing of this was applied; the other tables went on.", hint=" ".join(hints))


def of_schema(rule: str) -> str | None:
    """What to do about a table that this rule has suspended; None where it says nothing of columns or keys."""
    return _HINTS[rule][0] if rule in (FIELDS, FIELDS_GONE, CONTRACT, OTHER_KEY, ENCODING, COLUMNS) else None


def _kind(rule: str | None) -> str:
    return rule if rule in _HINTS and rule else ""


_ACCEPT_REJECTS = ("lakehouse silver", "--accept-rejects")
# What to do, and the command that goes on, with its option for each table; by the rule, where it is one of these.
_HINTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "": (
        "Fix the rule or the contract and run silver again, or let such records go to quarantine: ",
        _ACCEPT_REJECTS,
    ),
    FIELDS: (
        "Correct silver/tables.yaml and run silver again; where it is right, and events have such a field by now: ",
        ("lakehouse silver", "--resume"),
    ),
    KEYS: (
        "Set the connector's key.converter, or schema_registry where keys are Avro, and run silver again; records whose"
        " keys stay as they are go to quarantine with: ",
        _ACCEPT_REJECTS,
    ),
    FIELDS_GONE: (
        "Say in silver/tables.yaml which field has the value now (`fields: [old, new]`), or that the column is NULL"
        " where it has none (`optional: true`), and run silver again. Or let such records go to quarantine: ",
        _ACCEPT_REJECTS,
    ),
    ENCODING: (
        "Have the connector write what a value is: schemas in its messages, or numbers and times as text"
        " (decimal.handling.mode=string, time.precision.mode=isostring), with a new snapshot in new topics. Then name"
        " those in bronze/topics.yaml in place of these",
        (),
    ),
    COLUMNS: (
        "`lakehouse schema diff` shows what came. Say in bronze/topics.yaml what becomes of such a change"
        " (on_schema_change), or go on with it (a column that is gone stays, NULL in rows that change from now on; with"
        " --rename OLD=NEW it has the new field's values), and run silver again: ",
        ("lakehouse schema approve",),
    ),
    COORDINATES: (
        "Have the connector name its runs (Debezium 3.2 or later, extended.headers.enabled=true) and take a full"
        " snapshot, which then begins the new log; and let what is behind be superseded: ",
        _ACCEPT_REJECTS,
    ),
    NOT_MADE: (
        "Leave the topic out of the rule (`exclude` in bronze/topics.yaml), give it a feed of its own there, or run"
        " again when it has events",
        (),
    ),
    CONTRACT: (
        "Name the field in silver/tables.yaml (in a column's `fields`, or as a column), or say there that it may be"
        " left out (on_schema_change: {add: evolve}), and run silver again",
        (),
    ),
    OTHER_KEY: (
        "Declare another table with the new key in bronze/topics.yaml and silver/tables.yaml, or let such records go to"
        " quarantine (on_schema_change: {key: quarantine}); of a table with a contract whose key counts all the same,"
        " say {key: evolve}. Then run silver again",
        (),
    ),
}
