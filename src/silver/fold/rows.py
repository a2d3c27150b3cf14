"""The fold over Arrow: events and rows of the table in, changed rows with their values out.

Values are taken by number from the columns that they are in, so every type passes as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts.models import Feed
from lakehouse.kafka.ranges import TOPIC_PARTITION
from silver.fold.column_versions import versioned_columns
from silver.fold.erased import ErasedKeys, with_late_events
from silver.fold.fold import Folded, fold
from silver.fold.index import EVENT, position_types
from silver.fold.operands import table_row_types
from silver.order.facts import key_hash
from silver.order.narrow_events import log_columns
from silver.order.positions import PositionContexts, add_coordinates, add_positions
from silver.order.runs import Cutoff, TopicPartition


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

    `position_contexts`: what is known of every topic-partition (`History.position_contexts`). `cutoffs`: by shard.
    `purged_below`: the position below which a key that the table does not have is ignored. `has_unchanged`: whether any
    change of the feed has ever left a large value unchanged. `damaged`: topic, topic id, partition and offset of
    records that were found damaged before. `deleted_last`: by topic-partition the hash (`silver.order.facts.key_hash`)
    of the key that the last record before the batch deletes. `every_cutoff`: each with its shard, where the table keeps
    the history of its rows. `erased`: the keys whose rows were erased.
    """

    feed: Feed
    position_contexts: PositionContexts
    cutoffs: Mapping[str, Cutoff]
    purged_below: Cutoff | None = None
    has_unchanged: bool = False
    damaged: Collection[tuple[str, str, int, int]] = ()
    deleted_last: Mapping[TopicPartition, int] = field(default_factory=dict)
    every_cutoff: Sequence[tuple[str, Cutoff]] = ()
    erased: ErasedKeys | None = None


# The columns of a judged record that are folded, beside its `row` and `position_columns`. `image` (a hash of it),
# `key_text` and `repeats_event` may be absent.
JUDGED = (
    *("topic", "topic_id", "partition", "offset", "timestamp", "key", "run_id", "kind", "op", "is_delete", "event_id"),
    *("old_key", "new_key", "read_ms", "source_ts", "unchanged_toast", "absent"),
)
MAY_BE_ABSENT = {"image": pa.int64(), "key_text": pa.string(), "repeats_event": pa.bool_()}


def position_columns(feed: Feed) -> list[str]:
    """The columns of a judged record that say where it is in the log of its source."""
    return [name for name in log_columns(feed.kind) if name != "source_name"]


def positioned_table(records: pa.Table, feed: Feed, position_contexts: PositionContexts) -> pa.Table:
    """The records with `position`, `is_streamed`, `is_replay` and `run_from`."""
    positioned = _positions_of(records, feed, position_contexts)
    fields = positioned.select(pl.col("position").struct.unnest())
    added = {
        "position": position_array(fields, positioned.get_column("position").is_null(), feed),
        **{name: positioned.get_column(name).to_arrow() for name in ("is_streamed", "is_replay", "run_from")},
    }
    for name, array in added.items():
        records = records.append_column(name, array)
    return records


def position_contexts_after(records: pa.Table, position_contexts: PositionContexts) -> PositionContexts:
    """What is known of the topic-partitions after these records: the highest timestamp so far."""
    times = pl.DataFrame(records.select([*TOPIC_PARTITION, "timestamp"]))
    highest = times.group_by(TOPIC_PARTITION).agg(pl.col("timestamp").dt.epoch("ms").max())
    found = {of_row[:-1]: of_row[-1] for of_row in highest.iter_rows()}

    def highest_of(topic_partition: Mapping[str, Any]) -> int | None:
        both = (
            topic_partition["highest_timestamp_ms"],
            found.get(tuple(topic_partition[name] for name in TOPIC_PARTITION)),
        )
        return max((one for one in both if one is not None), default=None)

    return [
        {**topic_partition, "highest_timestamp_ms": highest_of(topic_partition)}
        for topic_partition in position_contexts
    ]


def _positions_of(records: pa.Table, feed: Feed, position_contexts: PositionContexts) -> pl.DataFrame:
    names = ["topic", "topic_id", "partition", "offset", "timestamp", "run_id", "read_ms", *position_columns(feed)]
    names += [name for name in ("highest_timestamp_ms",) if name in records.column_names]
    frame = _frame(records.select(names)).with_columns(timestamp_ms=pl.col("timestamp").dt.epoch("ms"))
    positioned = add_positions(add_coordinates(frame, feed), feed, position_contexts)
    return positioned.with_columns(is_streamed=pl.col("streamed") == 1)


