"""The definition of silver: what all records of a key lead to, in whatever order they came.

`fold` takes every record that names some keys and returns their rows and what became of each record. A row names the
records that its values are of, by their number, and no value itself: who has the values, takes them from there.

    0. Where the log counts the rows at one position anew, they count on.
    1. A record whose position a later one of its key and run contradicts is damaged, and excluded.
    2. A tombstone that no delete of its run precedes deletes what its run, and earlier ones, have stated of its key.
    3. What is below a cutoff is gone with it.
    4. Of events with one id (outbox) the first counts.
    5. The last change of a key is its row. A column that events may pass over has its own last word.
    6. A large value that a change of the key does not send is the newest that the previous key has stated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakehouse.contracts.models import Feed
from silver.fold.column_versions import versioned_columns
from silver.order.position import Position
from silver.order.runs import Cutoff
from tests.support.positions import BEFORE_ALL_OFFSETS, at_offset

RowKey = tuple[Any, ...]
_STATED = ("change", "quarantined")
# Of a position of MySQL or MariaDB (silver.order.position.MYSQL) the field of the row.
_BINLOG_ROW = 3


class PositionedEvent(NamedTuple):
    """What a record states, with its position, as the fold takes it.

    `key_text`: the Kafka key as the headers of changed keys have it. `unchanged_toast`: the columns that the event does
    not state, and that may be so (`versioned_columns`). `row_key`: the key columns of its row, or None where unknown.
    `image`: a hash of its row, where equal log coordinates do not mean that two records are the same. `run_from`: the
    first offset of the record's run in its topic-partition. `timestamp_ms`: of Kafka.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    key: bytes | None
    key_text: str | None
    run_id: str
    kind: str
    op: str | None
    is_delete: bool
    is_streamed: bool
    is_replay: bool
    position: Position | None
    row_key: RowKey | None
    event_id: str | None = None
    old_key: str | None = None
    unchanged_toast: Collection[str] = ()
    image: int | None = None
    run_from: int | None = None
    timestamp_ms: int | None = None

    @property
    def place(self) -> tuple[str, str, int]:
        """Topic, topic id and partition."""
        return self.topic, self.topic_id, self.partition


@dataclass(frozen=True)
class Change:
    """A change as it counts: a record, or the cutoff above it. `number`: of the record; `at`: its coordinates."""

    number: int
    event: PositionedEvent
    position: Position
    op: str | None
    is_delete: bool
    at: tuple[str, int, int]
    is_below_cutoff: bool = False


@dataclass(frozen=True)
class Row:
    """What a key's row is. `last`: its last change. `column_versions`: by column that events may pass over, the number
    of the record that states it, and its position; None where nothing has since the last delete.
    """

    last: Change
    column_versions: Mapping[str, tuple[int, Position] | None]
    deleted_at: Position | None
    unresolved: Sequence[str]


@dataclass
class Folded:
    """The rows by key, the outcome of each change and tombstone by its number, and the damaged records."""

    rows: dict[RowKey, Row] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)


def fold(records: Sequence[PositionedEvent], feed: Feed, cutoffs: Mapping[str, Cutoff]) -> Folded:
    """The rows of all keys that these records name. `cutoffs`: of each shard. A record may be there twice."""
    records = with_rows_counted_on(records, feed)
    folded = Folded(damaged=damaged(records, feed))
    sound = [(number, one) for number, one in enumerate(records) if number not in folded.damaged]
    changes = list(_changes(sound, feed, {shard: (one.as_position(), one) for shard, one in cutoffs.items()}))
    repeated = _repeated(changes, feed)
    by_key: dict[RowKey, list[Change]] = defaultdict(list)
    for one in changes:
        if one.number not in repeated and one.event.row_key is not None:
            by_key[one.event.row_key].append(one)
    for key, of_key in by_key.items():
        folded.rows[key] = _row(of_key, changes, feed)
    folded.outcomes |= dict.fromkeys(folded.damaged, "quarantined")
    folded.outcomes |= {number: "tombstone" for number, one in sound if one.kind == "tombstone"}
    folded.outcomes |= {number: _of_truncate(one, feed, cutoffs) for number, one in sound if one.kind == "truncate"}
    for one in changes:
        folded.outcomes[one.number] = _outcome(one, folded.rows.get(one.event.row_key or ()), repeated, feed)
    return folded


