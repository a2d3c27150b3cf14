"""The definition of silver: whatever the batches were, the fold of all records is the table that the history ends with.

Random histories are told by a model of a database, its log, its connector and its topic (tests/support/model).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from random import Random
from typing import Any

import pytest

from lakehouse.contracts import Contracts, SourceKind
from silver.order.fold import Folded
from silver.order.position import FULL_SNAPSHOT
from tests.support.events import mysql_image, postgres_image
from tests.support.model.batches import WAYS, Batches, Way, batches_with_lagging_partitions, in_one, sent_again
from tests.support.model.history import History
from tests.support.model.reader import rows_of
from tests.support.model.stories import random_history
from tests.support.pure import PureSilver, expected

FEEDS: Mapping[SourceKind, str] = {
    "postgresql": "postgres_orders",
    "mysql": "mysql_orders",
    "mariadb": "mysql_orders",
}
KINDS = tuple(FEEDS)
# Of each kind. With 3,400 one differs, "mysql 1620", of a compacted topic: docs/ordering.md, "What is not told apart".
HISTORIES = int(os.environ.get("HISTORIES", "250"))


def told(
    contracts: Contracts, history: History, batches: Batches, *, waiting: Collection[tuple[int, int]] = ()
) -> PureSilver:
    silver = PureSilver(contracts.feeds[FEEDS[history.kind]], waiting=waiting)
    for batch in batches:
        silver.tell(batch)
    return silver


def histories(contracts: Contracts, kind: SourceKind, *, part: slice) -> Iterator[tuple[str, History, Random]]:
    topic = contracts.feeds[FEEDS[kind]].topics[0]
    for number in range(HISTORIES)[part]:
        random = Random(seed := f"{kind} {number}")  # noqa: S311
        yield seed, random_history(kind, random, topic=topic, features=None), random


def differing(silver: PureSilver, history: History) -> dict[Any, Any]:
    """The keys whose row is another than the history's.

    But for those of which a full snapshot's row waits, and that are gone until it may pass; and those that the reader
    of the whole topic (tests/support/model/reader) does not end with either: compaction has removed what states them.
    """
    rows, ends = silver.rows(), expected(history.rows)
    waits = {
        silver.key_of(one)
        for one in silver.read
        if one.event.kind == "quarantined" and one.event.source and one.event.source.snapshot in FULL_SNAPSHOT
    }
    found = {key: (rows.get(key), row) for key, row in ends.items() if rows.get(key) != row}
    assert not rows.keys() - ends.keys(), "no row stands for nothing"
    found = {key: both for key, both in found.items() if not (key in waits and both[0] is None)}
    if not found:
        return found
    image = postgres_image if history.kind == "postgresql" else mysql_image
    read = rows_of(history.records)
    stated = {(key,) for key, row in history.rows.items() if read[key] == (None if row is None else image(row))}
    return {key: both for key, both in found.items() if key in stated}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_the_fold_is_the_table_that_the_history_ends_with(contracts: Contracts, kind: SourceKind, way: Way) -> None:
    for seed, history, random in histories(contracts, kind, part=slice(WAYS.index(way), None, len(WAYS))):
        silver = told(contracts, history, way(history, random))
        assert differing(silver, history) == {}, (seed, sorted(history.features))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_producer_sends_again_changes_nothing(contracts: Contracts, kind: SourceKind) -> None:
    for seed, history, random in histories(contracts, kind, part=slice(None, None, 5)):
        again = sent_again(history, random)
        silver = told(contracts, again, batches_with_lagging_partitions(again, random))
        assert differing(silver, again) == {}, (seed, sorted(history.features))


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_waited_comes_to_the_same_rows_when_it_may_pass(contracts: Contracts, kind: SourceKind) -> None:
    """A fourth of the records wait while all are read; then they are asked for."""
    for seed, history, random in histories(contracts, kind, part=slice(None, None, 5)):
        batches = batches_with_lagging_partitions(history, random)
        waiting = {(one["partition"], one["offset"]) for one in history.records if random.random() < 0.25}
        silver = told(contracts, history, batches, waiting=waiting)
        silver.requeue()
        assert silver.rows() == told(contracts, history, batches).rows(), (seed, sorted(history.features))


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_and_tombstone_has_one_outcome(contracts: Contracts, kind: SourceKind) -> None:
    """A live row has the record that is applied; a row that is gone may be gone by a cutoff."""
    outcomes: Counter[str] = Counter()
    for seed, history, _random in histories(contracts, kind, part=slice(None, None, 5)):
        read, folded = told(contracts, history, in_one(history.records)).folded()
        with_outcome = [number for number, one in enumerate(read) if one.event.kind in ("change", "tombstone")]
        assert sorted(folded.outcomes) == with_outcome, seed
        assert _live(folded) <= {number for number, came_to in folded.outcomes.items() if came_to == "applied"}, seed
        assert {folded.outcomes[number] for number in folded.damaged} <= {"quarantined"}
        outcomes.update(folded.outcomes.values())
    assert outcomes.keys() == {"applied", "superseded", "duplicate", "tombstone", "quarantined"}


def _live(folded: Folded) -> set[int]:
    return {row.last.number for row in folded.rows.values() if not row.last.is_below_cutoff}
