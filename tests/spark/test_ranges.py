"""What silver reads of bronze: each range of offsets once, all of it, whatever breaks off in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import store
from bronze.events import events_table
from lakehouse.batches import batches
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import LakehouseError, TableError
from silver import apply, source_batch
from silver.accounts.audit import StateCache, append, read_state
from silver.batch import apply_feed
from silver.order import ranges
from silver.order.state import OUTCOMES
from silver.rejects import quarantine
from tests.spark.test_decisions import AMOUNT, FEED, TOPIC, event, outbox_event
from tests.support.bronze import bronze_rows
from tests.support.events import Record
from tests.support.recordings import write
from tests.support.silver import apply_stored, job_of, with_gate

pytestmark = pytest.mark.spark

FIRST = [event("c", 1, 100, 0), event("u", 1, 110, 1), event("c", 2, 120, 2, "-1.00"), event("c", 3, 130, 3)]
SECOND = [event("d", 3, 140, 4), event("c", 4, 150, 5), event("u", 1, 160, 6, "7.00")]


class BrokenOffError(Exception):
    """The process ends here."""


class Shop:
    """A warehouse whose bronze gets records of MySQL, batch by batch."""

    def __init__(self, warehouse: Warehouse, contracts: Contracts, folder: Path) -> None:
        self.warehouse, self.contracts, self.folder = warehouse, with_gate(contracts, AMOUNT), folder
        for source in contracts.topics.sources:
            warehouse.ensure(events_table(source))

    def ingest(self, *records: Record) -> None:
        file = write(self.folder / f"{len(list(self.folder.iterdir()))}.jsonl.gz", list(records))
        topics = {record["topic"]: record["topic"] for record in records}
        store(self.warehouse, "mysql", bronze_rows(self.warehouse.spark, file, topics=topics))

    def apply(self) -> None:
        """As a new process does."""
        apply_stored(self.warehouse, job=job_of(self.warehouse, self.contracts, "mysql"))

    def run(self, **more: Any) -> dict[str, int]:
        chosen = settings(warehouse=self.warehouse.location, checkpoints=self.warehouse.checkpoints)
        return apply.run(self.warehouse.spark, chosen, self.contracts, run_id="test", **more)

    def rows(self) -> list[Any]:
        return sorted(self.warehouse.read(f"silver.{FEED}").drop("_applied_at").collect())

    def entries(self) -> list[int]:
        rows = self.warehouse.read("quality.quarantine").where("state = 'open'").select("offset").collect()
        return sorted(row["offset"] for row in rows)

    def counted(self) -> dict[str, int]:
        names = ("read", *OUTCOMES)
        row = batches(self.warehouse, "silver").selectExpr(*(f"coalesce(sum({name}), 0) {name}" for name in names))
        return {name: count for name, count in row.collect()[0].asDict().items() if count}


@pytest.fixture
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path) -> Shop:
    return Shop(empty_silver(), contracts, tmp_path)


def test_a_pass_reads_what_the_one_before_has_not(shop: Shop) -> None:
    shop.ingest(*FIRST)
    shop.ingest(*SECOND)
    assert shop.run() == {
        **dict.fromkeys(OUTCOMES, 0),
        **{"read": 7, "applied": 3, "superseded": 3, "quarantined": 1},
    }
    assert read_state(shop.warehouse, "mysql").last_batch == 0, "what is little is one batch"
    assert shop.run()["read"] == 0
    shop.ingest(event("c", 5, 170, 7))
    assert shop.run()["read"] == 1


def test_a_large_batch_of_bronze_is_cut_and_the_rows_are_the_same(
    shop: Shop, empty_silver: Callable[[], Warehouse], contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Shop(empty_silver(), contracts, shop.folder)
    for one in (shop, other):
        one.ingest(*FIRST, *SECOND)
    other.apply()
    monkeypatch.setattr(ranges, "BATCH_RECORDS", 2)
    shop.apply()
    assert read_state(shop.warehouse, "mysql").last_batch == 3
    assert (shop.rows(), shop.entries()) == (other.rows(), other.entries())
    assert (shop.counted()["read"], shop.counted()["quarantined"]) == (7, 1)


def test_a_batch_that_breaks_off_anywhere_is_read_again_with_what_has_come_since(
    shop: Shop, empty_silver: Callable[[], Warehouse], contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.ingest(*FIRST)
    for module, name in (
        (source_batch, "judged_batch"),
        (apply_feed, "_merge"),
        (quarantine, "add"),
        (source_batch, "append"),
    ):
        with monkeypatch.context() as patch, pytest.raises(BrokenOffError):
            patch.setattr(module, name, breaking_off(getattr(module, name)))
            shop.apply()
        assert shop.counted() == {}, name
    whole = Shop(empty_silver(), contracts, shop.folder)
    whole.ingest(*FIRST)
    for one in (shop, whole):
        one.ingest(*SECOND)
        one.apply()
    assert (shop.rows(), shop.entries()) == (whole.rows(), whole.entries())
    # A change that was merged before its batch broke off is no other outcome when it is read again.
    assert shop.counted() == whole.counted()


def test_a_batch_that_was_written_down_is_not_taken_for_one_that_broke_off(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the commit, and the answer was lost; a lasting process goes on with the same memory."""
    state_caches: dict[str, StateCache] = {}
    shop.ingest(*FIRST)

    def unanswered(*given: Any, **more: Any) -> None:
        append(*given, **more)
        raise BrokenOffError

    with monkeypatch.context() as patch, pytest.raises(LakehouseError, match="BrokenOffError"):
        patch.setattr(source_batch, "append", unanswered)
        shop.run(state_caches=state_caches)
    shop.ingest(*SECOND)
    assert shop.run(state_caches=state_caches)["read"] == 3
    assert shop.counted()["read"] == 7


