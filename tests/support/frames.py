"""Events of the oracle as the frame that silver folds, and what the fold makes of them in the oracle's terms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed
from silver.fold.column_versions import versioned_columns
from silver.fold.fold import Folded, fold
from silver.fold.operands import event_frame
from silver.order.runs import Cutoff
from tests.support import oracle
from tests.support.oracle import PositionedEvent


def frame_of(events: Sequence[PositionedEvent], feed: Feed) -> pl.DataFrame:
    """The events as `silver.fold.fold` takes them."""
    # The hash of an image is of any size.
    images = [None if one.image is None else one.image % 2**62 for one in events]
    rows = zip(events, images, strict=True)
    return event_frame([{**one._asdict(), "image": image, "missing": one.unchanged_toast} for one, image in rows], feed)


def rows_of(folded: Folded, feed: Feed) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """By number of the latest change: what the oracle's Row says."""
    frames = folded.rows
    positions = {
        name: folded.positions.decode(frames.get_column(name)).rows()
        for name in frames.columns
        if name in ("position", "deleted_at") or name.startswith("version:")
    }
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for at, row in enumerate(frames.iter_rows(named=True)):
        versions = {}
        for column in versioned_columns(feed):
            version = positions[f"version:{column}"][at]
            versions[column] = None if None in version else (row[f"number:{column}"], version)
        deleted_at = positions["deleted_at"][at]
        found[row["last"],] = {
            "position": positions["position"][at],
            "op": row["op"],
            "is_delete": row["is_delete"],
            "at": (row["topic"], row["partition"], row["offset"]),
            "is_below_cutoff": row["is_below_cutoff"],
            "column_versions": versions,
            "deleted_at": None if None in deleted_at else deleted_at,
            "unresolved": list(row.get("unresolved") or ()),
        }
    return found


def checked_fold(events: Sequence[PositionedEvent], feed: Feed, cutoffs: Mapping[str, Cutoff]) -> oracle.Folded:
    """What the oracle makes of all events of their keys, when silver's fold has made the same of them."""
    expected = oracle.fold(events, feed, cutoffs)
    folded = fold(frame_of(events, feed), feed, cutoffs)
    assert rows_of(folded, feed) == _rows(expected)
    assert {number: one for number, one in enumerate(folded.outcomes) if one is not None} == expected.outcomes
    assert set(folded.damaged) == expected.damaged
    return expected


def _rows(expected: oracle.Folded, *, first: int = 0) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """The oracle's rows in the form of `rows_of`. `first`: the number of its first event in a fold of more."""
    return {
        (row.last.number + first,): {
            **{name: getattr(row.last, name) for name in ("position", "op", "is_delete", "at", "is_below_cutoff")},
            "column_versions": {
                column: None if version is None else (version[0] + first, version[1])
                for column, version in row.column_versions.items()
            },
            "deleted_at": row.deleted_at,
            "unresolved": list(row.unresolved),
        }
        for row in expected.rows.values()
    }


# The events of one history, and its cutoff, by shard.
History = tuple[Sequence[PositionedEvent], Mapping[str, Cutoff]]


def differing_histories(histories: Sequence[History], sharded: Feed) -> list[int]:
    """The histories of which silver's fold, of all of them together, makes something else than the oracle of each.

    `sharded`: a feed that has the topic in its key (tests.support.sharded): each history is a shard.
    """
    events: list[PositionedEvent] = []
    limits: dict[str, Cutoff] = {}
    expected: list[tuple[int, int, oracle.Folded]] = []
    for number, (own, cutoffs) in enumerate(histories):
        topic = f"case {number}"
        positioned = [
            one._replace(topic=topic, row_key=None if one.row_key is None else (topic, *one.row_key)) for one in own
        ]
        limit = dict.fromkeys([topic], *cutoffs.values()) if cutoffs else {}
        expected.append((len(events), len(events) + len(positioned), oracle.fold(positioned, sharded, limit)))
        events += positioned
        limits |= limit
    folded = fold(frame_of(events, sharded), sharded, limits)
    starts = [first for first, _last, _one in expected]
    rows: list[dict[tuple[Any, ...], Mapping[str, Any]]] = [{} for _ in expected]
    for at, row in rows_of(folded, sharded).items():
        rows[bisect_right(starts, at[0]) - 1][at] = row
    found = []
    for number, (first, last, one) in enumerate(expected):
        outcomes = {at: outcome for at, outcome in enumerate(folded.outcomes[first:last]) if outcome is not None}
        damage = {at for at in range(last - first) if at + first in folded.damaged}
        if (rows[number], outcomes, damage) != (_rows(one, first=first), one.outcomes, one.damaged):
            found.append(number)
    return found
