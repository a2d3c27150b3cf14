"""What silver has to be of a recording: the tables of its database in the end, and where events tell otherwise."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lakehouse.contracts.models import Feed
from tests.support.captures import Capture, changes_of
from tests.support.final_state import final_events, final_rows

Row = Mapping[str, str | None]
Differences = list[tuple[str | None, Any, Any]]


@dataclass(frozen=True)
class Difference:
    """A cell in which the events differ from the database's last state. `ours`, `theirs`: its text in both."""

    recordings: Sequence[str]
    table: str
    keys: Sequence[int]
    column: str
    ours: str | None
    theirs: str | None
    reason: str


OF_POSTGRES = ("pg_default", "pg_full", "pg_default_restart", "pg_schema-include", "pg_decimal-string_time-isostring")
OF_MYSQL = ("mysql", "mysql_restart", "mysql_schema-include")
# Written before the column `channel` was added, and not since.
OLD_ORDERS = (
    *range(1, 9),
    *range(10, 17),
    *range(19, 40),
    *range(41, 52),
    5005,
    6001,
)
KNOWN_DIFFERENCES = (
    Difference(
        (*OF_POSTGRES, *OF_MYSQL),
        "orders",
        OLD_ORDERS,
        "channel",
        ours=None,
        theirs="web",
        reason="ALTER TABLE … ADD COLUMN … DEFAULT changes the rows and sends no event of them.",
    ),
    Difference(
        OF_POSTGRES,
        "orders",
        (54,),
        "channel",
        ours="web",
        theirs=None,
        reason="JsonConverter writes the column's default where the source has NULL.",
    ),
    Difference(
        OF_MYSQL,
        "orders",
        (6013,),
        "channel",
        ours="web",
        theirs=None,
        reason="JsonConverter writes the column's default where the source has NULL.",
    ),
    Difference(
        tuple(name for name in OF_POSTGRES if name != "pg_decimal-string_time-isostring"),
        "orders_types",
        (4,),
        "dnum",
        ours=None,
        theirs="NaN",
        reason="decimal.handling.mode=precise has no NaN: it sends null.",
    ),
)

# What events tell of keys that the final table of an outbox does not have.
KNOWN_EVENTS: Mapping[str, Row] = {
    # The rows were deleted from the outbox table.
    "60": {"total_amount": "100.00"},
    "777": {},
}


def expected_rows(capture: Capture, table: str, feed: Feed) -> Mapping[str, Row]:
    """The rows of a table as the events tell them, by the text of the key."""
    # Some of the recorded tables never had the column.
    absent = {name: None for name, declared in feed.columns.items() if declared.optional}
    truth = final_rows(capture.final, table, kind=capture.kind)
    return with_known_differences({key: {**absent, **row} for key, row in truth.items()}, capture, table)


def expected_of_outbox(capture: Capture, aggregate_type: str, columns: tuple[str, ...]) -> Mapping[str, Row]:
    """The aggregates of one type as the events tell them, by the text of the key."""
    expected = dict(final_events(capture.final, aggregate_type, columns))
    if aggregate_type == "orders":
        assert not expected.keys() & KNOWN_EVENTS
        expected |= {key: {**dict.fromkeys(columns), "order_id": key, **row} for key, row in KNOWN_EVENTS.items()}
    return expected


ONLY_INSERTS = ("pg_default", "pg_default_restart", "pg_schema-include", "pg_decimal-string_time-isostring")


def differences(found: Mapping[str | None, Row], expected: Mapping[str, Row]) -> Differences:
    """Key, silver, truth: of each row the columns that differ, or the whole row where the other has none."""
    told: Differences = []
    for key in dict.fromkeys([*expected, *found]):
        ours, theirs = found.get(key), expected.get(str(key))
        if ours is None or theirs is None:
            told.append((key, ours, theirs))
        elif ours != theirs:
            names = [name for name in {**theirs, **ours} if ours.get(name, ABSENT) != theirs.get(name, ABSENT)]
            told.append(
                (key, {n: short(ours.get(n, ABSENT)) for n in names}, {n: short(theirs.get(n, ABSENT)) for n in names})
            )
    return told


ABSENT = "no such column"


def short(text: str | None) -> str | None:
    return text if text is None or len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"


def said(differing: Mapping[tuple[str, str], Differences]) -> list[str]:
    """A sentence for every table and case that differs."""
    return [
        f"{table} of {case}: {len(found)} rows, as {found[:2]}" for (table, case), found in differing.items() if found
    ]


def with_known_differences(truth: Mapping[str, Row], capture: Capture, table: str) -> Mapping[str, Row]:
    """The final table as the events tell it. A known difference must be one: in the truth stands what it says."""
    expected = {key: dict(row) for key, row in truth.items()}
    for known in KNOWN_DIFFERENCES:
        if capture.name in known.recordings and table == known.table:
            for key in map(str, known.keys):
                assert expected[key][known.column] == known.theirs, (known, key)
                assert known.ours != known.theirs
                expected[key][known.column] = known.ours
    return expected


def events_without_a_key(capture: Capture, table: str) -> list[Row]:
    """The changes of a table, read here by hand, in the order of offsets."""
    found: list[Row] = []
    for _record, change in changes_of(capture, table):
        row = change["before"] if change["op"] == "d" else change["after"]
        amount = row["total_amount"] if capture.as_text else decimal_of(row["total_amount"])
        found.append(
            {
                "order_id": str(row["order_id"]),
                "status": row["status"],
                "total_amount": amount,
                "_op": change["op"],
            }
        )
    return found


def decimal_of(text: str) -> str:
    """A DECIMAL(10,2) in base64."""
    return str(Decimal(int.from_bytes(base64.b64decode(text), "big", signed=True)).scaleb(-2))


def times_sent_again(capture: Capture, table: str) -> int:
    """How many changes only repeat an earlier one: the same place in the log, operation, key and row."""
    seen: set[str] = set()
    again = 0
    for record, change in changes_of(capture, table):
        topic_partition = {name: change["source"].get(name) for name in ("lsn", "file", "pos", "row", "snapshot")}
        said = json.dumps(
            [record["partition"], record["key"], topic_partition, change["op"], change["after"]], sort_keys=True
        )
        again += said in seen
        seen.add(said)
    return again
