"""The records of the BigQuery-bound topic, in the flat JSON format.

Key `{"composite_key": "PG-1001"}`; value the order as one flat JSON object, null for a deleted order; headers
`change_type` and `change_sequence`. The sequence is BigQuery's `_CHANGE_SEQUENCE_NUMBER`: 1 to 4 sections of 1 to 16
hex digits, compared section by section (BigQuery documentation, "Stream table updates with change data capture").
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC", "ignoreNullFields": "false"}


def last_change_per_key(feed: DataFrame, *, columns: Collection[str]) -> DataFrame:
    """Of a change data feed of gold, each key's last state: gold's `columns`, `is_deleted` and `version`."""
    after = feed.where(F.col("_change_type") != "update_preimage")
    last = after.groupBy("composite_key").agg(F.max_by(F.struct(*after.columns), "_commit_version").alias("last"))
    return last.select(
        *[f"last.{field}" for field in columns],
        (F.col("last._change_type") == "delete").alias("is_deleted"),
        F.col("last._commit_version").alias("version"),
    )


def records(states: DataFrame, *, columns: Collection[str], generation: int) -> DataFrame:
    """`key`, `value` (NULL: deleted), `change_type`, `change_sequence`: one record a key.

    `columns` are the fields of the value. `generation` grows with every gold table that is made anew, so a sequence
    never goes back.
    """
    return states.select(
        F.to_json(F.struct("composite_key")).alias("key"),
        F.when(~F.col("is_deleted"), F.to_json(F.struct(*columns), _TIMES)).alias("value"),
        F.when(F.col("is_deleted"), "DELETE").otherwise("UPSERT").alias("change_type"),
        change_sequence(F.lit(generation), F.col("version")).alias("change_sequence"),
    )


def change_sequence(generation: Column, version: Column) -> Column:
    """`<generation>/<version>`, each as 16 hex digits."""
    sections = [F.lpad(F.hex(section.cast("bigint")), 16, "0") for section in (generation, version)]
    return F.concat_ws("/", *sections)
