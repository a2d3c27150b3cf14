"""`lakehouse quarantine`: the records that may not pass; looking at them, and deciding about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cli.opening import acquire_lock, opened, with_discovered_tables
from cli.options import CommandContext, DryRun, with_job_options
from cli.output import Yes, answer, ask
from cli.quarantine.entries import (
    DiscardFilter,
    Filter,
    ListFilter,
    condition_of,
    content_of,
    entries_of,
    record_of,
    shown_entry,
    with_times_as_text,
)
from lakehouse.errors import SettingsError
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import new_table

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

app = typer.Typer(
    name="quarantine", help="Records that may not pass: looking at them, deciding about them.", no_args_is_help=True
)

MOST = 50
All = Annotated[bool, typer.Option("--all", help="Every entry that is open.")]
Why = Annotated[str, typer.Option("--why", help="Why; it is written down.")]


@dataclass(frozen=True)
class Decision:
    """What a person wants entries to be: `state` (retried, released, discarded), and why."""

    state: str
    narrowed: Filter
    why: str


@app.command(name="list")
@with_job_options
def list_entries(
    chosen: CommandContext,
    *,
    narrowed: ListFilter,
    limit: Annotated[int, typer.Option(min=1, help="So many entries, those seen last.")] = MOST,
) -> None:
    """List what is pending, and why. Changes nothing.

    Example: lakehouse quarantine list --feed postgres_orders --warehouse ./warehouse
    """
    warehouse = opened(chosen, chosen.steps())
    chosen = with_discovered_tables(chosen, warehouse)
    entries = entries_of(warehouse, chosen, narrowed)
    from pyspark.sql import functions as F

    number = entries.count()
    last = entries.orderBy(F.col("last_seen").desc(), "topic", "partition", "offset").limit(limit)
    rows = with_times_as_text(last).collect()
    shown_entries = [shown_entry(row, chosen.contracts.feeds) for row in rows]
    if chosen.as_json:
        answer(chosen.command, {"number": number, "entries": shown_entries})
        return
    table = new_table(f"In quarantine: {number:,}", "record", "table", "key", "state", "reasons", "last seen (UTC)")
    for entry in shown_entries:
        reasons = "\n".join(entry["reasons"])
        table.add_row(entry["record"], entry["feed"], entry["key"] or "", entry["state"], reasons, entry["last_seen"])
    console = wide_console()
    console.print(table)
    if number > len(rows):
        console.print(f"… and {number - len(rows):,} more: --limit, --feed, --rule, --reason.")
    console.print("Next: lakehouse quarantine show RECORD; retry, release or discard.")


@app.command()
@with_job_options
def show(
    chosen: CommandContext, entry: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="The record.")]
) -> None:
    """Show one record: why it is pending, what was decided, and what it says. Values of sensitive columns are masked.

    Example: lakehouse quarantine show postgres_prod_tables.public.orders/0/17 --warehouse ./warehouse
    """
    record_of(entry)
    warehouse = opened(chosen, chosen.steps())
    chosen = with_discovered_tables(chosen, warehouse)
    entries = entries_of(warehouse, chosen, Filter([entry], state="all"))
    rows = with_times_as_text(entries.orderBy("first_seen")).collect()
    if not rows:
        raise SettingsError(f"{entry} is not in quarantine.", hint="See `lakehouse quarantine list --state all`.")
    feeds = chosen.contracts.feeds
    shown_entries = [{**shown_entry(row, feeds), **content_of(row, feeds[row["feed"]])} for row in rows]
    if chosen.as_json:
        answer(chosen.command, {"entries": shown_entries})
        return
    console = wide_console()
    for one in shown_entries:
        table = new_table(one["record"], "", "")
        table.show_header = False
        for name, value in one.items():
            if value not in (None, "", []):
                table.add_row(name, "\n".join(value) if isinstance(value, list) else str(value))
        console.print(table)
    console.print(f"Next: lakehouse quarantine retry|release|discard {entry}")


@app.command()
@with_job_options
def retry(
    chosen: CommandContext,
    *,
    narrowed: Filter,
    every: All = False,
    why: Why = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Judge records again by the rules of today; what passes goes silver's normal way, to its position in history.

    Says first how many would pass, and asks. What may still not pass is open again, with its new reasons.

    Example: lakehouse quarantine retry --rule amount_not_negative --why "it was too strict" --warehouse ./warehouse
    """
    _decide(chosen, Decision("retried", narrowed, why), every=every, yes=yes, dry_run=dry_run)


