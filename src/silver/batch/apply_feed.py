"""One batch of one feed: its records placed in the source's history, folded, and merged into the feed's silver table.

The steps, in the order of `apply_feed`: what is known of the history; epochs that have begun; positions; cutoffs; the
fold, with the rows that the table has; the MERGE; and the keys that a batch cannot decide, derived again. Every step
can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.quality.masking import has_sensitive_key
from lakehouse.quality.results import RESULTS, Result, result_rows
from lakehouse.spark.materialized import materialized, merge_source
from lakehouse.spark.sizing import broadcast, rewrite_small_table
from silver.accounts.audit import OUTBOX_EVENTS
from silver.batch.append_feed import append_feed
from silver.batch.changelog import (
    keys_across_partitions,
    with_known_events,
)
from silver.batch.events import events
from silver.batch.merge import first_rows, merge_rows
from silver.batch.outcome import BatchOutcome, FeedBatch, from_bronze
from silver.batch.position import with_position
from silver.batch.records import ValidatedRecords
from silver.batch.transport import FoldedBatch, folded
from silver.fold.rows import Plan
from silver.lookback.earlier_records import (
    highest_timestamps,
    in_ranges,
    regressed_runs,
    steps_back,
    unseen_changes,
    within,
)
from silver.lookback.rederive import keys_of, keys_without_correction, rederive
from silver.order.history import PURGED, History, epoch_rows, history, with_new_epochs
from silver.order.runs import Cutoff, EpochStart, Regression, TopicPartition
from silver.rejects.quarantine import OF_RECORD, QUARANTINE, damaged_records
from silver.row_history.apply import merge_history

if TYPE_CHECKING:
    from pyspark.sql import Row

SAMPLE_KEYS = 5


def apply_feed(batch: FeedBatch, records: ValidatedRecords) -> BatchOutcome:
    """Apply a feed's judged records to its table; what became of its changes and tombstones."""
    feed = batch.feed
    past, epoch_starts = _history(batch)
    if feed.append_only:
        outcome = append_feed(batch, _positioned(batch, records.frame, past), past)
        outcome.epochs, outcome.past = epoch_rows(past, epoch_starts), past
        return outcome
    to_reposition = past.read_again(epoch_starts)
    past, cutoffs = _with_new_cutoffs(batch, records, past, to_reposition)
    plan = Plan(
        feed.model_copy(update={"schemas": None}),  # of decoding: they need not travel
        past.position_contexts(runs={row["run_id"] for row in batch.rows}),
        past.cutoff_by_shard(),
        past.highest_cutoffs(PURGED).get(None),
        past.has_unchanged,
        _known_damage(batch),
        _deleted_last(batch, past),
        past.every_cutoff() if feed.has_history else (),
        batch.erased,
    )
    with rewrite_small_table(batch.warehouse.spark, batch.largest_size), ExitStack() as stack:
        if feed.sequence_by == "kafka_offset":
            records = _by_timestamp(batch, records, past, stack)
        result = folded(batch, records, plan, stack)
        _merge(batch, result, cutoffs)
        crossed = None if result.versions is None else merge_history(batch, result.versions, cutoffs)
        if feed.envelope == "outbox":
            _remember_events(batch, records.frame)
        again = _Again(to_reposition, crossed)
        outcome = _outcome_of(batch, records, result, past, again=again, stack=stack)
    outcome.epochs, outcome.cutoffs, outcome.past = epoch_rows(past, epoch_starts), cutoffs, past
    return outcome


def positioned(batch: FeedBatch, records: DataFrame) -> DataFrame:
    """A feed's judged records with their positions, before anything is applied."""
    past, _epoch_starts = _history(batch)
    return _positioned(batch, records, past)


def _history(batch: FeedBatch) -> tuple[History, Sequence[EpochStart]]:
    """The history up to the end of the batch, with the epochs that begin in it, and these."""
    before = history(batch.feed, batch.rows, batch.state)
    return with_new_epochs(before, partial(_regressions_with_new_changes, batch, before))


def _positioned(batch: FeedBatch, records: DataFrame, past: History) -> DataFrame:
    position_contexts = past.position_contexts(runs={row["run_id"] for row in batch.rows})
    highest = _highest_timestamps(batch, records, past)
    return with_position(records, batch.feed, position_contexts=position_contexts, highest_timestamps=highest)


def _by_timestamp(batch: FeedBatch, records: ValidatedRecords, past: History, stack: ExitStack) -> ValidatedRecords:
    """The records of a feed that goes by Kafka's offsets, with their positions where they are many or are read again,
    and of an outbox with what is known of their events.
    """
    feed = batch.feed
    is_read_again = batch.request is not None or past.reads_back
    if feed.envelope != "outbox" and records.table is not None and not is_read_again:
        _report_strays(batch, records.frame, past)
        return records
    positioned = _positioned(batch, records.frame, past)
    if feed.envelope == "outbox":
        known = _known_events(batch, records.frame, records=batch.total("read"))
        positioned = with_known_events(positioned, feed, known=known)
    kept = stack.enter_context(materialized(positioned))
    _report_strays(batch, kept, past)
    is_here = records.table is not None
    return ValidatedRecords(feed, records.spark, kept=kept, table=kept.toArrow() if is_here else None)


