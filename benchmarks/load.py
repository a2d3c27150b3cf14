"""The load: orders of two databases as Debezium's JSON, seeded, with the truth that everything must end in.

Both tables are told whole (PostgreSQL with REPLICA IDENTITY FULL, MySQL with binlog_row_image=FULL) and decimals as
text (decimal.handling.mode=string), since Flink's debezium-json reads no other form of either; so everybody reads the
same records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts

TOPICS: Mapping[str, str] = {
    "postgresql": "postgres_prod_tables.public.orders",
    "mysql": "mysql_prod_tables.ecommerce.orders",
}
# Read when it is there, and empty here.
OTHER_TOPICS = ("outbox.event.postgres.orders", "outbox.event.mysql.orders")
PREFIXES: Mapping[str, str] = {"postgresql": "PG", "mysql": "MY"}
STATUSES = ("pending", "paid", "shipped", "completed", "cancelled", "refunded")
FULFILLMENT: Mapping[str, str] = {"completed": "FULFILLED", "cancelled": "CANCELLED"}
NOTES = (None, None, None, "leave at the door", "gift wrapped: für Zoë", 'call first, "twice"')
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
# Of a hundred changes after the inserts; the others are updates.
DELETES_IN_100 = 7
TIMEOUT_SECONDS = 120

Row = dict[str, Any]
Event = tuple[bytes, bytes | None]


@dataclass
class Table:
    """A source's table while its changes are told: its live rows by key, and where its log stands.

    `keys`: so many of them at the beginning; a change inserts one in `insert_in_100` cases of a hundred. `recent`:
    changes fall on so many of the newest keys only; None: on any.
    """

    kind: str
    seed: int
    keys: int
    insert_in_100: int = 5
    rows: dict[int, Row] = field(default_factory=dict)
    next_key: int = 1
    log: int = 1000
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.kind} {self.seed}")  # noqa: S311 - the same load for everyone

    def events(self, *, recent: int | None = None) -> Iterator[Event]:
        """Its changes in the order of the log, with no end: the inserts of all keys first, each with its tombstone."""
        while True:
            is_new = len(self.rows) < self.keys and self.next_key <= self.keys
            choice = self.random.randrange(100)
            key = self._some_key(recent)
            if is_new or key is None or choice < self.insert_in_100:
                yield self._insert()
            elif choice < self.insert_in_100 + DELETES_IN_100:
                yield self._told("d", key, self.rows.pop(key), None)
                yield _key(key), None
            else:
                yield self.update(key)

    def _some_key(self, recent: int | None) -> int | None:
        """A live key; None when the one that was drawn is deleted."""
        lowest = 1 if recent is None else max(1, self.next_key - recent)
        key = self.random.randrange(lowest, max(self.next_key, lowest + 1))
        return key if key in self.rows else None

    def _insert(self) -> Event:
        key, draw = self.next_key, self.random.randrange
        self.next_key += 1
        row: Row = {
            "order_id": key,
            "customer_id": draw(1, 20_000),
            "product_id": draw(1, 5_000),
            "status": "pending",
            "total_amount": f"{draw(1, 100_000)}.{draw(100):02d}",
            "created_at": self._time(key * 1_000_000),
            "updated_at": None,
            "note": NOTES[draw(len(NOTES))],
        }
        self.rows[key] = row
        return self._told("c", key, None, row)

    def update(self, key: int) -> Event:
        """The next change: an update of this live row."""
        before = self.rows[key]
        after = {
            **before,
            "status": STATUSES[self.random.randrange(len(STATUSES))],
            "total_amount": f"{self.random.randrange(1, 100_000)}.{self.random.randrange(100):02d}",
            "updated_at": self._time(self.log),
        }
        self.rows[key] = after
        return self._told("u", key, before, after)

    def _time(self, later_us: int) -> int | str:
        """As the connector tells it: PostgreSQL's TIMESTAMP in microseconds, MySQL's in ISO 8601."""
        if self.kind == "postgresql":
            return BEGIN_US + later_us
        return f"{(BEGIN + timedelta(microseconds=later_us)):%Y-%m-%dT%H:%M:%S.%f}Z"

    def _told(self, op: str, key: int, before: Row | None, after: Row | None) -> Event:
        self.log += 96
        at_us = BEGIN_US + self.log * 10
        value = {
            "before": before,
            "after": after,
            "source": {**self._source(), "ts_ms": at_us // 1000, "ts_us": at_us, "ts_ns": at_us * 1000},
            "transaction": None,
            "op": op,
            "ts_ms": at_us // 1000 + 5,
            "ts_us": at_us + 5_000,
            "ts_ns": at_us * 1000 + 5_000_000,
        }
        return _key(key), json.dumps(value, separators=(",", ":")).encode()

    def _source(self) -> dict[str, Any]:
        common = {"version": "3.6.1.Final", "connector": self.kind, "snapshot": "false", "table": "orders"}
        if self.kind == "postgresql":
            return {
                **common,
                **{"name": "postgres_prod_tables", "db": "ecommerce", "schema": "public", "txId": self.log // 96},
                **{"sequence": f'["{self.log - 48}","{self.log}"]', "lsn": self.log, "xmin": None},
            }
        return {
            **common,
            **{"name": "mysql_prod_tables", "db": "ecommerce", "sequence": None, "server_id": 1, "thread": 105},
            **{"gtid": f"a67f3683-e587-11f1-9a94-02fc00000001:{self.log // 96}", "query": None},
            **{"file": "mysql-bin.000002", "pos": self.log, "row": 0},
        }

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        """What Debezium says with each record: one run of one connector."""
        context = "__debezium.context."
        return [
            (f"{context}connectorLogicalName", self._source()["name"].encode()),
            (f"{context}taskId", b"0"),
            (f"{context}connectorName", self.kind.encode()),
            (f"{context}runId", b"01a1fd5a-a782-783e-a385-7a7c5c95446b"),
        ]

    def unified(self) -> Iterator[tuple[str, Row]]:
        """The live rows as the unified topic must have them, by composite key; without `processed_at`."""
        for key, row in self.rows.items():
            composite_key = f"{PREFIXES[self.kind]}-{key}"
            yield (
                composite_key,
                {
                    **{name: row[name] for name in ("order_id", "customer_id", "product_id", "status", "total_amount")},
                    "created_at": f"{(BEGIN + timedelta(seconds=key)):%Y-%m-%dT%H:%M:%S.%f}Z",
                    "source_database": self.kind,
                    "fulfillment_status": FULFILLMENT.get(row["status"], "PENDING"),
                    "composite_key": composite_key,
                },
            )


@dataclass(frozen=True)
class Sent:
    """What a load came to: records with tombstones, and bytes of keys and values."""

    records: int
    bytes: int


def tables(*, seed: int, keys: int) -> list[Table]:
    """The two sources' tables, empty."""
    return [Table(kind, seed, keys) for kind in TOPICS]


