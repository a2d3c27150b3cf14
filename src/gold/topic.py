"""The unified topic as a table: the last value of every key, laid beside what it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def compacted(records: DataFrame) -> DataFrame:
    """`key`, and its last `value` on the topic (NULL: deleted): one row a key. A key's records are in one partition."""
    return records.groupBy("key").agg(F.max_by("value", F.struct("offset", "partition")).alias("value"))


def beside(expected: DataFrame, on_topic: DataFrame) -> DataFrame:
    """Every key of either: `key`, all columns of `expected`, `is_expected`, `is_there` (with a value), `is_same`.

    `expected` has `key` and `value` as bytes, and no key that is deleted; `on_topic` is `compacted`.
    """
    there = on_topic.select(F.col("key").alias("there_key"), F.col("value").alias("there_value"))
    wanted = expected.withColumn("is_expected", F.lit(True))
    both = wanted.join(there, on=F.col("key") == F.col("there_key"), how="full")
    return both.select(
        F.coalesce("key", "there_key").alias("key"),
        *[name for name in expected.columns if name != "key"],
        F.coalesce("is_expected", F.lit(False)).alias("is_expected"),
        F.col("there_value").isNotNull().alias("is_there"),
        F.col("value").eqNullSafe(F.col("there_value")).alias("is_same"),
    )


def composite_key_of(key: Column) -> Column:
    """The `composite_key` in a record's key, whichever format it is in; NULL for a key that is not ours."""
    text = key.cast("string")
    flat, in_connect = F.get_json_object(text, "$.composite_key"), F.get_json_object(text, "$.payload.composite_key")
    return F.coalesce(flat, in_connect)
