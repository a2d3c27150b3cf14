"""One batch of one feed: its records placed in the source's history, folded, and merged into the feed's silver table.

The steps, in the order of `apply_feed`: what is known of the history; epochs that have begun; positions; tombstones
that delete; floors; the MERGE; and what only bronze can tell: damaged records, large values of older keys. Every step
can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.held import held
from lakehouse.masking import has_sensitive_key
from lakehouse.merge_source import merge_source
from lakehouse.results import RESULTS, Result, result_rows
from lakehouse.sizing import MOST_BYTES_SENT_ALONG, sent_along
from lakehouse.tables import small_table
from silver.batch import FeedBatch, Outcome, from_bronze, read_ranges
from silver.batches import OUTBOX_EVENTS
from silver.changelog import (
    ENDS,
    as_gone_below_floors,
    deleting_tombstones,
    highest_floor,
    keys_across_partitions,
    latest_per_key,
    list_of_changes,
    with_floors,
    with_repeated_events,
    with_tombstones,
)
from silver.decode.explain import large_columns
from silver.events import events
from silver.from_bronze import fallen_behind, highest_timestamps, in_ranges, not_told_before
from silver.mending import outcome_of, resolve_older_keys
from silver.merge import append_changes, merge_latest
from silver.order.history import COLLECTED, History, epoch_rows, history, with_new_epochs
from silver.order.runs import Fall, Floor, Opening, Place
from silver.position import PLACES, with_position
from silver.quarantine import OF_RECORD, QUARANTINE, set_aside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_KEYS = 5


def apply_feed(batch: FeedBatch, records: DataFrame) -> Outcome:
    """Apply a feed's records to its table; what became of its changes and tombstones.

    `records`: `judged_records`, with `is_read_again`: whether an earlier batch has counted the record.
    """
    feed = batch.feed
    before = history(feed, [row.asDict() for row in batch.rows], batch.state)
    past, openings = with_new_epochs(before, partial(_telling_news, batch, before))
    runs = {row["run_id"] for row in batch.rows}
    with ExitStack() as stack:
        everything = records
        again = _records_read_again(batch, past, openings)
        if again is not None:
            again = stack.enter_context(held(again))
            everything = everything.unionByName(again.withColumn("is_read_again", F.lit(True)))
        number = batch.total("read") + (again.count() if again is not None else 0)
        # A value may be as large as Kafka lets it be.
        is_light = again is None and batch.value_bytes is not None and batch.value_bytes <= MOST_BYTES_SENT_ALONG
        places = small_table(batch.warehouse.spark, past.places(runs=None if again is not None else runs), PLACES)
        highest = _highest_timestamps(batch, records, past)
        placed = with_position(everything, feed, places=places, highest_timestamps=highest).drop("value", "headers")
        placed = stack.enter_context(held(_known_damage_aside(batch, placed.withColumn("is_tombstone", F.lit(False)))))
        may_delete = batch.total("lone_tombstones") or (again is not None and batch.total("tombstones"))
        if may_delete and not feed.append_only:
            deletes = stack.enter_context(held(_deletes(batch, placed, past, is_more=again is not None)))
            if deleting := deletes.count():
                placed = stack.enter_context(held(with_tombstones(placed, sent_along(deletes, deleting))))
        past, floors = _with_new_floors(batch, placed, past)
        placed = with_floors(placed, highest_floor(past.cutoffs(), feed))
        if feed.envelope == "outbox":
            placed = stack.enter_context(
                held(with_repeated_events(placed, feed, known=_known_events(batch, placed, records=number)))
            )
        else:
            placed = placed.withColumn("is_repeated", F.lit(False))
        tells = ("change", "truncate") if feed.append_only else ("change",)
        live = as_gone_below_floors(placed.where(F.col("kind").isin(*tells) & ~F.col("is_repeated")))
        between = batch.key_ranges if again is None else {}
        _merge(batch, live, past, floors, sent=number if is_light else None, between=between)
        if feed.envelope == "outbox":
            _remember_events(batch, live, records=number)
        outcome, made_anew, comes_late = outcome_of(batch, placed, past, stack)
        if past.has_left_out and large_columns(feed):
            if made_anew is not None:
                resolve_older_keys(batch, made_anew, past)
            # What an older key has told is news where a key is changed, and where it comes behind the key's end.
            if made_anew is not None or comes_late or batch.total("key_changes") or again is not None:
                resolve_older_keys(batch, placed, past)
        outcome.epochs, outcome.floors = epoch_rows(past, openings), floors
        return outcome


def _highest_timestamps(batch: FeedBatch, records: DataFrame, past: History) -> DataFrame | None:
    """What positions by Kafka's offsets need of bronze, where the records are not the last ones of their places."""
    is_needed = (batch.request is not None or past.reads_back) and batch.feed.sequence_by == "kafka_offset"
    return highest_timestamps(batch.bronze(), records) if is_needed else None


