"""The scenarios (tests/scenarios) as cases of the laws: each in one batch, once more in the next, and in two.

A scenario's directory has:

why.md                  the story, and the rule that it is about
events.jsonl            the Kafka records in the order they are read, one a line, in the form of the recordings
silver.<feed>.jsonl     the live rows of that feed's table; decimals and times as text
deleted.<feed>.jsonl    the keys of the rows that are kept as deleted
quarantine.jsonl        topic, partition, offset and reasons of every record that goes to quarantine

The order of lines matters in `events.jsonl` alone, and a file that is absent expects nothing there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from demo.check import as_text
from tests.support.captures import IDS
from tests.support.events import Record
from tests.support.laws.contracts import TOPICS
from tests.support.laws.played import BATCHES, Cases, Played
from tests.support.sharded import CASE, topic_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCENARIOS = sorted(file.parent for file in (Path(__file__).parents[2] / "scenarios").glob("*/events.jsonl"))
KEYLESS = "_event_id"
IN_ONE_BATCH, THE_SAME_BATCH_TWICE, IN_TWO_BATCHES = WAYS = ("one batch", "the same batch twice", "two batches")
# Of those that are read in one batch, and then again, the batch behind which they are looked at.
SEEN_AFTER = {IN_ONE_BATCH: 0, THE_SAME_BATCH_TWICE: 1, IN_TWO_BATCHES: BATCHES - 1}

Line = dict[str, Any]
# The lines of each file of a scenario, by the file's name.
Files = Mapping[str, Sequence[Line]]


@dataclass(frozen=True)
class Scenarios:
    """These scenarios, and their records."""

    directories: Sequence[Path]
    cases: Cases


def read_scenarios(directories: Sequence[Path]) -> Scenarios:
    """The scenarios' records in their batches: whole in both, and beside that a part in each."""
    batches: dict[str, list[list[Record]]] = {}
    for scenario in directories:
        for way in (IN_ONE_BATCH, IN_TWO_BATCHES):
            for source in ("postgres", "mysql"):
                of_source = batches.setdefault(source, [[] for _ in range(BATCHES)])
                records = [one for one in records_of(scenario, way) if _source(one["topic"]) == source]
                for number, record in enumerate(records):
                    last = number * BATCHES // max(len(records), BATCHES)
                    for batch in (0, 1) if way == IN_ONE_BATCH else (last,):
                        of_source[batch].append(record)
    return Scenarios(directories, Cases(batches))


def case_of(scenario: Path, way: str) -> str:
    """The case of a scenario that is read in this way: the first two are one case, seen twice."""
    return f"{scenario.name}.in_batches" if way == IN_TWO_BATCHES else scenario.name


def records_of(scenario: Path, way: str) -> Sequence[Record]:
    """A scenario's records, in topics that no other case has.

    In two batches, ids of outbox events and of connector runs are the case's own too: an event is the same wherever
    it is read again, and what is learnt of a run counts in all topics.
    """
    feed_of = {topic: feed for feed, topic in TOPICS.items()}
    case = case_of(scenario, way)
    records = [
        {**record, "topic": topic_of(case, feed_of[record["topic"]])} for record in _lines(scenario / "events.jsonl")
    ]
    if way != IN_TWO_BATCHES:
        return records
    return [
        {
            **one,
            "headers": [[name, _of_case(case, text) if name in IDS else text] for name, text in one["headers"] or ()],
        }
        for one in records
    ]


def _of_case(case: str, header: str) -> str:
    """An id as the case's own, in the form of the header's converter: text, JSON, or JSON with its schema."""
    try:
        value = json.loads(header)
    except ValueError:
        return f"{case} {header}"
    if isinstance(value, dict):
        return json.dumps({**value, "payload": f"{case} {value['payload']}"})
    return json.dumps(f"{case} {value}") if isinstance(value, str) else f"{case} {header}"


def _source(topic: str) -> str:
    return "mysql" if topic.rpartition(".")[2].startswith("mysql") else "postgres"


def expected_files(scenario: Path) -> Files:
    """The expected files of a scenario."""
    return {file.name: _sorted(_lines(file)) for file in scenario.glob("*.jsonl") if file.name != "events.jsonl"}


@dataclass(frozen=True)
class Outcome:
    """What all scenarios have led to behind a batch: rows by feed, and entries of the quarantine."""

    silver: Mapping[str, Sequence[Line]]
    quarantine: Sequence[Line]

    def of(self, scenario: Path, way: str) -> Files:
        """The part of one scenario that was read in this way, in the form of its files."""
        files, case = {}, case_of(scenario, way)
        for feed, rows in self.silver.items():
            own = [row for row in rows if row[CASE] == case]
            files[f"silver.{feed}.jsonl"] = [_without(row) for row in own if not row["_is_deleted"]]
            files[f"deleted.{feed}.jsonl"] = [{"order_id": row["order_id"]} for row in own if row["_is_deleted"]]
        topics = {topic_of(case, feed): topic for feed, topic in TOPICS.items()}
        files["quarantine.jsonl"] = [
            {**entry, "topic": topics[entry["topic"]]} for entry in self.quarantine if entry["topic"] in topics
        ]
        return {name: _sorted(lines) for name, lines in files.items() if lines}


def outcome(played: Played, scenarios: Scenarios, after: int) -> Outcome:
    """What had come of the scenarios behind this batch."""
    cases = [case_of(scenario, way) for scenario in scenarios.directories for way in (IN_ONE_BATCH, IN_TWO_BATCHES)]
    silver = {
        feed: _silver_rows(
            played.table(feed, after=after).where(F.col(CASE).isin(cases)), list(played.contracts.feeds[feed].columns)
        )
        for feed in TOPICS
    }
    quarantine = [
        row.asDict()
        for source in played.contracts.topics.sources
        for row in played.quarantine(source, after=after)
        .where("state = 'open'")
        .select("topic", "partition", "offset", "reasons")
        .collect()
    ]
    return Outcome(silver, quarantine)


def _lines(file: Path) -> list[Line]:
    # Not splitlines: text in JSON may hold other characters that end lines.
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def _sorted(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: json.dumps(line, sort_keys=True))


def _silver_rows(table: DataFrame, columns: list[str]) -> list[Line]:
    # One row a key; of a table without one, one a record.
    rows = table.withColumn(
        "id", F.concat_ws(" ", CASE, "order_id", *(["_event_id"] if KEYLESS in table.columns else []))
    )
    shown = [name for name in (*columns, "_is_deleted", KEYLESS, "_unresolved_columns", "_op") if name in table.columns]
    return [dict(row) for row in as_text(rows, ["id", *shown], key="id").values()]


def _without(row: Line) -> Line:
    """The row without its case and what it is from; with its columns that are not resolved, or its operation."""
    shown = {name: value for name, value in row.items() if not name.startswith("_") and name not in {CASE, "id"}}
    unresolved = {"_unresolved_columns": row["_unresolved_columns"]} if row.get("_unresolved_columns") else {}
    return {**shown, **unresolved, **({"_op": row["_op"]} if KEYLESS in row else {})}
