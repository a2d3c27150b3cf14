"""Ways to read a recording, and the recordings that are cases of the laws on Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.support.captures import AS_TEXT, KINDS, OUTBOX_TABLES, SMALL, Capture, case_of, topic_of
from tests.support.events import Record
from tests.support.laws.played import Cases
from tests.support.model.batches import Batches, doubled, in_any_order, in_one
from tests.support.recordings import read

Way = Callable[[Sequence[Record], Random], Batches]
FEW, LARGE_ROWS = 2, 50


def one_batch(records: Sequence[Record], _random: Random) -> Batches:
    return in_one(records)


def every_record_twice(records: Sequence[Record], random: Random) -> Batches:
    """In the same batch, or in the next. For an outbox: of others `odd_offsets_first` repeats every record too."""
    return doubled([records, []], random)


def odd_offsets_first(records: Sequence[Record], _random: Random) -> Batches:
    """Then those between them, with all once more."""
    return [
        [one for one in records if one["offset"] % 2],
        [*(one for one in records if not one["offset"] % 2), *records],
    ]


def two_batches(records: Sequence[Record], _random: Random) -> Batches:
    """Every partition in equal parts, its offsets in order."""
    return in_parts(records, FEW)


def fifty_batches(records: Sequence[Record], _random: Random) -> Batches:
    """Every partition in equal parts, its offsets in order."""
    return in_parts(records, LARGE_ROWS)


def shuffled(records: Sequence[Record], random: Random) -> Batches:
    """In any order, about ten a batch."""
    return in_any_order(records, random, count=min(LARGE_ROWS, len(records) // 10 + 1))


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


# Of a table with source positions: the batches tell nothing of the order.
OF_TABLES: Sequence[Way] = (one_batch, every_record_twice, odd_offsets_first, fifty_batches, shuffled)
OF_BIG: Sequence[Way] = (one_batch, two_batches)
# On Spark, of each kind of feed one recording or two: what the events of all of them lead to, in whatever batches, is
# told in plain Python (tests/unit/silver/fold/test_recordings.py); and that Spark keeps to it from batch to batch, the
# histories show.
ON_SPARK: Mapping[str, Way] = {
    "pg_full": one_batch,
    "pg_decimal-string_time-isostring": one_batch,
    "outbox_pg_envelope": every_record_twice,
    "outbox_pg_plain": one_batch,
    "mysql_restart": one_batch,
    "outbox_mysql_envelope": one_batch,
    "outbox_mysql_expand": one_batch,
}
TABLES_ON_SPARK = ("orders", "orders_nopk", "orders_types", f"orders_types{AS_TEXT}", *OUTBOX_TABLES)
READ_ON_SPARK = tuple(capture for capture in SMALL if capture.name in ON_SPARK)


@dataclass(frozen=True)
class Recordings:
    """The recordings by case, each with what was read of it."""

    by_case: Mapping[str, tuple[Capture, Sequence[Record]]]
    cases: Cases


def read_recordings(seed: int) -> Recordings:
    """Every recording that is read on Spark, and records that are no changes."""
    cases: dict[str, tuple[Capture, Sequence[Record]]] = {}
    batches: dict[str, list[list[Record]]] = {source: [[] for _ in range(FEW)] for source in KINDS}
    for capture in READ_ON_SPARK:
        way = ON_SPARK[capture.name]
        case = case_of(capture.name, way.__name__)
        records = [one for one in capture.records(way.__name__) if _is_read(one)]
        parts = way(records, Random(f"{seed} {case}"))  # noqa: S311
        cases[case] = capture, [record for part in parts for record in part]
        for number, part in enumerate(parts):
            batches[capture.source][number] += part
    for capture in WITH_STRANGE_RECORDS:
        batches[capture.source][0] += strange_records(capture)
    return Recordings(cases, Cases(batches))


def _is_read(record: Record) -> bool:
    """Not a record of a table that has no feed on Spark."""
    table = record["topic"].rpartition(".")[2]
    return not table.startswith("orders_") or table in TABLES_ON_SPARK


def case_on_spark(capture: Capture) -> str:
    """The case of a recording that is read on Spark."""
    return case_of(capture.name, ON_SPARK[capture.name].__name__)


WITH_STRANGE_RECORDS = tuple(one for one in SMALL if one.name in ("pg_schema-include", "mysql"))


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