def fold_all(events: pa.Table, plan: Plan) -> FoldedTable:
    """All events of some keys (judged records), whatever the table has: a row for each key."""
    events = events.combine_chunks()
    folded = fold(event_index(events, plan), plan.feed, plan.cutoffs)
    return _result(folded, events, None, plan.feed, folded.rows)


def fold_batch(events: pa.Table, rows: pa.Table | None, plan: Plan) -> FoldedTable:
    """The events of a batch (judged records), with the `rows` that the table has of their keys; the rows that change.

    `rows`: None where it has none.
    """
    events = events.combine_chunks()
    if rows is not None:
        rows = rows.combine_chunks()
    folded = fold(
        event_index(events, plan),
        plan.feed,
        plan.cutoffs,
        is_whole=False,
        rows=None if rows is None else _index_of_rows(rows, plan.feed),
        same_values=None if rows is None else partial(same_values, events, rows, plan.feed),
        purged_below=plan.purged_below,
        has_unchanged=plan.has_unchanged,
    )
    return _result(folded, events, rows, plan.feed, folded.rows.filter(pl.col("is_changed")))


def event_index(events: pa.Table, plan: Plan) -> pl.DataFrame:
    """Judged records as `silver.fold.fold` takes them."""
    feed, rows = plan.feed, events.num_rows
    columns = {name: events.column(name) for name in JUDGED if name not in ("timestamp", "read_ms")}
    columns |= {f"key:{key}": pc.struct_field(events.column("row"), key) for key in feed.keys}
    known = {name: kind for name, kind in MAY_BE_ABSENT.items() if name in events.column_names}
    columns |= {name: events.column(name).cast(kind) for name, kind in known.items()}
    columns |= {name: pa.nulls(rows, kind) for name, kind in MAY_BE_ABSENT.items() if name not in known}
    missing = "absent" if feed.payload == "partial" else "unchanged_toast"
    flags = [pl.col(missing).list.contains(column).fill_null(False) for column in versioned_columns(feed)]
    positioned = _placed(events, plan)
    frame = _frame(pa.table(columns)).with_columns(
        *[flag.alias(f"missing:{column}") for flag, column in zip(flags, versioned_columns(feed), strict=True)],
        *positioned.select("is_streamed", "is_replay", "run_from", "timestamp_ms").get_columns(),
        positioned.get_column("position").cast(pl.Struct(position_types(feed))),
        has_unchanged=pl.col("unchanged_toast").list.len().fill_null(0) > 0,
        repeats_event=pl.col("repeats_event").fill_null(False),
    )
    frame = with_late_events(_with_damage(_with_last_deletes(frame, plan), plan), plan.erased, feed)
    return frame.drop("unchanged_toast", "absent").cast(pl.Schema(EVENT))


def _placed(events: pa.Table, plan: Plan) -> pl.DataFrame:
    """The positions of the events, which they have already where more than they themselves was asked for them."""
    if "position" not in events.column_names:
        return _positions_of(events, plan.feed, plan.position_contexts)
    names = ["position", "is_streamed", "is_replay", "run_from", "timestamp"]
    return _frame(events.select(names)).with_columns(timestamp_ms=pl.col("timestamp").dt.epoch("ms"))


