"""Columns that an event may leave out: each has its own latest change.

Partial payloads of an outbox name some columns only; a change of PostgreSQL does not send a large value that it did not
touch. A row keeps, for each such column, the position of the event that sent it (its version), and that of its own last
delete: so the table is a function of the set of events here too, however they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lakehouse.contracts.models import Feed
from silver.decode.reference.decoder import large_columns
from silver.fold.index import before_all_offsets, coordinates_of
from silver.fold.previous_keys import values_of_previous_keys


def versioned_columns(feed: Feed) -> tuple[str, ...]:
    """The columns that an event of this feed may leave out."""
    if feed.payload == "partial":
        return tuple(column for column in feed.columns if column not in feed.keys)
    return large_columns(feed)


def with_versions(latest: pl.DataFrame, live: pl.DataFrame, table: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """The rows with `deleted_at`, the versions of the columns that events may leave out, `unresolved`, `is_changed`."""
    versioned, is_partial = versioned_columns(feed), feed.payload == "partial"
    # The row that is below a cutoff goes by itself, with all others of the table.
    changed = ~pl.col("is_of_table")
    if not versioned:
        return latest.with_columns(is_changed=changed, deleted_at=pl.lit(None, pl.Int64))
    # There was no such row before a key was changed to this one: nothing older is of it.
    is_create = pl.col("old_key").is_not_null() & ~pl.col("is_below_cutoff") & ~pl.lit(is_partial)
    end = pl.when("is_delete").then("position").when(is_create).then(before_all_offsets())
    ends = pl.concat(
        [
            live.select("row_key", end.alias("end")),
            table.select("row_key", end=pl.when("is_below_cutoff").then("position").otherwise("deleted_at")),
        ]
    )
    deleted = ends.group_by("row_key").agg(pl.col("end").max().alias("deleted_at"))
    rows = latest.join(deleted, on="row_key", how="left", maintain_order="left")
    stands = pl.col("deleted_at").is_null() | (pl.col("version") > pl.col("deleted_at"))
    for column in versioned:
        sent = pl.concat(
            [
                live.filter(~pl.col("is_delete") & ~pl.col(f"missing:{column}")).select(
                    "row_key", version="position", number="number", is_of_table=pl.lit(False)
                ),
                table.filter(pl.col(f"version:{column}").is_not_null()).select(
                    "row_key", version=f"version:{column}", number="number", is_of_table=pl.lit(True)
                ),
            ]
        ).join(deleted, on="row_key", how="left")
        by = ["row_key", "version", "is_of_table", "number"]
        if feed.sequence_by == "source_position":
            # What is sent again at the same coordinates states nothing new.
            sent = sent.with_columns(coordinates=coordinates_of("version"))
            by = ["row_key", "coordinates", "is_of_table", "version", "number"]
        newest = (
            sent.filter(stands)
            .sort(by, descending=[name == "number" for name in by])
            .unique("row_key", keep="last", maintain_order=True)
        )
        rows = rows.join(
            newest.select(
                "row_key",
                pl.col("version").alias(f"version:{column}"),
                pl.col("number").alias(f"number:{column}"),
                pl.col("is_of_table").alias(f"is_of_table:{column}"),
            ),
            on="row_key",
            how="left",
            maintain_order="left",
        )
        changed |= ~pl.col(f"is_of_table:{column}").fill_null(True)
    known = table.select("row_key", table_deleted_at="deleted_at")
    rows = rows.join(known, on="row_key", how="left", maintain_order="left")
    # What a cutoff deletes of the table goes with all other rows below it.
    is_new_end = pl.col("is_known") & pl.col("deleted_at").ne_missing(pl.col("table_deleted_at"))
    changed |= is_new_end & ~pl.col("is_below_cutoff")
    rows = rows.with_columns(
        *[pl.when(~pl.col("is_delete")).then(f"version:{column}").alias(f"version:{column}") for column in versioned],
        *[pl.when(~pl.col("is_delete")).then(f"number:{column}").alias(f"number:{column}") for column in versioned],
        is_changed=changed & ~pl.col("is_kept"),
    )
    return rows if is_partial else _with_unresolved(rows, versioned)


def with_values_of_previous_keys(rows: pl.DataFrame, changes: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """The rows with the large values that previous keys have sent. `changes`: all of them, of all keys."""
    versioned = large_columns(feed)
    if feed.payload == "partial" or not versioned:
        return rows
    return _with_unresolved(values_of_previous_keys(rows, changes, versioned, feed), versioned)


def _with_unresolved(rows: pl.DataFrame, versioned: Sequence[str]) -> pl.DataFrame:
    missing = [pl.when(pl.col(f"version:{column}").is_null()).then(pl.lit(column)) for column in versioned]
    unresolved = pl.concat_list(missing).list.drop_nulls()
    is_unresolved = ~pl.col("is_delete") & (unresolved.list.len() > 0)
    return rows.with_columns(unresolved=pl.when(is_unresolved).then(unresolved))
