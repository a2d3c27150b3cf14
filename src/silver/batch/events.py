"""Records into events, as Spark runs it, and the facts of a batch: counts by connector run and topic-partition.

One pass over the records decodes those of all feeds (silver.decode). Columns of `decoded`: the record's (topic,
topic_id, partition, offset, timestamp, key), the `feed` whose record it is, what it states
(silver.decode.reference.decoder.Event), where it is in the log (silver.order.narrow_events), and the row of each feed,
`row_<feed>`. The facts are known before a change is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from silver.decode.arrow import RECORD, name_batches, row_of, table_batches
from silver.decode.avro import HEAD
from silver.order.narrow_events import ddl, narrow_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(records: DataFrame, feeds: Sequence[Feed]) -> DataFrame:
    """The bronze rows of the topics of these feeds as what each states."""
    return bronze_records(records).mapInArrow(partial(narrow_batches, feeds=tuple(feeds)), ddl(feeds))


def of_feed(change_events: DataFrame, feed: Feed) -> DataFrame:
    """Of decoded records those of one feed, with its `row`."""
    others = [name for name in change_events.columns if name.startswith(row_of("")) and name != row_of(feed.name)]
    return (
        change_events.where(F.col("feed") == feed.name)
        .drop("feed", *others)
        .withColumnRenamed(row_of(feed.name), "row")
    )


def events(records: DataFrame, feed: Feed) -> DataFrame:
    """The bronze rows of a feed's topics as what each states, with its `row`."""
    return of_feed(decoded(records, [feed]), feed)


def fields_of_events(records: DataFrame, feed: Feed) -> DataFrame:
    """`field`: the names of all fields that the rows in these records have."""
    return bronze_records(records).mapInArrow(partial(name_batches, feed=feed), "field STRING").distinct()


def problem_counts(judged: DataFrame) -> DataFrame:
    """`problem` and `records`: how many of these judged records have which problem, the most frequent first.

    Problems that differ in a number alone are one, which is shown as the first of them.
    """
    return (
        judged.select(F.explode("problems").alias("problem"))
        .groupBy(F.regexp_replace("problem", r"\b[0-9]+\b", "0").alias("kind"))
        .agg(F.min("problem").alias("problem"), F.count(F.lit(1)).alias("records"))
        .orderBy(F.desc("records"), "kind")
        .select("problem", "records")
    )


def table_counts(records: DataFrame, feed: Feed) -> DataFrame:
    """`name` and `records`: how many of these bronze rows say that they are of which table, the most first."""
    tables = bronze_records(records).mapInArrow(partial(table_batches, feed=feed), "name STRING")
    return tables.groupBy("name").agg(F.count(F.lit(1)).alias("records")).orderBy(F.desc("records"), "name")


def is_confluent(column: str) -> str:
    """SQL: whether the bytes are in the Confluent wire format (silver.decode.avro.is_confluent)."""
    return f"coalesce(octet_length({column}) > {HEAD} AND substring({column}, 1, 1) = X'00', false)"


def bronze_records(records: DataFrame) -> DataFrame:
    """Bronze rows in the columns that are decoded (silver.decode.arrow.RECORD)."""
    # Spark writes a list that is NULL to Arrow in a time that grows with the rows before it.
    expressions = {
        "topic_id": F.coalesce("_topic_id", F.lit("")).alias("topic_id"),
        "headers": F.coalesce("headers", F.expr(f"CAST(array() AS {RECORD['headers']})")).alias("headers"),
    }
    return records.select(*[expressions.get(name, F.col(name)) for name in RECORD])


def offset_gaps(records: DataFrame) -> DataFrame:
    """topic, topic_id, partition, first, last: the ranges of offsets inside of a batch that no record has.

    Compaction and transaction markers leave such gaps: Kafka gives out an offset once.
    """
    before = F.lag("offset").over(Window.partitionBy("topic", "topic_id", "partition").orderBy("offset"))
    return (
        records.select("topic", "topic_id", "partition", "offset", before.alias("before"))
        .where(F.col("offset") > F.col("before") + 1)
        .select(
            "topic", "topic_id", "partition", (F.col("before") + 1).alias("first"), (F.col("offset") - 1).alias("last")
        )
    )


def offset_ranges(records: DataFrame, stored: DataFrame) -> DataFrame:
    """topic, topic_id, partition, first, last, records: the ranges of offsets of which nothing else is `stored`.

    Few: a gap that no record lies in ends none.
    """
    at = ("topic", "topic_id", "partition", "offset")
    in_order = Window.partitionBy("topic", "topic_id", "partition").orderBy("offset")
    own, others = (rows.select(*at, F.lit(mark).alias("is_own")) for rows, mark in ((records, True), (stored, False)))
    begins = F.col("is_own") & ~F.lag("is_own", 1, False).over(in_order)
    return (
        own.unionByName(others)
        .groupBy(*at)
        .agg(F.bool_or("is_own").alias("is_own"))
        .withColumn("begins", begins)
        .withColumn("number", F.count_if("begins").over(in_order))
        .where("is_own")
        .groupBy("topic", "topic_id", "partition", "number")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count(F.lit(1)).alias("records"))
        .drop("number")
    )
