"""A file of a table that is damaged or gone: the sentence names the table, the file and the way on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.records import store
from bronze.events import events_table
from demo.__main__ import DATA
from gold import build
from gold.derived import marts
from gold.state_store import StateStore
from gold.unify import UNIFIED
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.errors import TableError
from lakehouse.failures import storage_errors
from silver import apply as silver
from tests.support.bronze import bronze_rows
from tests.support.gold import Shop, ungated

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Damage = Callable[[Path], None]


def flip_a_byte(file: Path) -> None:
    """In the middle, as a bad disk does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(bytes(content))


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])
    checksum(file).unlink()


def flip_without_a_checksum(file: Path) -> None:
    """As on a store that keeps no checksums beside its files."""
    checksum(file).unlink()
    content = bytearray(file.read_bytes())
    # The footer's length, and what stands before it.
    content[-12:-4] = os.urandom(8)
    file.write_bytes(bytes(content))


def checksum(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def files(warehouse: Warehouse, table: str) -> list[Path]:
    """The files of the table as it is now, the largest first."""
    found = [Path(re.sub(r"^file:(//)?(?=/)", "", name)) for name in warehouse.read(table).inputFiles()]
    return sorted(found, key=lambda file: -file.stat().st_size)


def forget_what_was_read(warehouse: Warehouse) -> None:
    """As a process that begins: Spark and Delta remember files."""
    warehouse.spark.catalog.clearCache()
    warehouse.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


@pytest.fixture
def recorded(empty_silver: Callable[[], Warehouse]) -> Warehouse:
    """A bronze of a recording of PostgreSQL that silver has not read."""
    warehouse = empty_silver()
    for source in ("postgres", "mysql"):
        warehouse.ensure(events_table(source))
    topics = {"pg.public.orders": "postgres_prod_tables.public.orders"}
    rows = bronze_rows(warehouse.spark, DATA / "pg_default.jsonl.gz", topics=topics)
    store(warehouse, "postgres", rows.coalesce(1))
    return warehouse


@pytest.mark.parametrize("damage", [flip_a_byte, cut_off, flip_without_a_checksum, Path.unlink])
def test_a_file_of_bronze_is_named_with_the_way_on(recorded: Warehouse, contracts: Contracts, damage: Damage) -> None:
    (file,) = files(recorded, "bronze.postgres_events")
    damage(file)
    forget_what_was_read(recorded)
    chosen = settings(warehouse=recorded.location, checkpoints=recorded.checkpoints)
    with pytest.raises(TableError) as stopped:
        silver.run(recorded.spark, chosen, contracts, run_id="run")
    what = "is not there any more" if damage is Path.unlink else "cannot be read: its content is damaged"
    assert stopped.value.what == f"silver: postgres: a file of bronze.postgres_events {what}: {file}."
    assert stopped.value.hint == "Restore the file from a backup; docs/verify.md says what is possible without one."
    assert stopped.value.exit_code == 5


@pytest.fixture
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts) -> Iterator[Shop]:
    """Gold with orders of both sources, and its mart."""
    warehouse = empty_silver()
    made = Shop(warehouse, settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints), contracts)
    made.write("postgres_orders", *({"order_id": number} for number in range(1, 40)))
    made.write("mysql_orders", {"order_id": 1}, {"order_id": 2, "status": "completed"})
    made.run("first")
    yield made


def differing(shop: Shop) -> list[tuple[int, str | None]]:
    """How many keys of gold and of its mart are not as they should be, and why they were not compared."""
    state, gold = StateStore().read(shop.warehouse), shop.contracts.gold
    found = [
        build.compare(shop.warehouse, shop.contracts, state=state),
        *(marts.compare(shop.warehouse, gold, name, state=state) for name in gold.marts),
    ]
    return [(one.differing, one.why_not) for one in found]


