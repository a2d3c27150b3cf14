"""The operands of a fold as frames: events, and the rows that the table has of their keys.

In both a position is one number (silver.fold.index), and `row_key` is one number for the values of the key columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lakehouse.contracts.models import Feed
from silver.fold.column_versions import versioned_columns
from silver.fold.index import EVENT, Positions, position_types
from silver.order.position import position_fields

# Where the log has an event, as far as one asks for it apart from its position.
LOG_FIELDS = ("epoch", "binlog_file", "binlog_pos", "binlog_row")


def event_frame(events: Sequence[Mapping[str, Any]], feed: Feed) -> pl.DataFrame:
    """Events of Python as `fold` takes them.

    Each has the names of EVENT; `position`, a tuple or None; `row_key`, the values of the key columns or None; and
    `missing`, the columns that it leaves out.
    """
    fields, keys = position_fields(feed), [one["row_key"] or (None,) * len(feed.keys) for one in events]
    columns: dict[str, Any] = {name: [one[name] for one in events] for name in EVENT}
    columns["position"] = [
        None if one["position"] is None else dict(zip(fields, one["position"], strict=True)) for one in events
    ]
    columns |= {f"key:{name}": [key[number] for key in keys] for number, name in enumerate(feed.keys)}
    columns |= {f"missing:{column}": [column in one["missing"] for one in events] for column in versioned_columns(feed)}
    kinds: dict[str, Any] = {**EVENT, "position": pl.Struct(position_types(feed))}
    kinds |= {f"missing:{column}": pl.Boolean() for column in versioned_columns(feed)}
    series = [pl.Series(name, values, dtype=kinds.get(name)) for name, values in columns.items()]
    no = pl.lit(False)
    return pl.DataFrame(series).with_columns(repeats_event=no, after_delete=no, has_unchanged=no)


def table_row_types(feed: Feed) -> dict[str, Any]:
    """The columns of `rows`: of the table's row of a key what decides the order."""
    position = pl.Struct(position_types(feed))
    versions = {f"version:{column}": position for column in versioned_columns(feed)}
    return {
        **{f"key:{key}": None for key in feed.keys},
        **{"position": position, "deleted_at": position, **versions},
        **{"op": pl.String(), "is_delete": pl.Boolean(), "topic": pl.String()},
        **{"partition": pl.Int32(), "offset": pl.Int64()},
    }


def no_rows(feed: Feed) -> pl.DataFrame:
    """No row of the table."""
    return pl.DataFrame(schema={name: kind or pl.Null() for name, kind in table_row_types(feed).items()})


def positions_of_rows(rows: pl.DataFrame, feed: Feed) -> list[pl.DataFrame]:
    """All positions that rows of the table have, with the fields of a position."""
    names = ["position", "deleted_at", *(f"version:{column}" for column in versioned_columns(feed))]
    return [rows.select(pl.col(name).struct.unnest()) for name in names]


def indexed_events(events: pl.DataFrame, positions: Positions, feed: Feed) -> pl.DataFrame:
    """The events: `number`, `position` as a number, `shard`, `topic_partition`, and where the log has them."""
    fields = events.select(pl.col("position").struct.unnest())
    return (
        events.with_columns(positions.encode(fields))
        .with_columns(_log_fields(fields))
        .with_row_index("number")
        .with_columns(
            _shard(feed),
            pl.struct("topic", "topic_id", "partition").rank("dense").alias("topic_partition"),
            pl.all_horizontal([pl.col(f"key:{key}").is_not_null() for key in feed.keys]).alias("has_row_key"),
        )
    )


def indexed_rows(rows: pl.DataFrame, positions: Positions, feed: Feed, *, first: int) -> pl.DataFrame:
    """The table's rows as operands: `number` from `first` on, and positions as numbers."""
    names = ["position", "deleted_at", *(f"version:{column}" for column in versioned_columns(feed))]
    fields = rows.select(pl.col("position").struct.unnest())
    is_streamed = fields.get_column("streamed") == 1 if "streamed" in fields.columns else pl.lit(True)
    return (
        rows.with_columns(positions.encode(rows.select(pl.col(name).struct.unnest())).alias(name) for name in names)
        .with_columns(*_log_fields(fields), is_streamed=is_streamed)
        .with_row_index("number", offset=first)
        .with_columns(_shard(feed))
    )


def _log_fields(fields: pl.DataFrame) -> list[pl.Series]:
    """Of positions the epoch, and of MySQL and MariaDB where the event is in the binlog."""
    names = [name for name in LOG_FIELDS if name in fields.columns]
    absent = pl.Series([None] * fields.height, dtype=pl.Int64)
    return [*fields.select(names).get_columns(), *(absent.alias(name) for name in LOG_FIELDS if name not in names)]


def _shard(feed: Feed) -> pl.Expr:
    return (pl.col("topic") if feed.is_sharded else pl.lit("")).alias("shard")


def with_row_keys(changes: pl.DataFrame, table: pl.DataFrame, feed: Feed) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both with `row_key`, the same number for the same values of the key columns; null where one is null."""
    names = [f"key:{key}" for key in feed.keys]
    kinds = pl.Schema(changes.select(names).schema)
    keys = pl.concat([changes.select(names), table.select(names).cast(kinds)]).unique(maintain_order=True)
    numbered = keys.drop_nulls().with_row_index("row_key")
    return (
        changes.join(numbered, on=names, how="left", maintain_order="left"),
        table.cast(kinds).join(numbered, on=names, how="left", maintain_order="left"),
    )
