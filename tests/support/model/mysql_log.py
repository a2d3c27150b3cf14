"""The binary log of MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.support.events import mysql_source
from tests.support.model.log import Clock, Entry, Source, Transaction
from tests.support.model.table import Change, key_of

FAR_AHEAD = 9_000_000_000_000_000_000
LAST_OF_SIX_DIGITS = 999_999
SERVER = "a67f3683-e587-11f1-9a94-02fc00000001"


@dataclass(frozen=True)
class BinlogPlace:
    """A place in the binary log."""

    kind: Literal["mysql", "mariadb"]
    file: int
    pos: int
    row: int
    transaction: int | None  # None: not of a transaction, but of rows that a snapshot reads
    ts_ms: int

    @property
    def commit(self) -> int:
        return 0

    def source(self, *, last_commit: int | None, snapshot: str = "false") -> Source:
        # MariaDB writes its times in whole seconds.
        ts_ms = self.ts_ms if self.kind == "mysql" else self.ts_ms // 1000 * 1000
        return mysql_source(
            self.pos,
            file=f"{self.kind}-bin.{self.file:06}",
            row=self.row,
            snapshot=snapshot,
            ts_ms=ts_ms,
            connector=self.kind,
            name=f"{self.kind}_prod",
            server_id=0 if self.transaction is None else 1,
            gtid=self._gtid(),
            thread=None,
            query=None,
        )

    def _gtid(self) -> str | None:
        if self.transaction is None:
            return None
        return f"{SERVER}:{self.transaction}" if self.kind == "mysql" else f"0-2-{self.transaction}"


@dataclass
class BinlogLog:
    """A transaction is written when it commits. The rows of one statement share a position, and `row` counts them."""

    kind: Literal["mysql", "mariadb"]
    random: Random
    clock: Clock
    rotates: bool
    several_rows: bool  # whether a statement can write several rows
    compressed: bool  # whether all statements of a transaction share its position
    file: int = 0
    pos: int = 157
    transaction: int = 20

    def __post_init__(self) -> None:
        self.file = LAST_OF_SIX_DIGITS - self.random.randrange(2) if self.rotates else self.random.randint(2, 5)

    def write(self, transactions: Sequence[Transaction]) -> Sequence[Sequence[Entry]]:
        return [self._written(changes) for changes in transactions]

    def rotate(self) -> None:
        """The next file."""
        self.file, self.pos = self.file + 1, 4

    def here(self) -> BinlogPlace:
        return BinlogPlace(self.kind, self.file, self.pos, 0, None, self.clock.tick())

    def signal(self) -> BinlogPlace:
        self.transaction += 1
        place = self._place(row=0)
        self._advance()
        return place

    def pass_unseen(self) -> None:
        self.signal()

    def far_ahead(self) -> BinlogPlace:
        return BinlogPlace(self.kind, self.file, FAR_AHEAD, 0, self.transaction, self.clock.ms)

    def start_again(self, *, overlap: bool) -> None:
        if not overlap:
            self.file, self.pos = 1, 157
        elif self.pos > 2000:
            self.pos -= self.random.randint(1700, 1900)
        else:
            self.file, self.pos = self.file - 1, 4000
        self.transaction = 0

    def _written(self, changes: Transaction) -> Sequence[Entry]:
        self.transaction += 1
        self.clock.tick()
        entries: list[Entry] = []
        for statement in self._statements(changes):
            entries += [Entry(change, self._place(row=row)) for row, change in enumerate(statement)]
            if not self.compressed:
                self._advance()
        self._advance()
        if self.rotates and self.random.random() < 0.2:
            self.rotate()
        return entries

    def _statements(self, changes: Transaction) -> Iterator[Sequence[Change]]:
        """Neighbours that one statement can do: of one sort, and no row that it has written already."""
        statement: list[Change] = []
        for change in changes:
            written = [key_of(earlier.after) for earlier in statement if earlier.after is not None]
            fits = bool(statement) and self.several_rows and change.verb == statement[0].verb != "truncate"
            again = change.before is not None and key_of(change.before) in written
            if statement and (not fits or again):
                yield statement
                statement = []
            statement.append(change)
        yield statement

    def _place(self, *, row: int) -> BinlogPlace:
        return BinlogPlace(self.kind, self.file, self.pos, row, self.transaction, self.clock.ms)

    def _advance(self) -> None:
        self.pos += self.random.randint(40, 800)
