"""Large values that a change of the key does not send: they are those of the previous key, or of one before it.

A change of the key is a delete of the old one and a create of the new one, whose header names the old key (Debezium
documentation, "Primary key updates").
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from lakehouse.contracts.models import Feed
from silver.decode.reference.decoder import large_columns
from silver.fold.index import OFFSET_BITS


class _Change(NamedTuple):
    """A change that is no delete, in the order of its position."""

    position: int
    number: int
    old_key: str | None
    missing: frozenset[str]


def values_of_previous_keys(
    rows: pl.DataFrame, changes: pl.DataFrame, versioned: Sequence[str], feed: Feed
) -> pl.DataFrame:
    """The rows (`silver.fold.fold.Folded.rows`) with the versions that a previous key has sent, for columns without.

    The version is at the position of the change of the key. `changes`: of all keys.
    """
    is_live = ~pl.col("is_delete")
    unresolved = rows.filter(is_live & pl.any_horizontal([pl.col(f"version:{one}").is_null() for one in versioned]))
    own = changes.filter(~pl.col("is_repeated")).join(
        unresolved.select("row_key", "deleted_at"), on="row_key", how="inner"
    )
    since = own.filter(is_live & pl.col("old_key").is_not_null())
    since = since.filter(pl.col("deleted_at").is_null() | (pl.col("position") > pl.col("deleted_at")))
    if since.is_empty():
        return rows
    creates = since.sort("position").unique("row_key", keep="last").select("row_key", "shard", "old_key", "position")
    previous = PreviousKeys(changes, feed)
    found: dict[str, list[Any]] = {"row_key": []}
    found |= {f"{kind}:{column}": [] for column in versioned for kind in ("previous", "number_of")}
    versions = unresolved.select("row_key", *(f"version:{one}" for one in versioned))
    for row in creates.join(versions, on="row_key", how="inner").iter_rows(named=True):
        found["row_key"].append(row["row_key"])
        for column in versioned:
            number = None
            if row[f"version:{column}"] is None:
                number = previous.number(column, shard=row["shard"], key=row["old_key"], before=row["position"])
            found[f"number_of:{column}"].append(number)
            found[f"previous:{column}"].append(None if number is None else row["position"])
    kinds: dict[str, Any] = {name: pl.Int64 if name.startswith("previous:") else pl.UInt32 for name in found}
    joined = rows.join(
        pl.DataFrame(found, schema={**kinds, "row_key": rows.schema["row_key"]}),
        on="row_key",
        how="left",
        maintain_order="left",
    )
    return joined.with_columns(
        *[pl.coalesce(f"version:{column}", f"previous:{column}").alias(f"version:{column}") for column in versioned],
        *[pl.coalesce(f"number:{column}", f"number_of:{column}").alias(f"number:{column}") for column in versioned],
    ).drop(name for name in found if name != "row_key")


class PreviousKeys:
    """What previous keys have sent. `changes`: of all keys of a feed."""

    def __init__(self, changes: pl.DataFrame, feed: Feed) -> None:
        self._by_key = _by_key(changes, large_columns(feed))

    def number(self, column: str, *, shard: str, key: str, before: int) -> int | None:
        """The number of the change that has sent the column last, before this position."""
        return _number_of(self._by_key, column, shard=shard, key=key, before=before)


def _by_key(changes: pl.DataFrame, versioned: Sequence[str]) -> Mapping[tuple[str, str], list[_Change]]:
    """By shard and key text the changes that are no deletes, in the order of their positions."""
    by_key: dict[tuple[str, str], list[_Change]] = defaultdict(list)
    flags = [f"missing:{column}" for column in versioned]
    kept = changes.filter(~pl.col("is_delete") & pl.col("key_text").is_not_null()).sort(
        "position", "number", descending=[False, True]
    )
    for shard, key, position, number, old_key, *missing in kept.select(
        "shard", "key_text", "position", "number", "old_key", *flags
    ).iter_rows():
        without = frozenset(column for column, is_missing in zip(versioned, missing, strict=True) if is_missing)
        by_key[shard, key].append(_Change(position, number, old_key, without))
    return by_key


def _number_of(
    changes: Mapping[tuple[str, str], list[_Change]], column: str, *, shard: str, key: str, before: int
) -> int | None:
    """The number of the change that has sent the column last, of this key or, through its changes, of one before it."""
    while True:
        # The delete of the old key and the create of the new one have the same log coordinates.
        of_key = changes.get((shard, key), [])
        at = bisect_left(of_key, (before >> OFFSET_BITS) << OFFSET_BITS, key=lambda change: change.position)
        before_it = (of_key[index] for index in range(at - 1, -1, -1))
        earlier = next((one for one in before_it if column not in one.missing or one.old_key is not None), None)
        if earlier is None:
            return None
        if column not in earlier.missing:
            return earlier.number
        key, before = str(earlier.old_key), earlier.position
