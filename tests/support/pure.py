"""Silver in plain Python, batch by batch: decoded, counted, planned and folded as the job does it, without Spark."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

from lakehouse.contracts.models import Feed
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import Record as Message
from silver.fold.column_versions import versioned_columns
from silver.order.facts import IN_THE_LOG
from silver.order.history import History, epoch_rows, history, with_new_epochs
from silver.order.position import END_OF_SNAPSHOT, FULL_SNAPSHOT
from silver.order.runs import Coordinates, Cutoff, Regression, TopicPartition
from silver.order.state import State, feed_row, segment_rows, writer_of
from tests.support.events import Record, micros
from tests.support.oracle import Folded, PositionedEvent, fold
from tests.support.positions import KnownRuns, coordinates, is_streamed, known_of, repeats, source_position

Rows = Mapping[tuple[Any, ...], Mapping[str, Any] | None]


class Read(NamedTuple):
    """A record, and what it states. `topic_partition`: topic, topic id and partition."""

    record: Record
    event: Event

    @property
    def topic_partition(self) -> TopicPartition:
        return self.record["topic"], "id", self.record["partition"]

    @property
    def offset(self) -> int:
        return int(self.record["offset"])


@dataclass
class PureSilver:
    """One feed's silver: it is told batches, and has rows.

    What goes to quarantine is what has a negative amount, where it `rejects_negative` ones.
    """

    feed: Feed
    state: State = field(default_factory=State)
    read: list[Read] = field(default_factory=list)
    past: History | None = None
    waiting: Collection[tuple[int, int]] = ()
    is_suspended: bool = False
    rejects_negative: bool = True
    known_positions: Sequence[PositionedEvent] | None = field(default=None, init=False)
    _events: dict[tuple[Any, ...], Event] = field(default_factory=dict, init=False)

    @cached_property
    def _explaining(self) -> ReferenceDecoder:
        return ReferenceDecoder(self.feed)

    def tell(self, records: Iterable[Record]) -> None:
        """One batch."""
        self.known_positions = None
        batch = [Read(record, self._event(record)) for record in records]
        if not batch:
            return
        facts = list(facts_of(batch, self.feed))
        before = history(self.feed, facts, self.state)
        self.is_suspended |= self._falls_without_run(before, batch)
        if self.is_suspended:
            return
        known_before = [*self.read]
        self.read += batch
        past, begun = with_new_epochs(
            before, lambda found: self._regressions_with_new_changes(found, known_before, batch)
        )
        again = past.read_again(begun)
        of_epoch = [
            one
            for one in known_before
            if one.topic_partition in again and _within(one.offset, again[one.topic_partition])
        ]
        new = [*past.snapshot_cutoffs(), *self._truncates(past, [*batch, *of_epoch])]
        self.past = past.with_cutoffs(new)
        rows = [*segment_rows(self.state, facts), feed_row(self.feed.name, epochs=epoch_rows(past, begun), cutoffs=new)]
        written = {"source": self.feed.source, "generation": "", "writer": writer_of(self.feed.source, "")}
        sequence = self.state.sequence + 1
        self.state = self.state.after([{**row, **written, "batch": sequence, "sequence": sequence} for row in rows])

    def retry(self) -> None:
        """What waits for a person may pass: nothing of the history changes, as it was read."""
        self.waiting, self.known_positions = (), None
        self.read = [Read(one.record, self._event(one.record)) for one in self.read]

    def key_of(self, one: Read) -> tuple[Any, ...]:
        """The row's key."""
        return tuple(self._value(one.event, key) for key in self.feed.keys)

    @property
    def cutoff_by_shard(self) -> Mapping[str, Cutoff]:
        """Of what is known now."""
        assert self.past is not None
        return self.past.cutoff_by_shard()

    def positioned(self) -> tuple[Sequence[Read], Sequence[PositionedEvent]]:
        """All records, and what they state with its position."""
        if self.known_positions is None:
            assert self.past is not None
            position_contexts = {_place_of(row): known_of(row) for row in self.past.position_contexts()}
            self.known_positions = [self._placed(one, position_contexts) for one in self.read]
        return self.read, self.known_positions

    def folded(self) -> tuple[Sequence[Read], Folded]:
        """All records, and what they lead to."""
        read, positioned = self.positioned()
        return read, fold(positioned, self.feed, self.cutoff_by_shard)

    def rows(self) -> Rows:
        """The rows that all records lead to; None: deleted."""
        read, folded = self.folded()
        column_versions = versioned_columns(self.feed)
        found: dict[tuple[Any, ...], Mapping[str, Any] | None] = {}
        for key, row in folded.rows.items():
            if row.last.is_delete:
                found[key] = None
                continue
            values = dict(zip(self.feed.columns, read[row.last.number].event.row or (), strict=True))
            for column in column_versions:
                said = row.column_versions[column]
                values[column] = None if said is None else self._value(read[said[0]].event, column)
            found[key] = values
        return found

    def _value(self, event: Event, column: str) -> Any:
        return dict(zip(self.feed.columns, event.row or (), strict=True))[column]

    def _event(self, record: Record) -> Event:
        # What is sent again states the same.
        content = record["topic"], record["key"], record["value"], tuple(map(tuple, record["headers"]))
        event = self._events.get(content)
        if event is None:
            headers = [(name, None if value is None else value.encode()) for name, value in record["headers"]]
            message = Message(record["topic"], _bytes(record["key"]), _bytes(record["value"]), headers)
            event = self._events[content] = self._explaining.event(message)
        is_bad = bool(event.problems) or (
            self.rejects_negative and event.kind == "change" and not event.is_delete and self._is_negative(event)
        )
        may_wait = event.kind == "change" and not event.is_delete  # no rule is asked about the others
        is_waiting = may_wait and (record["partition"], record["offset"]) in self.waiting
        return event._replace(kind="quarantined") if is_bad or is_waiting else event

    def _is_negative(self, event: Event) -> bool:
        amount = self._value(event, "total_amount")
        return isinstance(amount, Decimal) and amount < 0

    def _placed(self, one: Read, position_contexts: Mapping[TopicPartition, KnownRuns]) -> PositionedEvent:
        record, event, of_place = one.record, one.event, position_contexts[one.topic_partition]
        keys = self.key_of(one) if event.row is not None else (None,)
        return PositionedEvent(
            topic=record["topic"],
            topic_id="id",
            partition=record["partition"],
            offset=record["offset"],
            key=_bytes(record["key"]),
            key_text=_key_text(record["key"]),
            run_id=event.run_id,
            kind=event.kind,
            op=event.op,
            is_delete=event.is_delete,
            is_streamed=is_streamed(event.source),
            is_replay=repeats(event.source, self.feed.kind, run_id=event.run_id, known=of_place),
            position=source_position(
                event.source,
                self.feed.kind,
                run_id=event.run_id,
                read_ms=event.read_ms,
                offset=record["offset"],
                known=of_place,
            ),
            row_key=None if None in keys else keys,
            event_id=event.event_id,
            old_key=event.old_key,
            unchanged_toast=event.unchanged_toast,
            image=hash(repr(event.row)),
            run_from=of_place.runs[event.run_id].from_offset,
            timestamp_ms=record["timestamp"],
        )

    def _truncates(self, past: History, records: Sequence[Read]) -> list[Cutoff]:
        position_contexts = {_place_of(row): known_of(row) for row in past.position_contexts()}
        found = []
        for one in records:
            if one.event.kind == "truncate":
                position = self._placed(one, position_contexts).position
                assert position is not None
                found.append(
                    Cutoff(
                        "truncate", _json(position), None, one.topic_partition[0], one.topic_partition[2], one.offset
                    )
                )
        return found

    def _falls_without_run(self, past: History, batch: Sequence[Read]) -> bool:
        """Whether coordinates fall in records that name no run, and that repeat none."""
        known = {_place_of(row): row for row in past.nameless()}
        if not known:
            return False
        said = {
            (one.topic_partition, _said(one)): one.offset
            for one in sorted([*self.read, *batch], key=lambda one: -one.offset)
        }
        streamed = {topic_partition: row["highest_streamed"] for topic_partition, row in known.items()}
        highest = {topic_partition: row["highest"] for topic_partition, row in known.items()}
        for one in sorted(batch, key=lambda one: one.offset):
            at, topic_partition = coordinates(one.event.source, self.feed.kind), one.topic_partition
            is_of_log = one.event.kind in IN_THE_LOG and at is not None
            is_full = one.event.source is not None and one.event.source.snapshot in FULL_SNAPSHOT
            if one.event.run_id or not is_of_log or not (is_full or is_streamed(one.event.source)):
                continue
            below = streamed[topic_partition] if is_streamed(one.event.source) else highest[topic_partition]
            if below is None and self.feed.kind != "postgresql":
                below = highest[topic_partition]
            is_new = one.offset > known[topic_partition]["read_to"]
            if is_new and below is not None and at < below and said[topic_partition, _said(one)] >= one.offset:
                return True
            highest[topic_partition] = at if highest[topic_partition] is None else max(at, highest[topic_partition])
            if is_streamed(one.event.source):
                streamed[topic_partition] = (
                    at if streamed[topic_partition] is None else max(at, streamed[topic_partition])
                )
        return False

    def _regressions_with_new_changes(
        self, found: Sequence[Regression], before: Sequence[Read], batch: Sequence[Read]
    ) -> Collection[Regression]:
        """The runs that have stated something behind `below` that no earlier record of their place has."""
        news = []
        for regression in found:
            of_place = [one for one in (*before, *batch) if one.topic_partition == regression.topic_partition]
            said = {_said(one): one.offset for one in sorted(of_place, key=lambda one: -one.offset)}
            firsts = [one for one in of_place if said[_said(one)] == one.offset < regression.from_offset]
            below = min(regression.below, self._highest(firsts, besides=regression.run_id) or regression.below)
            for one in of_place:
                at = coordinates(one.event.source, self.feed.kind)
                is_behind = is_streamed(one.event.source) and at is not None and at[:2] < below[:2]
                if one.event.run_id == regression.run_id and is_behind and said[_said(one)] >= regression.from_offset:
                    news.append(regression)
                    break
        return news

    def _highest(self, records: Sequence[Read], *, besides: str) -> Coordinates | None:
        """The highest coordinates of other runs, without those that a later record of their run contradicts."""
        lowest_later: dict[str, Coordinates] = {}
        highest: list[Coordinates] = []
        for one in sorted(records, key=lambda one: -one.offset):
            at, source, run_id = coordinates(one.event.source, self.feed.kind), one.event.source, one.event.run_id
            if at is None or source is None or run_id == besides:
                continue
            # The rows of one position of a binlog may be counted anew: that is no contradiction.
            is_sound = at[:2] <= lowest_later.get(run_id, at)[:2]
            if source.snapshot in FULL_SNAPSHOT or (is_streamed(source) and is_sound):
                highest.append(at)
            if is_streamed(source):
                lowest_later[run_id] = min(at, lowest_later.get(run_id, at))
        return max(highest, default=None)


