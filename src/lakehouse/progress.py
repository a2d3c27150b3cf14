"""`ops.progress`: up to which version of a table a consumer of its changes has come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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


def taken_by_all(warehouse: Warehouse) -> dict[str, dict[str, Version]]:
    """The last commit of each table that each consumer has taken, by consumer and table: some rows a consumer."""
    found: dict[str, dict[str, Version]] = {}
    for row in warehouse.read(PROGRESS.name).collect():
        version = Version(row["table"], row["table_created_ms"], row["version"])
        found.setdefault(row["consumer"], {})[version.table] = version
    return found


def record(warehouse: Warehouse, taken: Mapping[str, Iterable[Version]]) -> None:
    """Write down, in one commit, which commits each consumer has taken. Nothing to write is no commit."""
    rows = [
        {"consumer": consumer, "table": one.table, "table_created_ms": one.created_ms, "version": one.number}
        for consumer, versions in taken.items()
        for one in versions
    ]
    if not rows:
        return
    columns = "consumer STRING, table STRING, table_created_ms BIGINT, version BIGINT"
    new = small_table(warehouse.spark, rows, columns).withColumn("updated_at", F.current_timestamp())
    (
        warehouse.delta(PROGRESS.name)
        .alias("known")
        .merge(new.alias("new"), "known.consumer = new.consumer AND known.table = new.table")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )


def forget(warehouse: Warehouse, consumers: Collection[str]) -> None:
    """Take back what these consumers have written down. None of them is no commit."""
    if consumers:
        warehouse.delta(PROGRESS.name).delete(F.col("consumer").isin(*consumers))