def _with_last_deletes(frame: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """With `after_delete`: whether the last record before the batch, of their topic-partition, deletes their key."""
    if not plan.deleted_last:
        return frame.with_columns(after_delete=pl.lit(False))
    records = frame.select("topic", "topic_id", "partition", "kind", "key").iter_rows()
    marks = [
        kind == "tombstone" and plan.deleted_last.get((topic, topic_id, partition), "") == key_hash(key)
        for topic, topic_id, partition, kind, key in records
    ]
    return frame.with_columns(pl.Series("after_delete", marks, dtype=pl.Boolean))


def _with_damage(frame: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """The changes that were found damaged before as such."""
    if not plan.damaged:
        return frame
    names = ["topic", "topic_id", "partition", "offset"]
    kinds = {name: frame.schema[name] for name in names}
    known = pl.DataFrame([*plan.damaged], schema=kinds, orient="row").unique().with_columns(is_damaged=pl.lit(True))
    joined = frame.join(known, on=names, how="left", maintain_order="left")
    is_damaged = pl.col("is_damaged").fill_null(False) & (pl.col("kind") == "change")
    kind = pl.when(is_damaged).then(pl.lit("damaged")).otherwise("kind")
    return joined.with_columns(kind.alias("kind")).drop("is_damaged")


def _index_of_rows(rows: pa.Table, feed: Feed) -> pl.DataFrame:
    """The table's rows (silver columns) as `silver.fold.fold` takes them."""
    columns: dict[str, pa.ChunkedArray] = {f"key:{key}": rows.column(key) for key in feed.keys}
    columns |= {"position": rows.column("_position"), "op": rows.column("_op"), "is_delete": rows.column("_is_deleted")}
    columns |= {name: rows.column(f"_{name}") for name in ("topic", "partition", "offset")}
    frame = _frame(pa.table(columns))
    position = pl.Struct(position_types(feed))
    if versioned_columns(feed):
        versions = _frame(rows.select(["_column_versions", "_deleted_position"]))
        frame = frame.with_columns(
            versions.get_column("_deleted_position").alias("deleted_at"),
            *[
                versions.get_column("_column_versions").struct.field(column).alias(f"version:{column}")
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
            numbers = changed.get_column(f"number:{column}")
        found[column] = taken(_column(events, rows, column), numbers)
    found |= {
        "_position": _positions(folded, changed.get_column("position"), feed),
        "_op": changed.get_column("op").to_arrow().cast(pa.string()),
        "_is_deleted": is_delete.to_arrow(),
        "_source_ts": taken(concatenated(events.column("source_ts"), rows, "_source_ts"), of_event),
        "_topic": changed.get_column("topic").to_arrow().cast(pa.string()),
        "_partition": changed.get_column("partition").to_arrow(),
        "_offset": changed.get_column("offset").to_arrow(),
    }
    if versioned:
        versions = [_positions(folded, changed.get_column(f"version:{column}"), feed) for column in versioned]
        found["_column_versions"] = pa.StructArray.from_arrays(versions, names=list(versioned))
        found["_deleted_position"] = _positions(folded, changed.get_column("deleted_at"), feed)
        if feed.payload != "partial":
            unresolved = changed.get_column("unresolved").to_arrow()
            found["_unresolved_columns"] = unresolved.cast(pa.list_(pa.string()))
    return pa.table(found)


def _positions(folded: Folded, positions: pl.Series, feed: Feed) -> pa.Array:
    return position_array(folded.positions.decode(positions), positions.is_null(), feed)


def position_array(fields: pl.DataFrame, is_absent: pl.Series, feed: Feed) -> pa.Array:
    """Positions as structs, with these fields."""
    kinds = {name: _ARROW.get(kind, pa.int64()) for name, kind in position_types(feed).items()}
    arrays = [fields.get_column(name).to_arrow().cast(kind) for name, kind in kinds.items()]
    return pa.StructArray.from_arrays(arrays, names=list(kinds), mask=is_absent.to_arrow())


_ARROW = {pl.String: pa.string(), pl.Int32: pa.int32()}


def _column(events: pa.Table, rows: pa.Table | None, column: str) -> pa.ChunkedArray:
    return concatenated(pc.struct_field(events.column("row"), column), rows, column)


def concatenated(values: pa.ChunkedArray, rows: pa.Table | None, column: str) -> pa.ChunkedArray:
    """The values of the events, and behind them those of the table's rows."""
    if rows is None:
        return values
    return pa.chunked_array([*values.chunks, *rows.column(column).cast(values.type).chunks], values.type)


def taken(values: pa.ChunkedArray, numbers: pl.Series) -> pa.Array:
    """The values with these numbers; null where there is none."""
    found = values.take(numbers.cast(pl.Int64).to_arrow())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def same_values(events: pa.Table, rows: pa.Table, feed: Feed, numbers: pl.Series, of_rows: pl.Series) -> pl.Series:
    """Whether an event and a row of the table say the same, but for metadata and columns with versions of their own."""
    apart = {*feed.keys, *versioned_columns(feed)}
    plain = [name for name, one in feed.columns.items() if name not in apart and one.metadata is None]
    here = (of_rows.cast(pl.Int64) - events.num_rows).to_arrow()
    same = pa.array([True] * len(numbers), pa.bool_())
    for name in plain:
        sent = pc.struct_field(events.column("row"), name).take(numbers.cast(pl.Int64).to_arrow())
        kept = rows.column(name).cast(sent.type).take(here)
        same = pc.and_(same, equal_values(sent, kept))
    return _frame(pa.table({"same": same})).get_column("same")


def equal_values(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    """As Spark's `<=>`: NULL is equal to NULL, and NaN to NaN."""
    if pa.types.is_nested(one.type):
        return pa.array([a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], pa.bool_())
    equal = pc.fill_null(pc.equal(one, other), False)
    both = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
    nan_and_null = pc.xor(pc.is_null(one), pc.is_null(other))
    found = pc.or_(equal, pc.and_(both, pc.invert(nan_and_null)))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
