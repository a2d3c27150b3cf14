"""The `lakehouse` command: one sub-command a job, `run` for all of them, and what people need around them.

Exit codes: 0 done; 1 failed; 2 a mistake in a parameter or contract; 3 a quality gate blocks a source; 4 Kafka
or Kafka Connect; 5 a table; 6 something is not installed; 7 another run works on the warehouse; 8 a record is not
accounted for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, NoReturn

import typer

from cli import contracts, unlock
from cli.connect import commands as connect
from cli.erasure import commands as forget
from cli.monitoring import commands as monitoring
from cli.monitoring.metrics import Metrics
from cli.options import (
    AcceptOptions,
    AsJson,
    CommandContext,
    DryRun,
    LogFormat,
    MaxOffsets,
    PassOptions,
    accepted,
    with_job_options,
)
from cli.output import answer, say
from cli.quarantine import commands as quarantine
from cli.running import EVERY_JOB, run_command
from cli.tables import offsets, optimize, purge, quality, schema, verify
from lakehouse.errors import LakehouseError
from lakehouse.failures import unexpected
from lakehouse.process.steps import LoggedSteps, Steps, wide_console

Paths = Annotated[bool, typer.Option("--paths", help="Print where they are, as spark-submit --jars takes it.")]

app = typer.Typer(
    name="lakehouse",
    help="Debezium change events of PostgreSQL and MySQL to Delta tables and one BigQuery-bound topic.",
    epilog="Exit codes: 0 done, 1 failed, 2 a mistake in a parameter or contract, 3 a quality gate holds a source back,"
    " 4 Kafka or Connect, 5 a table, 6 something is not installed, 7 another run works on the warehouse,"
    " 8 a record is not accounted for.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
contracts.add_to(app)
purge.add_to(app)
forget.add_to(app)
optimize.add_to(app)
app.add_typer(offsets.app)
app.add_typer(quarantine.app)
app.add_typer(schema.app)
monitoring.add_to(app)
verify.add_to(app)
unlock.add_to(app)
app.add_typer(quality.app)
app.add_typer(connect.app)


@app.command()
@with_job_options
def bronze(
    chosen: CommandContext,
    *,
    max_offsets_per_trigger: MaxOffsets = None,
    passes: PassOptions,
    metrics: Metrics,
) -> None:
    """Append every new record of the source topics to the bronze tables.

    Example: lakehouse bronze --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    run_command(chosen, ("bronze",), passes, metrics)


@app.command()
@with_job_options
def silver(
    chosen: CommandContext,
    *,
    accept: AcceptOptions,
    passes: PassOptions,
    metrics: Metrics,
) -> None:
    """Judge, fold and merge what is new in bronze into the silver tables. Needs no broker; for Avro a schema registry.

    Exits with 3 when a table is suspended; the others went on.

    Example: lakehouse silver --warehouse ./warehouse
    """
    run_command(chosen, ("silver",), passes, metrics, given=accepted(chosen, accept))


@app.command()
@with_job_options
def gold(
    chosen: CommandContext,
    *,
    full_refresh: Annotated[bool, typer.Option("--full-refresh", help="Compute every order again.")] = False,
    passes: PassOptions,
    metrics: Metrics,
) -> None:
    """Check the silver tables and bring gold.unified_orders, its marts and the joins up to them. Needs no broker.

    With --full-refresh every order of every source that passes gate 2 is computed again from silver, and replaces what
    gold has, in one commit: for a gold table that was damaged, or whose contract has other columns now.
    Orders that stay as they are keep their processed_at.

    Example: lakehouse gold --warehouse ./warehouse
    """
    run_command(chosen, ("gold",), passes, metrics, full_refresh=full_refresh)


@app.command()
@with_job_options
def publish(
    chosen: CommandContext,
    *,
    republish: Annotated[bool, typer.Option("--republish/--no-republish", help="Send every order once more.")] = False,
    passes: PassOptions,
    metrics: Metrics,
) -> None:
    """Send every change of gold since the last publication to the unified topic.

    Then every upsert topic of gold/tables.yaml is brought up to its table.

    With --republish every row is sent once more, and a delete for every key that a topic has and its table has not: for
    readers that have lost something. The topic is not deleted, and what it has stays readable meanwhile.

    Exits with 3, after publishing, when gate 2 blocks a source, from gold or from the topic.

    Example: lakehouse publish --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    run_command(chosen, ("publish",), passes, metrics, republish=republish)


@app.command()
@with_job_options
def run(
    chosen: CommandContext,
    *,
    max_offsets_per_trigger: MaxOffsets = None,
    accept: AcceptOptions,
    passes: PassOptions,
    metrics: Metrics,
) -> None:
    """Run bronze, silver, gold and publish, one after the other, in one Spark session.

    When no record has come, and no table has changed, since the last run that ended well, none of them begins.

    With --trigger continuous all of them run again and again, until the process is ended or one of them fails, which
    gives the exit code. A table that is suspended, or a source that a gate blocks, does not end it: that is said once,
    and again when it changes. A pass begins as soon as there are new records, and every minute without. The warehouse
    is unlocked for maintenance and for people after a pass that leaves no new records, and after the pass in which a
    minute ends. Every job by itself can be continuous too, and unlocks it after every pass; give --wait to several such
    processes.

    Example: lakehouse run --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    run_command(chosen, EVERY_JOB, passes, metrics, given=accepted(chosen, accept))


@app.command()
def jars(paths: Paths = False, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Fetch the pinned Java jars that Spark needs into the cache. Databricks needs none of them.

    Example: lakehouse jars
    """
    from lakehouse.spark.jars import SPARK_MANIFEST, cache_dir, fetch, load_manifest, missing, spark_jars

    wanted = load_manifest(SPARK_MANIFEST)
    with Steps(wide_console(stderr=True)).step("jars", "fetching what is missing") as note:
        names = [jar.file_name for jar in (missing(wanted) if dry_run else fetch(wanted))]
        note(f"{len(names)} {'would be fetched' if dry_run else 'fetched'} into {cache_dir()}")
    if as_json:
        answer("jars", {"cache": cache_dir(), "fetched": names, "dry_run": dry_run})
    elif paths:
        typer.echo(",".join(str(path) for path in spark_jars()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a failure is one sentence, no trace, and ends the process with its exit code.

    Returns when all went well: Databricks takes every SystemExit of a wheel task for a failure, that with 0 too.
    """
    given = list(arguments) if arguments is not None else sys.argv[1:]
    try:
        app(args=given, prog_name="lakehouse")
    except LakehouseError as error:
        _end(error, given)
    except SystemExit as end:
        if end.code:
            raise
    except Exception as error:
        if os.environ.get("LAKEHOUSE_TRACE"):
            raise
        _end(unexpected(error, job=f"lakehouse {_command(given)}"), given)


def _end(error: LakehouseError, given: Sequence[str]) -> NoReturn:
    say(error, LoggedSteps(sys.stderr) if _logs_json(given) else None)
    if "--json" in given:
        answer(_command(given), {}, [error])
    sys.exit(error.exit_code)


def _logs_json(given: Sequence[str]) -> bool:
    """Whether the command was to log as JSON. It may have failed before its options were read."""
    named = [after for option, after in pairwise(given) if option == "--log-format"]
    asked = [one.removeprefix("--log-format=") for one in given if one.startswith("--log-format=")]
    return (named or asked or [os.environ.get("LAKEHOUSE_LOG_FORMAT", "")])[-1] == LogFormat.json


def _command(given: Sequence[str]) -> str:
    return next((word for word in given if not word.startswith("-")), "")
