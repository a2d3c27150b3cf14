"""One source with a topic of its own, the bronze table it fills, and what a person does with both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bronze import ingest
from bronze.move import Move, carry_out, planned
from bronze.source_state import steps_in
from lakehouse.batches import batches
from lakehouse.config import Settings
from lakehouse.contracts.topics import Source, Topics
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.broker import client_config, partitions
from lakehouse.kafka.connection import KafkaConnection

TOPIC, OTHER = "offsets.orders", "offsets.customers"
NOON_MS = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True)
class Shop:
    """One source with one topic of two partitions, and the bronze table it fills."""

    kafka: KafkaConnection
    warehouse: Warehouse
    chosen: Settings
    source: Source

    def produce(self, *values: str, topic: str = TOPIC, partition: int = 0) -> None:
        """Records a minute apart, from noon on, by their number in the partition."""
        producer = Producer(client_config(self.kafka))
        for value in values:
            minute = int(value.rsplit("-", 1)[1])
            producer.produce(topic, value=value, partition=partition, timestamp=NOON_MS + minute * 60_000)
        assert producer.flush(30) == 0

    def run(self) -> None:
        topics = Topics(sources={"shop": self.source})
        ingest.run(self.warehouse.spark, self.chosen, topics, known=partitions(self.kafka))

    def move(self, to: str, **narrow: Any) -> list[tuple[str, int, int, int]]:
        """Move the source; topic, partition, from and to of every step that moves."""
        known = partitions(self.kafka)
        steps = planned(
            self.warehouse, self.kafka, "shop", self.source, known=known, move=Move(to=to, reason="a test", **narrow)
        )
        carry_out(self.warehouse, steps)
        return [
            (step.topic, step.partition, step.from_offset, step.to_offset)
            for step in steps
            if step.from_offset != step.to_offset
        ]

    def values(self) -> list[str]:
        rows = self.warehouse.read("bronze.shop_events").collect()
        return sorted(bytes(row["value"]).decode() for row in rows)

    def written_down(self) -> list[tuple[str, int, int, int]]:
        """What was skipped, as `ops.batches` has it."""
        skipped = steps_in(batches(self.warehouse, "bronze")).where("skipped > 0")
        rows = skipped.orderBy("change", "topic", "partition").collect()
        return [(row["topic"], row["partition"], row["from_offset"], row["to_offset"]) for row in rows]


def create(kafka: KafkaConnection, topic: str, count: int = 2) -> None:
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(topic, num_partitions=count, replication_factor=1)])[topic].result()


def delete(kafka: KafkaConnection, *topics: str) -> None:
    admin = AdminClient(client_config(kafka))
    for deleted in admin.delete_topics(list(topics)).values() if topics else ():
        deleted.result()


def delete_records(kafka: KafkaConnection, *, before: int, topic: str = TOPIC, partition: int = 0) -> None:
    """As retention does: the first records of a partition are gone."""
    admin = AdminClient(client_config(kafka))  # named: its requests end with it
    for deleted in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        deleted.result()
