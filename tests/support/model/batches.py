"""Ways of cutting the records of a history into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tests.support.events import Record
from tests.support.model.history import History

Batches = Sequence[Sequence[Record]]
Way = Callable[[History, Random], Batches]
# So many batches a way makes, where it makes more than one.
BATCHES = 3


def in_one(records: Sequence[Record]) -> Batches:
    """All at once."""
    return [list(records)]


def in_offset_order(records: Sequence[Record], random: Random, *, count: int) -> Batches:
    """Each partition cut anywhere, its offsets in order; partitions lag behind one another."""
    batch_of: dict[tuple[int, int], int] = {}
    for partition in sorted({record["partition"] for record in records}):
        offsets = sorted(record["offset"] for record in records if record["partition"] == partition)
        # Sometimes a partition says nothing before the last batch, or nothing after the first.
        low, high = random.choice(((0, count), (0, count), (count - 1, count), (0, 1)))
        numbers = sorted(random.randrange(low, high) for _ in offsets)
        batch_of |= {(partition, offset): number for offset, number in zip(offsets, numbers, strict=True)}
    return _collected(records, lambda record: batch_of[record["partition"], record["offset"]], count)


def in_any_order(records: Sequence[Record], random: Random, *, count: int) -> Batches:
    """Every record in any batch: for histories that are `shufflable`."""
    return _collected(records, lambda _: random.randrange(count), count)


def one_batch(history: History, _random: Random) -> Batches:
    """A way to read a history."""
    return in_one(history.records)


def batches_with_lagging_partitions(history: History, random: Random) -> Batches:
    """Each partition's offsets in order."""
    return in_offset_order(history.records, random, count=BATCHES)


def batches_in_any_order(history: History, random: Random) -> Batches:
    """Where positions tell the order; else the partitions lag."""
    cut = in_any_order if history.shufflable else in_offset_order
    return cut(history.records, random, count=BATCHES)


def every_record_twice(history: History, random: Random) -> Batches:
    """Under the same offset."""
    return doubled(in_offset_order(history.records, random, count=BATCHES), random)


WAYS: Sequence[Way] = (one_batch, batches_with_lagging_partitions, batches_in_any_order, every_record_twice)


def doubled(batches: Batches, random: Random) -> Batches:
    """Every record once more, under the same offset: in its own batch or a later one."""
    again: list[list[Record]] = [list(batch) for batch in batches]
    for number, batch in enumerate(batches):
        for record in batch:
            again[random.randrange(number, len(batches))].append(record)
    return again


def without_run_headers(history: History) -> History:
    """The same history from a connector that does not name its runs."""
    records = [
        {**one, "headers": [header for header in one["headers"] if not header[0].startswith("__debezium.context.")]}
        for one in history.records
    ]
    return replace(history, records=records)


def sent_again(history: History, random: Random) -> History:
    """The same history from a producer that sends every record twice: each at once, a partition's records so far again
    after any of them, or each alone at any later offset. Copies have offsets of their own, and the same headers and
    timestamps.
    """
    order = random.choice((each_at_once, stretches, each_alone, each_alone))
    records, is_bad = [], set()
    for partition in sorted({record["partition"] for record in history.records}):
        told = sorted((one for one in history.records if one["partition"] == partition), key=lambda one: one["offset"])
        for offset, record in enumerate(order(told, random)):
            records.append({**record, "offset": offset})
            if (partition, record["offset"]) in history.bad_offsets:
                is_bad.add((partition, offset))
    return replace(history, records=records, bad_offsets=frozenset(is_bad), shufflable=False)


def each_at_once(told: Sequence[Record], _random: Random) -> Sequence[Record]:
    return [record for record in told for _ in range(2)]


def stretches(told: Sequence[Record], random: Random) -> Sequence[Record]:
    cut = random.randint(0, len(told))
    return [*told[:cut], *told[:cut], *told[cut:], *told[cut:]]


def each_alone(told: Sequence[Record], random: Random) -> Sequence[Record]:
    again = [(random.uniform(number, len(told)), number) for number in range(len(told))]
    return [told[number] for _at, number in sorted([*((float(number), number) for number in range(len(told))), *again])]


def _collected(records: Sequence[Record], number: Callable[[Record], int], count: int) -> Batches:
    batches: list[list[Record]] = [[] for _ in range(count)]
    for record in records:
        batches[number(record)].append(record)
    return batches