def _said(one: Read) -> tuple[Any, ...]:
    source = one.event.source
    assert source is not None or one.event.kind != "change"
    at = None
    if source is not None:
        at = (source.sequence or [None, None])[1] if source.lsn is not None else (source.file, source.pos, source.row)
    return at, one.event.op or "", one.record["key"], None if one.event.row is None else tuple(one.event.row)


def facts_of(batch: Sequence[Read], feed: Feed) -> Iterable[Mapping[str, Any]]:
    """One row (silver.order.facts, as far as the history asks) a run, snapshot and topic-partition."""
    by: dict[tuple[Any, ...], list[tuple[Read, Coordinates | None]]] = defaultdict(list)
    for one in batch:
        source, at = one.event.source, coordinates(one.event.source, feed.kind)
        is_full = source is not None and source.snapshot in FULL_SNAPSHOT and at is not None
        by[(*one.topic_partition, one.event.run_id, at if is_full else None)].append((one, at))
    for (topic, topic_id, partition, run_id, snapshot_at), parts in by.items():
        streamed = [
            at for one, at in parts if at is not None and one.event.kind in IN_THE_LOG and is_streamed(one.event.source)
        ]
        read_ms = [one.event.read_ms for one, at in parts if at is not None and one.event.read_ms is not None]
        times = [one.record["timestamp"] for one, _at in parts]
        last = max((one for one, _at in parts), key=lambda one: one.offset)
        sources = [one.event.source for one, _at in parts if one.event.source is not None]
        yield {
            "feed": feed.name,
            "topic": topic,
            "topic_id": topic_id,
            "partition": partition,
            "run_id": run_id,
            "snapshot_at": snapshot_at,
            "first_offset": min(one.offset for one, _at in parts),
            "last_offset": last.offset,
            "lowest": min(streamed, default=None),
            "highest": max(streamed, default=None),
            "has_end": snapshot_at is not None and any(source.snapshot in END_OF_SNAPSHOT for source in sources),
            "first_ms": min(times),
            "read_from_ms": min(read_ms, default=None),
            "read_to_ms": max(read_ms, default=None),
            "source_names": [] if snapshot_at is None else sorted({source.name or "" for source in sources}),
            "highest_timestamp_ms": max(times),
            "last_key": zlib.crc32(_bytes(last.record["key"]) or b""),
            "last_is_delete": last.event.kind == "change" and last.event.is_delete,
            "with_unchanged_toast": sum(bool(one.event.unchanged_toast) for one, _at in parts),
            "judged": 0,
            "absent_columns": {},
        }


def expected(rows: Mapping[int, Mapping[str, Any] | None]) -> Rows:
    """The rows of a model's history, with the values in the types of the contract."""
    times = ("created_at", "updated_at")
    return {
        (key,): None
        if row is None
        else {
            **row,
            "total_amount": None if row["total_amount"] is None else Decimal(row["total_amount"]),
            **{name: None if row[name] is None else micros(row[name]) for name in times},
        }
        for key, row in rows.items()
    }


def _json(position: Sequence[Any]) -> str:
    return json.dumps({f"part_{number}": part for number, part in enumerate(position)})


def _place_of(row: Mapping[str, Any]) -> TopicPartition:
    return row["topic"], row["topic_id"], row["partition"]


def _key_text(key: str | None) -> str | None:
    """Without the schema that the message has."""
    if key is None or not key.startswith('{"schema":'):
        return key
    return json.dumps(json.loads(key)["payload"], separators=(",", ":"))


def _within(offset: int, span: tuple[int, int]) -> bool:
    return span[0] <= offset <= span[1]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
