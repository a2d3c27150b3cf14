"""Upsert topics: each a compacted topic with the rows of one table, silver's or gold's, as they are.

The record's key is the row's key, a null value means that there is no such row (any more). The changes since the last
published version come from the table's change data feed; where they are not known, the topic is compared with the table
whole. A table that has no new commit costs no job.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import net_changes
from gold.topics.avro import with_schema_ids
from gold.topics.differences import NewRecords, computed_records, differing_records, last_values
from gold.topics.formats import AT_VERSION, IS_GONE, RecordShape, records
from gold.topics.position import (
    PublishPosition,
    SourcePosition,
    position_and_id,
    published_version,
    read_publish_position,
)
from gold.topics.sending import not_sent, send
from lakehouse.config import Settings
from lakehouse.contracts.checks.upsert_checks import why_not_yet
from lakehouse.contracts.models import Contracts, UpsertTopic
from lakehouse.contracts.published import KeyedTable, key_fields, keyed_table, value_fields
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import last_version
from lakehouse.errors import SettingsError
from lakehouse.kafka.broker import GROUP_PREFIX, ensure_compacted_topic
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import topic_ids
from lakehouse.kafka.producer import transactional_producer
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.kafka.spark import source_errors
from lakehouse.registered import NO_IDS
from lakehouse.spark.sizing import rows_in, tuned_for
from lakehouse.versions import Version

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Upserted:
    """How many records went to an upsert topic; `why` it was compared with its table whole, None where it was not.

    `skipped`: why nothing was sent to it, where a rule has not made its table yet.
    """

    sent: int
    why: str | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class Upsert:
    """An upsert topic with what the contracts say of its table, and the records that it has."""

    topic: UpsertTopic
    table: KeyedTable
    records: RecordShape

    def shape(self, topic_id: str) -> str:
        """The topic's id, the format and the fields: other records are published whole."""
        fields = [[astuple(field) for field in fields] for fields in (self.records.keys, self.records.values)]
        return f"{topic_id} {self.topic.format} {sha256(json.dumps(fields).encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Range:
    """The changes to publish: after `before` and up to `now`; without `before` all that differs, and `why`."""

    now: Version
    before: Version | None
    why: str | None
    again: bool


def upsert_of(contracts: Contracts, name: str) -> Upsert:
    """The upsert topic of this name. Raises SettingsError when its table cannot be published so: a check refuses it."""
    topic = contracts.gold.upsert_topics[name]
    table = keyed_table(contracts, topic.table)
    if table is None:
        raise SettingsError(f"There is no table {topic.table} with a key.", hint="Run: lakehouse validate.")
    ids = contracts.schema_ids.get(topic.topic, NO_IDS)
    shape = RecordShape(topic.format, key_fields(table, topic), value_fields(table, topic), ids)
    return Upsert(topic, table, shape)


def upsert_ready(
    contracts: Contracts,
    connection: KafkaConnection,
    name: str,
    *,
    register: bool,
    retry_policy: RetryPolicy | None = None,
) -> Contracts:
    """The contracts with the ids of this topic's schemas: see `gold.topics.avro.with_schema_ids`."""
    upsert = upsert_of(contracts, name)
    return with_schema_ids(
        contracts, connection, upsert.topic, upsert.records, register=register, retry_policy=retry_policy
    )


def publish(
    spark: SparkSession,
    settings: Settings,
    contracts: Contracts,
    name: str,
    *,
    retry_policy: RetryPolicy | None,
    republish: bool,
    most: int,
) -> Upserted:
    """Bring the upsert topic of this name up to its table; nothing, not even the topic, while there is no such table.

    Raises KafkaError as `gold.topics.publish.run` does.
    """
    why_not = why_not_yet(contracts, name)
    if why_not is not None:
        return Upserted(0, skipped=why_not)
    connection, warehouse = settings.kafka(), settings.address.open(spark)
    contracts = upsert_ready(contracts, connection, name, register=True, retry_policy=retry_policy)
    upsert = upsert_of(contracts, name)
    topic, source = upsert.topic, (upsert.table.name,)
    if not warehouse.exists(upsert.table.name):
        return Upserted(0)
    ensure = partial(ensure_compacted_topic, connection, replication_factor=topic.replication_factor)
    ensure(topic.topic, partitions=topic.partitions, max_message_bytes=topic.max_message_bytes)
    ensure(topic.progress_topic, partitions=1)
    shape = upsert.shape(topic_ids(connection, [topic.topic])[topic.topic])
    position = read_publish_position(connection, topic.progress_topic)
    if _range(warehouse, upsert, position, shape, republish=republish) is None:
        return Upserted(0)
    producing = transactional_producer(
        connection,
        transactional_id=f"{GROUP_PREFIX}-publish-{topic.topic}",
        max_message_bytes=topic.max_message_bytes,
        retry_policy=retry_policy,
    )
    with source_errors(connection, job="publish"), producing as producer:
        # Again: what another run had begun is taken back now, or committed.
        position = read_publish_position(connection, topic.progress_topic)
        new = _range(warehouse, upsert, position, shape, republish=republish)
        if new is None:
            return Upserted(0)
        size = 0 if new.before else warehouse.created_and_size(upsert.table.name)[1]
        with (
            tuned_for(spark, rows_in(size)),
            _new_records(warehouse, connection, upsert, new, position) as found,
        ):
            source_position = SourcePosition(created_ms=new.now.created_ms, version=new.now.number, shape=shape)
            # Of this table alone: what was known of another one is not true any more.
            after = PublishPosition(generation=found.generation).at(source, source_position)
            done = send(producer, found, topic, source, after, most=most)
    if done.too_large:
        raise not_sent(topic, done.too_large, is_sensitive=upsert.table.has_sensitive_key)
    return Upserted(done.number, found.why)


