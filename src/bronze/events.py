"""What a bronze row is: the Kafka record as it was, and when we took it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.delta.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = """
    topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT,
    key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
    _topic_id STRING, _ingested_at TIMESTAMP, _batch_id BIGINT
"""


def events_table(source: str) -> TableSpec:
    """`bronze.<source>_events`: append-only, statistics on the Kafka coordinates alone."""
    return TableSpec(
        name=f"bronze.{source}_events",
        columns=COLUMNS,
        properties={"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": "topic,partition,offset,timestamp"},
    )


def events(records: DataFrame, *, batch_id: int, topic_ids: Mapping[str, str]) -> DataFrame:
    """Kafka records as bronze rows: key, value and headers untouched, whatever they hold.

    `topic_ids`: the broker's id of every topic. Offsets begin again when a topic is made again, and the id differs.
    """
    ids = F.create_map(*[F.lit(part) for pair in topic_ids.items() for part in pair])
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        F.try_element_at(ids, F.col("topic")).alias("_topic_id"),
        F.current_timestamp().alias("_ingested_at"),
        F.lit(batch_id).cast("bigint").alias("_batch_id"),
    )


def without_erased(rows: DataFrame, erased: DataFrame) -> DataFrame:
    """The rows, of which those that were erased have no key and no value, and the headers that stand in their place.

    `erased`: `lakehouse.erasure.table.erased_records`.
    """
    at = ["topic", "topic_id", "partition", "offset"]
    known = erased.select(*at, F.col("headers").alias("erased"))
    found = rows.withColumn("topic_id", F.coalesce("_topic_id", F.lit(""))).join(F.broadcast(known), on=at, how="left")
    is_erased = F.col("erased").isNotNull()
    values = {name: F.when(~is_erased, F.col(name)) for name in ("key", "value")}
    headers = F.when(is_erased, F.col("erased")).otherwise(F.col("headers"))
    return found.withColumns({**values, "headers": headers}).select(*rows.columns)


def not_yet_stored(
    rows: DataFrame, stored: DataFrame, *, read_again: Mapping[tuple[str, int], tuple[int, int]]
) -> DataFrame:
    """The rows without those that bronze has: what a source reads a second time is stored once.

    `read_again`: the offsets, from and to (not included), that are read again, by topic and partition.
    """
    is_repeated = F.lit(False)
    for (topic, partition), (first, end) in read_again.items():
        in_range = (F.col("offset") >= first) & (F.col("offset") < end)
        is_repeated = is_repeated | ((F.col("topic") == topic) & (F.col("partition") == partition) & in_range)
    known = stored.where(is_repeated).select("topic", "_topic_id", "partition", "offset")
    fresh = rows.where(is_repeated).join(known, on=["topic", "_topic_id", "partition", "offset"], how="left_anti")
    return rows.where(~is_repeated).unionByName(fresh)
