"""Records of the load as rows of bronze, for benchmarks and tests that begin there: no broker, no bronze job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.load import BEGIN_US, Event
from bronze.batches import Planned, write_down_batch
from bronze.events import events_table
from bronze.source_state import read_states
from lakehouse.batches import BATCHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.delta.tables import Warehouse


def bronze_rows(spark: SparkSession, events: Sequence[Event], *, topic: str, first_offset: int) -> DataFrame:
    """These records of one partition, in order, as bronze has them: all of one run of the connector."""
    rows = [
        (offset, key.decode(), None if value is None else value.decode())
        for offset, (key, value) in enumerate(events, start=first_offset)
    ]
    header = F.struct(F.lit("__debezium.context.runId").alias("key"), F.lit("run").cast("binary").alias("value"))
    return spark.createDataFrame(rows, "offset BIGINT, key STRING, value STRING").select(
        F.lit(topic).alias("topic"),
        F.lit(0).alias("partition"),
        "offset",
        F.timestamp_millis(F.lit(BEGIN_US // 1000) + F.col("offset")).alias("timestamp"),
        F.lit(0).alias("timestamp_type"),
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        F.array(header).alias("headers"),
        F.lit("id").alias("_topic_id"),
        F.current_timestamp().alias("_ingested_at"),
        F.lit(0).cast("bigint").alias("_batch_id"),
    )


def store(warehouse: Warehouse, source: str, rows: DataFrame) -> None:
    """Append bronze rows, as a batch of bronze does: to the table, and to `ops.batches`."""
    name = events_table(source).name
    warehouse.ensure(BATCHES)
    held = rows.persist()
    spans = held.groupBy("topic", F.coalesce("_topic_id", F.lit("")).alias("topic_id"), "partition").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    planned = [
        Planned(row["topic"], row["topic_id"], row["partition"], row["first"], row["last"] + 1)
        for row in spans.collect()
    ]
    warehouse.append(name, held)
    held.unpersist()
    sequence = read_states(warehouse, [source])[source].last.sequence
    write_down_batch(
        warehouse,
        warehouse.read(name),
        planned,
        batch={"source": source, "checkpoint": "test", "batch": sequence, "sequence": sequence + 1},
        number=sequence,
        writer=f"bronze/{source}/test",
        some_were_there=False,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
