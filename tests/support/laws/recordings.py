"""All recordings, each read in several ways: cases of the laws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.support.captures import AS_TEXT, BIG, KINDS, SMALL, Capture, case_of, topic_of
from tests.support.events import Record
from tests.support.laws.played import Cases
from tests.support.model.batches import BATCHES, Batches, doubled, in_any_order, in_one
from tests.support.recordings import per_partition, read

Way = Callable[[Sequence[Record], Random], Batches]
MANY = 50
PER_PARTITION = 833  # of the big recordings: of three partitions and two sources, 5,000 records


def one_batch(records: Sequence[Record], _random: Random) -> Batches:
    return in_one(records)


def every_record_twice(records: Sequence[Record], random: Random) -> Batches:
    """In the same batch, or in the next."""
    return doubled([records, []], random)


def odd_offsets_first(records: Sequence[Record], _random: Random) -> Batches:
    """Then those between them, with all once more."""
    return [
        [one for one in records if one["offset"] % 2],
        [*(one for one in records if not one["offset"] % 2), *records],
    ]


def many_batches(records: Sequence[Record], _random: Random) -> Batches:
    """Every partition in equal parts, its offsets in order."""
    return in_parts(records, BATCHES)


def fifty_batches(records: Sequence[Record], _random: Random) -> Batches:
    """Every partition in equal parts, its offsets in order."""
    return in_parts(records, MANY)


def shuffled(records: Sequence[Record], random: Random) -> Batches:
    """In any order, about ten a batch."""
    return in_any_order(records, random, count=min(MANY, len(records) // 10 + 1))


def in_parts(records: Sequence[Record], count: int) -> Batches:
    """Every partition in so many equal parts, its offsets in order."""
    by_partition: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        by_partition[record["topic"], record["partition"]].append(record)
    batches: list[list[Record]] = [[] for _ in range(count)]
    for part in by_partition.values():
        for number, record in enumerate(sorted(part, key=lambda one: int(one["offset"]))):
            batches[number * count // len(part)].append(record)
    return batches


QUICK: Sequence[Way] = (one_batch, every_record_twice, odd_offsets_first)
THOROUGH: Sequence[Way] = (fifty_batches, shuffled)
OF_BIG: Sequence[Way] = (one_batch, many_batches)
# Without source positions, the order of offsets is what counts.
BY_POSITION_ONLY: Sequence[Way] = (odd_offsets_first, shuffled)


@dataclass(frozen=True)
class Recordings:
    """The recordings by case, each with the way in which it was read and what was read of it."""

    by_case: Mapping[str, tuple[Capture, Way, Sequence[Record]]]
    cases: Cases

    def of(self, capture: Capture) -> Iterator[tuple[str, Way]]:
        """The cases of a recording."""
        return ((case, way) for case, (of, way, _records) in self.by_case.items() if of == capture)


def read_recordings(seed: int) -> Recordings:
    """Every small recording in all quick ways, the beginnings of the big ones, and records that are no changes."""
    small = read_in_ways(SMALL, QUICK, seed)
    big = read_in_ways(BIG, OF_BIG, seed, count=PER_PARTITION)
    no_changes: dict[str, list[list[Record]]] = {source: [[]] for source in KINDS}
    for capture in WITH_STRANGE_RECORDS:
        no_changes[capture.source][0] += strange_records(capture)
    by_source = {
        source: [
            [record for part in (small, big) for record in part.cases.batches[source][number]]
            for number in range(BATCHES)
        ]
        for source in KINDS
    }
    for source, (records,) in no_changes.items():
        by_source[source][0] += records
    return Recordings({**small.by_case, **big.by_case}, Cases(by_source))


def read_in_ways(
    captures: Sequence[Capture], ways: Sequence[Way], seed: int, *, count: int | None = None
) -> Recordings:
    """The recordings in these ways, each from its beginning: so many records of every partition, or all."""
    cases: dict[str, tuple[Capture, Way, Sequence[Record]]] = {}
    batches: dict[str, list[list[Record]]] = {source: [[] for _ in range(BATCHES)] for source in KINDS}
    for capture in captures:
        for way in ways:
            if way in BY_POSITION_ONLY and capture.is_outbox:
                continue
            case = case_of(capture.name, way.__name__)
            records = beginning(capture.records(way.__name__), count)
            parts = way(records, Random(f"{seed} {case}"))  # noqa: S311
            cases[case] = capture, way, [record for part in parts for record in part]
            shared = batches[capture.source]
            shared += [[] for _ in range(len(parts) - len(shared))]
            for number, part in enumerate(parts):
                shared[number] += part
    return Recordings(cases, Cases(batches))


def beginning(records: list[Record], count: int | None) -> list[Record]:
    """The first `count` records of every partition; without it, all."""
    return records if count is None else per_partition(records, lambda number: number < count)


WITH_STRANGE_RECORDS = tuple(
    one for one in SMALL if one.name in ("pg_default", "pg_schema-include", "mysql", "mysql_schema-include")
)


def strange_topic(capture: Capture) -> str:
    """The topic of a feed in which a recording's records that tell of no row stand."""
    return topic_of(capture.name, "strange", f"orders{AS_TEXT if capture.as_text else ''}")


def strange_records(capture: Capture) -> list[Record]:
    """A recording's records that tell of no row (heartbeats, transactions, schema changes), and a message."""
    strange = [record for record in read(capture.file) if capture.table_of(record["topic"]) is None]
    return [
        {**record, "topic": strange_topic(capture), "offset": offset}
        for offset, record in enumerate([*strange, MESSAGE])
    ]


# A logical decoding message, as PostgreSQL's connector sends it.
MESSAGE = {
    "partition": 0,
    "timestamp": 1_795_251_000_000,
    "key": '{"prefix":"audit"}',
    "value": (
        '{"op":"m","ts_ms":1795251000000,"source":{"connector":"postgresql","name":"pg","ts_ms":1795251000000,'
        '"snapshot":"false","sequence":"[null,\\"31908208\\"]","lsn":31908208,"schema":"","table":""},'
        '"message":{"prefix":"audit","content":"eyJhIjoxfQ=="}}'
    ),
    "headers": [],
}