def breaking_off(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, behind which the process ends; one that writes down what is done ends before it."""

    def of_process(*given: Any, **more: Any) -> Any:
        if step.__name__ != "append":
            step(*given, **more)
        raise BrokenOffError

    return of_process


def test_a_record_that_bronze_has_lost_stops_its_source_with_both_numbers(shop: Shop) -> None:
    shop.ingest(*FIRST)
    name = shop.warehouse.sql_name("bronze.mysql_events")
    shop.warehouse.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    shop.warehouse.spark.sql(f"DELETE FROM {name} WHERE offset = 1").collect()
    with pytest.raises(TableError) as stopped:
        shop.run()
    assert stopped.value.what == (
        f"silver: mysql: bronze has 3 records of topic {TOPIC} partition 0, offsets 0 to 3, and ops.batches says 4. "
        "Nothing of them was applied."
    )
    assert f"lakehouse offsets set mysql --topic {TOPIC} --partition 0 --to 0" in stopped.value.hint
    assert (shop.rows(), shop.counted()) == ([], {})
    assert shop.run(accepted_missing=["mysql"])["read"] == 3
    assert shop.run()["read"] == 0


def test_a_bronze_that_was_made_again_has_what_the_topics_still_had(shop: Shop) -> None:
    shop.ingest(*FIRST)
    shop.run()
    for table in ("bronze/mysql_events", f"silver/{FEED}"):
        shutil.rmtree(Path(shop.warehouse.location) / table)
    shop.warehouse.ensure(events_table("mysql"))
    shop.ingest(*FIRST[2:], *SECOND)
    assert shop.run()["read"] == 5
    assert [row["order_id"] for row in shop.rows()] == [1, 3, 4]


def test_a_table_that_alone_was_deleted_is_not_made_without_its_past(shop: Shop) -> None:
    shop.ingest(*FIRST)
    shop.ingest(outbox_event(0, 10, 1.0))
    shop.run()
    before, generation = shop.rows(), read_state(shop.warehouse, "mysql").generation
    tables = Path(shop.warehouse.location) / "silver"
    shutil.rmtree(tables / FEED)
    with pytest.raises(TableError) as stopped:
        shop.run()
    assert stopped.value.what == f"silver: mysql: silver.{FEED} was deleted, and silver.mysql_outbox_orders was not."
    assert not shop.warehouse.exists(f"silver.{FEED}")
    # All that silver has written is gone: it is rebuilt.
    shutil.rmtree(tables / "mysql_outbox_orders")
    assert shop.run()["read"] == 5
    assert shop.rows() == before
    assert read_state(shop.warehouse, "mysql").generation != generation
