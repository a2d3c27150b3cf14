"""The changes of a fold in order: positions as numbers, tombstones that delete, damaged and repeated events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import polars as pl

from lakehouse.contracts.models import Feed
from silver.fold.damage import damaged, with_rows_counted_on
from silver.fold.index import Positions
from silver.fold.operands import indexed_events, indexed_rows, positions_of_rows, with_row_keys
from silver.fold.tombstones import deleting_tombstones, sent_again


class Ordered(NamedTuple):
    """The operands of a fold.

    `positions`: what the numbers of positions mean. `sound`: the events without those that are `damaged` (their
    numbers). `changes`: the changes among them, and the tombstones that delete: `sent_position` is their own,
    `position` where they stand. `table`: the table's rows, numbered behind the events. Both have a `row_key`.
    """

    positions: Positions
    sound: pl.DataFrame
    damaged: Collection[int]
    changes: pl.DataFrame
    table: pl.DataFrame


def ordered(
    events: pl.DataFrame, rows: pl.DataFrame, feed: Feed, *, also: Sequence[pl.DataFrame], is_whole: bool
) -> Ordered:
    """The operands of a fold of these events and `rows` (`table_row_types`) of the table.

    `also`: frames with other positions that are compared with them. `is_whole`: whether the events are all of their
    keys: then rows at one position of a binlog are counted on, damage is found, and tombstones delete.
    """
    by_source = feed.sequence_by == "source_position"
    if is_whole and by_source and feed.kind != "postgresql":
        events = with_rows_counted_on(events)
    sent = events.select(pl.col("position").struct.unnest())
    operands = [sent, *also, *positions_of_rows(rows, feed)]
    positions = Positions.of(operands, feed, offsets=events.get_column("offset"))
    indexed = indexed_events(events, positions, feed)
    damage = damaged(indexed) if is_whole and by_source else frozenset[int]()
    sound = indexed.filter(~pl.col("number").is_in([*damage])) if damage else indexed
    changes = _changes(sound, positions, feed, is_whole=is_whole)
    table = indexed_rows(rows, positions, feed, first=events.height)
    return Ordered(positions, sound, damage, *with_row_keys(changes, table, feed))


def with_repeated_events(changes: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """The changes with `is_repeated`: whether another change of the same event id comes first.

    Shards may have the same ids. `repeats_event`: of an outbox, whether an event of an earlier batch has the id.
    """
    if feed.envelope != "outbox":
        return changes.with_columns(is_repeated=pl.lit(False))
    event = ["shard", "event_id"]
    counts = ~pl.col("is_below_cutoff") & pl.col("event_id").is_not_null()
    firsts = changes.with_columns(first=pl.col("position").filter(counts).min().over(event))
    # A topic that was made again begins at offset 0 again, and a router may give an event the time of its row.
    is_first = pl.col("position") == pl.col("first")
    firsts = firsts.with_columns(first_id=pl.col("topic_id").filter(counts & is_first).min().over(event))
    is_other = ~(is_first & (pl.col("topic_id") == pl.col("first_id"))).fill_null(True)
    repeated = pl.col("event_id").is_not_null() & (is_other | pl.col("repeats_event"))
    return firsts.with_columns(is_repeated=repeated).drop("first", "first_id")


def _changes(sound: pl.DataFrame, positions: Positions, feed: Feed, *, is_whole: bool) -> pl.DataFrame:
    deletes = _no_moves()
    if is_whole or feed.sequence_by == "kafka_offset":
        deletes = deleting_tombstones(sound, positions, by_source=feed.sequence_by == "source_position")
    again = sent_again(sound, deletes, positions) if feed.sequence_by == "source_position" else _no_moves()
    moved = pl.concat([deletes.with_columns(deletes=pl.lit(True)), again.with_columns(deletes=pl.lit(False))])
    found = sound.filter((pl.col("kind") == "change") | pl.col("number").is_in(deletes.get_column("number").implode()))
    return (
        found.join(moved, on="number", how="left", maintain_order="left")
        .with_columns(
            sent_position=pl.col("position"),
            position=pl.coalesce("moved_to", "position"),
            deletes=pl.col("deletes").fill_null(False),
        )
        .with_columns(
            is_delete=pl.col("is_delete") | pl.col("deletes"),
            op=pl.when("deletes").then(pl.lit("d")).otherwise("op"),
        )
        .filter(pl.col("position").is_not_null())
        .drop("moved_to")
    )


def _no_moves() -> pl.DataFrame:
    return pl.DataFrame(schema={"number": pl.UInt32, "moved_to": pl.Int64})
