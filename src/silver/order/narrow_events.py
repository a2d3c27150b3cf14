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

# Of a decoded event what a narrow one has not.
_LEFT_OUT = ("value", "headers", "source")
_OF_MYSQL = ("name", "snapshot", "file", "pos", "row")
# The fields of the source block that the columns of the log are made of.
_PARTS: Mapping[SourceKind, Sequence[str]] = {
    "postgresql": ("name", "snapshot", "sequence", "lsn"),
    **dict.fromkeys(("mysql", "mariadb"), _OF_MYSQL),
}


def log_columns(kind: SourceKind) -> dict[str, str]:
    """The columns that say where an event is in the log of its source, with their Spark types.

    `snapshot`: as Debezium writes it, of a row of a snapshot; NULL of what was streamed. `source_name`: of the
    connector, of a row of a snapshot. PostgreSQL: `last_commit`, NULL where the connector has no stored offsets yet,
    and `lsn`. MySQL and MariaDB: `binlog_file`, its number, `binlog_pos`, and `binlog_row`, 0 where none is given.
    """
    of_log = ("last_commit", "lsn") if kind == "postgresql" else ("binlog_file", "binlog_pos", "binlog_row")
    return {"snapshot": "STRING", "source_name": "STRING", **dict.fromkeys(of_log, "BIGINT")}


def ddl(feeds: Sequence[Feed]) -> str:
    """The columns of narrow events of these feeds of one source, as Spark writes them."""
    columns = {name: kind for name, kind in arrow.columns(feeds).items() if name not in _LEFT_OUT}
    columns |= log_columns(feeds[0].kind)
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def narrow_batches(batches: Iterable[pa.RecordBatch], *, feeds: Sequence[Feed]) -> Iterator[pa.RecordBatch]:
    """The narrow events of these records (silver.decode.arrow.RECORD), in the columns of `ddl`."""
    for batch in arrow.decode_batches(batches, feeds=feeds):
        yield narrowed(batch, feeds[0].kind)


def narrowed(events: pa.RecordBatch, kind: SourceKind) -> pa.RecordBatch:
    """Decoded events as narrow ones."""
    source = events.column("source")
    parts = {name: source.field(name) for name in _PARTS[kind]}
    located = add_log_columns(pl.DataFrame(pa.table(parts)), kind)
    names = [name for name in events.schema.names if name not in _LEFT_OUT]
    of_log = [located.get_column(name).to_arrow() for name in log_columns(kind)]
    of_log = [array.cast(pa.string()) if array.type == pa.large_string() else array for array in of_log]
    columns = [*(events.column(name) for name in names), *of_log]
    return pa.RecordBatch.from_arrays(columns, names=[*names, *log_columns(kind)])


def add_log_columns(sources: pl.DataFrame, kind: SourceKind) -> pl.DataFrame:
    """The `log_columns` alone; `sources`: the fields of source blocks as columns."""
    is_of_snapshot = pl.col("snapshot").fill_null("false") != "false"
    if kind == "postgresql":
        of_log = {
            "last_commit": _of_sequence(0),
            "lsn": pl.coalesce(_of_sequence(1), pl.col("lsn").cast(pl.Int64)),
        }
    else:
        of_log = {
            "binlog_file": pl.col("file").str.extract(r"[.]([0-9]+)$").cast(pl.Int64, strict=False),
            "binlog_pos": pl.col("pos").cast(pl.Int64),
            "binlog_row": pl.col("row").cast(pl.Int64).fill_null(0),
        }
    return sources.select(
        snapshot=pl.when(is_of_snapshot).then("snapshot"),
        source_name=pl.when(is_of_snapshot).then("name"),
        **of_log,
    )


def _of_sequence(element: int) -> pl.Expr:
    """A whole number of `source.sequence`: `["<last commit LSN>", "<LSN>"]`."""
    text = pl.col("sequence").list.get(element, null_on_oob=True)
    return text.str.strip_chars().cast(pl.Int64, strict=False)
