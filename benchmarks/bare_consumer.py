"""Bronze beside a bare consumer: a process a topic that reads Kafka and stores the same bytes, and does nothing else.

python -m benchmarks.bare_consumer [--events 500000] [--keys 150000] [--turns 1] [--seed 1]

Both read the load of `make bench` from an embedded broker, in an order that is drawn anew in every turn. Bronze is the
job in a warm process: each turn has a warehouse of its own, and the first one, which warms up, does not count. Every
record that either has stored is counted. Prints a line of JSON for every run, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition
from rich.table import Table as Shown

from benchmarks import report
from benchmarks.load import TIMEOUT_SECONDS, TOPICS, contracts_of_load, create_topics, send, tables
from bronze import ingest
from bronze.events import events_table
from demo.broker import embedded_broker
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.process.steps import wide_console
from lakehouse.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tells, when all is over, how many records were stored.
Counted = Callable[[], int]
Command = Callable[[str, Path], Counted]

BRONZE, BARE = "bronze", "bare consumer"
PARTITIONS = 2
AT_ONCE = 10_000
_LENGTHS = struct.Struct(">qii")


@dataclass(frozen=True)
class Run:
    """One run of one of the two; turn 0 is bronze's warming up."""

    contender: str
    turn: int
    seconds: float
    records: int


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark. Raises RuntimeError when a contender has not stored every record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare_consumer", description=__doc__)
    for name, default in (("events", 500_000), ("keys", 150_000), ("turns", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bronze-"))
        servers = stack.enter_context(embedded_broker())
        contracts = contracts_of_load()
        create_topics(servers, partitions=PARTITIONS)
        sent = send(servers, tables(seed=chosen.seed, keys=chosen.keys), events=chosen.events)
        print(json.dumps({"load": asdict(sent)}), flush=True)
        spark = spark_session(is_lasting=True)
        processes = stack.enter_context(ProcessPoolExecutor(len(TOPICS), mp_context=get_context("spawn")))
        list(processes.map(time.sleep, [1.0] * len(TOPICS)))  # they have started
        commands: dict[str, Command] = {
            BRONZE: partial(of_bronze, spark, contracts),
            BARE: partial(of_bare_consumer, processes),
        }
        order = Random(chosen.seed)  # noqa: S311 - an order, no secret
        found = []
        for turn in range(chosen.turns + 1):
            for contender in order.sample([*commands], len(commands)) if turn else [BRONZE]:
                place = Path(folder) / f"{turn} {contender}"
                place.mkdir()
                begun = time.monotonic()
                counted = commands[contender](servers, place)
                run = Run(contender, turn, round(time.monotonic() - begun, 2), counted())
                print(json.dumps(asdict(run)), flush=True)
                if run.records != sent.records:
                    raise RuntimeError(f"{contender} stored {run.records:,} records of {sent.records:,}.")
                if turn:
                    found.append(run)
    shown = summary(found)
    wide_console().print(shown)
    if chosen.write_docs:
        seconds = {name: median(run.seconds for run in found if run.contender == name) for name in (BARE, BRONZE)}
        plot = report.bars("Kafka to files", "seconds", seconds)
        report.write("bare consumer", shown, [plot], asked=f"{sent.records:,} records, {sent.bytes:,} bytes")


def of_bronze(spark: SparkSession, contracts: Contracts, servers: str, place: Path) -> Counted:
    """The bronze job into a warehouse of its own; what counts its records afterwards."""
    where = settings(warehouse=str(place), bootstrap_servers=servers)
    ingest.run(spark, where, contracts.topics, known=partitions(KafkaConnection(bootstrap_servers=servers)))
    warehouse = where.address.open(spark)
    names = [events_table(source).name for source in contracts.topics.sources]
    return lambda: sum(warehouse.read(name).count() for name in names)


def of_bare_consumer(processes: ProcessPoolExecutor, servers: str, place: Path) -> Counted:
    """A process a topic, of those that have started; what tells how many records they stored."""
    stored = list(processes.map(partial(store, servers, place), TOPICS.values()))
    return lambda: sum(stored)


def store(servers: str, place: Path, topic: str) -> int:
    """Append every record of the topic, key, value and headers, to a file of its own; how many there were."""
    consumer = Consumer(
        {
            **{"bootstrap.servers": servers, "group.id": "bare", "enable.auto.commit": False},
            **{"isolation.level": "read_committed", "queued.max.messages.kbytes": 200_000, "check.crcs": False},
            **{"fetch.message.max.bytes": 50_000_000, "enable.partition.eof": False},
        }
    )
    places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    ends = {one.partition: consumer.get_watermark_offsets(one, timeout=TIMEOUT_SECONDS)[1] for one in places}
    consumer.assign([one for one in places if ends[one.partition]])
    left, stored = sum(ends.values()), 0
    with (place / topic).open("wb") as file:
        while stored < left:
            for message in consumer.consume(AT_ONCE, timeout=TIMEOUT_SECONDS):
                key, value = message.key() or b"", message.value() or b""
                headers = repr(message.headers()).encode()
                file.write(_LENGTHS.pack(message.offset(), len(key), len(value)) + key + value + headers)
                stored += 1
    consumer.close()
    return stored


def summary(found: Sequence[Run]) -> Shown:
    """The median of both, and how fast each is beside the bare consumer."""
    shown = Shown("contender", "seconds", "all runs", "records a second", "of the bare consumer's speed")
    middle = {name: median(run.seconds for run in found if run.contender == name) for name in (BARE, BRONZE)}
    for name, seconds in middle.items():
        of = [run for run in found if run.contender == name]
        every = ", ".join(f"{run.seconds:.1f}" for run in of)
        shown.add_row(name, f"{seconds:.1f}", every, f"{of[0].records / seconds:,.0f}", f"{middle[BARE] / seconds:.2f}")
    return shown


if __name__ == "__main__":
    main()
