"""What a feed's history is made of: connector runs, their snapshots and their coordinates, and what follows from it.

Run segments are what silver remembers of the records it has read, a few a partition and run (`ops.batches`). From
them alone, whatever the batches were: the snapshot LSNs and epochs that positions need, and the cutoffs that completed
snapshots write. Rules: docs/ordering.md. Imports without pyspark.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Any

MAX_OFFSET = 2**63 - 1
EPOCHS_A_MILLISECOND = 1024

# Topic, the broker's id of it, partition: offsets begin again when a topic is made again.
TopicPartition = tuple[str, str, int]
# The first and the last offset, both included.
OffsetRange = tuple[TopicPartition, int, int]
Coordinates = tuple[int, ...]

# What the facts of a batch are grouped by: a connector run in a partition, its full snapshots apart.
SEGMENT_KEY = ("topic", "topic_id", "partition", "run_id", "snapshot_at")


@dataclass(frozen=True)
class RunSegment:
    """The records of one connector run in one partition: those of one full snapshot, or all others.

    `lowest` and `highest`: the coordinates of the streamed changes; a snapshot has none. `read_from_ms`, `read_to_ms`:
    when the connector read its first and last record. `first_ms`: the lowest Kafka timestamp. `has_end`: with the
    snapshot's last row.
    """

    topic: str
    topic_id: str
    partition: int
    run_id: str
    snapshot_at: Coordinates | None
    first_offset: int
    last_offset: int
    lowest: Coordinates | None = None
    highest: Coordinates | None = None
    has_end: bool = False
    first_ms: int | None = None
    read_from_ms: int | None = None
    read_to_ms: int | None = None
    source_names: tuple[str, ...] = ()
    highest_timestamp_ms: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic, topic id and partition."""
        return self.topic, self.topic_id, self.partition

    @property
    def low(self) -> Coordinates | None:
        """The lowest coordinates, of a snapshot or streamed."""
        return self.lowest if self.snapshot_at is None else self.snapshot_at

    @property
    def high(self) -> Coordinates | None:
        """The highest coordinates, of a snapshot or streamed."""
        return self.highest if self.snapshot_at is None else self.snapshot_at


@dataclass(frozen=True)
class EpochStart:
    """A run with which a new epoch begins: the source's coordinates have started again.

    `epoch` grows with the order of the runs, and leaves room, so an epoch that is found late is between others too.
    `shard`: of a sharded feed, the topic for which it begins.
    """

    run_id: str
    epoch: int
    shard: str | None = None


@dataclass(frozen=True)
class Regression:
    """A run with coordinates behind `below`, of an earlier record of the topic-partition: a replay or an epoch."""

    topic_partition: TopicPartition
    run_id: str
    from_offset: int
    below: Coordinates
    is_snapshot: bool


@dataclass(frozen=True)
class Cutoff:
    """Rows and changes below `position` (JSON) are gone. `topic`: only those of this topic. The record that says so.

    `source_ms`: when that was at the source, as far as it is known.
    """

    reason: str
    position: str
    topic: str | None
    at_topic: str
    at_partition: int
    at_offset: int
    source_ms: int | None = None

    def as_json(self) -> dict[str, object]:
        """The cutoff in the form of `cutoff_type`."""
        return {**vars(self), "position": json.loads(self.position)}

    def as_position(self) -> tuple[Any, ...]:
        """The position as it compares: its fields are in the order of the struct."""
        return tuple(json.loads(self.position).values())


@dataclass(frozen=True)
class SnapshotCutoff:
    """What a completed full snapshot states: rows older than `at`, in the epoch, that it did not name are gone.

    `read_ms`: when the connector began to read it.
    """

    topic_partition: TopicPartition
    offset: int
    run_id: str
    epoch: int
    at: Coordinates
    read_ms: int | None = None


def offset_bounds(parts: Iterable[OffsetRange]) -> dict[TopicPartition, tuple[int, int]]:
    """Of every topic-partition the range of offsets in which these ranges lie."""
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for topic_partition, first, last in parts:
        so_far = ranges.get(topic_partition, (first, last))
        ranges[topic_partition] = (min(so_far[0], first), max(so_far[1], last))
    return ranges


def run_segments(rows: Iterable[Mapping[str, Any]]) -> list[RunSegment]:
    """Rows of `ops.batches`, or of one batch, as run segments: one a partition, run and snapshot."""
    return merge_segments(
        RunSegment(
            topic=row["topic"],
            topic_id=row["topic_id"],
            partition=row["partition"],
            run_id=row["run_id"],
            snapshot_at=None if row["snapshot_at"] is None else tuple(row["snapshot_at"]),
            first_offset=row["first_offset"],
            last_offset=row["last_offset"],
            lowest=None if row["lowest"] is None else tuple(row["lowest"]),
            highest=None if row["highest"] is None else tuple(row["highest"]),
            has_end=bool(row["has_end"]),
            first_ms=row["first_ms"],
            read_from_ms=row["read_from_ms"],
            read_to_ms=row["read_to_ms"],
            source_names=tuple(row["source_names"] or ()),
            highest_timestamp_ms=row["highest_timestamp_ms"],
        )
        for row in rows
    )


