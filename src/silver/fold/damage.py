"""Positions that cannot be right: the rows of a binlog that are counted anew, and records that are damaged."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from silver.fold.index import coordinates_of

_LOG_EVENT = ["topic", "topic_id", "partition", "key", "epoch", "binlog_file", "binlog_pos"]


def with_rows_counted_on(events: pl.DataFrame) -> pl.DataFrame:
    """The events of MySQL or MariaDB with the number of their row as it would be if the log never began anew.

    Where the binlog is compressed, all changes of a transaction have one position, and `row` begins at 0 with each
    statement. So of a key's changes at one position one with a lower row comes behind all before it. A record that
    repeats an earlier one, by its row, operation and image, has the number of that.
    """
    numbered = events.with_row_index("number").with_columns(pl.col("position").struct.unnest())
    streamed = (
        numbered.filter((pl.col("kind") == "change") & pl.col("is_streamed") & pl.col("epoch").is_not_null())
        .select("number", *_LOG_EVENT, "offset", "binlog_row", "op", "image")
        .sort("offset", "number")
    )
    falls = streamed.filter(pl.col("binlog_row") < pl.col("binlog_row").cum_max().over(_LOG_EVENT))
    if falls.is_empty():
        return events
    counted: dict[int, int] = {}
    log_events: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = defaultdict(dict)
    affected = streamed.join(falls.select(_LOG_EVENT).unique(), on=_LOG_EVENT, how="semi", nulls_equal=True)
    for change in affected.sort("offset", "number").iter_rows(named=True):
        rows = log_events[tuple(change[name] for name in _LOG_EVENT)]
        record, row = (change["binlog_row"], change["op"], change["image"]), change["binlog_row"]
        if record not in rows:
            highest = max(rows.values(), default=-1)
            rows[record] = row if row >= highest else highest + 1
        counted[change["number"]] = rows[record]
    new = pl.DataFrame(
        {"number": [*counted], "counted": [*counted.values()]}, schema={"number": pl.UInt32, "counted": pl.Int64}
    )
    joined = numbered.select("number", "position").join(new, on="number", how="left", maintain_order="left")
    row = pl.coalesce("counted", pl.col("position").struct.field("binlog_row"))
    position = joined.select(pl.col("position").struct.with_fields(row.alias("binlog_row")))
    return events.with_columns(position.get_column("position"))


def damaged(events: pl.DataFrame) -> frozenset[int]:
    """The numbers of the events whose position is ahead of a later one of their key and run.

    In one run a partition has a key's changes in the order of the log, so the later one is right. What only repeats
    an earlier record, log coordinates and operation, states nothing; what repeats a damaged one is damaged too.
    """
    of_log = (pl.col("kind") == "change") & pl.col("is_streamed") & (pl.col("run_id") != "")
    same_record, same_run = ["topic_partition", "key", "op", "coordinates"], ["topic_partition", "key", "run_id"]
    streamed = (
        events.filter(of_log & pl.col("position").is_not_null())
        .select("number", "topic_partition", "key", "op", "run_id", "offset", "position", coordinates=coordinates_of())
        .with_columns(first_offset=pl.col("offset").min().over(same_record))
    )
    ahead = (
        streamed.filter(pl.col("offset") == pl.col("first_offset"))
        .sort("offset", descending=True)
        .with_columns(lowest_later=pl.col("position").cum_min().shift(1).over(same_run))
        .filter(pl.col("position") > pl.col("lowest_later"))
    )
    if ahead.is_empty():
        return frozenset()
    found = streamed.join(ahead.select(same_record).unique(), on=same_record, how="semi", nulls_equal=True)
    return frozenset(found.get_column("number"))
