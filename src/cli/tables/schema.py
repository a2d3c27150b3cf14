"""`lakehouse schema`: the columns of silver's tables, what their sources have changed, and approving it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.opening import acquire_lock, opened
from cli.options import CommandContext, DryRun, require_table, with_job_options
from cli.output import Yes, answer, ask
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.errors import SettingsError
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table

if TYPE_CHECKING:
    from lakehouse.contracts.by_rule import DiscoveredTable
    from lakehouse.delta.tables import Warehouse
    from monitoring.readings.tables import Tables

app = typer.Typer(
    name="schema",
    help="Columns of silver's tables: what their sources changed, and approving it.",
    no_args_is_help=True,
)
TableNames = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", help="Silver tables. Default: all.", show_default=False)
]
Renames = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="The field NEW is the column of the field OLD, under another name. May be given again for another.",
        show_default=False,
    ),
]


@app.command()
@with_job_options
def show(chosen: CommandContext, tables: TableNames = None) -> None:
    """Show the columns of silver's tables, and what becomes of a table whose source changes them.

    Starts no Spark where tables are files. Changes nothing.

    Example: lakehouse schema show postgres_orders --warehouse ./warehouse
    """
    feeds = _feeds(chosen, _known(chosen), tables)
    shown = [_columns(feed) for feed in feeds]
    if chosen.as_json:
        answer(chosen.command, {"tables": shown})
        return
    console = wide_console()
    for feed, one in zip(feeds, shown, strict=True):
        table = new_table(f"silver.{feed.name}", "column", "type", "fields of its events", "came as", "")
        for column in one["columns"]:
            notes = [name for name in ("key", "optional") if column[name]]
            cells = (column["type"], ", ".join(column["fields"]), ", ".join(column["came_as"]), ", ".join(notes))
            table.add_row(column["name"], *cells)
        console.print(table)
        policies = ", ".join(f"{kind}: {policy}" for kind, policy in one["on_schema_change"].items())
        console.print(f"on_schema_change: {policies}\n")
    console.print("Next: lakehouse schema diff shows the changes that need an approval.")


@app.command()
@with_job_options
def diff(chosen: CommandContext, tables: TableNames = None) -> None:
    """Show what the sources of suspended tables have changed, and what lets each table go on.

    Starts no Spark where tables are files. Changes nothing.

    Example: lakehouse schema diff --warehouse ./warehouse
    """
    from monitoring.readings.warehouse import suspension_causes

    feeds = _feeds(chosen, _known(chosen), tables)
    causes = suspension_causes(_tables(chosen))
    found = [one for feed in feeds for one in _differences(feed, causes.get(feed.name))]
    if chosen.as_json:
        answer(chosen.command, {"differences": found})
        return
    console = wide_console()
    if not found:
        console.print("No table waits: the columns of silver are those of its events.")
        return
    table = new_table("What has changed", "table", "change", "what", "goes on by")
    for one in found:
        table.add_row(f"silver.{one['table']}", one["kind"], one["what"], one["next"])
    console.print(table)


@app.command()
@with_job_options
def approve(
    chosen: CommandContext,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="Suspended silver tables by rule.")],
    *,
    rename: Renames = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Have tables by rule go on with the columns that their events have now; the next run of silver applies them.

    A column that is gone stays, NULL in rows that change from now on. One that is new is added. One of another type
    keeps its type in silver; values that do not fit it are treated as `parse_errors` says. With --rename a column keeps
    its name in silver, and has the values of both fields.

    Example: lakehouse schema approve shop_customers --rename name=full_name --warehouse ./warehouse
    """
    planned = _approved(_known(chosen), tables, rename or ())
    console = wide_console(stderr=chosen.as_json)
    shown = new_table("To be approved", "table", "change", "what")
    for before, _after in planned:
        for change in before.waiting:
            shown.add_row(f"silver.{before.name}", change.kind, change.what)
    for text in rename or ():
        shown.add_row(f"silver.{tables[0]}", "rename", f"{text.replace('=', ' is ')} from now on")
    console.print(shown)
    if not dry_run:
        if not yes:
            ask()
        _write(chosen, tables, rename or (), planned)
    if chosen.as_json:
        answer(chosen.command, {"approved": [_waiting(before) for before, _after in planned]}, dry_run=dry_run)
        return
    console.print("Nothing was changed (dry run)." if dry_run else "Approved. Next: lakehouse silver")


