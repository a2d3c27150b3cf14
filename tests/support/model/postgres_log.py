"""The write-ahead log of PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.support.events import postgres_source
from tests.support.model.log import Clock, Entry, Source, Transaction

FAR_AHEAD = 9_000_000_000_000_000_000


@dataclass(frozen=True)
class Lsn:
    """A place in the write-ahead log."""

    lsn: int
    commit: int
    transaction: int
    ts_ms: int

    def source(self, *, last_commit: int | None, snapshot: str = "false") -> Source:
        return postgres_source(
            self.lsn, last_commit=last_commit, snapshot=snapshot, ts_ms=self.ts_ms, txId=self.transaction, xmin=None
        )


@dataclass
class OpenTransaction:
    """A transaction that has written and not committed yet."""

    changes: Transaction
    number: int
    lsns: list[int] = field(default_factory=list)

    @property
    def is_written(self) -> bool:
        return len(self.lsns) == len(self.changes)


@dataclass
class PostgresLog:
    """LSNs go by the time of writing; a transaction is read when it commits."""

    random: Random
    clock: Clock
    interleaved: bool  # whether transactions write by turns
    several_rows: bool  # whether a statement (a COPY) can write several rows at one LSN
    lsn: int = 0
    transaction: int = 700

    def __post_init__(self) -> None:
        self.lsn = 1_000_000 + 8 * self.random.randrange(1000)

    def write(self, transactions: Sequence[Transaction]) -> Sequence[Sequence[Entry]]:
        written = [self.begin(changes) for changes in transactions]
        if self.interleaved:
            self.write_next(written[-1])  # so that the last to commit is not the last to write
        committed: list[Sequence[Entry]] = []
        while len(committed) < len(written):
            next_to_commit = written[len(committed)]
            writers = [next_to_commit]
            if self.interleaved:
                writers += [later for later in written[len(committed) + 1 :] if not later.is_written]
            writer = self.random.choice(writers)
            if writer.is_written:
                committed.append(self.commit(writer))
            else:
                self.write_next(writer)
        return committed

    def begin(self, changes: Transaction) -> OpenTransaction:
        self.transaction += 1
        return OpenTransaction(changes, self.transaction)

    def write_next(self, writer: OpenTransaction) -> None:
        """The next change of that transaction; a COPY writes its rows in one go."""
        change = writer.changes[len(writer.lsns)]
        lsn = self._advance()
        writer.lsns.append(lsn)
        if not self.several_rows or change.verb != "insert":
            return
        for following in writer.changes[len(writer.lsns) :]:
            if following.verb != "insert":
                return
            writer.lsns.append(lsn)

    def commit(self, writer: OpenTransaction) -> Sequence[Entry]:
        """The entries of that transaction, which must have written all it has to write."""
        self._advance()
        ts_ms = self.clock.tick()
        position_contexts = [Lsn(lsn, self.lsn, writer.number, ts_ms) for lsn in writer.lsns]
        return [Entry(change, place) for change, place in zip(writer.changes, position_contexts, strict=True)]

    def here(self) -> Lsn:
        return Lsn(self.lsn, self.lsn, self.transaction, self.clock.tick())

    def signal(self) -> Lsn:
        self.transaction += 1
        lsn = self._advance()
        self._advance()
        return Lsn(lsn, self.lsn, self.transaction, self.clock.tick())

    def pass_unseen(self) -> None:
        self.signal()

    def far_ahead(self) -> Lsn:
        return Lsn(FAR_AHEAD, FAR_AHEAD, self.transaction, self.clock.ms)

    def start_again(self, *, overlap: bool) -> None:
        self.lsn = self.lsn - 8 * self.random.randint(50, 80) if overlap else 8 * self.random.randint(1000, 4000)

    def _advance(self) -> int:
        """The LSN of the next record; the one behind it begins where it ends."""
        lsn = self.lsn
        self.lsn += 8 * self.random.randint(1, 20)
        return lsn
