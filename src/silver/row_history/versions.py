"""The versions of rows with their values: changes that leave the tracked columns as they are belong to one version.

Values are taken by number from the columns that they are in, as `silver.fold.rows` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts.models import Feed
from silver.fold.column_versions import versioned_columns
from silver.fold.index import Positions
from silver.fold.operands import table_row_types
from silver.fold.rows import Plan, concatenated, equal_values, event_index, position_array, same_values, taken
from silver.row_history.sequence import Sequence as Changes
from silver.row_history.sequence import sequence

_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Versions:
    """What events lead to: the `rows` of the history that are new or change, and `is_undecided` of each event."""

    rows: pa.Table
    is_undecided: pa.Array


def has_unresolved(feed: Feed) -> bool:
    """Whether a row of the feed may lack a value that no event has sent."""
    return bool(versioned_columns(feed)) and feed.payload != "partial"


def versions_of_all(events: pa.Table, plan: Plan) -> Versions:
    """All events of some keys (judged records), whatever the table has: all versions of each key."""
    events = events.combine_chunks()
    changes = sequence(event_index(events, plan), plan.feed, plan.every_cutoff)
    return _versions(changes, events, None, plan.feed)


def versions_of_batch(events: pa.Table, rows: pa.Table | None, plan: Plan) -> Versions:
    """The events of a batch, with the last versions (`rows`) that the table has of their keys.

    `rows`: None where it has none.
    """
    events = events.combine_chunks()
    if rows is not None:
        rows = rows.combine_chunks()
    changes = sequence(
        event_index(events, plan),
        plan.feed,
        plan.every_cutoff,
        is_whole=False,
        rows=None if rows is None else _index_of_rows(rows, plan.feed),
        same_values=None if rows is None else partial(same_values, events, rows, plan.feed),
    )
    return _versions(changes, events, rows, plan.feed)


def tracked_columns(feed: Feed) -> tuple[str, ...]:
    """The columns whose change begins a version: of the contract's, those of the row that are not left out."""
    of_row = [name for name, column in feed.columns.items() if name not in feed.keys and column.metadata is None]
    if feed.track_history_columns:
        return tuple(name for name in of_row if name in feed.track_history_columns)
    return tuple(name for name in of_row if name not in feed.track_history_except)


def _index_of_rows(rows: pa.Table, feed: Feed) -> pl.DataFrame:
    """The last versions as `sequence` takes them: they hold for all changes up to their last position."""
    kinds = table_row_types(feed)
    columns = {f"key:{key}": rows.column(key) for key in feed.keys}
    columns |= {"position": rows.column("_last_position"), "op": rows.column("_op")}
    columns |= {"is_delete": rows.column("_is_deleted")}
    columns |= {name: rows.column(f"_{name}") for name in ("topic", "partition", "offset")}
    frame = pl.DataFrame(pa.table(columns))
    absent = [pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in columns]
    known = {name: kind for name, kind in kinds.items() if kind is not None}
    return frame.with_columns(*absent).select([*kinds]).cast(known)  # type: ignore[arg-type]


def _versions(changes: Changes, events: pa.Table, rows: pa.Table | None, feed: Feed) -> Versions:
    found = changes.changes
    values = _Values(_columns(found, events, rows, feed), _unresolved(found, events.num_rows, rows, feed))
    is_new = ~_is_unchanged(found, values, feed)
    of_change = found.with_columns(
        is_new.alias("is_new"), _times(found, events, rows).alias("time"), pl.int_range(pl.len()).alias("at")
    ).with_columns(version=pl.col("is_new").cum_sum())
    versions = (
        of_change.group_by("version", maintain_order=True)
        .agg(
            pl.col(
                "row_key", "is_known", "position", "op", "is_delete", "number", "topic", "partition", "offset"
            ).first(),
            pl.col("time").first(),
            pl.col("at").last(),
            pl.col("position").last().alias("last_position"),
            pl.len().alias("changes"),
        )
        .with_columns(valid_from=pl.col("time").forward_fill().cum_max().over("row_key"))
        .with_columns(
            valid_to=pl.col("valid_from").shift(-1).over("row_key"),
            to_position=pl.col("position").shift(-1).over("row_key"),
        )
    )
    # A version that the table has may only end, or hold for more changes.
    versions = versions.filter(~pl.col("is_known") | pl.col("to_position").is_not_null() | (pl.col("changes") > 1))
    begins = _from_positions(versions, changes.positions, rows, feed, first=events.num_rows)
    table = _table(versions, changes.positions, values, begins, feed)
    is_undecided = pa.array([number in changes.undecided for number in range(events.num_rows)], pa.bool_())
    return Versions(table, is_undecided)


class _Values(NamedTuple):
    """After each change: the contract's columns; and by versioned column whether nothing has sent its value."""

    columns: Mapping[str, pa.Array]
    unresolved: Mapping[str, pl.Series]


