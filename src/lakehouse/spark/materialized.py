"""Rows that are computed once for all that a block of code asks of them, and rows as the source of a MERGE.

Spark keeps them; serverless compute keeps none, so there they are written to files beside the checkpoints.

A MERGE that may insert joins its rows, on the left, with the table. Neither side of such a join can be broadcast, so
Spark sorts both: all columns of ten million rows, for ten thousand changes. With a Bloom filter of the keys it sorts
the rows of the table that may match, and no others. Spark has such filters, and here they are made sure of.
https://spark.apache.org/docs/latest/sql-performance-tuning.html
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from math import ceil
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from lakehouse.spark.sizing import LARGE_ROWS, MAX_BROADCAST, MAX_FETCHED, broadcast, rows_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# The folder that `materialized` writes rows to, where the compute keeps none itself (serverless).
MATERIALIZED_ROWS = "LAKEHOUSE_MATERIALIZED_ROWS"
# What one process fetches at a time: at most so many rows, and about so many bytes of them.
ROWS_AT_ONCE = 20_000
BYTES_AT_ONCE = 32 << 20
# What a value of a fixed size takes.
FIXED_BYTES = 8
# What a run wrote so long ago is of a run that died.
_OLD = timedelta(days=1)


def materialize_in(checkpoints: str, *, run_id: str) -> None:
    """On Databricks' serverless compute, let `materialized` write to a folder of the run beside the checkpoints."""
    if os.environ.get("IS_SERVERLESS", "").lower() == "true":
        os.environ[MATERIALIZED_ROWS] = f"{checkpoints}/_materialized_rows/{run_id}"


def forget_materialized(spark: SparkSession, checkpoints: str) -> int:
    """Remove materialized rows of runs that died: folders a day old or older. How many there were."""
    parent = f"{checkpoints}/_materialized_rows"
    folders = _old_at_uri(spark, parent) if _is_uri(parent) else _old_on_disk(parent)
    for folder in folders:
        _remove(spark, folder)
    return len(folders)


def _old_on_disk(parent: str) -> list[str]:
    day_ago = time.time() - _OLD.total_seconds()
    return [str(folder) for folder in Path(parent).glob("*") if folder.stat().st_mtime < day_ago]


def _old_at_uri(spark: SparkSession, parent: str) -> list[str]:
    """The folders of runs that wrote rows last a day ago or earlier, listed by Spark, which reaches every store."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        files = spark.read.format("binaryFile").load(f"{parent}/*/*/*.parquet")
        run = F.regexp_extract("path", "^(.*)/[^/]+/[^/]+$", 1).alias("run")
        last = files.groupBy(run).agg(F.max("modificationTime").alias("last"))
        return [row["run"] for row in last.where(F.col("last") < F.current_timestamp() - F.lit(_OLD)).collect()]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []  # nothing was ever kept there


def _is_uri(parent: str) -> bool:
    return ":" in parent


def _remove(spark: SparkSession, folder: str) -> None:
    """Remove the rows of a folder. At a URI, files without rows stay.

    There only Spark's writer reaches the store, and over Spark Connect nothing else of Spark does: what it
    overwrites, it deletes.
    """
    if _is_uri(folder):
        spark.range(0).write.mode("overwrite").parquet(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def materialized(rows: DataFrame) -> Iterator[DataFrame]:
    """The same rows, computed once for everything inside the block; on serverless, which keeps none, written to files.

    What is asked of them plans as if they were a table: the plan that makes them is behind them. Were it not, reading
    the records of a batch would be planned again, and parts of it run again, for each of a dozen questions.
    """
    folder = os.environ.get(MATERIALIZED_ROWS)
    if folder:
        with _in_files(rows, f"{folder}/{uuid4().hex}") as kept:
            yield kept
        return
    kept = rows.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        # Spark Connect lets go of its checkpoints itself; here it would wait for the garbage collector.
        if hasattr(kept, "_jdf"):
            kept._jdf.queryExecution().analyzed().rdd().unpersist(False)


# Rows of so many bytes together may go to Python without a limit of the bytes of an Arrow batch.
MAX_BYTES_WITHOUT_LIMIT = 512 * 1024 * 1024


@contextmanager
def without_byte_limit(rows: DataFrame, size_in_bytes: int | None) -> Iterator[None]:
    """Inside the block Arrow batches to Python have ten thousand rows, however many bytes these have.

    Nothing changes where all rows together have more than MAX_BYTES_WITHOUT_LIMIT, or it is not known (None).

    To keep the limit, Spark measures all vectors of a batch before each row, and Arrow for Java fills up a list that is
    NULL anew each time (ListVector.setValueCount): the cost of a batch grows with the square of its rows.
    """
    if size_in_bytes is None or size_in_bytes > MAX_BYTES_WITHOUT_LIMIT:
        yield
        return
    with _settings(rows, {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}):
        yield


@dataclass(frozen=True)
class Fetched:
    """Few rows that were computed once and are here, as a `table`; `rows` are the same as a part of Spark's plans.

    So Spark knows how many they are, and what is asked of them alone reads nothing.
    """

    rows: DataFrame
    table: pa.Table


def fetched(rows: DataFrame) -> Fetched:
    """The rows, computed now: for some MAX_FETCHED of them, and few columns."""
    table = rows.toArrow()
    return Fetched(rows.sparkSession.createDataFrame(table), table)


def fetched_each(parts: Sequence[DataFrame], *, most: int) -> list[Fetched] | None:
    """The rows of each of these, computed now by one action; None where they are more than `most` together."""
    import pyarrow.compute as pc
    from pyspark.sql import functions as F

    # Each has columns of its own: rows of different types are read together, and no type is changed.
    names = [[f"{number}_{at}" for at in range(len(rows.columns))] for number, rows in enumerate(parts)]
    apart = [
        rows.toDF(*own).withColumn("part", F.lit(number))
        for number, (rows, own) in enumerate(zip(parts, names, strict=True))
    ]
    every = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), apart)
    table = every.limit(most + 1).toArrow()
    if table.num_rows > most:
        return None
    found = []
    for number, rows in enumerate(parts):
        own = table.filter(pc.equal(table.column("part"), number)).select(names[number]).rename_columns(rows.columns)
        found.append(Fetched(rows.sparkSession.createDataFrame(own), own))
    return found


def counted(rows: DataFrame) -> tuple[int, int]:
    """How many rows there are, and about how many bytes their values have: by one job, as a count of them takes."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    sizes = [F.lit(FIXED_BYTES * len(rows.columns))]
    for column in rows.schema:
        if isinstance(column.dataType, StringType | BinaryType):
            sizes.append(F.coalesce(F.octet_length(F.col(f"`{column.name}`")), F.lit(0)))
        elif isinstance(column.dataType, ArrayType | MapType | StructType):
            sizes.append(F.coalesce(F.octet_length(F.col(f"`{column.name}`").cast("string")), F.lit(0)))
    size = reduce(add, [size.cast("bigint") for size in sizes])
    row = rows.agg(F.count(F.lit(1)).alias("count"), F.coalesce(F.sum(size), F.lit(0)).alias("bytes")).collect()[0]
    return int(row["count"]), int(row["bytes"])


