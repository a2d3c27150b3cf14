"""`lakehouse unlock`: who has locked the warehouse; and a lease freed, of a run that is gone."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from cli.opening import opened
from cli.options import CommandContext, DryRun, with_job_options
from cli.output import Yes, answer, ask
from lakehouse.errors import WarehouseBusyError
from lakehouse.process.lock import Holder, LockState, busy, clock, current_folder_lock, local_folder
from lakehouse.process.steps import wide_console


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(unlock)


@with_job_options
def unlock(chosen: CommandContext, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Say who has locked the warehouse; free a shared one whose run is gone.

    The lock of a folder on a disk of this machine is the operating system's: it is free as soon as its process has
    ended, and nothing else frees it. A process that was stopped keeps it: let it go on (kill -CONT), or end it.

    A warehouse elsewhere (a catalog, a store, a disk that machines share) has a lease, which expires five minutes after
    its last renewal. This frees it before that, when asked, for a process that was killed or a machine that is gone. A
    run that is still alive stops before its next step; what it has committed stays.

    Example: lakehouse unlock --warehouse ./warehouse
    """
    folder = local_folder(chosen.settings.warehouse)
    lock = None if folder is None else current_folder_lock(folder)
    if lock is not None:
        holder = lock.holder if lock.is_held else None
        line, is_freed = _folder_state(lock, dry_run=dry_run), False
    else:
        holder, line, is_freed = _free_lease(chosen, yes=yes, dry_run=dry_run)
    if chosen.as_json:
        named = {"run": holder.run_id, "command": holder.command, "host": holder.host} if holder else None
        answer(chosen.command, {"locked_by": named, "unlocked": is_freed}, dry_run=dry_run)
        return
    wide_console().print(line, soft_wrap=True)


_FREE = "The warehouse is not locked. Nothing was changed."
_DRY = "Nothing was changed (dry run)."


def _folder_state(lock: LockState, *, dry_run: bool) -> str:
    """What is said of the lock of a folder, which its process alone frees. Raises WarehouseBusyError."""
    if not lock.is_held:
        return _FREE
    error = busy(lock.holder)
    if not dry_run:
        raise error
    return f"{error} {_DRY}"


def _free_lease(chosen: CommandContext, *, yes: bool, dry_run: bool) -> tuple[Holder | None, str, bool]:
    """Who has the lease, what is said of it, and whether it was freed."""
    from lakehouse.delta.lease import LEASE, free_lease, read_lease

    warehouse = opened(chosen, chosen.steps())
    lease = read_lease(warehouse) if warehouse.exists(LEASE.name) else None
    if lease is None or lease.token is None:
        return None, _FREE, False
    is_over = lease.expires_at <= datetime.now(UTC)
    seen = "it has expired, and the next run takes it" if is_over else "its run may still be at work"
    console = wide_console(stderr=chosen.as_json)
    console.print(f"Locked by {lease.holder} until {clock(lease.expires_at)}; {seen}.", soft_wrap=True)
    if dry_run:
        return lease.holder, _DRY, False
    if not yes:
        ask()
    if not free_lease(warehouse, lease):
        raise WarehouseBusyError(
            "Another run has locked the warehouse meanwhile. Nothing was changed.",
            hint="Look again: lakehouse unlock --dry-run",
        )
    return lease.holder, "Unlocked. Next: lakehouse run", True
