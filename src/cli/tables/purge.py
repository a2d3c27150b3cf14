"""`lakehouse purge`: remove deleted rows that no event can change any more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from cli.opening import acquire_lock, opened, with_discovered_tables
from cli.options import CommandContext, DryRun, require_table, with_job_options
from cli.output import answer
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table

if TYPE_CHECKING:
    from silver.purge import Plan

FeedName = Annotated[
    str | None, typer.Option("--feed", help="Only this silver table. Default: all.", show_default=False)
]
WithoutSkipped = Annotated[
    bool, typer.Option("--without-skipped", help="Offsets that were skipped are given up: they will never be read.")
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(purge)


@with_job_options
def purge(
    chosen: CommandContext, feed: FeedName = None, without_skipped: WithoutSkipped = False, dry_run: DryRun = False
) -> None:
    """Remove rows of the silver tables that are deleted in the source, where no event can change them any more.

    Such rows stay so that late events find them. One may go when every partition was read beyond its position, and no
    record in quarantine has a lower one. Of a suspended table none goes. Afterwards an event below that position is
    superseded. Where offsets were skipped nothing goes, unless you say with --without-skipped that they are given up
    for good.

    Example: lakehouse purge --dry-run --warehouse ./warehouse
    """
    from cli.tables.accounts import skipped_topics
    from silver.purge import carry_out, plan

    if feed is not None:
        require_table(chosen, feed)
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    # The warehouse is locked before anything is looked at: a run beside this one could bring what concerns a row.
    with nullcontext() if dry_run else acquire_lock(chosen, warehouse, steps) as lock:
        chosen = with_discovered_tables(chosen, warehouse)
        feeds = chosen.contracts.feeds
        with steps.step("purge", "looking for what can go") as note:
            asked = [declared for name, declared in feeds.items() if feed in {None, name}]
            skipped = set() if without_skipped else skipped_topics(warehouse, {declared.source for declared in asked})
            plans = [plan(warehouse, chosen.contracts, declared, skipped=skipped) for declared in asked]
            note(f"{sum(one.rows for one in plans):,} rows can go")
        if lock is not None:
            lock.check()
            with steps.step("purge", "writing the cutoff, deleting rows") as note:
                for one in plans:
                    carry_out(warehouse, feeds[one.feed], one)
                note(f"{sum(one.rows for one in plans):,} rows removed")
    if chosen.as_json:
        answer(chosen.command, {"feeds": [vars(one) for one in plans]}, dry_run=dry_run)
        return
    _show(plans, dry_run=dry_run)


def _show(plans: Sequence[Plan], *, dry_run: bool) -> None:
    number = "rows to remove" if dry_run else "rows removed"
    table = new_table("", "silver table", number, "why not", numbers=(number,))
    for one in plans:
        table.add_row(one.feed, f"{one.rows:,}", one.why_not or "")
    wide_console().print(table)
