"""What silver knows of a feed's history, and what a batch adds: runs, epochs and cutoffs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakehouse.contracts.models import Feed
from silver.order.runs import (
    Coordinates,
    Cutoff,
    EpochStart,
    Regression,
    RunSegment,
    SnapshotCutoff,
    TopicPartition,
    brought_about,
    epoch_at,
    epoch_start,
    epochs,
    epochs_of_runs,
    merge_segments,
    offset_bounds,
    read_again,
    regressions,
    replays_below,
    run_segments,
    snapshot_cutoffs,
)
from silver.order.state import State, Stored

PURGED = "collected"


@dataclass(frozen=True)
class Before:
    """A topic-partition before the batch: its last offset, highest timestamp, and last record (key's hash, delete)."""

    last_offset: int
    highest_timestamp_ms: int | None
    last_key: int | None
    last_is_delete: bool | None


@dataclass(frozen=True)
class Shard:
    """Run segments with coordinates of one log: those of a topic of a sharded feed, else (None) of the whole feed."""

    topic: str | None
    known: Sequence[RunSegment]
    epoch_starts: Sequence[EpochStart]


@dataclass(frozen=True)
class History:
    """A feed's history up to the end of a batch, and what is known to follow from it.

    `has_unchanged`: whether any change has ever left a large value unchanged. `read_to`: of every topic-partition the
    highest offset of earlier batches. `own`: the batch's run segments alone. `judged`: the regressions that earlier
    batches brought about. `reads_back`: whether the batch has records before others that were read. `read_before`: the
    run segments of earlier batches. `positioned`: the same, each with the epoch that its records were positioned in; of
    those without a run that of the first.
    """

    feed: Feed
    known: Sequence[RunSegment]
    before: Mapping[TopicPartition, Before]
    own: Sequence[RunSegment]
    epoch_starts: Sequence[EpochStart]
    cutoffs: Sequence[Cutoff]
    has_unchanged: bool = False
    read_to: Mapping[TopicPartition, int] = field(default_factory=dict)
    judged: Sequence[Regression] = ()
    reads_back: bool = False
    read_before: Sequence[RunSegment] = ()
    positioned: Sequence[tuple[RunSegment, int]] = ()

    def runs_read_from_here(self) -> set[str]:
        """The runs of the batch of which an earlier one has streamed changes that are not before its own in the log."""
        highest: dict[tuple[str | None, str], Coordinates] = {}
        for one in self.read_before:
            if one.highest is not None:
                run = one.topic if self.feed.is_sharded else None, one.run_id
                highest[run] = max(_log_event(one.highest), highest.get(run, ()))
        return {
            one.run_id
            for one in self.own
            if one.lowest is not None
            and _log_event(one.lowest) <= highest.get((one.topic if self.feed.is_sharded else None, one.run_id), ())
        }

    def read_ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """Of every topic-partition the first and the last offset that silver has read, this batch included."""
        return offset_bounds((one.topic_partition, one.first_offset, one.last_offset) for one in self.known)

    def sends_again(self) -> bool:
        """Whether earlier batches may have read streamed changes of the batch: of its topic and epoch they have come as
        far in the log as where it begins.
        """
        highest: dict[tuple[str, int], Coordinates] = {}
        for one, epoch in self.positioned:
            if one.highest is not None:
                of_epoch = one.topic, epoch
                highest[of_epoch] = max(_log_event(one.highest), highest.get(of_epoch, ()))
        of_runs, begins = self._epochs_of_runs(), self.epochs()
        return any(
            _log_event(one.lowest)
            <= highest.get(
                (
                    one.topic,
                    of_runs.get(
                        (one.topic_partition, one.run_id), epoch_at(begins, one.topic_partition, one.first_offset)
                    ),
                ),
                (),
            )
            for one in self.own
            if one.lowest is not None
        )

    def shards(self) -> list[Shard]:
        """What shares its coordinates: every topic of a sharded feed by itself, else all of it."""
        if not self.feed.is_sharded:
            return [Shard(None, self.known, self.epoch_starts)]
        by_topic: dict[str, list[RunSegment]] = {}
        for one in self.known:
            by_topic.setdefault(one.topic, []).append(one)
        return [
            Shard(topic, known, [one for one in self.epoch_starts if one.shard == topic])
            for topic, known in sorted(by_topic.items())
        ]

    def regressions(self) -> list[Regression]:
        """The runs whose coordinates regress, as this batch shows."""
        new = {one.topic_partition for one in self.own}
        found = [
            regression
            for shard in self.shards()
            for regression in regressions(shard.known, shard.epoch_starts, new=new)
        ]
        return brought_about(found, own=self.own, before=self.judged)

    def epoch_start(self, regression: Regression) -> EpochStart:
        """The epoch that begins with the run of this regression."""
        (shard,) = [one for one in self.shards() if one.topic in {None, regression.topic_partition[0]}]
        return epoch_start(regression, shard.known, shard.epoch_starts, shard=shard.topic)

    def epochs(self, epoch_starts: Sequence[EpochStart] | None = None) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Of every topic-partition, from which offset on records are of which epoch; of these starts, or all known."""
        found: dict[TopicPartition, list[tuple[int, int]]] = {}
        for shard in self.shards():
            found |= epochs(
                shard.known, [one for one in epoch_starts or shard.epoch_starts if one.shard == shard.topic]
            )
        return found

    def read_again(self, begun: Iterable[EpochStart]) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of earlier batches' records that are of another epoch than they were positioned in.

        These epochs were found after their records; or a later record shows the order of runs that only timestamps
        could tell. Where that takes an epoch away from a run, all of its shard: cutoffs in it count no more.
        """
        ranges: list[tuple[TopicPartition, tuple[int, int]]] = []
        epochs_now = self._epochs_of_runs()
        for shard in self.shards():
            for one in begun:
                if one.shard == shard.topic:
                    ranges += read_again(shard.known, one, before=self.read_to).items()
        for segment, epoch in self.positioned:
            now = epochs_now.get((segment.topic_partition, segment.run_id), epoch)
            if now != epoch:
                ranges.append((segment.topic_partition, (segment.first_offset, segment.last_offset)))
            if now < epoch:
                topic = segment.topic if self.feed.is_sharded else None
                ranges += [
                    (topic_partition, (0, last))
                    for topic_partition, last in self.read_to.items()
                    if topic in (None, topic_partition[0])
                ]
        found: dict[TopicPartition, tuple[int, int]] = {}
        for topic_partition, (first, last) in ranges:
            so_far = found.get(topic_partition, (first, last))
            found[topic_partition] = (min(so_far[0], first), max(so_far[1], last))
        return found

    def nameless(self) -> list[dict[str, Any]]:
        """Of every topic-partition that has new coordinates without a run: the highest of earlier batches in the epoch
        (silver.lookback.earlier_records.NAMELESS): of streamed changes, and of all. `read_to`: the last offset.
        """
        begins = self.epochs()
        firsts: dict[TopicPartition, int] = {}
        for one in self.own:
            if not one.run_id and one.low is not None:
                firsts[one.topic_partition] = min(one.first_offset, firsts.get(one.topic_partition, one.first_offset))
        rows = []
        for topic_partition, first in sorted(firsts.items()):
            topic, topic_id, partition = topic_partition
            epoch = epoch_at(begins, topic_partition, first)
            earlier = [
                one
                for one, in_epoch in self.positioned
                if (one.topic, one.partition) == (topic, partition) and in_epoch == epoch
            ]
            here = [one.last_offset for one in earlier if one.topic_partition == topic_partition]
            rows.append(
                {
                    **{"topic": topic, "topic_id": topic_id, "partition": partition},
                    "read_to": max(here, default=-1),
                    "highest_streamed": max((one.highest for one in earlier if one.highest is not None), default=None),
                    "highest": max((one.high for one in earlier if one.high is not None), default=None),
                }
            )
        return rows

    def _epochs_of_runs(self) -> dict[tuple[TopicPartition, str], int]:
        """Of every run that has a name, in every topic-partition, its epoch."""
        found: dict[tuple[TopicPartition, str], int] = {}
        for shard in self.shards():
            by_run = epochs_of_runs(shard.known, shard.epoch_starts)
            found |= {(one.topic_partition, one.run_id): by_run[one.run_id] for one in shard.known if one.run_id}
        return found

    def with_epoch_starts(self, epoch_starts: Iterable[EpochStart]) -> History:
        """The same history, with epochs that have begun."""
        return replace(self, epoch_starts=(*self.epoch_starts, *epoch_starts))

    def with_cutoffs(self, cutoffs: Iterable[Cutoff]) -> History:
        """The same history, with cutoffs that were written."""
        return replace(self, cutoffs=(*self.cutoffs, *cutoffs))

    def snapshot_cutoffs(self) -> list[Cutoff]:
        """The cutoffs of completed full snapshots that are not written yet."""
        if self.feed.snapshots == "partial" or self.feed.sequence_by != "source_position" or self.feed.append_only:
            return []
        # By position: one that was written before its epoch was known is written again, one sent again is not.
        written = {(cutoff.reason, cutoff.topic, cutoff.position) for cutoff in self.cutoffs}
        found = []
        for shard in self.shards():
            completed = snapshot_cutoffs(shard.known, shard.epoch_starts)
            found += [_cutoff(self.feed, one, shard.topic) for one in completed]
        return [one for one in found if (one.reason, one.topic, one.position) not in written]

    def highest_cutoffs(self, *reasons: str) -> dict[str | None, Cutoff]:
        """Of every shard (None: of the whole feed) its highest cutoff for one of these reasons.

        Not one in an epoch that its record is not of any more.
        """
        highest: dict[str | None, Cutoff] = {}
        for cutoff in self._sound_cutoffs(*reasons):
            other = highest.get(cutoff.topic)
            if other is None or cutoff.as_position() > other.as_position():
                highest[cutoff.topic] = cutoff
        return highest

    def every_cutoff(self) -> list[tuple[str, Cutoff]]:
        """Every cutoff below which rows are gone, each with its topic, or an empty text, as `cutoff_by_shard`."""
        return [(one.topic or "", one) for one in self._sound_cutoffs("truncate", "snapshot")]

    def _sound_cutoffs(self, *reasons: str) -> list[Cutoff]:
        epochs_now = self._epochs_of_runs()
        return [one for one in self.cutoffs if one.reason in reasons and self._is_in_its_epoch(one, epochs_now)]

    def _is_in_its_epoch(self, cutoff: Cutoff, epochs_now: Mapping[tuple[TopicPartition, str], int]) -> bool:
        """Whether a run that has the cutoff's offset is of the cutoff's epoch, as far as its runs have names."""
        of_offset = [
            one
            for one in self.known
            if (one.topic, one.partition) == (cutoff.at_topic, cutoff.at_partition)
            and one.first_offset <= cutoff.at_offset <= one.last_offset
        ]
        named = [epochs_now[one.topic_partition, one.run_id] for one in of_offset if one.run_id]
        return len(named) < len(of_offset) or not named or cutoff.as_position()[0] in named

    def position_contexts(self, *, runs: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Of every topic-partition what the positions of records depend on (silver.order.positions).

        `runs`: of these alone, where only their records are placed.
        """
        begins = self.epochs()
        repeats: dict[tuple[TopicPartition, str], Coordinates] = {}
        of_runs = self._epochs_of_runs()
        for shard in self.shards():
            repeats |= replays_below(shard.known, shard.epoch_starts)
        rows: dict[TopicPartition, dict[str, Any]] = {}
        for one in self.known:
            topic, topic_id, partition = one.topic_partition
            before = self.before.get(one.topic_partition)
            row = rows.setdefault(
                one.topic_partition,
                {
                    "topic": topic,
                    "topic_id": topic_id,
                    "partition": partition,
                    "epochs": [
                        {"from_offset": at, "epoch": epoch} for at, epoch in begins.get(one.topic_partition, ())
                    ],
                    "snapshots": [],
                    "runs": {},
                    "highest_timestamp_ms": before and before.highest_timestamp_ms,
                },
            )
            if one.snapshot_at is not None and self.feed.kind == "postgresql":
                epoch = of_runs.get(
                    (one.topic_partition, one.run_id), epoch_at(begins, one.topic_partition, one.first_offset)
                )
                snapshot = {"run_id": one.run_id, "epoch": epoch, "from_offset": one.first_offset}
                row["snapshots"].append({**snapshot, "lsn": one.snapshot_at[1], "read_from_ms": one.read_from_ms})
            if runs is not None and one.run_id not in runs:
                continue
            run = row["runs"].setdefault(one.run_id, {"run_id": one.run_id, "from_offset": one.first_offset})
            run["from_offset"] = min(run["from_offset"], one.first_offset)
            run["repeats_to"] = repeats.get((one.topic_partition, one.run_id))
            run["epoch"] = of_runs.get((one.topic_partition, one.run_id))
        return [{**row, "runs": list(row["runs"].values())} for row in rows.values()]

    def cutoff_by_shard(self) -> dict[str, Cutoff]:
        """By topic of a sharded feed, else by an empty text: the highest cutoff, below which records are gone."""
        return {topic or "": one for topic, one in self.highest_cutoffs("truncate", "snapshot").items()}


def _log_event(at: Coordinates) -> Coordinates:
    """The coordinates without the row of MySQL and MariaDB, which may begin anew at one place."""
    return at[:2]


def with_new_epochs(
    past: History, telling_news: Callable[[Sequence[Regression]], Collection[Regression]]
) -> tuple[History, list[EpochStart]]:
    """The history with the epochs that begin in its batch, and these: runs that regress and state what is new.

    `telling_news`: of regressions, those that do not only repeat what was read before.
    """
    if past.feed.sequence_by == "kafka_offset":
        return past, []
    begun: list[EpochStart] = []
    compared: set[tuple[TopicPartition, str]] = set()
    while True:
        found = [
            regression
            for regression in past.regressions()
            if (regression.topic_partition, regression.run_id) not in compared
        ]
        # A snapshot repeats nothing. The others are compared when no snapshot is left: an epoch may explain them.
        with_news: Collection[Regression] = [regression for regression in found if regression.is_snapshot]
        if found and not with_news:
            with_news = telling_news(found)
            # Those with new changes begin an epoch, the others only repeat: none of them is compared again.
            compared |= {(regression.topic_partition, regression.run_id) for regression in found}
        if not with_news:
            return past, begun
        for regression in with_news:
            new = past.epoch_start(regression)
            if not any((one.run_id, one.shard) == (new.run_id, new.shard) for one in begun):
                begun.append(new)
                past = past.with_epoch_starts([new])


def history(feed: Feed, rows: Sequence[Stored], state: State) -> History:
    """The feed's history with the counts (`rows`, silver.order.facts) of its part of a batch."""
    stored = state.of_feed(feed.name)
    read_to = _read_to(stored)
    starts = _starts(rows)
    own, read_before = run_segments(rows), run_segments(stored)
    past = History(
        feed=feed,
        known=read_before,
        before=_before(stored, starts),
        own=own,
        read_before=read_before,
        epoch_starts=state.epoch_starts(feed.name, is_sharded=feed.is_sharded),
        cutoffs=state.cutoffs_of(feed.name),
        read_to=read_to,
        reads_back=any(read_to.get(topic_partition, -1) >= start for topic_partition, start in starts.items()),
        has_unchanged=any(row["with_unchanged_toast"] for row in (*stored, *rows)),
    )
    epochs_before, begins = past._epochs_of_runs(), past.epochs()
    positioned = [
        (
            one,
            epochs_before.get(
                (one.topic_partition, one.run_id), epoch_at(begins, one.topic_partition, one.first_offset)
            ),
        )
        for one in past.known
    ]
    return replace(past, known=merge_segments([*past.known, *own]), judged=past.regressions(), positioned=positioned)


def _read_to(stored: Sequence[Stored]) -> dict[TopicPartition, int]:
    highest: dict[TopicPartition, int] = {}
    for row in stored:
        topic_partition = (row["topic"], row["topic_id"], row["partition"])
        highest[topic_partition] = max(row["last_offset"], highest.get(topic_partition, row["last_offset"]))
    return highest


def _starts(rows: Sequence[Stored]) -> dict[TopicPartition, int]:
    starts: dict[TopicPartition, int] = {}
    for row in rows:
        topic_partition = (row["topic"], row["topic_id"], row["partition"])
        starts[topic_partition] = min(row["first_offset"], starts.get(topic_partition, row["first_offset"]))
    return starts


def _before(stored: Sequence[Stored], starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, Before]:
    """Of every topic-partition the record before the batch; not where the batch is before others that were read."""
    found: dict[TopicPartition, Before] = {}
    for row in stored:
        topic_partition = (row["topic"], row["topic_id"], row["partition"])
        other = found.get(topic_partition)
        times = [row["highest_timestamp_ms"], other and other.highest_timestamp_ms]
        highest = max((time for time in times if time is not None), default=None)
        if other is None or row["last_offset"] > other.last_offset:
            found[topic_partition] = Before(row["last_offset"], highest, row["last_key"], row["last_is_delete"])
        else:
            found[topic_partition] = replace(other, highest_timestamp_ms=highest)
    return {
        topic_partition: one
        for topic_partition, one in found.items()
        if one.last_offset < starts.get(topic_partition, one.last_offset + 1)
    }


def epoch_rows(history: History, new: Sequence[EpochStart]) -> list[dict[str, Any]]:
    """Of epochs that have begun: epoch, run_id, topic, topic_id, partition and from_offset."""
    return [
        {
            "epoch": epoch_start.epoch,
            "run_id": epoch_start.run_id,
            "topic": topic,
            "topic_id": topic_id,
            "partition": partition,
            "from_offset": begins[0][0],
        }
        for epoch_start in new
        for (topic, topic_id, partition), begins in history.epochs([epoch_start]).items()
    ]


def _cutoff(feed: Feed, snapshot: SnapshotCutoff, shard: str | None) -> Cutoff:
    """Just below the snapshot's own rows."""
    if feed.kind == "postgresql":
        commit, lsn = snapshot.at
        parts = {"epoch": snapshot.epoch, "ordered_lsn": commit, "streamed": 0, "commit_lsn": commit, "lsn": lsn}
    else:
        file, pos, row = snapshot.at
        parts = {"epoch": snapshot.epoch, "binlog_file": file, "binlog_pos": pos, "binlog_row": row, "streamed": 0}
    topic, _topic_id, partition = snapshot.topic_partition
    position = json.dumps({**parts, "kafka_offset": -1})
    return Cutoff("snapshot", position, shard, topic, partition, snapshot.offset, snapshot.read_ms)
