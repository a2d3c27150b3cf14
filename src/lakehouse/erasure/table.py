"""`ops.erased`: what was erased, without a value of it.

Every row is of one kind, with what that kind has to say and nothing else:

    record  a record of bronze, by its coordinates, and the `headers` that stand in its place: should bronze read it
            from Kafka again, it is stored without its key and value
    key     of a silver table the digest of a key, and the `position` up to which its events are superseded
    table   a table whose files were removed, and the `version` since which its log describes no file with the row
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from lakehouse.erasure.names import HEADERS
from lakehouse.kafka.ranges import TOPIC_PARTITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# `salt`: one for a warehouse, so that digests of two warehouses do not compare. `position`: as JSON; NULL where the
# table had no row. Statistics of kinds and coordinates alone.
ERASED = TableSpec(
    name="ops.erased",
    columns=f"""
        kind STRING, source STRING, feed STRING, request STRING,
        topic STRING, topic_id STRING, partition INT, offset BIGINT, headers {HEADERS},
        salt STRING, key_digest STRING, position STRING,
        table STRING, version BIGINT, erased_at TIMESTAMP
    """,
    properties={"delta.dataSkippingStatsColumns": "kind,source,feed,topic,partition,offset"},
)
_FEW = """
    kind STRING, source STRING, feed STRING, request STRING, salt STRING, key_digest STRING, position STRING,
    table STRING, version BIGINT
"""


def erased(warehouse: Warehouse, kind: str) -> DataFrame | None:
    """The rows of a kind; None where nothing was ever erased."""
    if not warehouse.exists(ERASED.name):
        return None
    return warehouse.read(ERASED.name).where(F.col("kind") == kind)


def erased_records(warehouse: Warehouse, source: str) -> DataFrame | None:
    """TOPIC_PARTITION, offset and headers of the source's erased records, each once; None where there are none."""
    rows = erased(warehouse, "record")
    if rows is None:
        return None
    own = rows.where(F.col("source") == source)
    return own.select(*TOPIC_PARTITION, "offset", "headers").dropDuplicates([*TOPIC_PARTITION, "offset"])


def write_rows(warehouse: Warehouse, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows of the kinds `key` and `table`."""
    write(warehouse, inline_rows(warehouse.spark, rows, _FEW))


def write(warehouse: Warehouse, rows: DataFrame) -> None:
    """Append rows, erased now; the columns that they do not have are NULL."""
    warehouse.append(ERASED.name, rows.withColumn("erased_at", F.current_timestamp()))


def key_rows(warehouse: Warehouse) -> list[Mapping[str, Any]]:
    """`feed`, `salt`, `key_digest` and `position` of all erased keys; few."""
    rows = erased(warehouse, "key")
    if rows is None:
        return []
    found = rows.select("feed", "salt", "key_digest", "position").distinct().collect()
    return [row.asDict() for row in found]


def salt_of(warehouse: Warehouse) -> str | None:
    """The salt of the warehouse's digests; None before the first one."""
    rows = erased(warehouse, "key")
    first = None if rows is None else rows.select("salt").first()
    return None if first is None else str(first["salt"])


def clean_since(warehouse: Warehouse, digests: Collection[str]) -> dict[str, int]:
    """By table the version since which its log describes no file with a row of these keys (digests).

    Only tables whose files were removed after all of these keys were erased last.
    """
    keys, tables = erased(warehouse, "key"), erased(warehouse, "table")
    if keys is None or tables is None:
        return {}
    # Keys are no text of a plan, digests may be: nothing of a row is in them without the salt.
    last = keys.where(F.col("key_digest").isin(*digests)).agg(F.max("erased_at").alias("last"))
    later = tables.join(F.broadcast(last), on=F.col("erased_at") > F.col("last"), how="inner")
    found = later.groupBy("table").agg(F.max("version").alias("version")).collect()
    return {row["table"]: int(row["version"]) for row in found}
