"""Every directory of tests/scenarios: its records lead to the expected files, in whatever batches they are read.

And the rows that the batches made are those that all events are folded to, by the definition of silver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.support.laws.contracts import TOPICS
from tests.support.laws.played import Played
from tests.support.laws.scenarios import (
    IN_ONE_BATCH,
    SCENARIOS,
    SEEN_AFTER,
    WAYS,
    Outcome,
    Scenarios,
    case_of,
    expected_files,
    outcome,
    records_of,
)
from tests.support.sharded import CASE, topic_of
from tests.support.silver import derive_anew

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

WITH_POSITIONS = ("postgres_orders", "mysql_orders")


@pytest.fixture(scope="module")
def outcomes(played: Played, scenarios: Scenarios) -> Callable[[str], Outcome]:
    """What had come of the scenarios behind the batch after which those of a way are looked at."""
    found: dict[int, Outcome] = {}

    def of(way: str) -> Outcome:
        after = SEEN_AFTER[way]
        if after not in found:
            found[after] = outcome(played, scenarios, after)
        return found[after]

    return of


@dataclass(frozen=True)
class Rederived:
    """The rows of the scenarios before and after all of them were derived anew, by table.

    `outcomes`: how many records came to which outcome, by topic and partition. `newly_damaged`: how many records were
    found damaged that were not known to be.
    """

    before: Mapping[str, Counter[str]]
    after: Mapping[str, Counter[str]]
    outcomes: Counter[tuple[str, int, str]]
    newly_damaged: int


@pytest.fixture(scope="module")
def rederived(played: Played, scenarios: Scenarios) -> Rederived:
    """What came of deriving all rows anew of the scenarios that were read in one batch."""
    cases = [case_of(scenario, IN_ONE_BATCH) for scenario in scenarios.directories]
    topics = [topic_of(case, feed) for case in cases for feed in TOPICS]
    before, counted, newly_damaged = _whole_rows(played, cases), Counter[tuple[str, int, str]](), 0
    for source in played.contracts.topics.sources:
        bronze = played.warehouse.read(f"bronze.{source}_events").where(F.col("topic").isin(topics))
        anew = derive_anew(played.warehouse, played.contracts, source, of=bronze)
        counted.update(anew.outcomes)
        newly_damaged += anew.moved
    return Rederived(before, _whole_rows(played, cases), counted, newly_damaged)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_records_lead_to_the_expected_files(outcomes: Callable[[str], Outcome], scenario: Path, way: str) -> None:
    actual, expected = outcomes(way).of(scenario, way), expected_files(scenario)
    assert actual.keys() == expected.keys()
    for name, lines in expected.items():
        assert actual[name] == lines, name


def test_a_row_derived_anew_from_all_its_events_is_the_same(rederived: Rederived, scenarios: Scenarios) -> None:
    assert sum(sum(rows.values()) for rows in rederived.before.values()) > len(scenarios.directories)
    for table, rows in rederived.before.items():
        assert rederived.after[table] == rows, table
    assert not rederived.newly_damaged, "what is damaged was found by the batch"


def test_an_event_folded_by_definition_comes_to_the_same_outcome(
    rederived: Rederived, played: Played, scenarios: Scenarios
) -> None:
    records = [one for scenario in scenarios.directories for one in records_of(scenario, IN_ONE_BATCH)]
    topics = {record["topic"] for record in records}
    # A truncate has no key, and is folded with none.
    topics -= {one["topic"] for one in records if one["key"] is None and '"t"' in (one["value"] or "")}
    kinds = ("applied", "superseded", "duplicate", "tombstone")
    by_batch = {
        (entry["topic"], entry["partition"], kind): entry[kind]
        for source in played.contracts.topics.sources
        for entry in played.audit(source)
        for kind in kinds
        if entry[kind] and entry["batch"] == 0 and entry["topic"] in topics and entry["feed"] in WITH_POSITIONS
    }
    folded = {of: number for of, number in rederived.outcomes.items() if of[2] in kinds and of[0] in topics}
    assert by_batch
    assert folded == by_batch


def test_every_scenario_says_why() -> None:
    assert [scenario.name for scenario in SCENARIOS if not (scenario / "why.md").read_text().strip()] == []


def _whole_rows(played: Played, cases: list[str]) -> Mapping[str, Counter[str]]:
    """The rows of these cases by table that can be derived anew, with all their columns but when they were applied."""

    def rows(table: DataFrame) -> Counter[str]:
        of_cases = table.where(F.col(CASE).isin(cases)).drop("_applied_at")
        return Counter(row["row"] for row in of_cases.select(F.to_json(F.struct("*")).alias("row")).collect())

    return {feed: rows(played.table(feed)) for feed in WITH_POSITIONS}
