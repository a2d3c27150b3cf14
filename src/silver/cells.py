"""Partial payloads: an event that names some columns only leaves the others as they are.

Every cell keeps the position of the event that said it, and a row the position of its last delete: so the table is a
function of the set of events here too, however they are cut into batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame

_OF_LAST_EVENT = ("op", "source_ts", "topic", "partition", "offset")


def cell_columns(feed: Feed, position: str) -> list[str]:
    """What a table of partial payloads has beside the technical columns of every silver table."""
    cells = ", ".join(f"{column}: {position}" for column in cells_of(feed))
    return [f"_cell_positions STRUCT<{cells}>", f"_deleted_position {position}"]


def cells_of(feed: Feed) -> list[str]:
    """The columns that are not the key."""
    return [column for column in feed.columns if column not in feed.keys]


def latest_cells(changes: DataFrame, feed: Feed) -> DataFrame:
    """Of every key, the last word on every cell after its last delete, as a silver row of a partial feed.

    One row a key. A cell that no event names is NULL, and so is its position. `changes` have `absent`: the columns
    that the event does not name.
    """
    last = F.struct(*_OF_LAST_EVENT)
    deleted = F.max(F.when(F.col("is_delete"), F.col("position")))
    cells = []
    for column in cells_of(feed):
        said_at = F.when(~F.col("is_delete") & ~F.array_contains("absent", column), F.col("position"))
        cells += [
            F.max(said_at).alias(f"{column}_at"),
            F.max_by(F.struct(F.col(f"row.{column}").alias("value")), said_at).alias(column),
        ]
    folded = changes.groupBy(*[F.col(f"row.{key}").alias(key) for key in feed.keys]).agg(
        F.max("position").alias("_position"),
        F.max_by(last, "position").alias("last"),
        deleted.alias("_deleted_position"),
        *cells,
    )
    return folded.select(
        *[F.col(key) if key in feed.keys else _if_after_delete(key, f"{key}.value").alias(key) for key in feed.columns],
        "_position",
        F.col("last.op").alias("_op"),
        F.col("_deleted_position").eqNullSafe(F.col("_position")).alias("_is_deleted"),
        *[F.col(f"last.{name}").alias(f"_{name}") for name in _OF_LAST_EVENT if name != "op"],
        F.struct(*[_if_after_delete(c, f"{c}_at").alias(c) for c in cells_of(feed)]).alias("_cell_positions"),
        "_deleted_position",
    )


def merge_cells(table: DeltaTable, latest: DataFrame, feed: Feed) -> int:
    """Bring every cell up to its last word; the number of rows that changed. `latest` has at most one row a key."""
    same_key = " AND ".join(f"target.{key} = latest.{key}" for key in feed.keys)
    is_later = "latest._position > target._position"
    deleted = "greatest(target._deleted_position, latest._deleted_position)"
    values = {
        **{name: f"IF({is_later}, latest.{name}, target.{name})" for name in (f"_{name}" for name in _OF_LAST_EVENT)},
        "_position": "greatest(target._position, latest._position)",
        "_is_deleted": f"{deleted} <=> greatest(target._position, latest._position)",
        "_deleted_position": deleted,
        "_cell_positions": f"named_struct({', '.join(f'{c!r}, {_position(c, deleted)}' for c in cells_of(feed))})",
        **{column: _value(column, deleted) for column in cells_of(feed)},
        "_applied_at": "latest._applied_at",
    }
    news = [f"({_is_newer(column)} AND {_stands(column, deleted)})" for column in cells_of(feed)]
    is_deleted_later = f"NOT (target._deleted_position <=> {deleted})"
    result = (
        table.alias("target")
        .merge(latest.withColumn("_applied_at", F.current_timestamp()).alias("latest"), same_key)
        .whenMatchedUpdate(condition=" OR ".join([is_later, is_deleted_later, *news]), set=dict(values))
        .whenNotMatchedInsertAll()
        .execute()
    )
    return int(result.collect()[0]["num_affected_rows"])


def _if_after_delete(column: str, value: str) -> Column:
    is_after = F.col("_deleted_position").isNull() | (F.col(f"{column}_at") > F.col("_deleted_position"))
    return F.when(is_after, F.col(value))


def _is_newer(column: str) -> str:
    ours, theirs = f"latest._cell_positions.{column}", f"target._cell_positions.{column}"
    return f"({ours} IS NOT NULL AND ({theirs} IS NULL OR {ours} > {theirs}))"


def _stands(column: str, deleted: str) -> str:
    """Whether the cell was said after the row's last delete."""
    said = f"greatest(target._cell_positions.{column}, latest._cell_positions.{column})"
    return f"coalesce({deleted} IS NULL OR {said} > {deleted}, false)"


def _position(column: str, deleted: str) -> str:
    said = f"greatest(target._cell_positions.{column}, latest._cell_positions.{column})"
    return f"IF({_stands(column, deleted)}, {said}, NULL)"


def _value(column: str, deleted: str) -> str:
    newer = f"IF({_is_newer(column)}, latest.{column}, target.{column})"
    return f"IF({_stands(column, deleted)}, {newer}, NULL)"
