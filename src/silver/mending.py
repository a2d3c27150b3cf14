"""What only bronze can mend: keys with a damaged record, and large values that were told under an older key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from lakehouse.held import held
from lakehouse.tables import small_table
from silver.batch import FeedBatch, Outcome, entries, from_bronze, read_ranges
from silver.changelog import ENDS, deleting_tombstones, highest_floor, outcomes, with_floors, with_tombstones
from silver.decode.explain import large_columns
from silver.from_bronze import damaged, in_ranges, rows_from, without
from silver.merge import replace_rows
from silver.older_keys import (
    MOST_KEY_CHANGES,
    ended,
    further,
    key_text,
    merge_answers,
    new_searches,
    one_hop,
    waiting_searches,
)
from silver.order.history import History
from silver.position import PLACES, with_position
from silver.quarantine import DAMAGED, OF_RECORD, QUARANTINE, add, set_aside

if TYPE_CHECKING:
    from pyspark.sql import Row


def outcome_of(
    batch: FeedBatch, placed: DataFrame, past: History, stack: ExitStack
) -> tuple[Outcome, DataFrame | None, bool]:
    """What became of the batch's changes and tombstones; and whether some come behind the end of their key.

    Where some show that a record is damaged, it is set aside, and its key's row made anew: then also the placed records
    of these keys, held by `stack`.
    """
    counted = (
        _ended(batch, placed)
        .groupBy("topic", "topic_id", "partition", "outcome")
        .agg(
            F.count(F.lit(1)).alias("records"),
            F.expr(f"bool_or({_shows_damage(batch.feed)}) AS shows_damage"),
            F.expr(f"bool_or({_comes_late(batch.feed)}) AS comes_late"),
        )
    )
    rows = counted.collect()
    # A record that comes late may itself be the damaged one: then those show it that were read before.
    suspects = _suspects(batch, placed) if batch.request is not None else None
    if any(row["shows_damage"] for row in rows) or (suspects is not None and not suspects.isEmpty()):
        return *_without_damaged(batch, placed, past, stack), True
    return _as_outcome(rows), None, any(row["comes_late"] for row in rows)


def resolve_older_keys(batch: FeedBatch, placed: DataFrame, past: History) -> None:
    """Give rows whose key was changed the large values that only events of their older keys have told.

    `placed`: records of the batch, or of rows that were made anew.
    """
    feed = batch.feed
    table = batch.read_table().where("_unresolved_columns IS NOT NULL OR _awaited IS NOT NULL")
    lacks = [F.coalesce(F.array_contains("_unresolved_columns", c), F.lit(False)) for c in large_columns(feed)]
    asks = [F.coalesce(F.array_contains("_awaited.column", c), F.lit(False)) for c in large_columns(feed)]
    named = zip(large_columns(feed), lacks, asks, strict=True)
    (lacking,) = table.agg(*[F.bool_or(lack | ask).alias(c) for c, lack, ask in named]).collect()
    creates = placed.where(
        (F.col("kind") == "change") & F.col("old_key").isNotNull() & (F.size("left_out") > 0) & ~F.col("is_below_floor")
    )
    for column in large_columns(feed):
        if lacking[column]:
            table = batch.read_table()
            new = new_searches(creates, table, feed, column)
            known = waiting_searches(placed, table, feed, column)
            _search(batch, new.unionByName(known).dropDuplicates(list(feed.keys)), past, column)


def _search(batch: FeedBatch, searches: DataFrame, past: History, column: str) -> None:
    feed = batch.feed
    with ExitStack() as stack:
        searches = stack.enter_context(held(searches))
        answers = []
        for _hop in range(MOST_KEY_CHANGES):
            if searches.isEmpty():
                break
            keys = searches.select(F.col("_asked").alias("key_text")).distinct()
            of_feed = in_ranges(batch.bronze(), read_ranges(past)).withColumn("key_text", key_text())
            of_keys = of_feed.join(F.broadcast(keys), on="key_text", how="left_semi").drop("key_text")
            records = stack.enter_context(held(from_bronze(batch, of_keys)))
            events = with_position(records, feed, places=small_table(batch.warehouse.spark, past.places(), PLACES))
            hop = stack.enter_context(held(one_hop(searches, events, feed, column)))
            answers.append(ended(hop))
            searches = stack.enter_context(held(further(hop, feed)))
        if answers:
            merge_answers(batch.warehouse.delta(batch.table), _union(answers), feed, column)


def _as_outcome(counted: Sequence[Row]) -> Outcome:
    outcome = Outcome()
    for row in counted:
        outcome.add((row["topic"], row["topic_id"], row["partition"]), row["outcome"], row["records"])
    return outcome


def _ended(batch: FeedBatch, placed: DataFrame) -> DataFrame:
    """The batch's own changes, truncates and tombstones with their outcome."""
    own = placed.where(~F.col("is_read_again"))
    return outcomes(own, batch.rows_of(own), batch.feed)


