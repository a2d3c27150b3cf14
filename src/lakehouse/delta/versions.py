"""The last commit of a table: by Delta's log alone, without a job, where Delta's Java is here."""

from __future__ import annotations

from lakehouse.delta.delta_log import last_snapshot
from lakehouse.delta.tables import Warehouse
from lakehouse.versions import Version


def current(warehouse: Warehouse, table: str) -> Version:
    """The table's last commit, with its size. Raises TableError when there is no such table."""
    snapshot = last_snapshot(warehouse, table)
    if snapshot is None:
        created_ms, size_in_bytes = warehouse.created_and_size(table)
        return Version(table, created_ms, warehouse.version(table), size_in_bytes)
    known = snapshot.sizeInBytesIfKnown()
    size_in_bytes = int(known.get()) if known.isDefined() else warehouse.created_and_size(table)[1]
    return Version(table, int(snapshot.metadata().createdTime().get()), int(snapshot.version()), size_in_bytes)


def last_version(warehouse: Warehouse, table: str) -> Version:
    """The table's last commit, without its size. Raises TableError when there is no such table."""
    snapshot = last_snapshot(warehouse, table)
    if snapshot is None:
        return current(warehouse, table)
    return Version(table, int(snapshot.metadata().createdTime().get()), int(snapshot.version()))
