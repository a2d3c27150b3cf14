"""The bronze job: every new Kafka record of every source, appended once to `bronze.<source>_events`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze.batches import (
    RECORDS,
    confirm,
    ingested_records,
    is_planned,
    observed_records,
    overlapping,
    planned_ranges,
    stored_metrics,
    write_down_batch,
)
from bronze.events import events, events_table, not_yet_stored, without_erased
from bronze.offsets import SourceOffsets, offsets_of_source, require_no_gap
from bronze.source_state import LastBatch, SourceState, read_states, write_down
from lakehouse.batches import BATCHES
from lakehouse.config import Settings
from lakehouse.contracts.topics import Topics
from lakehouse.delta.address import Address
from lakehouse.delta.tables import Warehouse
from lakehouse.erasure.table import erased_records
from lakehouse.errors import KafkaError, LakehouseError, RetentionGapError
from lakehouse.failures import storage_error, storage_errors, stream_stopped
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.kafka.spark import explained, source_options
from lakehouse.process.steps import Note
from lakehouse.spark.java import is_connect
from lakehouse.spark.observed import observe
from lakehouse.spark.sizing import tuned_for
from lakehouse.spark.streams import run_until_done

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# Takes what became of a batch: its source, the batch, and how many records it has appended.
Record = Callable[[str, LastBatch, int], None]

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
    states: dict[str, SourceState] | None = None,
) -> dict[str, int]:
    """Append what is new on the topics of every source, and end: how many records that were, by source.

    `known`: the topics that the broker has. `states`: what this process knows of `ops.batches`, by source. It is
    brought up to date, for the next run of the process while nobody else writes.

    A source whose broker stops answering is tried again as `retry_policy` says. A source that cannot be read does not
    keep the others from being read; its error is raised at the end: TopicMissingError, TopicChangedError,
    RetentionGapError when records are gone that were never read, KafkaError when the broker refuses,
    BrokerUnavailableError when it does not answer any more.
    """
    connection = settings.kafka()
    warehouse = settings.address.open(spark)
    storage_paths = (warehouse.location, warehouse.checkpoints)
    warehouse.ensure_all([*map(events_table, topics.sources), BATCHES])
    # A rule's topics come with its tables: a source may have none yet.
    read = [name for name, source in topics.sources.items() if source.feeds or source.assigned(known)]
    states = {} if states is None else states
    if lacking := [source for source in read if source not in states]:
        states |= read_states(warehouse, lacking)
    begun = {source: states[source].last.sequence for source in read}
    appended = dict.fromkeys(topics.sources, 0)
    is_here = not is_connect(spark)  # else streams call `foreachBatch` in another process

    def record(source: str, last: LastBatch, records: int) -> None:
        appended[source] += records
        states[source] = replace(states[source], last=last)

    def start(source: str) -> StreamingQuery:
        # After a failure the next start reads it.
        before = states.pop(source, None) or read_states(warehouse, [source])[source]
        source_offsets = offsets_of_source(
            warehouse, connection, source, topics.sources[source], known=known, state=before
        )
        require_no_gap(source, source_offsets.following, source_offsets.ends)
        with storage_errors(job=f"bronze: {source}", storage_paths=storage_paths):
            if source_offsets.may_lack_a_batch:
                confirm(warehouse, source, sequence=source_offsets.sequence)
            write_down(warehouse, source_offsets.unwritten)
            if is_here:
                last = replace(before.last, sequence=source_offsets.sequence)
                states[source] = SourceState(source_offsets.steps, last)
            return _start(warehouse, settings, connection, source_offsets, record=record if is_here else None)

    def explain(source: str, error: StreamingQueryException) -> LakehouseError:
        states.pop(source, None)
        return storage_error(error, job=f"bronze: {source}", storage_paths=storage_paths) or _explained(
            source, connection, error
        )

    run_until_done(read, start=start, explain=explain, retry_policy=retry_policy, progress=progress)
    if not is_here:  # another process has appended, and what it would record stays there
        appended |= ingested_records(warehouse, begun)
    return appended


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
    record: Record | None = None,
) -> None:
    """Append one micro-batch of Kafka records, then what it was to read; a repeated one is appended once.

    `sequence`: the stream's batches are numbered from it on. The guard is the identity of the checkpoint together with
    the batch id: after a lost checkpoint, batch ids start again, and so does the identity. A crash between the two
    leaves a batch that has not ended: it is repeated. `record` gets what became of the batch.
    """
    started_at = datetime.now(UTC)
    warehouse = address.open(batch.sparkSession)
    name = events_table(source).name
    checkpoint = warehouse.checkpoint_id(job) or ""
    planned = planned_ranges(warehouse, job, batch_id, topic_ids=topic_ids)
    rows = events(batch, batch_id=batch_id, topic_ids=topic_ids)
    again = overlapping(read_again, planned)
    if again:
        rows = not_yet_stored(rows, warehouse.read(name), read_again=again)
    if (erased := erased_records(warehouse, source)) is not None:
        erased = erased.where(reduce(or_, [is_planned(one) for one in planned], F.lit(False)))
        # Hardly ever: a batch that reads again what was erased.
        rows = rows if erased.isEmpty() else without_erased(rows, erased)
    counted = observe(rows, stored_metrics(planned))
    with tuned_for(warehouse.spark, sum(one.until_offset - one.from_offset for one in planned)):
        warehouse.append_once(name, counted.rows, writer=f"{job}/{checkpoint}", number=batch_id)
    # Without values an earlier process has appended the batch.
    values = counted.values()
    batch_sequence = sequence + 1 + batch_id
    write_down_batch(
        warehouse,
        warehouse.read(name),
        planned,
        batch={"source": source, "checkpoint": checkpoint, "batch": batch_id, "sequence": batch_sequence},
        number=batch_id,
        writer=f"{job}/{checkpoint}/batches",
        some_were_there=bool(again),
        started_at=started_at,
        # Of offsets that are read again bronze had some: what it has now is more than was appended.
        stored=None if values is None or again else observed_records(planned, values),
    )
    if record is not None:
        last = LastBatch(batch_sequence, checkpoint, batch_id)
        record(source, last, 0 if values is None else values[RECORDS])


def pending(spark: SparkSession, settings: Settings, topics: Topics, *, known: TopicPartitions) -> dict[str, int]:
    """How many offsets of every topic are not yet in bronze. Changes nothing. Raises as `run` does."""
    warehouse = settings.address.open(spark)
    counts: dict[str, int] = {}
    for source, contract in topics.sources.items():
        source_offsets = offsets_of_source(warehouse, settings.kafka(), source, contract, known=known)
        for topic_partition, offset in source_offsets.following.items():
            counts[topic_partition.topic] = (
                counts.get(topic_partition.topic, 0) + source_offsets.ends[topic_partition].latest - offset
            )
    return counts


def _start(
    warehouse: Warehouse,
    settings: Settings,
    connection: KafkaConnection,
    source_offsets: SourceOffsets,
    *,
    record: Record | None,
) -> StreamingQuery:
    reader = (
        warehouse.spark.readStream.format("kafka")
        .options(**source_options(connection, reader=f"bronze-{source_offsets.source}"))
        .option("subscribe", ",".join(sorted({topic_partition.topic for topic_partition in source_offsets.following})))
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
        record=record,
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
    for topic_partition, offset in offsets.items():
        topics.setdefault(topic_partition.topic, {})[str(topic_partition.number)] = offset
    return json.dumps(topics)


def _explained(source: str, connection: KafkaConnection, error: StreamingQueryException) -> LakehouseError:
    """The stream's failure in our words where we know it; else Spark's name for it: its sentences can quote values."""
    text = str(error)
    if _JOINED.search(text):
        return KafkaError(
            f"bronze: {source}: a partition joined while the stream was starting, and its first records are gone.",
            hint="Nothing was skipped. Run the job again: it reads that partition from the first record that it has.",
        )
    if "KAFKA_DATA_LOSS" in text or "may have been lost" in text or "OffsetOutOfRange" in text:
        return RetentionGapError(
            f"bronze: {source}: records that were never read are gone from {connection.bootstrap_servers} "
            "(retention, or a topic that was created again).",
            hint="Nothing was skipped. Run the job again: it names the offsets, and the command that goes on without "
            "them.",
        )
    found = explained(connection, text, job=f"bronze: {source}")
    if found is not None:
        return found
    return stream_stopped(error, job=f"bronze: {source}", hint="Run the job again: it resumes.")