def _columns(found: pl.DataFrame, events: pa.Table, rows: pa.Table | None, feed: Feed) -> dict[str, pa.Array]:
    """The contract's columns, after each change; of a delete the keys alone."""
    live = found.select(pl.when(~pl.col("is_delete")).then("number")).to_series()
    values = {}
    for column in feed.columns:
        numbers = found.get_column("key_number") if column in feed.keys else live
        if column in versioned_columns(feed):
            numbers = found.get_column(f"number:{column}")
        sent = concatenated(pc.struct_field(events.column("row"), column), rows, column)
        values[column] = taken(sent, numbers)
    return values


def _unresolved(found: pl.DataFrame, first: int, rows: pa.Table | None, feed: Feed) -> dict[str, pl.Series]:
    """By versioned column whether nothing has sent its value. `first`: the number of the first of `rows`."""
    if not has_unresolved(feed):
        return {}
    lacking: dict[int, Sequence[str]] = {}
    if rows is not None:
        listed = rows.column("_unresolved_columns").to_pylist()
        lacking = {first + at: columns for at, columns in enumerate(listed) if columns}
    unresolved = {}
    for column in versioned_columns(feed):
        of_rows = [number for number, columns in lacking.items() if column in columns]
        numbers = found.get_column(f"number:{column}")
        unresolved[column] = ~found.get_column("is_delete") & (numbers.is_null() | numbers.is_in(of_rows))
    return unresolved


def _is_unchanged(found: pl.DataFrame, values: _Values, feed: Feed) -> pl.Series:
    """Whether a change leaves its row as the one before it has it, in the columns that are tracked."""
    if found.height < 2:
        return pl.Series([False] * found.height, dtype=pl.Boolean)
    same = [
        pl.DataFrame(pa.table({"same": equal_values(values.columns[name][1:], values.columns[name][:-1])})).to_series()
        for name in tracked_columns(feed)
    ]
    for flags in (found.get_column("row_key"), found.get_column("is_delete"), *values.unresolved.values()):
        same.append(flags[1:] == flags[:-1])
    return pl.concat([pl.Series([False]), reduce(lambda one, other: one & other, same)])


def _times(found: pl.DataFrame, events: pa.Table, rows: pa.Table | None) -> pl.Series:
    """When each change was at the source, else in Kafka; of what the table has, from when on it is valid."""
    sent = pc.coalesce(events.column("source_ts").cast(_TIME), events.column("timestamp").cast(_TIME))
    sent = sent if isinstance(sent, pa.ChunkedArray) else pa.chunked_array([sent])
    times = pl.Series(taken(concatenated(sent, rows, "_valid_from"), found.get_column("number")))
    of_cutoffs = found.get_column("cutoff_ms").cast(pl.Datetime("ms", "UTC")).cast(pl.Datetime("us", "UTC"))
    return pl.select(pl.coalesce(times, of_cutoffs)).to_series()


def _from_positions(
    versions: pl.DataFrame, positions: Positions, rows: pa.Table | None, feed: Feed, *, first: int
) -> pa.Array:
    """Where each version begins. `first`: the number of the first of `rows`."""
    sent = pa.chunked_array([_positions(versions.get_column("position"), positions, feed)])
    at = pl.select(
        pl.when(versions.get_column("is_known"))
        .then(versions.get_column("number").cast(pl.Int64) - first + versions.height)
        .otherwise(pl.int_range(versions.height))
    ).to_series()
    return taken(concatenated(sent, rows, "_from_position"), at)


def _positions(codes: pl.Series, positions: Positions, feed: Feed) -> pa.Array:
    return position_array(positions.decode(codes), codes.is_null(), feed)


def _table(
    versions: pl.DataFrame, positions: Positions, values: _Values, from_positions: pa.Array, feed: Feed
) -> pa.Table:
    """The columns of the history table, but `_applied_at`."""
    at = versions.get_column("at")
    table = {column: taken(pa.chunked_array([array]), at) for column, array in values.columns.items()}
    table |= {
        "_from_position": from_positions,
        "_to_position": _positions(versions.get_column("to_position"), positions, feed),
        "_last_position": _positions(versions.get_column("last_position"), positions, feed),
        "_valid_from": versions.get_column("valid_from").to_arrow(),
        "_valid_to": versions.get_column("valid_to").to_arrow(),
        "_is_current": versions.get_column("to_position").is_null().to_arrow(),
        "_is_deleted": versions.get_column("is_delete").to_arrow(),
        "_op": versions.get_column("op").to_arrow().cast(pa.string()),
        "_topic": versions.get_column("topic").to_arrow().cast(pa.string()),
        "_partition": versions.get_column("partition").to_arrow(),
        "_offset": versions.get_column("offset").to_arrow(),
    }
    if has_unresolved(feed):
        flags = pl.DataFrame({name: one.gather(at) for name, one in values.unresolved.items()})
        names = pl.concat_list([pl.when(name).then(pl.lit(name)) for name in flags.columns]).list.drop_nulls()
        listed = flags.select(pl.when(names.list.len() > 0).then(names)).to_series()
        table["_unresolved_columns"] = listed.to_arrow().cast(pa.list_(pa.string()))
    return pa.table(table)
