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
    check_format(warehouse)
    assert not warehouse.exists(MARKER.name), "checking writes nothing"
    mark_format(warehouse)
    mark_format(warehouse)
    check_format(warehouse)
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


@pytest.mark.parametrize("is_marked", [True, False])
def test_an_older_format_is_refused_with_the_way_on(warehouse: Warehouse, is_marked: bool) -> None:
    warehouse.ensure(TableSpec(name="ops.ledger", columns="read BIGINT"))
    creator = "of an earlier release"
    if is_marked:
        mark_format(warehouse)
        warehouse.delta(MARKER.name).update(set={"format": F.lit(1), "created_by": F.lit("0.9")})
        creator = "0.9"
    with pytest.raises(TableError) as refused:
        check_format(warehouse)
    assert refused.value.what == (
        f"The warehouse {warehouse.location} was written by orders-lakehouse {creator} (format 1); "
        f"this is {release()}, which reads format {FORMAT} alone."
    )
    assert "Build it anew from the topics" in str(refused.value)


def test_a_marker_whose_writing_was_cut_off_is_written_again(warehouse: Warehouse) -> None:
    """The table was created, and the process ended before its row."""
    warehouse.ensure(MARKER)
    check_format(warehouse)
    mark_format(warehouse)
    assert warehouse.read(MARKER.name).count() == 1