class _Again(NamedTuple):
    """Records of earlier batches whose keys are derived again.

    `to_reposition`: offsets of those that are of another epoch. `crossed`: those behind which a cutoff has come late.
    """

    to_reposition: Mapping[TopicPartition, tuple[int, int]]
    crossed: DataFrame | None


def _outcome_of(
    batch: FeedBatch,
    records: ValidatedRecords,
    result: FoldedBatch,
    past: History,
    *,
    again: _Again,
    stack: ExitStack,
) -> BatchOutcome:
    """What became of the batch's changes and tombstones, when the keys that ask for it have been derived again."""
    feed, keys = batch.feed, []
    outcome = BatchOutcome({topic_partition: dict(counts) for topic_partition, counts in result.counts.items()})
    if feed.sequence_by == "kafka_offset":
        return outcome
    if batch.request is not None:
        # What was kept out may itself be the damaged record, or have been meant by a tombstone behind it.
        keys.append(keys_of(records.frame, feed))
    elif result.undecided is not None:
        undecided = records.frame.join(F.broadcast(result.undecided), on=OF_RECORD, how="left_semi")
        keys.append(keys_of(undecided, feed))
    if again.to_reposition:
        keys.append(keys_of(in_ranges(batch.bronze(), again.to_reposition), feed))
    if again.crossed is not None:
        keys.append(keys_of(again.crossed, feed))
    uncorrected = keys_without_correction(batch)
    if uncorrected is not None:
        keys.append(uncorrected)
    if not keys:
        return outcome
    wanted = stack.enter_context(materialized(reduce(DataFrame.unionByName, keys).distinct()))
    found = rederive(batch, wanted, past, records.frame, stack)
    rederived = found.outcomes.withColumnRenamed("outcome", "rederived")
    own = result.outcomes().where("outcome IS NOT NULL").join(rederived, on=OF_RECORD, how="left")
    own = own.withColumn("outcome", F.coalesce("rederived", "outcome"))
    counted = own.groupBy(*TOPIC_PARTITION, "outcome").count()
    outcome = _as_outcome(counted.withColumnRenamed("count", "records").collect())
    outcome.moved = {**found.moved}
    return outcome


def _as_outcome(counted: Sequence[Row]) -> BatchOutcome:
    outcome = BatchOutcome()
    for row in counted:
        outcome.add((row["topic"], row["topic_id"], row["partition"]), row["outcome"], row["records"])
    return outcome


def _highest_timestamps(batch: FeedBatch, records: DataFrame, past: History) -> DataFrame | None:
    """What positions by Kafka's offsets need of bronze, where records are not the last of their topic-partitions."""
    is_needed = (batch.request is not None or past.reads_back) and batch.feed.sequence_by == "kafka_offset"
    return highest_timestamps(batch.bronze(), records) if is_needed else None


def _regressions_with_new_changes(batch: FeedBatch, past: History, found: Sequence[Regression]) -> list[Regression]:
    """The regressions that do not only repeat what bronze has."""
    left = [*found]
    begins = {
        one.topic_partition: min(other.from_offset for other in found if other.topic_partition == one.topic_partition)
        for one in found
    }
    for ranges, is_whole in steps_back(past.read_ranges(), begins):
        # Materialized: what is asked of them would be pushed into the plan that reads them, over and over.
        with materialized(events(in_ranges(batch.bronze(), ranges), batch.feed)) as change_events:
            fallen = regressed_runs(batch.warehouse.spark, left)
            numbers = unseen_changes(change_events, fallen, batch.feed, is_whole=is_whole).distinct().collect()
        left = [left[row["number"]] for row in numbers]
        if not left:
            break
    return left


def _known_damage(batch: FeedBatch) -> frozenset[tuple[str, str, int, int]]:
    """The records of the batch that were found damaged before."""
    known = batch.quarantine_state
    if not known.is_met or batch.feed.name not in known.damaged:
        return frozenset()
    damaged = damaged_records(batch.warehouse.read(QUARANTINE.name), batch.feed)
    # Of its offsets alone: the quarantine keeps entries of all times.
    found = damaged.where(within(batch.offset_ranges)).select(*OF_RECORD).collect()
    return frozenset((row["topic"], row["topic_id"], row["partition"], row["offset"]) for row in found)


def _deleted_last(batch: FeedBatch, past: History) -> Mapping[TopicPartition, int]:
    """By topic-partition the key that the last record before the batch deletes, where tombstones ask for it."""
    if batch.feed.sequence_by != "kafka_offset" or not batch.total("tombstones"):
        return {}
    return {
        topic_partition: before.last_key
        for topic_partition, before in past.before.items()
        if before.last_is_delete and before.last_key is not None
    }