def in_arrow(rows: DataFrame, *, count: int, size_in_bytes: int) -> Iterator[pa.Table]:
    """All the rows, of which there are `count` and which have about `size_in_bytes`, some thousands at a time.

    A partition is fetched whole, through the memory of Spark's driver, while the one before it is used: so none has
    more than about ROWS_AT_ONCE, nor BYTES_AT_ONCE. Spark fetches Arrow only of all rows together (toArrow), or rows
    one by one: so each Arrow batch travels as the value of one row.
    """
    import pyarrow as pa

    parts = max(ceil(count / ROWS_AT_ONCE), min(ceil(size_in_bytes / BYTES_AT_ONCE), count))
    rows = rows if parts < 2 else rows.repartition(parts)
    # Read when the plan is made: no partition has more than about BYTES_AT_ONCE.
    with without_byte_limit(rows, BYTES_AT_ONCE):
        fetched_rows = rows.mapInArrow(_packed, "packed BINARY").toLocalIterator(prefetchPartitions=True)
    for row in fetched_rows:
        with pa.ipc.open_stream(row["packed"]) as packed:
            yield packed.read_all()


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"packed": [sink.getvalue().to_pybytes()]})


@contextmanager
def persist_or_collect(rows: DataFrame, *, count: int) -> Iterator[DataFrame]:
    """The same rows, computed once for everything inside the block. `count`: how many there are at most."""
    if count <= MAX_FETCHED:
        yield fetched(rows).rows
    else:
        with materialized(rows) as kept:
            yield kept


@contextmanager
def _in_files(rows: DataFrame, parent: str) -> Iterator[DataFrame]:
    """The rows as they are in Parquet files of their own, which go at the end of the block."""
    spark = rows.sparkSession
    try:
        rows.write.parquet(parent)
        yield spark.read.schema(rows.schema).parquet(parent)
    except BaseException:
        with suppress(Exception):  # what ended the block is what counts; `forget_materialized` finds what stays
            _remove(spark, parent)
        raise
    _remove(spark, parent)


# Of materialized rows: Delta need not do it once more, which would hide how few they are.
_AS_THEY_ARE = {"spark.databricks.delta.merge.materializeSource": "none"}
_FILTERED = {
    **_AS_THEY_ARE,
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1PB",
}


@contextmanager
def merge_source(
    rows: DataFrame, *, key: str, count: int | None, size_in_bytes: int, are_kept: bool = False
) -> Iterator[DataFrame]:
    """The rows as a MERGE into a table of this size takes them, inside the block; they must not change in it.

    `count`: how many there are at most, None where there may be many. `key`: a column that the MERGE compares.
    `are_kept`: whether they are materialized, or on the driver: then Delta need not do it once more.
    """
    if count is None or not is_filtered(count, size_in_bytes):
        with _settings(rows, _AS_THEY_ARE if are_kept else {}):
            yield rows if count is None else broadcast(rows, count)
    else:
        from pyspark.sql import functions as F

        with ExitStack() as stack:
            # Spark does not know the number of materialized rows; of a limit of them it does, and keeps it where
            # nothing else is in the plan. This one cuts nothing off.
            kept = stack.enter_context(materialized(rows))
            few = stack.enter_context(materialized(kept.limit(10 * MAX_BROADCAST)))
            # It takes rows for a choice, and makes a filter of their keys, where a condition has chosen them.
            chosen = few.where(F.coalesce(F.length(F.col(key).cast("string")), F.lit(0)) >= 0)
            with _settings(rows, _FILTERED):
                yield chosen


def is_filtered(count: int, size_in_bytes: int) -> bool:
    """Whether a table of this size is filtered for so many rows. Databricks has a MERGE of its own."""
    is_large = rows_in(size_in_bytes) >= LARGE_ROWS
    return count <= MAX_BROADCAST and is_large and "DATABRICKS_RUNTIME_VERSION" not in os.environ


@contextmanager
def _settings(rows: DataFrame, settings: Mapping[str, str]) -> Iterator[None]:
    """Inside the block the rows' session has these settings. Not on Databricks: there sources share a session."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        yield
        return
    conf = rows.sparkSession.conf
    before = {key: conf.get(key, None) for key in settings}
    for key, value in settings.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                conf.unset(key)
            else:
                conf.set(key, earlier)
