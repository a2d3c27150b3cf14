"""What the commands of `lakehouse connect` share: options, the connectors of a target, how findings are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from cli.output import answer
from connectors.connectors import Connector
from connectors.files import ConnectorFile
from connectors.findings import ConnectorFindingsError, Finding
from connectors.rest import Worker, worker_at
from connectors.together import all_findings
from connectors.variables import Variables, chosen_files, load_bundle, rendered, resource_files, variables_of
from lakehouse.errors import ConnectorMissingError, SettingsError
from lakehouse.steps import wide_console

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Connectors, by the names of their files in resources/connect. Default: those of the variable"
        " `connectors`.",
        show_default=False,
    ),
]
ConnectorName = Annotated[str, typer.Argument(metavar="NAME", help="A connector of the cluster.")]
Target = Annotated[
    str | None,
    typer.Option(envvar="LAKEHOUSE_TARGET", help="A target of the bundle. Default: the bundle's.", show_default=False),
]
BundleFile = Annotated[
    Path, typer.Option("--bundle", help="The bundle; the connectors lie beside it in resources/connect.")
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--var",
        metavar="NAME=VALUE",
        help="A variable of the bundle, before BUNDLE_VAR_<name> and the target. May be given again for another.",
        show_default=False,
    ),
]
ConnectUrl = Annotated[
    str | None,
    typer.Option(
        envvar="LAKEHOUSE_CONNECT_URL",
        help="Kafka Connect's REST API, http(s)://HOST:PORT. Default: the target's variable connect_url.",
        show_default=False,
    ),
]
Timeout = Annotated[int, typer.Option(min=3, max=3600, help="Seconds to wait until a connector has settled.")]

BUNDLE = Path("bundle.yaml")


def variables(bundle: Path, target: str | None, given: list[str] | None) -> Variables:
    """The variables of a target. Raises SettingsError for everything that does not fit."""
    return variables_of(load_bundle(bundle), target, given=given or (), environment=os.environ)


def worker(
    url: str | None, *, bundle: Path = BUNDLE, target: str | None = None, given: list[str] | None = None
) -> Worker:
    """The worker to ask, with the user and the password of the environment.

    Raises SettingsError when there is neither a URL nor a bundle that has one.
    """
    if not url and not bundle.exists():
        raise SettingsError(
            "No Kafka Connect was given.", remedy="Pass --connect-url http://HOST:8083 or set LAKEHOUSE_CONNECT_URL."
        )
    chosen = url or variables(bundle, target, given).value("connect_url", place="the address of Kafka Connect")
    return worker_at(
        chosen,
        user=os.environ.get("LAKEHOUSE_CONNECT_USER", ""),
        password=os.environ.get("LAKEHOUSE_CONNECT_PASSWORD", ""),
    )


def of_target(of: Variables, bundle: Path, names: Sequence[str] | None) -> list[ConnectorFile]:
    """The connectors beside the bundle, filled in. Raises SettingsError for a name or a variable that does not fit."""
    return [rendered(path, of) for path in chosen_files(resource_files(bundle), of, names or ())]


def connectors_of(files: Sequence[ConnectorFile]) -> list[Connector]:
    """The connectors that could be read."""
    return [file.connector for file in files if file.connector is not None]


def checked(
    files: Sequence[ConnectorFile], *, own: Sequence[str], beside: Sequence[Connector] = ()
) -> tuple[Finding, ...]:
    """Everything that is wrong with the files and the connectors in them."""
    of_files = [finding for file in files for finding in file.findings]
    return (*of_files, *all_findings(connectors_of(files), beside=beside, own_server_ids=own))


def no_such(at: Worker, *names: str) -> ConnectorMissingError:
    """The error of connectors that the cluster has not."""
    known = ", ".join(sorted(at.names())) or "none"
    return ConnectorMissingError(
        f"Kafka Connect at {at.url} has no connector {', '.join(names)}.", remedy=f"There are: {known}."
    )


def table(title: str, *columns: str) -> Table:
    """A table as all of these commands show it."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def end_with_findings(
    command: str,
    findings: Sequence[Finding],
    *,
    as_json: bool,
    consequence: str = "",
    more: Mapping[str, object] | None = None,
) -> NoReturn:
    """Show the findings, and end with their exit code."""
    console = wide_console(stderr=True)
    for finding in findings:
        console.print(f"- {finding}", soft_wrap=True)
    error = ConnectorFindingsError(findings, consequence=consequence)
    if not as_json:
        raise error
    answer(command, {**(more or {}), "findings": [finding.model_dump() for finding in findings]}, [error])
    raise typer.Exit(error.exit_code)
