"""Tombstones that delete: compaction leaves of a deleted key its tombstone alone; flattened topics may have no other.

A tombstone carries the header of its run. It stands right behind what its run, and earlier ones, have sent of its key,
never behind a later run's. One worker has one clock: a tombstone that is older than an earlier record of its key and
run was sent again, and so was one with the timestamp of an earlier tombstone.
"""

from __future__ import annotations

import polars as pl

from lakehouse.contracts.models import Feed
from silver.fold.index import OFFSET_BITS, Positions, before_all_offsets, coordinates_of

_KEY = ["topic_partition", "key"]
_RUN = [*_KEY, "run_id"]
_STATES = pl.col("kind").is_in(["change", "quarantined"])
_IS_TOMBSTONE = (pl.col("kind") == "tombstone") & pl.col("has_row_key")
_BEGINS = pl.when(pl.col("run_id") != "").then(pl.col("run_from").fill_null(0)).otherwise(0)


def deleting_tombstones(events: pl.DataFrame, positions: Positions, *, by_source: bool) -> pl.DataFrame:
    """`number` of the tombstones that no delete of their run precedes, and `moved_to`, the position where they stand.

    `by_source`: whether records have positions in the source's log; else a tombstone stands at its own, and
    `after_delete` says whether the record just before the batch deletes its key.
    """
    records = _in_order(events)
    if records.is_empty():
        return pl.DataFrame(schema={"number": pl.UInt32, "moved_to": pl.Int64})
    follows = pl.when(_STATES).then("is_delete").forward_fill().over(_KEY)
    if not by_source:
        lone = records.with_columns(follows=follows.fill_null(pl.col("after_delete"))).filter(
            _IS_TOMBSTONE & ~pl.col("follows").fill_null(False) & pl.col("position").is_not_null()
        )
        return lone.select("number", moved_to="position")
    of_run = _latest_of_run(records, positions).with_columns(follows=follows)
    first_sent = pl.col("offset").filter(_IS_TOMBSTONE).min().over([*_RUN, "timestamp_ms"])
    is_repeat = first_sent < pl.col("offset")
    is_older = (pl.col("run_latest_ms") > pl.col("timestamp_ms").fill_null(0)).fill_null(False)
    is_next = pl.col("run_is_deleted") & (pl.col("run_highest_offset") == pl.col("offset") - 1)
    is_out = pl.when(pl.col("run_id") != "").then(is_older | is_next).otherwise(pl.col("follows").fill_null(False))
    candidates = of_run.with_columns(is_out=is_out | is_repeat).filter(_IS_TOMBSTONE & ~pl.col("is_out"))
    earlier = records.filter(_STATES & pl.col("position").is_not_null()).select(
        *_KEY, "run_id", "offset", "position", begins=_BEGINS
    )
    joined = candidates.with_columns(begins=_BEGINS).join(earlier, on=_KEY, how="inner", nulls_equal=True)
    is_before = pl.col("offset_right") < pl.col("offset")
    is_of_run = (pl.col("run_id") == pl.col("run_id_right")) | (pl.col("begins_right") <= pl.col("begins"))
    behind = (
        joined.filter(is_before & (is_of_run | (pl.col("run_id") == "")))
        .group_by("number")
        .agg(pl.col("position_right").max().alias("highest"))
    )
    found = candidates.join(behind, on="number", how="inner")
    # A delete that only replays one before an earlier run's latest change: compaction has removed the tombstone's own.
    is_own_delete = pl.col("run_is_deleted") & (coordinates_of("highest") == coordinates_of("run_highest"))
    found = found.filter((pl.col("run_id") == "") | ~is_own_delete)
    return found.select("number", moved_to=before_all_offsets("highest") + positions.offset_codes(found["offset"]))


