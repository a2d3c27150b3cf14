"""Purging deleted rows: those that no event can concern any more, by source position, never by a clock.

A deleted row stays so that a late event finds it. It may go once everything below it was read: its position lies below
what every partition has reached, and below every record in quarantine, no offsets were skipped, and the table is not
suspended. The cutoff that is written down then stands in for the rows: below it, an event of an unknown key is
superseded, so no deleted row comes back. It is valid for this silver alone: one that is rebuilt reads the deletes
again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import Warehouse
from silver.accounts.audit import append, read_state
from silver.batch.changelog import position_from
from silver.batch.outcome import judged_of_feed
from silver.batch.position import with_position
from silver.lookback.earlier_records import highest_timestamps
from silver.order.history import PURGED, History, history
from silver.order.runs import Cutoff
from silver.order.state import feed_row, writer_of
from silver.rejects.quarantine import QUARANTINE, as_bronze, is_pending_entry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Plan:
    """What can be purged of a feed: `rows` deleted rows below `horizon` (JSON). `why_not`: why none can."""

    feed: str
    horizon: str | None
    rows: int
    why_not: str | None = None


def plan(warehouse: Warehouse, contracts: Contracts, feed: Feed, *, skipped: Collection[str] = ()) -> Plan:
    """What could be purged of this feed now: true as long as nobody else writes. Changes nothing.

    `skipped`: the topics of which offsets were skipped that may be read later.
    """
    why_not = _never(contracts, feed) or _skipped(feed, skipped)
    if why_not is not None:
        return Plan(feed.name, None, 0, why_not)
    state = read_state(warehouse, feed.source)
    if feed.name in state.suspended:
        return Plan(
            feed.name, None, 0, "it is suspended, and the records that are pending for it could concern any row"
        )
    past = history(feed, [], state)
    horizon = _horizon(past)
    if horizon is None:
        return Plan(feed.name, None, 0, "nothing was read yet, or no partition says how far it is")
    pending = _quarantined(warehouse, feed, past)
    (held,) = pending.agg(
        F.count_if(F.col("position").isNull()).alias("unplaced"), F.to_json(F.min("position")).alias("lowest")
    ).collect()
    if held["unplaced"]:
        records = f"{held['unplaced']:,} records in quarantine have no position"
        return Plan(feed.name, None, 0, f"{records}: they could concern any row")
    if held["lowest"] is not None:
        horizon = min(horizon, held["lowest"], key=_ordered)
    rows = _purgeable(warehouse.read(f"silver.{feed.name}"), feed, horizon).count()
    return Plan(feed.name, horizon, rows)


def carry_out(warehouse: Warehouse, feed: Feed, chosen: Plan) -> None:
    """Write the cutoff down, then delete the rows below it."""
    if chosen.horizon is None or not chosen.rows:
        return
    cutoff = Cutoff(PURGED, chosen.horizon, None, "", -1, -1)
    state = read_state(warehouse, feed.source)
    of_batch = {"run": None, "source": feed.source, "generation": state.generation, "batch": None}
    writer = writer_of(feed.source, state.generation, f"collected {feed.name} {uuid4().hex}")
    append(warehouse, state, [feed_row(feed.name, cutoffs=[cutoff])], of_batch=of_batch, writer=writer)
    is_below = F.col("_position") < position_from(chosen.horizon, feed)
    warehouse.delta(f"silver.{feed.name}").delete(F.col("_is_deleted") & is_below)


def _never(contracts: Contracts, feed: Feed) -> str | None:
    if feed.append_only:
        return "the table is a list of changes: it keeps no deleted rows"
    if feed.is_sharded:
        return "its topics are shards, whose positions do not compare"
    for source in contracts.gold.sources.values():
        if feed.name in source.feeds[:-1]:
            lower = ", ".join(source.feeds[source.feeds.index(feed.name) + 1 :])
            return f"gold would take an order that is deleted here from {lower}, which may still have it"
    return None


def _skipped(feed: Feed, skipped: Collection[str]) -> str | None:
    topics = sorted(topic for topic in skipped if feed.has_topic(topic))
    if not topics:
        return None
    hint = f"lakehouse offsets set {feed.source} reads them; --without-skipped says that they are given up"
    return f"offsets of {', '.join(topics)} were skipped, and what may be read later could concern any row: {hint}"


def _horizon(past: History) -> str | None:
    """The lowest of the positions that the partitions have reached, as JSON."""
    begins, reached = past.epochs(), []
    for topic_partition in {one.topic_partition for one in past.known}:
        parts = [one for one in past.known if one.topic_partition == topic_partition]
        last = max(parts, key=lambda one: one.last_offset)
        if past.feed.sequence_by == "kafka_offset":
            if last.highest_timestamp_ms is None:
                return None
            times = [one.highest_timestamp_ms for one in parts if one.highest_timestamp_ms is not None]
            reached.append(_position(past.feed, 0, (max(times),)))
            continue
        epoch = max((number for at, number in begins.get(topic_partition, ()) if at <= last.last_offset), default=0)
        since = max((at for at, number in begins.get(topic_partition, ()) if number == epoch), default=0)
        highs = [one.high for one in parts if one.high is not None and one.last_offset >= since]
        if not highs:
            return None
        reached.append(_position(past.feed, epoch, max(highs)))
    return min(reached, key=_ordered, default=None)


def _position(feed: Feed, epoch: int, at: tuple[int, ...]) -> str:
    """The lowest position at these coordinates."""
    parts: dict[str, Any]
    if feed.sequence_by == "kafka_offset":
        parts = {"timestamp_ms": at[0], "kafka_topic": "", "kafka_partition": -1}
    elif feed.kind == "postgresql":
        parts = {"epoch": epoch, "ordered_lsn": at[0], "streamed": 0, "commit_lsn": at[0], "lsn": 0}
    else:
        parts = {"epoch": epoch, "binlog_file": at[0], "binlog_pos": at[1], "binlog_row": 0, "streamed": 0}
    return json.dumps({**parts, "kafka_offset": -1})


def _ordered(position: str) -> tuple[Any, ...]:
    return tuple(json.loads(position).values())


def _quarantined(warehouse: Warehouse, feed: Feed, past: History) -> DataFrame:
    """`position` of the feed's records that are pending in quarantine, or were discarded: they may be asked for yet."""
    is_of_feed = (F.col("source") == feed.source) & (F.col("feed") == feed.name)
    may_be_discovered = is_pending_entry() | (F.col("state") == "discarded")
    records = judged_of_feed(as_bronze(warehouse.read(QUARANTINE.name).where(is_of_feed & may_be_discovered)), feed, [])
    highest = None
    if feed.sequence_by == "kafka_offset":
        highest = highest_timestamps(warehouse.read(f"bronze.{feed.source}_events"), records)
    positioned = with_position(records, feed, position_contexts=past.position_contexts(), highest_timestamps=highest)
    return positioned.select("position")


def _purgeable(table: DataFrame, feed: Feed, horizon: str) -> DataFrame:
    return table.where(F.col("_is_deleted") & (F.col("_position") < position_from(horizon, feed)))
