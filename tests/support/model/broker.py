"""The topic: partitions, offsets, and what can become of records there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.support.events import Record, compact, record


@dataclass(frozen=True)
class Notes:
    """What the model knows of a record, and a reader does not."""

    run: str
    change: int | None = None  # the number of the change that it tells; None for a row of a snapshot
    tells: int | None = None  # the number of the event, if it tells the note in full
    needs: int | None = None  # the number of the event that told the note which this one leaves out
    is_bad: bool = False  # belongs into quarantine
    is_kept: bool = False  # what compaction must not remove, or else the history could not be told any more


@dataclass(frozen=True)
class Message:
    """A record in the topic."""

    record: Record
    notes: Notes

    @property
    def key(self) -> str | None:
        key = self.record["key"]
        return None if key is None else str(key)

    @property
    def partition(self) -> int:
        return int(self.record["partition"])

    @property
    def offset(self) -> int:
        return int(self.record["offset"])

    @property
    def is_tombstone(self) -> bool:
        return self.record["value"] is None


@dataclass
class Broker:
    """One topic, in the order in which it was written."""

    topic: str
    partitions: int
    messages: list[Message] = field(default_factory=list)

    def partition_of(self, key: int | None) -> int:
        """By a hash of the key; records without one go to partition 0 here."""
        return 0 if key is None else zlib.crc32(key_text(key).encode()) % self.partitions

    def append(
        self,
        key: int | None,
        value: str | None,
        *,
        headers: Sequence[tuple[str, str]],
        timestamp: int,
        notes: Notes,
    ) -> None:
        """A record at the end of its partition."""
        partition = self.partition_of(key)
        new = record(
            self.topic,
            self._end(partition),
            key=None if key is None else {"order_id": key},
            value=value,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
        )
        self.messages.append(Message(new, notes))

    def lose(self, run: str, *, first: Sequence[int]) -> None:
        """What `run` told of the changes from number `first[partition]` on was never written."""

        def was_written(message: Message) -> bool:
            notes = message.notes
            return notes.run != run or notes.change is None or notes.change < first[message.partition]

        self.messages = [message for message in self.messages if was_written(message)]

    def compact(self, random: Random) -> None:
        """In every partition: of some stretch of offsets, the last record of each key only.

        Before the stretch lies what a reader has read already. One delete at least is told by its tombstone alone.
        """
        before = self.messages
        for partition in range(self.partitions):
            stretches = [self._any_stretch(random, partition) for _ in range(5)]
            self._compact_first_possible(stretches)
        self._compact_a_delete(random)
        if not self._has_lone_tombstone():
            self.messages = before
            self._compact_a_delete(random)

    def _compact_a_delete(self, random: Random) -> None:
        if not self._has_lone_tombstone():
            deletes = list(self._deletes())
            random.shuffle(deletes)
            self._compact_first_possible(deletes)

    def _compact_first_possible(self, stretches: Sequence[Sequence[Message]]) -> None:
        for stretch in stretches:
            left = self._compacted(stretch)
            if len(left) < len(self.messages) and _can_be_told(self.messages, left, stretch):
                self.messages = left
                return

    def _any_stretch(self, random: Random, partition: int) -> Sequence[Message]:
        messages = [message for message in self.messages if message.partition == partition]
        first, end = sorted(random.randrange(len(messages) + 1) for _ in range(2))
        return messages[random.choice((0, first)) : end]

    def _deletes(self) -> Iterator[Sequence[Message]]:
        """Each `d` with its tombstone."""
        by_offset = self._by_offset()
        for message in self.messages:
            tombstone = by_offset.get((message.partition, message.offset + 1, message.key))
            if not message.is_tombstone and tombstone is not None and tombstone.is_tombstone:
                yield message, tombstone

    def _has_lone_tombstone(self) -> bool:
        by_offset = self._by_offset()
        tombstones = (message for message in self.messages if message.is_tombstone)
        return any((one.partition, one.offset - 1, one.key) not in by_offset for one in tombstones)

    def _by_offset(self) -> dict[tuple[int, int, str | None], Message]:
        return {(message.partition, message.offset, message.key): message for message in self.messages}

    def _compacted(self, stretch: Sequence[Message]) -> list[Message]:
        last = {message.key: message for message in stretch}
        removed = {id(message) for message in stretch if last[message.key] is not message}
        return [message for message in self.messages if id(message) not in removed]

    def _end(self, partition: int) -> int:
        # Offsets rise in the order of writing.
        return 1 + next((one.offset for one in reversed(self.messages) if one.partition == partition), -1)


def key_text(key: int) -> str:
    """The record's key."""
    return compact({"order_id": key})


def _can_be_told(messages: Sequence[Message], left: Sequence[Message], stretch: Sequence[Message]) -> bool:
    """Whether what is left still tells the history: nothing kept is missing, no note and no last good row."""
    present = {id(message) for message in left}
    removed = [message for message in messages if id(message) not in present]
    told = {message.notes.tells for message in left}
    last = {message.key: message for message in stretch}
    return (
        not any(message.notes.is_kept for message in removed)
        and all(message.notes.needs is None or message.notes.needs in told for message in left)
        and not any(last[message.key].notes.is_bad for message in removed)
    )