def merge_segments(parts: Iterable[RunSegment]) -> list[RunSegment]:
    """Those of the same partition, run and snapshot as one; by partition and offset."""
    merged: dict[tuple[Any, ...], RunSegment] = {}
    for new in parts:
        identity = (new.topic_partition, new.run_id, new.snapshot_at)
        merged[identity] = _merge(merged[identity], new) if identity in merged else new
    return sorted(merged.values(), key=lambda one: (one.topic_partition, one.first_offset))


def _merge(one: RunSegment, other: RunSegment) -> RunSegment:
    return replace(
        one,
        first_offset=min(one.first_offset, other.first_offset),
        last_offset=max(one.last_offset, other.last_offset),
        lowest=_least(one.lowest, other.lowest),
        highest=_most(one.highest, other.highest),
        has_end=one.has_end or other.has_end,
        first_ms=_least(one.first_ms, other.first_ms),
        read_from_ms=_least(one.read_from_ms, other.read_from_ms),
        read_to_ms=_most(one.read_to_ms, other.read_to_ms),
        source_names=tuple(sorted({*one.source_names, *other.source_names})),
        highest_timestamp_ms=_most(one.highest_timestamp_ms, other.highest_timestamp_ms),
    )


def _least(one: Any, other: Any) -> Any:
    present = [value for value in (one, other) if value is not None]
    return min(present) if present else None


def _most(one: Any, other: Any) -> Any:
    present = [value for value in (one, other) if value is not None]
    return max(present) if present else None


def run_order(known: Sequence[RunSegment]) -> dict[str, int]:
    """The numbers of the runs that have a name, one after the other.

    In a topic-partition the run with the first offset is the earlier one, whatever the clocks of the workers say. Kafka
    timestamps decide between runs that no topic-partition orders, neither by itself nor by runs in between.
    """
    first: dict[str, tuple[int, int, str]] = {}
    for one in known:
        if one.run_id:
            begin = (one.first_ms or 0, one.first_offset, one.run_id)
            first[one.run_id] = min(begin, first.get(one.run_id, begin))
    lanes = [deque(run_id for run_id, _parts in _runs_in_order(lane) if run_id) for lane in _by_partition(known)]
    lanes_of: dict[str, list[deque[str]]] = defaultdict(list)
    for lane in lanes:
        for run_id in lane:
            lanes_of[run_id].append(lane)
    waits = {run_id: sum(lane[0] != run_id for lane in lanes_of[run_id]) for run_id in first}
    ready = [begin for run_id, begin in first.items() if not waits[run_id]]
    heapify(ready)
    order: dict[str, int] = {}
    while len(order) < len(first):
        *_begin, run_id = heappop(ready) if ready else min(first[one] for one in _cycle(lanes, lanes_of, first))
        order[run_id] = len(order)
        for lane in lanes_of[run_id]:
            if lane[0] != run_id:  # of a cycle
                continue
            while lane and lane[0] in order:
                lane.popleft()
            if lane:
                waits[lane[0]] -= 1
                if not waits[lane[0]]:
                    heappush(ready, first[lane[0]])
    return order


def _cycle(
    lanes: Sequence[deque[str]], lanes_of: Mapping[str, Sequence[deque[str]]], first: Mapping[str, tuple[int, int, str]]
) -> Sequence[str]:
    """The runs, next in their partitions, that wait for one another: an old worker has gone on beside the new one."""
    path: list[str] = []
    run_id = min((lane[0] for lane in lanes if lane), key=lambda one: first[one])
    while run_id not in path:
        path.append(run_id)
        run_id = min((lane[0] for lane in lanes_of[run_id] if lane[0] != run_id), key=lambda one: first[one])
    return path[path.index(run_id) :]


