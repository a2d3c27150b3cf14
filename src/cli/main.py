"""The `lakehouse` command: one sub-command a job, `run` for all of them, and what people need around them.

Exit codes: 0 done; 1 failed; 2 a mistake in a parameter or contract; 3 a quality gate blocks a source; 4 Kafka
or Kafka Connect; 5 a table; 6 something is not installed; 7 another run works on the warehouse; 8 a record is not
accounted for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Annotated, NoReturn
from uuid import uuid4

import typer

from cli import contracts
from cli.connect import commands as connect
from cli.continuous import TURN_SECONDS, Broker, go_on
from cli.monitoring import commands as monitoring
from cli.monitoring.metrics import Metrics
from cli.opening import at_work, opened
from cli.options import (
    NOTHING_ACCEPTED,
    AcceptColumns,
    Accepted,
    AcceptMissing,
    AcceptRejects,
    AsJson,
    Chosen,
    DryRun,
    LogFormat,
    MaxOffsets,
    MetricsFile,
    MetricsHost,
    MetricsPort,
    Resume,
    Trigger,
    WhenItEnds,
    accepted,
    with_job_options,
)
from cli.output import answer, say
from cli.tables import offsets, optimize, purge, quality, quarantine, unlock, verify
from lakehouse.errors import GateHeldError, LakehouseError, SettingsError
from lakehouse.failures import unexpected
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.steps import LoggedSteps, Steps, wide_console

if TYPE_CHECKING:
    from cli.settled import Look
    from lakehouse.spark.lease import Lease
    from lakehouse.spark.tables import Warehouse

Paths = Annotated[bool, typer.Option("--paths", help="Print where they are, as spark-submit --jars takes it.")]
EVERY_JOB = ("bronze", "silver", "gold", "publish")

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
optimize.add_to(app)
app.add_typer(offsets.app)
app.add_typer(quarantine.app)
monitoring.add_to(app)
verify.add_to(app)
unlock.add_to(app)
app.add_typer(quality.app)
app.add_typer(connect.app)


@app.command()
@with_job_options
def bronze(
    chosen: Chosen,
    *,
    max_offsets_per_trigger: MaxOffsets = None,
    trigger: WhenItEnds = Trigger.available_now,
    dry_run: DryRun = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Append every new record of the source topics to the bronze tables.

    Example: lakehouse bronze --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    metrics = Metrics(metrics_file, metrics_port, metrics_host)
    _run_jobs(chosen, ("bronze",), metrics, dry_run=dry_run, trigger=trigger)


@app.command()
@with_job_options
def silver(
    chosen: Chosen,
    *,
    accept_rejects: AcceptRejects = None,
    accept_columns: AcceptColumns = None,
    accept_missing: AcceptMissing = None,
    resume: Resume = None,
    trigger: WhenItEnds = Trigger.available_now,
    dry_run: DryRun = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Judge, fold and merge what is new in bronze into the silver tables. Needs no broker; for Avro a schema registry.

    Exits with 3 when a table is suspended; the others went on.

    Example: lakehouse silver --warehouse ./warehouse
    """
    given = accepted(chosen, accept_rejects, accept_columns, resume, accept_missing)
    metrics = Metrics(metrics_file, metrics_port, metrics_host)
    _run_jobs(chosen, ("silver",), metrics, dry_run=dry_run, given=given, trigger=trigger)


