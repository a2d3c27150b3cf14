"""The fold over Arrow: the events of some keys in, what became of each event and the keys' rows out.

`fold` names the records that a row's values are of; here the values are taken from them, column by column, as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.contracts import Feed
from silver.order.fold import PlacedEvent, Row, RowKey, cells_of, fold
from silver.order.position import Position
from silver.order.runs import Cutoff

# The columns of an event, as `fold_table` takes them, beside its `row`.
EVENT = (
    *("topic", "topic_id", "partition", "offset", "key", "key_text", "run_id", "kind", "op", "is_delete"),
    *("is_streamed", "is_replay", "position", "event_id", "old_key", "passed_over", "source_ts"),
)
_AS_THEY_ARE = tuple(name for name in EVENT if name not in {"position", "source_ts"})


def fold_table(events: pa.Table, *, feed: Feed, cutoffs: Mapping[str, Cutoff]) -> pa.Table:
    """A row an event: its coordinates, `outcome`, `is_damaged`; and where it is the last of its key, the key's `latest`
    row, with the columns of the silver table.

    `events`: EVENT and `row`; all events of these keys. `cutoffs`: `History.cutoff_by_shard`.
    """
    events = events.combine_chunks()
    folded = fold(_placed(events, feed), feed, cutoffs)
    rows: list[Row | None] = [None] * events.num_rows
    for row in folded.rows.values():
        rows[row.last.number] = row
    numbers = range(events.num_rows)
    columns: dict[str, Any] = {name: events.column(name) for name in ("topic", "topic_id", "partition", "offset")}
    columns["outcome"] = pa.array([folded.outcomes.get(number) for number in numbers], pa.string())
    columns["is_damaged"] = pa.array([number in folded.damaged for number in numbers], pa.bool_())
    latest = _latest(events, rows, feed)
    is_absent = pa.array([row is None for row in rows], pa.bool_())
    columns["latest"] = pa.StructArray.from_arrays(list(latest.values()), names=list(latest), mask=is_absent)
    return pa.table(columns)


def _placed(events: pa.Table, feed: Feed) -> list[PlacedEvent]:
    of_event = [events.column(name).to_pylist() for name in _AS_THEY_ARE]
    keys = zip(*(_of_row(events, key).to_pylist() for key in feed.keys), strict=True)
    return [
        PlacedEvent(
            **dict(zip(_AS_THEY_ARE, one, strict=True)),
            position=None if position is None else tuple(position.values()),
            row_key=_row_key(key),
        )
        for *one, position, key in zip(*of_event, events.column("position").to_pylist(), keys, strict=True)
    ]


def _row_key(key: RowKey) -> RowKey | None:
    return None if None in key else key


def _latest(events: pa.Table, rows: Sequence[Row | None], feed: Feed) -> dict[str, pa.Array]:
    """The silver columns of the rows; of a delete the keys and the technical ones alone."""
    last = [None if row is None else row.last for row in rows]
    of_key = [None if one is None else one.number for one in last]
    of_live = [None if one is None or one.is_delete else one.number for one in last]
    of_event = [None if one is None or one.is_below_cutoff else one.number for one in last]
    cells = cells_of(feed)
    found: dict[str, pa.Array] = {}
    for column in feed.columns:
        numbers = of_key if column in feed.keys else of_live
        if column in cells:
            numbers = [None if row is None else _number(row, column) for row in rows]
        found[column] = _taken(_of_row(events, column), numbers)
    kind = events.column("position").type
    position = pa.struct([(kind.field(number).name, kind.field(number).type) for number in range(kind.num_fields)])
    found |= {
        "_position": _positions([None if one is None else one.position for one in last], position),
        "_op": pa.array([one and one.op for one in last], pa.string()),
        "_is_deleted": pa.array([one and one.is_delete for one in last], pa.bool_()),
        "_source_ts": _taken(events.column("source_ts"), of_event),
        "_topic": pa.array([one and one.at[0] for one in last], pa.string()),
        "_partition": pa.array([one and one.at[1] for one in last], pa.int32()),
        "_offset": pa.array([one and one.at[2] for one in last], pa.int64()),
    }
    if cells:
        stated = [
            _positions([None if row is None else _position(row, cell) for row in rows], position) for cell in cells
        ]
        found["_cell_positions"] = pa.StructArray.from_arrays(stated, names=list(cells))
        found["_deleted_position"] = _positions([None if row is None else row.deleted_at for row in rows], position)
        if feed.payload != "partial":
            lists = [None if row is None else list(row.unresolved) or None for row in rows]
            found["_unresolved_columns"] = pa.array(lists, pa.list_(pa.string()))
    return found


def _number(row: Row, column: str) -> int | None:
    cell = row.cells[column]
    return None if cell is None else cell[0]


def _position(row: Row, column: str) -> Position | None:
    cell = row.cells[column]
    return None if cell is None else cell[1]


def _positions(positions: Sequence[Position | None], kind: pa.StructType) -> pa.Array:
    names = [kind.field(number).name for number in range(kind.num_fields)]
    return pa.array([None if one is None else dict(zip(names, one, strict=True)) for one in positions], kind)


def _of_row(events: pa.Table, column: str) -> pa.ChunkedArray:
    return pc.struct_field(events.column("row"), column)


def _taken(values: pa.ChunkedArray, numbers: Sequence[int | None]) -> pa.Array:
    taken = values.take(pa.array(numbers, pa.int64()))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken
