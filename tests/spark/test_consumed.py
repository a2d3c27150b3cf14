"""What consumers of changes have taken: written in one commit, read by the next process, remembered by this one."""

from __future__ import annotations

import pytest

from benchmarks.tables import jobs
from lakehouse.batches import BATCHES, batches
from lakehouse.consumed import Consumed, Version
from lakehouse.spark.tables import Warehouse

pytestmark = pytest.mark.spark

ORDERS, SUMS = Version("silver.orders", 1, 7), Version("gold.sums", 2, 3)


def test_the_next_process_reads_what_this_one_remembers(warehouse: Warehouse) -> None:
    warehouse.ensure(BATCHES)
    consumed = Consumed()
    assert consumed.now(warehouse) == {}
    consumed.record(warehouse, {"gold": [ORDERS, SUMS], "mart": [SUMS]})
    later = Version("silver.orders", 1, 8, rows=5)
    consumed.record(warehouse, {"gold": [later]}, forgotten=["mart", "somebody else"])

    assert consumed.now(warehouse) == {"gold": {"silver.orders": later, "gold.sums": SUMS}}
    assert Consumed().now(warehouse) == consumed.now(warehouse)
    assert Consumed().now(warehouse)["gold"]["silver.orders"].rows == 5
    # Of a consumer that is forgotten and takes something in one write, only that holds.
    consumed.record(warehouse, {"gold": [ORDERS]}, forgotten=["gold"])
    assert consumed.now(warehouse) == {"gold": {"silver.orders": ORDERS}}


def test_a_process_asks_once_and_writes_nothing_for_nothing(warehouse: Warehouse) -> None:
    warehouse.ensure(BATCHES)
    consumed = Consumed()
    consumed.record(warehouse, {"gold": [ORDERS]})
    commits = warehouse.version(BATCHES.name)
    before = jobs(warehouse.spark)
    consumed.now(warehouse)
    consumed.record(warehouse, {}, forgotten=["nobody"])
    assert jobs(warehouse.spark) == before
    assert (warehouse.version(BATCHES.name), batches(warehouse, "gold").count()) == (commits, 1)
