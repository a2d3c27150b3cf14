"""The one seam between the jobs and where tables live: paths of a folder locally, `catalog.schema.table` on Databricks.

A table is always named `<schema>.<table>`, as in the documents: `silver.postgres_orders`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehouse.errors import TableError, UnfinishedTableError

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableSpec:
    """What a table is created as: its name, its columns in Spark SQL, and how Delta keeps it."""

    name: str
    columns: str
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""


# Properties of a table that are ours begin so: they say how its rows were made.
OWN_PROPERTY = "orders-lakehouse."
# Row-level changes without rewriting files, and the feed that the next layer reads.
UPSERTED = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}


def small_table(spark: SparkSession, rows: Iterable[Mapping[str, object]], columns: str) -> DataFrame:
    """A few rows of the driver's own (numbers, text, lists and maps of them) as a DataFrame.

    They travel inside the plan: `createDataFrame` would start a Python worker for them each time they are read.
    """
    from pyspark.sql import functions as F

    text = json.dumps(list(rows), ensure_ascii=False)
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), f"ARRAY<STRUCT<{columns}>>")))


# How long a table may be half made by a stream beside this one, in seconds.
_WHILE_ANOTHER_CREATES = (0.2, 0.5, 1.0)
# Tables that are created, or inspected, at once: each is a few short steps, one after the other.
AT_A_TIME = 4

# The schemas of every warehouse, by the names that the code and the documents use. `clean` has views only.
SCHEMAS = ("bronze", "silver", "clean", "gold", "quality", "ops")


@dataclass(frozen=True)
class Address:
    """Where the tables and checkpoints of one deployment are: plain data, which travels with a stream.

    `location` is a path or URI (tables are in `<location>/<schema>/<table>`) or, without any slash, the name of a
    catalog. `checkpoints` is a path in both cases. `schemas`: what schemas are called there, where not as in SCHEMAS.
    """

    location: str
    checkpoints: str
    schemas: Mapping[str, str] = field(default_factory=dict)

    def opened(self, spark: SparkSession) -> Warehouse:
        """The warehouse, in a session."""
        return Warehouse(spark, self.location, self.checkpoints, self.schemas)


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

    def ensure(self, spec: TableSpec) -> None:
        """Create the table (and on Databricks its schema) unless it is there. Changes nothing that exists.

        Raises TableError when what exists has other columns than the spec, or has one with another type, and
        UnfinishedTableError when it has only begun to exist.
        """
        from delta.exceptions import ProtocolChangedException
        from pyspark.errors import AnalysisException

        pauses = iter(_WHILE_ANOTHER_CREATES)
        while True:
            try:
                self._ensure(spec)
                return
            except ProtocolChangedException:  # a stream beside this one has just created it
                if next(pauses, None) is None:
                    raise
            except AnalysisException as error:
                if error.getCondition() not in _HALF_MADE:
                    raise
                seconds = next(pauses, None)
                if seconds is None:
                    raise self._unfinished(spec) from None
                time.sleep(seconds)

    def _unfinished(self, spec: TableSpec) -> UnfinishedTableError:
        return UnfinishedTableError(
            f"The table {spec.name} has a folder {self.path(spec.name)}, and no commit in it: its creation has begun "
            "and has not ended.",
            remedy="If no other run is creating it now, and there is no Parquet file in that folder, delete the "
            "folder, and run again.",
        )

    def ensure_all(self, specs: Iterable[TableSpec]) -> None:
        """The same for each of them, several at a time. Raises the first error when all have ended."""
        from pyspark.util import inheritable_thread_target

        wanted = list(specs)
        if self.in_catalog:  # of two that create one schema the second could fail
            for first in {spec.name.split(".")[0]: spec for spec in wanted}.values():
                self._ensure_schema(first.name)
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            ensure = inheritable_thread_target(self.spark)(self.ensure)
            ended = [threads.submit(ensure, spec) for spec in wanted]
        for one in ended:
            one.result()

    def _ensure(self, spec: TableSpec) -> None:
        from delta.tables import DeltaTable

        if self.exists(spec.name):
            self.require_columns(spec)
            return
        if self.in_catalog:
            self._create_in_catalog(spec)
            return
        builder = DeltaTable.createIfNotExists(self.spark).location(self.path(spec.name))
        builder = builder.addColumns(declared(spec.columns))
        if spec.partition_by:
            builder = builder.partitionedBy(*spec.partition_by)
        for key, value in spec.properties.items():
            builder = builder.property(key, value)
        if spec.comment:
            builder = builder.comment(spec.comment)
        builder.execute()

    def _create_in_catalog(self, spec: TableSpec) -> None:
        """In SQL: Delta's builder takes no name of three levels (4.4.0)."""
        self._ensure_schema(spec.name)
        parts = [f"CREATE TABLE IF NOT EXISTS {self.path(spec.name)} ({spec.columns}) USING DELTA"]
        if spec.partition_by:
            parts.append(f"PARTITIONED BY ({', '.join(spec.partition_by)})")
        if spec.properties:
            properties = [f"{_text(key)} = {_text(value)}" for key, value in spec.properties.items()]
            parts.append(f"TBLPROPERTIES ({', '.join(properties)})")
        if spec.comment:
            parts.append(f"COMMENT {_text(spec.comment)}")
        self.spark.sql(" ".join(parts))

    def _ensure_schema(self, name: str) -> None:
        """Create the schema of a table in a catalog, unless it is there: to see that takes no right to create."""
        schema = self.path(name).rsplit(".", 1)[0]
        if not self.spark.catalog.databaseExists(schema):
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")

    def ensure_view(self, name: str, *, columns: Sequence[str], query: str) -> None:
        """Create the view in the catalog, or replace one that has other columns. Changes nothing else."""
        self._ensure_schema(name)
        path = self.path(name)
        if not self.spark.catalog.tableExists(path) or self.spark.table(path).columns != list(columns):
            self.spark.sql(f"CREATE OR REPLACE VIEW {path} AS {query}")

    def require_columns(self, spec: TableSpec) -> None:
        """Raise TableError, naming every column in which the table and the spec differ: missing, more, another type.

        So do properties of ours (OWN_PROPERTY…), which say what else the rows were made by. Reads no rows. The order of
        columns and whether values may be NULL are not compared. A column too many counts, since a MERGE of whole rows
        would not know what to put there.
        """
        wanted = _types(declared(spec.columns))
        found = _types(self.read(spec.name).schema)
        differences = [
            f"{name} should be {kind} and is {found.get(name, 'missing')}"
            for name, kind in wanted.items()
            if found.get(name) != kind
        ]
        differences += [f"{name} ({kind}) should not be there" for name, kind in found.items() if name not in wanted]
        own = {key: value for key, value in spec.properties.items() if key.startswith(OWN_PROPERTY)}
        made_by = self.properties(spec.name) if own else {}
        differences += [
            f"its {key.removeprefix(OWN_PROPERTY)} should be {value} and is {made_by.get(key, 'not known')}"
            for key, value in own.items()
            if made_by.get(key) != value
        ]
        if differences:
            raise TableError(
                f"The table {spec.name} at {self.location} is not what it should be: {'; '.join(differences)}.",
                remedy=_REMEDIES.get(spec.name.split(".")[0], _OF_ANOTHER_RELEASE),
            )

    def add_columns(self, spec: TableSpec) -> None:
        """Add the columns of the spec that the table lacks, and take over its comment. The rows there have NULL."""
        found = _types(self.read(spec.name).schema)
        wanted = list(declared(spec.columns))
        before = [None, *wanted[:-1]]
        new = [
            f"`{column.name}` {column.dataType.simpleString()}" + ("" if after is None else f" AFTER `{after.name}`")
            for column, after in zip(wanted, before, strict=True)
            if column.name.lower() not in found
        ]
        if new:
            self.spark.sql(f"ALTER TABLE {self.sql_name(spec.name)} ADD COLUMNS ({', '.join(new)})")
            if spec.comment:
                self.spark.sql(f"COMMENT ON TABLE {self.sql_name(spec.name)} IS {_text(spec.comment)}")

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

    def version(self, name: str) -> int:
        """The number of the table's last commit."""
        with self._table_errors(name):
            return int(self.delta(name).history(1).select("version").collect()[0]["version"])

    def written_bytes(self, name: str, *, after: int, to: int) -> int:
        """How many bytes of data the table's commits behind `after` have written, up to `to`, the last one."""
        names = ("numTargetBytesAdded", "numOutputBytes", "numAddedBytes")  # of a MERGE, a write, small files joined
        commits = self.delta(name).history(to - after).select("operationMetrics").collect()
        return sum(int(commit["operationMetrics"].get(name) or 0) for commit in commits for name in names)

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
        from pyspark.errors import AnalysisException

        try:
            lines = self.spark.read.text(f"{self.checkpoint(job)}/metadata").collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        return str(json.loads(lines[0]["value"])["id"])

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
                f"There is no table {name} at {self.location}.", remedy="Run the job of the layer that writes it first."
            ) from None


