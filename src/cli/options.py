"""The options that the jobs share, declared once, and what a command makes of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast
from uuid import uuid4

import typer

from lakehouse.config import TARGETS, Settings, settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.errors import SettingsError
from lakehouse.spark.session import Cluster, cluster
from lakehouse.spark.tables import SCHEMAS
from lakehouse.steps import LoggedSteps, Steps, wide_console

ContractsFolder = Annotated[
    Path | None,
    typer.Option(
        "--contracts",
        envvar="LAKEHOUSE_CONTRACTS",
        help="A folder of contracts in place of the packaged ones; `lakehouse init` begins one.",
        show_default=False,
    ),
]
BootstrapServers = Annotated[
    str | None,
    typer.Option(
        envvar="LAKEHOUSE_BOOTSTRAP_SERVERS", help="Kafka brokers, HOST:PORT[,HOST:PORT…].", show_default=False
    ),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEHOUSE_KAFKA_CONFIG",
        # A task of a bundle passes it always; empty means none, which Path would take for this folder.
        parser=lambda given: Path(given) if given else None,
        metavar="PATH",
        help="A file that says how Kafka is reached: security, user, references to secrets (docs/kafka.md).",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
MaxOffsets = Annotated[
    int | None,
    typer.Option(
        envvar="LAKEHOUSE_MAX_OFFSETS_PER_TRIGGER",
        min=1,
        help="The most records that bronze takes into one batch. Default: all there are.",
        show_default=False,
    ),
]


AcceptRejects = Annotated[
    list[str] | None,
    typer.Option(
        help="A silver table that gate 1 has suspended, or would: this time its rejects go to quarantine, however many"
        " they are. May be given again for another table.",
        show_default=False,
    ),
]

AcceptColumns = Annotated[
    list[str] | None,
    typer.Option(
        help="A silver table by rule that is suspended for its events have other columns: it goes on with those. One"
        " that is gone stays, NULL in rows that change from now on. May be given again for another table.",
        show_default=False,
    ),
]

AcceptMissing = Annotated[
    list[str] | None,
    typer.Option(
        help="A source of which bronze has lost records before silver has read them: silver goes on without these. May"
        " be given again for another source.",
        show_default=False,
    ),
]

Resume = Annotated[
    list[str] | None,
    typer.Option(
        help="A suspended silver table that is tried again with all its pending records, though neither its contract"
        " nor its rules have changed. May be given again for another table.",
        show_default=False,
    ),
]

MetricsFile = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEHOUSE_METRICS_FILE",
        help="A file of metrics, written after every pass, for the textfile collector of node_exporter.",
        show_default=False,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        envvar="LAKEHOUSE_METRICS_PORT",
        min=1,
        max=65535,
        help="Answer Prometheus at this port while the command runs.",
        show_default=False,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(envvar="LAKEHOUSE_METRICS_HOST", help="The address of that port; 0.0.0.0 lets other machines ask."),
]


class LogFormat(StrEnum):
    """`text` for people; `json` for what collects logs."""

    text = "text"
    json = "json"


class Trigger(StrEnum):
    """`available-now` processes the backlog and exits; `continuous` keeps running."""

    available_now = "available-now"
    continuous = "continuous"


WhenItEnds = Annotated[
    Trigger, typer.Option(help="available-now processes the backlog and exits; continuous keeps running.")
]


Master = Annotated[
    str | None,
    typer.Option(
        envvar="LAKEHOUSE_MASTER",
        metavar="URL",
        help="Where Spark runs (docs/clusters.md). Default: local[*], or as spark-submit says.",
        show_default=False,
    ),
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of Spark. May be given again for another.", show_default=False),
]

# Options by the name of their parameter: how Typer declares it, and its default.
Options = Mapping[str, tuple[object, object]]

_OF_EVERY_JOB: Options = {
    "bootstrap_servers": (BootstrapServers, None),
    "kafka_config": (KafkaConfig, None),
    "secret_scope": (
        Annotated[
            str | None,
            typer.Option(
                envvar="LAKEHOUSE_SECRET_SCOPE",
                help="The Databricks secret scope of the secrets that the file names without one.",
                show_default=False,
            ),
        ],
        None,
    ),
    "warehouse": (
        Annotated[
            str | None,
            typer.Option(
                envvar="LAKEHOUSE_WAREHOUSE",
                help="Where the tables are: a path or URI, or the name of a catalog on Databricks.",
                show_default=False,
            ),
        ],
        None,
    ),
    "checkpoints": (
        Annotated[
            str | None,
            typer.Option(
                envvar="LAKEHOUSE_CHECKPOINTS",
                help="Where the streams keep their checkpoints: a path. Default: WAREHOUSE/_checkpoints.",
                show_default=False,
            ),
        ],
        None,
    ),
    "schemas": (
        Annotated[
            str | None,
            typer.Option(
                metavar="SCHEMA=NAME[,…]",
                envvar="LAKEHOUSE_SCHEMAS",
                help=f"What schemas are called there, where not {', '.join(SCHEMAS)}.",
                show_default=False,
            ),
        ],
        None,
    ),
    "contracts": (ContractsFolder, None),
    "target": (
        Annotated[str, typer.Option(envvar="LAKEHOUSE_TARGET", help=f"The environment: {', '.join(TARGETS)}.")],
        "local",
    ),
    "wait": (
        Annotated[
            int,
            typer.Option(
                min=0,
                metavar="MINUTES",
                envvar="LAKEHOUSE_WAIT",
                help="How long to wait for another run that works on the warehouse.",
            ),
        ],
        0,
    ),
    "master": (Master, None),
    "spark_conf": (SparkConf, None),
    "log_format": (
        Annotated[
            LogFormat,
            typer.Option(envvar="LAKEHOUSE_LOG_FORMAT", help="What is written meanwhile: text, or JSON a line."),
        ],
        LogFormat.text,
    ),
    "as_json": (AsJson, False),
}


@dataclass(frozen=True)
class Chosen:
    """What a command was given, checked: where the tables are, which contracts, and how to answer."""

    command: str
    settings: Settings
    contracts: Contracts
    as_json: bool
    run_id: str
    cluster: Cluster = field(default_factory=Cluster)
    wait: timedelta = timedelta()
    log_format: LogFormat = LogFormat.text

    def steps(self) -> Steps:
        """What shows the progress of the command, on standard error."""
        steps = LoggedSteps(sys.stderr) if self.log_format is LogFormat.json else Steps(wide_console(stderr=True))
        steps.run_id = self.run_id
        return steps


@dataclass(frozen=True)
class Accepted:
    """What a person names: silver tables, and sources (`missing`) that go on without records that bronze has lost."""

    rejects: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    resumed: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether any is named."""
        return bool(self.rejects or self.columns or self.resumed or self.missing)


