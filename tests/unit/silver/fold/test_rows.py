"""The fold over Arrow: the same rows as the fold, with the values of the records that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.decode.arrays import UTC, array_of
from silver.fold.rows import FoldedTable, Plan, fold_all, fold_batch
from silver.order.position import position_fields
from silver.order.runs import Cutoff
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import in_one
from tests.support.model.stories import random_history
from tests.support.oracle import PositionedEvent
from tests.support.pure import PureSilver, Read
from tests.support.sharded import CASE, sharded

HISTORIES = 40
_TEXT = ("topic", "topic_id", "key_text", "run_id", "kind", "op", "event_id", "old_key")
_FLAGS = ("is_delete", "is_streamed", "is_replay")
_NUMBERS = ("offset", "run_from", "timestamp_ms")


def table_of(read: Sequence[Read], positioned: Sequence[PositionedEvent], feed: Feed) -> pa.Table:
    """The events as Spark hands them on: of each group in any order."""
    names = position_fields(feed)
    positions = [None if one.position is None else dict(zip(names, one.position, strict=True)) for one in positioned]
    rows = [one.event.row for one in read]
    values = [
        array_of([None if row is None else row[number] for row in rows], column.type)
        for number, column in enumerate(feed.columns.values())
    ]
    has_no_row = pa.array([row is None for row in rows])
    columns: dict[str, Any] = {
        **{name: pa.array([getattr(one, name) for one in positioned], pa.string()) for name in _TEXT},
        **{name: pa.array([getattr(one, name) for one in positioned], pa.bool_()) for name in _FLAGS},
        "partition": pa.array([one.partition for one in positioned], pa.int32()),
        **{name: pa.array([getattr(one, name) for one in positioned], pa.int64()) for name in _NUMBERS},
        "key": pa.array([one.key for one in positioned], pa.binary()),
        "timestamp": pa.array([(one.timestamp_ms or 0) * 1000 for one in positioned], pa.int64()).cast(UTC),
        "position": pa.array(positions, pa.struct([(name, pa.int64()) for name in names])),
        "image": pa.array([one.image for one in positioned], pa.int64()),
        "unchanged_toast": pa.array([list(one.unchanged_toast) for one in positioned], pa.list_(pa.string())),
        "absent": pa.array([[] for _one in positioned], pa.list_(pa.string())),
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


class Shard(NamedTuple):
    """A history as a shard of the feed: its topic, what silver makes of it, and the numbers of its events."""

    topic: str
    silver: PureSilver
    events: range

    def rows(self) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any] | None]]:
        """Its rows, in the shard."""
        for key, row in self.silver.rows().items():
            yield (self.topic, *key), None if row is None else {CASE: self.topic, **row}


@dataclass(frozen=True)
class Shards:
    """Many histories side by side, each a shard: folding them together takes a part of the time."""

    feed: Feed
    shards: Sequence[Shard]
    positioned: Sequence[PositionedEvent]
    events: pa.Table
    cutoffs: Mapping[str, Cutoff]


@pytest.fixture(scope="module", params=KINDS)
def histories(contracts: Contracts, request: pytest.FixtureRequest) -> Shards:
    kind: SourceKind = request.param
    alone, feed = contracts.feeds[FEEDS[kind]], sharded(contracts).feeds[FEEDS[kind]]
    shards: list[Shard] = []
    read: list[Read] = []
    positioned: list[PositionedEvent] = []
    cutoffs: dict[str, Cutoff] = {}
    for number in range(HISTORIES):
        random, topic = Random(f"arrow {kind} {number}"), f"case {number}"  # noqa: S311
        history = random_history(kind, random, topic=alone.topics[0], features=None)
        silver = told(contracts, history, in_one(history.records))
        shards.append(Shard(topic, silver, range(len(read), len(read) + len(silver.read))))
        for one, event in zip(*silver.positioned(), strict=True):
            row = one.event.row
            read.append(one._replace(event=one.event._replace(row=None if row is None else [topic, *row])))
            key = event.row_key
            positioned.append(event._replace(topic=topic, row_key=None if key is None else (topic, *key)))
        for cutoff in silver.cutoff_by_shard.values():
            cutoffs[topic] = replace(cutoff, at_topic=topic)
    return Shards(feed, shards, positioned, table_of(read, positioned, feed), cutoffs)


def test_the_rows_have_the_values_of_the_records_that_the_fold_names(histories: Shards) -> None:
    feed = histories.feed
    found = fold_all(histories.events, Plan(feed, (), histories.cutoffs))
    assert rows_in(found.rows, feed) == {key: row for shard in histories.shards for key, row in shard.rows()}
    outcomes = found.outcomes.to_pylist()
    damaged = {place for place, one in enumerate(found.is_damaged.to_pylist()) if one}
    rows = {tuple(row[key] for key in feed.keys): row for row in found.rows.to_pylist()}
    for topic, silver, events in histories.shards:
        _read, folded = silver.folded()
        assert [outcomes[at] for at in events] == [folded.outcomes.get(place) for place in range(len(events))]
        assert {place for place, at in enumerate(events) if at in damaged} == folded.damaged
        for key, row in folded.rows.items():
            latest = rows[topic, *key]
            assert tuple(latest["_position"].values()) == row.last.position
            assert (latest["_topic"], latest["_partition"], latest["_offset"]) == (topic, *row.last.at[1:])
            assert (latest.get("_unresolved_columns") or []) == list(row.unresolved)


def test_a_cut_changes_nothing_but_for_keys_that_say_so(histories: Shards) -> None:
    """Events in any order, each history cut anywhere: each part with the rows that the parts before have led to."""
    feed, positioned, random = histories.feed, histories.positioned, Random(f"cut {histories.feed.kind}")  # noqa: S311
    plan = Plan(feed, (), histories.cutoffs, has_unchanged=True)
    whole = fold_all(histories.events, plan)
    parts: list[list[int]] = [[] for _ in range(4)]
    for shard in histories.shards:
        order = sorted(shard.events, key=lambda at: positioned[at].offset)
        cut = sorted(random.randrange(len(order) + 1) for _ in range(random.randrange(1, 4)))
        for number, (first, last) in enumerate(zip([0, *cut], [*cut, len(order)], strict=True)):
            parts[number] += order[first:last]
    rows = whole.rows.slice(0, 0)
    doubtful: set[tuple[Any, ...]] = set()
    outcomes: dict[int, str | None] = {}
    for part in parts:
        random.shuffle(part)
        taken = histories.events.take(pa.array(part, pa.int64()))
        folded = fold_batch(taken, rows_of_keys(rows, taken, feed), plan)
        outcomes |= dict(zip(part, folded.outcomes.to_pylist(), strict=True))
        for at, is_undecided in zip(part, folded.is_undecided.to_pylist(), strict=True):
            if is_undecided and (key := positioned[at].row_key) is not None:
                doubtful.add(key)
        rows = replaced(rows, folded, feed)
    assert all(outcomes[at] is not None for at, one in enumerate(positioned) if one.kind == "change" and one.row_key)
    found, of_whole = rows_in(rows, feed), whole.outcomes.to_pylist()
    applied_in_whole = {one.row_key for at, one in enumerate(positioned) if of_whole[at] == "applied"}
    applied_in_parts = {one.row_key for at, one in enumerate(positioned) if outcomes[at] == "applied"}
    expected = rows_in(whole.rows, feed)
    decided = expected.keys() - doubtful
    for key in decided:
        assert found.get(key) == expected[key], key
        assert (key in applied_in_whole) == (key in applied_in_parts), key
    assert len(decided) > HISTORIES
    assert expected.keys() & doubtful


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