def _telling_news(batch: FeedBatch, past: History, found: Sequence[Fall]) -> list[Fall]:
    """Of runs that fall behind, those that do not only repeat what bronze has."""
    read = read_ranges(past)
    rows = in_ranges(batch.bronze(), {fall.place: read[fall.place] for fall in found})
    # Held: what is asked of them would be pushed into the plan that reads them, over and over.
    with held(events(rows, batch.feed)) as told:
        fallen = fallen_behind(batch.warehouse.spark, found)
        numbers = not_told_before(told, fallen, batch.feed).distinct().collect()
    return [found[row["number"]] for row in numbers]


def _records_read_again(batch: FeedBatch, past: History, openings: Sequence[Opening]) -> DataFrame | None:
    """The records of earlier batches that turn out to be of an epoch that has begun since; None without any.

    Their rows stand in the wrong epoch: read again, they get the right one.
    """
    ranges: dict[Place, tuple[int, int]] = {}
    for one in openings:
        for place, (first, last) in past.read_again(one).items():
            ranges[place] = (min(first, ranges.get(place, (first, last))[0]), last)
    return from_bronze(batch, in_ranges(batch.bronze(), ranges)) if ranges else None


def _known_damage_aside(batch: FeedBatch, placed: DataFrame) -> DataFrame:
    """The placed records; those that were found damaged before are `damaged`."""
    if batch.feed.name not in batch.standing.damaged:
        return placed
    known = set_aside(batch.warehouse.read(QUARANTINE.name), batch.feed)
    marked = placed.join(known, on=OF_RECORD, how="left")
    is_damaged = F.col("is_set_aside").isNotNull() & (F.col("kind") == "change")
    return marked.withColumn("kind", F.when(is_damaged, "damaged").otherwise(F.col("kind"))).drop("is_set_aside")


def _deletes(batch: FeedBatch, placed: DataFrame, past: History, *, is_more: bool) -> DataFrame:
    """The tombstones that delete: none where each follows a delete. `is_more`: with records of earlier batches."""
    ends = small_table(batch.warehouse.spark, past.ends(), ENDS)
    tombstones = placed.where(F.col("kind") == "tombstone")
    table = batch.read_table() if is_more else batch.rows_of(tombstones)
    return deleting_tombstones(placed, table, batch.feed, ends=ends)


def _with_new_floors(batch: FeedBatch, placed: DataFrame, past: History) -> tuple[History, list[Floor]]:
    """The history with the floors of this batch, and those that are the highest now."""
    if batch.feed.append_only:
        return past, []
    new = past.snapshot_floors()
    if batch.total("truncates"):
        new += _truncates(batch, placed)
    past = past.with_floors(new)
    highest = past.highest_floors("truncate", "snapshot").values()
    return past, [floor for floor in highest if floor in new]


def _truncates(batch: FeedBatch, placed: DataFrame) -> list[Floor]:
    at = F.struct("position", "topic", "partition", "offset")
    last = F.max(at).alias("at")
    found = placed.where(F.col("kind") == "truncate").groupBy("topic").agg(last)
    rows = found.select("at.topic", "at.partition", "at.offset", F.to_json("at.position").alias("position")).collect()
    return [
        Floor(
            reason="truncate",
            position=row["position"],
            topic=row["topic"] if batch.feed.is_sharded else None,
            at_topic=row["topic"],
            at_partition=row["partition"],
            at_offset=row["offset"],
        )
        for row in rows
    ]


