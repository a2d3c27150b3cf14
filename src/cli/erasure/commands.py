"""`lakehouse forget`: a row that the source has deleted, erased from every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.opening import acquire_lock, opened, with_discovered_tables
from cli.options import CommandContext, DryRun, require_table, with_job_options
from cli.output import Yes, answer, ask
from lakehouse.errors import SettingsError, TableError
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import new_table

if TYPE_CHECKING:
    from cli.erasure.request import ErasureRequest
    from cli.erasure.search import Finding
    from silver.erasure.erase import FeedCounts

Table = Annotated[str, typer.Argument(metavar="TABLE", help="The silver table that the rows are of.")]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY]...",
        help="The keys of the rows: a value each, of a key of several columns a JSON object of them.",
        show_default=False,
    ),
]
KeysFrom = Annotated[
    Path | None,
    typer.Option(
        "--keys-from", help="A file with a key a line: arguments stand in the shell's history.", show_default=False
    ),
]
Vacuum = Annotated[
    bool,
    typer.Option(
        "--vacuum",
        help="Remove the files of earlier versions of these tables too, with their change data and logs: no earlier"
        " version can be read afterwards, by anyone. Without it the files stay until optimize removes them.",
    ),
]
Prove = Annotated[bool, typer.Option("--prove", help="Only search for the rows. Changes nothing.")]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(forget)


@with_job_options
def forget(
    chosen: CommandContext,
    table: Table,
    keys: Keys = None,
    *,
    keys_from: KeysFrom = None,
    vacuum: Vacuum = False,
    prove: Prove = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Erase rows that the source has deleted from every layer, and search for what is left of them.

    Of the rows' records bronze keeps the coordinates alone; their rows of silver, of its history and of the quarantine
    go; then gold is brought up to silver, and, where a broker is given, the topics to gold. A row that is live in the
    source is refused. What the command does not reach: docs/erasure.md.

    Delta keeps files of earlier versions: --vacuum removes them. The search at the end, or --prove alone, reads every
    table and every file that is kept, and exits with 5 where a table still has one of the rows, with --prove also where
    a file has.

    Example: lakehouse forget postgres_orders 1001 1002 --dry-run --warehouse ./warehouse
    """
    texts = _keys(keys, keys_from)
    require_table(chosen, table)
    steps = chosen.steps()
    warehouse = opened(chosen, steps)
    is_read_only = dry_run or prove
    with nullcontext() if is_read_only else acquire_lock(chosen, warehouse, steps) as lock:
        chosen = with_discovered_tables(chosen, warehouse)
        from cli.erasure.request import ErasureRequest
        from silver.erasure.erase import feeds_of_row, typed_keys

        if table not in chosen.contracts.feeds:
            raise TableError(f"There is no silver.{table} yet.", hint="Run `lakehouse run` first.")
        feed = chosen.contracts.feeds[table]
        request = ErasureRequest(
            warehouse, chosen.contracts, feeds_of_row(chosen.contracts, feed), typed_keys(warehouse, feed, texts)
        )
        plan: Sequence[FeedCounts] = ()
        if not prove:
            plan = _erase(chosen, request, steps, lock, vacuum=vacuum, yes=yes, dry_run=dry_run)
        findings = None if dry_run else _search(chosen, request, steps)
    _show(chosen, plan, findings, vacuum=vacuum, dry_run=dry_run)
    is_failure = any(prove or one.where == "rows" for one in findings or ())
    if is_failure:
        raise typer.Exit(TableError.exit_code)


def _keys(keys: list[str] | None, keys_from: Path | None) -> list[str]:
    texts = [*(keys or ())]
    if keys_from is not None:
        try:
            lines = keys_from.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise SettingsError(f"{keys_from} cannot be read.", hint="Name a text file with a key a line.") from None
        texts += [line.strip() for line in lines if line.strip()]
    if not texts:
        raise SettingsError("No key is given.", hint="Name the keys, or a file of them with --keys-from.")
    return list(dict.fromkeys(texts))


def _erase(
    chosen: CommandContext,
    request: ErasureRequest,
    steps: Steps,
    lock: Any,
    *,
    vacuum: bool,
    yes: bool,
    dry_run: bool,
) -> Sequence[FeedCounts]:
    """Say what goes, ask, and carry it out. What there was of the rows."""
    from cli.erasure.carry_out import carry_out
    from silver.erasure.erase import counts_of, require_erasable

    with steps.step("forget", "looking whether the rows are deleted in the source"):
        require_erasable(request.warehouse, request.feeds, request.keys)
    with request.matching_records() as records:
        with steps.step("forget", f"reading the records of bronze.{request.source}_events") as note:
            plan = [counts_of(request.warehouse, feed, request.keys, records[feed.name]) for feed in request.feeds]
            note(f"{sum(one.records for one in plan):,} are of these rows")
        if dry_run:
            return plan
        wide_console(stderr=True).print(_plan(plan))
        if not yes:
            ask()
        carry_out(chosen, request, records, steps, lock, vacuum=vacuum)
    return plan


def _search(chosen: CommandContext, request: ErasureRequest, steps: Steps) -> Sequence[Finding]:
    from cli.erasure.search import search

    with steps.step("forget", "searching every table and every file that is kept") as note:
        findings = search(chosen, request)
        note("gone" if not findings else f"{len(findings)} findings")
    return findings


def _plan(plan: Sequence[FeedCounts]) -> Any:
    numbers = ("records", "rows", "versions", "in quarantine")
    table = new_table("To be erased", "silver table", *numbers, "source topics", numbers=numbers)
    for one in plan:
        topics = "\n".join(f"{topic}, up to offset {last}" for topic, last in sorted(one.topics.items()))
        table.add_row(one.feed, *[f"{n:,}" for n in (one.records, one.rows, one.versions, one.entries)], topics)
    return table


# What a place in which rows are found is called, and what to do about it.
WHERE_FOUND: Mapping[str, str] = {
    "rows": "the table as it is now",
    "marked": "its files, in rows marked as deleted",
    "old files": "files of earlier versions",
    "log": "perhaps in the log: lowest and highest values of files of earlier versions",
    "topic": "the topic: its last values are not those of its table",
    "unsearched": "not searched: its files, or what was published, cannot be read from here",
}


def _show(
    chosen: CommandContext,
    plan: Sequence[FeedCounts],
    findings: Sequence[Finding] | None,
    *,
    vacuum: bool,
    dry_run: bool,
) -> None:
    if chosen.as_json:
        found = None if findings is None else [vars(one) for one in findings]
        answer(chosen.command, {"plan": [vars(one) for one in plan], "found": found}, dry_run=dry_run)
        return
    console = wide_console()
    if findings is None:
        console.print(_plan(plan))
        console.print("Nothing was changed (dry run). Source topics have the records as long as Kafka keeps them.")
        return
    if not findings:
        console.print("Gone: no table, no file and no log has the rows. What is not searched: docs/erasure.md.")
        return
    table = new_table("Still found", "table", "where", "rows", "files", numbers=("rows", "files"))
    for one in findings:
        table.add_row(one.table, WHERE_FOUND[one.where], f"{one.rows or ''}", f"{one.files or ''}")
    console.print(table)
    if any(one.where == "rows" for one in findings):
        console.print("Next: lakehouse forget with the same keys: records came again, or it was killed.")
    elif not vacuum and any(one.where in ("marked", "old files", "log") for one in findings):
        console.print("Next: the same command with --vacuum removes files and logs of earlier versions.")
