"""The format of a warehouse: written once, and a newer one is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lakehouse.errors import TableError
from lakehouse.marker import FORMAT, MARKER, check_format, mark_format, release
from lakehouse.tables import TableSpec

if TYPE_CHECKING:
    from lakehouse.tables import Warehouse

pytestmark = pytest.mark.spark


def test_it_is_written_once_and_a_newer_one_is_refused(warehouse: Warehouse) -> None:
    assert check_format(warehouse) == 1
    assert not warehouse.exists(MARKER.name), "checking writes nothing"
    mark_format(warehouse)
    mark_format(warehouse)
    assert check_format(warehouse) == FORMAT
    (row,) = warehouse.read(MARKER.name).collect()
    assert (row["format"], row["created_by"]) == (FORMAT, release())
    assert row["created_at"] is not None

    warehouse.delta(MARKER.name).update(set={"format": F.lit(7), "created_by": F.lit("9.9")})
    before = warehouse.version(MARKER.name)
    with pytest.raises(TableError) as refused:
        check_format(warehouse)
    assert refused.value.exit_code == 5
    assert refused.value.what == (
        f"The warehouse {warehouse.location} was written by orders-lakehouse 9.9 (format 7); "
        f"this is {release()} and knows formats up to {FORMAT}."
    )
    mark_format(warehouse)
    assert warehouse.version(MARKER.name) == before, "what another release wrote stays"


def test_tables_without_a_marker_are_of_the_first_format(warehouse: Warehouse) -> None:
    warehouse.ensure(TableSpec(name="bronze.postgres_events", columns="key BINARY"))
    assert check_format(warehouse) == 1
    mark_format(warehouse)
    (row,) = warehouse.read(MARKER.name).collect()
    assert row["format"] == 1


def test_a_marker_whose_writing_was_cut_off_is_written_again(warehouse: Warehouse) -> None:
    """The table was created, and the process ended before its row."""
    warehouse.ensure(MARKER)
    assert check_format(warehouse) == 1
    mark_format(warehouse)
    assert warehouse.read(MARKER.name).count() == 1
