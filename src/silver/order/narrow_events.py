"""Narrow events: what a decoded record states, without its bytes, and where it is in the log as whole numbers.

All that is done with an event travels between Java and Python, and through a shuffle. The bytes of a record are in
bronze: what needs them (an entry of the quarantine) reads them there. Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl
import pyarrow as pa

from lakehouse.contracts.models import Feed
from lakehouse.contracts.topics import SourceKind
from silver.decode import arrow

# Columns of a decoded event that a narrow one does not have.
_DROPPED = ("value", "headers", "source")
_MYSQL_FIELDS = ("name", "snapshot", "file", "pos", "row")
# The fields of the source block that the columns of the log are made of.
_SOURCE_FIELDS: Mapping[SourceKind, Sequence[str]] = {
    "postgresql": ("name", "snapshot", "sequence", "lsn"),
    **dict.fromkeys(("mysql", "mariadb"), _MYSQL_FIELDS),
}


def log_columns(kind: SourceKind) -> dict[str, str]:
    """The columns that say where an event is in the log of its source, with their Spark types.

    `snapshot`: as Debezium writes it, of a row of a snapshot; NULL of what was streamed. `source_name`: of the
    connector, of a row of a snapshot. PostgreSQL: `last_commit`, NULL where the connector has no stored offsets yet,
    and `lsn`. MySQL and MariaDB: `binlog_file`, its number, `binlog_pos`, and `binlog_row`, 0 where none is given.
    """
    coordinates = ("last_commit", "lsn") if kind == "postgresql" else ("binlog_file", "binlog_pos", "binlog_row")
    return {"snapshot": "STRING", "source_name": "STRING", **dict.fromkeys(coordinates, "BIGINT")}


def ddl(feeds: Sequence[Feed]) -> str:
    """The columns of narrow events of these feeds of one source, as Spark writes them."""
    columns = {name: kind for name, kind in arrow.columns(feeds).items() if name not in _DROPPED}
    columns |= log_columns(feeds[0].kind)
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def narrow_batches(batches: Iterable[pa.RecordBatch], *, feeds: Sequence[Feed]) -> Iterator[pa.RecordBatch]:
    """The narrow events of these records (silver.decode.arrow.RECORD), in the columns of `ddl`."""
    for batch in arrow.decode_batches(batches, feeds=feeds):
        yield narrow_events(batch, feeds[0].kind)


def narrow_events(events: pa.RecordBatch, kind: SourceKind) -> pa.RecordBatch:
    """Decoded events without their bytes and source blocks, with `log_columns`."""
    source = events.column("source")
    blocks = pl.DataFrame(pa.table({name: source.field(name) for name in _SOURCE_FIELDS[kind]}))
    # Polars writes large strings, which Spark does not take for its own.
    arrays = [column.to_arrow() for column in read_log_columns(blocks, kind).get_columns()]
    located = [array.cast(pa.string()) if array.type == pa.large_string() else array for array in arrays]
    kept = [name for name in events.schema.names if name not in _DROPPED]
    columns = [*(events.column(name) for name in kept), *located]
    return pa.RecordBatch.from_arrays(columns, names=[*kept, *log_columns(kind)])


def read_log_columns(sources: pl.DataFrame, kind: SourceKind) -> pl.DataFrame:
    """The `log_columns` of source blocks, in their order. `sources`: the fields of the blocks as columns."""
    is_snapshot_row = pl.col("snapshot").fill_null("false") != "false"
    if kind == "postgresql":
        coordinates = {
            "last_commit": _sequence_lsn(0),
            "lsn": pl.coalesce(_sequence_lsn(1), pl.col("lsn").cast(pl.Int64)),
        }
    else:
        coordinates = {
            "binlog_file": pl.col("file").str.extract(r"[.]([0-9]+)$").cast(pl.Int64, strict=False),
            "binlog_pos": pl.col("pos").cast(pl.Int64),
            "binlog_row": pl.col("row").cast(pl.Int64).fill_null(0),
        }
    return sources.select(
        snapshot=pl.when(is_snapshot_row).then("snapshot"),
        source_name=pl.when(is_snapshot_row).then("name"),
        **coordinates,
    )


def _sequence_lsn(element: int) -> pl.Expr:
    """An LSN of `source.sequence`: `["<last commit LSN>", "<LSN>"]`."""
    text = pl.col("sequence").list.get(element, null_on_oob=True)
    return text.str.strip_chars().cast(pl.Int64, strict=False)
