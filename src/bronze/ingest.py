"""The bronze job: every new Kafka record of every source, appended once to `bronze.<source>_events`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from bronze.batches import confirm, planned_ranges, write_down_batch
from bronze.events import events, events_table, not_yet_stored
from bronze.offsets import SourceOffsets, offsets_of_source, require_no_gap, write_down
from lakehouse.batches import BATCHES
from lakehouse.config import Settings
from lakehouse.contracts.topics import Topics
from lakehouse.errors import KafkaError, LakehouseError, RetentionGapError
from lakehouse.failures import storage_error, storage_errors, stream_stopped
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.kafka.spark import explained, source_options
from lakehouse.spark.sizing import prepared_for
from lakehouse.spark.streams import run_until_done
from lakehouse.spark.tables import Address, Warehouse
from lakehouse.steps import Note

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# What Spark says of a partition that a stream cannot take up: with the name of the condition, or without.
_JOINED = re.compile(r"\bADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO\b|Added partition \S+ starts from \d+ instead")


def run(
    spark: SparkSession,
    settings: Settings,
    topics: Topics,
    *,
    known: TopicPartitions,
    retry_policy: RetryPolicy | None = None,
    progress: Note | None = None,
) -> None:
    """Append what is new on the topics of every source, and end. `known`: the topics that the broker has.

    A source whose broker stops answering is tried again as `retry_policy` says. A source that cannot be read does not
    keep the others from being read; its error is raised at the end: TopicMissingError, TopicChangedError,
    RetentionGapError when records are gone that were never read, KafkaError when the broker refuses,
    BrokerGoneError when it does not answer any more.
    """
    connection = settings.kafka()
    warehouse = settings.address.opened(spark)
    places = (warehouse.location, warehouse.checkpoints)
    warehouse.ensure_all([*map(events_table, topics.sources), BATCHES])

    def start(source: str) -> StreamingQuery:
        source_offsets = offsets_of_source(warehouse, connection, source, topics.sources[source], known=known)
        require_no_gap(source, source_offsets.following, source_offsets.ends)
        with storage_errors(job=f"bronze: {source}", places=places):
            if source_offsets.may_lack_a_batch:
                confirm(warehouse, source, sequence=source_offsets.sequence)
            write_down(warehouse, source_offsets.unwritten)
            return _start(warehouse, settings, connection, source_offsets)

    def explain(source: str, error: StreamingQueryException) -> LakehouseError:
        return storage_error(error, job=f"bronze: {source}", places=places) or _explained(source, connection, error)

    # A rule's topics come with its tables: a source may have none yet.
    read = [name for name, source in topics.sources.items() if source.feeds or source.assigned(known)]
    run_until_done(read, start=start, explain=explain, retry_policy=retry_policy, progress=progress)


def append_batch(
    batch: DataFrame,
    batch_id: int,
    *,
    source: str,
    job: str,
    sequence: int,
    topic_ids: Mapping[str, str],
    read_again: Mapping[tuple[str, int], tuple[int, int]],
    address: Address,
) -> None:
    """Append one micro-batch of Kafka records, then what it was to read; a repeated one is appended once.

    `sequence`: the stream's batches are numbered from it on. The guard is the identity of the
    checkpoint together with the batch id: after a lost checkpoint, batch ids start again, and so does the identity. A
    crash between the two leaves a batch that has not ended: it is repeated.
    """
    started_at = datetime.now(UTC)
    warehouse = address.opened(batch.sparkSession)
    name = events_table(source).name
    rows = events(batch, batch_id=batch_id, topic_ids=topic_ids)
    if read_again:
        rows = not_yet_stored(rows, warehouse.read(name), read_again=read_again)
    checkpoint = warehouse.checkpoint_id(job) or ""
    planned = planned_ranges(warehouse, job, batch_id, topic_ids=topic_ids)
    with prepared_for(warehouse.spark, sum(one.until_offset - one.from_offset for one in planned)):
        warehouse.append_once(name, rows, writer=f"{job}/{checkpoint}", number=batch_id)
    write_down_batch(
        warehouse,
        warehouse.read(name),
        planned,
        batch={"source": source, "checkpoint": checkpoint, "batch": batch_id, "sequence": sequence + 1 + batch_id},
        number=batch_id,
        writer=f"{job}/{checkpoint}/batches",
        some_were_there=bool(read_again),
        started_at=started_at,
    )


def pending(spark: SparkSession, settings: Settings, topics: Topics, *, known: TopicPartitions) -> dict[str, int]:
    """How many offsets of every topic are not yet in bronze. Changes nothing. Raises as `run` does."""
    warehouse = settings.address.opened(spark)
    counts: dict[str, int] = {}
    for source, contract in topics.sources.items():
        source_offsets = offsets_of_source(warehouse, settings.kafka(), source, contract, known=known)
        for place, offset in source_offsets.following.items():
            counts[place.topic] = counts.get(place.topic, 0) + source_offsets.ends[place].latest - offset
    return counts


def _start(
    warehouse: Warehouse, settings: Settings, connection: KafkaConnection, source_offsets: SourceOffsets
) -> StreamingQuery:
    reader = (
        warehouse.spark.readStream.format("kafka")
        .options(**source_options(connection, reader=f"bronze-{source_offsets.source}"))
        .option("subscribe", ",".join(sorted({place.topic for place in source_offsets.following})))
        .option("includeHeaders", "true")
        # Heeded only while no batch was ever planned. A checkpoint may be there without one, when the broker was gone
        # at its first start: without this option Spark would then begin at the latest record, and skip all before it.
        .option("startingOffsets", _in_sparks_form(source_offsets.following))
    )
    if settings.max_offsets_per_trigger:
        reader = reader.option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
    write = partial(
        append_batch,
        source=source_offsets.source,
        job=source_offsets.job,
        sequence=source_offsets.sequence,
        topic_ids=source_offsets.topic_ids,
        read_again=source_offsets.read_again,
        address=warehouse.address,
    )
    return (
        reader.load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", warehouse.checkpoint(source_offsets.job))
        .trigger(availableNow=True)
        .queryName(f"bronze {source_offsets.source}")
        .start()
    )


def _in_sparks_form(offsets: Mapping[Partition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place.topic, {})[str(place.number)] = offset
    return json.dumps(topics)


def _explained(source: str, connection: KafkaConnection, error: StreamingQueryException) -> LakehouseError:
    """The stream's failure in our words where we know it; else Spark's name for it: its sentences can quote values."""
    text = str(error)
    if _JOINED.search(text):
        return KafkaError(
            f"bronze: {source}: a partition joined while the stream was starting, and its first records are gone.",
            remedy="Nothing was skipped. Run the job again: it reads that partition from the first record that it has.",
        )
    if "KAFKA_DATA_LOSS" in text or "may have been lost" in text or "OffsetOutOfRange" in text:
        return RetentionGapError(
            f"bronze: {source}: records that were never read are gone from {connection.bootstrap_servers} "
            "(retention, or a topic that was created again).",
            remedy="Nothing was skipped. Run the job again: it names the offsets, and the command that goes on without "
            "them.",
        )
    found = explained(connection, text, job=f"bronze: {source}")
    if found is not None:
        return found
    return stream_stopped(error, job=f"bronze: {source}", remedy="Run the job again: it resumes.")
