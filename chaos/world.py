"""All that the faults happen to: the stack, the applications that write, the product, and what a person on call does.

What the person does is in the documentation: `docs/connect.md`, `docs/verify.md`, `docs/troubleshooting.md`.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from chaos.observer import Observer
from chaos.pipeline import Ended, Pipeline
from chaos.writers import CANARY, FIRST_OUTBOX_ORDER, Writer, writing
from connectors.cluster import State, settled
from demo.stack.database import Database
from demo.stack.offsets import delete_offsets, is_stopped, stop
from demo.stack.registry import avro_options
from demo.stack.set_up import set_up, variables
from demo.stack.stack import Stack
from lakehouse.delta.address import Address
from lakehouse.errors import LakehouseError
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection
from monitoring.readings.tables import DeltaFiles

CONNECTORS = tuple(
    f"{database}-{kind}-connector" for database in ("postgres", "mysql") for kind in ("outbox", "tables")
)
UNIFIED_TOPIC = "bigquery.unified.orders"
# Of markers: above all orders of the writers, of tables and of outboxes.
FIRST_MARKER = 900_000_000
# Of a warehouse on a file system of its own, which can be full.
WAREHOUSE_SIZE = "4g"
PATIENCE_SECONDS = 120.0


class ChaosError(Exception):
    """Something did not come to pass: a finding of the round, with its sentence."""


@dataclass(frozen=True)
class SourceNames:
    """What the source of a database is called. `prefix`: of gold's keys. `gold`: its name in gold."""

    name: str
    tables_topic: str
    outbox_topic: str
    tables_connector: str
    outbox_connector: str
    prefix: str
    gold: str


SOURCES = (
    SourceNames(
        "postgres",
        "postgres_prod_tables.public.orders",
        "outbox.event.postgres.orders",
        "postgres-tables-connector",
        "postgres-outbox-connector",
        "PG",
        "postgresql",
    ),
    SourceNames(
        "mysql",
        "mysql_prod_tables.ecommerce.orders",
        "outbox.event.mysql.orders",
        "mysql-tables-connector",
        "mysql-outbox-connector",
        "MY",
        "mysql",
    ),
)


