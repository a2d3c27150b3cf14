"""One batch of one feed: its records placed in the source's history, folded, and merged into the feed's silver table.

The steps, in the order of `apply_feed`: what is known of the history; epochs that have begun; positions; tombstones
that delete; floors; the MERGE; and what only bronze can tell: damaged records, large values of older keys. Every step
can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts import Expectation, Feed
from lakehouse.results import RESULTS, Result, result_rows
from lakehouse.session import held
from lakehouse.tables import Warehouse, small_table
from silver.changelog import (
    as_gone_below_floors,
    judged,
    keys_across_partitions,
    latest_per_key,
    list_of_changes,
    outcomes,
    rows_of_other_partitions,
    with_floors,
    with_repeated_events,
    with_tombstones,
)
from silver.envelope import changes, events, large_columns
from silver.from_bronze import (
    DAMAGED,
    damaged,
    fallen_behind,
    in_ranges,
    not_told_before,
    rows_from,
    without,
)
from silver.history import COLLECTED, History, Remembered, epoch_rows, floor_rows, history
from silver.ledger import EPOCHS, FLOORS, OUTBOX_EVENTS, OUTCOMES, QUARANTINE, quarantine_rows
from silver.merge import Floor, append_changes, merge_latest, replace_rows
from silver.messages import key_text, may_be_wrapped
from silver.older_keys import MOST_KEY_CHANGES, ended, further, merge_answers, new_searches, one_hop, waiting_searches
from silver.position import has_position, with_position
from silver.runs import Fall, Opening, Place

if TYPE_CHECKING:
    from pyspark.sql import Column, Row

SAMPLE_KEYS = 5
OF_RECORD = ["topic", "topic_id", "partition", "offset"]


@dataclass
class Outcome:
    """What became of a batch's changes and tombstones: by place and outcome, how many records.

    `moved`: records of earlier batches that turned out to be damaged, by place: how many.
    """

    counts: dict[Place, dict[str, int]] = field(default_factory=dict)
    moved: dict[Place, int] = field(default_factory=dict)

    def add(self, place: Place, outcome: str, records: int) -> None:
        """So many more records of a place."""
        of_place = self.counts.setdefault(place, {})
        of_place[outcome] = of_place.get(outcome, 0) + records


@dataclass(frozen=True)
class FeedBatch:
    """A feed, its rules, the counts (COUNTS) of its part of the batch, and what is remembered of the source."""

    warehouse: Warehouse
    feed: Feed
    rules: Sequence[Expectation]
    rows: Sequence[Row]
    run: str
    memory: Remembered

    @property
    def table(self) -> str:
        """The feed's silver table."""
        return f"silver.{self.feed.name}"

    def total(self, count: str) -> int:
        """The sum of a count over all stretches of the batch."""
        return sum(row[count] for row in self.rows)

    def read_table(self) -> DataFrame:
        """The silver table as it is now."""
        return self.warehouse.read(self.table)

    def bronze(self) -> DataFrame:
        """All bronze rows of the feed's source."""
        return self.warehouse.read(f"bronze.{self.feed.source}_events")


def judged_records(records: DataFrame, feed: Feed, rules: Sequence[Expectation], *, wrapped: bool = True) -> DataFrame:
    """Bronze rows of a feed as changes that have been through gate 1. `wrapped`: as `changes` takes it."""
    return judged(changes(records, feed, wrapped=wrapped), rules, has_position=has_position(feed))


def _from_bronze(batch: FeedBatch, rows: DataFrame) -> DataFrame:
    """The same for rows that earlier batches have read."""
    return judged_records(rows, batch.feed, batch.rules, wrapped=_may_be_wrapped(rows))


def _may_be_wrapped(rows: DataFrame) -> bool:
    return not rows.where(may_be_wrapped("value") | may_be_wrapped("key")).limit(1).isEmpty()


