"""The tables of a warehouse as plain rows: without Spark where they are files, with it where they are in a catalog.

Queries are of the SQL that both understand: a column of a struct is `planned['records']`, a table is `{ops.batches}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from lakehouse.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from lakehouse.delta.address import Address
    from lakehouse.delta.tables import Warehouse

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TABLE = re.compile(r"\{([a-z_]+\.[a-z0-9_]+)\}")
# Commits that change no row.
_UPKEEP = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "CREATE TABLE", "ADD COLUMNS")


@dataclass(frozen=True)
class Commit:
    """A commit of a table: its version, when it was made, how many rows it changed, and the bytes that it wrote."""

    version: int
    at: datetime
    rows: int
    written_bytes: int
    changes_rows: bool


@dataclass(frozen=True)
class Facts:
    """What a table is: its last version, when it was created, and its files."""

    version: int
    created_ms: int
    files: int
    bytes: int
    rows: int
    deletion_vectors: int


class Tables(Protocol):
    """A warehouse to be looked at."""

    @property
    def location(self) -> str:
        """Where it is, as in Address."""

    def exists(self, name: str) -> bool:
        """Whether there is such a table."""

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query. Raises TableError where a table of it is not there or cannot be read."""

    def facts(self, name: str) -> Facts:
        """What the table is. Raises TableError."""

    def commit(self, name: str) -> tuple[int, int]:
        """When the table was created, in epoch milliseconds, and the number of its last commit. Raises TableError."""

    def commits(self, name: str, *, limit: int) -> Sequence[Commit]:
        """The last commits, the newest first. Raises TableError."""

    def changes(self, name: str, predicate: str, *, versions: int) -> list[dict[str, Any]]:
        """The rows of the change data feed that the predicate chooses, of the last versions. Raises TableError."""

    def newest_since(self, name: str, column: str, *, rows: int) -> datetime | None:
        """Since when, by a column of times, the newest rows are: about so many. None where the table has no more.

        Raises TableError.
        """


def tables_at(address: Address, with_spark: Callable[[], Warehouse]) -> Tables:
    """The tables at an address; `with_spark` opens them where they are in a catalog."""
    return SparkTables(with_spark()) if "/" not in address.location else DeltaFiles(address)


class DeltaFiles:
    """Tables that are files, read by delta-rs: no Java starts. It reads deletion vectors, by its queries alone."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opened: dict[str, DeltaTable] = {}

    @property
    def location(self) -> str:
        """Where the warehouse is, as in Address."""
        return self._address.location

    def exists(self, name: str) -> bool:
        """Whether there is such a table."""
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(self._path(name))

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query. Raises TableError where a table of it is not there or cannot be read."""
        from deltalake import QueryBuilder

        names = list(dict.fromkeys(_TABLE.findall(query)))
        builder = QueryBuilder()
        for name in names:
            builder.register(_alias(name), self._table(name))
        text = _TABLE.sub(lambda found: _alias(found[1]), query)
        try:
            found = _read(builder.execute(text))
        except Exception as error:  # delta-rs has no error of its own for what a store or a file refuses
            raise _unreadable(", ".join(names), error) from None
        return _plain(found)

    def facts(self, name: str) -> Facts:
        """What the table is. Raises TableError."""
        import pyarrow.compute as pc

        table = self._table(name)
        added = _read(table.get_add_actions(flatten=True))
        vectors = [column for column in added.column_names if column.startswith("deletion_vector")]
        return Facts(
            version=table.version(),
            created_ms=table.metadata().created_time or 0,
            files=added.num_rows,
            bytes=pc.sum(added.column("size_bytes")).as_py() or 0,
            rows=pc.sum(added.column("num_records")).as_py() or 0,
            deletion_vectors=pc.count(added.column(vectors[0])).as_py() if vectors else 0,
        )

    def commit(self, name: str) -> tuple[int, int]:
        """When the table was created, and the number of its last commit, by its log alone. Raises TableError."""
        from deltalake import DeltaTable

        try:
            table = DeltaTable(self._path(name))
        except Exception as error:  # see `rows`
            raise _unreadable(name, error) from None
        return table.metadata().created_time or 0, table.version()

    def commits(self, name: str, *, limit: int) -> Sequence[Commit]:
        """The last commits, the newest first. Raises TableError."""
        return [_commit(one, at_ms=one["timestamp"]) for one in self._table(name).history(limit)]

    def changes(self, name: str, predicate: str, *, versions: int) -> list[dict[str, Any]]:
        """The rows of the change data feed that the predicate chooses, of the last versions. Raises TableError."""

        table = self._table(name)
        first = max(table.version() - versions, 0)
        try:
            found = _read(table.load_cdf(starting_version=first, predicate=predicate, allow_out_of_range=True))
        except Exception as error:  # see `rows`
            raise _unreadable(name, error) from None
        return _plain(found)

    def newest_since(self, name: str, column: str, *, rows: int) -> datetime | None:
        """Since when the newest rows are, by the statistics of the files: whole files, and one file at least."""
        import pyarrow as pa

        added = _read(self._table(name).get_add_actions(flatten=True))
        highest = f"max.{column}"
        if highest not in added.column_names:  # an empty table, or one without statistics
            return None
        micros = added.column(highest).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        files = sorted(
            ((one, count) for one, count in zip(micros, added.column("num_records").to_pylist(), strict=True) if count),
            key=lambda file: math.inf if file[0] is None else file[0],
            reverse=True,
        )
        passed = 0
        for last, count in files:
            if passed and passed + count > rows and last is not None:
                return EPOCH + timedelta(microseconds=last, milliseconds=1)  # statistics are cut to milliseconds
            passed += count
        return None

    def _path(self, name: str) -> str:
        schema, table = name.split(".")
        location = re.sub(r"^file:/+", "/", self._address.location)
        return f"{location}/{self._address.schemas.get(schema, schema)}/{table}"

    def _table(self, name: str) -> DeltaTable:
        from deltalake import DeltaTable

        if name not in self._opened:
            try:
                self._opened[name] = DeltaTable(self._path(name))
            except Exception as error:  # see `rows`
                raise _unreadable(name, error) from None
        return self._opened[name]