@dataclass
class World:
    """Everything of one chaos run. `home`: its folder. `rebuilt`: sources whose silver was rebuilt in this round."""

    stack: Stack
    home: Path
    seed: int
    pipeline: Pipeline = field(init=False)
    writers: Mapping[str, Writer] = field(init=False)
    random: random.Random = field(init=False)
    observer: Observer = field(init=False)
    admin: AdminClient = field(init=False)  # its requests end with it
    events: dict[str, dict[int, dict[int, Mapping[str, Any]]]] = field(default_factory=dict)
    markers: int = 0
    rebuilt: set[str] = field(default_factory=set)
    acts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  # a test's, not a secret
        kafka_config = self.home / "kafka.yaml"
        kafka_config.write_text(
            yaml.safe_dump(
                {
                    "bootstrap_servers": self.stack.bootstrap_servers,
                    "schema_registry": {"url": self.stack.registry.confluent_url},
                }
            ),
            encoding="utf-8",
        )
        environment = {
            **variables(self.stack),
            "LAKEHOUSE_WAREHOUSE": str(self.warehouse),
            "LAKEHOUSE_KAFKA_CONFIG": str(kafka_config),
            "LAKEHOUSE_METRICS_FILE": str(self.home / "metrics.prom"),
        }
        self.pipeline = Pipeline(environment, self.warehouse, self.log)
        self.admin = AdminClient(client_config(self.kafka))
        self.observer = Observer(self.kafka, UNIFIED_TOPIC)
        self.writers = {
            names.name: Writer(database, self.seed * 2 + number)
            for number, (names, database) in enumerate(zip(SOURCES, self.databases.values(), strict=True))
        }

    @property
    def warehouse(self) -> Path:
        """Where the tables are."""
        return self.home / "warehouse"

    @property
    def log(self) -> Path:
        """What the product has written."""
        return self.home / "product.log"

    @property
    def databases(self) -> Mapping[str, Database]:
        """The database of each source."""
        return {"postgres": self.stack.postgresql, "mysql": self.stack.mysql}

    @property
    def tables(self) -> DeltaFiles:
        """The tables as they are now, read without Spark."""
        return DeltaFiles(Address(str(self.warehouse), f"{self.warehouse}/_checkpoints"))

    @property
    def kafka(self) -> KafkaConnection:
        """How the broker is reached."""
        return KafkaConnection(bootstrap_servers=self.stack.bootstrap_servers)

    def say(self, what: str) -> None:
        """Write down what was done, for the round's record."""
        self.acts.append(what)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n--- {time.strftime('%H:%M:%S')} {what}\n")

    # -- what the world does

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside the block the applications write; at its end they are done."""
        for names in SOURCES:
            self.writers[names.name].look()
        with writing(list(self.writers.values())):
            yield

    def set_up(self) -> None:
        """Databases, connectors and the warehouse, all new, and a first pass."""
        self.warehouse.mkdir()
        subprocess.run(
            ["/bin/mount", "-t", "tmpfs", "-o", f"size={WAREHOUSE_SIZE}", "chaos", str(self.warehouse)], check=True
        )
        set_up(self.stack)
        self.deploy()
        with self.writing():
            pass
        self.drain()
        done = self.pipeline.command("run")
        if done.code:
            raise ChaosError(f"the first run ended with {last_words(done)}")

    def tear_down(self) -> None:
        """End the product's processes, and free the warehouse's memory."""
        self.pipeline.stop()
        subprocess.run(["/bin/umount", "--lazy", str(self.warehouse)], check=False)

    # -- what a person does

    def deploy(self) -> None:
        """Deploy the packaged connectors; that of MySQL's tables writes Avro."""
        done = self.pipeline.own_process("connect", "deploy", *CONNECTORS, "--target", "dev")
        if done.code:
            raise ChaosError(f"connect deploy ended with {done.code}: {done.last_words}")
        worker = self.stack.connect.worker
        config = dict(worker.config("mysql-tables-connector") or {})
        with_schemas = {name: value for name, value in config.items() if not name.endswith("converter.schemas.enable")}
        worker.put_config("mysql-tables-connector", {**with_schemas, **avro_options(self.stack.registry)})
        self.wait_for_connectors()

    def wait_for_connectors(self, *names: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until these connectors, or all, run; one whose task has failed is restarted, as `doctor` says."""
        worker = self.stack.connect.worker
        deadline = time.monotonic() + seconds
        for name in names or CONNECTORS:
            while True:
                state = settled(worker, name, seconds=20.0, is_there=_runs)
                if _runs(state):
                    break
                if time.monotonic() > deadline:
                    raise ChaosError(f"{name} does not run: {state.state}. {state.first_line}")
                if state.has_failed:
                    worker.restart(name, only_failed=True)
                time.sleep(1)

    def stop_connector(self, name: str) -> None:
        """Stop a connector, and wait until it is."""
        worker = self.stack.connect.worker
        stop(worker, name)
        if not is_stopped(settled(worker, name, seconds=PATIENCE_SECONDS, is_there=is_stopped)):
            raise ChaosError(f"{name} does not stop.")

    def snapshot_again(self, name: str) -> None:
        """A new full snapshot of a connector (docs/connect.md, Moving a connector)."""
        self.say(f"{name}: stopped, its offsets deleted, resumed")
        self.stop_connector(name)
        delete_offsets(self.stack.connect.worker, name)
        self.stack.connect.worker.resume(name)
        self.wait_for_connectors(name)

    def rebuild_silver(self, source: str) -> None:
        """Delete all silver tables of a source; the next run of silver applies all of bronze (docs/verify.md)."""
        self.say(f"all silver tables of {source} deleted, to be rebuilt")
        for folder in (self.warehouse / "silver").glob(f"{source}_*"):
            shutil.rmtree(folder)
        self.rebuilt.add(source)
        self.pipeline.commits.forget()

    def read_bronze_again(self, source: str) -> None:
        """Move a table of bronze and its checkpoints away, and rebuild silver (docs/verify.md)."""
        self.say(f"bronze.{source}_events and its checkpoints moved away, to be read again")
        away = self.home / "away" / str(time.monotonic_ns())
        away.mkdir(parents=True)
        shutil.move(self.warehouse / "bronze" / f"{source}_events", away)
        for folder in (self.warehouse / "_checkpoints" / "bronze").glob(f"{source}*"):
            shutil.move(folder, away)
        shutil.rmtree(away)
        done = self.pipeline.command("bronze")
        if done.code:
            raise ChaosError(f"lakehouse bronze ended with {done.code}: {done.last_words}")
        self.rebuild_silver(source)

    # -- quiet

    def drain(self, only: Sequence[str] = ()) -> None:
        """Wait until these topics, or all of the sources, have everything that is committed by now."""
        self.markers += 1
        number = FIRST_MARKER + self.markers
        mark = f"marker-{number}-{CANARY}"
        topics = list(only) or [topic for names in SOURCES for topic in (names.tables_topic, names.outbox_topic)]
        with self._consumer() as consumer:
            begin = self._ends(consumer, topics)
            for database in self.databases.values():
                database.execute(*_marker(number, mark))
            self._wait_for(consumer, begin, topics, mark.encode())

    def _ends(self, consumer: Consumer, topics: list[str]) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for topic in topics:
            known = consumer.list_topics(topic, timeout=30).topics[topic]
            if known.error is not None:
                found[topic] = {}
                continue
            found[topic] = {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1]
                for number in known.partitions
            }
        return found

    def _wait_for(
        self, consumer: Consumer, begin: Mapping[str, Mapping[int, int]], topics: list[str], mark: bytes
    ) -> None:
        missing = set(topics)
        deadline = time.monotonic() + PATIENCE_SECONDS
        assigned: list[TopicPartition] = []
        while missing and time.monotonic() < deadline:
            known = consumer.list_topics(timeout=30).topics
            wanted = [
                TopicPartition(topic, number, begin[topic].get(number, 0))
                for topic in topics
                if topic in known
                for number in known[topic].partitions
            ]
            if len(wanted) != len(assigned):  # topics and partitions may come meanwhile
                assigned = wanted
                consumer.assign(assigned)
            for message in consumer.consume(500, timeout=0.5):
                if not message.error() and mark in (message.value() or b""):
                    missing.discard(str(message.topic()))
        if missing:
            states = self.pipeline.own_process("connect", "status", "--target", "dev")
            raise ChaosError(f"Not told within {PATIENCE_SECONDS:.0f} s on {sorted(missing)}: {states.out[-600:]}")

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        config: dict[str, Any] = {**client_config(self.kafka), "group.id": "chaos", "auto.offset.reset": "earliest"}
        config |= {"enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer(config)
        try:
            yield consumer
        finally:
            consumer.close()

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until it is so. Raises ChaosError with `what` did not come to pass."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if is_so():
                    return
            except (LakehouseError, KafkaException):
                pass  # while servers start
            if time.monotonic() > deadline:
                raise ChaosError(f"Within {seconds:.0f} s it has not come to pass that {what}.")
            time.sleep(0.5)

    # -- truth

    def take_events(self) -> None:
        """Add the outbox events that the databases have now to those that were ever seen."""
        for source, database in self.databases.items():
            of_source = self.events.setdefault(source, {})
            for row in database.rows("SELECT payload FROM outbox_events"):
                payload = row["payload"] if isinstance(row["payload"], dict) else json.loads(row["payload"])
                number = int(str(payload["note"]).rsplit(" ", maxsplit=1)[1])
                of_source.setdefault(int(payload["order_id"]), {})[number] = payload


class Server(Protocol):
    """What can be let hang."""

    def pause(self) -> None:
        """Let it hang."""

    def resume(self) -> None:
        """Let it go on."""


@contextmanager
def hanging(server: Server) -> Iterator[None]:
    """Inside the block the server hangs."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


def drop_slot(database: Database, slot: str) -> bool:
    """Drop a replication slot, unless a connector still uses it; whether it is gone."""
    (row,) = database.rows(f"SELECT count(*) AS active FROM pg_replication_slots WHERE slot_name = '{slot}' AND active")
    if row["active"]:
        return False
    drop = "SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots"
    database.rows(f"{drop} WHERE slot_name = '{slot}'")
    return True


def _marker(number: int, mark: str) -> list[str]:
    payload = {
        "order_id": number + FIRST_OUTBOX_ORDER,
        "customer_id": 1,
        "product_id": 7,
        "note": f"{mark} {number}",
        "amount": "1.00",
        "status": "pending",
        "created_at": "2026-05-01T12:00:00",
    }
    return [
        "INSERT INTO orders (order_id, customer_id, status, total_amount, created_at, note)"
        f" VALUES ({number}, 1, 'pending', 1.00, '2026-01-01 00:00:00', '{mark}')",
        "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload)"
        f" VALUES ('orders', '{number + FIRST_OUTBOX_ORDER}', 'OrderChanged', '{json.dumps(payload)}')",
    ]


def _runs(state: State) -> bool:
    return state.state == "RUNNING" and state.is_unchanged and not state.has_failed


def last_words(ended: Ended) -> str:
    """How a command ended, in one sentence."""
    return f"exit code {ended.code}: {ended.last_words}"
