"""`lakehouse connect render` and `check`: connectors filled in for a target, and what would break them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.connect import cluster
from cli.connect.shared import (
    BundleOptions,
    ClusterOptions,
    Names,
    checked,
    connector_files,
    connectors_of,
    end_with_findings,
)
from cli.options import AsJson, ContractsFolder, with_option_groups
from cli.output import answer
from connectors.checking.placement import placement_findings
from connectors.checking.together import kept_topics, topic_findings
from connectors.cluster import running_connectors
from connectors.files import read_file
from connectors.variables import own_server_ids
from lakehouse.config import connection
from lakehouse.contracts.files import load_contracts
from lakehouse.errors import SettingsError
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import PASSED, json_text, styled

app = typer.Typer(
    name="connect",
    help="Debezium's connectors on Kafka Connect: filled in, checked, deployed, watched.",
    no_args_is_help=True,
)
cluster.add_to(app)


@app.command()
@with_option_groups
def render(
    names: Names = None,
    *,
    chosen: BundleOptions,
    output: Annotated[
        Path | None, typer.Option(help="A folder to write one file a connector to.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fill the connectors in with the variables of a target. Asks neither Kafka Connect nor a database.

    Secrets are not filled in: they stay references that Kafka Connect's worker resolves. A file's `topics`, the names
    of its tables' topics, become transforms.

    Example: lakehouse connect render --target dev postgres-outbox-connector
    """
    files = connector_files(chosen.variables(), chosen.bundle, names)
    broken = [finding for file in files for finding in file.findings]
    if broken:
        end_with_findings("connect render", broken, as_json=as_json)
    shown: list[dict[str, object]] = [{"name": one.name, "config": one.config} for one in connectors_of(files)]
    written = _written(output, shown) if output is not None else []
    if as_json:
        answer("connect render", {"connectors": shown, "written": written})
    elif output is None:
        typer.echo(json_text(shown[0] if len(shown) == 1 else shown, indent=2))
    else:
        console = wide_console()
        for path in written:
            console.print(f"  {path}", soft_wrap=True)
        console.print(f"Next: lakehouse connect check {output}/*.json", soft_wrap=True)


@app.command()
@with_option_groups
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Connectors of your own: JSON with name and config, or the options alone. Default: those of the"
            " target.",
            show_default=False,
        ),
    ] = None,
    *,
    chosen: BundleOptions,
    own_server_id: Annotated[
        list[str] | None,
        typer.Option(
            help="The id of a MySQL or MariaDB server itself (SELECT @@server_id). May be given again. Default: the"
            " target's.",
            show_default=False,
        ),
    ] = None,
    connect_url: Annotated[
        str | None,
        typer.Option(help="Look at the connectors that this Kafka Connect runs already, too.", show_default=False),
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            help="Look at the topics of these Kafka brokers, too: HOST:PORT[,HOST:PORT…].", show_default=False
        ),
    ] = None,
    kafka_config: Annotated[
        Path | None,
        typer.Option(help="The same, with security: a file that says how Kafka is reached.", show_default=False),
    ] = None,
    contracts: ContractsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Find what breaks connectors before they are deployed. Exits with 2 when it finds something.

    With --connect-url they are compared with the connectors that run there; with --bootstrap-servers or --kafka-config
    the topics on the broker are checked too. Where the EventRouter places the types of events is compared with the
    contracts.

    Example: lakehouse connect check --target prod
    """
    own = tuple(own_server_id or ())
    if files:
        read = [read_file(path) for path in files]
    else:
        of = chosen.variables()
        read, own = connector_files(of, chosen.bundle, None), own or own_server_ids(of)
    running_beside = running_connectors(ClusterOptions(connect_url=connect_url).worker()) if connect_url else ()
    connectors = connectors_of(read)
    findings = list(checked(read, own=own, running_beside=running_beside))
    findings += placement_findings(connectors, load_contracts(contracts).feeds.values())
    if bootstrap_servers or kafka_config:
        kafka = connection(bootstrap_servers=bootstrap_servers, kafka_config=kafka_config)
        findings += topic_findings(connectors, kept_topics(kafka, connectors), broker=kafka.bootstrap_servers)
    if findings:
        end_with_findings("connect check", findings, as_json=as_json)
    names = [one.name for one in connectors]
    if as_json:
        answer("connect check", {"connectors": names, "findings": []})
        return
    console = wide_console()
    console.print(styled(PASSED, f" {len(names)} connectors, nothing found: {', '.join(names)}"))
    console.print("Next: lakehouse connect deploy --dry-run")


def _written(folder: Path, connectors: Sequence[dict[str, object]]) -> list[str]:
    paths = [folder / f"{one['name']}.json" for one in connectors]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, one in zip(paths, connectors, strict=True):
            path.write_text(json.dumps(one, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}.", hint="Give another folder.") from None
    return [str(path) for path in paths]
