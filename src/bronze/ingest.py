"""The bronze job: every new Kafka record of every source, appended once to `bronze.<source>_events`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze.events import events, events_table
from lakehouse.config import Settings
from lakehouse.contracts import Topics
from lakehouse.errors import KafkaError, LakehouseError, RetentionGapError
from lakehouse.kafka import require_topics
from lakehouse.streams import run_until_done
from lakehouse.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Topics of a broker, each with its partitions.
Known = Mapping[str, tuple[int, ...]]


def run(spark: SparkSession, settings: Settings, topics: Topics, *, known: Known) -> None:
    """Append what is new on the topics of every source, and stop. `known`: the topics that the broker has.

    A source that cannot be read does not keep the others from being read; its error is raised at the end:
    TopicMissingError, RetentionGapError when records are gone that were never read, KafkaError when the broker stops
    answering.
    """
    warehouse = Warehouse(spark, settings.warehouse, settings.checkpoints)
    for source in topics.sources:
        warehouse.ensure(events_table(source))

    def start(source: str) -> StreamingQuery:
        wanted = topics.sources[source]
        require_topics(settings.brokers(), wanted.topic_names, known=known)
        assigned = {topic: known[topic] for topic in wanted.assigned(known)}
        return _start(warehouse, settings, source, assigned)

    def explain(source: str, error: StreamingQueryException) -> LakehouseError:
        return _explained(source, settings.brokers(), error)

    run_until_done(topics.sources, start=start, explain=explain)


def append_batch(batch: DataFrame, batch_id: int, *, source: str, location: str, checkpoints: str) -> None:
    """Append one micro-batch of Kafka records; a repeated one is appended once.

    The guard is the identity of the checkpoint together with the batch id: after a lost checkpoint, batch ids start
    again, and so does the identity.
    """
    warehouse = Warehouse(batch.sparkSession, location, checkpoints)
    warehouse.append_once(
        events_table(source).name,
        events(batch, batch_id=batch_id),
        writer=f"bronze/{source}/{warehouse.checkpoint_id(_job(source))}",
        number=batch_id,
    )


def starting_offsets(stored: DataFrame, assigned: Known) -> str:
    """Where to start without a checkpoint, in Spark's form: after the last stored record, else at the earliest (-2)."""
    highest = stored.groupBy("topic", "partition").agg(F.max("offset").alias("offset")).collect()
    following = {(row["topic"], row["partition"]): row["offset"] + 1 for row in highest}
    return json.dumps(
        {
            topic: {str(number): following.get((topic, number), -2) for number in numbers}
            for topic, numbers in assigned.items()
        }
    )


def _job(source: str) -> str:
    return f"bronze/{source}"


def _start(warehouse: Warehouse, settings: Settings, source: str, assigned: Known) -> StreamingQuery:
    reader = (
        warehouse.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.brokers())
        .option("subscribe", ",".join(sorted(assigned)))
        .option("includeHeaders", "true")
        # Connect may write in transactions: what it took back is not an event.
        .option("kafka.isolation.level", "read_committed")
        .option("failOnDataLoss", "true")
    )
    if warehouse.checkpoint_id(_job(source)) is None:
        reader = reader.option("startingOffsets", starting_offsets(warehouse.read(events_table(source).name), assigned))
    if settings.max_offsets_per_trigger:
        reader = reader.option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
    write = partial(append_batch, source=source, location=warehouse.location, checkpoints=warehouse.checkpoints)
    return (
        reader.load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", warehouse.checkpoint(_job(source)))
        .trigger(availableNow=True)
        .queryName(f"bronze {source}")
        .start()
    )


def _explained(source: str, brokers: str, error: StreamingQueryException) -> LakehouseError:
    """The stream's failure in our words where we know it; else Spark's name for it: its sentences can quote values."""
    text = str(error)
    if "KAFKA_DATA_LOSS" in text or "may have been lost" in text or "OffsetOutOfRange" in text:
        return RetentionGapError(
            f"bronze: {source}: records that were never read are gone from {brokers} "
            "(retention, or a topic that was created again).",
            remedy="Nothing was skipped. Restore the records, or move the checkpoint aside to start at what is left.",
        )
    if "TimeoutException" in text or "Connection" in text:
        return KafkaError(
            f"bronze: {source}: the broker at {brokers} stopped answering.",
            remedy="Run the job again when it is back: it resumes where it stopped.",
        )
    return LakehouseError(
        f"bronze: {source}: the stream stopped ({error.getCondition()}); Spark's log has the trace.",
        remedy="Run the job again: it resumes.",
    )
