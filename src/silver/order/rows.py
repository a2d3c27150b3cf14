"""The fold over Arrow: events and rows of the table in, changed rows with their values out.

Values are taken by number from the columns that they are in, so every type passes as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts.models import Feed
from silver.order.column_versions import versioned_columns
from silver.order.fold import Folded, fold
from silver.order.index import EVENT, position_types
from silver.order.operands import table_row_types
from silver.order.runs import Cutoff


@dataclass(frozen=True)
class FoldedTable:
    """What events lead to, in Arrow.

    `rows`: the changed rows, with the columns of the silver table but `_applied_at`. `outcomes`, `is_damaged`,
    `is_undecided`: of each event.
    """

    rows: pa.Table
    outcomes: pa.Array
    is_damaged: pa.Array
    is_undecided: pa.Array


@dataclass(frozen=True)
class Plan:
    """What a fold needs to know beside its operands: the same for all events of a batch.

    `cutoffs`: by shard. `purged_below`: the position below which a key that the table does not have is ignored.
    `has_unchanged`: whether any change of the feed has ever left a large value unchanged.
    """

    feed: Feed
    cutoffs: Mapping[str, Cutoff]
    purged_below: Cutoff | None = None
    has_unchanged: bool = False


def fold_all(events: pa.Table, plan: Plan) -> FoldedTable:
    """All events of some keys, whatever the table has: a row for each key.

    `events`: `event_columns` and the struct `row`.
    """
    events = events.combine_chunks()
    folded = fold(_index(events, plan.feed), plan.feed, plan.cutoffs)
    return _result(folded, events, None, plan.feed, folded.rows)


def fold_batch(events: pa.Table, rows: pa.Table | None, plan: Plan) -> FoldedTable:
    """The events of a batch with the `rows` that the table has of their keys (None: it has none): those that change."""
    events = events.combine_chunks()
    if rows is not None:
        rows = rows.combine_chunks()
    folded = fold(
        _index(events, plan.feed),
        plan.feed,
        plan.cutoffs,
        is_whole=False,
        rows=None if rows is None else _index_of_rows(rows, plan.feed),
        same_values=None if rows is None else partial(_same_values, events, rows, plan.feed),
        purged_below=plan.purged_below,
        has_unchanged=plan.has_unchanged,
    )
    return _result(folded, events, rows, plan.feed, folded.rows.filter(pl.col("is_changed")))


def _index(events: pa.Table, feed: Feed) -> pl.DataFrame:
    names = [*EVENT, "position", "repeats_event", "after_delete", "new_key", "left_out", "absent"]
    keys = {f"key_{key}": pc.struct_field(events.column("row"), key) for key in feed.keys}
    columns = {name: events.column(name) for name in names} | keys
    frame = _frame(pa.table(columns))
    missing = "absent" if feed.payload == "partial" else "left_out"
    flags = [pl.col(missing).list.contains(column).fill_null(False) for column in versioned_columns(feed)]
    return (
        frame.with_columns(
            *[flag.alias(f"missing_{column}") for flag, column in zip(flags, versioned_columns(feed), strict=True)],
            pl.col("position").cast(pl.Struct(position_types(feed))),
            has_unchanged=pl.col("left_out").list.len().fill_null(0) > 0,
        )
        .drop("left_out", "absent")
        .cast(pl.Schema(EVENT))
    )


def _index_of_rows(rows: pa.Table, feed: Feed) -> pl.DataFrame:
    """The table's rows (silver columns) as `silver.order.fold` takes them."""
    columns: dict[str, pa.ChunkedArray] = {f"key_{key}": rows.column(key) for key in feed.keys}
    columns |= {"position": rows.column("_position"), "op": rows.column("_op"), "is_delete": rows.column("_is_deleted")}
    columns |= {name: rows.column(f"_{name}") for name in ("topic", "partition", "offset")}
    frame = _frame(pa.table(columns))
    position = pl.Struct(position_types(feed))
    if versioned_columns(feed):
        versions = _frame(rows.select(["_column_versions", "_deleted_position"]))
        frame = frame.with_columns(
            versions.get_column("_deleted_position").alias("deleted_at"),
            *[
                versions.get_column("_column_versions").struct.field(column).alias(f"version_{column}")
                for column in versioned_columns(feed)
            ],
        )
    else:
        frame = frame.with_columns(deleted_at=pl.lit(None, position))
    kinds = {name: kind for name, kind in table_row_types(feed).items() if kind is not None}
    return frame.select([*table_row_types(feed)]).cast(kinds)  # type: ignore[arg-type]


