"""The clocks of the workers: each run of the connector has one of its own, up to an hour before or behind the others.

What a worker's clock stamps is Kafka's timestamp of a record, and when the connector told it (`ts_ms`). The database
has one clock, and its times stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from tests.support.events import compact
from tests.support.model.broker import Message

HOUR_MS = 3_600_000
TRIES = 4


def with_clocks(messages: Sequence[Message], random: Random) -> list[Message]:
    """The same records, sent by workers whose clocks differ.

    Clocks decide between runs that no partition orders, as nothing else does: there they are right.
    """
    runs = sorted({message.notes.run for message in messages})
    for _ in range(TRIES):
        ahead = {run: random.choice((0, random.randint(-HOUR_MS, HOUR_MS))) for run in runs}
        if _tell_the_order(messages, ahead):
            return [_sent_at(message, ahead[message.notes.run]) for message in messages]
    return list(messages)


def _tell_the_order(messages: Sequence[Message], ahead: Mapping[str, int]) -> bool:
    """Whether partitions and clocks together tell the order of all runs. The names of runs are in their true order."""
    first_ms: dict[str, int] = {}
    by_partition: dict[int, dict[str, None]] = {}
    for message in sorted(messages, key=lambda message: (message.partition, message.offset)):
        run = message.notes.run
        sent = int(message.record["timestamp"]) + ahead[run]
        first_ms[run] = min(sent, first_ms.get(run, sent))
        by_partition.setdefault(message.partition, {})[run] = None
    after: dict[str, set[str]] = {run: set() for run in first_ms}
    for runs in by_partition.values():
        for earlier, later in pairwise(runs):
            after[earlier].add(later)
    for run in sorted(after, reverse=True):
        for later in list(after[run]):
            after[run] |= after.get(later, set())
    names = sorted(first_ms)
    return all(
        later in after[earlier] or first_ms[earlier] < first_ms[later]
        for number, earlier in enumerate(names)
        for later in names[number + 1 :]
    )


def _sent_at(message: Message, ahead: int) -> Message:
    record = message.record
    value = record["value"]
    if value is not None:
        told = json.loads(value)
        value = compact({**told, "ts_ms": told["ts_ms"] + ahead})
    return replace(message, record={**record, "value": value, "timestamp": record["timestamp"] + ahead})
