"""The connector: it reads the table and the log in runs, and tells what it read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from lakehouse.contracts.topics import SourceKind
from tests.support.events import change, mysql_image, postgres_image, run_headers, snapshot_marker
from tests.support.model.broker import Broker, Notes, key_text
from tests.support.model.log import Clock, Entry, Place, Source
from tests.support.model.table import Change, Row, is_large, is_negative, key_of

PLACEHOLDER = "__debezium_unavailable_value"
NOT_A_DECIMAL = "this is no number"

Image = Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    """One change of one key (None: of all), as it is told; the same again in a replay."""

    op: str
    key: int | None
    before: Image | None
    after: Image | None
    source: Source
    row: Row | None  # what a good event makes of the key's row
    links: Sequence[tuple[str, str]] = ()
    is_bad: bool = False
    tells: int | None = None
    needs: int | None = None


@dataclass
class Connector:
    """It tells every change once, and after a crash some again."""

    kind: SourceKind
    random: Random
    clock: Clock
    broker: Broker
    run: str = ""
    last_commit: int | None = None  # PostgreSQL: where the last transaction ended that was read; None: not known
    told: dict[int, Row | None] = field(default_factory=dict)  # what a good reader of the topic makes of it
    changes: list[Sequence[Event]] = field(default_factory=list)  # all streamed ones; a changed key is two events
    stored: int = 0  # the number of the first change that a replay may begin with
    written: int = 0  # and of the first that a crash may lose
    events: int = 0
    note_told_in: dict[int, int] = field(default_factory=dict)  # the number of the event, by key
    keeps_all: bool = False  # whether compaction must not remove what is told now
    names_run: bool = True  # whether headers say which run of which connector told a record

    def start(self, *, stored_offsets: bool) -> None:
        """A new run; without stored offsets the last commit is not known."""
        self.run = str(UUID(int=self.clock.tick() << 80 | 7 << 76 | 2 << 62 | self.random.getrandbits(62)))
        self.store_offsets()
        if not stored_offsets:
            self.last_commit = None

    def store_offsets(self) -> None:
        """All that was told is written, and no replay goes back behind it."""
        self.stored = self.written = len(self.changes)

    def stream(self, transactions: Sequence[Sequence[Entry]]) -> None:
        """What the log's transactions changed, in the order of their commits."""
        for transaction in transactions:
            for entry in transaction:
                source = entry.place.source(last_commit=self.last_commit)
                self.changes.append(self._events(entry.change, source))
                self._send(len(self.changes) - 1)
            self.last_commit = transaction[-1].place.commit

    def replay(self, *, torn: bool) -> None:
        """Connect dies; the next run tells the last changes again. `torn`: some of them were never written.

        At least one change was told since offsets were stored, two if it is torn.
        """
        first = self.random.randrange(self.stored, len(self.changes) - torn)
        if torn:
            self._lose_last_changes(max(first + 1, self.written))
        stored, written = first, self.written
        self.start(stored_offsets=True)
        self.stored, self.written = stored, written
        for number in range(first, len(self.changes)):
            self._send(number)

    def full_snapshot(self, rows: Collection[Row], place: Place, *, breaks_off: bool = False) -> None:
        """All rows of the table, as a run without stored offsets opens with. At least one."""
        told = self._snapshot(rows, place, breaks_off=breaks_off)
        if not breaks_off:
            for key in set(self.told) - told:
                self.told[key] = None
        self.store_offsets()

    def blocking_snapshot(self, rows: Collection[Row], place: Place) -> None:
        """Some rows, in the middle of a run."""
        self._snapshot(rows, place)
        self.store_offsets()

    def incremental_snapshot(self, rows: Collection[Row], place: Place) -> None:
        """Some rows, read between two changes of the signalling table."""
        for row in _by_key(rows):
            self._send_row(row, place.source(last_commit=self.last_commit, snapshot="incremental"))
        self.last_commit = place.commit
        self.store_offsets()

    def forge(self, row: Row, place: Place) -> None:
        """A record that no change of the table stands behind."""
        source = place.source(last_commit=self.last_commit)
        forged = Event("u", key_of(row), None, self._image(row), source, row, is_bad=True)
        self._send_event(forged, is_kept=True)

    def _lose_last_changes(self, first: int) -> None:
        """Of some partitions; of the one that was written last in any case."""
        last = len(self.changes) - 1
        lost = [self.random.randint(first, last + 1) for _ in range(self.broker.partitions)]
        lost[self.broker.messages[-1].partition] = self.random.randint(first, last)
        self.broker.lose(self.run, first=lost)

    def _snapshot(self, rows: Collection[Row], place: Place, *, breaks_off: bool = False) -> set[int]:
        """The keys that were told: all, or some first ones."""
        ordered = _by_key(rows)
        # A lone row of the first of several tables carries no sign that it is the last.
        last_table = self.random.random() < 0.5 or len(ordered) == 1
        first_table = self.random.random() < 0.5
        until = self.random.randrange(1, len(ordered)) if breaks_off else len(ordered)
        for number, row in enumerate(ordered[:until]):
            marker = snapshot_marker(
                first_table=first_table,
                last_table=last_table,
                first_row=number == 0,
                last_row=number == len(ordered) - 1,
            )
            self._send_row(row, place.source(last_commit=self.last_commit, snapshot=marker))
        return {key_of(row) for row in ordered[:until]}

    def _send_row(self, row: Row, source: Source) -> None:
        """A row that a snapshot read: always in full."""
        is_bad = is_negative(row)
        number = self._number()
        if not is_bad:
            self.note_told_in[key_of(row)] = number
        event = Event("r", key_of(row), None, self._image(row), source, row, is_bad=is_bad, tells=number)
        self._send_event(event, is_kept=True)

    def _events(self, told: Change, source: Source) -> Sequence[Event]:
        if told.before is None and told.after is None:
            return [Event("t", None, None, None, source, None)]
        if told.after is None:
            return [self._delete(told, source)]
        if told.before is None or not told.changes_key:
            return [self._upsert(told, source)]
        old, new = key_text(key_of(told.before)), key_text(key_of(told.after))
        return [
            self._delete(told, source, links=[("__debezium.newkey", new)]),
            self._upsert(told, source, links=[("__debezium.oldkey", old)]),
        ]

    def _delete(self, told: Change, source: Source, *, links: Sequence[tuple[str, str]] = ()) -> Event:
        key = key_of(told.before)
        return Event("d", key, self._before(told.before, of_delete=True), None, source, None, links)

    def _upsert(self, told: Change, source: Source, *, links: Sequence[tuple[str, str]] = ()) -> Event:
        assert told.after is not None
        row, key = told.after, key_of(told.after)
        image = dict(self._image(row))
        is_bad = told.garbled or is_negative(row)
        if told.garbled:
            image["total_amount"] = NOT_A_DECIMAL
        unchanged_toast = self.kind == "postgresql" and is_large(row["note"]) and not told.tells_note
        if unchanged_toast:
            image["note"] = PLACEHOLDER
        number = self._number()
        needs = self.note_told_in.get(key_of(told.before)) if unchanged_toast else None
        if needs is not None:
            self.note_told_in[key] = needs
        elif not is_bad:
            self.note_told_in[key] = number
        is_insert = told.before is None or told.changes_key
        before = None if is_insert else self._before(told.before, of_delete=False)
        op = "c" if is_insert else "u"
        tells = None if unchanged_toast else number
        return Event(op, key, before, image, source, row, links, is_bad=is_bad, tells=tells, needs=needs)

    def _before(self, row: Row | None, *, of_delete: bool) -> Image | None:
        """PostgreSQL's default replica identity: nothing of an update, of a delete the key and columns' defaults."""
        assert row is not None
        if self.kind != "postgresql":
            return self._image(row)
        if not of_delete:
            return None
        defaults = {"customer_id": 0, "status": "pending", "created_at": 0}
        return {name: value if name == "order_id" else defaults.get(name) for name, value in row.items()}

    def _image(self, row: Row) -> Image:
        image: Callable[[Row], Image] = postgres_image if self.kind == "postgresql" else mysql_image
        return image(row)

    def _send(self, number: int) -> None:
        for event in self.changes[number]:
            self._send_event(event, change_number=number)

    def _send_event(self, event: Event, *, change_number: int | None = None, is_kept: bool = False) -> None:
        """The record, and the tombstone behind a delete."""
        value = change(event.op, event.source, event.after, before=event.before, ts_ms=self.clock.tick())
        values = [value, None] if event.op == "d" else [value]
        is_kept = is_kept or self.keeps_all
        notes = Notes(self.run, change_number, event.tells, event.needs, is_bad=event.is_bad, is_kept=is_kept)
        for each in values:
            self.broker.append(
                event.key,
                each,
                headers=run_headers(self.run, source=event.source, links=event.links)
                if self.names_run
                else event.links,
                timestamp=self.clock.ms,
                notes=notes,
            )
        if event.key is None:
            self.told = dict.fromkeys(self.told)
        elif not event.is_bad:
            self.told[event.key] = event.row
        else:
            self.told.setdefault(event.key, None)

    def _number(self) -> int:
        self.events += 1
        return self.events


def _by_key(rows: Collection[Row]) -> Sequence[Row]:
    return sorted(rows, key=key_of)
