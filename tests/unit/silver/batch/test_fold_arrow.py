"""The fold over Arrow: the same rows as the fold, with the values of the records that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.batch.position import MYSQL, POSTGRES
from silver.batch.rederive import fold_table
from silver.decode.arrays import UTC, array_of
from silver.order.fold import PlacedEvent
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import in_one
from tests.support.model.stories import random_history
from tests.support.pure import PureSilver, Read

HISTORIES = 40
_TEXT = ("topic", "topic_id", "key_text", "run_id", "kind", "op", "event_id", "old_key")
_FLAGS = ("is_delete", "is_streamed", "is_replay")
_NUMBERS = ("offset", "run_from", "timestamp_ms")


def table_of(read: Sequence[Read], placed: Sequence[PlacedEvent], feed: Feed) -> pa.Table:
    """The events as Spark hands them on: of each group in any order."""
    ddl = POSTGRES if feed.kind == "postgresql" else MYSQL
    names = [part.split(":")[0].strip() for part in ddl[len("STRUCT<") : -1].split(",")]
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
        "position": pa.array(positions, pa.struct([(name, pa.int64()) for name in names])),
        "image": pa.array([one.image for one in placed], pa.int64()),
        "passed_over": pa.array([list(one.passed_over) for one in placed], pa.list_(pa.string())),
        "source_ts": pa.array([one.event.source_ts for one in read], pa.int64()).cast(UTC),
        "row": pa.StructArray.from_arrays(values, names=list(feed.columns), mask=has_no_row),
    }
    return pa.table(columns)


def rows_in(folded: pa.Table, feed: Feed) -> Mapping[tuple[Any, ...], Mapping[str, Any] | None]:
    """The live rows by key, with times in microseconds; None: deleted."""
    found: dict[tuple[Any, ...], Mapping[str, Any] | None] = {}
    for row in folded.column("latest").to_pylist():
        if row is not None:
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
        found = fold_table(table_of(read, placed, feed), feed=feed, cutoffs=silver.cutoff_by_shard)
        assert rows_in(found, feed) == silver.rows()
        _read, folded = silver.folded()
        assert found.column("outcome").to_pylist() == [folded.outcomes.get(place) for place in range(len(read))]
        damaged = {place for place, one in enumerate(found.column("is_damaged").to_pylist()) if one}
        assert damaged == folded.damaged
        for row in folded.rows.values():
            latest = found.column("latest")[row.last.number].as_py()
            assert tuple(latest["_position"].values()) == row.last.position
            assert (latest["_topic"], latest["_partition"], latest["_offset"]) == row.last.at
            assert (latest.get("_unresolved_columns") or []) == list(row.unresolved)
