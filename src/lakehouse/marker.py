"""`ops.warehouse`: in which format the tables of a warehouse are kept, so that older code leaves a newer one alone."""

from __future__ import annotations

from importlib.metadata import version

from pyspark.sql import functions as F

from lakehouse.errors import TableError
from lakehouse.tables import TableSpec, Warehouse, small_table

# What this code reads and writes. A new number is for a change that code of this one would read or write wrongly.
FORMAT = 1
# Warehouses that were written before there was a marker.
UNMARKED = 1

_VALUES = "format INT, created_by STRING"
MARKER = TableSpec(name="ops.warehouse", columns=f"{_VALUES}, created_at TIMESTAMP")


def check_format(warehouse: Warehouse) -> int:
    """The format of the warehouse; a new one, and one without a marker, counts as format 1. Reads only.

    Raises TableError when the format is newer than this code knows.
    """
    marks = _marks(warehouse)
    if not marks:
        return UNMARKED
    found, creator = max(marks)
    if found > FORMAT:
        raise TableError(
            f"The warehouse {warehouse.location} was written by orders-lakehouse {creator} (format {found}); "
            f"this is {release()} and knows formats up to {FORMAT}.",
            remedy="Upgrade, or use another warehouse.",
        )
    return found


def mark_format(warehouse: Warehouse) -> None:
    """Write the marker when there is none: call it inside the lease, or two runs may write one each.

    A warehouse that has tables and no marker gets one of format 1 as well: there was no other format before markers.
    """
    if not _marks(warehouse):
        warehouse.ensure(MARKER)
        marker = [{"format": FORMAT, "created_by": release()}]
        rows = small_table(warehouse.spark, marker, _VALUES).withColumn("created_at", F.current_timestamp())
        warehouse.append(MARKER.name, rows)


def _marks(warehouse: Warehouse) -> list[tuple[int, str]]:
    """Format and release of every row of the marker: one, unless two runs of old code came together."""
    if not warehouse.exists(MARKER.name):
        return []
    rows = warehouse.read(MARKER.name).select("format", "created_by").collect()
    return [(row["format"], row["created_by"]) for row in rows]


def release() -> str:
    """The release of this code."""
    return version("orders-lakehouse")
