"""The options that the jobs share, declared once, and what a command makes of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast
from uuid import uuid4

import typer

from lakehouse.config import TARGETS, Settings, settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.address import SCHEMAS
from lakehouse.errors import SettingsError
from lakehouse.process.steps import LoggedSteps, Steps, wide_console
from lakehouse.spark.settings import Cluster, cluster

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


class LogFormat(StrEnum):
    """`text` for people; `json` for what collects logs."""

    text = "text"
    json = "json"


class Trigger(StrEnum):
    """`available-now` processes the backlog and exits; `continuous` keeps running."""

    available_now = "available-now"
    continuous = "continuous"


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


@dataclass(frozen=True)
class JobOptions:
    """The options of every job."""

    bootstrap_servers: BootstrapServers = None
    kafka_config: KafkaConfig = None
    secret_scope: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEHOUSE_SECRET_SCOPE",
            help="The Databricks secret scope of the secrets that the file names without one.",
            show_default=False,
        ),
    ] = None
    warehouse: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEHOUSE_WAREHOUSE",
            help="Where the tables are: a path or URI, or the name of a catalog on Databricks.",
            show_default=False,
        ),
    ] = None
    checkpoints: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEHOUSE_CHECKPOINTS",
            help="Where the streams keep their checkpoints: a path. Default: WAREHOUSE/_checkpoints.",
            show_default=False,
        ),
    ] = None
    schemas: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA=NAME[,…]",
            envvar="LAKEHOUSE_SCHEMAS",
            help=f"What schemas are called there, where not {', '.join(SCHEMAS)}.",
            show_default=False,
        ),
    ] = None
    contracts: ContractsFolder = None
    target: Annotated[str, typer.Option(envvar="LAKEHOUSE_TARGET", help=f"The environment: {', '.join(TARGETS)}.")] = (
        "local"
    )
    wait: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="MINUTES",
            envvar="LAKEHOUSE_WAIT",
            help="How long to wait for another run that works on the warehouse.",
        ),
    ] = 0
    master: Master = None
    spark_conf: SparkConf = None
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar="LAKEHOUSE_LOG_FORMAT", help="What is written meanwhile: text, or JSON a line."),
    ] = LogFormat.text
    as_json: AsJson = False

    def context(self, command: str, **more: Any) -> CommandContext:
        """What they mean. `more`: of the Settings. Raises SettingsError and ContractError for what does not fit."""
        of_settings = ("bootstrap_servers", "kafka_config", "secret_scope", "warehouse", "checkpoints", "schemas")
        return CommandContext(
            command=command,
            settings=settings(**{name: getattr(self, name) for name in (*of_settings, "target")}, **more),
            contracts=load_contracts(self.contracts),
            as_json=self.as_json,
            run_id=uuid4().hex,
            cluster=cluster(master=self.master, spark_conf=self.spark_conf or ()),
            wait=timedelta(minutes=self.wait),
            log_format=self.log_format,
        )


@dataclass(frozen=True)
class CommandContext:
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
class PassOptions:
    """How a command runs its jobs."""

    trigger: Annotated[
        Trigger, typer.Option(help="available-now processes the backlog and exits; continuous keeps running.")
    ] = Trigger.available_now
    dry_run: DryRun = False


@dataclass(frozen=True)
class AcceptOptions:
    """The options by which an operator lets tables and sources go on."""

    accept_rejects: Annotated[
        list[str] | None,
        typer.Option(
            help="A silver table that gate 1 has suspended, or would: this time its rejects go to quarantine, however"
            " many they are. May be given again for another table.",
            show_default=False,
        ),
    ] = None
    accept_missing: Annotated[
        list[str] | None,
        typer.Option(
            help="A source of which bronze has lost records before silver has read them: silver goes on without these."
            " May be given again for another source.",
            show_default=False,
        ),
    ] = None
    resume: Annotated[
        list[str] | None,
        typer.Option(
            help="A suspended silver table that is tried again with all its pending records, though neither its"
            " contract nor its rules have changed. May be given again for another table.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class Accepted:
    """What a person names: silver tables, and sources (`missing`) that go on without records that bronze has lost."""

    rejects: frozenset[str] = frozenset()
    resumed: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether any is named."""
        return bool(self.rejects or self.resumed or self.missing)


NOTHING_ACCEPTED = Accepted()


def accepted(chosen: CommandContext, options: AcceptOptions) -> Accepted:
    """What an operator accepts, or has tried again.

    Raises SettingsError for a table or a source that the contracts do not have.
    """
    rejects, resumed, missing = (
        tuple(names or ()) for names in (options.accept_rejects, options.resume, options.accept_missing)
    )
    for name in (*rejects, *resumed):
        require_table(chosen, name)
    for source in missing:
        if source not in chosen.contracts.topics.sources:
            sources = ", ".join(chosen.contracts.topics.sources)
            raise SettingsError(f"There is no source {source}.", hint=f"There are: {sources}.")
    return Accepted(*map(frozenset, (rejects, resumed, missing)))


def require_table(chosen: CommandContext, name: str) -> None:
    """Raise SettingsError when the contracts have no silver table of this name, and no rule may make one."""
    if name not in chosen.contracts.feeds and not chosen.contracts.may_be_discovered(name):
        known = ", ".join(sorted(chosen.contracts.feeds)) or "those that rules make"
        raise SettingsError(f"There is no silver table {name}.", hint=f"There are: {known}.")


def with_job_options(body: Callable[..., None]) -> Callable[..., None]:
    """The command `body(chosen, **own)`, with the options that every job has before its own."""
    with_groups = with_option_groups(body)
    _chosen, *own = inspect.signature(with_groups).parameters.values()

    def command(context: typer.Context, job: JobOptions, **given: Any) -> None:
        more = {name: given[name] for name in ("max_offsets_per_trigger",) if name in given}
        with_groups(chosen=job.context(context.command_path.split(" ", 1)[1], **more), **given)

    context, job, _given = inspect.signature(command, eval_str=True).parameters.values()
    return with_option_groups(_declared(command, body, [context, job, *own]))


def with_option_groups(body: Callable[..., None]) -> Callable[..., None]:
    """The command `body`, where a parameter that is a group, a dataclass of options, is given by the options in it."""
    declared = inspect.signature(body, eval_str=True).parameters
    groups = {name: given.annotation for name, given in declared.items() if _is_group(given.annotation)}
    options = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def command(**given: Any) -> None:
        filled = {
            name: group(**{option: given.pop(option) for option in options[name]}) for name, group in groups.items()
        }
        body(**given, **filled)

    return _declared(
        command,
        body,
        [option for name, given in declared.items() for option in options.get(name, {name: given}).values()],
    )


def _is_group(kind: Any) -> bool:
    return is_dataclass(kind) and kind is not CommandContext


def _declared(
    command: Callable[..., None], body: Callable[..., None], own: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """The command with the name and the help of `body`, and with these parameters, all given by keyword."""
    by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    command.__name__ = body.__name__
    command.__doc__ = body.__doc__
    cast(Any, command).__signature__ = inspect.Signature(by_keyword)
    return command
