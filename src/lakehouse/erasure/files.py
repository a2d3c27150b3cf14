"""The files of a Delta table that may still have an erased row: those of earlier versions, and rows marked as deleted.

Delta keeps them for time travel and for its change data feed, until VACUUM removes them; a deletion vector hides a row
in a file that is still part of the table, until REORG writes it without. The log has the lowest and highest values of
files that are gone, until it is cleaned up.
https://docs.delta.io/latest/delta-utility.html#vacuum, https://docs.delta.io/latest/delta-deletion-vectors.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakehouse.delta.delta_log import last_snapshot
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TableError
from lakehouse.spark.java import has_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A table's property: when rows of it were erased last, and its files rewritten.
ERASED_AT = "orders-lakehouse-erased-at"
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_LOG_VERSION = re.compile(r"/_delta_log/(\d{20})\.")


@dataclass(frozen=True)
class StoredFiles:
    """The data files in a table's folder: those of its `current` version, and all `others`, with the change data.

    `first_logged`: the lowest version of which the log has a file.
    """

    current: Sequence[str]
    others: Sequence[str]
    first_logged: int


def stored_files(warehouse: Warehouse, name: str) -> StoredFiles | None:
    """What is in the folder of the table now; None where folders cannot be listed: in a catalog, over Spark Connect."""
    if warehouse.in_catalog or not has_java(warehouse.spark):
        return None
    paths = list(_listed(warehouse.spark, warehouse.path(name)))
    logged = [int(found[1]) for path in paths if (found := _LOG_VERSION.search(path))]
    data = [path for path in paths if path.endswith(".parquet") and "/_delta_log/" not in path]
    # Names of data files are unique; the paths are written in several ways.
    current = {_file_name(path) for path in warehouse.read(name).inputFiles()}
    return StoredFiles(
        [path for path in data if _file_name(path) in current],
        [path for path in data if _file_name(path) not in current],
        min(logged, default=0),
    )


def rows_in_files(warehouse: Warehouse, files: Sequence[str], columns: str) -> DataFrame:
    """All rows that are in these files, whether or not they are marked as deleted, with these columns."""
    return warehouse.spark.read.schema(columns).parquet(*files)


def rewrite_marked(warehouse: Warehouse, name: str) -> None:
    """Write the files with rows that are marked as deleted again, without those, and then a commit of no files.

    The log can be removed before that commit, and the commit itself describes no file with such a row: gold and publish
    take this version, or a later one.
    """
    warehouse.spark.sql(f"REORG TABLE {warehouse.sql_name(name)} APPLY (PURGE)").collect()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    warehouse.spark.sql(f"ALTER TABLE {warehouse.sql_name(name)} SET TBLPROPERTIES ('{ERASED_AT}' = '{now}')")


def remove_old_files(warehouse: Warehouse, name: str) -> int:
    """Remove every file that the table as it is now does not need, and, where it can be, the log before this version.

    Returns the version. It can still be read, with what changes after it; no earlier one can, and no change data of
    it. Only for a job that has the lock. Raises TableError where the compute lets no session do that.
    """
    version = _write_checkpoint(warehouse, name)
    with _without_retention_check(warehouse.spark):
        # It has commits of its own, which change no file of the table.
        warehouse.spark.sql(f"VACUUM {warehouse.sql_name(name)} RETAIN 0 HOURS").collect()
    if version is None:
        return warehouse.version(name)
    _forget_log(warehouse, name, before=version)
    return version


def _write_checkpoint(warehouse: Warehouse, name: str) -> int | None:
    """Write a checkpoint of the table's last version, and which that is; None where Delta's Java is not at hand."""
    snapshot = last_snapshot(warehouse, name)
    if snapshot is None:
        return None
    jvm: Any = warehouse.spark._jvm
    snapshot.deltaLog().checkpoint(snapshot, jvm.scala.Option.empty())
    return int(snapshot.version())


def _forget_log(warehouse: Warehouse, name: str, *, before: int) -> None:
    """Remove the log before a version that has a checkpoint, as Delta does with an old one."""
    jvm: Any = warehouse.spark._jvm
    system, folder = _located(warehouse.spark, f"{warehouse.path(name)}/_delta_log")
    paths = [str(status.getPath()) for status in system.listStatus(folder)]
    if not any(re.search(rf"/{before:020d}\.checkpoint.*\.parquet$", path) for path in paths):
        return  # nothing may go before its checkpoint is there
    for path in paths:
        found = _LOG_VERSION.search(path)
        if found is not None and int(found[1]) < before:
            system.delete(jvm.org.apache.hadoop.fs.Path(path), False)


@contextmanager
def _without_retention_check(spark: SparkSession) -> Iterator[None]:
    from pyspark.errors import PySparkException

    before = spark.conf.get(_RETENTION_CHECK, None)
    try:
        spark.conf.set(_RETENTION_CHECK, "false")
    except PySparkException:
        raise TableError(
            "The rows are erased, and files of earlier versions stay: this compute (serverless) lets no session VACUUM "
            "without retention.",
            hint="Run the same command again on a cluster of your own.",
        ) from None
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_RETENTION_CHECK)
        else:
            spark.conf.set(_RETENTION_CHECK, before)


def _listed(spark: SparkSession, folder: str) -> Iterator[str]:
    system, path = _located(spark, folder)
    files = system.listFiles(path, True)
    while files.hasNext():
        yield str(files.next().getPath())


def _located(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    return location.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), location


def _file_name(path: str) -> str:
    return unquote(path).rsplit("/", 1)[-1]
