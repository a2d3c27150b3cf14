"""What silver knows of a feed's history, and what a batch adds: runs, epochs and floors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakehouse.contracts import Feed
from silver.order.runs import (
    Coordinates,
    Fall,
    Floor,
    Opening,
    Place,
    SnapshotFloor,
    Stretch,
    brought_about,
    epoch_at,
    epochs,
    epochs_of_runs,
    falls,
    opening,
    read_again,
    replays_below,
    snapshot_floors,
    stretches,
    together,
)
from silver.order.state import State, Stored

COLLECTED = "collected"


@dataclass(frozen=True)
class Before:
    """A place as it was before the batch: its last offset, highest timestamp, and last record (key's hash, delete)."""

    last_offset: int
    highest_timestamp_ms: int | None
    last_key: int | None
    last_is_delete: bool | None


@dataclass(frozen=True)
class Shard:
    """Stretches whose coordinates are of one log: those of a topic of a sharded feed, else (None) of the whole feed."""

    topic: str | None
    known: Sequence[Stretch]
    openings: Sequence[Opening]


@dataclass(frozen=True)
class History:
    """A feed's history up to the end of a batch, and what is known to follow from it.

    `has_left_out`: whether any change has ever left out a large value. `read_to`: of every place the highest offset of
    earlier batches. `own`: the stretches of the batch alone. `judged`: the falls that earlier batches brought about.
    `reads_back`: whether the batch has records that stand before others that were read.
    """

    feed: Feed
    known: Sequence[Stretch]
    before: Mapping[Place, Before]
    own: Sequence[Stretch]
    openings: Sequence[Opening]
    floors: Sequence[Floor]
    has_left_out: bool = False
    read_to: Mapping[Place, int] = field(default_factory=dict)
    judged: Sequence[Fall] = ()
    reads_back: bool = False

    def shards(self) -> list[Shard]:
        """What shares its coordinates: every topic of a sharded feed by itself, else all of it."""
        if not self.feed.is_sharded:
            return [Shard(None, self.known, self.openings)]
        by_topic: dict[str, list[Stretch]] = {}
        for one in self.known:
            by_topic.setdefault(one.topic, []).append(one)
        return [
            Shard(topic, known, [one for one in self.openings if one.shard == topic])
            for topic, known in sorted(by_topic.items())
        ]

    def falls(self) -> list[Fall]:
        """The runs whose coordinates fall behind, as this batch shows."""
        new = {one.place for one in self.own}
        found = [fall for shard in self.shards() for fall in falls(shard.known, shard.openings, new=new)]
        return brought_about(found, own=self.own, before=self.judged)

    def opening(self, fall: Fall) -> Opening:
        """The epoch that begins with the run of this fall."""
        (shard,) = [one for one in self.shards() if one.topic in {None, fall.place[0]}]
        return opening(fall, shard.known, shard.openings, shard=shard.topic)

    def epochs(self, openings: Sequence[Opening] | None = None) -> dict[Place, list[tuple[int, int]]]:
        """Of every place, from which offset on its records are of which epoch; of `openings`, or of all known ones."""
        found: dict[Place, list[tuple[int, int]]] = {}
        for shard in self.shards():
            found |= epochs(shard.known, [one for one in openings or shard.openings if one.shard == shard.topic])
        return found

    def read_again(self, new: Opening) -> dict[Place, tuple[int, int]]:
        """The offsets of records that were placed before it was known that this epoch has begun."""
        found: dict[Place, tuple[int, int]] = {}
        for shard in self.shards():
            if shard.topic == new.shard:
                found |= read_again(shard.known, new, before=self.read_to)
        return found

    def with_openings(self, openings: Iterable[Opening]) -> History:
        """The same history, with epochs that have begun."""
        return replace(self, openings=(*self.openings, *openings))

    def with_floors(self, floors: Iterable[Floor]) -> History:
        """The same history, with floors that were written."""
        return replace(self, floors=(*self.floors, *floors))

    def snapshot_floors(self) -> list[Floor]:
        """The floors of completed full snapshots that are not written yet."""
        if self.feed.snapshots == "partial" or self.feed.sequence_by != "source_position" or self.feed.append_only:
            return []
        # By position: one that was written before its epoch was known is written again, one sent again is not.
        written = {(floor.reason, floor.topic, floor.position) for floor in self.floors}
        found = []
        for shard in self.shards():
            completed = snapshot_floors(shard.known, shard.openings)
            found += [_floor(self.feed, one, shard.topic) for one in completed]
        return [one for one in found if (one.reason, one.topic, one.position) not in written]

    def highest_floors(self, *reasons: str) -> dict[str | None, Floor]:
        """Of every shard (None: of the whole feed) its highest floor for one of these reasons."""
        highest: dict[str | None, Floor] = {}
        for floor in self.floors:
            other = highest.get(floor.topic)
            if floor.reason in reasons and (other is None or floor.as_position() > other.as_position()):
                highest[floor.topic] = floor
        return highest

    def places(self, *, runs: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Of every topic-partition what the positions of records depend on (silver.position.PLACES).

        `runs`: of these alone, where only their records are placed.
        """
        begins = self.epochs()
        repeats: dict[tuple[Place, str], Coordinates] = {}
        of_runs: dict[tuple[Place, str], int] = {}
        for shard in self.shards():
            repeats |= replays_below(shard.known, shard.openings)
            by_run = epochs_of_runs(shard.known, shard.openings)
            of_runs |= {(one.place, one.run_id): by_run[one.run_id] for one in shard.known if one.run_id}
        rows: dict[Place, dict[str, Any]] = {}
        for one in self.known:
            topic, topic_id, partition = one.place
            before = self.before.get(one.place)
            row = rows.setdefault(
                one.place,
                {
                    "topic": topic,
                    "topic_id": topic_id,
                    "partition": partition,
                    "epochs": [{"from_offset": at, "epoch": epoch} for at, epoch in begins.get(one.place, ())],
                    "snapshots": [],
                    "runs": {},
                    "highest_timestamp_ms": before and before.highest_timestamp_ms,
                },
            )
            if one.snapshot_at is not None and self.feed.kind == "postgresql":
                epoch = of_runs.get((one.place, one.run_id), epoch_at(begins, one.place, one.first_offset))
                snapshot = {"run_id": one.run_id, "epoch": epoch, "from_offset": one.first_offset}
                row["snapshots"].append({**snapshot, "lsn": one.snapshot_at[-1], "read_from_ms": one.read_from_ms})
            if runs is not None and one.run_id not in runs:
                continue
            run = row["runs"].setdefault(one.run_id, {"run_id": one.run_id, "from_offset": one.first_offset})
            run["from_offset"] = min(run["from_offset"], one.first_offset)
            run["repeats_to"] = repeats.get((one.place, one.run_id))
            run["epoch"] = of_runs.get((one.place, one.run_id))
        return [{**row, "runs": list(row["runs"].values())} for row in rows.values()]

    def ends(self) -> list[dict[str, Any]]:
        """Of every topic-partition the record before the batch (silver.changelog.ENDS)."""
        return [
            {
                **dict(zip(("topic", "topic_id", "partition"), place, strict=True)),
                "last_key": before.last_key,
                "last_is_delete": before.last_is_delete,
            }
            for place, before in self.before.items()
        ]

    def cutoffs(self) -> dict[str, Floor]:
        """By topic of a sharded feed, else by an empty text: the highest floor, below which records are gone."""
        return {topic or "": one for topic, one in self.highest_floors("truncate", "snapshot").items()}


def with_new_epochs(
    past: History, telling_news: Callable[[Sequence[Fall]], Collection[Fall]]
) -> tuple[History, list[Opening]]:
    """The history with the epochs that begin in its batch, and these: runs that fall behind and state what is new.

    `telling_news`: of runs that fall behind, those that do not only repeat what was read before.
    """
    if past.feed.sequence_by == "kafka_offset":
        return past, []
    begun: list[Opening] = []
    repeating: set[tuple[Place, str]] = set()
    while True:
        found = [fall for fall in past.falls() if (fall.place, fall.run_id) not in repeating]
        # A snapshot repeats nothing. The others are compared when no snapshot is left: an epoch may explain them.
        with_news: Collection[Fall] = [fall for fall in found if fall.is_snapshot]
        if found and not with_news:
            with_news = telling_news(found)
            repeating |= {(fall.place, fall.run_id) for fall in found if fall not in with_news}
        if not with_news:
            return past, begun
        for fall in with_news:
            new = past.opening(fall)
            if not any((one.run_id, one.shard) == (new.run_id, new.shard) for one in begun):
                begun.append(new)
                past = past.with_openings([new])


def history(feed: Feed, rows: Sequence[Stored], state: State) -> History:
    """The feed's history with the counts (`rows`, COUNTS) of its part of a batch."""
    stored = state.of_feed(feed.name)
    read_to = _read_to(stored)
    starts = _starts(rows)
    own = stretches(rows)
    past = History(
        feed=feed,
        known=stretches(stored),
        before=_before(stored, starts),
        own=own,
        openings=state.openings(feed.name, is_sharded=feed.is_sharded),
        floors=state.floors(feed.name),
        read_to=read_to,
        reads_back=any(read_to.get(place, -1) >= start for place, start in starts.items()),
        has_left_out=any(row["leaving_out"] for row in (*stored, *rows)),
    )
    return replace(past, known=together([*past.known, *own]), judged=past.falls())


def _read_to(stored: Sequence[Stored]) -> dict[Place, int]:
    highest: dict[Place, int] = {}
    for row in stored:
        place = (row["topic"], row["topic_id"], row["partition"])
        highest[place] = max(row["last_offset"], highest.get(place, row["last_offset"]))
    return highest


def _starts(rows: Sequence[Stored]) -> dict[Place, int]:
    starts: dict[Place, int] = {}
    for row in rows:
        place = (row["topic"], row["topic_id"], row["partition"])
        starts[place] = min(row["first_offset"], starts.get(place, row["first_offset"]))
    return starts


def _before(stored: Sequence[Stored], starts: Mapping[Place, int]) -> dict[Place, Before]:
    """Of every place the record before the batch; not of those where the batch stands before others that were read."""
    found: dict[Place, Before] = {}
    for row in stored:
        place = (row["topic"], row["topic_id"], row["partition"])
        other = found.get(place)
        times = [row["highest_timestamp_ms"], other and other.highest_timestamp_ms]
        highest = max((time for time in times if time is not None), default=None)
        if other is None or row["last_offset"] > other.last_offset:
            found[place] = Before(row["last_offset"], highest, row["last_key"], row["last_is_delete"])
        else:
            found[place] = replace(other, highest_timestamp_ms=highest)
    return {place: one for place, one in found.items() if one.last_offset < starts.get(place, one.last_offset + 1)}


def epoch_rows(history: History, new: Sequence[Opening]) -> list[dict[str, Any]]:
    """Of epochs that have begun: epoch, run_id, topic, topic_id, partition and from_offset."""
    return [
        {
            "epoch": opening.epoch,
            "run_id": opening.run_id,
            "topic": topic,
            "topic_id": topic_id,
            "partition": partition,
            "from_offset": begins[0][0],
        }
        for opening in new
        for (topic, topic_id, partition), begins in history.epochs([opening]).items()
    ]


def _floor(feed: Feed, snapshot: SnapshotFloor, shard: str | None) -> Floor:
    """Just below the snapshot's own rows."""
    if feed.kind == "postgresql":
        commit, lsn = snapshot.at
        parts = {"epoch": snapshot.epoch, "ordered_lsn": commit, "streamed": 0, "commit_lsn": commit, "lsn": lsn}
    else:
        file, pos, row = snapshot.at
        parts = {"epoch": snapshot.epoch, "binlog_file": file, "binlog_pos": pos, "binlog_row": row, "streamed": 0}
    topic, _topic_id, partition = snapshot.place
    return Floor("snapshot", json.dumps({**parts, "kafka_offset": -1}), shard, topic, partition, snapshot.offset)