def _frame(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(table)


def _result(folded: Folded, events: pa.Table, rows: pa.Table | None, feed: Feed, changed: pl.DataFrame) -> FoldedTable:
    numbers = range(events.num_rows)
    return FoldedTable(
        rows=_values(folded, events, rows, feed, changed),
        outcomes=folded.outcomes.to_arrow().cast(pa.string()),
        is_damaged=pa.array([number in folded.damaged for number in numbers], pa.bool_()),
        is_undecided=pa.array([number in folded.undecided for number in numbers], pa.bool_()),
    )


def _values(folded: Folded, events: pa.Table, rows: pa.Table | None, feed: Feed, changed: pl.DataFrame) -> pa.Table:
    """The silver columns of these rows; of a delete the keys and the technical ones alone."""
    last, is_delete = changed.get_column("last"), changed.get_column("is_delete")
    live = pl.select(pl.when(~is_delete).then(last)).to_series()
    of_event = pl.select(pl.when(~changed.get_column("is_below_cutoff")).then(last)).to_series()
    versioned = versioned_columns(feed)
    found: dict[str, pa.Array] = {}
    for column in feed.columns:
        numbers = last if column in feed.keys else live
        if column in versioned:
            numbers = changed.get_column(f"number_{column}")
        found[column] = _taken(_column(events, rows, column), numbers)
    found |= {
        "_position": _positions(folded, changed.get_column("position"), feed),
        "_op": changed.get_column("op").to_arrow().cast(pa.string()),
        "_is_deleted": is_delete.to_arrow(),
        "_source_ts": _taken(_concat(events.column("source_ts"), rows, "_source_ts"), of_event),
        "_topic": changed.get_column("topic").to_arrow().cast(pa.string()),
        "_partition": changed.get_column("partition").to_arrow(),
        "_offset": changed.get_column("offset").to_arrow(),
    }
    if versioned:
        versions = [_positions(folded, changed.get_column(f"version_{column}"), feed) for column in versioned]
        found["_column_versions"] = pa.StructArray.from_arrays(versions, names=list(versioned))
        found["_deleted_position"] = _positions(folded, changed.get_column("deleted_at"), feed)
        if feed.payload != "partial":
            unresolved = changed.get_column("unresolved").to_arrow()
            found["_unresolved_columns"] = unresolved.cast(pa.list_(pa.string()))
    return pa.table(found)


def _positions(folded: Folded, positions: pl.Series, feed: Feed) -> pa.Array:
    fields = folded.positions.decode(positions)
    kinds = {name: _ARROW.get(kind, pa.int64()) for name, kind in position_types(feed).items()}
    arrays = [fields.get_column(name).to_arrow().cast(kind) for name, kind in kinds.items()]
    return pa.StructArray.from_arrays(arrays, names=list(kinds), mask=positions.is_null().to_arrow())


_ARROW = {pl.String: pa.string(), pl.Int32: pa.int32()}


def _column(events: pa.Table, rows: pa.Table | None, column: str) -> pa.ChunkedArray:
    return _concat(pc.struct_field(events.column("row"), column), rows, column)


def _concat(values: pa.ChunkedArray, rows: pa.Table | None, column: str) -> pa.ChunkedArray:
    """The values of the events, and behind them those of the table's rows."""
    if rows is None:
        return values
    return pa.chunked_array([*values.chunks, *rows.column(column).cast(values.type).chunks], values.type)


def _taken(values: pa.ChunkedArray, numbers: pl.Series) -> pa.Array:
    taken = values.take(numbers.cast(pl.Int64).to_arrow())
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _same_values(events: pa.Table, rows: pa.Table, feed: Feed, numbers: pl.Series, of_rows: pl.Series) -> pl.Series:
    """Whether an event and a row of the table say the same, but for metadata and columns with versions of their own."""
    apart = {*feed.keys, *versioned_columns(feed)}
    plain = [name for name, one in feed.columns.items() if name not in apart and one.metadata is None]
    here = (of_rows.cast(pl.Int64) - events.num_rows).to_arrow()
    same = pa.array([True] * len(numbers), pa.bool_())
    for name in plain:
        sent = pc.struct_field(events.column("row"), name).take(numbers.cast(pl.Int64).to_arrow())
        kept = rows.column(name).cast(sent.type).take(here)
        same = pc.and_(same, _equal(sent, kept))
    return _frame(pa.table({"same": same})).get_column("same")


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    """As Spark's `<=>`: NULL is equal to NULL, and NaN to NaN."""
    if pa.types.is_nested(one.type):
        return pa.array([a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], pa.bool_())
    equal = pc.fill_null(pc.equal(one, other), False)
    both = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
    nan_and_null = pc.xor(pc.is_null(one), pc.is_null(other))
    found = pc.or_(equal, pc.and_(both, pc.invert(nan_and_null)))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def event_columns() -> Sequence[str]:
    """The columns of an event that `fold_all` and `fold_batch` take, beside its `row`."""
    return (*EVENT, "position", "repeats_event", "after_delete", "new_key", "left_out", "absent", "source_ts")
