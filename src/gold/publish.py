"""The publish job: every change of `gold.unified_orders` since the last publication, sent to the unified topic.

Of each source up to the version of gold with which it last passed gate 2: a source that the gate holds waits, and is
caught up with later. At most one record a key and run, in the same partition every time. The records are written in
transactions, and with them the marker that says how far they go: after a crash at any moment, readers of committed
records have every version of gold once.

Where the changes cannot be told (a first publication, a topic or a gold table made anew, another format, changes that
gold does not have any more) the topic itself is read, and what differs from gold is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from gold.columns import UNIFIED
from gold.gates import OTHERS
from gold.marker import Marker, Place, read_marker, shape_of, standing
from gold.unpublished import new_records, stretches
from lakehouse.config import Settings
from lakehouse.contracts import Contracts, Publication
from lakehouse.held import held
from lakehouse.kafka import GROUP_PREFIX, ensure_compacted_topic
from lakehouse.kafka_offsets import topic_ids
from lakehouse.kafka_producer import TransactionalProducer, transactional_producer
from lakehouse.kafka_spark import source_errors
from lakehouse.patience import Patience
from lakehouse.sizing import prepared_for, rows_in
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What one process holds at a time; and what readers wait for at most before they see any of it.
ROWS_AT_ONCE = 20_000
MOST_IN_A_TRANSACTION = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """How many records were sent, and the sources that were compared with the topic whole, with the reason."""

    sent: int
    whole: Mapping[str, str] = field(default_factory=dict)


def run(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    *,
    patience: Patience | None = None,
    republish: bool = False,
    most_in_a_transaction: int = MOST_IN_A_TRANSACTION,
) -> Outcome:
    """Publish what is new in gold and may be published. Creates the topic, and that of its progress, when absent.

    `republish`: send every order once more, and a delete for every key of the topic that gold does not have. A broker
    that stops answering is waited for as `patience` says. Raises TableError when there is no gold table yet, KafkaError
    when a topic is not kept as it must be or the broker does not take every record: the next run goes on.
    """
    connection, publication = settings.kafka(), contracts.gold.publication
    warehouse = settings.address.opened(spark)
    _created, size = warehouse.created_and_size(UNIFIED)
    for topic, number in ((publication.topic, publication.partitions), (publication.progress_topic, 1)):
        ensure_compacted_topic(connection, topic, partitions=number, replication_factor=publication.replication_factor)
    shape = shape_of(contracts, topic_id=topic_ids(connection, [publication.topic])[publication.topic])
    transactional_id = f"{GROUP_PREFIX}-publish-{publication.topic}"
    sent, whole = 0, {}
    producing = transactional_producer(connection, transactional_id=transactional_id, patience=patience)
    with source_errors(connection, job="publish"), producing as producer:
        # Only now: what another run had begun is taken back, or committed.
        marker = read_marker(connection, publication.progress_topic)
        for stretch in stretches(warehouse, contracts, marker, shape=shape, republish=republish):
            # Without changes to go on from, all of gold and of the topic is compared.
            with (
                prepared_for(spark, 0 if stretch.before else rows_in(size)),
                new_records(warehouse, connection, contracts, stretch, marker) as (rows, why, generation),
            ):
                place = Place(created_ms=stretch.now.created_ms, version=stretch.now.number, shape=shape)
                marker = Marker(generation=generation, places=marker.places)
                after = marker.at(stretch.sources, place)
                sent += _send(producer, rows, contracts, stretch.sources, after, most=most_in_a_transaction)
                marker = after
                whole.update(dict.fromkeys(stretch.sources, why) if why else {})
    return Outcome(sent, {name: why for name, why in whole.items() if name != OTHERS})


def waiting(warehouse: Warehouse, settings: Settings, contracts: Contracts, *, republish: bool = False) -> int:
    """How many records the next run would send. Changes nothing. Raises TableError when there is no gold table yet."""
    connection = settings.kafka()
    marker, shape = standing(connection, contracts)
    count = 0
    with source_errors(connection, job="publish"):
        for stretch in stretches(warehouse, contracts, marker, shape=shape, republish=republish):
            with new_records(warehouse, connection, contracts, stretch, marker) as (rows, _why, _generation):
                count += rows.count()
    return count


def _send(
    producer: TransactionalProducer,
    rows: DataFrame,
    contracts: Contracts,
    sources: tuple[str, ...],
    after: Marker,
    *,
    most: int,
) -> int:
    """Send the records, then the marker; how many. While more than `most` go in parts, their sources have no place."""
    publication = contracts.gold.publication
    sent = 0
    with held(rows) as kept:
        parts = max(1, ceil(kept.count() / ROWS_AT_ONCE))
        for row in kept.repartition(parts).toLocalIterator():
            if sent and sent % most == 0:
                _commit(producer, publication, after.without(sources))
            headers = {"change_type": row["change_type"], "change_sequence": row["change_sequence"]}
            value = None if row["value"] is None else bytes(row["value"])
            producer.send(publication.topic, key=bytes(row["key"]), value=value, headers=headers)
            sent += 1
    _commit(producer, publication, after)
    return sent


def _commit(producer: TransactionalProducer, publication: Publication, marker: Marker) -> None:
    """Let readers have what was sent, together with the marker that says so."""
    key = json.dumps({"topic": publication.topic}).encode()
    producer.send(publication.progress_topic, key=key, value=marker.model_dump_json().encode(), headers={})
    producer.commit()
