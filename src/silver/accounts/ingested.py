"""What bronze has that silver has not read, by the rows `planned` of `ops.batches`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.batches import batches
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.ranges import TOPIC_PARTITION
from silver.order.ranges import IngestedRange, ReadRanges

if TYPE_CHECKING:
    from pyspark.sql import Row


def unread_ranges(warehouse: Warehouse, read: Mapping[str, ReadRanges]) -> dict[str, list[IngestedRange]]:
    """By source, what bronze has ingested behind what silver has `read`; one query for all sources."""
    if not read:
        return {}
    is_later = [(F.col("source") == source) & (F.col("sequence") > known.ingested_to) for source, known in read.items()]
    rows = batches(warehouse, "bronze").where(F.col("planned").isNotNull() & reduce(or_, is_later))
    found: dict[str, list[IngestedRange]] = {source: [] for source in read}
    written = F.unix_millis("written_at").alias("written_ms")
    for row in rows.select("source", "sequence", *TOPIC_PARTITION, "planned.*", written).collect():
        found[row["source"]].append(_entry(row))
    return found


def _entry(row: Row) -> IngestedRange:
    return IngestedRange(
        sequence=row["sequence"],
        topic_partition=(row["topic"], row["topic_id"], row["partition"]),
        begin=row["from_offset"],
        until=row["until_offset"],
        records=row["records"],
        written_ms=row["written_ms"],
        value_bytes=row["value_bytes"],
        first=row["first_offset"],
        last=row["last_offset"],
        first_ms=row["first_ms"],
    )
