"""Gold's state: written in one commit, read by the next process, remembered by this one."""

from __future__ import annotations

import pytest

from benchmarks.tables import jobs
from gold.state import ConsumedVersions, GoldState
from gold.state_store import StateStore
from lakehouse.batches import BATCHES, append, batches
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import TableError
from lakehouse.quality.counting import Counts
from lakehouse.versions import Version

pytestmark = pytest.mark.spark

ORDERS = Version("silver.orders", 1, 7, 512, rows=5, counts={"known": Counts(5, failed=1)})
SUMS = Version("gold.sums", 2, 3)


def test_the_next_process_reads_what_this_one_remembers(warehouse: Warehouse) -> None:
    warehouse.ensure(BATCHES)
    store = StateStore()
    assert store.read(warehouse) == GoldState()
    orders = ConsumedVersions(definition="one", versions={"silver.orders": ORDERS})
    store.write(warehouse, GoldState(orders=orders, publishable={"mysql": SUMS}))
    later = store.read(warehouse).model_copy(
        update={"blocked": {"gold": ("mysql",)}, "marts": {"sums": orders.with_later("two", [SUMS])}}
    )
    store.write(warehouse, later)

    found = StateStore().read(warehouse)
    assert found == store.read(warehouse) == later
    # What gate 2 has counted is no part of what a version is, but of what is remembered of it; its size is neither.
    version = found.orders.versions["silver.orders"]
    assert (version.rows, version.counts, version.size_in_bytes) == (5, ORDERS.counts, 0)
    assert found.blocked_of(["postgres"]) == {}
    assert found.blocked_of(["mysql", "postgres"]) == {"gold": ["mysql"]}


def test_a_process_asks_once_and_writes_nothing_for_nothing(warehouse: Warehouse) -> None:
    warehouse.ensure(BATCHES)
    store = StateStore()
    store.write(warehouse, GoldState(publishable={"mysql": SUMS}))
    commits = warehouse.version(BATCHES.name)
    before = jobs(warehouse.spark)
    store.write(warehouse, store.read(warehouse).model_copy())
    assert jobs(warehouse.spark) == before
    assert (warehouse.version(BATCHES.name), batches(warehouse, "gold").count()) == (commits, 1)


def test_a_state_of_another_release_is_named_and_not_guessed(warehouse: Warehouse) -> None:
    warehouse.ensure(BATCHES)
    append(warehouse, "gold", [{"sequence": 4, "state": '{"later": "a secret"}'}])
    with pytest.raises(TableError, match="not one that this release can read") as raised:
        StateStore().read(warehouse)
    assert "a secret" not in str(raised.value)
