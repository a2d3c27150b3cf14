"""Rows as the source of a MERGE: few of them into a large table, without sorting that table.

A MERGE that may insert joins its rows, on the left, with the table. Neither side of such a join can be sent along, so
Spark sorts both: all columns of ten million rows, for ten thousand changes. With a Bloom filter of the keys it sorts
the rows of the table that may match, and no others. Spark has such filters, and here they are made sure of.
https://spark.apache.org/docs/latest/sql-performance-tuning.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.held import held
from lakehouse.sizing import MANY, MOST_SENT_ALONG, rows_in, sent_along

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The rows are held: Delta need not hold them once more, which would hide how few they are.
_FILTERED = {
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1PB",
}


@contextmanager
def merge_source(rows: DataFrame, *, key: str, count: int | None, size_in_bytes: int) -> Iterator[DataFrame]:
    """The rows as a MERGE into a table of this size takes them, inside the block; they must not change in it.

    `count`: how many there are at most, None where there may be many. `key`: a column that the MERGE compares.
    """
    if count is None:
        yield rows
    elif not is_filtered(count, size_in_bytes):
        yield sent_along(rows, count)
    else:
        with ExitStack() as stack:
            # Of rows that are held Spark does not know the number; of a limit of such rows it does, and keeps it where
            # nothing else is in the plan. This one cuts nothing off.
            kept = stack.enter_context(held(rows))
            few = stack.enter_context(held(kept.limit(10 * MOST_SENT_ALONG)))
            # It takes rows for a choice, and makes a filter of their keys, where a condition has chosen them.
            chosen = few.where(F.coalesce(F.length(F.col(key).cast("string")), F.lit(0)) >= 0)
            with _settings(rows):
                yield chosen


def is_filtered(count: int, size_in_bytes: int) -> bool:
    """Whether a table of this size is filtered for so many rows. Databricks has a MERGE of its own."""
    is_large = rows_in(size_in_bytes) >= MANY
    return count <= MOST_SENT_ALONG and is_large and "DATABRICKS_RUNTIME_VERSION" not in os.environ


@contextmanager
def _settings(rows: DataFrame) -> Iterator[None]:
    conf = rows.sparkSession.conf
    before = {key: conf.get(key, None) for key in _FILTERED}
    for key, value in _FILTERED.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                conf.unset(key)
            else:
                conf.set(key, earlier)
