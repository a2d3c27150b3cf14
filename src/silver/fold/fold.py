"""The definition of silver: the row that all records of a key lead to, whatever their order and their batches.

`fold` takes events and, of a batch, the rows that the table has of their keys; it returns the row of each key and the
outcome of each event. A row names the events that its values are from, by number; `silver.fold.rows` takes the values.

    0. Where the log counts the rows at one position anew, they count on.
    1. A record whose position a later one of its key and run contradicts is damaged, and excluded.
    2. A tombstone that no delete of its run precedes deletes what its run, and earlier ones, have sent of its key.
    3. What is below a cutoff is gone with it.
    4. Of events with one id (outbox) the first counts.
    5. The latest change of a key is its row. A column that events may leave out has its own latest change.
    6. A large value that a change of the key does not send is the newest that the previous key has sent.

Rules 0 to 2 and 6 compare an event with all others of its key. A batch does not have them: keys that may need these
rules are `undecided`, and are folded again from all of their events (silver.lookback.rederive). For all other keys
`fold(a + b)` is the same as `fold(b, rows=fold(a))`, for any cut. Columnar, in Polars; imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import polars as pl

from lakehouse.contracts.models import Feed
from silver.decode.reference.decoder import large_columns
from silver.fold.changes import ordered, with_repeated_events
from silver.fold.column_versions import with_values_of_previous_keys, with_versions
from silver.fold.index import Positions, coordinates_of, cutoff_frame
from silver.fold.operands import LOG_FIELDS, no_rows
from silver.fold.tombstones import lone_tombstones
from silver.order.runs import Cutoff

# Of two numbers of events and of rows: whether the values of both are the same, but for metadata.
SameValues = Callable[[pl.Series, pl.Series], pl.Series]


@dataclass(frozen=True)
class Folded:
    """What events lead to.

    `rows`: a row a key: `row_key`; `last`, the number of its latest change, with `is_delete`, `op`, `position`,
    `topic`, `partition`, `offset` and `is_below_cutoff`; `deleted_at`; by versioned column `version:<name>`, a
    position, and `number:<name>`; `unresolved`; and `is_changed`: whether it differs from the row that the table has.
    `outcomes`: of each event, null of what changes nothing by its kind. `damaged`: the numbers of damaged events.
    `undecided`: the numbers of the events whose keys a batch cannot decide. `positions`: what the numbers mean.
    """

    rows: pl.DataFrame
    outcomes: pl.Series
    damaged: Collection[int]
    undecided: Collection[int]
    positions: Positions


def fold(
    events: pl.DataFrame,
    feed: Feed,
    cutoffs: Mapping[str, Cutoff],
    *,
    is_whole: bool = True,
    rows: pl.DataFrame | None = None,
    same_values: SameValues | None = None,
    purged_below: Cutoff | None = None,
    has_unchanged: bool = False,
) -> Folded:
    """The rows of all keys that these events name. An event may be there twice.

    `events`: EVENT, their `position`, `key:<name>`, `missing:<name>`. `cutoffs`: by shard. `is_whole`: whether these
    are all events of their keys, as of a batch they are not; of a batch, `rows` are what the table has of them
    (`table_row_types`), numbered behind the events. `same_values`: needed with `rows`. `purged_below`: a key that the
    table does not have is ignored below it. `has_unchanged`: whether any change has ever left a large value unchanged.
    """
    by_source = feed.sequence_by == "source_position"
    limits = cutoff_frame(cutoffs.items(), feed)
    purged = cutoff_frame([] if purged_below is None else [("", purged_below)], feed)
    states = no_rows(feed) if rows is None else rows
    positions, sound, damage, changes, table = ordered(events, states, feed, also=[limits, purged], is_whole=is_whole)
    limits = limits.with_columns(cutoff=positions.encode(limits))
    changes, table = _below_cutoffs(changes, limits), _below_cutoffs(table, limits)
    changes = with_repeated_events(changes, feed)
    latest = _latest(changes, table, feed, same_values)
    if is_whole:
        latest = with_values_of_previous_keys(latest, changes, feed)
    if purged_below is not None:
        limit = positions.encode(purged).item()
        latest = latest.filter(pl.col("is_known") | (pl.col("position") >= limit))
    ended = _outcomes(changes, latest, feed)
    outcomes = _by_number(ended, _other_outcomes(sound, limits), damage, events.height)
    undecided: frozenset[int] = frozenset()
    if not is_whole and by_source:
        undecided = _undecided(sound, ended, latest, table, feed, has_unchanged=has_unchanged)
    return Folded(latest, outcomes, damage, undecided, positions)


def _below_cutoffs(operands: pl.DataFrame, limits: pl.DataFrame) -> pl.DataFrame:
    """Those below the cutoff of their shard (`is_below_cutoff`) as a delete at the cutoff, by the record that says so.

    `at_topic`, `at_partition`, `at_offset`: of the record that a row is from.
    """
    below = (pl.col("position") < pl.col("cutoff")).fill_null(False)
    return (
        operands.join(limits.select("shard", *_OF_CUTOFF.values()), on="shard", how="left", maintain_order="left")
        .with_columns(sent_delete="is_delete")
        .with_columns(
            *[
                pl.when(below).then(limit).otherwise(name).alias(_CUT.get(name, name))
                for name, limit in _OF_CUTOFF.items()
            ],
            is_below_cutoff=below,
            is_delete=pl.col("is_delete") | below,
        )
        .drop("cutoff", "cutoff_op")
    )


_OF_CUTOFF = {
    "position": "cutoff",
    "op": "cutoff_op",
    "topic": "at_topic",
    "partition": "at_partition",
    "offset": "at_offset",
}
_CUT = {"topic": "at_topic", "partition": "at_partition", "offset": "at_offset"}


def _latest(changes: pl.DataFrame, table: pl.DataFrame, feed: Feed, same_values: SameValues | None) -> pl.DataFrame:
    """A row a key (Folded.rows), with `is_known`: whether the table has one."""
    columns = ["row_key", "number", "position", "is_delete", "op", "at_topic", "at_partition", "at_offset"]
    columns += ["is_below_cutoff", "is_streamed", *LOG_FIELDS]
    live = changes.filter(~pl.col("is_repeated") & pl.col("row_key").is_not_null())
    operands = pl.concat(
        [
            live.select(*columns, pl.lit(False).alias("is_of_table")),
            table.select(*columns, pl.lit(True).alias("is_of_table")).cast(live.select(columns).schema),
        ]
    )
    latest = operands.sort(
        ["row_key", "position", "is_of_table", "number"], descending=[False, False, False, True]
    ).unique("row_key", keep="last", maintain_order=True)
    latest = _unchanged_rows(latest, table, feed, same_values)
    names = {"number": "last", "at_topic": "topic", "at_partition": "partition", "at_offset": "offset"}
    return with_versions(latest, live, table, feed).rename(names)


def _unchanged_rows(
    latest: pl.DataFrame, table: pl.DataFrame, feed: Feed, same_values: SameValues | None
) -> pl.DataFrame:
    """The latest changes, in whose place the table's row stays where they only repeat it."""
    known = table.select(
        "row_key",
        *[pl.col(name).alias(f"table_{name}") for name in ("number", "position", "is_delete", "op")],
        *[pl.col(f"at_{name}").alias(f"table_{name}") for name in ("topic", "partition", "offset")],
        *[pl.col(name).alias(f"table_{name}") for name in ("is_below_cutoff", "is_streamed", *LOG_FIELDS)],
    )
    joined = latest.join(known, on="row_key", how="left", maintain_order="left").with_columns(
        is_known=pl.col("table_number").is_not_null()
    )
    if same_values is None or table.is_empty():
        return joined.with_columns(is_kept=pl.lit(False))
    is_there = coordinates_of() == coordinates_of("table_position")
    # What is deleted is not deleted again by a cutoff.
    stays = pl.col("is_below_cutoff") & pl.col("table_is_delete") & ~pl.col("is_of_table")
    if feed.sequence_by == "source_position":
        # What a tombstone has deleted may be sent again at its position: that key is undecided.
        stays |= pl.col("table_is_delete") & ~pl.col("is_delete") & is_there
    joined = joined.with_columns(stays=stays.fill_null(False)).with_columns(is_kept="stays")
    if feed.sequence_by == "source_position":
        compared = joined.filter(
            is_there & ~pl.col("is_of_table") & (pl.col("is_delete") == pl.col("table_is_delete"))
        ).select("row_key", "number", "table_number")
        if compared.height:
            same = same_values(compared.get_column("number"), compared.get_column("table_number"))
            repeated = compared.filter(same).get_column("row_key")
            joined = joined.with_columns(stays=pl.col("stays") | pl.col("row_key").is_in(repeated.implode()))
    names = ("number", "position", "is_delete", "op", "is_below_cutoff", "is_streamed", *LOG_FIELDS)
    return joined.with_columns(
        *[pl.when("stays").then(f"table_{name}").otherwise(name).alias(name) for name in names],
        *[
            pl.when("stays").then(f"table_{name}").otherwise(f"at_{name}").alias(f"at_{name}")
            for name in ("topic", "partition", "offset")
        ],
        is_of_table=pl.col("is_of_table") | pl.col("stays"),
    ).drop("stays")