def apply_feed(batch: FeedBatch, records: DataFrame) -> Outcome:
    """Apply a feed's records (`judged_records`) to its table; what became of its changes and tombstones."""
    feed = batch.feed
    past, openings = _with_new_epochs(batch, history(feed, batch.rows, batch.memory))
    with ExitStack() as stack:
        everything = records.withColumn("is_read_again", F.lit(False))
        again = _records_read_again(batch, past, openings)
        if again is not None:
            again = stack.enter_context(held(again))
            everything = everything.unionByName(again.withColumn("is_read_again", F.lit(True)))
        placed = with_position(everything, feed, places=past.places(batch.warehouse.spark)).drop("value", "headers")
        placed = stack.enter_context(held(_known_damage_aside(batch, placed.withColumn("is_tombstone", F.lit(False)))))
        if batch.total("tombstones") and not feed.append_only:
            placed = stack.enter_context(held(_with_tombstones(batch, placed, past)))
        past, floors = _with_new_floors(batch, placed, past)
        placed = with_floors(placed, past.floor())
        if feed.envelope == "outbox":
            placed = stack.enter_context(held(with_repeated_events(placed, feed, known=_known_events(batch))))
        else:
            placed = placed.withColumn("is_repeated", F.lit(False))
        tells = ("change", "truncate") if feed.append_only else ("change",)
        live = as_gone_below_floors(placed.where(F.col("kind").isin(*tells) & ~F.col("is_repeated")))
        _merge(batch, live, past, floors)
        if feed.envelope == "outbox":
            _remember_events(batch, live)
        outcome = _outcome(batch, placed) or _without_damaged(batch, placed, past)
        if past.has_left_out and large_columns(feed):
            _resolve_older_keys(batch, placed, past)
        # Last: a batch that is repeated after a crash finds them again.
        _write_history(batch, past, openings, floors)
        return outcome


def _with_new_epochs(batch: FeedBatch, past: History) -> tuple[History, list[Opening]]:
    """The history with the epochs that begin in this batch, and these: runs that fall behind and tell what is new."""
    if batch.feed.sequence_by == "kafka_offset":
        return past, []
    begun: list[Opening] = []
    repeating: set[tuple[Place, str]] = set()
    while True:
        found = [fall for fall in past.falls() if (fall.place, fall.run_id) not in repeating]
        # A snapshot repeats nothing. The others are compared when no snapshot is left: an epoch may explain them.
        with_news = [fall for fall in found if fall.is_snapshot]
        if not with_news:
            with_news = _telling_news(batch, past, found)
            repeating |= {(fall.place, fall.run_id) for fall in found if fall not in with_news}
        if not with_news:
            return past, begun
        for fall in with_news:
            new = past.opening(fall)
            if not any((one.run_id, one.shard) == (new.run_id, new.shard) for one in begun):
                begun.append(new)
                past = past.with_openings([new])


def _telling_news(batch: FeedBatch, past: History, found: Sequence[Fall]) -> list[Fall]:
    """Of runs that fall behind, those that do not only repeat what bronze has."""
    if not found:
        return []
    read = _read_ranges(past)
    rows = in_ranges(batch.bronze(), {fall.place: read[fall.place] for fall in found})
    # Held: what is asked of them would be pushed into the plan that reads them, over and over.
    with held(events(rows, batch.feed, wrapped=_may_be_wrapped(rows))) as told:
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
    return _from_bronze(batch, in_ranges(batch.bronze(), ranges)) if ranges else None


def _known_damage_aside(batch: FeedBatch, placed: DataFrame) -> DataFrame:
    """The placed records; those that earlier batches, or this one before, found damaged are `damaged`."""
    known = [row.asDict() for row in batch.memory.damaged.get(batch.feed.name, ())]
    if not known:
        return placed
    rows = small_table(batch.warehouse.spark, known, "topic STRING, partition INT, offset BIGINT")
    marked = placed.join(
        F.broadcast(rows.withColumn("is_damaged", F.lit(True))), on=["topic", "partition", "offset"], how="left"
    )
    is_damaged = F.coalesce("is_damaged", F.lit(False)) & (F.col("kind") == "change")
    return marked.withColumn("kind", F.when(is_damaged, "damaged").otherwise(F.col("kind"))).drop("is_damaged")


def _with_tombstones(batch: FeedBatch, placed: DataFrame, past: History) -> DataFrame:
    """The placed records, with the tombstones that delete as changes."""
    ends = past.ends(batch.warehouse.spark)
    return with_tombstones(placed.drop("is_tombstone"), batch.read_table(), batch.feed, ends=ends)


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


def _write_history(batch: FeedBatch, past: History, openings: Sequence[Opening], floors: Sequence[Floor]) -> None:
    """Remember the epochs and floors of this batch."""
    for spec, rows, at in (
        (EPOCHS, epoch_rows(past, openings), "opened_at"),
        (FLOORS, floor_rows(batch.feed, floors), "written_at"),
    ):
        if rows:
            found = small_table(batch.warehouse.spark, rows, spec.columns).withColumn(at, F.current_timestamp())
            batch.warehouse.append(spec.name, found)


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


