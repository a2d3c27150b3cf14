"""The format of a warehouse: a property of `ops.batches`, written once; a warehouse of another format is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakehouse.batches import BATCHES, FORMAT, FORMAT_PROPERTY, RELEASE_PROPERTY, check_format, mark_format, release
from lakehouse.delta.tables import TableSpec
from lakehouse.errors import TableError

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark


def marked(warehouse: Warehouse, found: int, by: str) -> None:
    """As another release would have marked the warehouse."""
    mark_format(warehouse)
    of_other = {FORMAT_PROPERTY: str(found), RELEASE_PROPERTY: by}
    told = ", ".join(f"'{key}' = '{value}'" for key, value in of_other.items())
    warehouse.spark.sql(f"ALTER TABLE {warehouse.sql_name(BATCHES.name)} SET TBLPROPERTIES ({told})")


def test_it_is_written_once_and_a_newer_one_is_refused(warehouse: Warehouse) -> None:
    check_format(warehouse)
    assert not warehouse.exists(BATCHES.name), "checking writes nothing"
    mark_format(warehouse)
    mark_format(warehouse)
    check_format(warehouse)
    properties = warehouse.properties(BATCHES.name)
    assert (properties[FORMAT_PROPERTY], properties[RELEASE_PROPERTY]) == (str(FORMAT), release())
    assert warehouse.version(BATCHES.name) == 0
    warehouse.ensure(BATCHES)

    marked(warehouse, FORMAT + 1, "9.9")
    before = warehouse.version(BATCHES.name)
    with pytest.raises(TableError) as refused:
        check_format(warehouse)
    assert refused.value.exit_code == 5
    assert refused.value.what == (
        f"The warehouse {warehouse.location} was written by orders-lakehouse 9.9 (format {FORMAT + 1}); "
        f"this is {release()} and knows formats up to {FORMAT}."
    )
    mark_format(warehouse)
    assert warehouse.version(BATCHES.name) == before, "what another release wrote stays"


@pytest.mark.parametrize("table", ["ops.ledger", "ops.warehouse", "ops.batches"])
def test_a_warehouse_of_a_format_before_there_was_the_property_is_refused_with_the_way_on(
    warehouse: Warehouse, table: str
) -> None:
    warehouse.ensure(TableSpec(name=table, columns="read BIGINT"))
    with pytest.raises(TableError) as refused:
        check_format(warehouse)
    assert refused.value.what == (
        f"The warehouse {warehouse.location} was written by another release of orders-lakehouse (an earlier format); "
        f"this is {release()}, which reads format {FORMAT} alone."
    )
    assert "Rebuild it from the topics" in str(refused.value)


def test_an_older_format_is_refused_too(warehouse: Warehouse) -> None:
    marked(warehouse, FORMAT - 1, "0.9")
    with pytest.raises(TableError) as refused:
        check_format(warehouse)
    assert f"orders-lakehouse 0.9 (format {FORMAT - 1}); this is {release()}" in refused.value.what
