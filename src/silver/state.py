"""What silver remembers of a source's connector runs (`ops.connector_runs`): read before a batch, written after it.

One row a stretch, however many batches there were. Rules: CONNECTOR_RUNS in silver.ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.tables import Warehouse, small_table
from silver.ledger import CONNECTOR_RUNS, STRETCH, STRETCHES, column_names, job_name

_LOWEST = ("first_offset", "lowest", "first_ms", "read_from_ms")
_HIGHEST = ("last_offset", "highest", "read_to_ms", "highest_timestamp_ms")

Stored = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """The stretches of all feeds of a source before a batch, and which write (`generation`) left them so."""

    rows: Sequence[Stored] = ()
    generation: int = 0
    writer: str = ""
    number: int = 0

    def of_feed(self, feed: str) -> list[Stored]:
        """The rows of one feed."""
        return [row for row in self.rows if row["feed"] == feed]


def checkpoint_of(warehouse: Warehouse, source: str) -> str:
    """The identity of the checkpoint of the source's silver: another one when silver is rebuilt; empty without."""
    return warehouse.checkpoint_id(job_name(source)) or ""


def read_state(
    warehouse: Warehouse, source: str, *, checkpoint: str, writer: str | None = None, number: int | None = None
) -> State:
    """What this silver knows; for a batch (`writer`, `number`) what it knew before it, also when it is repeated."""
    found: dict[int, list[Stored]] = {}
    rows = warehouse.read(CONNECTOR_RUNS.name).where(f"source = '{source}'").collect()
    for row in rows:
        if row["checkpoint"] == checkpoint and (row["writer"], row["number"]) != (writer, number):
            found.setdefault(row["generation"], []).append(row.asDict())
    if not found:
        return State()
    last = found[max(found)]
    return State(last, max(found), last[0]["writer"], last[0]["number"])


def write_state(
    warehouse: Warehouse,
    state: State,
    counted: Iterable[Stored],
    source: str,
    *,
    checkpoint: str,
    writer: str,
    number: int,
) -> None:
    """Remember what a batch has counted (COUNTS), beside what was known before it."""
    new = [row for row in counted if row["feed"] is not None]
    if not new:
        return
    after = {"generation": state.generation + 1, "writer": writer, "number": number}
    before = {"generation": state.generation, "writer": state.writer, "number": state.number}
    known = [{**row, **before} for row in state.rows]
    rows = [*known, *[{**row, **after} for row in joined([*state.rows, *new])]]
    of_silver = {"source": source, "checkpoint": checkpoint}
    written = small_table(warehouse.spark, [{**row, **of_silver} for row in rows], CONNECTOR_RUNS.columns)
    warehouse.replace_source(CONNECTOR_RUNS.name, written, source=source)


def joined(rows: Iterable[Stored]) -> list[Stored]:
    """One row a stretch. The last record of a stretch is that with its highest offset."""
    found: dict[tuple[Any, ...], Stored] = {}
    for row in rows:
        at = row["snapshot_at"]
        identity = (row["feed"], *[row[name] for name in STRETCH[:-1]], None if at is None else tuple(at))
        found[identity] = _together(found[identity], row) if identity in found else _stretch(row)
    return list(found.values())


def _stretch(row: Stored) -> Stored:
    return {name: row[name] for name in column_names(STRETCHES)}


def _together(one: Stored, other: Stored) -> Stored:
    last = max(one, other, key=lambda row: row["last_offset"])
    absent = dict(one["absent_columns"])
    for column, times in other["absent_columns"].items():
        absent[column] = absent.get(column, 0) + times
    return {
        **one,
        **{name: _of(min, one[name], other[name]) for name in _LOWEST},
        **{name: _of(max, one[name], other[name]) for name in _HIGHEST},
        "has_end": one["has_end"] or other["has_end"],
        "source_names": sorted({*(one["source_names"] or ()), *(other["source_names"] or ())}),
        "last_key": last["last_key"],
        "last_is_delete": last["last_is_delete"],
        "leaving_out": one["leaving_out"] + other["leaving_out"],
        "judged": one["judged"] + other["judged"],
        "absent_columns": absent,
    }


def _of(choose: Any, one: Any, other: Any) -> Any:
    present = [value for value in (one, other) if value is not None]
    return choose(present) if present else None
