"""`ops.warehouse`: in which format the tables of a warehouse are kept, so that older code leaves a newer one alone."""

from __future__ import annotations

from importlib.metadata import version

from pyspark.sql import functions as F

from lakehouse.errors import TableError
from lakehouse.tables import TableSpec, Warehouse, small_table

# What this code reads and writes. A new number is for a change that code of this one would read or write wrongly.
# 2: `ops.batches` is all that silver writes down of its batches.
FORMAT = 2
# A table that format 1 had, and later ones have not: for warehouses without a marker.
_OF_FORMAT_1 = "ops.ledger"

_VALUES = "format INT, created_by STRING"
MARKER = TableSpec(name="ops.warehouse", columns=f"{_VALUES}, created_at TIMESTAMP")


def check_format(warehouse: Warehouse) -> None:
    """Look whether this code may touch the warehouse: one without tables, or of its own format. Reads only.

    Raises TableError when the format is newer than this code knows, or an older one.
    """
    marks = _marks(warehouse)
    if marks:
        found, creator = max(marks)
    elif warehouse.exists(_OF_FORMAT_1):
        found, creator = 1, "of an earlier release"
    else:
        return
    if found == FORMAT:
        return
    written = f"The warehouse {warehouse.location} was written by orders-lakehouse {creator} (format {found})"
    if found > FORMAT:
        raise TableError(
            f"{written}; this is {release()} and knows formats up to {FORMAT}.",
            remedy="Upgrade, or use another warehouse.",
        )
    raise TableError(
        f"{written}; this is {release()}, which reads format {FORMAT} alone.",
        remedy="Build it anew from the topics: run with another, empty --warehouse. The old one stays as it is.",
    )


def mark_format(warehouse: Warehouse) -> None:
    """Write the marker when there is none: call it inside the lease, or two runs may write one each."""
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
