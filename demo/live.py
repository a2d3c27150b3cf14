"""The demo on real servers: orders written to PostgreSQL and MySQL arrive in gold and in the unified topic.

python -m demo.live [--warehouse FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from cli.jobs import JOBS, RunContext, run_jobs
from cli.main import app
from demo import report
from demo.__main__ import end_on_signals
from demo.check import as_text, differences, topic_differences
from demo.stack.set_up import set_up, variables
from demo.stack.stack import Stack, live_stack
from demo.stack.topics import wait_for
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import LakehouseError
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import FAILED, PASSED, new_table, styled
from lakehouse.spark.session import spark_session

ROOT = Path(__file__).parent.parent
WAREHOUSE = ROOT / "warehouse" / "demo-live"
ORDERS = 500
STATUSES = ("pending", "completed", "cancelled", "shipped")
# The databases of the packaged contracts: their orders' silver table, and the topics of orders and of the outbox.
FEEDS = {
    "postgresql": ("silver.postgres_orders", "postgres_prod_tables.public.orders", "outbox.event.postgres.orders"),
    "mysql": ("silver.mysql_orders", "mysql_prod_tables.ecommerce.orders", "outbox.event.mysql.orders"),
}
COLUMNS = ["order_id", "customer_id", "product_id", "status", "total_amount", "created_at", "updated_at", "note"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every check passed, 1 when one failed, the exit code of the error otherwise."""
    parser = argparse.ArgumentParser(prog="python -m demo.live", description="Run the whole flow on real databases.")
    parser.add_argument("--warehouse", type=Path, default=WAREHOUSE, help="where the tables go (default: %(default)s)")
    folder: Path = parser.parse_args(argv).warehouse.absolute()
    console = wide_console()
    try:
        with ExitStack() as running:
            differing = run_demo(console, folder, running=running)
    except LakehouseError as error:
        Steps(console).error(type(error).__name__, str(error))
        return error.exit_code
    for sentence in differing:
        console.print(styled(FAILED, f" {sentence}"), soft_wrap=True)
    if differing:
        return 1
    done = " Silver is exactly the tables of both databases, and the topic is exactly gold."
    console.print(styled(PASSED, done))
    console.print("\nHow to set this up on servers of your own: docs/connect.md")
    return 0


def run_demo(console: Console, folder: Path, *, running: ExitStack) -> list[str]:
    """Start the servers, write orders twice, follow them to the topic; the sentences of the checks that failed.

    What it starts is in `running`, for the caller to stop. Raises the first error of a job that failed.
    """
    contracts, steps = load_contracts(), Steps(console)
    end_on_signals(console, running)
    with steps.step("servers", "starting PostgreSQL, MySQL, MariaDB, a broker and Kafka Connect") as note:
        stack = running.enter_context(live_stack())
        note("PostgreSQL, MySQL, MariaDB, a broker and Kafka Connect run, on loopback, and end with this demo")
    with steps.step("databases", "running the files of resources/databases"):
        set_up(stack)
    _deploy(console, stack)
    if folder.exists():
        console.print(f"Removing the tables of the demo before: {folder}", soft_wrap=True)
        shutil.rmtree(folder)
    chosen = settings(warehouse=str(folder), bootstrap_servers=stack.bootstrap_servers)
    with steps.step("session", "starting Spark") as note:
        spark = spark_session()
        note(f"Spark {spark.version}")
    end_on_signals(console, running)  # Spark has just put its own handler of Ctrl-C in place of ours
    seconds: list[Mapping[str, float]] = []
    for told in ROUNDS:
        began = time.monotonic()
        with steps.step("write", told.what):
            for database in (stack.postgresql, stack.mysql):
                database.execute(*told.statements)
        written = time.monotonic()
        with steps.step("debezium", "waiting for the last change on each topic"):
            _wait(stack, told)
        took = {"written": written - began, "on Kafka": time.monotonic() - written}
        for job in JOBS:
            before = time.monotonic()
            work = RunContext(spark, chosen, contracts, steps, partitions(chosen.kafka()), uuid4().hex)
            outcome = run_jobs((job,), work)
            if outcome.failures:
                raise outcome.failures[0]
            took[job] = time.monotonic() - before
        seconds.append(took)
    warehouse = Warehouse(spark, chosen.warehouse, chosen.checkpoints)
    with steps.step("check", "comparing silver with the databases, and the topic with gold"):
        topic = contracts.gold.unified_topic.topic
        differing = [
            *_silver_differences(warehouse, stack),
            *topic_differences(warehouse, bootstrap_servers=stack.bootstrap_servers, topic=topic),
        ]
    for table in (
        report.rows_by_layer(warehouse, contracts),
        report.sample(warehouse.read("gold.unified_orders")),
        _stages(seconds),
    ):
        console.print()
        console.print(table)
    return differing