def _of_truncate(one: PositionedEvent, feed: Feed, cutoffs: Mapping[str, Cutoff]) -> str:
    if one.is_replay:
        return "duplicate"
    below = cutoffs.get(one.topic if feed.is_sharded else "")
    is_below = below is not None and one.position is not None and one.position < below.as_position()
    return "superseded" if is_below else "applied"


def with_rows_counted_on(records: Sequence[PositionedEvent], feed: Feed) -> Sequence[PositionedEvent]:
    """The records; of MySQL and MariaDB with the number of their row as it would be if the log never began anew.

    Where the binlog is compressed, all changes of a transaction have one position, and `row` begins at 0 with each
    statement. So of a key's changes at one position one with a lower row comes behind all before it. A record that
    repeats an earlier one, by its row, operation and image, has the number of that.
    """
    if feed.kind == "postgresql" or feed.sequence_by == "kafka_offset":
        return records
    at_position: dict[tuple[Any, ...], list[tuple[int, int, Position]]] = defaultdict(list)
    for number, one in enumerate(records):
        if one.kind == "change" and one.is_streamed and one.position is not None:
            at_position[one.place, one.key, one.position[:_BINLOG_ROW]].append((one.offset, number, one.position))
    counted = list(records)
    for of_key in at_position.values():
        rows: dict[tuple[Any, ...], int] = {}
        highest = -1
        for _offset, number, position in sorted(of_key):
            record = position[_BINLOG_ROW], records[number].op, records[number].image
            if record not in rows:
                row = position[_BINLOG_ROW]
                rows[record] = highest = row if row >= highest else highest + 1
            counted_on = (*position[:_BINLOG_ROW], rows[record], *position[_BINLOG_ROW + 1 :])
            counted[number] = records[number]._replace(position=counted_on)
    return counted


def damaged(records: Sequence[PositionedEvent], feed: Feed) -> set[int]:
    """The records whose position is ahead of a later one of their key and run.

    In one run a partition has a key's changes in the order of the log, so the later one is right. What only repeats
    an earlier record, log coordinates and operation, states nothing; what repeats a damaged one is damaged too.
    """
    if feed.sequence_by == "kafka_offset":
        return set()
    same_record: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    of_run: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, one in enumerate(records):
        if one.kind == "change" and one.is_streamed and one.run_id and one.position is not None:
            same_record[one.place, one.key, one.op, one.position[:-1]].append(number)
            of_run[one.place, one.key, one.run_id].append(number)
    first = {number: min(records[other].offset for other in same) for same in same_record.values() for number in same}
    ahead = set()
    for numbers in of_run.values():
        lowest_later: Position | None = None
        for number in sorted(numbers, key=lambda number: records[number].offset, reverse=True):
            one = records[number]
            if first[number] != one.offset or one.position is None:
                continue
            if lowest_later is not None and one.position > lowest_later:
                ahead.add(number)
            lowest_later = one.position if lowest_later is None else min(lowest_later, one.position)
    return {number for same in same_record.values() if ahead.intersection(same) for number in same}


def _changes(
    sound: Sequence[tuple[int, PositionedEvent]], feed: Feed, cutoffs: Mapping[str, tuple[Position, Cutoff]]
) -> Iterable[Change]:
    """The changes, and the tombstones that delete; those below their cutoff as a delete by it."""
    deletes = _deleting_tombstones(sound, feed)
    moved = {**_sent_again(sound, deletes, feed), **deletes}
    for number, one in sound:
        position = moved.get(number, one.position)
        if position is None or (one.kind != "change" and number not in deletes):
            continue
        is_delete = one.is_delete or number in deletes
        below = cutoffs.get(one.topic if feed.is_sharded else "")
        if below is not None and position < below[0]:
            at, cutoff = below
            place = (cutoff.at_topic, cutoff.at_partition, cutoff.at_offset)
            yield Change(number, one, at, "t" if cutoff.reason == "truncate" else "r", True, place, True)
        else:
            place = (one.topic, one.partition, one.offset)
            yield Change(number, one, position, "d" if number in deletes else one.op, is_delete, place)


@dataclass
class _OfRun:
    """What a run has stated of a key so far: the record with its highest position, its latest timestamp, and the last
    offset of what has no position. `begins`: the run's first offset in the topic-partition; None of a run without name.
    """

    begins: int | None
    highest: PositionedEvent | None = None
    latest_ms: int = 0
    without_position: int = -1

    def add(self, one: PositionedEvent) -> None:
        self.latest_ms = max(self.latest_ms, one.timestamp_ms or 0)
        if one.position is None:
            self.without_position = one.offset
        elif self.highest is None or self.highest.position is None or one.position > self.highest.position:
            self.highest = one

    @property
    def is_deleted(self) -> bool:
        """Whether its last word is a delete. What is in quarantine without a position is read: it ends a delete."""
        return self.highest is not None and self.highest.is_delete and self.highest.offset > self.without_position


