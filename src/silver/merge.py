"""The guarded MERGE: a key's row is replaced only by what stands later in the source's history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Feed
from lakehouse.tables import OWN_PROPERTY, UPSERTED, TableSpec
from silver.cells import cell_columns
from silver.position import position_type

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame


def silver_table(feed: Feed) -> TableSpec:
    """`silver.<feed>`: the contract's columns, then what the pipeline knows about each row (columns with `_`)."""
    columns = [f"{column} {declared.type.ddl}" for column, declared in feed.columns.items()]
    technical = [
        f"_position {position_type(feed)}",
        "_op STRING",
        "_is_deleted BOOLEAN",
        "_source_ts TIMESTAMP",
        "_topic STRING",
        "_partition INT",
        "_offset BIGINT",
        "_applied_at TIMESTAMP",
        *(cell_columns(feed, position_type(feed)) if feed.payload == "partial" else ()),
    ]
    made_by = {
        f"{OWN_PROPERTY}source": feed.source,
        f"{OWN_PROPERTY}keys": ", ".join(feed.keys),
        f"{OWN_PROPERTY}payload": feed.payload,
    }
    properties = {**UPSERTED, **made_by}
    return TableSpec(name=f"silver.{feed.name}", columns=", ".join([*columns, *technical]), properties=properties)


def merge_latest(table: DeltaTable, latest: DataFrame, feed: Feed) -> int:
    """Apply the last word on every key; the number of rows that changed.

    Deletes stay as rows with their position and nothing but their key: a late event finds the higher position and
    does nothing. `latest` has at most one row a key.
    """
    same_key = " AND ".join(f"target.{key} = latest.{key}" for key in feed.keys)
    result = (
        table.alias("target")
        .merge(latest.withColumn("_applied_at", F.current_timestamp()).alias("latest"), same_key)
        .whenMatchedUpdateAll(condition="latest._position > target._position")
        .whenNotMatchedInsertAll()
        .execute()
    )
    return int(result.collect()[0]["num_affected_rows"])