def declared(columns: str) -> StructType:
    """The columns of a declaration in Spark SQL. Needs a session."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(columns)
    if not isinstance(schema, StructType):
        raise TypeError(columns)
    return schema


def _text(text: str) -> str:
    """A literal in Spark SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def _looked_at(rows: DataFrame) -> DataFrame:
    """The same rows, of a table that is there: Spark Connect looks for it only when it is asked for something."""
    _ = rows.schema
    return rows


def _types(schema: StructType) -> dict[str, str]:
    """The type of every column, in Spark SQL, by its name in lower case: Spark ignores case."""
    return {column.name.lower(): column.dataType.simpleString() for column in schema}


_CHANGED_CONTRACT = (
    "The contract changed after the table was made: take the change back, or run `lakehouse gold --full-refresh`: it "
    "rebuilds gold from silver."
)
_MADE_ANEW = (
    "The contract changed after the table was made: take the change back, or delete all silver tables of the source, "
    "and run silver: it rebuilds them from bronze."
)
_OF_ANOTHER_RELEASE = "Another release of this code has made the table: use that one, or start a new warehouse."
# By schema: the columns of the others are not the contract's.
_REMEDIES = {"silver": _MADE_ANEW, "gold": _CHANGED_CONTRACT}
# What Delta says of a folder that has a `_delta_log` without any commit.
_HALF_MADE = ("DELTA_TABLE_NOT_FOUND", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
_NO_TABLE = (
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_SCHEMA_NOT_SET",
)
