"""What a job does while a broker or a schema registry is gone: it waits, tries again, and says so each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakehouse.errors import BrokerUnavailableError, RegistryGoneError
from lakehouse.process.steps import Note

# What may be back soon.
GONE = (BrokerUnavailableError, RegistryGoneError)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class RetryPolicy:
    """How often the job tries again, after how many seconds each time, and the `note` that says so."""

    job: str
    note: Note
    waits: Sequence[float] = (2, 4, 8, 16, 30)

    def announce(self, gone: BrokerUnavailableError | RegistryGoneError, attempt: int, *, of: str = "") -> None:
        """Say what is waited for. `attempt` counts from 0; `of`: the source, where the job has several."""
        what = "schema registry" if isinstance(gone, RegistryGoneError) else "broker"
        self.note(
            f"{f'{self.job} {of}'.strip()}: the {what} at {gone.servers} does not answer; "
            f"trying again in {self.waits[attempt]:g} s ({attempt + 1} of {len(self.waits)})"
        )


def retried(ask: Callable[[], _Answer], policy: RetryPolicy | None) -> _Answer:
    """What `ask` answers; asked again as the policy says while a broker or a registry is gone, then raises that."""
    for attempt, seconds in enumerate(policy.waits if policy is not None else ()):
        try:
            return ask()
        except GONE as error:
            if policy is not None:
                policy.announce(error, attempt)
        time.sleep(seconds)
    return ask()
