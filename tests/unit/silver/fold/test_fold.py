"""The definition of silver: whatever the batches were, the fold of all records is the table that the history ends with.

Random histories are told by a model of a database, its log, its connector and its topic (tests/support/model).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import SourceKind
from tests.support.frames import differing_histories
from tests.support.histories import FEEDS, KINDS, differing, told
from tests.support.model.batches import (
    WAYS,
    Way,
    batches_with_lagging_partitions,
    in_one,
    sent_again,
    without_run_headers,
)
from tests.support.model.history import History
from tests.support.model.stories import random_history
from tests.support.oracle import Folded
from tests.support.pure import PureSilver
from tests.support.sharded import sharded

# Of each kind.
HISTORIES = int(os.environ.get("HISTORIES", "250"))


def histories(contracts: Contracts, kind: SourceKind, *, part: slice) -> Iterator[tuple[str, History, Random]]:
    topic = contracts.feeds[FEEDS[kind]].topics[0]
    for number in range(HISTORIES)[part]:
        random = Random(seed := f"{kind} {number}")  # noqa: S311
        yield seed, random_history(kind, random, topic=topic, features=None), random


class Story(NamedTuple):
    """A history, the seed that makes it again, and what has read it."""

    seed: str
    history: History
    silver: PureSilver


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> SourceKind:
    found: SourceKind = request.param
    return found


@pytest.fixture(scope="module")
def by_way(contracts: Contracts, kind: SourceKind) -> Mapping[Way, Sequence[Story]]:
    """The histories, each read in one of the ways."""
    return {
        way: [
            Story(seed, history, told(contracts, history, way(history, random)))
            for seed, history, random in histories(contracts, kind, part=slice(number, None, len(WAYS)))
        ]
        for number, way in enumerate(WAYS)
    }


@pytest.fixture(scope="module")
def all_sent_again(contracts: Contracts, kind: SourceKind) -> Sequence[Story]:
    """Some histories, of which a producer sends every record twice."""
    found = []
    for seed, history, random in histories(contracts, kind, part=slice(None, None, 5)):
        again = sent_again(history, random)
        found.append(Story(seed, again, told(contracts, again, batches_with_lagging_partitions(again, random))))
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_fold_is_the_table_that_the_history_ends_with(by_way: Mapping[Way, Sequence[Story]], way: Way) -> None:
    for seed, history, silver in by_way[way]:
        assert differing(silver, history) == {}, (seed, sorted(history.features))


def test_what_a_producer_sends_again_changes_nothing(all_sent_again: Sequence[Story]) -> None:
    for seed, history, silver in all_sent_again:
        assert differing(silver, history) == {}, (seed, sorted(history.features))


def test_all_histories_together_are_folded_as_the_oracle_folds_each(
    contracts: Contracts, kind: SourceKind, by_way: Mapping[Way, Sequence[Story]], all_sent_again: Sequence[Story]
) -> None:
    stories = [*all_sent_again, *(story for stories in by_way.values() for story in stories)]
    found = [(story.silver.positioned()[1], story.silver.cutoff_by_shard) for story in stories]
    differing_ones = differing_histories(found, sharded(contracts).feeds[FEEDS[kind]])
    assert [stories[number].seed for number in differing_ones] == []


@pytest.mark.parametrize("feature", ["epoch", "forged"])
def test_a_log_that_falls_back_without_the_names_of_runs_is_read_no_further(
    contracts: Contracts, kind: SourceKind, feature: str
) -> None:
    for number in range(max(HISTORIES // 25, 4)):
        random = Random(f"{kind} {number}")  # noqa: S311
        topic = contracts.feeds[FEEDS[kind]].topics[0]
        history = without_run_headers(random_history(kind, random, topic=topic, features=[feature]))
        silver = PureSilver(contracts.feeds[FEEDS[kind]])
        batches = batches_with_lagging_partitions(history, random)
        for batch in [*batches, history.records]:
            silver.tell(batch)
        assert silver.is_suspended, number
        assert all(one.event.run_id == "" for one in silver.read)


def test_what_has_waited_comes_to_the_same_rows_when_it_may_pass(contracts: Contracts, kind: SourceKind) -> None:
    """A fourth of the records wait while all are read; then they are asked for."""
    for seed, history, random in histories(contracts, kind, part=slice(None, None, 5)):
        batches = batches_with_lagging_partitions(history, random)
        waiting = {(one["partition"], one["offset"]) for one in history.records if random.random() < 0.25}
        silver = told(contracts, history, batches, waiting=waiting)
        silver.retry()
        assert silver.rows() == told(contracts, history, batches).rows(), (seed, sorted(history.features))


def test_every_change_truncate_and_tombstone_has_one_outcome(contracts: Contracts, kind: SourceKind) -> None:
    """A live row has the record that is applied; a row that is gone may be gone by a cutoff."""
    outcomes: Counter[str] = Counter()
    for seed, history, _random in histories(contracts, kind, part=slice(None, None, 5)):
        read, folded = told(contracts, history, in_one(history.records)).folded()
        kinds = ("change", "tombstone", "truncate")
        with_outcome = [number for number, one in enumerate(read) if one.event.kind in kinds]
        assert sorted(folded.outcomes) == with_outcome, seed
        assert _live(folded) <= {number for number, came_to in folded.outcomes.items() if came_to == "applied"}, seed
        assert {folded.outcomes[number] for number in folded.damaged} <= {"quarantined"}
        outcomes.update(folded.outcomes.values())
    assert outcomes.keys() == {"applied", "superseded", "duplicate", "tombstone", "quarantined"}


def _live(folded: Folded) -> set[int]:
    return {row.last.number for row in folded.rows.values() if not row.last.is_below_cutoff}