def sent_again(events: pl.DataFrame, deletes: pl.DataFrame, positions: Positions) -> pl.DataFrame:
    """`number` of the changes sent again behind a tombstone that has deleted them, and `moved_to`: just before it.

    They are at the same coordinates, and of an earlier run, or of the tombstone's and older.
    """
    if deletes.is_empty():
        return deletes
    millis = pl.col("timestamp_ms").fill_null(0)
    of_key = [*_KEY, "coordinates"]
    tombstones = events.join(deletes, on="number", how="inner").select(
        *_KEY, "run_id", "offset", millis=millis, begins=_BEGINS, coordinates=coordinates_of("moved_to")
    )
    changes = events.filter((pl.col("kind") == "change") & (pl.col("run_id") != "")).select(
        "number", *_KEY, "run_id", "offset", millis=millis, begins=_BEGINS, coordinates=coordinates_of()
    )
    joined = changes.join(tombstones, on=of_key, how="inner", nulls_equal=True)
    is_older = (
        pl.when(pl.col("run_id") == pl.col("run_id_right"))
        .then(pl.col("millis") < pl.col("millis_right"))
        .otherwise(pl.col("begins") < pl.col("begins_right"))
    )
    found = (
        joined.filter((pl.col("offset_right") < pl.col("offset")) & is_older & pl.col("coordinates").is_not_null())
        .sort("offset_right")
        .unique("number", keep="first", maintain_order=True)
    )
    code = positions.offset_codes(found.get_column("offset_right")) - 1
    return found.select("number", moved_to=pl.col("coordinates") * (1 << OFFSET_BITS) + code)


def lone_tombstones(events: pl.DataFrame, table: pl.DataFrame, feed: Feed) -> frozenset[int]:
    """The numbers of the tombstones that may delete their key: they are not just behind a delete that is the latest
    change of their run, and the key is live, in the batch before them or in the `table`.
    """
    records = _in_order(events)
    if records.is_empty():
        return frozenset()
    highest = pl.when(_STATES & pl.col("position").is_not_null()).then(
        pl.col("position") * 2 + pl.col("is_delete").cast(pl.Int64)
    )
    is_sent = pl.when(_STATES & ~pl.col("is_delete")).then(pl.lit(1)).forward_fill().over(_KEY).is_not_null()
    records = records.with_columns(
        run_highest=highest.cum_max().forward_fill().over(_RUN), is_sent=is_sent, own_highest=highest
    )
    deletes_before = records.filter(_STATES & pl.col("is_delete")).select(
        *_RUN, pl.col("own_highest").alias("run_highest"), delete_offset="offset"
    )
    names = [f"key:{key}" for key in feed.keys]
    live = table.filter(~pl.col("is_delete")).select(
        *names,
        topic=pl.col("topic"),
        partition=pl.col("partition"),
        row_offset="offset",
    )
    tombstones = (
        records.filter(_IS_TOMBSTONE)
        .join(
            deletes_before.unique([*_RUN, "run_highest"], keep="last"),
            on=[*_RUN, "run_highest"],
            how="left",
            nulls_equal=True,
        )
        .filter(~(pl.col("delete_offset") == pl.col("offset") - 1).fill_null(False))
        .join(live, on=[*names, "topic", "partition"], how="left")
    )
    is_known = pl.col("is_sent") | (pl.col("row_offset") < pl.col("offset")).fill_null(False)
    return frozenset(tombstones.filter(is_known).get_column("number"))


def _in_order(events: pl.DataFrame) -> pl.DataFrame:
    """The events of keys with tombstones, in the order of their offsets."""
    keys = events.filter(_IS_TOMBSTONE).select(_KEY).unique()
    return events.join(keys, on=_KEY, how="semi", nulls_equal=True).sort("offset", "number")


def _latest_of_run(records: pl.DataFrame, positions: Positions) -> pl.DataFrame:
    """The records with what their run has sent of their key before them.

    `run_latest_ms`, its latest timestamp; `run_highest`, the highest position, with its `run_highest_offset`; and
    `run_is_deleted`: whether that is a delete. What is quarantined without a position is read: it ends a delete.
    """
    with_position = _STATES & pl.col("position").is_not_null()
    sent = pl.col("position") * 2 + pl.col("is_delete").cast(pl.Int64)
    found = records.with_columns(
        run_latest_ms=pl.when(_STATES).then(pl.col("timestamp_ms").fill_null(0)).cum_max().forward_fill().over(_RUN),
        run_sent=pl.when(with_position).then(sent).cum_max().forward_fill().over(_RUN),
        run_unpositioned=pl.when(_STATES & pl.col("position").is_null())
        .then("offset")
        .cum_max()
        .forward_fill()
        .over(_RUN),
    ).with_columns(run_highest=pl.col("run_sent") // 2)
    offsets = positions.offsets_of(found.get_column("run_highest").fill_null(0))
    found = found.with_columns(run_highest_offset=pl.when(pl.col("run_sent").is_not_null()).then(offsets))
    is_delete = (pl.col("run_sent") % 2 == 1) & (
        pl.col("run_highest_offset") > pl.col("run_unpositioned").fill_null(-1)
    )
    return found.with_columns(run_is_deleted=is_delete.fill_null(False))
