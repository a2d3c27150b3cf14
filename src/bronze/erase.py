"""Erasure in bronze: a record keeps its coordinates and loses its key, its value and its headers.

So every count of records stays as it was. `ops.erased` names the records, and the headers that stand in their place.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bronze.events import events_table
from lakehouse.delta.tables import Warehouse
from lakehouse.erasure.table import erased_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

APPEND_ONLY = "delta.appendOnly"
_AT = ("topic", "topic_id", "partition", "offset")
HAS_CONTENT = "(key IS NOT NULL OR value IS NOT NULL)"


def with_content(events: DataFrame, erased: DataFrame) -> DataFrame:
    """The bronze rows (`topic_id` among their columns) of erased records that still have a key or a value."""
    rows = events.withColumn("topic_id", F.coalesce("_topic_id", F.lit(""))).where(HAS_CONTENT)
    return rows.join(F.broadcast(erased.select(*_AT)), on=list(_AT), how="left_semi")


def erase(warehouse: Warehouse, source: str) -> int:
    """Take key, value and headers from the source's records that `ops.erased` names; how many still had them.

    It rewrites the files with such records. The table is append-only for every other job, and afterwards again: a
    command that was killed in between has to be run again. It may be repeated.
    """
    name = events_table(source).name
    erased = erased_records(warehouse, source)
    if erased is None or not warehouse.exists(name):
        return 0
    found = with_content(warehouse.read(name), erased)
    ends = found.groupBy("topic", "partition").agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    ranges = ends.collect()
    changed = 0
    if ranges:
        _set_append_only(warehouse, name, is_append_only=False)
        changed = _rewrite(warehouse, name, erased, reduce(or_, [_is_within(*row) for row in ranges]))
    if warehouse.properties(name).get(APPEND_ONLY) != "true":
        _set_append_only(warehouse, name, is_append_only=True)
    return changed


def _rewrite(warehouse: Warehouse, name: str, erased: DataFrame, is_within: Column) -> int:
    same = [F.col(f"target.{part}") == F.col(f"erased.{part}") for part in ("topic", "partition", "offset")]
    same.append(F.coalesce("target._topic_id", F.lit("")) == F.col("erased.topic_id"))
    merge = (
        warehouse.delta(name)
        .alias("target")
        .merge(F.broadcast(erased).alias("erased"), reduce(lambda so_far, also: so_far & also, same) & is_within)
        .whenMatchedUpdate(
            condition="target.key IS NOT NULL OR target.value IS NOT NULL",
            set={"key": "NULL", "value": "NULL", "headers": "erased.headers"},
        )
    )
    return int(merge.execute().collect()[0]["num_affected_rows"])


def _is_within(topic: str, partition: int, first: int, last: int) -> Column:
    """Delta passes over the files that have no such record. Coordinates are no data of a row."""
    is_of_partition = (F.col("target.topic") == topic) & (F.col("target.partition") == partition)
    return is_of_partition & F.col("target.offset").between(first, last)


def _set_append_only(warehouse: Warehouse, name: str, *, is_append_only: bool) -> None:
    value = str(is_append_only).lower()
    warehouse.spark.sql(f"ALTER TABLE {warehouse.sql_name(name)} SET TBLPROPERTIES ('{APPEND_ONLY}' = '{value}')")
