"""The history of rows in histories of every kind: restarts, failovers, snapshots, changed keys, damage, truncates."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.fold.rows import Plan, fold_all, fold_batch
from silver.row_history.versions import versions_of_all, versions_of_batch
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import in_one
from tests.support.model.stories import random_history
from tests.support.pure import PureSilver
from tests.unit.silver.fold.test_rows import replaced, rows_of_keys, table_of

HISTORIES = 25
Rows = list[dict[str, Any]]


def with_history(contracts: Contracts, kind: SourceKind) -> Feed:
    return contracts.feeds[FEEDS[kind]].model_copy(update={"scd_type": 2})


def read(contracts: Contracts, feed: Feed, random: Random) -> tuple[pa.Table, Plan, list[tuple[Any, ...] | None]]:
    """The events of a random history, what a fold must know of them, and the key of each."""
    history = random_history(feed.kind, random, topic=feed.topics[0], features=None)
    silver: PureSilver = told(contracts, history, in_one(history.records))
    events, positioned = silver.positioned()
    assert silver.past is not None
    cutoffs = silver.past.every_cutoff()
    plan = Plan(feed, (), silver.cutoff_by_shard, has_unchanged=True, every_cutoff=cutoffs)
    return table_of(events, positioned, feed), plan, [one.row_key for one in positioned]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_versions_are_the_rows_of_silver(contracts: Contracts, kind: SourceKind) -> None:
    feed, ended = with_history(contracts, kind), 0
    for number in range(HISTORIES):
        events, plan, _keys = read(contracts, feed, Random(f"rows {kind} {number}"))  # noqa: S311
        versions = versions_of_all(events, plan).rows.to_pylist()
        rows = fold_all(events, plan).rows.to_pylist()
        names = [*feed.columns, *(["_unresolved_columns"] if kind == "postgresql" else [])]
        silver = {key_of(row, feed): [row[name] for name in names] for row in rows if not row["_is_deleted"]}
        last = [row for row in versions if row["_is_current"]]
        assert {key_of(row, feed): [row[name] for name in names] for row in last if not row["_is_deleted"]} == silver
        assert {key_of(row, feed) for row in last} == {key_of(row, feed) for row in rows}
        for row in versions:
            ended += not row["_is_current"]
            assert (row["_to_position"] is None) == (row["_valid_to"] is None) == row["_is_current"]
            assert row["_is_current"] or at(row["_from_position"]) < at(row["_to_position"])
            assert at(row["_from_position"]) <= at(row["_last_position"])
            assert not row["_is_deleted"] or not any(row[name] for name in feed.columns if name not in feed.keys)
        for one, other in zip(ordered(versions, feed), ordered(versions, feed)[1:], strict=False):
            if key_of(one, feed) == key_of(other, feed):
                assert (one["_to_position"], one["_valid_to"]) == (other["_from_position"], other["_valid_from"])
    assert ended > HISTORIES


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_changes_nothing_but_for_keys_that_say_so(contracts: Contracts, kind: SourceKind) -> None:
    """In the order of Kafka, cut anywhere: each part with the last versions that the parts before it have led to."""
    feed = with_history(contracts, kind)
    decided = undecided = 0
    for number in range(HISTORIES):
        random = Random(f"cut {kind} {number}")  # noqa: S311
        events, plan, keys = read(contracts, feed, random)
        offsets = events.column("offset").to_pylist()
        order = sorted(range(events.num_rows), key=offsets.__getitem__)
        cuts = sorted(random.randrange(len(order) + 1) for _one in range(random.randrange(1, 5)))
        whole = ordered(versions_of_all(events, plan).rows.to_pylist(), feed)
        rows = fold_all(events, plan).rows.slice(0, 0)
        versions: dict[Any, dict[str, Any]] = {}
        doubtful: set[Any] = set()
        empty = versions_of_all(events, plan).rows.slice(0, 0)
        for first, last in zip([0, *cuts], [*cuts, len(order)], strict=True):
            part = events.take(pa.array(order[first:last], pa.int64()))
            own = {keys[at] for at in order[first:last]}
            folded = fold_batch(part, rows_of_keys(rows, part, feed), plan)
            rows = replaced(rows, folded, feed)
            current = [row for row in versions.values() if row["_is_current"] and key_of(row, feed) in own]
            known = pa.Table.from_pylist(current, schema=empty.schema) if current else None
            found = versions_of_batch(part, known, plan)
            versions |= {(key_of(row, feed), at(row["_from_position"])): row for row in found.rows.to_pylist()}
            for flags in (folded.is_undecided, found.is_undecided):
                doubtful |= {
                    keys[at] for at, is_one in zip(order[first:last], flags.to_pylist(), strict=True) if is_one
                }
        undecided += len(doubtful)
        left = [row for row in ordered(versions.values(), feed) if key_of(row, feed) not in doubtful]
        expected = [row for row in whole if key_of(row, feed) not in doubtful]
        decided += len({key_of(row, feed) for row in left})
        assert [comparable(row) for row in left] == [comparable(row) for row in expected], number
    assert decided > HISTORIES
    assert undecided > 0


def key_of(row: Mapping[str, Any], feed: Feed) -> tuple[Any, ...]:
    return tuple(row[key] for key in feed.keys)


def at(position: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(position.values())


def ordered(rows: Any, feed: Feed) -> Rows:
    return sorted(rows, key=lambda row: (key_of(row, feed), at(row["_from_position"])))


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without which of several copies of a change it is of."""
    kept = {name: value for name, value in row.items() if name not in {"_topic", "_partition", "_offset"}}
    positions = {name: value for name, value in kept.items() if name.endswith("_position") and value is not None}
    return kept | {name: at(value)[:-1] for name, value in positions.items()}
