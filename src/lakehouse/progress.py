"""`ops.progress`: up to which version of a table a consumer of its changes has come."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pyspark.sql import functions as F

from lakehouse.tables import TableSpec, Warehouse, small_table

PROGRESS = TableSpec(
    name="ops.progress",
    columns="consumer STRING, table STRING, table_created_ms BIGINT, version BIGINT, updated_at TIMESTAMP",
)


@dataclass(frozen=True)
class Version:
    """A commit of one table. `created_ms` tells a table from a later one of the same name.

    `size_in_bytes` of its data, where it was looked at: it tells no version from another.
    """

    table: str
    created_ms: int
    number: int
    size_in_bytes: int = field(default=0, compare=False)

    def goes_on_to(self, later: Version) -> bool:
        """Whether `later` is a later commit of this very table: not of one made anew, or restored to before this."""
        return self.created_ms == later.created_ms and self.number <= later.number


def current(warehouse: Warehouse, table: str) -> Version:
    """The table's last commit."""
    created_ms, size_in_bytes = warehouse.created_and_size(table)
    return Version(table, created_ms, warehouse.version(table), size_in_bytes)


def taken(warehouse: Warehouse, consumer: str) -> dict[str, Version]:
    """The last commit of each table that `consumer` has taken, by table."""
    rows = warehouse.read(PROGRESS.name).where(F.col("consumer") == consumer).collect()
    return {row["table"]: Version(row["table"], row["table_created_ms"], row["version"]) for row in rows}


def taken_by(warehouse: Warehouse, table: str, consumers: Collection[str]) -> dict[str, Version]:
    """The last commit of one table that each of these consumers has taken, by consumer."""
    rows = warehouse.read(PROGRESS.name).where((F.col("table") == table) & F.col("consumer").isin(*consumers)).collect()
    return {row["consumer"]: Version(table, row["table_created_ms"], row["version"]) for row in rows}


def record(warehouse: Warehouse, consumer: str, versions: Iterable[Version]) -> None:
    """Write down that `consumer` has taken these commits."""
    _record(warehouse, [(consumer, version) for version in versions])


def record_for(warehouse: Warehouse, consumers: Iterable[str], version: Version) -> None:
    """Write down that each of the consumers has taken this commit."""
    _record(warehouse, [(consumer, version) for consumer in consumers])


def _record(warehouse: Warehouse, taken: Iterable[tuple[str, Version]]) -> None:
    rows = small_table(
        warehouse.spark,
        [
            {"consumer": consumer, "table": one.table, "table_created_ms": one.created_ms, "version": one.number}
            for consumer, one in taken
        ],
        "consumer STRING, table STRING, table_created_ms BIGINT, version BIGINT",
    ).withColumn("updated_at", F.current_timestamp())
    (
        warehouse.delta(PROGRESS.name)
        .alias("known")
        .merge(rows.alias("new"), "known.consumer = new.consumer AND known.table = new.table")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )


def forget_others(warehouse: Warehouse, consumer: str, *, like: str) -> None:
    """Take back what every other consumer whose name begins with `like` has written down."""
    is_other = F.col("consumer").startswith(like) & (F.col("consumer") != consumer)
    warehouse.delta(PROGRESS.name).delete(is_other)