def _deploy(console: Console, stack: Stack) -> None:
    """As a person would: `lakehouse connect deploy`, with the servers' addresses as the bundle's variables."""
    console.print("$ lakehouse connect deploy --target dev")
    os.environ.update(variables(stack))
    app(args=["connect", "deploy", "--target", "dev", "--bundle", str(ROOT / "bundle.yaml")], standalone_mode=False)


def _insert(numbers: range) -> str:
    rows = [
        f"({number}, {number % 97}, {number % 31}, '{STATUSES[number % 4]}', {number % 1000}.{number % 100:02},"
        f" '2024-05-{number % 28 + 1:02} 12:00:00.123456', NULL, NULL)"
        for number in numbers
    ]
    return f"INSERT INTO orders ({', '.join(COLUMNS)}) VALUES {', '.join(rows)}"


def _outbox(first: int, end: int) -> str:
    rows = [f"('orders', '{number}', 'OrderCreated', '{_payload(number)}')" for number in range(first, end)]
    return f"INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload) VALUES {', '.join(rows)}"


def _payload(number: int) -> str:
    fields = [
        f'"order_id": {number}, "customer_id": {number % 97}, "product_id": {number % 31}, "note": null',
        f'"amount": {number % 500}.50, "status": "{STATUSES[number % 4]}", "created_at": "2024-05-01T12:00:00"',
    ]
    return f"{{{', '.join(fields)}}}"


@dataclass(frozen=True)
class Round:
    """What is written to both databases: `what` for people, and by which order and which event its end is known."""

    what: str
    statements: Sequence[str]
    last_order: int
    last_event: int


ROUNDS = (
    Round(
        "orders to both databases, and events to both outboxes",
        (_insert(range(1, ORDERS + 1)), _outbox(ORDERS + 1, 2 * ORDERS + 1)),
        last_order=ORDERS,
        last_event=2 * ORDERS,
    ),
    Round(
        "updates, deletes, and more of both",
        (
            f"UPDATE orders SET status = 'completed', updated_at = '2024-06-01' WHERE order_id <= {ORDERS // 5}",
            f"DELETE FROM orders WHERE order_id > {ORDERS - ORDERS // 10}",
            _insert(range(5 * ORDERS, 5 * ORDERS + 50)),
            _outbox(2 * ORDERS + 1, 3 * ORDERS + 1),
        ),
        last_order=5 * ORDERS + 49,
        last_event=3 * ORDERS,
    ),
)


def _wait(stack: Stack, told: Round) -> None:
    """Wait until Kafka has the last change of each table and the last event of each outbox."""
    of_event = f'"order_id":{told.last_event}'

    def is_order(event: Mapping[str, Any]) -> bool:
        return bool((event.get("after") or {}).get("order_id") == told.last_order)

    for _table, orders, outbox in FEEDS.values():
        wait_for(stack.bootstrap_servers, orders, is_order)
        wait_for(stack.bootstrap_servers, outbox, lambda event: of_event in str(event.get("payload")).replace(" ", ""))


def _silver_differences(warehouse: Warehouse, stack: Stack) -> list[str]:
    sentences = []
    for (table, _orders, _outbox), database in zip(FEEDS.values(), (stack.postgresql, stack.mysql), strict=True):
        rows = database.rows(f"SELECT {', '.join(COLUMNS)} FROM orders")
        expected = {row["order_id"]: {name: _as_text(value) for name, value in row.items()} for row in rows}
        live = warehouse.read(table).where("NOT _is_deleted")
        sentences += differences(as_text(live, COLUMNS, key="order_id"), expected, of=table, against="its source")
    return sentences


def _as_text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return f"{value:.2f}" if isinstance(value, Decimal) else value


def _stages(seconds: Sequence[Mapping[str, float]]) -> Table:
    """The seconds that each stage took, the first time and the second, in a session that is warm."""
    times = ("first orders", "changes")
    table = new_table("Seconds", "stage", *times, numbers=times)
    for stage in seconds[0]:
        table.add_row(stage, *[f"{took[stage]:.1f}" for took in seconds])
    return table


if __name__ == "__main__":
    sys.exit(main())