@app.command()
@with_job_options
def gold(
    chosen: Chosen,
    *,
    full_refresh: Annotated[bool, typer.Option("--full-refresh", help="Compute every order again.")] = False,
    trigger: WhenItEnds = Trigger.available_now,
    dry_run: DryRun = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Check the silver tables and bring gold.unified_orders, its marts and the joins up to them. Needs no broker.

    With --full-refresh every order of every source that passes gate 2 is computed again from silver, and replaces what
    gold has, in one commit: for a gold table that was damaged, or whose contract has other columns now.
    Orders that stay as they are keep their processed_at.

    Example: lakehouse gold --warehouse ./warehouse
    """
    metrics = Metrics(metrics_file, metrics_port, metrics_host)
    _run_jobs(chosen, ("gold",), metrics, dry_run=dry_run, full_refresh=full_refresh, trigger=trigger)


@app.command()
@with_job_options
def publish(
    chosen: Chosen,
    *,
    republish: Annotated[bool, typer.Option("--republish/--no-republish", help="Send every order once more.")] = False,
    trigger: WhenItEnds = Trigger.available_now,
    dry_run: DryRun = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Send every change of gold since the last publication to the unified topic.

    Then every upsert topic of gold/tables.yaml is brought up to its table.

    With --republish every row is sent once more, and a delete for every key that a topic has and its table has not: for
    readers that have lost something. The topic is not deleted, and what it has stays readable meanwhile.

    Exits with 3, after publishing, when gate 2 blocks a source, from gold or from the topic.

    Example: lakehouse publish --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    metrics = Metrics(metrics_file, metrics_port, metrics_host)
    _run_jobs(chosen, ("publish",), metrics, dry_run=dry_run, republish=republish, trigger=trigger)


@app.command()
@with_job_options
def run(
    chosen: Chosen,
    *,
    max_offsets_per_trigger: MaxOffsets = None,
    accept_rejects: AcceptRejects = None,
    accept_columns: AcceptColumns = None,
    accept_missing: AcceptMissing = None,
    resume: Resume = None,
    trigger: WhenItEnds = Trigger.available_now,
    dry_run: DryRun = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
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
    given = accepted(chosen, accept_rejects, accept_columns, resume, accept_missing)
    metrics = Metrics(metrics_file, metrics_port, metrics_host)
    _run_jobs(chosen, EVERY_JOB, metrics, dry_run=dry_run, given=given, trigger=trigger)


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


def _look_for_news(chosen: Chosen, known: TopicPartitions, steps: Steps, with_spark: Callable[[], Warehouse]) -> Look:
    """Whether there is anything to do: seen without Spark, where tables are files."""
    from cli.settled import look_for_news
    from monitoring.readings.tables import tables_at

    tables = tables_at(chosen.settings.address, with_spark)
    return look_for_news(chosen.settings, chosen.contracts, known=known, tables=tables, steps=steps)


def _run_jobs(
    chosen: Chosen,
    names: Sequence[str],
    metrics: Metrics,
    *,
    dry_run: bool,
    given: Accepted = NOTHING_ACCEPTED,
    full_refresh: bool = False,
    republish: bool = False,
    trigger: Trigger = Trigger.available_now,
) -> None:
    """Run the jobs in a Spark session of their own, and end with the exit code of the first failure."""
    for is_asked, what in ((dry_run, "dry run"), (full_refresh, "full refresh"), (republish, "republication")):
        if is_asked and trigger is Trigger.continuous:
            raise SettingsError(f"A {what} has one pass.", remedy="Leave --trigger continuous out.")
    # The broker first: that it does not answer is known before Spark has started.
    broker = Broker(chosen.settings, chosen.contracts.topics, names)
    known = broker.known()
    steps = chosen.steps()
    with_spark = cache(partial(opened, chosen, steps, is_lasting=trigger is Trigger.continuous))
    look: Look | None = None
    if names == EVERY_JOB and trigger is Trigger.available_now and not (dry_run or given):
        look = _look_for_news(chosen, known, steps, with_spark)
        if look.ends_a_run:
            metrics.write(chosen, with_spark, say=steps.say)
            if chosen.as_json:
                answer(chosen.command, {"nothing_new": True}, [], run=chosen.run_id, dry_run=False)
            return
    _run_passes(
        chosen,
        names,
        metrics=metrics,
        steps=steps,
        warehouse=with_spark(),
        broker=broker,
        known=known,
        dry_run=dry_run,
        given=given,
        look=look,
        full_refresh=full_refresh,
        republish=republish,
        trigger=trigger,
    )


def _run_passes(
    chosen: Chosen,
    names: Sequence[str],
    *,
    metrics: Metrics,
    steps: Steps,
    warehouse: Warehouse,
    broker: Broker,
    known: TopicPartitions,
    dry_run: bool,
    given: Accepted,
    look: Look | None,
    full_refresh: bool,
    republish: bool,
    trigger: Trigger,
) -> None:
    """Run the jobs once, or again and again, each time as a run of its own."""
    from cli.jobs import Work, run_jobs
    from cli.settled import run_unless_settled
    from lakehouse.consumed import Consumed
    from silver.audit import Memory

    turn: Lease | None = None
    memories: dict[str, Memory] = {}
    consumed = Consumed()
    is_first = True
    known_failures: frozenset[str] = frozenset()

    def one_pass(known: TopicPartitions, lease: Lease | None) -> None:
        """All jobs once, as a run of its own, with the warehouse locked."""
        nonlocal turn, memories, consumed, is_first, known_failures
        if lease is not turn:  # between two turns others may have written
            turn, memories, consumed = lease, {}, Consumed()
        steps.run_id = run_id = next(run_ids)
        work = Work(
            warehouse.spark,
            chosen.settings,
            chosen.contracts,
            steps,
            known,
            run_id,
            given.rejects,
            given.columns,
            given.resumed if is_first else frozenset(),
            given.missing if is_first else frozenset(),
            full_refresh=full_refresh,
            republish=republish,
            memories=memories,
            consumed=consumed,
        )
        is_first = False
        before_each = lease.check if lease else None
        if look is not None:
            outcome = run_unless_settled(work, look, before_each=before_each)
        else:
            outcome = run_jobs(names, work, dry_run=dry_run, before_each=before_each)
        for failure in outcome.failures:
            if str(failure) not in known_failures:  # what stays suspended or blocked is said once
                say(failure, steps)
        known_failures = frozenset(map(str, outcome.failures))
        if not dry_run:
            metrics.write(chosen, lambda: warehouse, say=steps.say)
        if chosen.as_json:
            answer(chosen.command, outcome.results, outcome.failures, run=run_id, dry_run=dry_run)
        # A gate holds its own: everything else went on, and goes on.
        is_ending = trigger is not Trigger.continuous
        ending = [one for one in outcome.failures if is_ending or not isinstance(one, GateHeldError)]
        if ending:
            raise typer.Exit(ending[0].exit_code)

    run_ids = chain([chosen.run_id], iter(lambda: uuid4().hex, None))
    with metrics.served(chosen, lambda: warehouse):
        if dry_run:
            one_pass(known, None)
        elif trigger is Trigger.available_now:
            with at_work(chosen, warehouse, steps) as lease:
                one_pass(known, lease)
        else:
            go_on(
                one_pass,
                turn=partial(at_work, chosen, warehouse, steps),
                # Jobs that are processes of their own come in turn.
                turn_seconds=TURN_SECONDS if names == EVERY_JOB else 0.0,
                broker=broker,
                retry_policy=RetryPolicy(chosen.command, steps.say),
            )


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
