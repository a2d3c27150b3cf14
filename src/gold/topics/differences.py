"""What there is to send to a compacted topic: from the table's change data feed, or by comparing the topic with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import read_change_set
from gold.topics.formats import change_sequence
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.spark import committed_topic
from lakehouse.spark.materialized import counted, materialized

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class NewRecords:
    """Records to send, one a key: `key`, `value`, `change_type`, `change_sequence`; so many, computed.

    `why` the table was compared with the topic, None where its changes were enough. `generation`: of the records.
    `size_in_bytes`: about what they take together.
    """

    rows: DataFrame
    count: int
    why: str | None
    generation: int
    size_in_bytes: int = 0


@contextmanager
def computed_records(
    *,
    changed: Callable[[], DataFrame] | None,
    of_changed: Callable[[DataFrame, int], DataFrame],
    differing: Callable[[int], DataFrame],
    generation: int,
    why: str,
) -> Iterator[NewRecords]:
    """The records of what `changed`, as `of_changed` makes them in this generation, inside the block.

    Where these changes are not known (None), or gone, all that is `differing`, in a new generation; `why` says which.
    """
    if changed is not None:
        with read_change_set(changed) as kept:
            if kept is not None:
                yield NewRecords(of_changed(kept.rows, generation), kept.count, None, generation, kept.size_in_bytes)
                return
    # Whatever was published before: its numbers are lower.
    later = max(time.time_ns() // 1_000_000, generation + 1)
    with materialized(differing(later)) as rows:
        count, size_in_bytes = counted(rows)
        yield NewRecords(rows, count, why, later, size_in_bytes)


def last_values(warehouse: Warehouse, connection: KafkaConnection, topic: str) -> DataFrame:
    """`compacted`, of the topic as it is when it is read; no row where there is no topic yet."""
    if topic not in partitions(connection):
        return inline_rows(warehouse.spark, [], "key BINARY, value BINARY")
    return compacted(committed_topic(warehouse.spark, connection, topic, reader="publish"))


def compacted(records: DataFrame) -> DataFrame:
    """`key`, and its last `value` on the topic (NULL: deleted): one row a key. A key's records are in one partition."""
    return records.groupBy("key").agg(F.max_by("value", F.struct("offset", "partition")).alias("value"))


def full_outer_compare(expected: DataFrame, on_topic: DataFrame) -> DataFrame:
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


def differing_records(
    expected: DataFrame, on_topic: DataFrame, *, generation: int, version: int, again: bool
) -> DataFrame:
    """A record for every key that is not on the topic as `expected`; a key that is not expected is deleted.

    `expected`: the records of the table at `version`. `again`: all of them.
    """
    both = full_outer_compare(expected, on_topic)
    is_gone = ~F.col("is_expected") & F.col("is_there")
    is_news = F.col("is_expected") & (F.lit(again) | ~F.col("is_same"))
    sequence = change_sequence(F.lit(generation), F.lit(version))
    return both.where(is_gone | is_news).select(
        "key",
        "value",
        F.coalesce("change_type", F.lit("DELETE")).alias("change_type"),
        F.coalesce("change_sequence", sequence).alias("change_sequence"),
    )
