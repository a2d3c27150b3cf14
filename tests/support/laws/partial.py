"""Events of an outbox whose payloads have some of the columns: two cases of the laws."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.events import Record, compact, record
from tests.support.laws.contracts import PARTIAL
from tests.support.laws.played import BATCHES, Cases
from tests.support.sharded import topic_of

COLUMNS = ("customer_id", "status", "note")
HISTORIES, EVENTS = 60, 8
ONE_STORY, RANDOM = "one_story", "random_orders"

State = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Event:
    """What one event has: some cells of one order, or that it is deleted (`cells` is None)."""

    order_id: int
    cells: dict[str, Any] | None


STORY = (
    Event(1, {"customer_id": 7, "status": "pending", "note": "first"}),
    Event(1, {"status": "paid"}),
    Event(2, {"status": "pending"}),
    Event(1, {"note": None}),
    Event(2, None),
    Event(3, {"customer_id": 9, "status": "pending", "note": "before"}),
    Event(3, None),
    Event(3, {"status": "again"}),
)


@dataclass(frozen=True)
class PartialPayloads:
    """The events of both cases, in their order; and their records."""

    events: dict[str, Sequence[Event]]
    cases: Cases


def read_partial_payloads() -> PartialPayloads:
    """A story in order, a part a batch; and events of many orders: any of them in the first batch, all in the last."""
    random = Random("partial payloads")  # noqa: S311
    events = {ONE_STORY: STORY, RANDOM: list(_random_events(random))}
    batches: list[list[Record]] = [[] for _ in range(BATCHES)]
    for number, one in enumerate(_records(ONE_STORY, STORY)):
        batches[number * BATCHES // len(STORY)].append(one)
    first, last = batches
    for one in _records(RANDOM, events[RANDOM]):
        # Within a partition, offsets are what counts.
        if random.random() < 0.5:
            first.append(one)
        last.append(one)
    return PartialPayloads(events, Cases({"postgres": batches}))


def _random_events(random: Random) -> Iterator[Event]:
    """Events of many orders, mixed: each names some columns, and some delete."""
    events = []
    for order_id in range(1, HISTORIES + 1):
        for _ in range(random.randint(1, EVENTS)):
            named = random.sample(COLUMNS, random.randint(1, len(COLUMNS)))
            cells = {
                column: random.choice((None, 1, 2)) if column == "customer_id" else random.choice("abc")
                for column in named
            }
            events.append(Event(order_id, None if random.random() < 0.2 else cells))
    random.shuffle(events)
    yield from events


def _records(case: str, events: Sequence[Event]) -> list[Record]:
    """The events as Kafka records of one partition, in their order."""
    return [
        record(
            topic_of(case, PARTIAL),
            offset,
            key=str(event.order_id),
            value=compact({"payload": json.dumps({"order_id": event.order_id, **(event.cells or {})}), "timestamp": 0}),
            headers=[
                ("id", f"{case} {offset}"),
                ("eventType", "OrderDeleted" if event.cells is None else "OrderChanged"),
            ],
        )
        for offset, event in enumerate(events)
    ]


def expected(events: Sequence[Event]) -> State:
    """What the orders hold in the end, event after event."""
    orders: State = {}
    for event in events:
        if event.cells is None:
            orders.pop(event.order_id, None)
        else:
            blank = {"order_id": event.order_id, **dict.fromkeys(COLUMNS)}
            orders[event.order_id] = {**orders.get(event.order_id, blank), **event.cells}
    return orders
