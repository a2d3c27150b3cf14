"""Maintenance of Delta tables: small files joined, and files removed that no version within the retention needs.

Neither changes a row: a table is the same before and after, and so is its change data feed within the retention.
https://docs.delta.io/latest/optimizations-oss.html, https://docs.delta.io/latest/delta-utility.html#vacuum
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.delta.lease import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakehouse.delta.tables import Warehouse

# Delta's own default. Readers that take longer than that, and a gold that was blocked for longer, lose their version.
RETENTION_HOURS = 168
# `VACUUM ... DRY RUN` names so many files at most.
MAX_NAMED = 1000


@dataclass(frozen=True)
class Maintained:
    """What maintenance did to a table, or would do. `unneeded_files`: None when they were not counted."""

    table: str
    files_before: int
    files_after: int
    bytes_rewritten: int
    unneeded_files: int | None


def maintainable(warehouse: Warehouse, names: Iterable[str]) -> list[str]:
    """Those of the tables that are there, without the lease: its row is rewritten while others are maintained."""
    return [name for name in names if name != LEASE.name and warehouse.exists(name)]


def planned(warehouse: Warehouse, name: str, *, retention_hours: int = RETENTION_HOURS) -> Maintained:
    """How many files the table has, and how many of its old ones would be removed. Changes nothing."""
    files = _files(warehouse, name)
    listed = warehouse.spark.sql(f"VACUUM {warehouse.sql_name(name)} RETAIN {retention_hours} HOURS DRY RUN")
    return Maintained(name, files, files, 0, listed.limit(MAX_NAMED).count())


def carried_out(warehouse: Warehouse, name: str, *, retention_hours: int = RETENTION_HOURS) -> Maintained:
    """Join the table's small files, then remove the files that no version within the retention needs."""
    before = _files(warehouse, name)
    metrics = warehouse.delta(name).optimize().executeCompaction().selectExpr("metrics.filesAdded.totalSize AS size")
    written = int(metrics.collect()[0]["size"] or 0)
    warehouse.spark.sql(f"VACUUM {warehouse.sql_name(name)} RETAIN {retention_hours} HOURS").collect()
    return Maintained(name, before, _files(warehouse, name), written, None)


def _files(warehouse: Warehouse, name: str) -> int:
    return int(warehouse.delta(name).detail().select("numFiles").collect()[0]["numFiles"])


def forget_leases(warehouse: Warehouse) -> None:
    """Remove the files of the lease's former rows, those of the last hour excepted; where there is a lease."""
    if warehouse.exists(LEASE.name):
        warehouse.delta(LEASE.name).vacuum()
