"""A run of all jobs as the command makes it: it looks first whether there is anything to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cli.jobs import JOBS, RunContext, RunOutcome
from cli.unchanged import look_for_news, skip_if_unchanged
from monitoring.readings.tables import DeltaFiles


def run_or_not(
    work: RunContext, names: Sequence[str] = tuple(JOBS), *, before_each: Callable[[], None] | None = None
) -> RunOutcome:
    """What came of it; of jobs of these names."""
    tables = DeltaFiles(work.settings.address)
    look = look_for_news(work.settings, work.contracts, names, known=work.known, tables=tables, steps=work.steps)
    return skip_if_unchanged(names, work, look, before_each=before_each)
