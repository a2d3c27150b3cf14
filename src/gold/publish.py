"""The publish job: every change of `gold.unified_orders` since the last publication, sent to the unified topic.

Of each source up to the version of gold with which it last passed gate 2: a source that the gate holds waits, and is
caught up with later. At most one record a key and run, in the same partition every time. What was published is known
by the gold version that is written down afterwards: no new version, no record. After a crash in between, the same
changes are sent again with the same sequence numbers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.bigquery import last_change_per_key, records
from gold.columns import UNIFIED, unified
from gold.gates import OTHERS, of_source, passed_versions
from lakehouse.config import Settings
from lakehouse.contracts import Contracts
from lakehouse.errors import KafkaError
from lakehouse.kafka import (
    client_config,
    ensure_compacted_topic,
    may_not_write,
    raise_if_refused,
    stopped_answering,
)
from lakehouse.kafka_client import KafkaConnection
from lakehouse.patience import Patience
from lakehouse.progress import PROGRESS, Version, record_for, taken_by
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import Message, Producer
    from pyspark.sql import DataFrame, SparkSession

MOST_IN_FLIGHT = 50_000


@dataclass(frozen=True)
class Stretch:
    """The changes of gold after `before` (None: all that gold is) and up to `now`, of some sources."""

    before: Version | None
    now: Version
    sources: tuple[str, ...]


def run(spark: SparkSession, settings: Settings, contracts: Contracts, *, patience: Patience | None = None) -> int:
    """Publish what is new in gold and may be published; the number of records sent. Creates the topic when absent.

    A broker that stops answering is waited for as `patience` says. Raises TableError when there is no gold table yet,
    KafkaError when the broker does not take every record; what it took is sent again by the next run.
    """
    connection = settings.kafka()
    warehouse = Warehouse(spark, settings.warehouse, settings.checkpoints)
    publication = contracts.gold.publication
    warehouse.ensure(PROGRESS)
    new = stretches(warehouse, contracts)
    ensure_compacted_topic(
        connection,
        publication.topic,
        partitions=publication.partitions,
        replication_factor=publication.replication_factor,
    )
    columns = unified(contracts.gold)
    sent = 0
    for stretch in new:
        sent += send(
            records(states_of(warehouse, contracts, stretch), columns=columns, generation=stretch.now.created_ms),
            connection=connection,
            topic=publication.topic,
            patience=patience,
        )
        record_published(warehouse, contracts, stretch)
    return sent


def waiting(warehouse: Warehouse, contracts: Contracts) -> int:
    """How many records the next run would send. Changes nothing. Raises TableError when there is no gold table yet."""
    if not warehouse.exists(PROGRESS.name):
        return 0
    return sum(states_of(warehouse, contracts, new).count() for new in stretches(warehouse, contracts))


def stretches(warehouse: Warehouse, contracts: Contracts) -> list[Stretch]:
    """What is to be published: of each source all that passed the gate and was not published yet.

    One in the normal case: sources that stand at the same place go together.
    """
    created_ms = warehouse.created_at_ms(UNIFIED)
    sources = (*contracts.gold.sources, OTHERS)
    published = taken_by(warehouse, UNIFIED, [_consumer(contracts, name) for name in sources])
    together: dict[tuple[Version | None, Version], list[str]] = {}
    for name, now in passed_versions(warehouse, contracts.gold.sources).items():
        before = published.get(_consumer(contracts, name))
        if before is not None and before.created_ms != created_ms:
            before = None
        if now.created_ms == created_ms and before != now:
            together.setdefault((before, now), []).append(name)
    return [Stretch(before, now, tuple(names)) for (before, now), names in together.items()]


def record_published(warehouse: Warehouse, contracts: Contracts, new: Stretch) -> None:
    """Write down that the stretch is on the topic."""
    record_for(warehouse, [_consumer(contracts, name) for name in new.sources], new.now)


def _consumer(contracts: Contracts, source: str) -> str:
    return f"topic {contracts.gold.publication.topic}: {source}"


def states_of(warehouse: Warehouse, contracts: Contracts, new: Stretch) -> DataFrame:
    """The last state in this stretch of every key that is of its sources."""
    is_own = reduce(or_, [of_source(contracts, name) for name in new.sources])
    # First the last state of each key, then whose it is: a key that went to another source is that one's alone.
    return states_since(warehouse, new.now, new.before, columns=unified(contracts.gold)).where(is_own)


def states_since(warehouse: Warehouse, now: Version, before: Version | None, *, columns: Collection[str]) -> DataFrame:
    """The last state of every key that changed after `before`; of every key when nothing was ever published."""
    if before is None:
        everything = warehouse.read(now.table, version=now.number)
        return everything.withColumns({"is_deleted": F.lit(False), "version": F.lit(now.number)})
    return last_change_per_key(warehouse.changes(now.table, first=before.number + 1, last=now.number), columns=columns)


def send(rows: DataFrame, *, connection: KafkaConnection, topic: str, patience: Patience | None = None) -> int:
    """Produce every row and wait for the broker to have them all; their number.

    The partitioner is Java's default, so any other producer of the same keys finds the same partitions. Raises
    KafkaError when the broker refuses one, BrokerGoneError when it does not answer any more.
    """
    from confluent_kafka import KafkaException, Producer

    refusals: list[ClientError] = []

    def delivered(error: ClientError | None, _message: Message) -> None:
        if error is not None:
            refusals.append(error)

    def troubled(error: ClientError) -> None:
        if error.fatal() or error.name() == "_AUTHENTICATION":  # the others pass when the broker is back
            refusals.append(error)

    producer = Producer(
        {
            **client_config(connection),
            "error_cb": troubled,
            "enable.idempotence": True,
            # A record is waited for as long as we wait, not as long as librdkafka would.
            "message.timeout.ms": 0,
            "partitioner": "murmur2_random",
            "compression.type": "zstd",
            "linger.ms": 20,
            "queue.buffering.max.messages": MOST_IN_FLIGHT,
        }
    )
    sent = 0
    try:
        for row in rows.toLocalIterator():
            headers = [("change_type", row["change_type"]), ("change_sequence", row["change_sequence"])]
            if len(producer) >= MOST_IN_FLIGHT // 2:
                _wait(producer, refusals, until=MOST_IN_FLIGHT // 4, connection=connection, patience=patience)
            producer.produce(topic, key=row["key"], value=row["value"], headers=headers, on_delivery=delivered)
            producer.poll(0)
            sent += 1
            if refusals:
                break
        _wait(producer, refusals, until=0, connection=connection, patience=patience)
    except KafkaException as error:
        refusals.append(error.args[0])
    finally:
        producer.purge()  # nothing goes out any more after an error
    if refusals:
        raise _refused(connection, topic, refusals)
    return sent


def _wait(
    producer: Producer,
    refusals: Sequence[ClientError],
    *,
    until: int,
    connection: KafkaConnection,
    patience: Patience | None,
) -> None:
    """Wait until at most so many records are under way, or the broker has refused one.

    librdkafka itself connects again and sends again, each record once. Raises BrokerGoneError when for
    `timeout_seconds`, and then for as long as `patience` says, no record arrived.
    """
    waits = patience.waits if patience is not None else ()
    under_way, attempt = len(producer), 0
    deadline = time.monotonic() + connection.timeout_seconds
    while len(producer) > until and not refusals:
        producer.poll(0.2)
        if len(producer) < under_way:
            under_way, attempt = len(producer), 0
            deadline = time.monotonic() + connection.timeout_seconds
        elif time.monotonic() >= deadline:
            if patience is None or attempt == len(waits):
                raise stopped_answering(connection, "publish")
            patience.announce(connection.bootstrap_servers, attempt)
            deadline = time.monotonic() + waits[attempt]
            attempt += 1


def _refused(connection: KafkaConnection, topic: str, refusals: Sequence[ClientError]) -> KafkaError:
    from confluent_kafka import KafkaError as ClientError

    for refusal in refusals:
        raise_if_refused(connection, refusal)
    forbidden = {ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.CLUSTER_AUTHORIZATION_FAILED}
    if any(refusal.code() in forbidden for refusal in refusals):
        return may_not_write(connection, topic)
    names = ", ".join(sorted({refusal.name() for refusal in refusals}))
    return KafkaError(
        f"Not every record reached topic {topic} ({names}).",
        remedy="Run `lakehouse publish` again: it sends the same changes once more.",
    )