def _tables(chosen: CommandContext) -> Tables:
    from monitoring.readings.tables import tables_at

    return tables_at(chosen.settings.address, lambda: opened(chosen, chosen.steps()))


def _known(chosen: CommandContext) -> Contracts:
    """The contracts, with the tables that rules have made."""
    from cli.monitoring.shared import with_discovered_tables

    return with_discovered_tables(chosen.contracts, _tables(chosen))


def _feeds(chosen: CommandContext, contracts: Contracts, names: Iterable[str] | None) -> list[Feed]:
    for name in names or ():
        require_table(chosen, name)
    return [feed for name, feed in sorted(contracts.feeds.items()) if not names or name in names]


def _columns(feed: Feed) -> dict[str, Any]:
    of_rule = {} if feed.discovered is None else feed.discovered.columns
    return {
        "table": feed.name,
        "by_rule": None if feed.discovered is None else feed.discovered.rule,
        "columns": [
            {
                "name": name,
                "type": declared.type.ddl,
                "fields": list(feed.fields_of(name)) if declared.is_of_row else [],
                "came_as": list(of_rule[name].came_as) if name in of_rule else [],
                "key": name in feed.keys,
                "optional": declared.optional,
            }
            for name, declared in feed.columns.items()
        ],
        "on_schema_change": feed.on_schema_change.model_dump(),
    }


def _differences(feed: Feed, cause: Mapping[str, str] | None) -> list[dict[str, str]]:
    """What a suspended table waits for; of one with a contract why it is suspended."""
    from silver.rejects.suspended import of_schema

    if feed.discovered is not None and feed.discovered.waiting:
        return [
            {
                "table": feed.name,
                "kind": change.kind,
                "what": change.what,
                "next": "a contract, or on_schema_change: {key: quarantine}"
                if change.kind == "key"
                else f"lakehouse schema approve {feed.name}",
            }
            for change in feed.discovered.waiting
            if change.mark not in feed.discovered.approved
        ]
    if cause is None or (advice := of_schema(cause["rule"])) is None:
        return []
    return [{"table": feed.name, "kind": cause["rule"], "what": cause["why"], "next": advice}]


def _approved(
    contracts: Contracts, names: Sequence[str], renames: Sequence[str]
) -> list[tuple[DiscoveredTable, DiscoveredTable]]:
    """Each table as it waits, and as it is approved. Raises SettingsError where one cannot be approved."""
    from silver.by_rule.changed import with_approval, with_rename

    if renames and len(names) > 1:
        raise SettingsError("--rename is of one table.", hint="Approve the tables one by one.")
    planned = []
    for name in names:
        feed = contracts.feeds.get(name)
        before = None if feed is None else feed.discovered
        if feed is not None and before is None:
            raise SettingsError(
                f"silver.{name} has a contract, which says its columns.",
                hint="Change silver/tables.yaml: `fields: [new, old]` of a column that has another name,"
                " `optional: true` of one that is gone. The next run of silver goes on.",
            )
        if before is None or not before.waiting:
            raise SettingsError(f"silver.{name} waits for no approval.", hint="See `lakehouse schema diff`.")
        try:
            after = before
            for old, _equals, new in (text.partition("=") for text in renames):
                after = with_rename(after, before=old, after=new)
            planned.append((before, with_approval(after)))
        except ValueError as error:
            raise SettingsError(f"{error}.", hint="See `lakehouse schema diff`.") from None
    return planned


def _write(
    chosen: CommandContext,
    names: Sequence[str],
    renames: Sequence[str],
    planned: Sequence[tuple[DiscoveredTable, DiscoveredTable]],
) -> None:
    """Write down what was shown. Raises SettingsError where a run has changed it meanwhile."""
    from silver.by_rule.tables import DiscoveredTables
    from silver.by_rule.tables import with_discovered_tables as known_tables

    steps = chosen.steps()
    warehouse: Warehouse = opened(chosen, steps)
    with acquire_lock(chosen, warehouse, steps), steps.step("approve", "writing it down") as note:
        if _approved(known_tables(warehouse, chosen.contracts), names, renames) != planned:
            raise SettingsError("The tables have changed since they were shown.", hint="Look again, and approve again.")
        DiscoveredTables(run=chosen.run_id).store(warehouse, [after for _before, after in planned])
        note(f"{len(planned)} tables")


def _waiting(before: DiscoveredTable) -> dict[str, Any]:
    changes = [{"kind": one.kind, "field": one.field, "what": one.what} for one in before.waiting]
    return {"table": before.name, "changes": changes}
