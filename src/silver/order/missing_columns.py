"""Columns that a record has no field for: of an older row of its table, or of a field that is gone.

A row from before ADD COLUMN has no field for the new column, and NULL is all that is known of it. A field that an
earlier record of the table had, by position, and that a later one has not was renamed, dropped or left out: what the
column holds is then not known, and never NULL. Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lakehouse.contracts.models import Feed
from silver.order.history import History
from silver.order.position import epoch_of

# A position as whole numbers alone, which compare in the order of silver's positions.
Numbers = tuple[int, ...]
# By topic of a sharded feed, else an empty text, and by column: the lowest position of a record that has its field.
FirstSent = Mapping[tuple[str, str], Numbers]


def columns_of_rows(feed: Feed) -> tuple[str, ...]:
    """The columns that every row of the source's table has a field for; none of an outbox.

    A payload of an outbox that lacks a field says NULL, or, where payloads are partial, leaves the column as it is.
    """
    if feed.envelope == "outbox":
        return ()
    return tuple(name for name, one in feed.columns.items() if name not in feed.keys and one.is_of_row)


def required_columns(feed: Feed) -> tuple[str, ...]:
    """Of these the columns whose field a row may not lack once the table has had it.

    None of a table with a contract that goes on without them (`drop: evolve`); a table by rule makes them `optional`.
    """
    if feed.discovered is None and feed.on_schema_change.drop == "evolve":
        return ()
    return tuple(name for name in columns_of_rows(feed) if not feed.columns[name].optional)


def lacking_columns(feed: Feed, rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many records have no field for a column, of the required columns where some have none. `rows`: their counts
    (COUNTS).
    """
    counted = list(rows)
    times = {name: sum(row["absent_columns"].get(name, 0) for row in counted) for name in required_columns(feed)}
    return {name: number for name, number in times.items() if number}


def needs_positions(feed: Feed, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the counts of a batch do not say by themselves from which position on it has its columns.

    They do where each record has every field, and its run segment a lowest position.
    """
    if not columns_of_rows(feed):
        return False
    by_position = feed.sequence_by == "source_position"
    has_none = by_position and any(row["judged"] and _coordinates(row) is None for row in rows)
    return has_none or bool(lacking_columns(feed, rows))


def first_sent(feed: Feed, rows: Iterable[Mapping[str, Any]], past: History) -> FirstSent:
    """From which position on a batch has its columns, by its counts: those of run segments whose records all have them.

    `past`: the history up to the end of the batch.
    """
    known = {(row["topic"], row["topic_id"], row["partition"]): row for row in past.position_contexts()}
    found: dict[tuple[str, str], Numbers] = {}
    for row in rows:
        lowest = _lowest(feed, row, known[row["topic"], row["topic_id"], row["partition"]]) if row["judged"] else None
        if lowest is None:
            continue
        shard = row["topic"] if feed.is_sharded else ""
        for name in columns_of_rows(feed):
            if not row["absent_columns"].get(name):
                found[shard, name] = min(lowest, found.get((shard, name), lowest))
    return found


def lower(new: FirstSent, known: FirstSent) -> FirstSent:
    """Of the new positions those that are lower than what is known, or of columns that are not known."""
    return {at: position for at, position in new.items() if at not in known or position < known[at]}


def lowest(*parts: FirstSent) -> FirstSent:
    """The lowest position of each column in any of them."""
    found: dict[tuple[str, str], Numbers] = {}
    for part in parts:
        found |= lower(part, found)
    return found


def _coordinates(row: Mapping[str, Any]) -> Sequence[int] | None:
    """The lowest coordinates of a run segment: of its snapshot, or of what was streamed."""
    found: Sequence[int] | None = row["lowest"] if row["snapshot_at"] is None else row["snapshot_at"]
    return found


def _lowest(feed: Feed, row: Mapping[str, Any], topic_partition: Mapping[str, Any]) -> Numbers | None:
    """The lowest position of a run segment's records; None where none has a position."""
    offset = row["first_offset"]
    if feed.sequence_by == "kafka_offset":
        return row["first_ms"], offset
    at = _coordinates(row)
    if at is None:
        return None
    epoch = epoch_of(topic_partition, run_id=row["run_id"], offset=offset)
    streamed = 0 if row["snapshot_at"] is not None else 1
    if feed.kind != "postgresql":
        return (epoch, *at, streamed, offset)
    commit, lsn = at
    return epoch, commit, streamed, commit, lsn, offset
