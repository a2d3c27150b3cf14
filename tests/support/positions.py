"""Where one change is in its source's history: the oracle of silver.order.positions. Rules: docs/ordering.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from lakehouse.contracts.topics import SourceKind
from silver.decode.reference.message import NUMBERS_OF_SOURCE, Source
from silver.order.narrow_events import read_log_columns
from silver.order.position import Position
from silver.order.runs import Coordinates

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_BINLOG_NUMBER = re.compile(r"[.]([0-9]+)$")
# The last field of a position just before a record with the same log coordinates.
BEFORE_ALL_OFFSETS = -1


class Run(NamedTuple):
    """A connector run in a topic-partition: its epoch, first offset, and up to where it repeats earlier runs."""

    epoch: int | None
    from_offset: int
    repeats_to: Coordinates | None


class Snapshot(NamedTuple):
    """A full snapshot of PostgreSQL in a topic-partition."""

    run_id: str
    epoch: int
    from_offset: int
    lsn: int
    read_from_ms: int | None


@dataclass(frozen=True)
class KnownRuns:
    """What the positions of a topic-partition's records depend on. `epochs`: from which offset on, which epoch."""

    epochs: Sequence[tuple[int, int]] = ()
    snapshots: Sequence[Snapshot] = ()
    runs: Mapping[str, Run] = field(default_factory=dict)


def known_of(row: Mapping[str, Any]) -> KnownRuns:
    """A row of `History.position_contexts`."""
    return KnownRuns(
        epochs=[(one["from_offset"], one["epoch"]) for one in row["epochs"]],
        snapshots=[Snapshot(**one) for one in row["snapshots"]],
        runs={one["run_id"]: Run(**{name: one[name] for name in Run._fields}) for one in row["runs"]},
    )


def located(sources: Sequence[Mapping[str, Any] | None], kind: SourceKind) -> pl.DataFrame:
    """The columns of the log of these source blocks, as narrow events have them."""
    fields: dict[str, Any] = {name: pl.Int64 if name in NUMBERS_OF_SOURCE else pl.String for name in Source._fields}
    fields["sequence"] = pl.List(pl.String)
    blocks = [None if source is None else {**dict.fromkeys(fields), **source} for source in sources]
    frame = pl.DataFrame({"source": pl.Series(blocks, dtype=pl.Struct(fields))})
    return read_log_columns(frame.select(pl.col("source").struct.unnest()), kind)


def is_streamed(source: Source | None) -> bool:
    """Whether the change was streamed; a row of a snapshot is not."""
    return source is None or (source.snapshot or "false") == "false"


def coordinates(source: Source | None, kind: SourceKind) -> Coordinates | None:
    """A change's log coordinates, by its source; None without, or before the beginning of every log.

    PostgreSQL: the later of the last commit and the LSN, and the LSN. MySQL and MariaDB: file, position and row.
    """
    if source is None:
        return None
    if kind == "postgresql":
        lsn, commit = _lsn(source), _sequence(source, 0)
        if lsn is None or lsn < 0 or (commit is not None and commit < 0):
            return None
        return _greatest(commit, lsn), lsn
    file, row = _binlog_file(source), source.row or 0
    if file is None or source.pos is None or source.pos < 0 or row < 0:
        return None
    return file, source.pos, row


def source_position(
    source: Source | None, kind: SourceKind, *, run_id: str, read_ms: int | None, offset: int, known: KnownRuns
) -> Position | None:
    """The change's position (`silver.batch.position.POSTGRES` or MYSQL); or None where the record has none."""
    if source is None:
        return None
    run = known.runs.get(run_id)
    epoch = run.epoch if run is not None else None
    if epoch is None:
        epoch = max((epoch for from_offset, epoch in known.epochs if from_offset <= offset), default=0)
    streamed = int(is_streamed(source))
    if kind != "postgresql":
        file = _binlog_file(source)
        if file is None or source.pos is None:
            return None
        return epoch, file, source.pos, source.row or 0, streamed, offset
    lsn, last_commit = _lsn(source), _sequence(source, 0)
    if lsn is None:
        return None
    commit = _greatest(last_commit, lsn)
    ordered = commit
    if streamed:
        run_begins = offset if run_id == "" else (None if run is None else run.from_offset)
        for one in known.snapshots:
            opens_run = run_id != "" and run is not None and one.from_offset == run.from_offset
            was_read_later = read_ms is None or one.read_from_ms is None or read_ms >= one.read_from_ms
            is_of_run = one.run_id == run_id and one.from_offset < offset and (opens_run or was_read_later)
            is_of_earlier_run = (
                last_commit is None and one.epoch == epoch and run_begins is not None and one.from_offset < run_begins
            )
            # Without the names of runs only the clock tells a record that is sent again behind the snapshot.
            if is_of_run or (is_of_earlier_run and (run_id != "" or was_read_later)):
                ordered = max(ordered, one.lsn)
    return epoch, ordered, streamed, commit, lsn, offset


def repeats(source: Source | None, kind: SourceKind, *, run_id: str, known: KnownRuns) -> bool:
    """Whether an earlier run of the topic-partition has stated the streamed change already."""
    run, at = known.runs.get(run_id), coordinates(source, kind)
    below = None if run is None else run.repeats_to
    return is_streamed(source) and at is not None and below is not None and at <= tuple(below)


def at_offset(position: Position, offset: int) -> Position:
    """The same source position at another Kafka offset."""
    return (*position[:-1], offset)


def _lsn(source: Source) -> int | None:
    lsn = _sequence(source, 1)
    return source.lsn if lsn is None else lsn


def _sequence(source: Source, element: int) -> int | None:
    parts = source.sequence or ()
    text = parts[element] if element < len(parts) else None
    return _bigint(text) if text is not None and _WHOLE.fullmatch(text) else None


def _binlog_file(source: Source) -> int | None:
    found = _BINLOG_NUMBER.search(source.file or "")
    return _bigint(found[1]) if found else None


def _bigint(text: str) -> int | None:
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _greatest(one: int | None, other: int) -> int:
    return other if one is None else max(one, other)
