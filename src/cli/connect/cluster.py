"""`lakehouse connect deploy`, `status`, `restart`, `resume` and `delete`: connectors on a cluster of Kafka Connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from cli.connect.shared import (
    ClusterOptions,
    ConnectorName,
    Names,
    RunningOptions,
    Timeout,
    checked,
    connector_files,
    connectors_of,
    end_with_findings,
    no_such,
)
from cli.options import AsJson, DryRun, with_option_groups
from cli.output import Yes, answer, ask, say
from connectors.checking.findings import Finding
from connectors.cluster import (
    Change,
    FieldError,
    State,
    change_of,
    field_errors,
    orphaned_resources,
    running_connectors,
    settled,
    states,
)
from connectors.connectors import Connector
from connectors.rest import Worker
from connectors.variables import own_server_ids
from lakehouse.errors import ConnectError
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import new_table


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (deploy, status, restart, resume, delete):
        app.command()(with_option_groups(command))


def deploy(
    names: Names = None,
    *,
    cluster: ClusterOptions,
    timeout: Timeout = 60,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Render, check and validate connectors, create or change them, and wait until their tasks run.

    Nothing is changed when a check finds something (exit code 2) or a connector refuses an option (4). A connector that
    has these options already is left alone.

    Example: lakehouse connect deploy --target dev --dry-run
    """
    of = cluster.variables()
    files = connector_files(of, cluster.bundle, names)
    at = cluster.worker()
    progress = Steps(wide_console(stderr=True))
    with progress.step("check", "looking for what breaks deployments") as note:
        running_beside = running_connectors(at)
        findings = checked(files, own=own_server_ids(of), running_beside=running_beside)
        note(f"{len(files)} connectors, {len(findings)} findings; {len(running_beside)} run at {at.url}")
    if findings:
        end_with_findings("connect deploy", findings, as_json=as_json, consequence=" Nothing was deployed.")
    connectors = connectors_of(files)
    with progress.step("validate", "asking each connector about its options"):
        refused = [error for one in connectors for error in field_errors(one, at.validate(_named(one)))]
    if refused:
        _end_with_refusals(refused, at, as_json=as_json)
    configs = {one.name: one.config for one in running_beside}
    changes = [change_of(one, configs.get(one.name)) for one in connectors]
    _show_changes(changes, dry_run=dry_run, to_stderr=as_json)
    after = [] if dry_run else _put(at, connectors, changes, progress, seconds=timeout)
    report = {
        "target": of.target,
        "dry_run": dry_run,
        "changes": [one.model_dump() for one in changes],
        "states": [one.model_dump() for one in after],
    }
    _end_with_states("connect deploy", at, after, report, as_json=as_json, waited=timeout)


def status(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Connectors. Default: all of the cluster.", show_default=False),
    ] = None,
    *,
    cluster: RunningOptions,
    as_json: AsJson = False,
) -> None:
    """Show every connector with its tasks, and what went wrong. Exits with 4 when one has failed.

    Example: lakehouse connect status --connect-url http://127.0.0.1:8083
    """
    at = cluster.worker()
    found = states(at)
    missing = sorted(set(names or ()) - {one.connector for one in found})
    if missing:
        raise no_such(at, *missing)
    shown = [one for one in found if not names or one.connector in names]
    _end_with_states(
        "connect status", at, shown, {"states": [one.model_dump() for one in shown]}, as_json=as_json, waited=None
    )


def restart(
    name: ConnectorName,
    *,
    all_tasks: Annotated[bool, typer.Option("--all", help="Its running tasks, too, not only the failed ones.")] = False,
    cluster: RunningOptions,
    timeout: Timeout = 60,
    as_json: AsJson = False,
) -> None:
    """Restart what has failed of a connector, and wait until it runs. Its offsets stay.

    Example: lakehouse connect restart postgres-outbox-connector --connect-url http://127.0.0.1:8083
    """
    at = cluster.worker()
    at.status(name)
    with Steps(wide_console(stderr=True)).step("restart", f"restarting {name}"):
        at.restart(name, only_failed=not all_tasks)
        state = settled(at, name, seconds=timeout)
    _end_with_state("connect restart", at, state, as_json=as_json, waited=timeout)


def resume(
    name: ConnectorName,
    *,
    cluster: RunningOptions,
    timeout: Timeout = 60,
    as_json: AsJson = False,
) -> None:
    """Resume a connector that was stopped or paused, and wait until it runs.

    Example: lakehouse connect resume postgres-outbox-connector --connect-url http://127.0.0.1:8083
    """
    at = cluster.worker()
    at.status(name)
    with Steps(wide_console(stderr=True)).step("resume", f"resuming {name}"):
        at.resume(name)

        def goes_on(state: State) -> bool:
            return state.is_unchanged and state.state not in {"PAUSED", "STOPPED"}

        state = settled(at, name, seconds=timeout, is_there=goes_on)
    _end_with_state("connect resume", at, state, as_json=as_json, waited=timeout)


