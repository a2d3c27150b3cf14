"""What a pass of a few changes of each source costs in a warm process, layer by layer, beside its commits alone.

python -m benchmarks.warm_pass [--changes 1000] [--keys 20000] [--passes 10]

All jobs on a broker, as `--trigger continuous` runs them within one turn at the warehouse: seconds, and Spark's jobs.
After each pass a chain of commits of as many rows, the floor (`benchmarks.chained_commits`): an append, two MERGEs and
a transaction. Prints a line of JSON for every pass, and a table at the end: the medians.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table as Shown

from benchmarks import report
from benchmarks.chained_commits import BRONZE, GOLD, SILVER, chain, orders
from benchmarks.load import TIMEOUT_SECONDS, contracts_of_load, create_topics, send, tables
from benchmarks.tables import jobs
from bronze.source_state import SourceState
from cli.jobs import JOBS, RunContext, run_jobs
from demo.broker import embedded_broker
from gold.state_store import StateStore
from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps, wide_console
from lakehouse.spark.materialized import materialized
from lakehouse.spark.session import spark_session
from silver.accounts.audit import StateCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP = 4
FLOOR, PASS = "chained commits", "all jobs"


class Pipeline:
    """All jobs on a broker, with what a process remembers between its passes."""

    def __init__(self, spark: SparkSession, chosen: Settings, contracts: Contracts) -> None:
        self.spark, self.chosen, self.contracts = spark, chosen, contracts
        self.source_states: dict[str, SourceState] = {}
        self.state_caches: dict[str, StateCache] = {}
        self.gold_state = StateStore()
        self.runs = 0

    def run(self) -> dict[str, tuple[float, int]]:
        """One pass: of each job its seconds, and how many of Spark's jobs. Raises what one of them has raised."""
        self.runs += 1
        work = RunContext(
            self.spark,
            self.chosen,
            self.contracts,
            Steps(Console(quiet=True)),
            partitions(self.chosen.kafka()),
            f"pass {self.runs}",
            source_states=self.source_states,
            state_caches=self.state_caches,
            gold_state=self.gold_state,
        )
        found = {}
        for name in JOBS:
            begun, before = time.monotonic(), jobs(self.spark)
            for failure in run_jobs([name], work).failures:
                raise failure
            found[name] = (time.monotonic() - begun, jobs(self.spark) - before)
        return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_pass", description=__doc__)
    for name, default in (("changes", 1000), ("keys", 20_000), ("passes", 10), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    with TemporaryDirectory(prefix="warm-pass-") as folder, embedded_broker() as servers:
        found = passes(chosen, folder, servers)
    shown = summary(found)
    wide_console().print(shown)
    if chosen.write_docs:
        asked = f"{chosen.changes:,} changes of each source into tables of {chosen.keys:,}, medians"
        report.write("warm pass", shown, [], asked=f"{asked} of {chosen.passes} passes")


def passes(chosen: argparse.Namespace, folder: str, servers: str) -> list[dict[str, tuple[float, int]]]:
    """Of every pass that counts: seconds and Spark's jobs of each of the jobs, and of the floor."""
    spark = spark_session(is_lasting=True)
    create_topics(servers, partitions=2)
    where = settings(warehouse=f"{folder}/tables", bootstrap_servers=servers)
    pipeline = Pipeline(spark, where, contracts_of_load())
    floor = settings(warehouse=f"{folder}/floor", bootstrap_servers=servers).address.open(spark)
    for table in (BRONZE, SILVER, GOLD):
        floor.ensure(table)
    for table in (SILVER, GOLD):
        floor.append(table.name, orders(floor, chosen.keys, chosen.keys, seed=0))
    sources = tables(seed=chosen.seed, keys=chosen.keys)
    send(servers, sources, events=chosen.keys)
    pipeline.run()
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "the floor"})
    producer.init_transactions(TIMEOUT_SECONDS)
    found = []
    for number in range(WARM_UP + chosen.passes):
        send(servers, sources, events=chosen.changes)
        costs = pipeline.run()
        with materialized(orders(floor, chosen.changes, chosen.keys, seed=number)) as rows:
            before = jobs(spark)
            costs[FLOOR] = (sum(chain(floor, producer, rows, chosen.changes).values()), jobs(spark) - before)
        print(json.dumps({"pass": number - WARM_UP, **costs}), flush=True)
        if number >= WARM_UP:
            found.append(costs)
    return found


def summary(found: Sequence[dict[str, tuple[float, int]]]) -> Shown:
    """The medians of every job, of all together, and of the floor."""
    both = [{**costs, PASS: tuple(sum(costs[name][at] for name in JOBS) for at in (0, 1))} for costs in found]
    floor = median(costs[FLOOR][0] for costs in found)
    shown = Shown("what", "seconds", "of the chained commits", "Spark's jobs")
    for name in (*JOBS, PASS, FLOOR):
        seconds, count = (median(costs[name][at] for costs in both) for at in (0, 1))
        shown.add_row(name, f"{seconds:.2f}", f"{seconds / floor:.1f}", f"{count:.0f}")
    return shown


if __name__ == "__main__":
    main()
