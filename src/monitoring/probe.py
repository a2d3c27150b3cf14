"""The probe: an order of no amount, written to an outbox, that must arrive in the unified topic.

It is `cancelled` and of 0.00; it stays, since an outbox has no deletes by default. Its number is a time in
milliseconds, so it is not that of another order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from connectors.connectors import Connector
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import Source
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition, latest
from monitoring.readings.databases import UnaskedError, connected, server_of
from monitoring.readings.topics import reader
from monitoring.readings.unified_topic import composite_key_in


@dataclass(frozen=True)
class Probe:
    """An order that was written: the connector of its outbox, and its number."""

    connector: str
    order_id: int


def insert_probe(
    connector: Connector, sources: Iterable[Source], *, login: tuple[str, str] | None, aggregate: str
) -> Probe:
    """Write the order to the connector's outbox. Raises UnaskedError, and what the database's driver raises.

    `sources` name the servers that may be connected to. `aggregate`: the aggregatetype, which the EventRouter makes the
    end of the topic's name.
    """
    server = server_of(connector, sources)
    tables = connector.tables
    if len(tables) != 1:  # a pattern, several, or no name: it would become SQL
        raise UnaskedError("Its table.include.list does not name one table, so no order was written.")
    order_id = time.time_ns() // 1_000_000
    now = datetime.now(UTC).replace(tzinfo=None)
    order = {
        **{"order_id": order_id, "customer_id": 0, "product_id": 0, "status": "cancelled", "total_amount": 0.0},
        "created_at": f"{now.isoformat(timespec='microseconds')}Z",
    }
    with connected(connector, server, login=login) as ask:
        ask(
            f"INSERT INTO {tables[0]} (id, aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s, %s)",
            *(str(uuid4()), aggregate, str(order_id), "OrderProbed", json.dumps(order)),
        )
    return Probe(connector.name, order_id)


def ends_of_unified(connection: KafkaConnection, contracts: Contracts) -> dict[Partition, int]:
    """Where the unified topic ends now. Raises KafkaError."""
    topic = contracts.gold.unified_topic.topic
    return latest(connection, [Partition(topic, number) for number in partitions(connection).get(topic, ())])


def wait_for(
    connection: KafkaConnection, probes: list[Probe], *, since: dict[Partition, int], seconds: float
) -> dict[str, float]:
    """By connector, after how many seconds its order was in the topic; those that came. `since`: where to look from."""
    from confluent_kafka import Consumer, TopicPartition

    found: dict[str, float] = {}
    started = time.monotonic()
    with closing(Consumer(reader(connection))) as consumer:
        consumer.assign(
            [
                TopicPartition(topic_partition.topic, topic_partition.number, offset)
                for topic_partition, offset in since.items()
            ]
        )
        while len(found) < len(probes) and time.monotonic() - started < seconds:
            for message in consumer.consume(num_messages=500, timeout=0.5):
                key = bytes(message.key() or b"") if message.error() is None else b""
                for probe in probes:
                    if (composite_key_in(key) or "").endswith(f"-{probe.order_id}"):
                        found.setdefault(probe.connector, time.monotonic() - started)
    return found
