"""Records into events, as Spark runs it: one pass over the records decodes those of all feeds (silver.decode).

Columns of `decoded`: the record's (topic, topic_id, partition, offset, timestamp, key, value, headers), the `feed`
whose record it is, what it states (silver.decode.explain.Event), and the row of each feed, `row_<feed>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from silver.decode.arrow import RECORD, ddl, decode_batches, name_batches, row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(records: DataFrame, feeds: Sequence[Feed]) -> DataFrame:
    """The bronze rows of the topics of these feeds as what each states."""
    return _of_bronze(records).mapInArrow(partial(decode_batches, feeds=tuple(feeds)), ddl(feeds))


def of_feed(told: DataFrame, feed: Feed) -> DataFrame:
    """Of decoded records those of one feed, with its `row`."""
    others = [name for name in told.columns if name.startswith(row_of("")) and name != row_of(feed.name)]
    return told.where(F.col("feed") == feed.name).drop("feed", *others).withColumnRenamed(row_of(feed.name), "row")


def events(records: DataFrame, feed: Feed) -> DataFrame:
    """The bronze rows of a feed's topics as what each states, with its `row`."""
    return of_feed(decoded(records, [feed]), feed)


def fields_of_events(records: DataFrame, feed: Feed) -> DataFrame:
    """`field`: the names of all fields that the rows in these records have."""
    return _of_bronze(records).mapInArrow(partial(name_batches, feed=feed), "field STRING").distinct()


def _of_bronze(records: DataFrame) -> DataFrame:
    topic_id = F.coalesce("_topic_id", F.lit("")).alias("topic_id")
    return records.select(*[topic_id if name == "topic_id" else name for name in RECORD])
