"""The positions of all records at once are those of each by itself, which the oracle has."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import polars as pl
import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import SourceKind
from silver.order.positions import COORDINATES, add_coordinates, add_positions
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import batches_with_lagging_partitions, without_run_headers
from tests.support.model.stories import random_history
from tests.support.positions import coordinates, located
from tests.support.pure import Read

HISTORIES = 60


def frame(read: Sequence[Read], kind: SourceKind) -> pl.DataFrame:
    sources = [None if one.event.source is None else one.event.source._asdict() for one in read]
    columns: dict[str, Any] = {
        "topic": [one.record["topic"] for one in read],
        "topic_id": ["id"] * len(read),
        "partition": pl.Series([one.record["partition"] for one in read], dtype=pl.Int32),
        "offset": [one.offset for one in read],
        "timestamp_ms": [one.record["timestamp"] for one in read],
        "run_id": [one.event.run_id for one in read],
        "read_ms": pl.Series([one.event.read_ms for one in read], dtype=pl.Int64),
    }
    return located(sources, kind).with_columns([pl.Series(name, values) for name, values in columns.items()])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_of_all_records_are_those_of_each(contracts: Contracts, kind: SourceKind) -> None:
    feed = contracts.feeds[FEEDS[kind]]
    for number in range(HISTORIES):
        random = Random(f"positions {kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=feed.topics[0], features=None)
        if number % 4 == 0:
            features = history.features & {"epoch", "forged"}
            history = history if features else without_run_headers(history)
        silver = told(contracts, history, batches_with_lagging_partitions(history, random))
        read, positioned = silver.positioned()
        assert silver.past is not None
        found = add_positions(add_coordinates(frame(read, kind), feed), feed, silver.past.position_contexts())
        positions = [None if one is None else tuple(one.values()) for one in found.get_column("position").to_list()]
        assert positions == [one.position for one in positioned], number
        assert found.get_column("is_replay").to_list() == [one.is_replay for one in positioned], number
        assert found.get_column("run_from").to_list() == [one.run_from for one in positioned], number
        assert (found.get_column("streamed") == 1).to_list() == [one.is_streamed for one in positioned]
        at = [tuple(part for part in row if part is not None) for row in found.select(COORDINATES).rows()]
        assert at == [coordinates(one.event.source, kind) or () for one in read], number
