"""In which format the tables of a warehouse are kept: a property of `ops.batches`, so that older code lets it be."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from lakehouse.batches import BATCHES, FORMAT, FORMAT_PROPERTY
from lakehouse.errors import TableError
from lakehouse.tables import Warehouse

RELEASE_PROPERTY = "orders-lakehouse-release"
# Tables of earlier formats that this one has not.
_OF_EARLIER_FORMATS = ("ops.warehouse", "ops.ledger")


def check_format(warehouse: Warehouse) -> None:
    """Look whether this code may touch the warehouse: one without tables, or of its own format. Reads only.

    Raises TableError when the format is newer than this code knows, or an older one.
    """
    if warehouse.exists(BATCHES.name):
        properties = warehouse.properties(BATCHES.name)
        found, creator = int(properties.get(FORMAT_PROPERTY, 0)), properties.get(RELEASE_PROPERTY)
    elif any(map(warehouse.exists, _OF_EARLIER_FORMATS)):
        found, creator = 0, None
    else:
        return
    if found == FORMAT:
        return
    kept_in = f"format {found}" if found else "an earlier format"
    by = f"orders-lakehouse {creator}" if creator else "another release of orders-lakehouse"
    written = f"The warehouse {warehouse.location} was written by {by}"
    if found > FORMAT:
        raise TableError(
            f"{written} ({kept_in}); this is {release()} and knows formats up to {FORMAT}.",
            remedy="Upgrade, or use another warehouse.",
        )
    raise TableError(
        f"{written} ({kept_in}); this is {release()}, which reads format {FORMAT} alone.",
        remedy="Build it anew from the topics: run with another, empty --warehouse. The old one stays as it is.",
    )


def mark_format(warehouse: Warehouse) -> None:
    """Make `ops.batches` when it is not there, with the format and this release as its properties."""
    if not warehouse.exists(BATCHES.name):
        warehouse.ensure(replace(BATCHES, properties={**BATCHES.properties, RELEASE_PROPERTY: release()}))


def release() -> str:
    """The release of this code."""
    return version("orders-lakehouse")