def regressions(
    known: Sequence[RunSegment], epoch_starts: Collection[EpochStart], *, new: Collection[TopicPartition]
) -> list[Regression]:
    """The runs, in topic-partitions with `new` records, whose coordinates regress behind earlier runs of their epoch.

    A record without a run (a connector that does not name them) may be a replay; it is never a regression.
    """
    opened = {epoch_start.run_id for epoch_start in epoch_starts}
    found = []
    for parts in _by_partition(known):
        high: Coordinates | None = None
        for run_id, of_run in _runs_in_order(parts):
            lows = [part.low for part in of_run if part.low is not None]
            if run_id in opened:
                high = None
            elif run_id and high is not None and lows and min(lows) < high:
                snapshots = [part.snapshot_at for part in of_run if part.snapshot_at is not None]
                is_snapshot = bool(snapshots) and min(snapshots) < high
                found += [
                    Regression(topic_partition, run_id, min(part.first_offset for part in here), high, is_snapshot)
                    for topic_partition, here in groupby(
                        sorted(of_run, key=_by_place), key=lambda one: one.topic_partition
                    )
                    if topic_partition in new
                ]
            for part in of_run:
                high = _most(high, part.high)
    return found


def brought_about(
    found: Iterable[Regression], *, own: Iterable[RunSegment], before: Iterable[Regression]
) -> list[Regression]:
    """Of the regressions that are found, those that this batch brings about; the others were judged when they came.

    A batch does if it has a part of the run (`own`: its own run segments) that lies behind, or if the run was not known
    (`before`: the regressions without this batch) to regress behind these coordinates.
    """
    judged = {(one.topic_partition, one.run_id, one.below) for one in before}
    lows: dict[tuple[TopicPartition, str], Coordinates] = {}
    for part in own:
        if part.low is not None:
            lows[part.topic_partition, part.run_id] = min(
                part.low, lows.get((part.topic_partition, part.run_id), part.low)
            )
    return [
        one
        for one in found
        if (one.topic_partition, one.run_id, one.below) not in judged
        or lows.get((one.topic_partition, one.run_id), one.below) < one.below
    ]


def replays_below(
    known: Sequence[RunSegment], epoch_starts: Collection[EpochStart]
) -> dict[tuple[TopicPartition, str], Coordinates]:
    """Of every topic-partition and run: up to which coordinates an earlier run of the epoch sent streamed changes."""
    opened = {epoch_start.run_id for epoch_start in epoch_starts}
    below: dict[tuple[TopicPartition, str], Coordinates] = {}
    for parts in _by_partition(known):
        high: Coordinates | None = None
        for run_id, of_run in _runs_in_order(parts):
            if run_id in opened:
                high = None
            if run_id and high is not None:
                below |= {(part.topic_partition, run_id): high for part in of_run}
            for part in of_run:
                high = _most(high, part.highest)
    return below


def _by_partition(known: Sequence[RunSegment]) -> list[list[RunSegment]]:
    """The run segments of every topic-partition, whatever the topic's id."""
    lanes: dict[tuple[str, int], list[RunSegment]] = defaultdict(list)
    for one in known:
        lanes[one.topic, one.partition].append(one)
    return list(lanes.values())


def _runs_in_order(lane: Sequence[RunSegment]) -> list[tuple[str, list[RunSegment]]]:
    """The runs of one partition in the order of their offsets; records without a run are where the first of them is.

    Offsets begin again in a topic that was made again: the one with the earlier records comes first.
    """
    created: dict[str, int] = {}
    for one in lane:
        created[one.topic_id] = min(one.first_ms or 0, created.get(one.topic_id, one.first_ms or 0))
    runs: dict[str, list[RunSegment]] = defaultdict(list)
    for one in sorted(lane, key=lambda one: (created[one.topic_id], one.topic_id, one.first_offset)):
        runs[one.run_id].append(one)
    return list(runs.items())


def _by_place(one: RunSegment) -> TopicPartition:
    return one.topic_partition


