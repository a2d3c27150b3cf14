"""The `lakehouse` command: one sub-command a job, and `run` for all of them.

Exit codes: 0 done; 1 failed; 2 a mistake in a parameter or contract; 3 a quality gate holds a source back; 4 Kafka;
5 a table; 6 something is not installed.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from lakehouse.config import TARGETS, Settings, settings
from lakehouse.contract_files import load_contracts
from lakehouse.contracts import Contracts
from lakehouse.errors import LakehouseError
from lakehouse.steps import Steps, wide_console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    name="lakehouse",
    help="Debezium change events of PostgreSQL and MySQL to Delta tables and one BigQuery-bound topic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        envvar="LAKEHOUSE_BOOTSTRAP_SERVERS", help="Kafka brokers, HOST:PORT[,HOST:PORT…].", show_default=False
    ),
]
WarehouseOption = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        envvar="LAKEHOUSE_WAREHOUSE",
        help="Where the tables are: a path or URI, or the name of a catalog on Databricks.",
        show_default=False,
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        envvar="LAKEHOUSE_CHECKPOINTS",
        help="Where the streams keep their checkpoints: a path. [default: WAREHOUSE/_checkpoints]",
        show_default=False,
    ),
]
Target = Annotated[str, typer.Option(envvar="LAKEHOUSE_TARGET", help=f"The environment: {', '.join(TARGETS)}.")]
MaxOffsets = Annotated[
    int | None,
    typer.Option(
        envvar="LAKEHOUSE_MAX_OFFSETS_PER_TRIGGER",
        min=1,
        help="The most records that bronze takes into one batch. [default: all there are]",
        show_default=False,
    ),
]


@app.command()
def bronze(
    bootstrap_servers: BootstrapServers = None,
    warehouse: WarehouseOption = None,
    checkpoints: Checkpoints = None,
    target: Target = "local",
    max_offsets_per_trigger: MaxOffsets = None,
) -> None:
    """Append every new record of the source topics to the bronze tables.

    Example: lakehouse bronze --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    chosen = settings(
        warehouse=warehouse,
        checkpoints=checkpoints,
        target=target,
        bootstrap_servers=bootstrap_servers,
        max_offsets_per_trigger=max_offsets_per_trigger,
    )
    known = _topics_of(chosen)

    def job(spark: SparkSession, contracts: Contracts, steps: Steps, _run_id: str) -> list[LakehouseError]:
        from cli.jobs import bronze_job

        bronze_job(spark, chosen, contracts, steps, known=known)
        return []

    _in_session(job)


@app.command()
def silver(
    bootstrap_servers: BootstrapServers = None,
    warehouse: WarehouseOption = None,
    checkpoints: Checkpoints = None,
    target: Target = "local",
) -> None:
    """Judge, fold and merge what is new in bronze into the silver tables. Needs no broker.

    Example: lakehouse silver --warehouse ./warehouse
    """
    chosen = settings(warehouse=warehouse, checkpoints=checkpoints, target=target, bootstrap_servers=bootstrap_servers)

    def job(spark: SparkSession, contracts: Contracts, steps: Steps, run_id: str) -> list[LakehouseError]:
        from cli.jobs import silver_job

        silver_job(spark, chosen, contracts, steps, run_id=run_id)
        return []

    _in_session(job)


@app.command()
def gold(
    bootstrap_servers: BootstrapServers = None,
    warehouse: WarehouseOption = None,
    checkpoints: Checkpoints = None,
    target: Target = "local",
) -> None:
    """Check the silver tables and bring gold.unified_orders up to them. Needs no broker.

    Example: lakehouse gold --warehouse ./warehouse
    """
    chosen = settings(warehouse=warehouse, checkpoints=checkpoints, target=target, bootstrap_servers=bootstrap_servers)

    def job(spark: SparkSession, contracts: Contracts, steps: Steps, run_id: str) -> list[LakehouseError]:
        from cli.jobs import gold_job

        gold_job(spark, chosen, contracts, steps, run_id=run_id)
        return []

    _in_session(job)


