"""One batch of one feed: what is known of it, and what became of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.contracts.parts.column_types import WHOLE_NUMBERS
from lakehouse.delta.tables import Warehouse
from lakehouse.quality.masking import has_sensitive_key
from lakehouse.spark.sizing import MAX_BYTES_BROADCAST, broadcast
from silver.batch.changelog import judged
from silver.batch.events import decoded, of_feed
from silver.batch.missing_columns import MissingColumns, with_missing_columns
from silver.batch.position import has_position
from silver.decode.arrow import row_of
from silver.fold.erased import ErasedKeys
from silver.lookback.earlier_records import in_parts
from silver.order.facts import Facts
from silver.order.history import History
from silver.order.runs import Cutoff, OffsetRange, TopicPartition, offset_bounds
from silver.order.state import State, correction_row, feed_row
from silver.rejects.quarantine import (
    OF_RECORD,
    QUARANTINE,
    QuarantineState,
    contract_version,
    decided,
    decided_or_pending,
    quarantine_rows,
)

# Keys lie close together where there are so many possible ones, at most, for each record of the batch.
FEW_FOR_ONE = 20


@dataclass
class BatchOutcome:
    """What became of a batch's changes and tombstones: by topic-partition and outcome, how many records.

    `moved`: how many records of earlier batches turned out to be damaged, by topic-partition. `epochs` (`epoch_rows`)
    and `cutoffs`: those that begin with this batch. `past`: the history up to the end of the batch.
    """

    counts: dict[TopicPartition, dict[str, int]] = field(default_factory=dict)
    moved: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: Sequence[Mapping[str, Any]] = ()
    cutoffs: Sequence[Cutoff] = ()
    past: History | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether records were found damaged: they are pending in quarantine."""
        return bool(self.moved) or any(counts.get("quarantined") for counts in self.counts.values())

    def add(self, topic_partition: TopicPartition, outcome: str, records: int) -> None:
        """So many more records of a topic-partition."""
        of_place = self.counts.setdefault(topic_partition, {})
        of_place[outcome] = of_place.get(outcome, 0) + records


@dataclass(frozen=True)
class FeedBatch:
    """A feed, its rules, the facts (silver.order.facts) of its part of the batch, and the state of the source before.

    `name`: that of the batch, by its writer and its number (`batch_name`).
    `quarantine_state`: what the quarantine has of it. `missing`: which of its records miss a column. `request`: which
    one retries its records, where one does: they were read before, and are not the last of their topic-partitions.
    `value_bytes`: of the values of its records; None where they were not counted. `table_size`: the bytes of the silver
    table before the batch, `history_size` of its history; None where it was not looked at. `erased`: the keys of the
    table whose rows were erased.
    """

    warehouse: Warehouse
    name: str
    feed: Feed
    rules: Sequence[Expectation]
    rows: Sequence[Facts]
    run: str
    state: State
    quarantine_state: QuarantineState
    missing: MissingColumns | None = None
    request: str | None = None
    value_bytes: int | None = None
    table_size: int | None = None
    history_size: int | None = None
    erased: ErasedKeys | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the silver table has no row before the batch, as far as that is known."""
        return self.table_size == 0

    @property
    def largest_size(self) -> int | None:
        """The bytes of the larger one of both tables; None where they were not looked at."""
        return None if self.table_size is None else max(self.table_size, self.history_size or 0)

    @property
    def is_light(self) -> bool:
        """Whether all rows may be sent to all partitions. A value may be as large as Kafka lets it be."""
        return self.value_bytes is not None and self.value_bytes <= MAX_BYTES_BROADCAST

    @property
    def has_no_version(self) -> bool:
        """Whether the history has no row before the batch, as far as that is known."""
        return self.history_size == 0

    @property
    def table(self) -> str:
        """The feed's silver table."""
        return f"silver.{self.feed.name}"

    def total(self, count: str) -> int:
        """The sum of a count over all run segments of the batch."""
        return sum(row[count] for row in self.rows)

    @property
    def key_ranges(self) -> Mapping[str, tuple[int, int]]:
        """Between which values the keys of the batch's records lie, where they are whole numbers close together.

        Said to Delta in numbers, it passes over the files that have none between: most of them, where keys are recent.
        """
        ranges: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            for key, one in (row["key_ranges"] or {}).items():
                if one["lowest"] is not None:
                    lowest, highest = ranges.get(key, (one["lowest"], one["highest"]))
                    ranges[key] = min(lowest, one["lowest"]), max(highest, one["highest"])
        most = FEW_FOR_ONE * self.total("read")
        are_close = all(highest - lowest < most for lowest, highest in ranges.values())
        # Delta writes conditions into the history of a table.
        return ranges if are_close and not has_sensitive_key(self.feed) else {}

    @property
    def offset_ranges(self) -> list[OffsetRange]:
        """Between which offsets of each topic-partition the records of the batch lie."""
        ranges = offset_bounds(
            ((row["topic"], row["topic_id"], row["partition"]), row["first_offset"], row["last_offset"])
            for row in self.rows
        )
        return [(topic_partition, first, last) for topic_partition, (first, last) in ranges.items()]

    @property
    def has_first_key(self) -> bool:
        """Whether the first column of the key is a whole number that may be written down elsewhere."""
        first = self.feed.keys[:1]
        return any(self.feed.columns[key].type.ddl in WHOLE_NUMBERS for key in first) and not has_sensitive_key(
            self.feed
        )

    @property
    def first_key_range(self) -> tuple[int, int] | None:
        """Of `key_ranges` that of the first column of the key; None without."""
        return self.key_ranges.get(self.feed.keys[0]) if self.has_first_key else None

    def read_table(self) -> DataFrame:
        """The silver table as it is now."""
        return self.warehouse.read(self.table)

    def read_history(self) -> DataFrame:
        """The last version of every key, as they are now."""
        return self.warehouse.read(self.feed.history_table).where("_is_current")

    def in_key_ranges(self, table: DataFrame) -> DataFrame:
        """The rows of the table between the keys of the batch's records, where those are close together."""
        for key, (lowest, highest) in self.key_ranges.items():
            table = table.where(F.col(key).between(lowest, highest))
        return table

    def bronze(self) -> DataFrame:
        """All bronze rows of the feed's source."""
        return self.warehouse.read(f"bronze.{self.feed.source}_events")