def pending(
    warehouse: Warehouse, settings: Settings, contracts: Contracts, *, republish: bool = False
) -> dict[str, int]:
    """Of each upsert topic, by its name, how many records the next run would send. Changes nothing."""
    connection, counts = settings.kafka(), {}
    for name in contracts.gold.upsert_topics:
        if why_not_yet(contracts, name) is not None:
            counts[name] = 0
            continue
        upsert = upsert_of(upsert_ready(contracts, connection, name, register=False), name)
        position, topic_id = position_and_id(connection, upsert.topic)
        counts[name] = 0
        if not warehouse.exists(upsert.table.name):
            continue
        new = _range(warehouse, upsert, position, upsert.shape(topic_id), republish=republish)
        if new is not None:
            with (
                source_errors(connection, job="publish"),
                _new_records(warehouse, connection, upsert, new, position) as found,
            ):
                counts[name] = found.count
    return counts


def _range(
    warehouse: Warehouse, upsert: Upsert, position: PublishPosition, shape: str, *, republish: bool
) -> Range | None:
    """What is to be published of the table as it is now; None when the topic has it."""
    name = upsert.table.name
    now = last_version(warehouse, name)
    before, why = published_version(position.sources.get(name), now, shape=shape, republish=republish, table=name)
    return None if before == now else Range(now, before, why, again=republish)


def _new_records(
    warehouse: Warehouse, connection: KafkaConnection, upsert: Upsert, new: Range, position: PublishPosition
) -> AbstractContextManager[NewRecords]:
    """What there is to send, inside the block."""
    gone = f"{upsert.table.name} does not have the changes since the last publication any more"
    return computed_records(
        changed=None if new.before is None else partial(_changed, warehouse, upsert, new, new.before.number + 1),
        of_changed=lambda rows, generation: records(rows, shape=upsert.records, generation=generation),
        differing=partial(_differing, warehouse, connection, upsert, new),
        generation=position.generation,
        why=new.why or gone,
    )


def _changed(warehouse: Warehouse, upsert: Upsert, new: Range, first: int) -> DataFrame:
    """The keys whose rows changed, as they are at the end."""
    feed = warehouse.changes(new.now.table, first=first, last=new.now.number)
    is_deleted = F.col("_is_deleted") if upsert.table.keeps_deleted else None
    return net_changes(feed, keys=upsert.table.keys, columns=upsert.records.columns, is_deleted=is_deleted)


def _differing(
    warehouse: Warehouse, connection: KafkaConnection, upsert: Upsert, new: Range, generation: int
) -> DataFrame:
    """A record for every key that is not on the topic as it is in the table; for all, when asked for."""
    expected = rows_at(warehouse, upsert, new.now.number, generation=generation)
    there = last_values(warehouse, connection, upsert.topic.topic)
    return differing_records(expected, there, generation=generation, version=new.now.number, again=new.again)


def rows_at(warehouse: Warehouse, upsert: Upsert, version: int, *, generation: int = 0) -> DataFrame:
    """The records of every row that the table has at this version."""
    rows = warehouse.read(upsert.table.name, version=version)
    live = rows.where(~F.col("_is_deleted")) if upsert.table.keeps_deleted else rows
    states = live.select(*upsert.records.columns, F.lit(False).alias(IS_GONE), F.lit(version).alias(AT_VERSION))
    return records(states, shape=upsert.records, generation=generation)