def _with_new_cutoffs(
    batch: FeedBatch, records: ValidatedRecords, past: History, to_reposition: Mapping[TopicPartition, tuple[int, int]]
) -> tuple[History, list[Cutoff]]:
    """The history with the cutoffs of this batch, and those that are the highest now."""
    new = past.snapshot_cutoffs()
    if batch.total("truncates"):
        new += _truncates(batch, records.frame, past)
    if to_reposition:
        # A truncate names no key.
        rows = in_ranges(batch.bronze(), to_reposition).where(F.col("key").isNull())
        new += _truncates(batch, from_bronze(batch, rows), past)
    past = past.with_cutoffs(new)
    if batch.feed.has_history:  # which passes them one after the other
        return past, new
    highest = past.highest_cutoffs("truncate", "snapshot").values()
    return past, [cutoff for cutoff in highest if cutoff in new]


def _truncates(batch: FeedBatch, records: DataFrame, past: History) -> list[Cutoff]:
    positioned = with_position(
        records.where(F.col("kind") == "truncate"), batch.feed, position_contexts=past.position_contexts()
    )
    source_ms = F.unix_millis("source_ts").alias("source_ms")
    found = positioned.select("topic", "partition", "offset", "position", source_ms)
    if not batch.feed.has_history:
        last = F.max(F.struct("position", "topic", "partition", "offset", "source_ms")).alias("at")
        found = found.groupBy("topic").agg(last).select("at.*")
    known = {(one.topic, one.as_position()) for one in past.cutoffs if one.reason == "truncate"}
    rows = found.orderBy("position").withColumn("position", F.to_json("position")).collect()
    cutoffs = [
        Cutoff(
            reason="truncate",
            position=row["position"],
            topic=row["topic"] if batch.feed.is_sharded else None,
            at_topic=row["topic"],
            at_partition=row["partition"],
            at_offset=row["offset"],
            source_ms=row["source_ms"],
        )
        for row in rows
    ]
    return [one for one in cutoffs if (one.topic, one.as_position()) not in known]


def _known_events(batch: FeedBatch, positioned: DataFrame, *, records: int) -> DataFrame:
    """The events of earlier batches that these records may be; `records`: how many these are at most."""
    is_own = (F.col("source") == batch.feed.source) & (F.col("feed") == batch.feed.name)
    if between := batch.first_key_range:
        # Of events of an erased row it is not known any more.
        is_own &= F.col("first_key").between(*between) | F.col("first_key").isNull()
    ids = broadcast(positioned.select("event_id").distinct(), records)
    known = batch.warehouse.read(OUTBOX_EVENTS.name).where(is_own).join(ids, on="event_id", how="left_semi")
    return known.select("event_id", *OF_RECORD).distinct()


def _merge(batch: FeedBatch, result: FoldedBatch, new_cutoffs: Sequence[Cutoff]) -> None:
    """Bring the table up to the rows that change."""
    rows = result.rows
    if not (rows.number or new_cutoffs):
        return
    if batch.is_empty:  # nothing to compare with; a batch that is repeated finds its rows, and is merged
        batch.warehouse.append(batch.table, first_rows(rows.frame()))
        return
    feed, between = batch.feed, batch.key_ranges
    # A cutoff goes over all rows of the table, and between two keys there are few.
    size = 0 if new_cutoffs or between else batch.table_size or 0
    count = rows.number if batch.is_light else None
    with merge_source(rows.frame(), key=feed.keys[0], count=count, size_in_bytes=size, are_kept=True) as source:
        merge_rows(batch.warehouse.delta(batch.table), source, feed, cutoffs=new_cutoffs, between=between)


def _report_strays(batch: FeedBatch, events: DataFrame, past: History) -> None:
    """Keys whose events came over several partitions go into the results: only timestamps could order them."""
    # With one partition there is nothing to look for key by key.
    if len({(one.topic, one.partition) for one in past.known}) == 1:
        return
    events = events.where("kind = 'change'")
    multi_partition_keys = keys_across_partitions(events, batch.in_key_ranges(batch.read_table()), batch.feed)
    sample = multi_partition_keys.limit(SAMPLE_KEYS).collect()
    if not sample:
        return
    failed = multi_partition_keys.count()
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


def _remember_events(batch: FeedBatch, positioned: DataFrame) -> None:
    feed = batch.feed
    first_key = F.col(f"row.{feed.keys[0]}") if batch.has_first_key else F.lit(None)
    # A batch that is repeated, or a silver rebuilt from bronze, finds its events there.
    rows = positioned.where("kind = 'change' AND event_id IS NOT NULL AND NOT is_known AND NOT repeats_event").select(
        F.lit(feed.source).alias("source"),
        F.lit(feed.name).alias("feed"),
        *("event_id", *OF_RECORD),
        first_key.cast("bigint").alias("first_key"),
    )
    batch.warehouse.append(OUTBOX_EVENTS.name, rows)
