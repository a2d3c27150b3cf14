"""The table: its rows by key, and what statements do to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from tests.support.events import order

Row = dict[str, Any]
Bad = Literal["negative", "garbled"]

LARGE = 200  # characters from which on PostgreSQL stores a note apart; really about 2,000
STATUSES = ("pending", "paid", "shipped", "completed", "cancelled")
NOTES = (None, "", "null", "注文 🚀", 'a "b" \\ c\n')


@dataclass(frozen=True)
class Change:
    """What one statement did to one row; to the whole table, where there is neither `before` nor `after`."""

    before: Row | None
    after: Row | None
    tells_note: bool = True  # whether the statement wrote the note
    garbled: bool = False  # whether the record, not the row, has an amount that is no number

    @property
    def verb(self) -> str:
        if self.before is None:
            return "truncate" if self.after is None else "insert"
        return "delete" if self.after is None else "update"

    @property
    def changes_key(self) -> bool:
        return self.verb == "update" and key_of(self.before) != key_of(self.after)


@dataclass
class Table:
    """Rows by key. Every method that changes them says how it did."""

    random: Random
    keys: Sequence[int]
    features: frozenset[str]
    rows: dict[int, Row] = field(default_factory=dict)
    unsent_columns: set[int] = field(default_factory=set)  # keys whose note stands in records for the quarantine only

    def live(self, *, besides: Collection[int] = ()) -> list[int]:
        """The keys that have a row."""
        return [key for key in self.keys if key in self.rows and key not in besides]

    def free(self, *, besides: Collection[int] = ()) -> list[int]:
        """The keys that have none."""
        return [key for key in self.keys if key not in self.rows and key not in besides]

    def insert(self, key: int, *, bad: Bad | None = None, large: bool | None = None) -> Change:
        self.rows[key] = row = self.any_row(key, bad=bad, large=large)
        self._note_was_told(key, well=bad is None)
        return Change(None, row, garbled=bad == "garbled")

    def update(self, key: int, *, bad: Bad | None = None, keep_note: bool | None = None) -> Change:
        """New columns; the note stays as it is where `keep_note` says so, or at random.

        A bad record never brings a note of its own, and the good one behind it tells a note that only a bad one told:
        or else the note could not be known.
        """
        before = self.rows[key]
        keeps = self.random.random() < 0.5 if keep_note is None else keep_note
        keeps = bad is not None or (keeps and key not in self.unsent_columns)
        after = self.any_row(key, bad=bad)
        if keeps:
            after["note"] = before["note"]
        self.rows[key] = after
        if bad is None:
            self._note_was_told(key, well=True)
        return Change(before, after, tells_note=not keeps, garbled=bad == "garbled")

    def change_key(self, key: int, new: int, *, keep_note: bool | None = None) -> Change:
        """The row under another key; a large note that nobody touches is left out where the history has that."""
        before = self.rows.pop(key)
        keeps = self.random.random() < 0.7 if keep_note is None else keep_note
        leaves_out = is_large(before["note"]) and "toast" in self.features
        keeps = keeps and key not in self.unsent_columns and (not leaves_out or "key_change_toast" in self.features)
        after = {**before, "order_id": new} if keeps and not is_negative(before) else self.any_row(new)
        if keeps:
            after["note"] = before["note"]
        self.rows[new] = after
        self._note_was_told(key, well=True)
        self._note_was_told(new, well=True)
        return Change(before, after, tells_note=not keeps)

    def delete(self, key: int) -> Change:
        self._note_was_told(key, well=True)
        return Change(self.rows.pop(key), None)

    def truncate(self) -> Change:
        self.rows.clear()
        self.unsent_columns.clear()
        return Change(None, None)

    def any_change(self, *, besides: Collection[int] = ()) -> Change:
        """Any one that is possible, of a row whose key is not among `besides`."""
        live, free = self.live(besides=besides), self.free(besides=besides)
        possible = ["insert"] * bool(free) + ["update", "update", "delete"] * bool(live)
        if "key_change" in self.features:
            possible += ["change_key"] * bool(live and free)
        chosen = self.random.choice(possible)
        if chosen == "insert":
            return self.insert(self.random.choice(free), bad=self._bad())
        if chosen == "update":
            return self.update(self.random.choice(live), bad=self._bad())
        if chosen == "delete":
            return self.delete(self.random.choice(live))
        return self.change_key(self.random.choice(live), self.random.choice(free))

    def any_changes(self, count: int, *, besides: Collection[int] = ()) -> list[Change]:
        return [self.any_change(besides=besides) for _ in range(count)]

    def change_unseen(self, count: int) -> None:
        """Changes that nobody reads from the log, and at least one row in the end."""
        for _ in range(count):
            live, free = self.live(), self.free()
            chosen = self.random.choice(live + free)
            if chosen in free:
                self.insert(chosen)
            elif self.random.random() < 0.5:
                self.update(chosen)
            else:
                self.delete(chosen)
        if not self.rows:
            self.insert(self.random.choice(self.keys))

    def was_read(self, rows: Collection[Row]) -> None:
        """A snapshot told these rows in full."""
        for row in rows:
            self._note_was_told(key_of(row), well=not is_negative(row))

    def any_row(self, key: int, *, bad: Bad | None = None, large: bool | None = None) -> Row:
        """A random row, which the table does not hold yet."""
        random = self.random
        amount = random.choice((None, "0.00", "99999999.99", f"{random.randrange(1000)}.50"))
        return order(
            key,
            customer_id=random.randrange(1000),
            product_id=random.choice((None, 70)),
            status=random.choice(STATUSES),
            total_amount=f"-{random.randrange(1, 1000)}.25" if bad == "negative" else amount,
            updated_at=random.choice((None, f"2026-01-02T03:04:{random.randrange(60):02}")),
            note=self._note(large),
        )

    def _note_was_told(self, key: int, *, well: bool) -> None:
        if well:
            self.unsent_columns.discard(key)
        else:
            self.unsent_columns.add(key)

    def _bad(self) -> Bad | None:
        if "quarantine" not in self.features or self.random.random() < 0.85:
            return None
        return self.random.choice(("negative", "garbled"))

    def _note(self, large: bool | None) -> str | None:
        if large is None:
            large = "toast" in self.features and self.random.random() < 0.5
        if large:
            return "".join(self.random.choices("abcdefgh", k=LARGE + self.random.randrange(50)))
        return self.random.choice(NOTES)


def key_of(row: Row | None) -> int:
    """The key of a row that is there."""
    assert row is not None
    key = row["order_id"]
    assert isinstance(key, int)
    return key


def is_large(note: str | None) -> bool:
    """Whether the note is stored apart."""
    return note is not None and len(note) >= LARGE


def is_negative(row: Row) -> bool:
    """Whether the amount breaks the rule that it is zero or more."""
    return str(row["total_amount"] or "").startswith("-")
