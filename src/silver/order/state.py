"""What silver knows of a source, and what a batch adds to it: plain rows in, rows of `ops.batches` out.

Imports without pyspark: silver.accounts.audit reads and writes the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from silver.order.ranges import ReadRanges
from silver.order.runs import SEGMENT_KEY, Cutoff, EpochStart, OffsetRange, TopicPartition

# Every record read is exactly one of these.
OUTCOMES = ("applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined")
COUNTED = ("read", *OUTCOMES)

# A feed in a topic-partition; None: of topics without one, or all feeds of it.
OfFeed = tuple[str | None, TopicPartition]
Stored = Mapping[str, Any]
_IN_PLACE = ("topic", "topic_id", "partition")
_OF_SEGMENT = (
    *("first_offset", "last_offset", "lowest", "highest", "has_end", "first_ms", "read_from_ms", "read_to_ms"),
    *(
        "source_names",
        "highest_timestamp_ms",
        "last_key",
        "last_is_delete",
        "with_unchanged_toast",
        "judged",
        "absent_columns",
    ),
)
_LOWEST = ("first_offset", "lowest", "first_ms", "read_from_ms")
_HIGHEST = ("last_offset", "highest", "read_to_ms", "highest_timestamp_ms")


def writer_of(source: str, generation: str, *parts: str) -> str:
    """Under which name a batch is written down, once. `parts`: of what is written beside the batches of news."""
    return "/".join(["silver", source, generation, *parts])


def batch_name(writer: str, number: int | None) -> str:
    """What a batch is called elsewhere: by its writer, and its number where it has one."""
    return f"{writer} {'' if number is None else number}"


@dataclass(frozen=True)
class PendingRange:
    """Offsets that are pending for a suspended table, since this batch."""

    feed: str
    topic_partition: TopicPartition
    first: int
    last: int
    batch: int


@dataclass(frozen=True)
class SuspensionCause:
    """Why a table is suspended, as it was judged last. `contract`: what it followed from (`SilverJob.contract`)."""

    rule: str | None
    why: str
    contract: str | None = None


@dataclass(frozen=True)
class State:
    """What a generation of silver knows of a source: one that is rebuilt from bronze is another one.

    `read_ranges`: which offsets it has read. `segments`: by feed, topic-partition, run and snapshot, as flat rows.
    `epochs`: by feed, run and topic, that which starts with the run. `cutoffs`: with their feed. `sent`: by feed, topic
    (of a sharded feed, else empty) and column, the lowest position of a record with its field. `unreadable`: by feed
    why nothing says how its values are written. `pending`: the ranges of suspended tables. `causes`: by feed, why it
    was suspended last. `resumed`: up to which batch a feed has taken its own. `last_batch`: of news. `sequence`: of the
    last write.
    """

    generation: str = ""
    read_ranges: ReadRanges = field(default_factory=ReadRanges)

    segments: Mapping[tuple[Any, ...], Stored] = field(default_factory=dict)
    epochs: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    cutoffs: Sequence[tuple[str, Cutoff]] = ()
    sent: Mapping[tuple[str, str, str], tuple[int, ...]] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    pending: Sequence[PendingRange] = ()
    causes: Mapping[str, SuspensionCause] = field(default_factory=dict)
    resumed: Mapping[str, int] = field(default_factory=dict)
    last_batch: int = -1
    sequence: int = 0

    def of_feed(self, feed: str) -> list[Stored]:
        """The segments of one feed."""
        return [row for row in self.segments.values() if row["feed"] == feed]

    def epoch_starts(self, feed: str, *, is_sharded: bool) -> list[EpochStart]:
        """The epochs of a feed; of a sharded one by topic."""
        found = {
            (run_id, topic if is_sharded else None): epoch
            for (of_feed, run_id, topic), epoch in self.epochs.items()
            if of_feed == feed
        }
        return [EpochStart(run_id, epoch, shard) for (run_id, shard), epoch in found.items()]

    def cutoffs_of(self, feed: str) -> list[Cutoff]:
        """The cutoffs of a feed."""
        return [cutoff for of_feed, cutoff in self.cutoffs if of_feed == feed]

    def first_sent(self, feed: str) -> dict[tuple[str, str], tuple[int, ...]]:
        """By topic of a sharded feed, else an empty text, and by column: the lowest position of its field."""
        return {(topic, column): at for (of_feed, topic, column), at in self.sent.items() if of_feed == feed}

    def names_no_run(self, feed: str) -> bool:
        """Whether the newest records with coordinates of a topic-partition of the feed do not name a connector run."""
        newest: dict[TopicPartition, Stored] = {}
        for row in self.of_feed(feed):
            topic_partition = (row["topic"], row["topic_id"], row["partition"])
            if row["lowest"] is None and row["snapshot_at"] is None:
                continue
            if topic_partition not in newest or row["last_offset"] > newest[topic_partition]["last_offset"]:
                newest[topic_partition] = row
        return any(not row["run_id"] for row in newest.values())

    def ranges(self, feed: str) -> list[PendingRange]:
        """The pending ranges of a suspended table, as its batches had them; none of any other."""
        return [one for one in self.pending if one.feed == feed]

    def pending_offsets(self, feed: str) -> list[OffsetRange]:
        """The same as ranges that have no offset in common, in order."""
        found: list[OffsetRange] = []
        for topic_partition, first, last in sorted(
            (one.topic_partition, one.first, one.last) for one in self.ranges(feed)
        ):
            if found and found[-1][0] == topic_partition and first <= found[-1][2] + 1:
                found[-1] = (topic_partition, found[-1][1], max(last, found[-1][2]))
            else:
                found.append((topic_partition, first, last))
        return found

    @property
    def suspended(self) -> dict[str, SuspensionCause]:
        """The tables that are suspended."""
        return {one.feed: self.causes[one.feed] for one in self.pending}

    def after(self, rows: Iterable[Stored]) -> State:
        """The state with what these rows of `ops.batches` add to it."""
        segments, epochs, cutoffs, sent = dict(self.segments), dict(self.epochs), [*self.cutoffs], dict(self.sent)
        pending, causes, resumed = [*self.pending], dict(self.causes), dict(self.resumed)
        unreadable = dict(self.unreadable)
        last_batch, sequence, read_ranges = self.last_batch, self.sequence, self.read_ranges
        for row in rows:
            feed, sequence = row["feed"], max(sequence, row["sequence"])
            if row["writer"] == writer_of(row["source"], row["generation"]):
                last_batch = max(last_batch, row["batch"])
            if row.get("read_ranges"):
                read_ranges = ReadRanges.from_row(row["read_ranges"])
            if row.get("segment"):
                segment = {**{name: row[name] for name in ("feed", *SEGMENT_KEY)}, **row["segment"]}
                segments[_identity(segment)] = segment
            epochs |= {(feed, one["run_id"], one["topic"]): one["epoch"] for one in row.get("epochs") or ()}
            cutoffs += [(feed, Cutoff(**one)) for one in row.get("cutoffs") or ()]
            for one in row.get("first_sent") or ():
                at, position = (feed, one["topic"], one["column"]), tuple(one["position"])
                sent[at] = min(position, sent.get(at, position))
            if row.get("unreadable") is not None:
                unreadable[feed] = row["unreadable"]
            if row.get("suspended"):
                part = row["suspended"]
                if part["first_offset"] is not None:
                    topic_partition = (row["topic"], row["topic_id"], row["partition"])
                    pending.append(
                        PendingRange(feed, topic_partition, part["first_offset"], part["last_offset"], row["batch"])
                    )
                if part["why"] is not None:
                    causes[feed] = SuspensionCause(part["rule"], part["why"], part["contract"])
            if row.get("resumed"):
                resumed[feed] = row["batch"]
        pending = [one for one in pending if one.batch > resumed.get(one.feed, -1)]
        unreadable = {feed: why for feed, why in unreadable.items() if why}
        return State(
            self.generation,
            read_ranges,
            segments,
            epochs,
            cutoffs,
            sent,
            unreadable,
            pending,
            causes,
            resumed,
            last_batch,
            sequence,
        )


def segment_rows(state: State, counted: Iterable[Stored]) -> list[dict[str, Any]]:
    """Of every segment that a batch (COUNTS) has records of: what is known of it now."""
    found: dict[tuple[Any, ...], Stored] = {}
    for row in counted:
        if row["feed"] is not None:
            identity = _identity(row)
            before = found.get(identity) or state.segments.get(identity)
            found[identity] = row if before is None else _merge_rows(before, row)
    return [
        {
            **{name: row[name] for name in ("feed", *SEGMENT_KEY)},
            "segment": {name: row[name] for name in _OF_SEGMENT},
        }
        for row in found.values()
    ]


def read_row(read_ranges: ReadRanges) -> dict[str, Any]:
    """Which offsets silver has read, after a batch."""
    return {"feed": None, "read_ranges": read_ranges.as_row()}


def feed_row(
    feed: str,
    *,
    epochs: Sequence[Stored] = (),
    cutoffs: Sequence[Cutoff] = (),
    first_sent: Mapping[tuple[str, str], Sequence[int]] | None = None,
    unreadable: str | None = None,
    resumed: bool = False,
) -> dict[str, Any]:
    """What a batch says of a feed: epochs (`silver.order.history.epoch_rows`) and cutoffs, and that it goes on.

    `first_sent`: by topic of a sharded feed, else an empty text, and column. `unreadable`: why nothing says how its
    values are written; empty: that is over.
    """
    sent = [{"topic": topic, "column": column, "position": [*at]} for (topic, column), at in (first_sent or {}).items()]
    return {
        "feed": feed,
        "epochs": [*epochs] or None,
        "cutoffs": [vars(cutoff) for cutoff in cutoffs] or None,
        "first_sent": sent or None,
        "unreadable": unreadable,
        "resumed": resumed or None,
    }


@dataclass(frozen=True)
class ReadExtent:
    """The range of offsets in which records were read, and how many were."""

    first: int
    last: int
    read: int

    @property
    def has_gaps(self) -> bool:
        """Whether there are offsets in between that no record has."""
        return self.last - self.first + 1 != self.read


def read_extents(counted: Iterable[Stored], *, apart: Collection[str] = ()) -> dict[OfFeed, ReadExtent]:
    """What was read of every topic-partition, by all of its feeds (None).

    By each feed where the topic is one of those `apart`: then records of a feed that shares it were not read.
    """
    found: dict[OfFeed, ReadExtent] = {}
    for row in counted:
        one = _counted_as(row, apart)
        before = found.get(one, ReadExtent(row["first_offset"], row["last_offset"], 0))
        first, last = min(before.first, row["first_offset"]), max(before.last, row["last_offset"])
        found[one] = ReadExtent(first, last, before.read + row["read"])
    return found


def audit_rows(
    counted: Sequence[Stored],
    outcomes: Mapping[OfFeed, Mapping[str, int]],
    gaps: Mapping[OfFeed, Sequence[tuple[int, int]]],
    *,
    apart: Collection[str] = (),
) -> list[dict[str, Any]]:
    """What was read (COUNTS) of every feed in every topic-partition, and what became of it.

    `outcomes`: how many changes, truncates and tombstones ended how. `gaps`: of the `read_extents` (`apart` as there).
    Each of them is in one row: of feeds that share a topic in the first one's.
    """
    rows: dict[OfFeed, dict[str, Any]] = {}
    left = read_extents(counted, apart=apart)
    for one in counted:
        of_feed = (one["feed"], (one["topic"], one["topic_id"], one["partition"]))
        row = rows.setdefault(
            of_feed,
            {
                **_NONE,
                **{name: one[name] for name in ("feed", *_IN_PLACE)},
                **dict.fromkeys(("first_offset", "last_offset", "gaps")),
                "failed_rules": {},
                "absent_columns": {},
            },
        )
        extent = left.pop(read_as := _counted_as(one, apart), None)
        if extent is not None:
            row["first_offset"], row["last_offset"] = extent.first, extent.last
            row["gaps"] = [{"first": first, "last": last} for first, last in gaps.get(read_as, ())]
        for name in ("read", "ignored", "quarantined", "judged"):
            row[name] += one[name]
        for name in ("failed_rules", "absent_columns"):
            for key, times in one[name].items():
                row[name][key] = row[name].get(key, 0) + times
    for of_feed, row in rows.items():
        for outcome, records in outcomes.get(of_feed, {}).items():
            row[outcome] += records
    return list(rows.values())


def correction_row(feed: str, topic_partition: TopicPartition, counts: Mapping[str, int]) -> dict[str, Any]:
    """Records of earlier batches that go from one outcome to another: the sum of `counts` is 0."""
    return {**_NONE, "feed": feed, **dict(zip(_IN_PLACE, topic_partition, strict=True)), **counts}


def suspended_row(
    feed: str, topic_partition: TopicPartition, *, first: int, last: int, records: int, new: SuspensionCause | None
) -> dict[str, Any]:
    """A range that is pending for a suspended table. `new`: of the batch that suspends it."""
    waits = {"first_offset": first, "last_offset": last, "records": records, **(_ALREADY if new is None else vars(new))}
    return {"feed": feed, **dict(zip(_IN_PLACE, topic_partition, strict=True)), "suspended": waits}


def cause_row(feed: str, cause: SuspensionCause) -> dict[str, Any]:
    """That a suspended table was tried again, and stays so."""
    nothing = dict.fromkeys(("first_offset", "last_offset", "records"))
    return {"feed": feed, "suspended": {**nothing, **vars(cause)}}


def _counted_as(row: Stored, apart: Collection[str]) -> OfFeed:
    return (row["feed"] if row["topic"] in apart else None, (row["topic"], row["topic_id"], row["partition"]))


def _identity(row: Stored) -> tuple[Any, ...]:
    at = row["snapshot_at"]
    return (row["feed"], *[row[name] for name in SEGMENT_KEY[:-1]], None if at is None else tuple(at))


def _merge_rows(one: Stored, other: Stored) -> Stored:
    """One segment of two parts; its last record is that with the highest offset."""
    last = max(one, other, key=lambda row: row["last_offset"])
    absent = dict(one["absent_columns"])
    for column, times in other["absent_columns"].items():
        absent[column] = absent.get(column, 0) + times
    return {
        **one,
        **{name: _of(min, one[name], other[name]) for name in _LOWEST},
        **{name: _of(max, one[name], other[name]) for name in _HIGHEST},
        "has_end": one["has_end"] or other["has_end"],
        "source_names": sorted({*(one["source_names"] or ()), *(other["source_names"] or ())}),
        "last_key": last["last_key"],
        "last_is_delete": last["last_is_delete"],
        "with_unchanged_toast": one["with_unchanged_toast"] + other["with_unchanged_toast"],
        "judged": one["judged"] + other["judged"],
        "absent_columns": absent,
    }


def _of(choose: Any, one: Any, other: Any) -> Any:
    present = [value for value in (one, other) if value is not None]
    return choose(present) if present else None


_ALREADY: Mapping[str, Any] = dict.fromkeys(("rule", "why", "contract"))
# Rows that are no audit have no counts.
_NONE: Mapping[str, Any] = dict.fromkeys(("read", *OUTCOMES, "judged"), 0)
