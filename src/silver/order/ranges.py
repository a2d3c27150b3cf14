"""What silver reads next: the offsets that bronze has and silver has not read, cut into batches.

Plain Python. The rows `planned` of `ops.batches` say which offsets a batch of bronze was to read of a topic-partition,
and what came of it. Silver remembers which offsets it has read (`ReadRanges`), so a topic that
was moved back, or read again, gives it only what it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil
from operator import attrgetter
from typing import Any

from silver.order.runs import OffsetRange, TopicPartition

# A batch has about so many records, and so many bytes of values, at most: what the computer must hold of it is bounded,
# however much is waiting.
BATCH_RECORDS, BATCH_BYTES = 2_000_000, 2 * 1024**3


@dataclass(frozen=True)
class IngestedRange:
    """What a batch of bronze was to read of a topic-partition (`until` is not included), and what it stored.

    `sequence`: of the batch; a later one has a higher number. `first`, `last`: the first and the last offset that has a
    record; None where there was none. `first_ms`: the lowest Kafka timestamp. `written_ms`: when it was stored.
    """

    sequence: int
    topic_partition: TopicPartition
    begin: int
    until: int
    records: int
    written_ms: int = 0
    value_bytes: int = 0
    first: int | None = None
    last: int | None = None
    first_ms: int | None = None


# Offsets from one to another, which is not included.
HalfOpen = tuple[int, int]


@dataclass(frozen=True)
class ReadRanges:
    """The offsets that silver has read, by topic-partition: ranges in order that do not touch.

    `ingested_to`: the sequence of bronze's batches up to which it has read all.
    """

    ranges: Mapping[TopicPartition, Sequence[HalfOpen]] = field(default_factory=dict)
    ingested_to: int = -1

    def unread(self, topic_partition: TopicPartition, begin: int, until: int) -> list[HalfOpen]:
        """The parts of these offsets that were not read."""
        left, at = [], begin
        for first, end in self.ranges.get(topic_partition, ()):
            if first >= until:
                continue
            if first > at:
                left.append((at, first))
            at = max(at, end)
        return [*left, (at, until)] if at < until else left

    def after(self, ranges: Iterable[tuple[TopicPartition, HalfOpen]], *, ingested_to: int) -> ReadRanges:
        """The same with these that were read."""
        found = {topic_partition: [*known] for topic_partition, known in self.ranges.items()}
        for topic_partition, one in ranges:
            found.setdefault(topic_partition, []).append(one)
        return ReadRanges(
            {topic_partition: _joined(known) for topic_partition, known in found.items()},
            max(self.ingested_to, ingested_to),
        )

    def as_row(self) -> dict[str, Any]:
        """As `ops.batches` has it (`read_ranges`)."""
        ranges = [
            {"topic": topic, "topic_id": topic_id, "partition": partition, "from_offset": first, "until_offset": until}
            for (topic, topic_id, partition), known in sorted(self.ranges.items())
            for first, until in known
        ]
        return {"ingested_to": self.ingested_to, "ranges": ranges}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ReadRanges:
        """What `as_row` has written."""
        ranges: dict[TopicPartition, list[HalfOpen]] = {}
        for one in row["ranges"]:
            topic_partition = one["topic"], one["topic_id"], one["partition"]
            ranges.setdefault(topic_partition, []).append((one["from_offset"], one["until_offset"]))
        return cls(ranges, row["ingested_to"])


@dataclass(frozen=True)
class BatchRanges:
    """The offsets of a batch. `ingested`: what bronze has counted of them; None where these are parts of that.

    `records`: how many there are, where they are parts an estimate. `after`: what silver has read when it is done.
    """

    offsets: Sequence[tuple[TopicPartition, HalfOpen]]
    ingested: Sequence[IngestedRange] | None
    records: int
    after: ReadRanges

    @property
    def ranges(self) -> list[OffsetRange]:
        """The same, both ends included."""
        return [(topic_partition, first, until - 1) for topic_partition, (first, until) in self.offsets]


@dataclass(frozen=True)
class RecordRange:
    """What a batch has of a topic-partition, by `ops.batches` or by its records.

    `schema_ids`: of the registry's schemas that its records name. `has_definitions`: whether some of them define
    tables. `first_ms`: the lowest Kafka timestamp.
    """

    topic_partition: TopicPartition
    first: int
    last: int
    records: int
    value_bytes: int = 0
    schema_ids: frozenset[int] = frozenset()
    has_definitions: bool = False
    first_ms: int = 0


def record_ranges_of(ranges: Sequence[IngestedRange]) -> list[RecordRange]:
    """What these ranges have of every topic-partition."""
    found: dict[TopicPartition, RecordRange] = {}
    for one in ranges:
        if one.first is None or one.last is None:
            continue
        new = RecordRange(
            one.topic_partition, one.first, one.last, one.records, one.value_bytes, first_ms=one.first_ms or 0
        )
        before = found.get(one.topic_partition, new)
        found[one.topic_partition] = new if before is new else _both(before, new)
    return list(found.values())


def _both(one: RecordRange, other: RecordRange) -> RecordRange:
    return replace(
        one,
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        records=one.records + other.records,
        value_bytes=one.value_bytes + other.value_bytes,
        first_ms=min(one.first_ms, other.first_ms),
    )


def batches_of(ingested: Iterable[IngestedRange], read: ReadRanges) -> Iterator[BatchRanges]:
    """What is unread of the ingested ranges as batches, in the order of bronze's, none of them empty.

    Batches of bronze are joined as long as they are few records together (BATCH_RECORDS, BATCH_BYTES); a larger one is
    cut, each of its topic-partitions at the same shares of its offsets. Those of which nothing is unread are passed
    over.
    """
    waiting: list[_Part] = []
    for sequence, of_batch in groupby(sorted(ingested, key=attrgetter("sequence")), key=attrgetter("sequence")):
        parts: list[_Part] = []
        for one in of_batch:
            parts += _unread_parts(one, read, [*waiting, *parts])
        cuts = _cuts(parts)
        if waiting and _cuts([*waiting, *parts]) > 1:
            batch = _batch(waiting, read, ingested_to=sequence - 1)
            yield batch
            read, waiting = batch.after, []
        if cuts == 1:
            waiting += parts
            continue
        for number in range(cuts):
            some = [cut for part in parts for cut in part.cut(number, cuts)]
            batch = _batch(some, read, ingested_to=sequence if number == cuts - 1 else sequence - 1)
            if some:
                yield batch
            read = batch.after
    if waiting:
        yield _batch(waiting, read, ingested_to=max(part.of.sequence for part in waiting))


@dataclass(frozen=True)
class _Part:
    """Unread offsets of what bronze has ingested."""

    of: IngestedRange
    begin: int
    until: int

    @property
    def is_whole(self) -> bool:
        return (self.begin, self.until) == (self.of.begin, self.of.until)

    @property
    def share(self) -> float:
        return (self.until - self.begin) / (self.of.until - self.of.begin)

    def cut(self, number: int, cuts: int) -> list[_Part]:
        """The part of this number, of so many of about the same length; none where it would be empty."""
        length = self.until - self.begin
        begin, until = (self.begin + length * at // cuts for at in (number, number + 1))
        return [_Part(self.of, begin, until)] if begin < until else []


def _unread_parts(ingested: IngestedRange, read: ReadRanges, waiting: Sequence[_Part]) -> list[_Part]:
    """What is unread of a range that has records, and not of what is waiting."""
    if not ingested.records:
        return []
    topic_partition = ingested.topic_partition
    before = [
        (topic_partition, (part.begin, part.until)) for part in waiting if part.of.topic_partition == topic_partition
    ]
    known = read.after(before, ingested_to=read.ingested_to)
    return [_Part(ingested, *unread) for unread in known.unread(topic_partition, ingested.begin, ingested.until)]


def _cuts(parts: Sequence[_Part]) -> int:
    """Into how many batches these are to be cut."""
    records = sum(part.of.records * part.share for part in parts)
    value_bytes = sum(part.of.value_bytes * part.share for part in parts)
    return max(1, ceil(records / BATCH_RECORDS), ceil(value_bytes / BATCH_BYTES))


def _batch(parts: Sequence[_Part], read: ReadRanges, *, ingested_to: int) -> BatchRanges:
    offsets = [(part.of.topic_partition, (part.begin, part.until)) for part in parts]
    are_whole = all(part.is_whole for part in parts)
    return BatchRanges(
        offsets,
        [part.of for part in parts] if are_whole else None,
        ceil(sum(part.of.records * part.share for part in parts)),
        read.after(offsets, ingested_to=ingested_to),
    )


def _joined(ranges: Iterable[HalfOpen]) -> list[HalfOpen]:
    found: list[HalfOpen] = []
    for first, until in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((first, until))
    return found