def _deleting_tombstones(sound: Sequence[tuple[int, PositionedEvent]], feed: Feed) -> dict[int, Position]:
    """The tombstones that no delete of their run precedes, and their position.

    Compaction leaves of a deleted key its tombstone alone, and flattened topics may have no other deletes. The record
    just before it may be a replayed one, and the tombstone may be one that is sent again.
    """
    found = {}
    for of_key in _with_tombstones(sound):
        runs: dict[str, _OfRun] = {}
        last: PositionedEvent | None = None
        sent_at: dict[tuple[str, int | None], int] = {}
        for number, one in of_key:
            if one.kind in _STATED:
                runs.setdefault(one.run_id, _OfRun(one.run_from if one.run_id else None)).add(one)
                last = one
            elif one.kind == "tombstone" and one.row_key is not None:
                follows_delete = last is not None and last.is_delete
                # One with the run and the timestamp of an earlier tombstone of its key is that one.
                is_repeat = sent_at.setdefault((one.run_id, one.timestamp_ms), one.offset) < one.offset
                if feed.sequence_by == "kafka_offset":
                    position = None if follows_delete else one.position
                elif is_repeat:
                    position = None
                elif one.run_id:
                    position = _position_of_tombstone(one, runs)
                else:
                    # Nothing orders records without a run but their offsets.
                    position = None if follows_delete else _behind(one, runs.values())
                if position is not None:
                    found[number] = position
    return found


def _with_tombstones(sound: Sequence[tuple[int, PositionedEvent]]) -> Iterable[list[tuple[int, PositionedEvent]]]:
    """By topic-partition and key, where there are tombstones: the records in the order of their offsets."""
    by_key: dict[tuple[Any, ...], list[tuple[int, PositionedEvent]]] = defaultdict(list)
    for number, one in sound:
        by_key[one.place, one.key].append((number, one))
    for of_key in by_key.values():
        if any(one.kind == "tombstone" for _number, one in of_key):
            yield sorted(of_key, key=lambda item: item[1].offset)


def _position_of_tombstone(tombstone: PositionedEvent, runs: Mapping[str, _OfRun]) -> Position | None:
    """Right behind what its run and earlier ones have stated of the key, never behind a later run's.

    None where it deletes nothing: its run has a delete last, or a record of the key that is younger than the tombstone.
    One worker has one clock, so that tombstone is sent again. A delete that only replays one before an earlier run's
    last word is the tombstone's where it is just before it: else compaction has removed the tombstone's own.
    """
    own = runs.get(tombstone.run_id)
    if own is not None and own.latest_ms > (tombstone.timestamp_ms or 0):
        return None
    position = _behind(
        tombstone, [one for one in runs.values() if one is own or (one.begins or 0) <= _begins(tombstone)]
    )
    if own is not None and own.highest is not None and own.is_deleted:
        is_next = own.highest.offset == tombstone.offset - 1
        is_last = (
            position is not None and own.highest.position is not None and position[:-1] == own.highest.position[:-1]
        )
        return None if is_next or is_last else position
    return position


def _behind(tombstone: PositionedEvent, runs: Iterable[_OfRun]) -> Position | None:
    positions = [one.highest.position for one in runs if one.highest is not None and one.highest.position is not None]
    return at_offset(max(positions), tombstone.offset) if positions else None


def _begins(one: PositionedEvent) -> int:
    return one.run_from or 0


def _sent_again(
    sound: Sequence[tuple[int, PositionedEvent]], deletes: Mapping[int, Position], feed: Feed
) -> dict[int, Position]:
    """The changes that are sent again behind a tombstone that has deleted them: they stand just before it.

    They are at the same coordinates, and of an earlier run, or of the tombstone's and older.
    """
    found: dict[int, Position] = {}
    if feed.sequence_by == "kafka_offset" or not deletes:
        return found
    for of_key in _with_tombstones(sound):
        by_coordinates: dict[Position, list[PositionedEvent]] = defaultdict(list)
        for number, one in of_key:
            if number in deletes:
                by_coordinates[deletes[number][:-1]].append(one)
            elif one.kind == "change" and one.position is not None and one.run_id:
                for tombstone in by_coordinates.get(one.position[:-1], ()):
                    is_older = (one.timestamp_ms or 0) < (tombstone.timestamp_ms or 0)
                    if is_older if one.run_id == tombstone.run_id else _begins(one) < _begins(tombstone):
                        found.setdefault(number, at_offset(one.position, tombstone.offset - 1))
    return found