NOTHING_ACCEPTED = Accepted()


def accepted(
    chosen: Chosen,
    rejects: list[str] | None,
    columns: list[str] | None,
    resumed: list[str] | None,
    missing: list[str] | None,
) -> Accepted:
    """What a person accepts, or has tried again.

    Raises SettingsError for a table or a source that the contracts do not have.
    """
    for name in (*(rejects or ()), *(columns or ()), *(resumed or ())):
        require_table(chosen, name)
    for source in missing or ():
        if source not in chosen.contracts.topics.sources:
            known = ", ".join(chosen.contracts.topics.sources)
            raise SettingsError(f"There is no source {source}.", remedy=f"There are: {known}.")
    return Accepted(*(frozenset(names or ()) for names in (rejects, columns, resumed, missing)))


def require_table(chosen: Chosen, name: str) -> None:
    """Raise SettingsError when the contracts have no silver table of this name, and no rule may make one."""
    if name not in chosen.contracts.feeds and not chosen.contracts.may_come(name):
        known = ", ".join(sorted(chosen.contracts.feeds)) or "those that rules make"
        raise SettingsError(f"There is no silver table {name}.", remedy=f"There are: {known}.")


def with_job_options(body: Callable[..., None]) -> Callable[..., None]:
    """The command `body(chosen, **own)`, with the options that every job has before its own."""
    _chosen, *own = inspect.signature(body, eval_str=True).parameters.values()

    def command(*, context: typer.Context, **given: Any) -> None:
        shared = {name: given.pop(name) for name in _OF_EVERY_JOB}
        as_json, folder, wait = shared.pop("as_json"), shared.pop("contracts"), shared.pop("wait")
        log_format = shared.pop("log_format")
        where = cluster(master=shared.pop("master"), spark_conf=shared.pop("spark_conf") or ())
        more = {name: given[name] for name in ("max_offsets_per_trigger",) if name in given}
        chosen = settings(**shared, **more)
        name = context.command_path.split(" ", 1)[1]
        run_id, minutes = uuid4().hex, timedelta(minutes=wait)
        body(Chosen(name, chosen, load_contracts(folder), as_json, run_id, where, minutes, log_format), **given)

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    return declared_as(command, body, [context, *parameters(_OF_EVERY_JOB), *own])


def parameters(options: Options) -> list[inspect.Parameter]:
    """The options as a command's parameters, in their order."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]


def declared_as(
    command: Callable[..., None], body: Callable[..., None], own: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """The command with the name and the help of `body`, and with these parameters, all given by keyword."""
    by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    command.__name__ = body.__name__
    command.__doc__ = body.__doc__
    cast(Any, command).__signature__ = inspect.Signature(by_keyword)
    return command
