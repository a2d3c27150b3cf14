"""`lakehouse status`, `doctor`, `explain` and `report`: their options. What each does is loaded when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import CommandContext, with_job_options
from cli.output import Yes

# Where the password of --probe-user is.
PROBE_PASSWORD = "LAKEHOUSE_PROBE_PASSWORD"  # noqa: S105 the name of a variable
ConnectUrl = Annotated[
    str | None,
    typer.Option(
        envvar="LAKEHOUSE_CONNECT_URL",
        help="Kafka Connect's REST API, http(s)://HOST:PORT. Databases are asked that bronze/topics.yaml names.",
        show_default=False,
    ),
]
_Every = Annotated[
    float | None, typer.Option(min=1, metavar="SECONDS", help="Look again every so many seconds, until Ctrl-C.")
]
_Probe = Annotated[
    bool, typer.Option("--probe", help="Write an order of 0.00 to each outbox, and wait for it in the unified topic.")
]
_User = Annotated[
    str | None,
    typer.Option(
        help=f"The databases' user that may write to the outboxes; its password is in {PROBE_PASSWORD}. Default: the"
        " connector's own.",
        show_default=False,
    ),
]
_Seconds = Annotated[int, typer.Option(min=1, max=3600, help="How long to wait for the probes.")]
_Key = Annotated[str, typer.Argument(metavar="COMPOSITE_KEY", help="The order, as gold calls it: PG-1001.")]
_All = Annotated[
    bool,
    typer.Option("--all", help="Look at every event that bronze has, however long that takes: else at the newest."),
]
_Output = Annotated[Path, typer.Option(help="The file to write.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (status, doctor, explain, report):
        app.command()(with_job_options(command))


def status(chosen: CommandContext, connect_url: ConnectUrl = None, watch: _Every = None) -> None:
    """Show how every stage is, how late it is, and what to do. Exits with 1 on a warning, with 2 when it is critical.

    One line a source and stage: database, Kafka Connect, topics, bronze, silver, gold and the unified topic. The broker
    (--bootstrap-servers) and Kafka Connect with its databases (--connect-url) are looked at where they are given. The
    limits are in monitoring/thresholds.yaml of the contracts. Changes nothing; needs no Spark where tables are files.

    Example: lakehouse status --warehouse ./warehouse --bootstrap-servers 127.0.0.1:9092
    """
    from cli.monitoring.status import run

    run(chosen, connect_url, watch=watch)


def doctor(
    chosen: CommandContext,
    *,
    connect_url: ConnectUrl = None,
    probe: _Probe = False,
    probe_user: _User = None,
    probe_seconds: _Seconds = 300,
    yes: Yes = False,
) -> None:
    """Check databases, connectors, topics and tables, and name what is wrong. Exits with 1 when something is.

    Every check says what it saw, what should be, and what to do; docs/troubleshooting.md has them all. Only reads, but
    with --probe, which asks first: an order that is cancelled and of 0.00 is written to each outbox, and stays.

    Example: lakehouse doctor --warehouse ./warehouse --connect-url http://127.0.0.1:8083
    """
    from cli.monitoring.doctor import Probing, run

    run(chosen, connect_url, probing=Probing(probe_user, probe_seconds, yes) if probe else None)


def explain(chosen: CommandContext, composite_key: _Key, *, all_events: _All = False) -> None:
    """Show every event of an order, what was decided of it and why, and the rows and records it led to.

    Shows values of the row, sensitive columns masked. Where a broker is given, the records of the unified topic too.
    Of a long history the newest two million records of the source are looked at, and it is said where they begin.
    Changes nothing; needs no Spark where tables are files.

    Example: lakehouse explain PG-1001 --warehouse ./warehouse
    """
    from cli.monitoring.explain import run

    run(chosen, composite_key, whole=all_events)


def report(chosen: CommandContext, connect_url: ConnectUrl = None, output: _Output = Path("report.html")) -> None:
    """Write the status, the last passes and the quality as one HTML page, which needs no other file.

    Example: lakehouse report --warehouse ./warehouse --output report.html
    """
    from cli.monitoring.report import run

    run(chosen, connect_url, output)
