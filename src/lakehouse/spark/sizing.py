"""How much Spark prepares a query for: the few rows of bookkeeping, or the many of a backlog.

A command starts Spark, asks it hundreds of small questions, and moves rows in a few. Generating and compiling code for
each question, and planning it again between its stages, takes longer than answering it; for many rows it pays. So a
session on one machine begins prepared for few rows (FEW_ROWS), and is prepared for many around what moves them. On a
cluster, and on Databricks, Spark is left as it is set there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# From so many rows on, generated code has earned its compilation (docs/decisions/40-what-was-tried-for-speed.md).
LARGE_ROWS = 100_000
FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


# At most so many keys, or rows of a few columns, are broadcast to a join; and rows of any width of at most so many
# bytes together: all of them are in the driver's memory.
MAX_BROADCAST = 100_000
MAX_BYTES_BROADCAST = 64_000_000
# So many rows of a few columns are fetched into this process, and become a part of plans.
MAX_FETCHED = 20_000
# What a row of silver or gold takes in a file, about: enough to distinguish few from many.
BYTES_OF_A_ROW = 13


# Up to so many rows of a table, a MERGE without deletion vectors is cheaper: it takes eight jobs less, and writes the
# unchanged rows of its files again (docs/decisions/35-small-tables-are-rewritten.md).
SMALL_TABLE_ROWS = 5_000
_DELETION_VECTORS = "spark.databricks.delta.merge.deletionVectors.persistent"
# So many rows of a table that is searched for a few cost what one costs that is read, judged and written.
SCAN_COST_RATIO = 8


def rows_in(size_in_bytes: int) -> int:
    """About how many rows tables of this size have."""
    return size_in_bytes // BYTES_OF_A_ROW


def rows_to_search(size_in_bytes: int) -> int:
    """What it costs to search tables of this size for a few rows, in rows that are read and written."""
    return rows_in(size_in_bytes) // SCAN_COST_RATIO


def broadcast(rows: DataFrame, count: int) -> DataFrame:
    """The same rows; where they are few, with the hint to broadcast them to the join.

    Spark does not know how many rows a plan leaves. It would sort both sides: a table of millions, for a few changes.
    """
    from pyspark.sql import functions as F

    return F.broadcast(rows) if count <= MAX_BROADCAST else rows


def in_one_part(rows: DataFrame) -> DataFrame:
    """Few rows as one partition: to join it with another one, no job of its own has to send rows anywhere."""
    return rows.coalesce(1).hint("merge")


def many_rows() -> dict[str, str]:
    """The same settings for many rows: a partition a core; more of them would cost more than they spread."""
    return {
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }


@contextmanager
def rewrite_small_table(spark: SparkSession, size_in_bytes: int | None) -> Iterator[None]:
    """Inside the block a MERGE writes no deletion vectors, if the table is known to have at most SMALL_TABLE_ROWS.

    Only in a session that is prepared for few rows: on a cluster, and on Databricks, Delta decides.
    """
    is_small = size_in_bytes is not None and rows_in(size_in_bytes) <= SMALL_TABLE_ROWS
    if not is_small or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        yield
        return
    is_for_few = all(spark.conf.get(key, None) == value for key, value in FEW_ROWS.items())
    # Already "false": an operator has set it.
    if not is_for_few or spark.conf.get(_DELETION_VECTORS, "true") != "true":
        yield
        return
    spark.conf.set(_DELETION_VECTORS, "false")
    try:
        yield
    finally:
        spark.conf.unset(_DELETION_VECTORS)


def shuffle_partitions(spark: SparkSession) -> int:
    """Into how many partitions the session shuffles rows. Serverless compute lets this setting be read."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


@contextmanager
def tuned_for(spark: SparkSession, rows: int) -> Iterator[None]:
    """Inside the block the session is prepared for so many rows. Settings that are not FEW_ROWS' stay as they are."""
    if rows < LARGE_ROWS or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        yield
        return
    changed = [key for key, value in FEW_ROWS.items() if spark.conf.get(key) == value]
    for key in changed:
        spark.conf.set(key, many_rows()[key])
    try:
        yield
    finally:
        for key in changed:
            spark.conf.set(key, FEW_ROWS[key])
