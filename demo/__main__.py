"""The demo: the whole way from both databases' recorded change events to the unified topic, on a real broker.

python -m demo [--warehouse FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn
from uuid import uuid4

import yaml
from rich.console import Console

from cli.jobs import JOBS, RunContext, run_jobs
from cli.monitoring.report import write
from cli.monitoring.shared import published_versions
from demo import report
from demo.avro import key_in_avro, schema_registry, value_in_avro
from demo.broker import embedded_broker
from demo.check import compacted_view, silver_differences, topic_differences
from demo.replay import Recorded, replay
from lakehouse.config import Settings, settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import LakehouseError
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import FAILED, PASSED, styled
from lakehouse.quality.data_docs import DATA_DOCS, write_data_docs
from lakehouse.spark.session import spark_session
from monitoring.page import page
from monitoring.readings.tables import DeltaFiles
from monitoring.status import View, status_of

# Recording: its topics, and the topics of our contracts that they stand for.
RECORDINGS = {
    "pg_big_20k": {
        "pgbig2.public.orders": "postgres_prod_tables.public.orders",
        "__debezium-heartbeat.pgbig2": "__debezium-heartbeat.postgres_prod_tables",
    },
    "mysql_big_20k": {
        "mybig2.ecommerce_big2.orders": "mysql_prod_tables.ecommerce.orders",
        "__debezium-heartbeat.mybig2": "__debezium-heartbeat.mysql_prod_tables",
    },
    "outbox_pg_envelope": {"outbox.event.postgres.orders": "outbox.event.postgres.orders"},
    "outbox_mysql_envelope": {"outbox.event.mysql.orders": "outbox.event.mysql.orders"},
}
# This one is sent in Avro, with a schema registry; the others in JSON.
IN_AVRO = "mysql_big_20k"
# MySQL's recordings are of other databases than the one that our contract names.
TABLES_OF_MYSQL = r"ecommerce_\w+\.orders"
# So many records of every partition are kept for a second, incremental run.
LAST = 20
DATA = Path(__file__).parent / "data"
REPORT = "report.html"
WAREHOUSE = Path(__file__).parent.parent / "warehouse" / "demo"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every check passed, 1 when one failed, the exit code of the error otherwise."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Run the whole flow on recorded change events.")
    parser.add_argument("--warehouse", type=Path, default=WAREHOUSE, help="where the tables go (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=DATA, help="the recordings and their final tables")
    options = parser.parse_args(argv)
    folder: Path = options.warehouse.absolute()
    console = wide_console()
    started = time.monotonic()
    try:
        with ExitStack() as running:
            differences = run_demo(console, folder, data=options.data, running=running)
    except LakehouseError as error:
        Steps(console).error(type(error).__name__, str(error))
        return error.exit_code
    for sentence in differences:
        console.print(styled(FAILED, f" {sentence}"), soft_wrap=True)
    if differences:
        return 1
    done = " Silver is exactly the final state of its source tables, and the topic is exactly gold."
    console.print(styled(PASSED, done))
    console.print(f"\nDone in {time.monotonic() - started:.0f} s. How to go on:")
    for what, how in (
        ("see the flow", f"Report: {folder / REPORT}"),
        ("see the quality", f"Data Docs: {folder / DATA_DOCS / 'index.html'}"),
        ("query the tables", f"Delta tables below {folder}"),
        ("your own broker", "lakehouse run --bootstrap-servers HOST:PORT --warehouse ./warehouse/own"),
        ("what the tables are", "README.md, and src/{bronze,silver,gold}/*.yaml"),
    ):
        console.print(f"  {what:<20} {how}", soft_wrap=True)
    return 0


def run_demo(console: Console, folder: Path, *, data: Path, running: ExitStack) -> list[str]:
    """Replay, run the flow, print what came of it; the sentences of the checks that failed.

    What it starts is in `running`, for the caller to stop. Raises the first error of a job that failed.
    """
    contracts = contracts_of_recordings(load_contracts())
    steps = Steps(console)
    end_on_signals(console, running)
    bootstrap_servers = running.enter_context(embedded_broker())
    registry = running.enter_context(schema_registry())
    console.print(f"An embedded broker runs at {bootstrap_servers}; it ends with this demo.")
    if folder.exists():
        console.print(f"Removing the tables of the demo before: {folder}", soft_wrap=True)
        shutil.rmtree(folder)
    _replay(steps, bootstrap_servers, data, only_last=False)
    connection = Path(running.enter_context(TemporaryDirectory(prefix="demo-"))) / "kafka.yaml"
    addresses = {"bootstrap_servers": bootstrap_servers, "schema_registry": {"url": registry}}
    connection.write_text(yaml.safe_dump(addresses), encoding="utf-8")
    chosen = settings(warehouse=str(folder), kafka_config=connection)
    with steps.step("session", "starting Spark") as note:
        spark = spark_session()
        note(f"Spark {spark.version}")
    end_on_signals(console, running)  # Spark has just put its own handler of Ctrl-C in place of ours
    run_id = uuid4().hex
    for only_last in (False, True):
        if only_last:
            console.print(f"Now the last {LAST} records of every partition, as a next run meets them.")
            _replay(steps, bootstrap_servers, data, only_last=True)
        this_run = uuid4().hex if only_last else run_id
        work = RunContext(spark, chosen, contracts, steps, partitions(chosen.kafka()), this_run)
        outcome = run_jobs(tuple(JOBS), work)
        if outcome.failures:
            raise outcome.failures[0]
    warehouse = Warehouse(spark, chosen.warehouse, chosen.checkpoints)
    with steps.step("check", "comparing silver with its sources, and the topic with gold"):
        topic = contracts.gold.unified_topic.topic
        differences = [
            *silver_differences(warehouse, data=data),
            *topic_differences(warehouse, bootstrap_servers=bootstrap_servers, topic=topic),
        ]
    print_results(console, warehouse, contracts, chosen, run_id)
    with steps.step("data docs", "pages of the rules, and of what came of them"):
        write_data_docs(warehouse, contracts, folder / DATA_DOCS)
    with steps.step("report", "the flow as one page"):
        tables, kafka = DeltaFiles(chosen.address), chosen.kafka()
        view = View(contracts, tables, kafka, published=partial(published_versions, contracts, tables, kafka))
        write(page(status_of(view)), folder / REPORT)
    return differences


def contracts_of_recordings(packaged: Contracts) -> Contracts:
    """The packaged contracts with the MySQL tables that the recordings are of."""
    mysql = packaged.topics.sources["mysql"]
    orders = mysql.feeds["mysql_orders"].model_copy(update={"tables": (), "table_patterns": (TABLES_OF_MYSQL,)})
    changed = mysql.model_copy(update={"feeds": {**mysql.feeds, "mysql_orders": orders}})
    sources = {**packaged.topics.sources, "mysql": changed}
    return packaged.model_copy(update={"topics": packaged.topics.model_copy(update={"sources": sources})})


def _replay(steps: Steps, bootstrap_servers: str, data: Path, *, only_last: bool) -> None:
    """Produce the recordings: all but the last records of every partition, or these."""
    with steps.step("replay", "producing the recorded change events") as note:
        sent: Counter[str] = Counter()
        for recording, topics in RECORDINGS.items():
            file = data / f"{recording}.jsonl.gz"
            as_sent = in_avro if recording == IN_AVRO else None
            sent.update(replay(bootstrap_servers, file, topics=topics, last=LAST, only_last=only_last, as_sent=as_sent))
        note(f"{sent.total():,} records into {len(sent)} topics, those of MySQL's orders in Avro")


def in_avro(record: Recorded) -> Recorded:
    """The record as the Avro converter would have written it; a heartbeat as it is."""
    if not record.topic.endswith(".orders") or record.key is None:
        return record
    value = None if record.value is None else value_in_avro(str(record.value))
    return replace(record, key=key_in_avro(str(record.key)), value=value)


def print_results(console: Console, warehouse: Warehouse, contracts: Contracts, chosen: Settings, run_id: str) -> None:
    """What an analyst would want to see."""
    orders = warehouse.read("gold.unified_orders")
    topic = contracts.gold.unified_topic.topic
    view = compacted_view(chosen.kafka().bootstrap_servers, topic)
    for table in (
        report.rows_by_layer(warehouse, contracts),
        report.quality(warehouse, run_id),
        report.quarantine(warehouse),
        report.fulfillment(orders),
        report.sample(orders),
    ):
        console.print()
        console.print(table)
    console.print(f"\nTopic {topic} holds {len(view):,} orders, one a composite_key.\n")


def end_on_signals(console: Console, running: ExitStack) -> None:
    """From now on, Ctrl-C and TERM stop what is running and end the process, with 128 + the signal's number.

    They do not raise: an exception would be lost when the signal comes while Python runs one of py4j's finalizers.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for handled in (signal.SIGINT, signal.SIGTERM):
            signal.signal(handled, signal.SIG_IGN)
        console.print("\nStopping; the tables stay as the last step left them.")
        running.close()
        os._exit(128 + number)  # Spark's Java sees its input end, and ends

    for handled in (signal.SIGINT, signal.SIGTERM):
        signal.signal(handled, end)


if __name__ == "__main__":
    sys.exit(main())
