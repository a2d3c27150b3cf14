"""The fold over Arrow: the same rows as the fold, with the values of the records that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.decode.arrays import UTC, array_of
from silver.fold.rows import FoldedTable, Plan, fold_all, fold_batch
from silver.order.position import position_fields
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import in_one
from tests.support.model.stories import random_history
from tests.support.oracle import PlacedEvent
from tests.support.pure import PureSilver, Read

HISTORIES = 40
_TEXT = ("topic", "topic_id", "key_text", "run_id", "kind", "op", "event_id", "old_key")
_FLAGS = ("is_delete", "is_streamed", "is_replay")
_NUMBERS = ("offset", "run_from", "timestamp_ms")


def table_of(read: Sequence[Read], placed: Sequence[PlacedEvent], feed: Feed) -> pa.Table:
    """The events as Spark hands them on: of each group in any order."""
    names = position_fields(feed)
    positions = [None if one.position is None else dict(zip(names, one.position, strict=True)) for one in placed]
    rows = [one.event.row for one in read]
    values = [
        array_of([None if row is None else row[number] for row in rows], column.type)
        for number, column in enumerate(feed.columns.values())
    ]
    has_no_row = pa.array([row is None for row in rows])
    columns: dict[str, Any] = {
        **{name: pa.array([getattr(one, name) for one in placed], pa.string()) for name in _TEXT},
        **{name: pa.array([getattr(one, name) for one in placed], pa.bool_()) for name in _FLAGS},
        "partition": pa.array([one.partition for one in placed], pa.int32()),
        **{name: pa.array([getattr(one, name) for one in placed], pa.int64()) for name in _NUMBERS},
        "key": pa.array([one.key for one in placed], pa.binary()),
        "timestamp": pa.array([(one.timestamp_ms or 0) * 1000 for one in placed], pa.int64()).cast(UTC),
        "position": pa.array(positions, pa.struct([(name, pa.int64()) for name in names])),
        "image": pa.array([one.image for one in placed], pa.int64()),
        "left_out": pa.array([list(one.passed_over) for one in placed], pa.list_(pa.string())),
        "absent": pa.array([[] for _one in placed], pa.list_(pa.string())),
        "new_key": pa.array([one.event.new_key for one in read], pa.string()),
        **{name: pa.array([False] * len(read), pa.bool_()) for name in ("repeats_event", "after_delete")},
        "source_ts": pa.array([one.event.source_ts for one in read], pa.int64()).cast(UTC),
        "row": pa.StructArray.from_arrays(values, names=list(feed.columns), mask=has_no_row),
    }
    return pa.table(columns)


def rows_in(rows: pa.Table, feed: Feed) -> Mapping[tuple[Any, ...], Mapping[str, Any] | None]:
    """The live rows by key, with times in microseconds; None: deleted."""
    found: dict[tuple[Any, ...], Mapping[str, Any] | None] = {}
    for row in rows.to_pylist():
        key = tuple(row[name] for name in feed.keys)
        values = {name: _plain(row[name]) for name in feed.columns}
        found[key] = None if row["_is_deleted"] else values
        assert not row["_is_deleted"] or not any(values[name] for name in feed.columns if name not in feed.keys)
    return found


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_have_the_values_of_the_records_that_the_fold_names(contracts: Contracts, kind: SourceKind) -> None:
    feed = contracts.feeds[FEEDS[kind]]
    for number in range(HISTORIES):
        random = Random(f"arrow {kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=feed.topics[0], features=None)
        silver: PureSilver = told(contracts, history, in_one(history.records))
        read, placed = silver.placed()
        found = fold_all(table_of(read, placed, feed), Plan(feed, (), silver.cutoff_by_shard))
        assert rows_in(found.rows, feed) == silver.rows()
        _read, folded = silver.folded()
        assert found.outcomes.to_pylist() == [folded.outcomes.get(place) for place in range(len(read))]
        assert {place for place, one in enumerate(found.is_damaged.to_pylist()) if one} == folded.damaged
        rows = {tuple(row[key] for key in feed.keys): row for row in found.rows.to_pylist()}
        for key, row in folded.rows.items():
            latest = rows[key]
            assert tuple(latest["_position"].values()) == row.last.position
            assert (latest["_topic"], latest["_partition"], latest["_offset"]) == row.last.at
            assert (latest.get("_unresolved_columns") or []) == list(row.unresolved)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_changes_nothing_but_for_keys_that_say_so(contracts: Contracts, kind: SourceKind) -> None:
    """Events in any order, cut anywhere: each part with the rows that the parts before it have led to."""
    feed = contracts.feeds[FEEDS[kind]]
    decided = undecided = 0
    for number in range(HISTORIES):
        random = Random(f"cut {kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=feed.topics[0], features=None)
        silver: PureSilver = told(contracts, history, in_one(history.records))
        read, placed = silver.placed()
        events, plan = table_of(read, placed, feed), Plan(feed, (), silver.cutoff_by_shard, has_unchanged=True)
        whole = fold_all(events, plan)
        order = sorted(range(len(read)), key=lambda at: placed[at].offset)
        cut = sorted(random.randrange(len(read) + 1) for _ in range(random.randrange(1, 4)))
        parts = [order[first:last] for first, last in zip([0, *cut], [*cut, len(read)], strict=True)]
        rows = whole.rows.slice(0, 0)
        doubtful: set[tuple[Any, ...]] = set()
        outcomes: dict[int, str | None] = {}
        for part in parts:
            random.shuffle(part)
            taken = events.take(pa.array(part, pa.int64()))
            folded = fold_batch(taken, rows_of_keys(rows, taken, feed), plan)
            outcomes |= dict(zip(part, folded.outcomes.to_pylist(), strict=True))
            for at, is_undecided in zip(part, folded.is_undecided.to_pylist(), strict=True):
                if is_undecided and (key := placed[at].row_key) is not None:
                    doubtful.add(key)
            rows = replaced(rows, folded, feed)
        for key, row in rows_in(whole.rows, feed).items():
            if key in doubtful:
                undecided += 1
                continue
            decided += 1
            assert rows_in(rows, feed).get(key) == row, (number, key)
            of_key = [at for at, one in enumerate(placed) if one.row_key == key]
            applied = [at for at in of_key if whole.outcomes[at].as_py() == "applied"]
            assert bool(applied) == any(outcomes[at] == "applied" for at in of_key), (number, key)
            assert all(outcomes[at] is not None for at in of_key if placed[at].kind == "change")
    assert decided > HISTORIES
    assert undecided > 0


def rows_of_keys(rows: pa.Table, events: pa.Table, feed: Feed) -> pa.Table:
    """The rows of the keys of these events."""
    keys = {tuple(row[key] for key in feed.keys) for row in events.column("row").to_pylist() if row is not None}
    here = [tuple(row[key] for key in feed.keys) in keys for row in rows.to_pylist()]
    return rows.filter(pa.array(here, pa.bool_()))


def replaced(rows: pa.Table, folded: FoldedTable, feed: Feed) -> pa.Table:
    """The rows as a MERGE leaves them."""
    changed = {tuple(row[key] for key in feed.keys) for row in folded.rows.to_pylist()}
    kept = [tuple(row[key] for key in feed.keys) not in changed for row in rows.to_pylist()]
    return pa.concat_tables([rows.filter(pa.array(kept, pa.bool_())), folded.rows.cast(rows.schema)])
