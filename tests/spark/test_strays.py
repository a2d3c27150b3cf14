"""Outbox events of one key over several partitions: only timestamps can order them, so the key is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.quality.results import RESULTS
from tests.support.bronze import bronze_rows
from tests.support.events import Record, compact, order, record
from tests.support.silver import apply

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "outbox.event.postgres.orders"


def event(order_id: int, *, partition: int, offset: int) -> Record:
    payload = compact(order(order_id, total_amount=10.0))
    return record(
        TOPIC,
        offset,
        key=str(order_id),
        value=compact({"payload": payload, "timestamp": 1_767_225_600_000_000}),
        partition=partition,
        timestamp=1_767_225_600_000 + offset,
        headers=[("id", f"{partition}-{offset}"), ("eventType", "OrderUpdated")],
    )


@pytest.fixture
def reported(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path) -> Reported:
    return Reported(empty_silver(), contracts, tmp_path)


class Reported:
    """The keys that each batch reports."""

    def __init__(self, warehouse: Warehouse, contracts: Contracts, folder: Path) -> None:
        self.warehouse = warehouse
        self.contracts = contracts
        self.folder = folder

    def by_batch(self, number: int, *events: Record) -> Sequence[str]:
        file = self.folder / f"{number}.jsonl"
        file.write_text("".join(f"{json.dumps(event)}\n" for event in events), encoding="utf-8")
        rows = bronze_rows(self.warehouse.spark, file, topics={TOPIC: TOPIC})
        before = self.keys()
        apply(self.warehouse, self.contracts, "postgres", rows)
        return sorted({*self.keys()} - {*before})

    def keys(self) -> list[str]:
        results = self.warehouse.read(RESULTS.name).where("rule = 'one_partition_per_key'")
        return [key for row in results.collect() for key in row["sample_keys"]]


def test_keys_of_several_partitions_are_reported_by_the_batch_that_shows_it(reported: Reported) -> None:
    assert reported.by_batch(0, event(1, partition=0, offset=0), event(2, partition=0, offset=1)) == []
    assert reported.by_batch(1, event(1, partition=0, offset=2), event(3, partition=0, offset=3)) == []
    assert reported.by_batch(2, event(1, partition=1, offset=0), event(4, partition=1, offset=1)) == ["1"]
    assert reported.by_batch(3, event(4, partition=1, offset=2), event(2, partition=1, offset=3)) == ["2"]
    assert reported.by_batch(4, event(5, partition=0, offset=4), event(5, partition=1, offset=4)) == ["5"]
