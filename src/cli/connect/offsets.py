"""`lakehouse connect offsets`: how far a connector has come in its database's log, and moving it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connect.shared import BUNDLE, BundleFile, ConnectorName, ConnectUrl, Target, Timeout, no_such, table, worker
from cli.options import AsJson, DryRun
from cli.output import Yes, answer, ask
from connectors.cluster import State
from connectors.connectors import Connector
from connectors.moving import of_moves, of_reset, while_stopped
from connectors.offsets import Move, is_in_snapshot, moves, parsed, position, saved, wanted_from
from connectors.rest import Worker
from lakehouse.errors import ConnectError, SettingsError
from lakehouse.steps import wide_console

app = typer.Typer(
    name="offsets", help="How far a connector has come in its database's log, and moving it.", no_args_is_help=True
)


@app.command()
def show(
    name: ConnectorName,
    *,
    connect_url: ConnectUrl = None,
    target: Target = None,
    bundle: BundleFile = BUNDLE,
    as_json: AsJson = False,
) -> None:
    """Show how far a connector has come. Changes nothing. With --json it can be kept, and set again.

    Example: lakehouse connect offsets show postgres-outbox-connector --json > before.json
    """
    at = worker(connect_url, bundle=bundle, target=target)
    current = _current(at, name)
    if as_json:
        answer("connect offsets show", {"connector": name, "offsets": current})
        return
    console = wide_console()
    if not current:
        console.print(f"{name} has no offsets: it makes a snapshot when it starts.")
        return
    shown = table(name, "partition", "position", "snapshot")
    for one in current:
        under_way = "under way" if is_in_snapshot(one["offset"]) else "done"
        shown.add_row(_partition(one["partition"]), position(one["offset"]), under_way)
    console.print(shown)
    console.print(
        f"Keep them before you change them: lakehouse connect offsets show {name} --json > before.json",
        soft_wrap=True,
    )  # fmt: skip


@app.command(name="set")
def set_offsets(
    name: ConnectorName,
    *,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="PostgreSQL: lsn. MySQL and MariaDB: gtids, or file and pos of a server without them.",
            show_default=False,
        ),
    ] = None,
    to_file: Annotated[
        Path | None, typer.Option(help="What `offsets show --json` wrote before.", show_default=False)
    ] = None,
    connect_url: ConnectUrl = None,
    target: Target = None,
    bundle: BundleFile = BUNDLE,
    timeout: Timeout = 60,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Move a connector forward or back in its database's log. Says what that means for the tables, and asks.

    Stops the connector, changes its offsets and resumes it; one that was stopped stays stopped. Kafka Connect takes any
    offset: whether the server still has that position is known when the connector starts.

    Example: lakehouse connect offsets set postgres-tables-connector --offset lsn=16/B374D848
    """
    if bool(offset) == bool(to_file):
        raise SettingsError("Nothing to set.", remedy="Give either --offset KEY=VALUE or --to-file FILE.")
    at = worker(connect_url, bundle=bundle, target=target)
    connector = _connector(at, name)
    current = _current(at, name)
    wanted = _from_file(to_file) if to_file else wanted_from(parsed(offset or (), connector), current, connector)
    planned = moves(current, wanted)
    follows = of_moves(connector, [move.direction for move in planned])
    body = {"offsets": [{"partition": move.partition, "offset": move.new} for move in planned]}
    _change(
        at, name, lambda: at.set_offsets(name, body), planned, follows,
        command="connect offsets set", timeout=timeout, yes=yes, dry_run=dry_run, as_json=as_json,
    )  # fmt: skip


@app.command()
def reset(
    name: ConnectorName,
    *,
    connect_url: ConnectUrl = None,
    target: Target = None,
    bundle: BundleFile = BUNDLE,
    timeout: Timeout = 60,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Forget how far a connector has come, so that it makes a new snapshot. Says what that means, and asks.

    Example: lakehouse connect offsets reset postgres-tables-connector --connect-url http://127.0.0.1:8083
    """
    at = worker(connect_url, bundle=bundle, target=target)
    connector = _connector(at, name)
    planned = [
        Move(partition=one["partition"], old=one["offset"], new={}, direction="unknown") for one in _current(at, name)
    ]
    _change(
        at, name, lambda: at.reset_offsets(name), planned, of_reset(connector),
        command="connect offsets reset", timeout=timeout, yes=yes, dry_run=dry_run, as_json=as_json,
    )  # fmt: skip


def _change(
    at: Worker,
    name: str,
    change: Callable[[], None],
    planned: Sequence[Move],
    follows: Sequence[str],
    *,
    command: str,
    timeout: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what is planned and what follows from it, ask, and carry it out."""
    console = wide_console(stderr=as_json)
    shown = table(f"{name} at {at.url}", "partition", "from", "to", "direction")
    for move in planned:
        new = position(move.new) if move.new else "(none)"
        old = position(move.old) if move.old else "(none)"
        shown.add_row(_partition(move.partition), old, new, move.direction if move.new else "reset")
    console.print(shown)
    for sentence in follows:
        console.print(f"  - {sentence}", soft_wrap=True)
    state: State | None = None
    if not dry_run:
        if not yes:
            ask()
        progress = wide_console(stderr=True)
        state = while_stopped(
            at, name, change, seconds=timeout,
            say=lambda text: progress.print(f"  … {text}"),
        )  # fmt: skip
    error = _failure(state, name)
    if as_json:
        told = {"connector": name, "dry_run": dry_run, "moves": [one.model_dump() for one in planned]}
        more = {"follows": follows, "state": state.model_dump() if state else None}
        answer(command, {**told, **more}, [error] if error else [])
        if error:
            raise typer.Exit(error.exit_code)
        return
    if error:
        raise error
    done = "Nothing was changed (dry run)." if dry_run else f"Done. Next: lakehouse connect status {name}"
    console.print(done)


def _failure(state: State | None, name: str) -> ConnectError | None:
    if state is None or not state.has_failed:
        return None
    return ConnectError(
        f"The offsets of {name} are changed, and it has failed since: {state.first_line}",
        remedy=f"Fix that, or put back what you saved: lakehouse connect offsets set {name} --to-file FILE",
    )


def _connector(at: Worker, name: str) -> Connector:
    config = at.config(name)
    if config is None:
        raise no_such(at, name)
    connector = Connector(name=name, config=config, file=at.url)
    if connector.database is None:
        raise SettingsError(
            f"{name} is no Debezium connector of PostgreSQL, MySQL or MariaDB.",
            remedy="Move it by Kafka Connect's API.",
        )
    return connector


def _current(at: Worker, name: str) -> list[dict[str, Any]]:
    return [dict(one) for one in at.offsets(name).get("offsets") or ()]


def _from_file(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{path} cannot be read.", remedy="Check --to-file.") from None
    return saved(text, file=str(path))


def _partition(partition: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in partition.items())
