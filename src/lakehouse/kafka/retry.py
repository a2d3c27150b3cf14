"""What a job does while a broker or a schema registry is gone: it waits, tries again, and says so each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.steps import Note


@dataclass(frozen=True)
class RetryPolicy:
    """How often the job tries again, after how many seconds each time, and the `note` that says so."""

    job: str
    note: Note
    waits: Sequence[float] = (2, 4, 8, 16, 30)

    def announce(self, servers: str, attempt: int, *, of: str = "", what: str = "broker") -> None:
        """Say what is waited for. `attempt` counts from 0; `of`: the source, where the job has several."""
        self.note(
            f"{f'{self.job} {of}'.strip()}: the {what} at {servers} does not answer; "
            f"trying again in {self.waits[attempt]:g} s ({attempt + 1} of {len(self.waits)})"
        )
