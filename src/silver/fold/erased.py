"""Events of erased keys: what was sent up to the delete of a row that was erased states nothing any more.

A key is known by its digest alone, with the salt of the warehouse. A later event of the key, behind the erased
position, is of a new row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed


@dataclass(frozen=True)
class ErasedKeys:
    """The erased keys of a feed: by digest (`key_digest`) the position of the last event that was erased."""

    salt: str
    positions: Mapping[str, tuple[Any, ...]]


def erased_keys(rows: Sequence[Mapping[str, Any]]) -> dict[str, ErasedKeys]:
    """By feed its erased keys, of the rows `key` of `ops.erased`; of a key that was erased twice the later position."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for row in rows:
        if row["position"] is not None:
            positions = found.setdefault(row["feed"], {})
            position = tuple(json.loads(row["position"]).values())
            positions[row["key_digest"]] = max(position, positions.get(row["key_digest"], position))
    salts = {row["feed"]: row["salt"] for row in rows}
    return {feed: ErasedKeys(salts[feed], positions) for feed, positions in found.items()}


def key_digest(salt: str, key: Sequence[object]) -> str:
    """The digest of a key: of the values of its columns, in their order, as Arrow gives them to Python."""
    return sha256(f"{salt}{json.dumps([str(value) for value in key])}".encode()).hexdigest()


def with_late_events(frame: pl.DataFrame, erased: ErasedKeys | None, feed: Feed) -> pl.DataFrame:
    """The changes of erased keys, up to the erased position, as of the kind `late`: they are superseded.

    Where the log has a position, one that is sent again has it again, at a higher Kafka offset. `frame`: events as
    `silver.fold.fold` takes them.
    """
    if erased is None:
        return frame
    names = [f"key:{key}" for key in feed.keys]
    digests = {key: key_digest(erased.salt, key) for key in frame.select(names).unique().iter_rows()}
    limits = {key: erased.positions[one] for key, one in digests.items() if one in erased.positions}
    if not limits:
        return frame
    end = -1 if feed.sequence_by == "source_position" else None  # the last field is the offset
    events = frame.select("kind", "position", *names).iter_rows()
    kinds = [
        "late"
        if kind == "change" and position and tuple(position.values())[:end] <= limits.get(tuple(key), ())[:end]
        else kind
        for kind, position, *key in events
    ]
    return frame.with_columns(pl.Series("kind", kinds, dtype=pl.String))
