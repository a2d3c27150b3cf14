"""The publish job: every change of `gold.unified_orders` since the last publication, sent to the unified topic.

At most one record a key and run, in the same partition every time. What was published is known by the gold version
that is written down afterwards: no new version, no record. After a crash in between, the same changes are sent again
with the same sequence numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.bigquery import last_change_per_key, records
from gold.build import UNIFIED
from lakehouse.config import Settings
from lakehouse.contracts import Contracts
from lakehouse.errors import KafkaError
from lakehouse.kafka import client_config, ensure_compacted_topic
from lakehouse.progress import PROGRESS, Version, current, record, taken
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession


def run(spark: SparkSession, settings: Settings, contracts: Contracts) -> int:
    """Publish what is new in gold; the number of records sent. Creates the topic when it is absent.

    Raises TableError when there is no gold table yet, KafkaError when the broker does not take every record; what it
    took is sent again by the next run.
    """
    warehouse = Warehouse(spark, settings.warehouse, settings.checkpoints)
    publication = contracts.gold.publication
    warehouse.ensure(PROGRESS)
    consumer = f"topic {publication.topic}"
    now = current(warehouse, UNIFIED.name)
    before = taken(warehouse, consumer).get(UNIFIED.name)
    ensure_compacted_topic(
        settings.brokers(),
        publication.topic,
        partitions=publication.partitions,
        replication_factor=publication.replication_factor,
    )
    if before == now:
        return 0
    sent = send(
        records(states_since(warehouse, now, before), generation=now.created_ms),
        bootstrap_servers=settings.brokers(),
        topic=publication.topic,
    )
    record(warehouse, consumer, [now])
    return sent


def states_since(warehouse: Warehouse, now: Version, before: Version | None) -> DataFrame:
    """The last state of every key that changed after `before`; of every key when nothing was ever published."""
    if before is None or before.created_ms != now.created_ms:
        everything = warehouse.read(now.table, version=now.number)
        return everything.withColumns({"is_deleted": F.lit(False), "version": F.lit(now.number)})
    return last_change_per_key(warehouse.changes(now.table, first=before.number + 1, last=now.number))


def send(rows: DataFrame, *, bootstrap_servers: str, topic: str) -> int:
    """Produce every row and wait for the broker to have them all; their number. Raises KafkaError when one fails.

    The partitioner is Java's default, so any other producer of the same keys finds the same partitions.
    """
    from confluent_kafka import Producer

    failures: list[str] = []

    def delivered(error: ClientError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error.name())

    producer = Producer(
        {
            **client_config(bootstrap_servers),
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "compression.type": "zstd",
            "linger.ms": 20,
            "queue.buffering.max.messages": 50_000,
        }
    )
    sent = 0
    for row in rows.toLocalIterator():
        headers = [("change_type", row["change_type"]), ("change_sequence", row["change_sequence"])]
        while True:
            try:
                producer.produce(topic, key=row["key"], value=row["value"], headers=headers, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        sent += 1
    left = producer.flush(60)
    if failures or left:
        raise KafkaError(
            f"{len(failures) + left} of {sent} records did not reach topic {topic} ({', '.join(sorted({*failures}))}).",
            remedy="Run `lakehouse publish` again: it sends the same changes once more.",
        )
    return sent