def _known_events(batch: FeedBatch, placed: DataFrame, *, records: int) -> DataFrame:
    """The events of earlier batches that these records may be; `records`: how many these are at most."""
    is_own = (F.col("source") == batch.feed.source) & (F.col("feed") == batch.feed.name)
    if between := batch.first_key_range:
        is_own &= F.col("first_key").between(*between)
    ids = sent_along(placed.select("event_id").distinct(), records)
    return batch.warehouse.read(OUTBOX_EVENTS.name).where(is_own).join(ids, on="event_id", how="left_semi")


def _merge(
    batch: FeedBatch,
    live: DataFrame,
    past: History,
    new_floors: Sequence[Floor],
    *,
    sent: int | None,
    between: Mapping[str, tuple[int, int]],
) -> None:
    """Bring the table up to the `live` changes.

    `sent`: how many there are at most, where rows are light; or None. `between`: where their keys lie.
    """
    feed, table = batch.feed, batch.warehouse.delta(batch.table)
    if feed.append_only:
        rows = list_of_changes(live, feed)
        append_changes(table, rows if sent is None else sent_along(rows, sent))
        return
    if feed.sequence_by == "kafka_offset":
        _report_strays(batch, live, past)
    collected = past.highest_floors(COLLECTED).get(None)
    # With what is asked for come all records of its keys: what was collected is among them.
    below = None if collected is None or batch.request is not None else collected.position
    if batch.total("changes") or batch.total("tombstones") or new_floors:
        latest = latest_per_key(live, feed)
        # A floor goes over all rows of the table, and between two keys there are few.
        size = 0 if new_floors or between else batch.table_size
        with merge_source(latest, key=feed.keys[0], count=sent, size_in_bytes=size) as source:
            merge_latest(table, source, feed, floors=new_floors, unknown_below=below, between=between)


def _report_strays(batch: FeedBatch, events: DataFrame, past: History) -> None:
    """Keys whose events came over several partitions go into the results: only timestamps could order them."""
    # With one partition there is nothing to look for key by key.
    if len({(one.topic, one.partition) for one in past.known}) == 1:
        return
    strays = keys_across_partitions(events, batch.rows_of(events), batch.feed)
    sample = strays.limit(SAMPLE_KEYS).collect()
    if not sample:
        return
    failed = strays.count()
    result = Result(
        run=batch.run,
        gate="silver",
        source=batch.feed.source,
        feed=batch.feed.name,
        rule="one_partition_per_key",
        description="All events of a key come in one partition.",
        on_failure="warn",
        evaluated=failed,
        failed=failed,
        passed=False,
        sample_keys=()
        if has_sensitive_key(batch.feed)
        else tuple(",".join(str(value) for value in row) for row in sample),
    )
    batch.warehouse.append(RESULTS.name, result_rows(batch.warehouse.spark, [result]))


def _remember_events(batch: FeedBatch, events: DataFrame, *, records: int) -> None:
    feed = batch.feed
    first_key = F.col(f"row.{feed.keys[0]}") if batch.has_first_key else F.lit(None)
    rows = events.where(F.col("event_id").isNotNull()).select(
        F.lit(feed.source).alias("source"),
        F.lit(feed.name).alias("feed"),
        *("event_id", "topic", "partition", "offset"),
        first_key.cast("bigint").alias("first_key"),
    )
    rows = rows.distinct()  # a batch may hold a record twice
    is_known = f"known.source = '{feed.source}' AND known.feed = '{feed.name}' AND known.event_id = new.event_id"
    is_known += " AND known.topic = new.topic" if feed.is_sharded else ""
    if between := batch.first_key_range:
        is_known += f" AND known.first_key BETWEEN {between[0]} AND {between[1]}"
    table = batch.warehouse.delta(OUTBOX_EVENTS.name).alias("known")
    table.merge(sent_along(rows, records).alias("new"), is_known).whenNotMatchedInsertAll().execute()
