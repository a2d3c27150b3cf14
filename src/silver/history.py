"""What silver remembers of a feed's history in the `ops` tables, and what a batch adds: runs, epochs and floors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from lakehouse.tables import Warehouse, small_table
from silver.ledger import CONNECTOR_RUNS, EPOCHS, FLOORS, STRETCH
from silver.merge import Floor, floor_type
from silver.position import PLACES
from silver.runs import (
    Coordinates,
    Fall,
    Opening,
    Place,
    SnapshotFloor,
    Stretch,
    epochs,
    falls,
    opening,
    read_again,
    replays_below,
    snapshot_floors,
    stretches,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ENDS = "topic STRING, topic_id STRING, partition INT, last_key BIGINT, last_is_delete BOOLEAN"
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
    earlier batches.
    """

    feed: Feed
    known: Sequence[Stretch]
    before: Mapping[Place, Before]
    new: Collection[Place]
    openings: Sequence[Opening]
    floors: Sequence[Floor]
    has_left_out: bool = False
    read_to: Mapping[Place, int] = field(default_factory=dict)

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
        """The runs of the batch whose coordinates fall behind."""
        return [fall for shard in self.shards() for fall in falls(shard.known, shard.openings, new=self.new)]

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
        written = {(floor.reason, floor.at_topic, floor.at_partition, floor.at_offset) for floor in self.floors}
        found = []
        for shard in self.shards():
            begins = epochs(shard.known, shard.openings)
            found += [_floor(self.feed, one, shard.topic) for one in snapshot_floors(shard.known, begins)]
        return [one for one in found if (one.reason, one.at_topic, one.at_partition, one.at_offset) not in written]

    def highest_floors(self, *reasons: str) -> dict[str | None, Floor]:
        """Of every shard (None: of the whole feed) its highest floor for one of these reasons."""
        highest: dict[str | None, Floor] = {}
        for floor in self.floors:
            other = highest.get(floor.topic)
            if floor.reason in reasons and (other is None or _ordered(floor) > _ordered(other)):
                highest[floor.topic] = floor
        return highest

    def places(self, spark: SparkSession, *, runs: Collection[str] | None = None) -> DataFrame:
        """PLACES: what the positions of records depend on; of `runs` alone, where only their records are placed."""
        begins = self.epochs()
        repeats: dict[tuple[Place, str], Coordinates] = {}
        for shard in self.shards():
            repeats |= replays_below(shard.known, shard.openings)
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
                lsn = one.snapshot_at[-1]
                row["snapshots"].append({"run_id": one.run_id, "from_offset": one.first_offset, "lsn": lsn})
            if runs is not None and one.run_id not in runs:
                continue
            run = row["runs"].setdefault(one.run_id, {"run_id": one.run_id, "from_offset": one.first_offset})
            run["from_offset"] = min(run["from_offset"], one.first_offset)
            run["repeats_to"] = repeats.get((one.place, one.run_id))
        return small_table(spark, [{**row, "runs": list(row["runs"].values())} for row in rows.values()], PLACES)

    def ends(self, spark: SparkSession) -> DataFrame:
        """ENDS: the record before the batch, in every place."""
        rows = [
            {
                **dict(zip(("topic", "topic_id", "partition"), place, strict=True)),
                "last_key": before.last_key,
                "last_is_delete": before.last_is_delete,
            }
            for place, before in self.before.items()
        ]
        return small_table(spark, rows, ENDS)

    def floor(self) -> Column:
        """The highest floor of a placed record's shard (`floor_type`); NULL without one."""
        kind = floor_type(self.feed)
        highest = self.highest_floors("truncate", "snapshot")
        if not highest:
            return F.lit(None).cast(kind)
        by_shard = {topic or "": one.as_json() for topic, one in highest.items()}
        shard = F.col("topic") if self.feed.is_sharded else F.lit("")
        return F.try_element_at(F.from_json(F.lit(json.dumps(by_shard)), f"MAP<STRING, {kind}>"), shard)


@dataclass(frozen=True)
class Remembered:
    """What the `ops` tables have of a source, by feed: one read for a whole batch."""

    stored: Mapping[str, Sequence[Row]]
    openings: Mapping[str, Sequence[Row]]
    floors: Mapping[str, Sequence[Row]]


def remembered(warehouse: Warehouse, source: str, rows: Sequence[Row]) -> Remembered:
    """What is known of all feeds of a source. `rows`: the counts (COUNTS) of the batch."""
    of_source = F.col("source") == source
    epochs_of_runs = (
        warehouse.read(EPOCHS.name)
        .where(of_source)
        .groupBy("feed", "run_id", "topic")
        .agg(F.max("epoch").alias("epoch"))
    )
    # A floor is written only when it is the highest: so the last one of a shard is.
    names = ("reason", "position", "topic", "at_topic", "at_partition", "at_offset")
    last = F.max_by(F.struct(*names), "written_at").alias("last")
    floors = (
        warehouse.read(FLOORS.name).where(of_source).groupBy("feed", "topic", F.col("reason") == COLLECTED).agg(last)
    )
    return Remembered(
        _by_feed(_stored(warehouse, of_source, _starts(rows))),
        _by_feed(epochs_of_runs.collect()),
        _by_feed(floors.select("feed", "last.*").collect()),
    )