def delete(
    name: ConnectorName,
    *,
    cluster: RunningOptions,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove a connector from the cluster. Says what stays behind, such as a replication slot, and asks.

    Example: lakehouse connect delete postgres-outbox-connector --connect-url http://127.0.0.1:8083
    """
    at = cluster.worker()
    config = at.config(name)
    if config is None:
        raise no_such(at, name)
    stays = orphaned_resources(Connector(name=name, config=config, file=at.url))
    console = wide_console(stderr=as_json)
    console.print(f"Delete {name} from {at.url}. What stays:", soft_wrap=True)
    for sentence in stays:
        console.print(f"  - {sentence}", soft_wrap=True)
    if not dry_run:
        if not yes:
            ask()
        at.delete(name)
    if as_json:
        answer("connect delete", {"connector": name, "dry_run": dry_run, "stays": stays})
        return
    console.print("Nothing was changed (dry run)." if dry_run else "Deleted. Next: lakehouse connect status")


def _named(connector: Connector) -> dict[str, str]:
    return {**connector.config, "name": connector.name}


def _put(
    at: Worker, connectors: Sequence[Connector], changes: Sequence[Change], progress: Steps, *, seconds: int
) -> list[State]:
    """Create or change what differs; the state of each then, in their order. All are put before any is waited for."""
    for connector, change in zip(connectors, changes, strict=True):
        if change.outcome != "unchanged":
            with progress.step("deploy", f"{connector.name}: {change.outcome}"):
                at.put_config(connector.name, _named(connector))
    after = []
    for connector in connectors:
        with progress.step("wait", f"{connector.name}: until its tasks run") as note:
            state = settled(at, connector.name, seconds=seconds, config=connector.config)
            note(f"{connector.name}: {_short(state)}")
        after.append(state)
    return after


def _short(state: State) -> str:
    tasks = ", ".join(f"task {task.number} {task.state}" for task in state.tasks) or "no task yet"
    return f"{state.state or 'unknown'}, {tasks}"


def _show_changes(changes: Sequence[Change], *, dry_run: bool, to_stderr: bool) -> None:
    shown = new_table("Connectors", "connector", "would be" if dry_run else "is", "options (values are not shown)")
    for change in changes:
        shown.add_row(change.connector, change.outcome, str(change))
    console = wide_console(stderr=to_stderr)
    console.print(shown)
    if dry_run:
        console.print("Nothing was changed (dry run). Next: the same without --dry-run")


def _end_with_refusals(refused: Sequence[FieldError], at: Worker, *, as_json: bool) -> None:
    findings = [
        Finding(check="validate", file=at.url, connector=one.connector, key=one.key, what=one.what, hint="")
        for one in refused
    ]
    shown = new_table("Refused", "connector", "key", "what the connector says")
    for one in refused:
        shown.add_row(one.connector, one.key, one.what)
    wide_console(stderr=True).print(shown)
    error = ConnectError(
        f"{len(refused)} options are refused by their connectors. Nothing was deployed.",
        hint="Fix them. An error of database.hostname means that Kafka Connect cannot reach the database.",
    )
    if not as_json:
        raise error
    answer("connect deploy", {"findings": [one.model_dump() for one in findings]}, [error])
    raise typer.Exit(error.exit_code)


def _end_with_state(command: str, at: Worker, state: State, *, as_json: bool, waited: int) -> None:
    _end_with_states(command, at, [state], {"states": [state.model_dump()]}, as_json=as_json, waited=waited)


def _end_with_states(
    command: str, at: Worker, found: Sequence[State], report: dict[str, object], *, as_json: bool, waited: int | None
) -> None:
    """Show states, and end with the exit code of Kafka Connect when one has failed or is not there in time."""
    failed = [one.connector for one in found if one.has_failed]
    late = [one.connector for one in found if waited is not None and not one.is_unchanged]
    error = None
    if failed:
        error = ConnectError(
            f"{len(failed)} of {len(found)} connectors have failed: {', '.join(failed)}.",
            hint=f"Fix what the trace names, then: lakehouse connect restart {failed[0]}",
        )
    elif late:
        error = ConnectError(
            f"After {waited} s not all tasks run: {', '.join(late)}.", hint="Look again: lakehouse connect status"
        )
    if as_json:
        answer(command, report, [error] if error else [])
    elif found:
        _show_states(at, found)
    elif command == "connect status":
        wide_console().print(f"No connector at {at.url}. Next: lakehouse connect deploy --dry-run")
    if error:
        if not as_json:
            say(error)
        raise typer.Exit(error.exit_code)


def _next_step(found: Sequence[State]) -> str:
    """What to do about connectors of which none has failed."""
    held = [one.connector for one in found if one.state in {"PAUSED", "STOPPED"}]
    return f"lakehouse connect resume {held[0]}" if held else "lakehouse bronze"


def _show_states(at: Worker, found: Sequence[State]) -> None:
    shown = new_table(f"Kafka Connect at {at.url}", "connector", "state", "tasks", "worker", "what went wrong")
    for one in found:
        tasks = ", ".join(f"{task.number} {task.state}" for task in one.tasks) or "none"
        shown.add_row(one.connector, one.state, tasks, one.worker, one.first_line)
    console = wide_console()
    console.print(shown)
    for one in found:
        for trace in filter(None, [one.trace, *(task.trace for task in one.tasks)]):
            console.print(f"{one.connector}:")
            for line in trace.splitlines():
                console.print(f"  {line}", soft_wrap=True)
    if all(one.is_unchanged and not one.has_failed for one in found):
        console.print(f"Next: {_next_step(found)}", soft_wrap=True)
