"""Recorded or hand-written events as bronze rows, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

RECORD = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key STRING, value STRING,"
    " headers ARRAY<ARRAY<STRING>>, topic_id STRING"
)


def bronze_rows(spark: SparkSession, recording: Path, *, topics: Mapping[str, str]) -> DataFrame:
    """The records of the recorded topics that `topics` names (recorded name: contract's name), as bronze has them.

    `recording`: one JSON object a line, gzipped or not: topic, partition, offset, timestamp, key, value, headers, and
    topic_id of a topic that was made again.
    """
    renamed = {recorded: name for recorded, name in topics.items() if name != recorded}
    topic = F.col("topic")
    if renamed:
        names = F.create_map(*[F.lit(part) for pair in renamed.items() for part in pair])
        topic = F.coalesce(F.try_element_at(names, topic), topic)
    headers = F.transform("headers", lambda pair: F.struct(pair[0].alias("key"), pair[1].cast("binary").alias("value")))
    return (
        spark.read.schema(RECORD)
        .json(str(recording))
        .where(F.col("topic").isin(*topics))
        .select(
            topic.alias("topic"),
            "partition",
            "offset",
            F.timestamp_millis(F.coalesce("timestamp", F.lit(0).cast("bigint"))).alias("timestamp"),
            F.lit(0).alias("timestamp_type"),
            F.col("key").cast("binary").alias("key"),
            F.col("value").cast("binary").alias("value"),
            F.coalesce(headers, F.array().cast("array<struct<key:string,value:binary>>")).alias("headers"),
            F.coalesce("topic_id", F.lit("first")).alias("_topic_id"),
            F.lit("2026-01-01").cast("timestamp").alias("_ingested_at"),
            F.lit(0).cast("bigint").alias("_batch_id"),
        )
    )
