"""The changes of each key one after the other: what its row was made of, from change to change.

The definition: the changes of a key in the order of their positions, those at the same log coordinates once; where a
cutoff is passed that the row did not live through, a delete at the cutoff; and of each column that a change leaves out
the value that it had before.

A batch goes on from the last version that the table has of a key. Where its events are not all behind that, the key is
undecided: it is derived again from all of its events (silver.lookback.rederive).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import polars as pl

from lakehouse.contracts.models import Feed
from silver.decode.reference.decoder import large_columns
from silver.fold.changes import ordered, with_repeated_events
from silver.fold.column_versions import versioned_columns
from silver.fold.damage import damaged
from silver.fold.index import Positions, coordinates_of, cutoff_frame
from silver.fold.operands import no_rows
from silver.fold.previous_keys import PreviousKeys
from silver.order.runs import Cutoff

SameValues = Callable[[pl.Series, pl.Series], pl.Series]


class Sequence(NamedTuple):
    """The changes of all keys, by key and in order.

    `changes`: `row_key`; `number` of the event or of the table's row (`is_known`), null of a cutoff; `key_number`,
    whose key it has; `position`, `is_delete`, `op`, `topic`, `partition`, `offset`; `cutoff_ms`, the time of a cutoff;
    by versioned column `number:<name>`, where its value is. `undecided`: the numbers of the events whose keys a batch
    cannot decide; their keys are left out. `positions`: what the numbers mean.
    """

    changes: pl.DataFrame
    undecided: Collection[int]
    positions: Positions


def sequence(
    events: pl.DataFrame,
    feed: Feed,
    cutoffs: Iterable[tuple[str, Cutoff]],
    *,
    is_whole: bool = True,
    rows: pl.DataFrame | None = None,
    same_values: SameValues | None = None,
) -> Sequence:
    """The changes that these events name, as `silver.fold.fold.fold` takes them.

    `cutoffs`: all of them, each with its shard. `is_whole`: whether these are all events of their keys. `rows`: of a
    batch, the last versions that the table has of their keys (`table_row_types`; their position is the last that they
    hold for), numbered behind the events; then `same_values` is needed.
    """
    limits = cutoff_frame(cutoffs, feed)
    states = no_rows(feed) if rows is None else rows
    positions, sound, _damaged, changes, table = ordered(events, states, feed, also=[limits], is_whole=is_whole)
    limits = limits.with_columns(cutoff=positions.encode(limits))
    live = with_repeated_events(changes.with_columns(is_below_cutoff=pl.lit(False)), feed).filter(
        ~pl.col("is_repeated") & pl.col("row_key").is_not_null()
    )
    undecided: frozenset[int] = frozenset()
    if not is_whole:
        # Of what is damaged only all events of a key tell which record it is.
        live, undecided, keys = _behind_known(live, table, same_values, contradicted=damaged(sound))
        table = table.filter(~pl.col("row_key").is_in(keys.implode()))
    found = _one_after_the_other(_once(live), table, feed)
    found = _with_cutoffs(found, limits).sort("row_key", "position", "is_known", descending=[False, False, True])
    found = found.with_columns(key_number=pl.col("number").forward_fill().over("row_key"))
    previous = PreviousKeys(changes, feed) if is_whole and large_columns(feed) else None
    return Sequence(_with_numbers(found, feed, previous), undecided, positions)


def _once(live: pl.DataFrame) -> pl.DataFrame:
    """Of the changes of a key at the same log coordinates, which repeat one another, the last.

    Of deletes the first: a tombstone that comes later to the same place knows the time of the delete no more.
    """
    at = ["row_key", "coordinates"]
    in_order = live.with_columns(coordinates=coordinates_of()).sort(
        "row_key", "position", "number", descending=[False, False, True]
    )
    is_again = pl.col("is_delete") & pl.col("is_delete").shift(1).over(at).fill_null(False)
    return in_order.filter(~is_again).unique(at, keep="last", maintain_order=True)


def _behind_known(
    live: pl.DataFrame, table: pl.DataFrame, same_values: SameValues | None, *, contradicted: Collection[int]
) -> tuple[pl.DataFrame, frozenset[int], pl.Series]:
    """The changes behind what the table has of their keys; the numbers of those that undecide a key, and these keys.

    Left out is what repeats the last version, or was sent again by a connector that started again (`is_replay`).
    `contradicted`: the numbers of events whose position a later one of their run shows to be wrong.
    """
    known = table.select("row_key", *[pl.col(name).alias(f"known_{name}") for name in _KNOWN])
    is_there = coordinates_of() == coordinates_of("known_position")
    joined = live.join(known, on="row_key", how="left", maintain_order="left").with_columns(
        is_there=is_there.fill_null(False),
        is_late=(~is_there & (pl.col("position") < pl.col("known_position"))).fill_null(False),
        # A row that a snapshot has does not end with it: whether it has it is only known now.
        is_cut=(pl.col("known_is_delete") & pl.col("known_op").is_in(["t", "r"])).fill_null(False),
    )
    again = joined.filter(
        pl.col("is_there") & ~pl.col("is_cut") & (pl.col("is_delete") == pl.col("known_is_delete"))
    ).select("number", "known_number")
    if again.height and same_values is not None:
        again = again.filter(same_values(again.get_column("number"), again.get_column("known_number")))
    repeats = pl.col("number").is_in(again.get_column("number").implode())
    sent_again = pl.col("is_late") & pl.col("is_replay").fill_null(False)
    is_contradicted = pl.col("number").is_in([*contradicted])
    shows = joined.filter((pl.col("is_there") & ~repeats) | (pl.col("is_late") & ~sent_again) | is_contradicted)
    keys = shows.get_column("row_key").unique()
    is_decided = ~pl.col("row_key").is_in(keys.implode())
    return joined.filter(is_decided & ~repeats & ~sent_again), frozenset(shows.get_column("number")), keys


_KNOWN = ("number", "position", "is_delete", "op")


def _one_after_the_other(once: pl.DataFrame, table: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """The changes, and what the table has, with `begins`: whether nothing older is of the row."""
    names = ["row_key", "number", "position", "is_delete", "op", "topic", "partition", "offset", "shard"]
    missing = [f"missing:{column}" for column in versioned_columns(feed)]
    is_create = pl.col("old_key").is_not_null() & ~pl.col("is_delete") & pl.lit(feed.payload != "partial")
    sent = once.select(
        *names,
        *missing,
        pl.col("old_key"),
        pl.lit(False).alias("is_known"),
        (pl.col("is_delete") | is_create).alias("begins"),
    )
    kept = table.join(once.select("row_key").unique(), on="row_key", how="semi").select(
        *names,
        *[pl.lit(False).alias(name) for name in missing],
        pl.lit(None, pl.String).alias("old_key"),
        pl.lit(True).alias("is_known"),
        pl.col("is_delete").alias("begins"),
    )
    return pl.concat([sent, kept.cast(sent.schema)]).with_columns(cutoff_ms=pl.lit(None, pl.Int64))


def _with_cutoffs(found: pl.DataFrame, limits: pl.DataFrame) -> pl.DataFrame:
    """And the deletes by cutoffs. The rows of a snapshot have its coordinates: a row that it has lives through it."""
    if limits.is_empty():
        return found
    ordered_changes = found.sort("row_key", "position").with_columns(
        next_at=coordinates_of().shift(-1).over("row_key"),
    )
    # Sorted, which Polars cannot see within each shard.
    passed = ordered_changes.sort("position").join_asof(
        limits.select("shard", "cutoff", "cutoff_op", "at_topic", "at_partition", "at_offset", ms="cutoff_ms")
        .sort("cutoff")
        .with_columns(position="cutoff"),
        on="position",
        by="shard",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    ends = passed.filter(
        ~pl.col("is_delete")
        & pl.col("cutoff").is_not_null()
        & (pl.col("next_at").is_null() | (coordinates_of("cutoff") < pl.col("next_at")))
    )
    deletes = ends.with_columns(
        number=pl.lit(None, pl.UInt32),
        position="cutoff",
        is_delete=pl.lit(True),
        op="cutoff_op",
        topic="at_topic",
        partition="at_partition",
        offset="at_offset",
        cutoff_ms="ms",
        is_known=pl.lit(False),
        begins=pl.lit(True),
        old_key=pl.lit(None, pl.String),
    )
    return pl.concat([found, deletes.select(found.columns).cast(found.schema)])


def _with_numbers(found: pl.DataFrame, feed: Feed, previous: PreviousKeys | None) -> pl.DataFrame:
    """With `number:<name>` of each versioned column: the last change that has sent it since the row began."""
    columns = versioned_columns(feed)
    own = [
        pl.when(~pl.col("is_delete") & ~pl.col(f"missing:{column}")).then("number").alias(f"number:{column}")
        for column in columns
    ]
    found = found.with_columns(*own)
    if previous is not None:
        found = _with_previous_keys(found, columns, previous)
    spell = pl.col("begins").cast(pl.UInt32).cum_sum().over("row_key")
    found = found.with_columns(spell=spell)
    return found.with_columns(
        pl.when(~pl.col("is_delete"))
        .then(pl.col(f"number:{column}").forward_fill().over("row_key", "spell"))
        .alias(f"number:{column}")
        for column in columns
    ).drop("spell", "begins", "old_key", *(f"missing:{column}" for column in columns))


def _with_previous_keys(found: pl.DataFrame, columns: Iterable[str], previous: PreviousKeys) -> pl.DataFrame:
    """With the values that the previous key has had, of rows that came to be by a change of their key."""
    creates = found.filter(pl.col("old_key").is_not_null() & ~pl.col("is_delete")).select(
        "number", "shard", "old_key", "position", *(f"number:{column}" for column in columns)
    )
    rows = [
        {
            "number": row["number"],
            **{
                f"previous:{column}": previous.number(
                    column, shard=row["shard"], key=row["old_key"], before=row["position"]
                )
                for column in columns
                if row[f"number:{column}"] is None
            },
        }
        for row in creates.iter_rows(named=True)
    ]
    kinds = {"number": pl.UInt32, **{f"previous:{column}": pl.UInt32 for column in columns}}
    joined = found.join(pl.DataFrame(rows, schema=kinds), on="number", how="left", maintain_order="left")
    return joined.with_columns(
        pl.coalesce(f"number:{column}", f"previous:{column}").alias(f"number:{column}") for column in columns
    ).drop(f"previous:{column}" for column in columns)