def write_contracts(folder: Path) -> Path:
    """The packaged contracts in a new folder, but for the form of decimals in the load."""
    subprocess.run([sys.executable, "-m", "orders_lakehouse", "init", str(folder)], check=True, capture_output=True)
    topics = folder / "bronze" / "topics.yaml"
    as_text = "envelope: table\n        decimal_handling_mode: string"
    topics.write_text(topics.read_text().replace("envelope: table", as_text))
    return folder


def contracts_of_load() -> Contracts:
    """The same contracts, loaded."""
    with TemporaryDirectory(prefix="contracts-") as folder:
        return load_contracts(write_contracts(Path(folder) / "contracts"))


def create_topics(bootstrap_servers: str, *, partitions: int) -> None:
    """The topics that the packaged contracts name."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = [NewTopic(name, num_partitions=partitions, replication_factor=1) for name in TOPICS.values()]
    new += [NewTopic(name, num_partitions=1, replication_factor=1) for name in OTHER_TOPICS]
    for future in admin.create_topics(new).values():
        future.result()


def send(bootstrap_servers: str, sources: list[Table], *, events: int, recent: int | None = None) -> Sent:
    """Produce so many records of each table. Every one was acknowledged. Raises RuntimeError when one was not."""
    refused: list[ClientError] = []

    def acknowledged(error: ClientError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "partitioner": "murmur2_random",  # Java's default, so Kafka Connect's too
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    records = size = 0
    for table in sources:
        topic, headers = TOPICS[table.kind], table.headers()
        for key, value in islice(table.events(recent=recent), events):
            while True:
                try:
                    producer.produce(topic, key=key, value=value, headers=headers, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.1)
            records, size = records + 1, size + len(key) + len(value or b"")
            if records % 10_000 == 0:
                producer.poll(0)
    if producer.flush(TIMEOUT_SECONDS) or refused:
        raise RuntimeError(f"The broker did not take all records: {refused[0].str() if refused else 'time is over'}.")
    return Sent(records, size)


def _key(key: int) -> bytes:
    return b'{"order_id":%d}' % key
