"""Collecting deleted rows: only where nothing can come any more, and nothing rises from the dead afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bronze.events import events_table
from bronze.source_state import OffsetMove, write_down
from cli.tables.accounts import skipped_topics
from lakehouse.batches import BATCHES
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import MaxRejectRatio
from silver.accounts.audit import begin_generations, read_state
from silver.purge import Plan, carry_out, plan
from tests.support.events import Record, change, mysql_image, mysql_source, order, record
from tests.support.silver import Told

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark

FEED, TOPIC = "mysql_orders", "mysql_prod_tables.ecommerce.orders"


@pytest.fixture(scope="module")
def alone(contracts: Contracts) -> Contracts:
    """The packaged contracts, with gold taking the orders of MySQL from their table alone."""
    sources = dict(contracts.gold.sources)
    sources["mysql"] = sources["mysql"].model_copy(update={"feeds": (FEED,)})
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"sources": sources})})


class Collected(Told):
    """A source that is told records, and whose deleted rows are collected."""

    def plan(self) -> Plan:
        return plan(self.warehouse, self.contracts, self.contracts.feeds[FEED])

    def collect(self) -> Plan:
        chosen = self.plan()
        carry_out(self.warehouse, self.contracts.feeds[FEED], chosen)
        return chosen

    def keys(self) -> dict[int, bool]:
        """The keys of the table, and whether they are deleted."""
        rows = self.warehouse.read(f"silver.{FEED}").select("order_id", "_is_deleted").collect()
        return {row["order_id"]: row["_is_deleted"] for row in rows}


@pytest.fixture
def told(empty_silver: Callable[[], Warehouse], alone: Contracts, tmp_path: Path) -> Collected:
    return Collected(empty_silver(), alone, "mysql", tmp_path)


def event(op: str, key: int, pos: int, offset: int, *, partition: int = 0, **columns: Any) -> Record:
    image = None if op == "d" else mysql_image(order(key, **columns))
    return record(TOPIC, offset, key={"order_id": key}, value=change(op, mysql_source(pos), image), partition=partition)


def deleted_and_others() -> Sequence[Record]:
    return [
        event("c", 1, 100, 0),
        event("d", 1, 200, 1),
        event("c", 2, 300, 2),
        event("d", 2, 400, 3),
        event("c", 3, 500, 4),
    ]


def test_a_deleted_row_goes_and_a_late_event_does_not_bring_it_back(told: Collected) -> None:
    told.tell(*deleted_and_others())
    assert told.collect().rows == 2
    assert told.keys() == {3: False}
    assert told.collect().rows == 0
    # In another partition, which lags.
    told.tell(event("u", 1, 150, 5, partition=1), event("c", 4, 600, 6))
    assert told.keys() == {3: False, 4: False}
    last = told.warehouse.read("ops.batches").where("batch = 1 AND first_offset IS NOT NULL").collect()
    assert [sum(row[name] for row in last) for name in ("applied", "superseded", "read")] == [1, 1, 2]


def test_what_another_partition_has_not_reached_stays(told: Collected) -> None:
    told.tell(*deleted_and_others(), event("c", 9, 250, 0, partition=1))
    assert told.collect().rows == 1
    assert told.keys() == {2: True, 3: False, 9: False}


def test_a_record_in_quarantine_holds_what_stands_behind_it(told: Collected) -> None:
    bad = event("u", 7, 150, 5, partition=1, total_amount="-1.00")
    told.tell(*deleted_and_others(), bad)
    assert told.collect().rows == 0
    unreadable = {**bad, "offset": 6, "value": "not JSON"}
    told.tell(unreadable)
    assert "1 records in quarantine have no position" in (told.plan().why_not or "")


def test_a_silver_that_is_rebuilt_has_the_rows_below_what_was_collected(told: Collected) -> None:
    records = [event("u", 2, 50, 0), *({**one, "offset": one["offset"] + 1} for one in deleted_and_others())]
    told.tell(*records)
    assert told.collect().rows == 2
    told.warehouse.spark.sql(f"DELETE FROM delta.`{told.warehouse.path(f'silver.{FEED}')}`")
    begin_anew(told.warehouse)
    # One batch a record: the live row's only change lies below what the silver before has collected.
    told.tell(event("c", 5, 150, 6, partition=1), *records)
    assert told.keys() == {1: True, 2: True, 3: False, 5: False}


def test_a_discarded_record_holds_what_stands_behind_it_and_may_be_asked_for_later(told: Collected) -> None:
    told.tell(*deleted_and_others(), event("c", 7, 350, 5, partition=1, total_amount="-1.00"))
    told.decide("discarded", 5)
    assert told.collect().rows == 1
    told.decide("released", 5)
    assert told.keys() == {2: True, 3: False, 7: False}


def test_nothing_goes_of_a_table_that_is_suspended(told: Collected) -> None:
    """What is pending for it may be older than what goes."""
    budget = MaxRejectRatio(share=0.01, records=0)
    tables = {**told.contracts.silver.tables}
    tables[FEED] = tables[FEED].model_copy(update={"max_reject_ratio": budget})
    told.contracts = told.contracts.model_copy(
        update={"silver": told.contracts.silver.model_copy(update={"tables": tables})}
    )
    told.tell(*deleted_and_others())
    told.tell(event("u", 1, 150, 0, partition=1), event("c", 9, 160, 1, partition=1, total_amount="-1.00"))
    assert told.suspended().keys() == {FEED}
    chosen = told.collect()
    assert (chosen.rows, chosen.horizon) == (0, None)
    assert "it is suspended" in (chosen.why_not or "")
    assert told.resume(FEED, accepted=[FEED]) is None
    assert told.collect().rows == 0, "the record in quarantine stands before them now"
    assert told.keys() == {1: True, 2: True, 3: False}


def test_nothing_goes_where_offsets_were_skipped_that_may_be_read_later(told: Collected) -> None:
    told.tell(*deleted_and_others())
    chosen = plan(told.warehouse, told.contracts, told.contracts.feeds[FEED], skipped={TOPIC})
    assert (chosen.rows, chosen.horizon) == (0, None)
    assert f"offsets of {TOPIC} were skipped" in (chosen.why_not or "")
    assert plan(told.warehouse, told.contracts, told.contracts.feeds[FEED], skipped={"another"}).rows == 2


def test_topics_with_skipped_offsets_are_those_that_nothing_has_read_since(told: Collected) -> None:
    warehouse = told.warehouse
    other = "postgres_prod_tables.public.orders"
    for table in (events_table("postgres"), BATCHES):
        warehouse.ensure(table)
    told.tell(*deleted_and_others())  # what the second skip says was passed over: it was read after all
    skips = [("postgres", other, 0, 5), ("mysql", TOPIC, 0, 5), ("mysql", "a topic not read", 3, 9)]
    write_down(
        warehouse, [OffsetMove(source, 1, topic, "first", 0, at, to, "a test") for source, topic, at, to in skips]
    )
    assert skipped_topics(warehouse, ["postgres", "mysql"]) == {other, "a topic not read"}
    assert skipped_topics(warehouse, ["mysql"]) == {"a topic not read"}


def begin_anew(warehouse: Warehouse) -> None:
    """A new generation of silver, as after all its tables were deleted."""
    begin_generations(warehouse, {"mysql": read_state(warehouse, "mysql")})


def test_rows_stay_where_gold_would_take_the_order_from_a_lower_feed(
    empty_silver: Callable[[], Warehouse], contracts: Contracts
) -> None:
    chosen = plan(empty_silver(), contracts, contracts.feeds[FEED])
    assert (chosen.rows, chosen.horizon) == (0, None)
    assert "mysql_outbox_orders" in (chosen.why_not or "")