def judged_records(
    records: DataFrame,
    gates: Sequence[tuple[Feed, Sequence[Expectation]]],
    *,
    decisions: DataFrame | None = None,
    missing: MissingColumns | None = None,
) -> DataFrame:
    """Bronze rows as what they state (silver.batch.events), through gate 1: in one pass, each feed with its row rules.

    `decisions` (`decided`): what people have decided about records; None where they have about none. `missing`: of one
    feed alone, which of its records miss a column.
    """
    change_events = decoded(records, [feed for feed, _rules in gates])
    if missing is not None:
        change_events = with_missing_columns(change_events, missing)
    if decisions is None:
        change_events = change_events.withColumn("decision", F.lit(None).cast("string"))
    else:
        change_events = change_events.join(F.broadcast(decisions), on=OF_RECORD, how="left")
    for feed, rules in gates:
        change_events = judged(
            change_events,
            rules,
            keys=feed.keys,
            has_position=has_position(feed),
            row=row_of(feed.name),
            is_own=f"feed = '{feed.name}'",
        )
    return change_events


def judged_of_feed(
    records: DataFrame,
    feed: Feed,
    rules: Sequence[Expectation],
    *,
    decisions: DataFrame | None = None,
    missing: MissingColumns | None = None,
) -> DataFrame:
    """The same for the records of one feed, with its `row`."""
    return of_feed(judged_records(records, [(feed, rules)], decisions=decisions, missing=missing), feed)


def decisions_about(warehouse: Warehouse, feeds: Sequence[Feed], quarantine_state: QuarantineState) -> DataFrame | None:
    """`decided` of these feeds; None where nobody has decided anything about records of the batch."""
    if not quarantine_state.is_met:
        return None
    found = [decided(warehouse.read(QUARANTINE.name), feed) for feed in feeds if feed.name in quarantine_state.decided]
    return reduce(DataFrame.unionByName, found) if found else None


def from_bronze(batch: FeedBatch, rows: DataFrame) -> DataFrame:
    """The same for rows that earlier batches have read: what is pending stays out."""
    decisions = None
    if batch.feed.name in {*batch.quarantine_state.decided, *batch.quarantine_state.pending}:
        known = batch.warehouse.read(QUARANTINE.name)
        decisions = decided_or_pending(known, batch.feed, asked=batch.request)
    return judged_of_feed(rows, batch.feed, batch.rules, decisions=decisions, missing=batch.missing)


def entries(
    batch: FeedBatch, judged_records: DataFrame, *, bronze: DataFrame | None = None, are_damaged: bool = False
) -> DataFrame:
    """The quarantined ones of a feed's records, as entries of `quality.quarantine`, with their bytes.

    `bronze`: rows among which they are; None: the records are of the batch. `are_damaged`: all of them are.
    """
    contract = contract_version(batch.feed, batch.rules)
    of_silver = {"contract": contract, "generation": batch.state.generation}
    stored = in_parts(batch.bronze(), batch.offset_ranges) if bronze is None else bronze
    rejects = broadcast(judged_records.where(F.col("kind") == "quarantined"), batch.total("quarantined"))
    return quarantine_rows(rejects, stored, batch.feed, **of_silver, found_by=batch.name if are_damaged else None)


def learned(feed: str, outcome: BatchOutcome) -> list[dict[str, Any]]:
    """What a batch has found out of a feed: records of earlier batches that are damaged, epochs and cutoffs."""
    rows = [
        correction_row(feed, topic_partition, {"applied": -records, "quarantined": records})
        for topic_partition, records in outcome.moved.items()
    ]
    has_news = bool(outcome.epochs or outcome.cutoffs)
    return [*rows, *([feed_row(feed, epochs=outcome.epochs, cutoffs=outcome.cutoffs)] if has_news else [])]
