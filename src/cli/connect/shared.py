"""What the commands of `lakehouse connect` share: options, the connectors of a target, how findings are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli.output import answer
from connectors.checking.findings import ConnectorFindingsError, Finding
from connectors.checking.together import all_findings
from connectors.connectors import Connector
from connectors.files import ConnectorFile
from connectors.rest import Worker, worker_at
from connectors.variables import Variables, chosen_files, load_bundle, rendered, resource_files, variables_of
from lakehouse.errors import ConnectorMissingError, SettingsError
from lakehouse.process.steps import wide_console

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
BUNDLE = Path("bundle.yaml")
Timeout = Annotated[int, typer.Option(min=3, max=3600, help="Seconds to wait until a connector has settled.")]


@dataclass(frozen=True)
class BundleOptions:
    """Which target of which bundle, and its variables."""

    target: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEHOUSE_TARGET", help="A target of the bundle. Default: the bundle's.", show_default=False
        ),
    ] = None
    bundle: Annotated[
        Path, typer.Option("--bundle", help="The bundle; the connectors lie beside it in resources/connect.")
    ] = BUNDLE
    var: Annotated[
        list[str] | None,
        typer.Option(
            "--var",
            metavar="NAME=VALUE",
            help="A variable of the bundle, before BUNDLE_VAR_<name> and the target. May be given again for another.",
            show_default=False,
        ),
    ] = None

    def variables(self) -> Variables:
        """The variables of the target. Raises SettingsError for everything that does not fit."""
        return variables_of(load_bundle(self.bundle), self.target, given=self.var or (), environment=os.environ)


@dataclass(frozen=True)
class ClusterOptions(BundleOptions):
    """Which Kafka Connect: that of a URL, else that of the target."""

    connect_url: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEHOUSE_CONNECT_URL",
            help="Kafka Connect's REST API, http(s)://HOST:PORT. Default: the target's variable connect_url.",
            show_default=False,
        ),
    ] = None

    def worker(self) -> Worker:
        """The worker to ask, with the user and the password of the environment.

        Raises SettingsError when there is neither a URL nor a bundle that has one.
        """
        if not self.connect_url and not self.bundle.exists():
            raise SettingsError(
                "No Kafka Connect was given.", hint="Pass --connect-url http://HOST:8083 or set LAKEHOUSE_CONNECT_URL."
            )
        return worker_at(
            self.connect_url or self.variables().value("connect_url", used_in="the address of Kafka Connect"),
            user=os.environ.get("LAKEHOUSE_CONNECT_USER", ""),
            password=os.environ.get("LAKEHOUSE_CONNECT_PASSWORD", ""),
        )


@dataclass(frozen=True)
class RunningOptions(ClusterOptions):
    """The options of a command about connectors that run: no variable is filled in."""

    var: list[str] | None = field(default=None, init=False)


def connector_files(of: Variables, bundle: Path, names: Sequence[str] | None) -> list[ConnectorFile]:
    """The connectors beside the bundle, filled in. Raises SettingsError for a name or a variable that does not fit."""
    return [rendered(path, of) for path in chosen_files(resource_files(bundle), of, names or ())]


def connectors_of(files: Sequence[ConnectorFile]) -> list[Connector]:
    """The connectors that could be read."""
    return [file.connector for file in files if file.connector is not None]


def checked(
    files: Sequence[ConnectorFile], *, own: Sequence[str], running_beside: Sequence[Connector] = ()
) -> tuple[Finding, ...]:
    """Everything that is wrong with the files and the connectors in them."""
    of_files = [finding for file in files for finding in file.findings]
    return (*of_files, *all_findings(connectors_of(files), running_beside=running_beside, own_server_ids=own))


def no_such(at: Worker, *names: str) -> ConnectorMissingError:
    """The error of connectors that the cluster has not."""
    known = ", ".join(sorted(at.names())) or "none"
    return ConnectorMissingError(
        f"Kafka Connect at {at.url} has no connector {', '.join(names)}.", hint=f"There are: {known}."
    )


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
