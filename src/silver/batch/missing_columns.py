"""Of decoded records those whose field is gone (silver.order.missing_columns), for all records of a batch at once.

A batch in which each record has every field asks none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.batches import COORDINATES
from lakehouse.contracts.models import Feed
from lakehouse.delta.tables import inline_rows
from lakehouse.spark.materialized import materialized
from lakehouse.spark.sizing import broadcast
from silver.batch.events import fields_of_events
from silver.batch.position import flat_position
from silver.decode.drift import BY_POLICY
from silver.lookback.earlier_records import in_ranges
from silver.order.missing_columns import FirstSent, columns_of_rows, lowest, required_columns
from silver.rejects.quarantine import OF_RECORD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from silver.batch.outcome import FeedBatch

# So many names of fields are looked at, and so many are named; and of so many records before a batch.
MAX_FIELDS, MAX_NAMED, RECORDS_BEFORE = 200, 10, 20
_GONE = "the record has no field for this column, and earlier records of its table had one"


@dataclass(frozen=True)
class MissingColumns:
    """What a batch lacks. `first_sent`: by the batch itself. `counts`: by column how many records miss it.

    `records`: OF_RECORD of these, and `missing_columns`. `is_by_policy`: whether the contract says that they go to
    quarantine (`on_schema_change`).
    """

    first_sent: FirstSent
    counts: Mapping[str, int]
    records: DataFrame
    is_by_policy: bool = False

    @property
    def total(self) -> int:
        """At most so many records miss a column."""
        return sum(self.counts.values())


def missing_columns(batch: FeedBatch, positioned: DataFrame, stack: ExitStack) -> MissingColumns:
    """What records with their `position` (silver.batch.position) lack; kept until `stack` closes."""
    feed = batch.feed
    own, required = _first_sent(positioned, feed), required_columns(feed)
    known = [
        {"shard": shard, "column": column, "first": [*at]}
        for (shard, column), at in lowest(batch.state.first_sent(feed.name), own).items()
        if column in required
    ]
    first = inline_rows(batch.warehouse.spark, known, f"shard STRING, column STRING, first {COORDINATES}")
    absent = positioned.where("position IS NOT NULL AND size(absent) > 0").select(
        *OF_RECORD, _shard(feed), F.explode("absent").alias("column"), F.expr(f"{flat_position(feed)} AS at")
    )
    gone = absent.join(F.broadcast(first), on=["shard", "column"], how="inner").where("at > first")
    found = gone.groupBy(*OF_RECORD).agg(F.sort_array(F.collect_set("column")).alias("missing_columns"))
    records = stack.enter_context(materialized(found))
    is_by_policy = "quarantine" in (feed.on_schema_change.drop, feed.on_schema_change.rename)
    counted = records.select(F.explode("missing_columns").alias("column")).groupBy("column").count().collect()
    return MissingColumns(own, {row["column"]: row["count"] for row in counted}, records, is_by_policy)


def with_missing_columns(decoded: DataFrame, missing: MissingColumns) -> DataFrame:
    """The decoded records of the feed; those that miss a column say so in their `problems`."""
    end = f" {BY_POLICY}" if missing.is_by_policy else "."
    sentences = F.expr(f"transform(missing_columns, one -> concat(one, ': {_GONE}{end}'))")
    known = broadcast(missing.records, missing.total)
    marked = decoded.join(known, on=OF_RECORD, how="left")
    problems = F.when(F.col("missing_columns").isNull(), F.col("problems")).otherwise(F.concat("problems", sentences))
    return marked.withColumn("problems", problems).drop("missing_columns")


def new_fields(batch: FeedBatch, records: DataFrame) -> list[str]:
    """The fields of a batch's records (bronze rows) that no column has, and that the last records before it had not."""
    feed = batch.feed
    ends = {
        (row["topic"], row["topic_id"], row["partition"]): (row["last_offset"] - RECORDS_BEFORE + 1, row["last_offset"])
        for row in sorted(batch.state.of_feed(feed.name), key=lambda row: row["last_offset"])
    }
    before = _fields(in_ranges(batch.bronze(), ends), feed) if ends else set()
    declared = {field for name in feed.columns for field in feed.fields_of(name)}
    return sorted(_fields(records, feed) - before - declared)[:MAX_NAMED]


def _fields(records: DataFrame, feed: Feed) -> set[str]:
    found = {row["field"] for row in fields_of_events(records, feed).limit(MAX_FIELDS).collect()}
    # What transforms add to a flattened row is no column of its table.
    return {field for field in found if not field.startswith("__")}


def _first_sent(positioned: DataFrame, feed: Feed) -> FirstSent:
    """By shard and column the lowest position of the records that have its field."""
    columns, at = columns_of_rows(feed), flat_position(feed)
    firsts = [F.expr(f"min(IF(array_contains(absent, '{name}'), NULL, {at})) AS `{name}`") for name in columns]
    rows = positioned.where("is_judged AND position IS NOT NULL").groupBy(_shard(feed)).agg(*firsts).collect()
    return {(row["shard"], name): tuple(row[name]) for row in rows for name in columns if row[name] is not None}


def _shard(feed: Feed) -> Column:
    return (F.col("topic") if feed.is_sharded else F.lit("")).alias("shard")