def _known_events(batch: FeedBatch) -> DataFrame:
    return batch.warehouse.read(OUTBOX_EVENTS.name).where(
        (F.col("source") == batch.feed.source) & (F.col("feed") == batch.feed.name)
    )


def _merge(batch: FeedBatch, live: DataFrame, past: History, new_floors: Sequence[Floor]) -> None:
    feed, table = batch.feed, batch.warehouse.delta(batch.table)
    if feed.append_only:
        append_changes(table, list_of_changes(live, feed))
        return
    if feed.sequence_by == "kafka_offset":
        _report_strays(batch, live)
    collected = past.highest_floors(COLLECTED).get(None)
    below = None if collected is None else collected.position
    if batch.total("changes") or batch.total("tombstones") or new_floors:
        merge_latest(table, latest_per_key(live, feed), feed, floors=new_floors, unknown_below=below)


def _report_strays(batch: FeedBatch, events: DataFrame) -> None:
    """Keys whose events came over several partitions go into the results: only timestamps could order them."""
    places = {(row["topic"], row["partition"]) for row in batch.rows if row["changes"]}
    table = batch.read_table()
    # Most have one partition; then there is nothing to look for key by key.
    if len(places) == 1 and rows_of_other_partitions(table, places).isEmpty():
        return
    strays = keys_across_partitions(events, table, batch.feed)
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
        on_failure="warn",
        evaluated=failed,
        failed=failed,
        passed=False,
        sample_keys=tuple(",".join(str(value) for value in row) for row in sample),
    )
    batch.warehouse.append(RESULTS.name, result_rows(batch.warehouse.spark, [result]))


def _remember_events(batch: FeedBatch, events: DataFrame) -> None:
    feed = batch.feed
    rows = events.where(F.col("event_id").isNotNull()).select(
        F.lit(feed.source).alias("source"), F.lit(feed.name).alias("feed"), "event_id", "topic", "partition", "offset"
    )
    rows = rows.distinct()  # a batch may hold a record twice
    is_known = f"known.source = '{feed.source}' AND known.feed = '{feed.name}' AND known.event_id = new.event_id"
    is_known += " AND known.topic = new.topic" if feed.is_sharded else ""
    table = batch.warehouse.delta(OUTBOX_EVENTS.name).alias("known")
    table.merge(rows.alias("new"), is_known).whenNotMatchedInsertAll().execute()


def _outcome(batch: FeedBatch, placed: DataFrame) -> Outcome | None:
    """What became of the batch's changes and tombstones; None when some of them show that a record is damaged."""
    counted = (
        _ended(batch, placed)
        .groupBy("topic", "topic_id", "partition", "outcome")
        .agg(F.count(F.lit(1)).alias("records"), F.bool_or(_shows_damage(batch.feed)).alias("shows_damage"))
    )
    rows = counted.collect()
    return None if any(row["shows_damage"] for row in rows) else _as_outcome(rows)


def _as_outcome(counted: Sequence[Row]) -> Outcome:
    outcome = Outcome()
    for row in counted:
        outcome.add((row["topic"], row["topic_id"], row["partition"]), row["outcome"], row["records"])
    return outcome


def _ended(batch: FeedBatch, placed: DataFrame) -> DataFrame:
    """The batch's own changes, truncates and tombstones with their outcome."""
    return outcomes(placed.where(~F.col("is_read_again")), batch.read_table(), batch.feed)


def _union(parts: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, parts)


def _shows_damage(feed: Feed) -> Column:
    """Whether the row that keeps a streamed change out is older by its offset, in the same partition and run."""
    if feed.sequence_by == "kafka_offset" or feed.append_only:
        return F.lit(False)
    is_same_run = (
        (F.col("now._topic") == F.col("topic"))
        & (F.col("now._partition") == F.col("partition"))
        & (F.col("now._offset") < F.col("offset"))
        & (F.col("now._offset") >= F.col("run_from"))
        & (F.col("now._position.streamed") == 1)
        & (F.col("now._position.epoch") == F.col("position.epoch"))
    )
    is_behind = F.col("outcome").isin("superseded", "duplicate") & (F.col("position") < F.col("now._position"))
    is_told = is_behind & (F.col("run_id") != "")
    return F.coalesce(is_told & (F.col("position.streamed") == 1) & is_same_run, F.lit(False))


