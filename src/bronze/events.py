"""What a bronze row is: the Kafka record as it was, and when we took it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = """
    topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT,
    key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
    _ingested_at TIMESTAMP, _batch_id BIGINT
"""


def events_table(source: str) -> TableSpec:
    """`bronze.<source>_events`: append-only, statistics on the Kafka coordinates alone."""
    return TableSpec(
        name=f"bronze.{source}_events",
        columns=COLUMNS,
        properties={"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": "topic,partition,offset,timestamp"},
    )


def events(records: DataFrame, *, batch_id: int) -> DataFrame:
    """Kafka records as bronze rows: key, value and headers untouched, whatever they hold."""
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        F.current_timestamp().alias("_ingested_at"),
        F.lit(batch_id).cast("bigint").alias("_batch_id"),
    )
