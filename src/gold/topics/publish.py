"""The publish job: every change of `gold.unified_orders` since the last publication, sent to the unified topic.

Of each source up to the version of gold with which it last passed gate 2: a source that the gate blocks is caught
up with later. At most one record a key and run, in the same partition every time. The records are written in
transactions, and with them the publish position: after a crash at any moment, readers of committed records have every
version of gold once. A record that is too large for the topic blocks no other.

Where the changes are not known (a first publication, a topic or a gold table that was created again, another format,
changes that gold does not have any more) the topic itself is read, and what differs from gold is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gold.quality.gate import OTHERS
from gold.state_store import StateStore
from gold.topics import upsert
from gold.topics.position import PublishPosition, SourcePosition, read_publish_position
from gold.topics.sending import MAX_IN_A_TRANSACTION, not_sent, send
from gold.topics.unpublished import new_records, parts, publish_position, ready, shape_of
from gold.unify import UNIFIED
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import BrokerUnavailableError, LakehouseError
from lakehouse.kafka.broker import GROUP_PREFIX, ensure_compacted_topic
from lakehouse.kafka.offsets import topic_ids
from lakehouse.kafka.producer import transactional_producer
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.kafka.spark import source_errors
from lakehouse.spark.sizing import rows_in, tuned_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PublishOutcome:
    """How many records were sent, and the sources that were compared with the topic whole, with the reason.

    `blocked`: the sources that gate 2 blocks, from gold (TABLES) or from the topic (PUBLICATION). `upserted`: what came
    of each upsert topic, by its name in the contract.
    """

    sent: int
    whole: Mapping[str, str] = field(default_factory=dict)
    blocked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    upserted: Mapping[str, upsert.Upserted] = field(default_factory=dict)


def run(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    retry_policy: RetryPolicy | None = None,
    republish: bool = False,
    most_in_a_transaction: int = MAX_IN_A_TRANSACTION,
    store: StateStore | None = None,
) -> PublishOutcome:
    """Publish what is new in gold and may be published, then what is new in the tables of upsert topics.

    Without unified orders the upsert topics alone. Creates each topic, and its progress topic, when absent. A topic
    that fails does not stop the others; the first error is raised at the end. `republish`: send every row once more,
    and a delete for every key of a topic that its table does not have. A broker that stops answering is waited for as
    `retry_policy` says. `store`: as `gold.build.run` has left it.

    Raises TableError when there is no table of the unified orders yet, KafkaError when a topic is not kept as it must
    be or the broker does not take every record: the next run goes on. So it is raised, when all others are sent, for
    records that are too large.
    """
    failures: list[LakehouseError] = []
    outcome, upserted = PublishOutcome(0), dict[str, upsert.Upserted]()
    if contracts.gold.has_unified:
        with _collect_errors(failures):
            outcome = _publish_unified(
                spark,
                settings,
                contracts,
                retry_policy=retry_policy,
                republish=republish,
                most=most_in_a_transaction,
                store=store or StateStore(),
            )
    for name in contracts.gold.upsert_topics:
        with _collect_errors(failures):
            upserted[name] = upsert.publish(
                spark,
                settings,
                contracts,
                name,
                retry_policy=retry_policy,
                republish=republish,
                most=most_in_a_transaction,
            )
    if failures:
        raise failures[0]
    return replace(outcome, upserted=upserted)


@contextmanager
def _collect_errors(failures: list[LakehouseError]) -> Iterator[None]:
    """Inside, an error is one of the failures, and the next topic has its turn; unless the broker is gone."""
    try:
        yield
    except BrokerUnavailableError:
        raise
    except LakehouseError as error:
        failures.append(error)


def _publish_unified(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    retry_policy: RetryPolicy | None,
    republish: bool,
    most: int,
    store: StateStore,
) -> PublishOutcome:
    """Publish what is new in gold and may be published to the unified topic."""
    connection, publication = settings.kafka(), contracts.gold.unified_topic
    contracts = ready(contracts, connection, register=True, retry_policy=retry_policy)
    warehouse = settings.address.open(spark)
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
        state = store.read(warehouse)
        for part in parts(
            state.publishable, contracts, position, created_ms=created_ms, shape=shape, republish=republish
        ):
            # Without changes to go on from, all of gold and of the topic is compared.
            with (
                tuned_for(spark, 0 if part.before else rows_in(size)),
                new_records(warehouse, connection, contracts, part, position) as new,
            ):
                source_position = SourcePosition(created_ms=part.now.created_ms, version=part.now.number, shape=shape)
                position = PublishPosition(generation=new.generation, sources=position.sources)
                after = position.at(part.sources, source_position)
                done = send(producer, new, publication, part.sources, after, most=most)
                sent, position = sent + done.number, done.position
                too_large.update(done.too_large)
                whole.update(dict.fromkeys(part.sources, new.why) if new.why else {})
    if too_large:
        is_sensitive = "composite_key" in contracts.sensitive_in_gold
        raise not_sent(publication, too_large, is_sensitive=is_sensitive)
    compared = {name: why for name, why in whole.items() if name != OTHERS}
    return PublishOutcome(sent, compared, state.blocked_of(contracts.gold.sources))


def pending(warehouse: Warehouse, settings: Settings, contracts: Contracts, *, republish: bool = False) -> int:
    """How many records the next run would send to the unified topic. Changes nothing.

    Raises TableError when there is no gold table yet.
    """
    connection = settings.kafka()
    contracts = ready(contracts, connection, register=False)
    position, shape = publish_position(connection, contracts)
    count = 0
    with source_errors(connection, job="publish"):
        state, created_ms = StateStore().read(warehouse), warehouse.created_at_ms(UNIFIED)
        for part in parts(
            state.publishable, contracts, position, created_ms=created_ms, shape=shape, republish=republish
        ):
            with new_records(warehouse, connection, contracts, part, position) as new:
                count += new.count
    return count
