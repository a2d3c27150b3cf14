"""Every directory here is a scenario: the records of `events.jsonl` must lead to the expected files beside them.

why.md                  the story, and the rule that it is about
events.jsonl            the Kafka records in the order they are read, one a line, in the form of the recordings
silver.<feed>.jsonl     the live rows of that feed's table; decimals and times as text
deleted.<feed>.jsonl    the keys of the rows that are kept as deleted
quarantine.jsonl        topic, partition, offset and reasons of every record that waits in quarantine

The order of lines matters in `events.jsonl` alone, and a file that is absent expects nothing there. All scenarios share
one warehouse: each has order ids and event ids of its own, and its partitions are moved apart. They are read in one
batch, then the same batch again, and in many batches.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.check import as_text
from lakehouse.contracts import Contracts
from silver.apply import Job, apply_batch
from tests.support.bronze import bronze_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.tables import Warehouse

pytestmark = pytest.mark.spark

SCENARIOS = sorted(file.parent for file in Path(__file__).parent.glob("*/events.jsonl"))
MOST_PARTITIONS = 10
MOST_BATCHES = 4
WAYS = ("one batch", "the same batch twice", "many batches")

Line = dict[str, Any]
# The lines of each file of a scenario, by the file's name.
Files = Mapping[str, Sequence[Line]]


@dataclass(frozen=True)
class Outcome:
    """What all scenarios together have led to."""

    silver: Mapping[str, Sequence[Line]]
    quarantine: Sequence[Line]
    ledger: Sequence[Line]

    def of(self, scenario: Path) -> Files:
        """The part of one scenario, in the form of its files."""
        files = {}
        for feed, rows in self.silver.items():
            own = [row for row in rows if _owner(row["_partition"]) == scenario]
            files[f"silver.{feed}.jsonl"] = [_without(row) for row in own if not row["_is_deleted"]]
            files[f"deleted.{feed}.jsonl"] = [{"order_id": row["order_id"]} for row in own if row["_is_deleted"]]
        files["quarantine.jsonl"] = [
            {**entry, "partition": entry["partition"] % MOST_PARTITIONS}
            for entry in self.quarantine
            if _owner(entry["partition"]) == scenario
        ]
        return {name: _sorted(lines) for name, lines in files.items() if lines}


@pytest.fixture(scope="module")
def outcomes(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Outcome]:
    """What came of every way to read the scenarios."""
    folder = tmp_path_factory.mktemp("batches")

    def apply(warehouse: Warehouse, batches: Iterable[int], *, chosen: Callable[[int, int], int]) -> Outcome:
        def apply_source(source: str) -> None:
            job = Job(source, contracts, warehouse.location, warehouse.checkpoints, run="test")
            topics = contracts.topics.sources[source].topic_names
            records = _batches(topics, chosen)
            for batch in batches:
                file = folder / f"{source}-{batch}.jsonl"
                file.write_text("".join(f"{json.dumps(record)}\n" for record in records[batch]), encoding="utf-8")
                rows = bronze_rows(warehouse.spark, file, topics={topic: topic for topic in topics})
                apply_batch(rows, batch, job=job)

        with ThreadPoolExecutor() as pool:
            list(pool.map(apply_source, contracts.topics.sources))
        return _outcome(warehouse, contracts)

    together, apart = empty_silver(), empty_silver()
    results = (
        apply(together, [0], chosen=lambda _number, _count: 0),
        apply(together, [1], chosen=lambda _number, _count: 1),
        apply(
            apart,
            range(MOST_BATCHES),
            chosen=lambda number, count: number * MOST_BATCHES // max(count, MOST_BATCHES),
        ),
    )
    return dict(zip(WAYS, results, strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_records_lead_to_the_expected_files(outcomes: Mapping[str, Outcome], scenario: Path, way: str) -> None:
    actual, expected = outcomes[way].of(scenario), _expected(scenario)
    assert actual.keys() == expected.keys()
    for name, lines in expected.items():
        assert actual[name] == lines, name


@pytest.mark.parametrize("way", ["one batch", "many batches"])
def test_every_record_is_accounted_for(outcomes: Mapping[str, Outcome], way: str) -> None:
    read: Counter[tuple[str, int]] = Counter()
    for entry in outcomes[way].ledger:
        kinds = [entry[kind] for kind in ("changes", "tombstones", "ignored", "quarantined")]
        assert sum(kinds) == entry["read"], entry
        read[entry["topic"], entry["partition"]] += entry["read"]
    records = [record for scenario in SCENARIOS for record in _records(scenario)]
    assert read == Counter((record["topic"], record["partition"]) for record in records)


def test_no_two_scenarios_share_a_key() -> None:
    keys = Counter(
        (name.split(".")[1], line["order_id"])
        for scenario in SCENARIOS
        for name, lines in _expected(scenario).items()
        if name.startswith(("silver.", "deleted."))
        for line in lines
    )
    assert [key for key, times in keys.items() if times > 1] == []


def test_every_scenario_says_why() -> None:
    assert [scenario.name for scenario in SCENARIOS if not (scenario / "why.md").read_text().strip()] == []


def _batches(topics: Sequence[str], chosen: Callable[[int, int], int]) -> Mapping[int, Sequence[Line]]:
    """The records of the topics by batch; `chosen` gives the batch of a scenario's n-th record of so many."""
    batches = defaultdict(list)
    for scenario in SCENARIOS:
        records = [record for record in _records(scenario) if record["topic"] in topics]
        for number, record in enumerate(records):
            batches[chosen(number, len(records))].append(record)
    return batches


def _records(scenario: Path) -> Sequence[Line]:
    """The scenario's records, in partitions that no other scenario has."""
    first = SCENARIOS.index(scenario) * MOST_PARTITIONS
    records = _lines(scenario / "events.jsonl")
    assert all(0 <= record["partition"] < MOST_PARTITIONS for record in records), scenario.name
    return [{**record, "partition": first + record["partition"]} for record in records]


def _owner(partition: int) -> Path:
    return SCENARIOS[partition // MOST_PARTITIONS]


def _expected(scenario: Path) -> Files:
    return {file.name: _sorted(_lines(file)) for file in scenario.glob("*.jsonl") if file.name != "events.jsonl"}


def _lines(file: Path) -> list[Line]:
    # Not splitlines: text in JSON may hold other characters that end lines.
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def _sorted(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: json.dumps(line, sort_keys=True))


def _outcome(warehouse: Warehouse, contracts: Contracts) -> Outcome:
    return Outcome(
        silver={
            feed: _silver_rows(warehouse.read(f"silver.{feed}"), list(declared.columns))
            for feed, declared in contracts.feeds.items()
        },
        quarantine=[
            row.asDict()
            for row in warehouse.read("quality.quarantine").select("topic", "partition", "offset", "reasons").collect()
        ],
        ledger=[row.asDict() for row in warehouse.read("ops.ledger").collect()],
    )


def _silver_rows(table: DataFrame, columns: list[str]) -> list[Line]:
    rows = as_text(table, [*columns, "_partition", "_is_deleted"], key="order_id")
    return [dict(row) for row in rows.values()]


def _without(row: Line) -> Line:
    """The row without technical columns."""
    return {name: value for name, value in row.items() if not name.startswith("_")}
