"""Whether a history agrees with its table: its last versions are the rows of silver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.delta.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare(warehouse: Warehouse, feed: Feed) -> tuple[int, int]:
    """How many rows of silver are not deleted, and of how many keys the last version is not the row of silver.

    Where the history tracks some columns alone, the others are compared too: they are those of the last change.
    """
    rows = _live(warehouse.read(f"silver.{feed.name}"), feed, "row")
    last = _live(warehouse.read(feed.history_table).where("_is_current"), feed, "version")
    both = rows.join(last, on=["key"], how="full_outer")
    is_other = F.expr("NOT (row <=> version)")
    (counts,) = both.agg(F.count("row").alias("rows"), F.count_if(is_other).alias("differing")).collect()
    return counts["rows"], counts["differing"]


def _live(table: DataFrame, feed: Feed, name: str) -> DataFrame:
    """The key, and as `name` the contract's columns, of what is not deleted: deleted rows of silver may be purged."""
    columns = [column for column, declared in feed.columns.items() if declared.metadata is None]
    return table.where("NOT _is_deleted").select(F.struct(*feed.keys).alias("key"), F.struct(*columns).alias(name))