class SparkTables:
    """Tables of a catalog, read in a Spark session."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    @property
    def location(self) -> str:
        """Where the warehouse is, as in Address."""
        return self._warehouse.location

    def exists(self, name: str) -> bool:
        """Whether there is such a table."""
        return self._warehouse.exists(name)

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query. Raises TableError where a table of it is not there or cannot be read."""
        for name in _TABLE.findall(query):
            self._warehouse.read(name)  # says in our words that it is not there
        text = _TABLE.sub(lambda found: self._warehouse.sql_name(found[1]), query)
        return _plain(self._warehouse.spark.sql(text).toArrow())

    def facts(self, name: str) -> Facts:
        """What the table is. Raises TableError."""
        (row,) = self._warehouse.delta(name).detail().select("numFiles", "sizeInBytes", "createdAt").collect()
        created_ms = self._warehouse.created_at_ms(name)
        version = self._warehouse.version(name)
        # The catalog does not say how many files have a deletion vector.
        return Facts(version, created_ms, row["numFiles"], row["sizeInBytes"], 0, 0)

    def commit(self, name: str) -> tuple[int, int]:
        """When the table was created, and the number of its last commit. Raises TableError."""
        from lakehouse.delta.versions import last_version

        last = last_version(self._warehouse, name)
        return last.created_ms, last.number

    def commits(self, name: str, *, limit: int) -> Sequence[Commit]:
        """The last commits, the newest first. Raises TableError."""
        history = self._warehouse.delta(name).history(limit)
        columns = ("version", "operation", "operationMetrics")
        rows = history.selectExpr(*columns, "unix_millis(timestamp) AS at_ms").collect()
        return [_commit(row.asDict(recursive=True), at_ms=row["at_ms"]) for row in rows]

    def changes(self, name: str, predicate: str, *, versions: int) -> list[dict[str, Any]]:
        """The rows of the change data feed that the predicate chooses, of the last versions. Raises TableError."""
        last = self._warehouse.version(name)
        return _plain(
            self._warehouse.changes(name, first=max(last - versions, 0), last=last).where(predicate).toArrow()
        )

    def newest_since(self, name: str, column: str, *, rows: int) -> datetime | None:
        """Since when the newest rows are: of a catalog one column is read."""
        table = self._warehouse.read(name)
        count = table.count()
        if count <= rows:
            return None
        at = f"percentile_approx(unix_micros({column}), {1 - rows / count}, 10000)"
        ((micros,),) = table.selectExpr(at).collect()
        return EPOCH + timedelta(microseconds=micros)


def _alias(name: str) -> str:
    return name.replace(".", "__")


def _read(stream: Any) -> pa.Table:
    """What delta-rs has found. `pa.table` would import pandas to look at it, which takes longer than all queries."""
    import pyarrow as pa

    return pa.RecordBatchReader.from_stream(stream).read_all()


def _plain(table: pa.Table) -> list[dict[str, Any]]:
    """The rows. Times are in UTC; pyarrow would import pandas to convert them, too."""
    import pyarrow as pa

    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()
            columns.append([None if one is None else EPOCH + timedelta(microseconds=one) for one in micros])
        else:
            columns.append(column.to_pylist())
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _commit(entry: dict[str, Any], *, at_ms: int) -> Commit:
    """A commit of Delta's history: its metrics are texts, and are named by operation."""
    metrics = {key: int(value) for key, value in (entry.get("operationMetrics") or {}).items() if _is_number(value)}
    operation = str(entry.get("operation", ""))
    changed = [
        metrics.get(name, 0)
        for name in ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted", "numUpdatedRows")
    ]
    rows = sum(changed) or metrics.get("numOutputRows", 0)
    written = metrics.get("numTargetBytesAdded", metrics.get("numOutputBytes", metrics.get("numAddedBytes", 0)))
    at = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    return Commit(int(entry["version"]), at, rows, written, bool(rows) and operation not in _UPKEEP)


def _is_number(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdigit())


def _unreadable(name: str, error: Exception) -> TableError:
    return TableError(
        f"{name} cannot be read without Spark ({type(error).__name__}).",
        hint="Check --warehouse, and that a run has created the tables: lakehouse run.",
    )
