"""A batch of an append-only feed: a list of changes, which has each of them once, also when it is sent again.

Nothing is folded. What the table has already is looked for where this batch's own facts say that it can be: among the
batch's own offsets (it may be repeated), and in all of the table where a run sends again what was streamed before.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.spark.materialized import materialized
from lakehouse.spark.sizing import MAX_BYTES_BROADCAST, broadcast
from silver.batch.merge import append_changes, first_rows
from silver.batch.outcome import BatchOutcome, FeedBatch, from_bronze
from silver.batch.position import log_event_of, place_of, with_position
from silver.lookback.earlier_records import in_ranges, within
from silver.order.history import History
from silver.order.runs import OffsetRange, offset_bounds
from silver.rejects.quarantine import OF_RECORD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a silver row says of the event that it is from.
OF_LAST_EVENT = ("op", "source_ts", "topic", "partition", "offset")


def append_feed(batch: FeedBatch, positioned: DataFrame, past: History) -> BatchOutcome:
    """Add the changes that the table does not have; what became of the changes, truncates and tombstones.

    `positioned`: the batch's judged records with their positions.
    """
    sent, repeated = batch.total("read"), _where_repeated(batch, past)
    with ExitStack() as stack:
        events = with_event_ids(positioned, batch.feed, earlier=_earlier_of_runs(batch, past))
        table = batch.read_table()
        if repeated is None:
            events = stack.enter_context(materialized(events))
            ids = broadcast(events.select("_event_id").distinct(), sent)
            table = table.join(ids, on="_event_id", how="left_semi")
        else:
            table = table.where(within(repeated, of="_"))
        events = stack.enter_context(materialized(with_outcome(events, table)))
        counted = (
            events.where("outcome IS NOT NULL")
            .groupBy(*TOPIC_PARTITION, "outcome")
            .agg(F.count(F.lit(1)).alias("records"), F.count_if("is_new").alias("new"))
            .collect()
        )
        rows = changelog_rows(events.where("is_new"), batch.feed)
        if batch.is_empty:
            batch.warehouse.append(batch.table, first_rows(rows))
        elif any(row["new"] for row in counted):
            is_light = batch.value_bytes is not None and batch.value_bytes <= MAX_BYTES_BROADCAST
            where = within(repeated, of="target._") if repeated is not None else None
            append_changes(batch.warehouse.delta(batch.table), broadcast(rows, sent) if is_light else rows, where)
    outcome = BatchOutcome()
    for row in counted:
        outcome.add((row["topic"], row["topic_id"], row["partition"]), row["outcome"], row["records"])
    return outcome


def _where_repeated(batch: FeedBatch, past: History) -> list[OffsetRange] | None:
    """Among which offsets the table may have changes of the batch; None: at any.

    A batch that is repeated finds its own rows.
    """
    if batch.feed.sequence_by == "source_position" and past.sends_again():
        return None
    return batch.offset_ranges


def _earlier_of_runs(batch: FeedBatch, past: History) -> DataFrame | None:
    """The placed records of earlier batches, of runs that have come as far in the log as where this batch begins.

    None without: a run sends its changes in the order of the log, so the batch goes on where no other has been.
    """
    if batch.feed.sequence_by == "kafka_offset":
        return None
    runs = past.runs_read_from_here()
    if not runs:
        return None
    ranges = offset_bounds(
        (one.topic_partition, one.first_offset, one.last_offset) for one in past.read_before if one.run_id in runs
    )
    records = from_bronze(batch, in_ranges(batch.bronze(), ranges)).where(F.col("run_id").isin(*runs))
    return with_position(records, batch.feed, position_contexts=past.position_contexts(runs=runs))


def with_outcome(events: DataFrame, table: DataFrame) -> DataFrame:
    """The events (`with_event_ids`) with their `outcome`, and `is_new`: whether the table has no row of the event.

    Of an event that comes several times the record is `applied` that the table's row is of, else the first one; all
    others are a `duplicate`. NULL of what is no change, truncate or tombstone. `table`: the rows that may be of these
    events, as they were before the batch.
    """
    at = F.struct("partition", "offset")
    row_at = F.struct(F.col("_partition").alias("partition"), F.col("_offset").alias("offset"))
    known = table.select("_event_id", row_at.alias("_known_at"))
    is_change = "kind IN ('change', 'truncate')"
    first = F.min(F.when(F.expr(is_change), at)).over(Window.partitionBy("_event_id"))
    is_applied = "struct(partition, offset) = coalesce(_known_at, _first_at)"
    of_change = f"IF({is_applied}, 'applied', 'duplicate')"
    outcome = f"CASE WHEN kind = 'tombstone' THEN kind WHEN {is_change} THEN {of_change} END"
    return (
        events.withColumn("_first_at", first)
        .join(known, on="_event_id", how="left")
        .withColumns({"outcome": F.expr(outcome), "is_new": F.expr(f"{is_change} AND _known_at IS NULL")})
        .drop("_first_at", "_known_at")
    )


def with_event_ids(changes: DataFrame, feed: Feed, *, earlier: DataFrame | None = None) -> DataFrame:
    """The placed records of an append-only feed with `_event_id`, which a change has again when it is sent again.

    A streamed change is identified by its log coordinates, its operation and its row, and by its number among those
    that are equal in all of it and that its connector run has sent one behind the other: rows that one COPY writes
    share an LSN, and may be equal. A run that sends them again numbers them again, and so does what falls behind in its
    own run. Any other change is identified by its Kafka coordinates.

    `earlier`: placed records of earlier batches, of runs that may have sent some of these (`EQUAL`); None without.
    """
    of_kafka = "concat_ws('/', topic, nullif(topic_id, ''), CAST(partition AS STRING), CAST(offset AS STRING))"
    if feed.sequence_by == "kafka_offset":
        return changes.withColumn("_event_id", F.expr(of_kafka))
    own = _with_equals(changes, feed, of_kafka).withColumn("_is_new", F.lit(True))
    if earlier is None:
        numbered = _numbered(own)
    else:
        new = own.select(*EQUAL)
        known = _with_equals(earlier, feed, of_kafka).withColumn("_is_new", F.lit(False)).select(*EQUAL)
        rows = new.unionByName(known.join(new, on=OF_RECORD, how="left_anti"))
        numbers = _numbered(rows).where("_is_new").select(*OF_RECORD, "_number").distinct()
        numbered = own.join(numbers, on=OF_RECORD, how="inner")
    event_id = "IF(_number = 1, _equal, concat_ws(' ', _equal, CAST(_number AS STRING)))"
    return numbered.withColumn("_event_id", F.expr(event_id)).drop("_equal", "_log", "_is_new", "_falls", "_number")


# What tells equal changes apart: `_equal` is the same text for all of them, `_log` where they are in the source's log.
EQUAL = (*OF_RECORD, "run_id", "_equal", "_log", "_is_new")


def _with_equals(changes: DataFrame, feed: Feed, of_kafka: str) -> DataFrame:
    # What says where a record comes from differs in a change that is sent again.
    of_row = [f"row.`{name}`" for name, column in feed.columns.items() if column.metadata is None]
    image = f"CAST(xxhash64({', '.join(['op', *of_row])}) AS STRING)"
    of_source = f"concat_ws(' ', topic, to_json({place_of('position', feed)}), {image})"
    is_of_log = "kind IN ('change', 'truncate') AND coalesce(position.streamed = 1, false)"
    return changes.withColumns(
        {
            "_equal": F.expr(f"IF({is_of_log}, {of_source}, {of_kafka})"),
            "_log": F.expr(f"IF({is_of_log}, {log_event_of('position', feed)}, NULL)"),
        }
    )


def _numbered(changes: DataFrame) -> DataFrame:
    """The changes (EQUAL) with `_number`, from 1 on; those of earlier batches first, whatever their partitions.

    What comes again behind later changes of its run and partition is numbered by itself. A record may be there twice,
    and has one number.
    """
    of_run = Window.partitionBy("topic", "topic_id", "partition", "run_id").orderBy("offset")
    before = F.last("_log", ignorenulls=True).over(of_run.rowsBetween(Window.unboundedPreceding, -1))
    of_place = Window.partitionBy(
        "topic", "topic_id", "partition", "run_id", F.coalesce(F.to_json("_log"), F.col("_equal"))
    )
    comes_again = F.col("_falls") > F.min("_falls").over(of_place)
    in_order = Window.partitionBy("run_id", "_falls", "_equal").orderBy("_is_new", "topic_id", "partition", "offset")
    return (
        changes.withColumn("_falls", F.coalesce(F.col("_log") < before, F.lit(False)))
        .withColumn("_falls", F.count_if("_falls").over(of_run))
        .withColumn("_falls", F.when(comes_again, F.col("_falls")).otherwise(0))
        .withColumn("_number", F.dense_rank().over(in_order))
    )


def changelog_rows(changes: DataFrame, feed: Feed) -> DataFrame:
    """The rows of an append-only table: one an event (`with_event_ids`), `_event_id` first."""
    first = f"min_by(struct(row, position, {', '.join(OF_LAST_EVENT)}), struct(partition, offset)) AS _first"
    return (
        changes.groupBy("_event_id")
        .agg(F.expr(first))
        .selectExpr(
            "_event_id",
            *[f"_first.row.`{column}` AS `{column}`" for column in feed.columns],
            "_first.position AS _position",
            "false AS _is_deleted",
            *[f"_first.{name} AS _{name}" for name in OF_LAST_EVENT],
        )
    )
