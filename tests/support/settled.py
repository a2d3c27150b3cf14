"""A run of all jobs as the command makes it: it looks first whether there is anything to do."""

from __future__ import annotations

from collections.abc import Callable

from cli.jobs import RunOutcome, Work
from cli.settled import look_for_news, run_unless_settled
from monitoring.readings.tables import DeltaFiles


def run_or_not(work: Work, *, before_each: Callable[[], None] | None = None) -> RunOutcome:
    """What came of it."""
    tables = DeltaFiles(work.settings.address)
    look = look_for_news(work.settings, work.contracts, known=work.known, tables=tables, steps=work.steps)
    return run_unless_settled(work, look, before_each=before_each)