def _without_damaged(batch: FeedBatch, placed: DataFrame, past: History) -> Outcome:
    """Set the damaged records of the suspicious keys aside, and make these keys' rows anew from bronze."""
    feed = batch.feed
    suspicious = _ended(batch, placed).where(_shows_damage(feed)).select("topic", "key").distinct()
    with ExitStack() as stack:
        keys = stack.enter_context(held(suspicious))
        rows = in_ranges(batch.bronze(), _read_ranges(past))
        of_keys = rows.join(F.broadcast(keys), on=["topic", "key"], how="left_semi")
        records = stack.enter_context(held(_from_bronze(batch, of_keys)))
        told = with_position(records, feed, places=past.places(batch.warehouse.spark)).withColumn(
            "is_tombstone", F.lit(False)
        )
        story = stack.enter_context(held(with_floors(told, past.floor())))
        broken = stack.enter_context(held(damaged(story, feed)))
        reason = {"kind": F.lit("quarantined"), "problems": F.array(F.lit(DAMAGED))}
        set_aside = story.join(broken, on=OF_RECORD, how="left_semi").withColumns(reason)
        quarantine(batch.warehouse, quarantine_rows(set_aside, source=feed.source, feed=feed.name), feed.source)
        replace_rows(batch.warehouse.delta(batch.table), rows_from(without(story, broken), feed), feed)
        counted = without(_ended(batch, placed), broken).groupBy("topic", "topic_id", "partition", "outcome").count()
        outcome = _as_outcome(counted.withColumnRenamed("count", "records").collect())
        of_batch = placed.where(~F.col("is_read_again")).select(*OF_RECORD, F.lit(True).alias("is_new"))
        for row in broken.join(of_batch, on=OF_RECORD, how="left").collect():
            place = (row["topic"], row["topic_id"], row["partition"])
            if row["is_new"]:
                outcome.add(place, "quarantined", 1)  # once for each time that the batch has it
            else:
                outcome.moved[place] = outcome.moved.get(place, 0) + 1
        return outcome


def _read_ranges(past: History) -> dict[Place, tuple[int, int]]:
    """Of every place the offsets that silver has read, this batch included."""
    ranges: dict[Place, tuple[int, int]] = {}
    for one in past.known:
        first, last = ranges.get(one.place, (one.first_offset, one.last_offset))
        ranges[one.place] = (min(first, one.first_offset), max(last, one.last_offset))
    return ranges


def quarantine(warehouse: Warehouse, rows: DataFrame, source: str) -> None:
    """Add the rows of `quality.quarantine` that it does not have."""
    is_known = (
        f"known.source = '{source}' AND known.topic = new.topic AND known.partition = new.partition"
        " AND known.offset = new.offset"
    )
    table = warehouse.delta(QUARANTINE.name).alias("known")
    table.merge(rows.distinct().alias("new"), is_known).whenNotMatchedInsertAll().execute()


def _resolve_older_keys(batch: FeedBatch, placed: DataFrame, past: History) -> None:
    """Give rows whose key was changed the large values that only events of their older keys have told."""
    feed = batch.feed
    unresolved = batch.read_table().where("_unresolved_columns IS NOT NULL")
    columns = [
        F.array_contains(F.flatten(F.collect_set("_unresolved_columns")), c).alias(c) for c in large_columns(feed)
    ]
    (lacking,) = unresolved.agg(*columns).collect()
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
            keys = searches.select(F.col("key").alias("key_text")).distinct()
            of_feed = in_ranges(batch.bronze(), _read_ranges(past)).withColumn("key_text", key_text())
            of_keys = of_feed.join(F.broadcast(keys), on="key_text", how="left_semi").drop("key_text")
            records = stack.enter_context(held(_from_bronze(batch, of_keys)))
            events = with_position(records, feed, places=past.places(batch.warehouse.spark))
            hop = stack.enter_context(held(one_hop(searches, events, feed, column)))
            answers.append(ended(hop))
            searches = stack.enter_context(held(further(hop, feed)))
        if answers:
            merge_answers(batch.warehouse.delta(batch.table), _union(answers), feed, column)


def moved_rows(outcome: Outcome, *, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ledger rows that move records of earlier batches from applied to quarantined. `batch`: what all rows say."""
    return [
        {
            **batch,
            **dict(zip(("topic", "topic_id", "partition"), place, strict=True)),
            **dict.fromkeys(("read", *OUTCOMES, "judged"), 0),
            "applied": -records,
            "quarantined": records,
        }
        for place, records in outcome.moved.items()
    ]
