"""One batch of one feed: what is known of it, and what became of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse.contracts import Expectation, Feed
from lakehouse.tables import Warehouse
from silver.changelog import judged
from silver.envelope import changes
from silver.history import History, Remembered
from silver.ledger import OUTCOMES, QUARANTINE
from silver.messages import may_be_wrapped
from silver.position import has_position
from silver.runs import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

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
    told = changes(records, feed, wrapped=wrapped)
    return judged(told, rules, keys=feed.keys, has_position=has_position(feed))


def from_bronze(batch: FeedBatch, rows: DataFrame) -> DataFrame:
    """The same for rows that earlier batches have read."""
    return judged_records(rows, batch.feed, batch.rules, wrapped=brings_schemas(rows))


def brings_schemas(rows: DataFrame) -> bool:
    """Whether messages among these rows may bring their schema."""
    return not rows.where(may_be_wrapped("value") | may_be_wrapped("key")).limit(1).isEmpty()


def read_ranges(past: History) -> dict[Place, tuple[int, int]]:
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