def _outcomes(changes: pl.DataFrame, rows: pl.DataFrame, feed: Feed) -> pl.DataFrame:
    """The changes with their `outcome`, and what the row of their key is (`row_…`)."""
    changes = changes.with_columns(own_position=pl.coalesce("sent_position", "position"))
    versions = [name for name in rows.columns if name.startswith("version:")]
    of_row = ["position", "is_delete", "topic", "partition", "offset", "is_streamed", *LOG_FIELDS]
    joined = changes.join(
        rows.select("row_key", *[pl.col(name).alias(f"row_{name}") for name in (*of_row, *versions)]),
        on="row_key",
        how="left",
        maintain_order="left",
    )
    own = [pl.col("position") == pl.col(f"row_{name}") for name in ("position", *versions)]
    is_own = pl.any_horizontal([one.fill_null(False) for one in own])
    counts = ~pl.col("is_below_cutoff") & ~pl.col("is_repeated")
    is_there = pl.lit(False)
    if feed.sequence_by == "source_position":
        is_there = (coordinates_of("own_position") == coordinates_of("row_position")).fill_null(False)
    return joined.with_columns(
        outcome=pl.when(counts & is_own)
        .then(pl.lit("applied"))
        .when(pl.col("kind") == "tombstone")
        .then(pl.lit("tombstone"))
        .when(pl.col("is_replay") | pl.col("is_repeated") | is_there)
        .then(pl.lit("duplicate"))
        .otherwise(pl.lit("superseded"))
    )