def epoch_start(
    regression: Regression,
    known: Sequence[RunSegment],
    epoch_starts: Collection[EpochStart],
    *,
    shard: str | None = None,
) -> EpochStart:
    """The epoch that begins with the run of this regression: between those of the runs before it and after it."""
    order = run_order(known)
    number = order[regression.run_id]
    begun = [(order[one.run_id], one.epoch) for one in epoch_starts if one.run_id in order]
    before = max((epoch for begin, epoch in begun if begin < number), default=0)
    after = min((epoch for begin, epoch in begun if begin > number and epoch > before), default=None)
    first_ms = min(part.first_ms or 0 for part in known if part.run_id == regression.run_id)
    epoch = max(first_ms, before // EPOCHS_A_MILLISECOND + 1) * EPOCHS_A_MILLISECOND
    if after is not None and epoch >= after:
        epoch = (before + after) // 2
    return EpochStart(regression.run_id, epoch, shard)


def epochs(
    known: Sequence[RunSegment], epoch_starts: Collection[EpochStart]
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Of every topic-partition: from which offset on its records are of which epoch, from the first record of the run
    that opens it, or of any later one.
    """
    order = run_order(known)
    begins: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for one in sorted(epoch_starts, key=lambda epoch_start: epoch_start.epoch):
        if one.run_id not in order:
            continue
        of_epoch = [part for part in known if part.run_id and order[part.run_id] >= order[one.run_id]]
        for topic_partition, parts in groupby(sorted(of_epoch, key=_by_place), key=_by_place):
            begins[topic_partition].append((min(part.first_offset for part in parts), one.epoch))
    return dict(begins)


def epoch_at(
    begins: Mapping[TopicPartition, Sequence[tuple[int, int]]], topic_partition: TopicPartition, offset: int
) -> int:
    """The epoch of a record."""
    return max((epoch for from_offset, epoch in begins.get(topic_partition, ()) if from_offset <= offset), default=0)


def read_again(
    known: Sequence[RunSegment], new: EpochStart, *, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets, both included, of records that were placed before it was known that this epoch has begun.

    `before`: of every topic-partition the last offset that was read before this batch.
    """
    ranges = {}
    for topic_partition, begins in epochs(known, [new]).items():
        (first, _epoch) = begins[0]
        if topic_partition in before and first <= before[topic_partition]:
            ranges[topic_partition] = (first, before[topic_partition])
    return ranges


def epochs_of_runs(known: Sequence[RunSegment], epoch_starts: Collection[EpochStart]) -> dict[str, int]:
    """Of every run that has a name its epoch: a record that is sent again later stays in that of its run."""
    order = run_order(known)
    begun = sorted((order[one.run_id], one.epoch) for one in epoch_starts if one.run_id in order)
    return {
        run_id: max((epoch for begin, epoch in begun if begin <= started), default=0)
        for run_id, started in order.items()
    }


def snapshot_cutoffs(known: Sequence[RunSegment], epoch_starts: Collection[EpochStart]) -> list[SnapshotCutoff]:
    """The cutoffs of completed full snapshots: of those that open a run that is not the first, of one source, whose
    last row was read, and of which no row can be pending in a partition.

    None can be once the run has begun to stream, in whatever partition: one in which nothing changes would else block
    it for ever. Nor once a later run streams from where it ended, without a snapshot of its own: a connector does that
    when Kafka has all rows of the earlier one. Else every partition needs the last row, or records of a later run.
    """
    order = run_order(known)
    has_nameless = any(not one.run_id for one in known)
    if not order:
        return []
    epochs_by_run = epochs_of_runs(known, epoch_starts)
    parts_of: dict[str, list[RunSegment]] = defaultdict(list)
    for one in known:
        parts_of[one.run_id].append(one)
    topic_partitions = {one.topic_partition for one in known}
    first_run = None if has_nameless else min(order, key=lambda run: order[run])
    found = []
    later: set[TopicPartition] = set()  # the topic-partitions of the runs after this one
    resumed = False  # whether the runs after this one, up to the next with a snapshot, have begun to stream
    for run_id in sorted(order, key=lambda run: order[run], reverse=True):
        parts = parts_of[run_id]
        cutoff = None if run_id == first_run else _cutoff(parts, epochs_by_run[run_id])
        streams = resumed or any(part.lowest is not None for part in parts)
        if cutoff is not None and (streams or topic_partitions - {cutoff.topic_partition} <= later):
            found.append(cutoff)
        later |= {part.topic_partition for part in parts}
        resumed = streams and all(part.snapshot_at is None for part in parts)
    return found[::-1]


def _cutoff(parts: Sequence[RunSegment], epoch: int) -> SnapshotCutoff | None:
    """The cutoff of the snapshot with which this run opened, once its last row was read."""
    at = min((one.snapshot_at for one in parts if one.snapshot_at is not None), default=None)
    if at is None:
        return None
    opening_rows = [one for one in parts if one.snapshot_at == at]
    streamed = [one for one in parts if one.lowest is not None]
    ends = [one for one in opening_rows if one.has_end]
    names = {name for one in opening_rows for name in one.source_names}
    first_streamed = {one.topic_partition: one.first_offset for one in streamed}
    opens_partitions = all(
        one.first_offset < first_streamed.get(one.topic_partition, MAX_OFFSET) for one in opening_rows
    )
    read_to = _most_of(one.read_to_ms for one in opening_rows)
    streamed_from = _least_of(one.read_from_ms for one in streamed)
    opens_run = read_to is None or streamed_from is None or read_to <= streamed_from
    if not ends or len(names) > 1 or not opens_partitions or not opens_run:
        return None
    end = ends[-1]
    read_ms = _least_of(one.read_from_ms for one in opening_rows)
    return SnapshotCutoff(end.topic_partition, end.last_offset, end.run_id, epoch, at, read_ms)


def _least_of(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _most_of(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