def _repeated(changes: Sequence[Change], feed: Feed) -> set[int]:
    """The events of an outbox that another change of the same id comes before. Shards may have the same ids."""
    first: dict[tuple[str | None, str], tuple[Position, str]] = {}
    for one in changes:
        if (event := _event(one, feed)) is not None and not one.is_below_cutoff:
            at = one.position, one.event.topic_id
            first[event] = min(at, first.get(event, at))
    events = ((one, _event(one, feed)) for one in changes)
    return {
        one.number for one, event in events if event in first and (one.position, one.event.topic_id) != first[event]
    }


def _event(one: Change, feed: Feed) -> tuple[str | None, str] | None:
    event_id = one.event.event_id
    return None if event_id is None else (one.event.topic if feed.is_sharded else None, event_id)


def _row(of_key: Sequence[Change], changes: Sequence[Change], feed: Feed) -> Row:
    last = max(of_key, key=lambda one: one.position)
    versioned = versioned_columns(feed)
    if not versioned:
        return Row(last, {}, None, ())
    is_partial = feed.payload == "partial"
    ends = [one.position for one in of_key if one.is_delete]
    if not is_partial:
        # There was no such row before a key was changed to this one: nothing older is of it.
        changed = (one for one in of_key if one.event.old_key is not None and not one.is_below_cutoff)
        ends += [at_offset(one.position, BEFORE_ALL_OFFSETS) for one in changed]
    deleted_at = max(ends, default=None)
    since = [one for one in of_key if not one.is_delete and (deleted_at is None or one.position > deleted_at)]
    stated = {
        column: _last_word([one for one in since if column not in one.event.unchanged_toast]) for column in versioned
    }
    unresolved = [] if is_partial or last.is_delete else [column for column in versioned if stated[column] is None]
    for column in unresolved:
        stated[column] = _of_previous_key(since, changes, column, feed)
    return Row(last, stated, deleted_at, [column for column in unresolved if stated[column] is None])


def _last_word(changes: Sequence[Change]) -> tuple[int, Position] | None:
    if not changes:
        return None
    last = max(changes, key=lambda one: one.position)
    return last.number, last.position


def _of_previous_key(
    since: Sequence[Change], changes: Sequence[Change], column: str, feed: Feed
) -> tuple[int, Position] | None:
    """The value that the row's previous key, or one before it, has stated last, at the position of the key change.

    A change of the key is a delete of the old one and a create of the new one, whose header names the old key
    (Debezium documentation, "Primary key updates").
    """
    creates = [one for one in since if one.event.old_key is not None]
    if not creates:
        return None
    create = max(creates, key=lambda one: one.position)
    asked, before = create.event, create.position
    while True:
        # The delete of the old key and the create of the new one have the same log coordinates.
        earlier = [
            one
            for one in changes
            if one.event.key_text == asked.old_key
            and not one.is_delete
            and (not feed.is_sharded or one.event.topic == create.event.topic)
            and one.position < at_offset(before, BEFORE_ALL_OFFSETS)
            and (column not in one.event.unchanged_toast or one.event.old_key is not None)
        ]
        if not earlier:
            return None
        last = max(earlier, key=lambda one: one.position)
        if column not in last.event.unchanged_toast:
            return last.number, create.position
        asked, before = last.event, last.position


def _outcome(one: Change, row: Row | None, repeated: Collection[int], feed: Feed) -> str:
    is_repeated = one.number in repeated
    if row is not None and not one.is_below_cutoff and not is_repeated:
        own = {row.last.position, *(cell[1] for cell in row.column_versions.values() if cell is not None)}
        if one.position in own:
            return "applied"
    if one.event.kind == "tombstone":
        return "tombstone"
    is_at_last = (
        feed.sequence_by == "source_position"
        and row is not None
        and at_offset(one.event.position or one.position, 0) == at_offset(row.last.position, 0)
    )
    return "duplicate" if one.event.is_replay or is_repeated or is_at_last else "superseded"
