"""A batch's versions into the history table; where a cutoff ends versions, and which keys a late one undecides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.spark.materialized import materialized, merge_source
from silver.batch.merge import first_rows
from silver.order.runs import Cutoff
from silver.row_history.table import crossed_by, ended_by, merge_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from silver.batch.outcome import FeedBatch
    from silver.batch.transport import ChangedRows

# Which record a version began with; of a topic that was made again there may be two.
_RECORD = ("topic", "partition", "offset")


def merge_history(batch: FeedBatch, versions: ChangedRows, cutoffs: Sequence[Cutoff]) -> DataFrame | None:
    """Bring the history up to the versions that change, and to the cutoffs of the batch.

    The records of bronze whose keys are to be derived again, since a cutoff has come late; None where there are none.

    It knows by itself how far it is, so a batch that breaks off between the two tables is only repeated.
    """
    feed = batch.feed
    if versions.number:
        if batch.has_no_version:
            batch.warehouse.append(feed.history_table, first_rows(versions.frame()))
        else:
            between, count = batch.key_ranges, versions.number if batch.is_light else None
            size = 0 if between else batch.history_size or 0
            with merge_source(
                versions.frame(), key=feed.keys[0], count=count, size_in_bytes=size, are_kept=True
            ) as rows:
                merge_versions(batch.warehouse.delta(feed.history_table), rows, feed, between=between)
    if not cutoffs or (batch.has_no_version and not versions.number):
        return None
    stored = batch.warehouse.read(feed.history_table)
    ended = ended_by(stored, cutoffs, feed)
    with materialized(ended) as ended:
        if not ended.isEmpty():
            merge_versions(batch.warehouse.delta(feed.history_table), ended, feed)
    began = crossed_by(stored, cutoffs, feed).selectExpr(*(f"_{name} AS {name}" for name in _RECORD)).distinct()
    crossed = [tuple(row) for row in began.collect()]
    if not crossed:
        return None
    wanted = batch.warehouse.spark.createDataFrame(crossed, "topic STRING, partition INT, offset BIGINT")
    return batch.bronze().join(F.broadcast(wanted), on=[*_RECORD], how="left_semi")
