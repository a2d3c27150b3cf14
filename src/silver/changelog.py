"""The changelog: which changes may pass the gate, and the last word on every key."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts import Expectation, Feed
from lakehouse.expectations import fails

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def judged(changes: DataFrame, expectations: Sequence[Expectation], *, has_position: Column) -> DataFrame:
    """The same records with `is_judged`, `failed_rules` (names) and the final `kind`.

    A change becomes `quarantined` when a value did not fit, when it has no position, or when it fails a rule with
    `on_failure: quarantine`; an unreadable record always. `problems` holds every reason. No rule is asked about a
    delete.
    """
    is_change = F.col("kind") == "change"
    is_judged = is_change & ~F.col("is_delete")
    failures = {rule.name: is_judged & fails(rule, lambda column: F.col(f"row.{column}")) for rule in expectations}
    reasons = [
        F.when(failures[rule.name], f"{rule.kwargs['column']}: {rule.description}")
        for rule in expectations
        if rule.on_failure == "quarantine"
    ]
    no_position = F.when(is_change & ~has_position, "The record has no source position.")
    problems = F.concat("problems", F.array_compact(F.array(no_position, *reasons)))
    names = F.array_compact(F.array(*[F.when(failed, name) for name, failed in failures.items()]))
    must_wait = (F.col("kind") == "unreadable") | (is_change & (F.size("problems") > 0))
    return changes.withColumns({"problems": problems, "failed_rules": names, "is_judged": is_judged}).withColumn(
        "kind", F.when(must_wait, "quarantined").otherwise(F.col("kind"))
    )


def first_occurrences(events: DataFrame, *, known: DataFrame) -> DataFrame:
    """The events without replays: of the records with one `event_id`, the one with the lowest position.

    `known`: event_id, topic, partition, offset of the first occurrence of every event of earlier batches. The record
    that is itself the known occurrence stays, so a repeated batch gives the same result. Events without an id stay.
    """
    same_event = Window.partitionBy("event_id")
    is_first = F.col("event_id").isNull() | (F.col("position") == F.min("position").over(same_event))
    first = known.select(
        "event_id",
        F.struct("topic", "partition", "offset").alias("known_at"),
    )
    is_known_elsewhere = F.col("known_at").isNotNull() & (F.col("known_at") != F.struct("topic", "partition", "offset"))
    return (
        events.join(first, on="event_id", how="left")
        .withColumn("is_first", is_first & ~is_known_elsewhere)
        .where("is_first")
        .drop("known_at", "is_first")
    )


def latest_per_key(changes: DataFrame, feed: Feed) -> DataFrame:
    """The last word on every key: of its changes, the one with the highest position, as a silver row.

    One row a key: the contract's columns (of a delete, the keys only), `_position`, `_op`, `_is_deleted`,
    `_source_ts`, `_topic`, `_partition`, `_offset`. Positions are total: they end with the Kafka offset.
    """
    keys = [F.col(f"row.{key}").alias(key) for key in feed.keys]
    said = F.struct("row", "position", "op", "is_delete", "source_ts", "topic", "partition", "offset")
    return (
        changes.groupBy(*keys)
        .agg(F.max_by(said, "position").alias("last"))
        .select(
            *[F.col(f"last.row.{column}").alias(column) for column in feed.columns],
            F.col("last.position").alias("_position"),
            F.col("last.op").alias("_op"),
            F.col("last.is_delete").alias("_is_deleted"),
            F.col("last.source_ts").alias("_source_ts"),
            F.col("last.topic").alias("_topic"),
            F.col("last.partition").alias("_partition"),
            F.col("last.offset").alias("_offset"),
        )
    )


def rows_of_other_partitions(table: DataFrame, places: Iterable[tuple[str, int]]) -> DataFrame:
    """The rows of a silver table whose last change came from none of these topic-partitions."""
    is_of_one = [(F.col("_topic") == topic) & (F.col("_partition") == partition) for topic, partition in places]
    return table.where(~reduce(operator.or_, is_of_one, F.lit(False)))


def keys_across_partitions(events: DataFrame, table: DataFrame, feed: Feed) -> DataFrame:
    """The keys whose events came from more than one topic-partition, where only timestamps can tell their order.

    `table`: the feed's silver table before these events.
    """
    place = F.struct(F.col("topic").alias("topic"), F.col("partition").alias("partition"))
    keys = list(feed.keys)
    of_events = events.select(*[F.col(f"row.{key}").alias(key) for key in keys], place.alias("place")).distinct()
    of_table = table.join(of_events.select(*keys).distinct(), on=keys, how="left_semi").select(
        *keys, F.struct(F.col("_topic").alias("topic"), F.col("_partition").alias("partition")).alias("place")
    )
    return (
        of_events.unionByName(of_table)
        .groupBy(*keys)
        .agg(F.count_distinct("place").alias("places"))
        .where(F.col("places") > 1)
        .select(*keys)
    )
