"""`lakehouse unlock`: free the warehouse of a run that is gone."""

from __future__ import annotations

import typer

from cli.opening import opened
from cli.options import Chosen, DryRun, with_job_options
from cli.output import Yes, answer, ask
from lakehouse.errors import WarehouseBusyError
from lakehouse.steps import wide_console


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(unlock)


@with_job_options
def unlock(chosen: Chosen, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Free the warehouse when the run that has locked it is gone.

    Says who has locked it, and asks. A lock expires five minutes after its last renewal, and the next run on the same
    machine takes it from a process that has ended: this is for a machine that is gone, when those minutes are too many.
    A run that is still alive stops before its next step; what it has committed stays.

    Example: lakehouse unlock --warehouse ./warehouse
    """
    from lakehouse.spark.lease import current_lock
    from lakehouse.spark.lease import unlock as set_free

    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    lock = current_lock(warehouse)
    console = wide_console(stderr=chosen.as_json)
    if lock is None:
        said = "The warehouse is not locked. Nothing was changed."
    else:
        seen = f"it is known to be gone: {lock.why_free}" if lock.why_free else "it may still be running"
        console.print(f"Locked by {lock.holder} until {lock.expires_at:%Y-%m-%d %H:%M:%S} UTC; {seen}.", soft_wrap=True)
        if dry_run:
            said = "Nothing was changed (dry run)."
        else:
            if not yes:
                ask()
            if not set_free(warehouse, lock):
                raise WarehouseBusyError(
                    "Another run has locked the warehouse meanwhile. Nothing was changed.",
                    remedy="Look again: lakehouse unlock --dry-run",
                )
            said = "Unlocked. Next: lakehouse run"
    if chosen.as_json:
        holder = {"run": lock.holder.run_id, "command": lock.holder.command, "host": lock.holder.host} if lock else None
        answer(chosen.command, {"locked_by": holder, "unlocked": bool(lock) and not dry_run}, dry_run=dry_run)
        return
    console.print(said, soft_wrap=True)
