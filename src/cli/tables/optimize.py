"""`lakehouse optimize`: small files joined, and files removed that no version within the retention needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.opening import acquire_lock, opened, with_discovered_tables
from cli.options import CommandContext, DryRun, with_job_options
from cli.output import answer
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table

if TYPE_CHECKING:
    from lakehouse.contracts.models import Contracts
    from lakehouse.delta.optimize import Maintained

RetentionHours = Annotated[
    int,
    typer.Option(
        min=168,
        help="For how many hours versions that were replaced stay readable. Below a week Delta refuses: a reader, or a"
        " gold that was blocked, could still need them.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(optimize)


@with_job_options
def optimize(chosen: CommandContext, retention_hours: RetentionHours = 168, dry_run: DryRun = False) -> None:
    """Join small files of every table, and remove files that no version of the last week needs. Changes no row.

    With --dry-run it says how many files there are and how many would be removed.

    Example: lakehouse optimize --dry-run --warehouse ./warehouse
    """
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_discovered_tables(chosen, warehouse)
    from lakehouse.delta.optimize import carried_out, forget_leases, maintainable, planned
    from lakehouse.spark.materialized import forget_materialized

    names = maintainable(warehouse, tables_of(chosen.contracts))
    if dry_run:
        with steps.step("optimize", "counting files") as note:
            done = [planned(warehouse, name, retention_hours=retention_hours) for name in names]
            note(f"{len(done)} tables; nothing was changed")
    else:
        with acquire_lock(chosen, warehouse, steps) as lock, steps.step("optimize", f"{len(names)} tables") as note:
            done = []
            for name in names:
                lock.check()
                note.now(name)
                done.append(carried_out(warehouse, name, retention_hours=retention_hours))
            forget_materialized(warehouse.spark, warehouse.checkpoints)
            forget_leases(warehouse)
            files = sum(one.files_before for one in done), sum(one.files_after for one in done)
            note(f"{files[0]:,} files before, {files[1]:,} after")
    if chosen.as_json:
        answer(chosen.command, {"tables": [vars(one) for one in done]}, dry_run=dry_run)
        return
    _show(done, dry_run=dry_run)


def tables_of(contracts: Contracts) -> list[str]:
    """Every table that the jobs write, by layer."""
    from bronze.events import events_table
    from lakehouse.batches import BATCHES
    from lakehouse.erasure.table import ERASED
    from lakehouse.quality.results import RESULTS
    from silver.accounts.audit import OUTBOX_EVENTS
    from silver.rejects.quarantine import QUARANTINE

    return [
        *(events_table(source).name for source in contracts.topics.sources),
        *(table for feed in contracts.feeds.values() for table in feed.silver_tables),
        *contracts.gold.unified_tables,
        *(f"gold.{join}" for join in contracts.gold.joins),
        *(spec.name for spec in (QUARANTINE, RESULTS, BATCHES, OUTBOX_EVENTS, ERASED)),
    ]


def _show(done: list[Maintained], *, dry_run: bool) -> None:
    columns = ("files", "files that no version needs") if dry_run else ("files before", "after", "bytes written")
    table = new_table("", "table", *columns, numbers=columns)
    for one in done:
        numbers = (
            (one.files_before, one.unneeded_files)
            if dry_run
            else (one.files_before, one.files_after, one.bytes_rewritten)
        )
        table.add_row(one.table, *[f"{number:,}" for number in numbers])
    wide_console().print(table)