@app.command()
def publish(
    bootstrap_servers: BootstrapServers = None,
    warehouse: WarehouseOption = None,
    checkpoints: Checkpoints = None,
    target: Target = "local",
) -> None:
    """Send every change of gold since the last publication to the unified topic.

    Exits with 3, after publishing, when gate 2 holds a source back from gold.

    Example: lakehouse publish --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    chosen = settings(warehouse=warehouse, checkpoints=checkpoints, target=target, bootstrap_servers=bootstrap_servers)
    _topics_of(chosen)

    def job(spark: SparkSession, contracts: Contracts, steps: Steps, _run_id: str) -> list[LakehouseError]:
        from cli.jobs import publish_job

        publish_job(spark, chosen, contracts, steps)
        return []

    _in_session(job)


@app.command()
def run(
    bootstrap_servers: BootstrapServers = None,
    warehouse: WarehouseOption = None,
    checkpoints: Checkpoints = None,
    target: Target = "local",
    max_offsets_per_trigger: MaxOffsets = None,
) -> None:
    """Run bronze, silver, gold and publish, one after the other, in one Spark session.

    Example: lakehouse run --bootstrap-servers 127.0.0.1:9092 --warehouse ./warehouse
    """
    chosen = settings(
        warehouse=warehouse,
        checkpoints=checkpoints,
        target=target,
        bootstrap_servers=bootstrap_servers,
        max_offsets_per_trigger=max_offsets_per_trigger,
    )
    known = _topics_of(chosen)

    def job(spark: SparkSession, contracts: Contracts, steps: Steps, run_id: str) -> list[LakehouseError]:
        from cli.jobs import all_jobs

        return all_jobs(spark, chosen, contracts, steps, known=known, run_id=run_id)

    _in_session(job)


@app.command()
def jars() -> None:
    """Fetch the pinned Java jars that local runs need into the cache. Databricks needs none of them.

    Example: lakehouse jars
    """
    from lakehouse.jars import SPARK_MANIFEST, cache_dir, fetch, load_manifest

    console = wide_console(stderr=True)
    with Steps(console).step("jars", "fetching what is missing") as note:
        fetched = fetch(load_manifest(SPARK_MANIFEST))
        note(f"{len(fetched)} fetched into {cache_dir()}")


def _topics_of(chosen: Settings) -> dict[str, tuple[int, ...]]:
    """Ask the broker first: that it does not answer is known before Spark has started."""
    from lakehouse.kafka import partitions

    return dict(partitions(chosen.brokers()))


def _in_session(job: Callable[[SparkSession, Contracts, Steps, str], Sequence[LakehouseError]]) -> None:
    """Run the job in a Spark session of its own, and end with the exit code of its first failure."""
    from lakehouse.session import spark_session

    contracts = load_contracts()
    steps = Steps(wide_console(stderr=True))
    with steps.step("session", "starting Spark") as note:
        spark = spark_session()
        note(f"Spark {spark.version}")
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler of Ctrl-C raises, and the exception is lost when Python runs a finalizer just then. The
        # system's way ends the process, and Spark's Java with it; the next run resumes.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    failures = job(spark, contracts, steps, uuid4().hex)
    for failure in failures:
        _say(failure)
    if failures:
        raise typer.Exit(failures[0].exit_code)


def _say(error: LakehouseError) -> None:
    wide_console(stderr=True).print(f"[red]Error:[/] {error}", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an explained failure is one sentence, no trace, and ends the process with its exit code.

    Returns when all went well: Databricks takes every SystemExit of a wheel task for a failure, that with 0 too.
    """
    try:
        app(args=list(arguments) if arguments is not None else None)
    except LakehouseError as error:
        _say(error)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code:
            raise


def bronze_job() -> None:
    """`lakehouse bronze` as an entry point of its own."""
    main(["bronze", *sys.argv[1:]])


def silver_job() -> None:
    """`lakehouse silver` as an entry point of its own."""
    main(["silver", *sys.argv[1:]])


def gold_job() -> None:
    """`lakehouse gold` as an entry point of its own."""
    main(["gold", *sys.argv[1:]])


def publish_job() -> None:
    """`lakehouse publish` as an entry point of its own."""
    main(["publish", *sys.argv[1:]])