@pytest.mark.parametrize("damage", [flip_a_byte, cut_off, Path.unlink])
def test_a_refresh_writes_gold_without_reading_what_is_damaged(shop: Shop, damage: Damage) -> None:
    before, mart = shop.gold(), shop.mart("orders_daily")
    assert differing(shop) == [(0, None), (0, None)]
    for table in (UNIFIED, "gold.orders_daily"):
        for file in files(shop.warehouse, table):
            damage(file)
    forget_what_was_read(shop.warehouse)
    storage_paths = (shop.warehouse.location,)
    with (
        pytest.raises(TableError, match=r"a file of gold\.unified_orders .*\.parquet\. Run `lakehouse gold --full-"),
        storage_errors(job="verify", storage_paths=storage_paths),
    ):
        differing(shop)
    shop.write("postgres_orders", {"order_id": 1, "status": "paid"})
    with (
        pytest.raises(TableError, match=r"gold: a file of gold\.unified_orders .* Run `lakehouse gold --full-refresh"),
        storage_errors(job="gold", storage_paths=storage_paths),
    ):
        shop.run("changed")
    outcome = shop.run("refreshed", full_refresh=True)
    assert (outcome.changed_rows, outcome.unpublished_sources) == (len(before), ())
    assert differing(shop) == [(0, None), (0, None)]
    without_time = {key: {**row, "processed_at": None} for key, row in shop.gold().items()}
    assert without_time == {
        key: {**row, "processed_at": None, **({"status": "paid"} if key == "PG-1" else {})}
        for key, row in before.items()
    }
    assert shop.mart("orders_daily") == mart
    shop.write("postgres_orders", {"order_id": 2, "status": "paid"})
    assert shop.run("goes on").changed_rows == 1


def test_a_refresh_loses_nothing_of_a_source_that_is_blocked(shop: Shop) -> None:
    shop.write("mysql_orders", {"order_id": 2, "total_amount": "-1.00"})
    for file in files(shop.warehouse, UNIFIED):
        flip_a_byte(file)
    forget_what_was_read(shop.warehouse)
    with pytest.raises(TableError, match=r"gate 2 blocks mysql: what it has of that would be lost"):
        shop.run("refreshed", full_refresh=True)


def test_a_file_of_silver_and_the_log_of_gold_have_ways_on_of_their_own(shop: Shop) -> None:
    storage_paths = (shop.warehouse.location,)
    shop.write("postgres_orders", {"order_id": 1, "status": "paid"})
    for file in Path(shop.warehouse.path(UNIFIED), "_delta_log").glob("*00000.*"):
        file.unlink()
    forget_what_was_read(shop.warehouse)
    folder = shop.warehouse.path(UNIFIED)
    with (
        pytest.raises(
            TableError, match=rf"a file of gold\.unified_orders .*json\. Move the folder {folder} away, then"
        ),
        storage_errors(job="gold", storage_paths=storage_paths),
    ):
        shop.run("the log is damaged")
    Path(folder).rename(f"{folder}.damaged")
    forget_what_was_read(shop.warehouse)
    assert shop.run("made again").changed_rows == 41
    for file in files(shop.warehouse, "silver.postgres_orders"):
        flip_a_byte(file)
    forget_what_was_read(shop.warehouse)
    with (
        pytest.raises(TableError, match=r"a file of silver\.postgres_orders .* or rebuild silver from bronze"),
        storage_errors(job="gold", storage_paths=storage_paths),
    ):
        shop.run("silver is damaged", full_refresh=True)


@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink])
def test_a_deletion_vector_is_named(shop: Shop, damage: Damage) -> None:
    # Silver writes small tables again; larger ones have vectors.
    shop.warehouse.delta("silver.postgres_orders").update("order_id = 1", {"status": "'paid'"})
    (vector,) = Path(shop.warehouse.path("silver.postgres_orders")).glob("deletion_vector_*.bin")
    damage(vector)
    forget_what_was_read(shop.warehouse)
    named = vector if damage is Path.unlink else ".*"
    with (
        pytest.raises(TableError, match=rf"a file of silver\.postgres_orders .*{named}\. Restore"),
        storage_errors(job="gold", storage_paths=(shop.warehouse.location,)),
    ):
        shop.run("the vector is damaged", ungated(shop.contracts), full_refresh=True)


def test_gold_whose_silver_cannot_be_read_any_more_was_not_compared(shop: Shop) -> None:
    """The versions that gold has taken are gone; silver has gone on."""
    old = files(shop.warehouse, "silver.mysql_orders")
    shop.warehouse.delta("silver.mysql_orders").update(set={"status": "'other'"})
    shop.warehouse.delta("silver.mysql_orders").optimize().executeCompaction()
    assert not set(old) & set(files(shop.warehouse, "silver.mysql_orders"))
    for file in old:
        file.unlink()
    forget_what_was_read(shop.warehouse)
    state = StateStore().read(shop.warehouse)
    compared = build.compare(shop.warehouse, shop.contracts, state=state)
    assert (compared.is_failure, compared.rows) == (True, 0)
    assert "cannot be read any more" in str(compared.why_not)
    shop.run("goes on", ungated(shop.contracts))
    assert differing(shop) == [(0, None), (0, None)]
