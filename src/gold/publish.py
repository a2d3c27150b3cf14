"""The publish job: every change of `gold.unified_orders` since the last publication, sent to the unified topic.

Of each source up to the version of gold with which it last passed gate 2: a source that the gate blocks is caught
up with later. At most one record a key and run, in the same partition every time. The records are written in
transactions, and with them the publish position: after a crash at any moment, readers of committed records have every
version of gold once. A record that is too large for the topic blocks no other.

Where the changes are not known (a first publication, a topic or a gold table that was created again, another format,
changes that gold does not have any more) the topic itself is read, and what differs from gold is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gold.gate import OTHERS, blocked_sources
from gold.unify import UNIFIED
from gold.unpublished import (
    NewRecords,
    PublishPosition,
    SourcePosition,
    new_records,
    parts,
    publish_position,
    read_publish_position,
    shape_of,
)
from lakehouse.config import Settings
from lakehouse.consumed import Consumed
from lakehouse.contracts.models import Contracts, Publication
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import GROUP_PREFIX, ensure_compacted_topic
from lakehouse.kafka.offsets import topic_ids
from lakehouse.kafka.producer import TransactionalProducer, transactional_producer
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.kafka.spark import source_errors
from lakehouse.quality.masking import MASK
from lakehouse.quality.table_rules import MOST_KEYS
from lakehouse.spark.materialized import in_arrow
from lakehouse.spark.sizing import prepared_for, rows_in
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What readers wait for at most before they see any of it.
MOST_IN_A_TRANSACTION = 1_000_000
# What Kafka writes around key, value and headers of a record that goes alone: its lengths, and the head of its batch.
FRAME_BYTES = 256


@dataclass(frozen=True)
class PublishOutcome:
    """How many records were sent, and the sources that were compared with the topic whole, with the reason.

    `blocked`: the sources that gate 2 blocks, from gold (TABLES) or from the topic (PUBLICATION).
    """

    sent: int
    whole: Mapping[str, str] = field(default_factory=dict)
    blocked: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sent:
    """Of a `PublishRange`: how many records were sent, the position then, and the bytes of those too large, by key."""

    number: int
    position: PublishPosition
    too_large: Mapping[bytes, int]


def run(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    retry_policy: RetryPolicy | None = None,
    republish: bool = False,
    most_in_a_transaction: int = MOST_IN_A_TRANSACTION,
    consumed: Consumed | None = None,
) -> PublishOutcome:
    """Publish what is new in gold and may be published. Creates the topic, and its progress topic, when absent.

    `republish`: send every order once more, and a delete for every key of the topic that gold does not have. A broker
    that stops answering is waited for as `retry_policy` says. `consumed`: as `gold.build.run` has left it.

    Raises TableError when there is no gold table yet, KafkaError when a topic is not kept as it must be or the broker
    does not take every record: the next run goes on. So it is raised, when all others are sent, for records that are
    too large.
    """
    connection, publication = settings.kafka(), contracts.gold.publication
    warehouse = settings.address.opened(spark)
    created_ms, size = warehouse.created_and_size(UNIFIED)
    largest = publication.max_message_bytes
    ensure = partial(ensure_compacted_topic, connection, replication_factor=publication.replication_factor)
    ensure(publication.topic, partitions=publication.partitions, max_message_bytes=largest)
    ensure(publication.progress_topic, partitions=1)
    shape = shape_of(contracts, topic_id=topic_ids(connection, [publication.topic])[publication.topic])
    transactional_id = f"{GROUP_PREFIX}-publish-{publication.topic}"
    sent, whole, too_large = 0, {}, dict[bytes, int]()
    producing = transactional_producer(
        connection, transactional_id=transactional_id, max_message_bytes=largest, retry_policy=retry_policy
    )
    with source_errors(connection, job="publish"), producing as producer:
        # Only now: what another run had begun is taken back, or committed.
        position = read_publish_position(connection, publication.progress_topic)
        known = (consumed or Consumed()).now(warehouse)
        for part in parts(known, contracts, position, created_ms=created_ms, shape=shape, republish=republish):
            # Without changes to go on from, all of gold and of the topic is compared.
            with (
                prepared_for(spark, 0 if part.before else rows_in(size)),
                new_records(warehouse, connection, contracts, part, position) as new,
            ):
                place = SourcePosition(created_ms=part.now.created_ms, version=part.now.number, shape=shape)
                position = PublishPosition(generation=new.generation, places=position.places)
                after = position.at(part.sources, place)
                done = _send(producer, new, contracts, part.sources, after, most=most_in_a_transaction)
                sent, position = sent + done.number, done.position
                too_large.update(done.too_large)
                whole.update(dict.fromkeys(part.sources, new.why) if new.why else {})
    if too_large:
        raise _not_sent(contracts, too_large)
    compared = {name: why for name, why in whole.items() if name != OTHERS}
    return PublishOutcome(sent, compared, blocked_sources(known, contracts.gold.sources))


def pending(warehouse: Warehouse, settings: Settings, contracts: Contracts, *, republish: bool = False) -> int:
    """How many records the next run would send. Changes nothing. Raises TableError when there is no gold table yet."""
    connection = settings.kafka()
    position, shape = publish_position(connection, contracts)
    count = 0
    with source_errors(connection, job="publish"):
        known, created_ms = Consumed().now(warehouse), warehouse.created_at_ms(UNIFIED)
        for part in parts(known, contracts, position, created_ms=created_ms, shape=shape, republish=republish):
            with new_records(warehouse, connection, contracts, part, position) as new:
                count += new.count
    return count


def _send(
    producer: TransactionalProducer,
    new: NewRecords,
    contracts: Contracts,
    sources: tuple[str, ...],
    after: PublishPosition,
    *,
    most: int,
) -> _Sent:
    """Send the records that are not too large, then the publish position.

    While more than `most` go in parts, and as long as one is too large, their sources have no position.
    """
    publication = contracts.gold.publication
    sent, too_large = 0, dict[bytes, int]()
    for key, value, headers in _fetched(new):
        if sent and sent % most == 0:
            _commit(producer, publication, after.without(sources))
        size = _size(key, value, headers)
        if value is not None and size > publication.max_message_bytes:
            too_large[key] = size
            continue
        producer.send(publication.topic, key=key, value=value, headers=headers)
        sent += 1
    position = after.without(sources) if too_large else after
    _commit(producer, publication, position)
    return _Sent(sent, position, too_large)


def _fetched(new: NewRecords) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
    """The records, a partition of them at a time: key, value and headers."""
    headers = ("change_type", "change_sequence")
    for packed in in_arrow(new.rows.select("key", "value", *headers), count=new.count):
        for key, value, *of_headers in zip(*(column.to_pylist() for column in packed.columns), strict=True):
            yield key, value, dict(zip(headers, of_headers, strict=True))


def _size(key: bytes, value: bytes | None, headers: Mapping[str, str]) -> int:
    """How many bytes Kafka has to take at once, at most."""
    of_headers = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    return FRAME_BYTES + len(key) + len(value or b"") + of_headers


def _not_sent(contracts: Contracts, too_large: Mapping[bytes, int]) -> KafkaError:
    """The error of records that are too large: their keys, where these may be shown."""
    publication, is_sensitive = contracts.gold.publication, "composite_key" in contracts.sensitive_in_gold
    shown = [
        f"{MASK if is_sensitive else _composite_key(key)} ({size} bytes)"
        for key, size in list(too_large.items())[:MOST_KEYS]
    ]
    more = f" and {len(too_large) - len(shown)} more" if len(too_large) > len(shown) else ""
    return KafkaError(
        f"publish: too large for topic {publication.topic}, whose max_message_bytes in gold/tables.yaml is "
        f"{publication.max_message_bytes}: {', '.join(shown)}{more}. All other records were sent.",
        remedy="Raise max_message_bytes, and the topic's max.message.bytes (the next run says how), or make the values "
        "smaller where they come from. Until then, every run compares the topic with gold whole.",
    )


def _composite_key(key: bytes) -> str:
    """The composite key in the key of a record of ours, whichever format it is in."""
    read = json.loads(key)
    return str(read.get("payload", read)["composite_key"])


def _commit(producer: TransactionalProducer, publication: Publication, position: PublishPosition) -> None:
    """Commit what was sent, together with the publish position."""
    key = json.dumps({"topic": publication.topic}).encode()
    producer.send(publication.progress_topic, key=key, value=position.model_dump_json().encode(), headers={})
    producer.commit()
