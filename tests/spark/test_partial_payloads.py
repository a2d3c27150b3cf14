"""Partial payloads: however the events are ordered, repeated and cut into batches, every cell ends at its last word."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from demo.check import as_text
from lakehouse.contracts.models import Contracts
from silver.apply import ensure_tables
from tests.support.bronze import bronze_rows
from tests.support.events import Record, compact, record
from tests.support.silver import apply as apply_batch

if TYPE_CHECKING:
    from lakehouse.spark.tables import Warehouse

pytestmark = pytest.mark.spark

FEED, TOPIC = "postgres_outbox_orders", "outbox.event.postgres.orders"
COLUMNS = ("customer_id", "status", "note")
HISTORIES, EVENTS = 60, 8

State = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Event:
    """What one event says: some cells of one order, or that it is deleted (`said` is None)."""

    order_id: int
    said: dict[str, Any] | None


@pytest.fixture(scope="module")
def partial(contracts: Contracts) -> Contracts:
    """The packaged contracts, with partial payloads in one outbox."""
    tables = dict(contracts.silver.tables)
    tables[FEED] = tables[FEED].model_copy(update={"payload": "partial", "apply_as_deletes": ("OrderDeleted",)})
    gate = contracts.silver_gate.model_copy(update={"feeds": ("mysql_outbox_orders",)})
    silver = contracts.silver.model_copy(update={"tables": tables})
    return contracts.model_copy(update={"silver": silver, "silver_gate": gate})


def test_a_partial_event_leaves_the_other_columns_as_they_are(
    warehouse: Warehouse, partial: Contracts, tmp_path: Path
) -> None:
    told = [
        Event(1, {"customer_id": 7, "status": "pending", "note": "first"}),
        Event(1, {"status": "paid"}),
        Event(2, {"status": "pending"}),
        Event(1, {"note": None}),
        Event(2, None),
        Event(3, {"customer_id": 9, "status": "pending", "note": "before"}),
        Event(3, None),
        Event(3, {"status": "again"}),
    ]
    ensure_tables(warehouse, partial)
    for batch in range(4):
        apply(warehouse, partial, records(told)[batch * 2 : batch * 2 + 2], tmp_path, batch)
    assert live(warehouse) == {
        1: {"order_id": 1, "customer_id": 7, "status": "paid", "note": None},
        # What was said before the delete is gone with it.
        3: {"order_id": 3, "customer_id": None, "status": "again", "note": None},
    }


def test_every_order_of_batches_ends_the_same(warehouse: Warehouse, partial: Contracts, tmp_path: Path) -> None:
    random = Random("partial payloads")  # noqa: S311
    told = list(histories(random))
    every = records(told)
    # Each event twice, in batches that are read in any order: within a partition, offsets are what counts.
    batches: list[list[Record]] = [[] for _ in range(5)]
    for event in every:
        for number in random.sample(range(5), 2):
            batches[number].append(event)
    ensure_tables(warehouse, partial)
    for number, batch in enumerate(batches):
        apply(warehouse, partial, batch, tmp_path, number)
    assert live(warehouse) == expected(told)
    rows = as_text(warehouse.read(f"silver.{FEED}"), ["order_id", "_is_deleted", *COLUMNS], key="order_id")
    deleted = [row for row in rows.values() if row["_is_deleted"]]
    assert len(deleted) > 5
    assert {row[column] for row in deleted for column in COLUMNS} == {None}
    before = warehouse.version(f"silver.{FEED}")
    apply(warehouse, partial, every, tmp_path, 5)
    (metrics,) = warehouse.delta(f"silver.{FEED}").history(1).select("operationMetrics").collect()
    assert warehouse.version(f"silver.{FEED}") == before or metrics[0]["numTargetRowsUpdated"] == "0"


def histories(random: Random) -> Iterator[Event]:
    """Events of many orders, mixed: each names some columns, and some delete."""
    events = []
    for order_id in range(1, HISTORIES + 1):
        for _ in range(random.randint(1, EVENTS)):
            named = random.sample(COLUMNS, random.randint(1, len(COLUMNS)))
            said = {
                column: random.choice((None, 1, 2)) if column == "customer_id" else random.choice("abc")
                for column in named
            }
            events.append(Event(order_id, None if random.random() < 0.2 else said))
    random.shuffle(events)
    yield from events


def expected(told: Sequence[Event]) -> State:
    """What the orders hold in the end, event after event."""
    orders: State = {}
    for event in told:
        if event.said is None:
            orders.pop(event.order_id, None)
        else:
            blank = {"order_id": event.order_id, **dict.fromkeys(COLUMNS)}
            orders[event.order_id] = {**orders.get(event.order_id, blank), **event.said}
    return orders


def records(told: Sequence[Event]) -> list[Record]:
    """The events as Kafka records of one partition, in their order."""
    return [
        record(
            TOPIC,
            offset,
            key=str(event.order_id),
            value=compact({"payload": json.dumps({"order_id": event.order_id, **(event.said or {})}), "timestamp": 0}),
            headers=[
                ("id", f"event-{offset}"),
                ("eventType", "OrderDeleted" if event.said is None else "OrderChanged"),
            ],
        )
        for offset, event in enumerate(told)
    ]


def apply(warehouse: Warehouse, contracts: Contracts, batch: Sequence[Record], folder: Path, number: int) -> None:
    file = folder / f"{number}.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in batch), encoding="utf-8")
    rows = bronze_rows(warehouse.spark, file, topics={TOPIC: TOPIC})
    apply_batch(warehouse, contracts, "postgres", rows, number)


def live(warehouse: Warehouse) -> State:
    table = warehouse.read(f"silver.{FEED}").where("NOT _is_deleted")
    return {key: dict(row) for key, row in as_text(table, ["order_id", *COLUMNS], key="order_id").items()}
