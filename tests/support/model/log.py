"""The database's log: it gives every change a place, and a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from tests.support.model.table import Change

Source = Mapping[str, Any]
Transaction = Sequence[Change]


@dataclass
class Clock:
    """The time, in milliseconds; it only goes forward."""

    random: Random
    ms: int = 1_767_225_600_000

    def tick(self) -> int:
        self.ms += self.random.randint(1, 900)
        return self.ms


class Place(Protocol):
    """Where something stands in the log."""

    @property
    def commit(self) -> int:
        """Where its transaction ends; PostgreSQL only."""

    def source(self, *, last_commit: int | None, snapshot: str = "false") -> Source:
        """The source block. `last_commit`: the end of the last transaction that the connector has read."""


@dataclass(frozen=True)
class Entry:
    """A change, where it stands."""

    change: Change
    place: Place


class Log(Protocol):
    """What a database writes down."""

    def write(self, transactions: Sequence[Transaction]) -> Sequence[Sequence[Entry]]:
        """Transactions that run at about the same time, in the order of their commits."""

    def here(self) -> Place:
        """Where the log ends now: the place of rows that are read now."""

    def signal(self) -> Place:
        """The place of a row of the signalling table, which the connector writes itself in an incremental snapshot."""

    def pass_unseen(self) -> None:
        """Something is written that no record tells of."""

    def far_ahead(self) -> Place:
        """A place that the log never reaches."""

    def start_again(self, *, overlap: bool) -> None:
        """RESET MASTER, a restored backup, another server: the coordinates fall, with `overlap` only a little."""