def _other_outcomes(sound: pl.DataFrame, limits: pl.DataFrame) -> pl.DataFrame:
    """`number` and `outcome` of what is no change: tombstones, truncates, records that were found damaged before, and
    late ones of erased keys.
    """
    others = sound.filter(pl.col("kind").is_in(["tombstone", "truncate", "damaged", "late"]))
    joined = others.join(limits.select("shard", "cutoff"), on="shard", how="left", maintain_order="left")
    is_below = (pl.col("position") < pl.col("cutoff")).fill_null(False)
    of_truncate = pl.when("is_replay").then(pl.lit("duplicate")).when(is_below).then(pl.lit("superseded"))
    outcome = (
        pl.when(pl.col("kind") == "tombstone")
        .then(pl.lit("tombstone"))
        .when(pl.col("kind") == "damaged")
        .then(pl.lit("quarantined"))
        .when(pl.col("kind") == "late")
        .then(pl.lit("superseded"))
        .otherwise(of_truncate.otherwise(pl.lit("applied")))
    )
    return joined.select("number", outcome=outcome)


def _by_number(changes: pl.DataFrame, others: pl.DataFrame, damage: Collection[int], events: int) -> pl.Series:
    """The outcome of each event, in the order of their numbers. A tombstone that deletes is a change."""
    damaged_ones = pl.DataFrame({"number": [*damage]}, schema={"number": pl.UInt32})
    parts = [
        changes.select("number", "outcome"),
        others.join(changes, on="number", how="anti"),
        damaged_ones.with_columns(outcome=pl.lit("quarantined")),
    ]
    numbers = pl.DataFrame({"number": pl.arange(events, eager=True, dtype=pl.UInt32)})
    return numbers.join(pl.concat(parts), on="number", how="left", maintain_order="left").get_column("outcome")


def _undecided(
    sound: pl.DataFrame,
    ended: pl.DataFrame,
    rows: pl.DataFrame,
    table: pl.DataFrame,
    feed: Feed,
    *,
    has_unchanged: bool,
) -> frozenset[int]:
    """The numbers of the events that show that a batch cannot decide their key.

    Their position is behind that of an earlier record of their run, or they have a lower row of the same position; they
    repeat what a tombstone has deleted; a tombstone has no delete before it; or a large value may be known, or not be
    known, now: their key was changed, or they come behind the end of their key.
    """
    lost = pl.col("outcome").is_in(["superseded", "duplicate"])
    same_partition = (pl.col("row_topic") == pl.col("topic")) & (pl.col("row_partition") == pl.col("partition"))
    is_earlier = same_partition & (pl.col("row_offset") < pl.col("offset")) & (pl.col("row_epoch") == pl.col("epoch"))
    is_streamed = pl.col("is_streamed") & pl.col("row_is_streamed")
    contradicts = (
        lost
        & (pl.col("run_id") != "")
        & (pl.col("sent_position") < pl.col("row_position"))
        & is_streamed
        & is_earlier
        & (pl.col("row_offset") >= pl.col("run_from"))
    )
    is_there = coordinates_of("sent_position") == coordinates_of("row_position")
    is_gone = (pl.col("kind") == "change") & ~pl.col("sent_delete") & pl.col("row_is_delete") & is_there
    shown = contradicts | is_gone
    if feed.kind != "postgresql":
        same_log_event = pl.all_horizontal([pl.col(name) == pl.col(f"row_{name}") for name in LOG_FIELDS[1:3]])
        is_counted_anew = same_log_event & (pl.col("binlog_row") < pl.col("row_binlog_row"))
        shown |= lost & is_streamed & is_earlier & is_counted_anew
    if has_unchanged and large_columns(feed):
        known = table.select("row_key", table_deleted_at="deleted_at")
        ended = ended.join(known, on="row_key", how="left", maintain_order="left")
        is_changed_key = pl.col("old_key").is_not_null() & pl.col("has_unchanged")
        is_late = ~pl.col("sent_delete") & (pl.col("sent_position") <= pl.col("table_deleted_at"))
        shown |= is_changed_key | pl.col("new_key").is_not_null() | is_late.fill_null(False)
    numbers = ended.filter(shown.fill_null(False)).get_column("number")
    return frozenset(numbers) | lone_tombstones(sound, table, feed)
