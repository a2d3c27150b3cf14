"""The one seam between the jobs and where tables live: paths of a folder locally, `catalog.schema.table` on Databricks.

A table is always named `<schema>.<table>`, as in the documents: `silver.postgres_orders`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehouse.delta.address import Address
from lakehouse.delta.declared import (
    HINTS,
    OF_ANOTHER_RELEASE,
    add_missing_columns,
    declared,
    differences,
    ensure_schema,
    ensure_table,
)
from lakehouse.delta.files import read_text
from lakehouse.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableSpec:
    """What a table is created as: its name, its columns in Spark SQL, and how Delta keeps it."""

    name: str
    columns: str
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""


# Row-level changes without rewriting files, and the feed that the next layer reads.
UPSERTED = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}


def inline_rows(spark: SparkSession, rows: Iterable[Mapping[str, object]], columns: str) -> DataFrame:
    """A few rows of the driver's own (numbers, text, lists and maps of them) as a DataFrame.

    They travel inside the plan: `createDataFrame` would start a Python worker for them each time they are read.
    """
    from pyspark.sql import functions as F

    text = json.dumps(list(rows), ensure_ascii=False)
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), f"ARRAY<STRUCT<{columns}>>")))


# Tables that are created, or inspected, at once: each is a few short steps, one after the other.
AT_A_TIME = 4


@dataclass(frozen=True)
class Warehouse:
    """The tables and checkpoints of one deployment, in a session. The other fields are those of Address."""

    spark: SparkSession
    location: str
    checkpoints: str
    schemas: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        """Where it is, without the session."""
        return Address(self.location, self.checkpoints, self.schemas)

    @property
    def in_catalog(self) -> bool:
        """Whether tables are found by catalog name, not by path."""
        return "/" not in self.location

    def path(self, name: str) -> str:
        """Where the table is: its path, or its three-level name."""
        schema, table = name.split(".")
        called = self.schemas.get(schema, schema)
        return f"{self.location}.{called}.{table}" if self.in_catalog else f"{self.location}/{called}/{table}"

    def sql_name(self, name: str) -> str:
        """The table as it is called in a SQL statement."""
        path = self.path(name)
        return path if self.in_catalog else "delta.`{}`".format(path.replace("`", "``"))

    def exists(self, name: str) -> bool:
        """Whether the table has been created."""
        from delta.tables import DeltaTable

        if self.in_catalog:
            return self.spark.catalog.tableExists(self.path(name))
        return DeltaTable.isDeltaTable(self.spark, self.path(name))

    def ensure(self, spec: TableSpec, *, is_locked: bool = True) -> None:
        """Create the table (and on Databricks its schema) unless it is there. Changes nothing that exists.

        `is_locked`: no other run works on the warehouse, so a folder that has had no commit for a minute is what one
        has left that was killed: it is removed. Raises TableError when what exists has other columns than the spec, or
        has one with another type, and UnfinishedTableError when it has only begun to exist.
        """
        ensure_table(self, spec, is_locked=is_locked)

    def ensure_all(self, specs: Iterable[TableSpec]) -> None:
        """The same for each of them, several at a time. Raises the first error when all have ended."""
        from pyspark.util import inheritable_thread_target

        wanted = list(specs)
        if self.in_catalog:  # of two that create one schema the second could fail
            for first in {spec.name.split(".")[0]: spec for spec in wanted}.values():
                ensure_schema(self, first.name)
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            ensure = inheritable_thread_target(self.spark)(self.ensure)
            ended = [threads.submit(ensure, spec) for spec in wanted]
        for one in ended:
            one.result()

    def ensure_view(self, name: str, *, columns: Sequence[str], query: str) -> None:
        """Create the view in the catalog, or replace one that has other columns. Changes nothing else."""
        ensure_schema(self, name)
        path = self.path(name)
        if not self.spark.catalog.tableExists(path) or self.spark.table(path).columns != list(columns):
            self.spark.sql(f"CREATE OR REPLACE VIEW {path} AS {query}")

    def require_columns(self, spec: TableSpec) -> None:
        """Raise TableError, naming every column in which the table and the spec differ: missing, more, another type.

        So do properties of ours (OWN_PROPERTY…), which say what else the rows were made by. Reads no rows. The order of
        columns and whether values may be NULL are not compared. A column too many counts, since a MERGE of whole rows
        would not know what to put there.
        """
        differing = differences(self, spec)
        if differing:
            raise TableError(
                f"The table {spec.name} at {self.location} is not what it should be: {'; '.join(differing)}.",
                hint=HINTS.get(spec.name.split(".")[0], OF_ANOTHER_RELEASE),
            )

    def add_columns(self, spec: TableSpec) -> None:
        """Add the columns of the spec that the table lacks, and take over its comment. The rows there have NULL."""
        add_missing_columns(self, spec)

    def properties(self, name: str) -> dict[str, str]:
        """The table's properties. DESCRIBE DETAIL has them too, and counts the table's files for it."""
        return {
            row["key"]: row["value"] for row in self.spark.sql(f"SHOW TBLPROPERTIES {self.sql_name(name)}").collect()
        }

    def delta(self, name: str) -> DeltaTable:
        """The table as a target of MERGE. Raises TableError when there is no such table; over Spark Connect, later."""
        from delta.tables import DeltaTable

        with self._table_errors(name):
            if self.in_catalog:
                return DeltaTable.forName(self.spark, self.path(name))
            return DeltaTable.forPath(self.spark, self.path(name))

    def read(self, name: str, *, version: int | None = None) -> DataFrame:
        """The table's rows, now or as they were at `version`. Raises TableError when there is no such table."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        with self._table_errors(name):
            return _looked_at(reader.table(self.path(name)) if self.in_catalog else reader.load(self.path(name)))

    def changes(self, name: str, *, first: int, last: int) -> DataFrame:
        """The change data feed of the commits `first` to `last`, both included."""
        reader = (
            self.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", first)
            .option("endingVersion", last)
        )
        return reader.table(self.path(name)) if self.in_catalog else reader.load(self.path(name))

    def append_once(self, name: str, rows: DataFrame, *, writer: str, number: int) -> None:
        """Append, unless this `writer` has already appended its write `number` or a later one.

        `writer` must change when its numbers start again: see `checkpoint_id`.
        """
        self._append(name, rows, {"txnAppId": writer, "txnVersion": str(number)})

    def append(self, name: str, rows: DataFrame) -> None:
        """Append: for what may be there twice after a crash."""
        self._append(name, rows, {})

    def _append(self, name: str, rows: DataFrame, options: Mapping[str, str]) -> None:
        write = rows.write.format("delta").mode("append").options(**options)
        if self.in_catalog:
            write.saveAsTable(self.path(name))
        else:
            write.save(self.path(name))

    def overwrite(self, spec: TableSpec, rows: DataFrame) -> None:
        """Replace all rows of the table by these, with the spec's columns, in one commit.

        Readers see all of the old rows or all of the new. What the table is kept as, and its history, stay.
        """
        from pyspark.sql import functions as F

        typed = rows.select(
            *[F.col(column.name).cast(column.dataType).alias(column.name) for column in declared(spec.columns)]
        )
        write = typed.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if self.in_catalog:
            write.saveAsTable(self.path(spec.name))
        else:
            write.save(self.path(spec.name))

    def replace_where(self, name: str, condition: str, change: Callable[[pa.Table], pa.Table]) -> tuple[int, int]:
        """Put what `change` makes of the rows that meet a condition in their place, in one commit, unless none goes.

        How many they were, and are. They are held in this process; what `change` returns meets the condition too.
        """
        found = self.read(name).where(condition).toArrow()
        left = change(found)
        if left.num_rows < found.num_rows:
            write = self.spark.createDataFrame(left).write.format("delta").mode("overwrite")
            write = write.option("replaceWhere", condition)
            if self.in_catalog:
                write.saveAsTable(self.path(name))
            else:
                write.save(self.path(name))
        return found.num_rows, left.num_rows

    def version(self, name: str) -> int:
        """The number of the table's last commit."""
        with self._table_errors(name):
            return int(self.delta(name).history(1).select("version").collect()[0]["version"])

    def created_and_size(self, name: str) -> tuple[int, int]:
        """When the table was created, in epoch milliseconds, and the bytes of its data files as it is now.

        A later table of the same name was created later.
        """
        with self._table_errors(name):
            detail = self.delta(name).detail()
            (row,) = detail.selectExpr("unix_millis(createdAt) AS created", "sizeInBytes AS size").collect()
        return int(row["created"]), int(row["size"])

    def created_at_ms(self, name: str) -> int:
        """When the table was created, in epoch milliseconds: a later table of the same name has a higher number."""
        return self.created_and_size(name)[0]

    def checkpoint(self, job: str) -> str:
        """Where the streaming job keeps its checkpoint."""
        return f"{self.checkpoints}/{job}"

    def checkpoint_id(self, job: str) -> str | None:
        """The identity of the job's checkpoint: a new one after the checkpoint was lost. None before the first run.

        Structured Streaming writes it to the file `metadata` when a query first starts.
        """
        text = read_text(self.spark, f"{self.checkpoint(job)}/metadata")
        return None if text is None else str(json.loads(text)["id"])

    @contextmanager
    def _table_errors(self, name: str) -> Iterator[None]:
        """Inside, that a table does not exist is a TableError."""
        from pyspark.errors import AnalysisException

        try:
            yield
        except AnalysisException as error:
            if error.getCondition() not in _NO_TABLE:
                raise
            raise TableError(
                f"There is no table {name} at {self.location}.", hint="Run the job of the layer that writes it first."
            ) from None


def _looked_at(rows: DataFrame) -> DataFrame:
    """The same rows, of a table that is there: Spark Connect looks for it only when it is asked for something."""
    _ = rows.schema
    return rows


_NO_TABLE = (
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_SCHEMA_NOT_SET",
)