@app.command()
@with_job_options
def release(
    chosen: CommandContext,
    *,
    narrowed: Filter,
    every: All = False,
    why: Annotated[str, typer.Option("--why", help="Why they may pass; it is written down.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Apply records although they fail rules, now and whenever silver is rebuilt.

    Only rules are skipped: a record with a conversion error, or an unreadable one, stays.

    Example: lakehouse quarantine release orders/0/17 --why "the shop confirmed it" --warehouse ./warehouse
    """
    _decide(chosen, Decision("released", narrowed, why), every=every, yes=yes, dry_run=dry_run)


@app.command()
@with_job_options
def discard(
    chosen: CommandContext,
    *,
    narrowed: DiscardFilter,
    every: All = False,
    why: Annotated[str, typer.Option("--why", help="Why they may never pass; it is written down.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Keep records out of silver for good, whatever the rules will be. They stay in quarantine and in bronze.

    Example: lakehouse quarantine discard --reason "no ISO 8601 time" --why "a test of the shop" --warehouse ./warehouse
    """
    _decide(chosen, Decision("discarded", narrowed, why), every=every, yes=yes, dry_run=dry_run)


def _decide(chosen: CommandContext, decision: Decision, *, every: bool, yes: bool, dry_run: bool) -> None:
    """Say what would come of it, ask, write the request down, and carry it out."""
    if decision.narrowed.is_empty and not every:
        raise SettingsError(
            "It is not said which records.", hint="Name them, narrow them (--feed, --rule, --reason), or pass --all."
        )
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    chosen = with_discovered_tables(chosen, warehouse)
    with steps.step("look", "judging them by the rules of today") as note:
        plan = _planned(chosen, warehouse, decision)
        records = sum(counts["records"] for counts in plan.values())
        note(f"{records:,} records")
    console = wide_console(stderr=chosen.as_json)
    console.print(_plan(decision.state, plan))
    came_to: dict[str, Counter[str]] = {}
    if records and not dry_run:
        if not yes:
            ask()
        came_to = _carry_out(chosen, warehouse, steps, decision)
    if chosen.as_json:
        answer(chosen.command, {"plan": plan, "came_to": came_to}, dry_run=dry_run)
        return
    message = _message(decision.state, records, came_to, dry_run=dry_run)
    console.print(message, soft_wrap=True)


def _planned(chosen: CommandContext, warehouse: Warehouse, decision: Decision) -> dict[str, Counter[str]]:
    """Of every table, how many `records` are meant, and how many of them would `pass` or `fail`."""
    from silver.rejects.decisions import judged_again, may_become
    from silver.schema.schemas import schemas

    meant = entries_of(warehouse, chosen, decision.narrowed).where(may_become(decision.state))
    known = {row["feed"]: row["count"] for row in meant.groupBy("feed").count().collect()}
    again: Mapping[str, Counter[str]] = {}
    if decision.state != "discarded":
        of_registry = schemas(warehouse, chosen.settings.schema_registry())
        again = judged_again(warehouse, chosen.contracts, meant, decision.state, known=of_registry)
    return {feed: Counter({"records": number, **again.get(feed, {})}) for feed, number in known.items()}


def _carry_out(
    chosen: CommandContext, warehouse: Warehouse, steps: Steps, decision: Decision
) -> dict[str, Counter[str]]:
    from lakehouse.process.lock import this_process
    from silver.job import SilverJob
    from silver.rejects.decisions import Request, carry_out
    from silver.rejects.decisions import ask as write_down
    from silver.schema.schemas import schemas

    by = this_process(run_id=chosen.run_id, command=chosen.command).user
    request = Request(decision.state, by, decision.why, chosen.run_id)
    came_to: dict[str, Counter[str]] = {}
    with acquire_lock(chosen, warehouse, steps), steps.step(chosen.command.split(" ")[-1], "carrying it out") as note:
        write_down(warehouse, request, chosen=condition_of(chosen, decision.narrowed))
        of_registry = schemas(warehouse, chosen.settings.schema_registry())
        for source in chosen.contracts.topics.sources if decision.state != "discarded" else ():
            job = SilverJob(source, chosen.contracts, warehouse.address, chosen.run_id, schemas=of_registry)
            came_to |= carry_out(warehouse, job)
        note(_outcomes(came_to) or "written down")
    return came_to


def _plan(state: str, plan: Mapping[str, Counter[str]]) -> Table:
    judged = () if state == "discarded" else ("would pass", "would stay")
    table = new_table(f"To be {state}", "table", "records", *judged, numbers=("records", *judged))
    for feed, counts in sorted(plan.items()):
        numbers = [counts["records"], *([counts["pass"], counts["fail"]] if judged else [])]
        table.add_row(feed, *[f"{number:,}" for number in numbers])
    return table


def _outcomes(came_to: Mapping[str, Counter[str]]) -> str:
    sums: Counter[str] = sum(came_to.values(), Counter())
    return ", ".join(f"{number:,} {outcome}" for outcome, number in sums.items())


def _message(state: str, records: int, came_to: Mapping[str, Counter[str]], *, dry_run: bool) -> str:
    if not records:
        return "No matching record is eligible for this action: see lakehouse quarantine list --state all."
    if dry_run:
        return "Nothing was changed (dry run)."
    if state == "discarded":
        return "They stay out of silver for good; `quarantine retry` of the very records takes it back."
    if not came_to:
        return "Written down; silver has not read them yet, and will carry it out. Next: lakehouse silver"
    return f"Came to: {_outcomes(came_to)}. Next: lakehouse gold"