def history(feed: Feed, rows: Sequence[Row], memory: Remembered) -> History:
    """The feed's history with the counts (`rows`, COUNTS) of its part of a batch."""
    stored = memory.stored.get(feed.name, ())
    openings = {
        (row["run_id"], row["topic"] if feed.is_sharded else None): row["epoch"]
        for row in memory.openings.get(feed.name, ())
    }
    floors = [{name: row[name] for name in Floor.__dataclass_fields__} for row in memory.floors.get(feed.name, ())]
    return History(
        feed=feed,
        known=stretches([*[row.asDict() for row in stored], *[row.asDict() for row in rows]]),
        before=_before(stored),
        new=set(_starts(rows)),
        openings=[Opening(run_id, epoch, shard) for (run_id, shard), epoch in openings.items()],
        floors=[Floor(**floor) for floor in floors],
        read_to=_read_to(stored),
        has_left_out=any(row["leaving_out"] for row in (*stored, *rows)),
    )


def _read_to(stored: Sequence[Row]) -> dict[Place, int]:
    highest: dict[Place, int] = {}
    for row in stored:
        place = (row["topic"], row["topic_id"], row["partition"])
        highest[place] = max(row["last_offset"], highest.get(place, row["last_offset"]))
    return highest


def _by_feed(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["feed"], []).append(row)
    return found


def _starts(rows: Sequence[Row]) -> dict[Place, int]:
    starts: dict[Place, int] = {}
    for row in rows:
        place = (row["topic"], row["topic_id"], row["partition"])
        starts[place] = min(row["first_offset"], starts.get(place, row["first_offset"]))
    return starts


def _stored(warehouse: Warehouse, of_source: Column, starts: Mapping[Place, int]) -> list[Row]:
    """One row a stretch: merged over all batches, and as it was before this batch."""
    of_batch = small_table(
        warehouse.spark,
        [
            {"topic": topic, "topic_id": topic_id, "partition": partition, "start": start}
            for (topic, topic_id, partition), start in starts.items()
        ],
        "topic STRING, topic_id STRING, partition INT, start BIGINT",
    )
    is_before = F.coalesce(F.col("last_offset") < F.col("start"), F.lit(True))
    last = F.struct("last_offset", "last_key", "last_is_delete")
    lowest = ("first_offset", "lowest", "first_ms", "read_from_ms")
    highest = ("last_offset", "highest", "read_to_ms", "highest_timestamp_ms", "leaving_out")
    return (
        warehouse.read(CONNECTOR_RUNS.name)
        .where(of_source)
        .join(F.broadcast(of_batch), on=["topic", "topic_id", "partition"], how="left")
        .groupBy("feed", *STRETCH)
        .agg(
            *[F.min(name).alias(name) for name in lowest],
            *[F.max(name).alias(name) for name in highest],
            F.bool_or("has_end").alias("has_end"),
            F.array_distinct(F.flatten(F.collect_list("source_names"))).alias("source_names"),
            F.max(F.when(is_before, last)).alias("before"),
            F.max(F.when(is_before, F.col("highest_timestamp_ms"))).alias("timestamp_before"),
        )
        .collect()
    )


def _before(stored: Sequence[Row]) -> dict[Place, Before]:
    found: dict[Place, Before] = {}
    for row in stored:
        if row["before"] is None:
            continue
        place = (row["topic"], row["topic_id"], row["partition"])
        other = found.get(place)
        last = row["before"] if other is None or row["before"]["last_offset"] > other.last_offset else None
        times = [row["timestamp_before"], other and other.highest_timestamp_ms]
        highest = max((time for time in times if time is not None), default=None)
        if last is not None:
            found[place] = Before(last["last_offset"], highest, last["last_key"], last["last_is_delete"])
        elif other is not None:
            found[place] = replace(other, highest_timestamp_ms=highest)
    return found


def no_ends(spark: SparkSession) -> DataFrame:
    """ENDS where nothing was read before."""
    return small_table(spark, [], ENDS)


def epoch_rows(history: History, new: Sequence[Opening]) -> list[dict[str, Any]]:
    """Rows of `ops.epochs` for epochs that have begun, without `opened_at`."""
    return [
        {
            "source": history.feed.source,
            "feed": history.feed.name,
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


def floor_rows(feed: Feed, floors: Sequence[Floor]) -> list[dict[str, Any]]:
    """Rows of `ops.floors`, without `written_at`."""
    return [{"source": feed.source, "feed": feed.name, **vars(floor)} for floor in floors]


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


def _ordered(floor: Floor) -> tuple[Any, ...]:
    """The position as it compares: its fields stand in the order of the struct."""
    return tuple(json.loads(floor.position).values())