def _suspects(batch: FeedBatch, placed: DataFrame) -> DataFrame:
    """topic and key of the records that show a damaged one: those of the batch, or of the stories that are requeued."""
    own = _ended(batch, placed)
    told = own if batch.request is None else outcomes(placed, batch.read_table(), batch.feed)
    return told.where(_shows_damage(batch.feed)).select("topic", "key").distinct()


def _comes_late(feed: Feed) -> str:
    """SQL: whether the change says what the row was before it was deleted, or got another key."""
    if not large_columns(feed):
        return "false"
    return "kind = 'change' AND NOT is_delete AND coalesce(position <= now._deleted_position, false)"


def _shows_damage(feed: Feed) -> str:
    """SQL: whether the row that keeps a streamed change out is older by its offset, in the same partition and run."""
    if feed.sequence_by == "kafka_offset" or feed.append_only:
        return "false"
    is_behind = "outcome IN ('superseded', 'duplicate') AND run_id <> '' AND position < now._position"
    is_same_run = """
        now._topic = topic AND now._partition = partition AND now._offset < offset AND now._offset >= run_from
        AND now._position.streamed = 1 AND now._position.epoch = position.epoch
    """
    return f"coalesce({is_behind} AND position.streamed = 1 AND {is_same_run}, false)"


def _without_damaged(batch: FeedBatch, placed: DataFrame, past: History, stack: ExitStack) -> tuple[Outcome, DataFrame]:
    """Set the damaged records of the suspicious keys aside, and make these keys' rows anew from bronze."""
    feed, spark = batch.feed, batch.warehouse.spark
    places = small_table(spark, past.places(), PLACES)
    keys = stack.enter_context(held(_suspects(batch, placed)))
    rows = in_ranges(batch.bronze(), read_ranges(past))
    of_keys = rows.join(F.broadcast(keys), on=["topic", "key"], how="left_semi")
    records = stack.enter_context(held(from_bronze(batch, of_keys)))
    told = with_position(records, feed, places=places).withColumn("is_tombstone", F.lit(False))
    story = stack.enter_context(held(told))
    broken = stack.enter_context(held(damaged(story, feed)))
    # What an earlier batch has set aside, it has moved in the batch audit too.
    known = set_aside(batch.warehouse.read(QUARANTINE.name), feed)
    new = stack.enter_context(held(without(broken, known)))
    reason = {"kind": F.lit("quarantined"), "problems": F.array(F.lit(DAMAGED))}
    # Gate 1 lets a record's raw bytes go when it passes, as these did.
    raw = of_keys.withColumn("topic_id", F.coalesce("_topic_id", F.lit(""))).select(*OF_RECORD, "value", "headers")
    to_quarantine = story.drop("value", "headers").join(new, on=OF_RECORD, how="left_semi").withColumns(reason)
    to_quarantine = to_quarantine.join(raw, on=OF_RECORD, how="inner")
    add(batch.warehouse, entries(batch, to_quarantine, is_damaged=True), feed.source)
    # All of the keys' records are here: what a tombstone follows is among them, not in the table.
    sound = stack.enter_context(held(without(story, broken)))
    deletes = deleting_tombstones(sound, batch.read_table().limit(0), feed, ends=small_table(spark, [], ENDS))
    whole = stack.enter_context(held(with_floors(with_tombstones(sound, deletes), highest_floor(past.cutoffs(), feed))))
    replace_rows(batch.warehouse.delta(batch.table), rows_from(whole, feed), feed)
    counted = without(_ended(batch, placed), broken).groupBy("topic", "topic_id", "partition", "outcome").count()
    outcome = _as_outcome(counted.withColumnRenamed("count", "records").collect())
    of_batch = placed.where(~F.col("is_read_again")).select(*OF_RECORD)
    for row in _by_place(of_batch.join(broken, on=OF_RECORD, how="left_semi")):
        outcome.add((row["topic"], row["topic_id"], row["partition"]), "quarantined", row["count"])
    for row in _by_place(without(new, of_batch)):
        outcome.moved[row["topic"], row["topic_id"], row["partition"]] = row["count"]
    return outcome, whole


def _by_place(records: DataFrame) -> list[Row]:
    return records.groupBy("topic", "topic_id", "partition").count().collect()


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, parts)
