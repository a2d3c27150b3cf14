"""Events of the oracle as the frame that silver folds, and what the fold makes of them in the oracle's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed
from silver.order.column_versions import versioned_columns
from silver.order.fold import Folded, fold
from silver.order.operands import event_frame
from silver.order.runs import Cutoff
from tests.support import oracle
from tests.support.oracle import PlacedEvent


def frame_of(events: Sequence[PlacedEvent], feed: Feed) -> pl.DataFrame:
    """The events as `silver.order.fold` takes them."""
    # The hash of an image is of any size.
    images = [None if one.image is None else one.image % 2**62 for one in events]
    rows = zip(events, images, strict=True)
    return event_frame([{**one._asdict(), "image": image, "missing": one.passed_over} for one, image in rows], feed)


def rows_of(folded: Folded, feed: Feed) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """By number of the latest change: what the oracle's Row says."""
    frames = folded.rows
    positions = {
        name: folded.positions.decode(frames.get_column(name)).rows()
        for name in frames.columns
        if name in ("position", "deleted_at") or name.startswith("version_")
    }
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for at, row in enumerate(frames.iter_rows(named=True)):
        versions = {}
        for column in versioned_columns(feed):
            version = positions[f"version_{column}"][at]
            versions[column] = None if None in version else (row[f"number_{column}"], version)
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


def checked_fold(events: Sequence[PlacedEvent], feed: Feed, cutoffs: Mapping[str, Cutoff]) -> oracle.Folded:
    """What the oracle makes of all events of their keys, when silver's fold has made the same of them."""
    expected = oracle.fold(events, feed, cutoffs)
    folded = fold(frame_of(events, feed), feed, cutoffs)
    rows = {
        (row.last.number,): {
            **{name: getattr(row.last, name) for name in ("position", "op", "is_delete", "at", "is_below_cutoff")},
            "column_versions": dict(row.column_versions),
            "deleted_at": row.deleted_at,
            "unresolved": list(row.unresolved),
        }
        for row in expected.rows.values()
    }
    assert rows_of(folded, feed) == rows
    assert {number: one for number, one in enumerate(folded.outcomes) if one is not None} == expected.outcomes
    assert set(folded.damaged) == expected.damaged
    return expected
