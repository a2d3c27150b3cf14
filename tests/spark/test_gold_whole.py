"""Gold and its marts when changes cannot be told any more, and when they are asked for whole: never a wrong table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from gold.derived import marts
from gold.state_store import StateStore
from gold.unify import UNIFIED
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.errors import TableError
from tests.support.gold import Shop, put_mart_back, ungated

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LATE, EARLY = "2026-02-28 23:59:59.999999", "2026-03-01 00:00:00"


@pytest.fixture(scope="module")
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts) -> Shop:
    """One story, told by the tests of this module in their order."""
    warehouse = empty_silver()
    chosen = settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints)
    return Shop(warehouse, chosen, ungated(contracts))


def daily(shop: Shop) -> list[tuple[Any, ...]]:
    """What gold.orders_daily must be, counted by hand from gold."""
    orders: dict[tuple[Any, ...], list[Decimal | None]] = defaultdict(list)
    for row in shop.gold().values():
        day = row["created_at"] and row["created_at"].date()
        orders[day, row["source_database"], row["fulfillment_status"]].append(row["total_amount"])
    rows = []
    for group, amounts in orders.items():
        known = [amount for amount in amounts if amount is not None]
        rows.append((*group, len(amounts), sum(known) if known else None))
    return sorted(rows, key=str)


def test_a_first_run_takes_every_source_whole_and_says_so(shop: Shop) -> None:
    shop.write(
        "postgres_orders",
        {"order_id": 1, "created_at": LATE, "total_amount": "99999999.99"},
        {"order_id": 2, "created_at": LATE, "total_amount": "0.01"},
        {"order_id": 3, "created_at": EARLY, "status": "completed"},
        {"order_id": 4},
        {"order_id": 5, "created_at": EARLY, "total_amount": None},
    )
    shop.write("mysql_orders", {"order_id": 1, "created_at": EARLY}, {"order_id": 2, "created_at": EARLY})
    outcome = shop.run("first")
    assert outcome.whole == dict.fromkeys(("postgres", "mysql"), "nothing of it was taken before under this contract")
    assert shop.mart("orders_daily") == daily(shop)
    assert [row[3:] for row in shop.mart("orders_daily") if str(row[0]) == "2026-02-28"] == [
        (2, Decimal("100000000.00"))
    ]
    assert any(row[0] is None for row in shop.mart("orders_daily"))


def test_groups_follow_the_orders_that_come_change_and_go(shop: Shop) -> None:
    before = shop.warehouse.created_and_size(UNIFIED)[1]
    shop.write(
        "postgres_orders",
        {"order_id": 1, "created_at": EARLY, "total_amount": "99999999.99"},  # to another day
        {"order_id": 3, "created_at": EARLY, "status": "cancelled"},  # to another fulfilment: its group is empty
        {"order_id": 4, "_is_deleted": True},
        {"order_id": 5, "created_at": EARLY, "total_amount": "7.00"},
    )
    outcome = shop.run("second")
    assert (outcome.changed_rows, outcome.whole) == (4, {})
    assert outcome.written_bytes > 0
    assert outcome.size_in_bytes > before
    assert shop.mart("orders_daily") == daily(shop)
    assert outcome.marts["orders_daily"] > 0
    versions = [shop.warehouse.version(table) for table in (UNIFIED, "gold.orders_daily")]
    assert shop.run("nothing new").marts == {"orders_daily": 0}
    assert [shop.warehouse.version(table) for table in (UNIFIED, "gold.orders_daily")] == versions


def test_changes_that_silver_has_not_any_more_are_not_needed(shop: Shop) -> None:
    before = shop.gold()
    shop.write("postgres_orders", {"order_id": 2, "_is_deleted": True}, {"order_id": 6})
    shop.write("mysql_orders", {"order_id": 1, "created_at": EARLY, "status": "paid"})
    shop.lose_changes("silver.postgres_orders")
    outcome = shop.run("without the changes")
    assert outcome.whole == {"postgres": "silver does not have the changes since the last run any more"}
    after = shop.gold()
    assert set(after) == {"PG-1", "PG-3", "PG-5", "PG-6", "MY-1", "MY-2"}
    for same in ("PG-1", "PG-3", "PG-5", "MY-2"):
        assert after[same] == before[same]
    assert shop.mart("orders_daily") == daily(shop)


def test_a_mart_is_computed_whole_when_gold_has_not_its_changes_any_more(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 3, "created_at": LATE}, {"order_id": 5, "_is_deleted": True})
    put_mart_back(shop.warehouse, "orders_daily")
    shop.run("a mart that is behind")
    put_mart_back(shop.warehouse, "orders_daily")
    shop.warehouse.delta("gold.orders_daily").update(set={"orders": "orders + 1"})
    shop.lose_changes(UNIFIED)
    assert shop.run("without its changes").marts["orders_daily"] == len(daily(shop))
    assert shop.mart("orders_daily") == daily(shop)


def test_a_mart_changes_by_what_changed_and_looks_for_no_other_order(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("marts are as they are recorded")
    shop.write("mysql_orders", {"order_id": 20, "created_at": LATE}, {"order_id": 21, "total_amount": None})
    with monkeypatch.context() as without:
        without.setattr(marts, "groups", lambda *_given, **_more: pytest.fail("gold was added up"))
        assert shop.run("two orders come").marts["orders_daily"] == 2
        shop.write("mysql_orders", {"order_id": 20, "created_at": EARLY, "total_amount": "1.00"})
        assert shop.run("one changes its day").marts["orders_daily"] == 2
    assert shop.mart("orders_daily") == daily(shop)


def test_a_sum_without_a_value_is_null_again(shop: Shop) -> None:
    shop.write(
        "mysql_orders",
        {"order_id": 22, "status": "completed", "total_amount": "5.00"},
        {"order_id": 23, "status": "completed", "total_amount": None},
        {"order_id": 24, "status": "cancelled", "total_amount": "5.00"},
        {"order_id": 25, "status": "cancelled", "total_amount": "0.00"},
    )
    shop.run("with values")
    shop.write("mysql_orders", {"order_id": 22, "_is_deleted": True}, {"order_id": 24, "_is_deleted": True})
    shop.run("without the values that are not zero")
    sums = {row[2]: row[3:] for row in shop.mart("orders_daily") if row[0] is None and row[1] == "mysql"}
    assert (sums["FULFILLED"], sums["CANCELLED"]) == ((1, None), (1, Decimal("0.00")))
    assert shop.mart("orders_daily") == daily(shop)


def test_a_run_that_died_behind_the_commit_of_a_mart_adds_nothing_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("mysql_orders", {"order_id": 26, "created_at": EARLY})
    with monkeypatch.context() as dying:
        dying.setattr(StateStore, "write", lambda *_given, **_more: pytest.fail("died"))
        with pytest.raises(pytest.fail.Exception, match="died"):
            shop.run("dies")
    assert shop.mart("orders_daily") == daily(shop)
    shop.write("mysql_orders", {"order_id": 27, "created_at": EARLY})
    assert shop.run("goes on").changed_rows == 1
    assert shop.mart("orders_daily") == daily(shop)


def test_a_refresh_mends_what_another_hand_did_in_one_commit(shop: Shop) -> None:
    before = shop.gold()
    gold = shop.warehouse.delta(UNIFIED)
    gold.delete("composite_key = 'PG-1'")
    gold.update("composite_key = 'PG-6'", {"status": "'forged'"})
    copied = gold.toDF().where("composite_key = 'MY-1'")
    copied.selectExpr("*").write.format("delta").mode("append").save(shop.warehouse.path(UNIFIED))
    forged = gold.toDF().where("composite_key = 'MY-2'").selectExpr("* EXCEPT (composite_key)", "'MY-9' composite_key")
    forged.write.format("delta").mode("append").save(shop.warehouse.path(UNIFIED))
    shop.warehouse.delta("gold.orders_daily").delete()
    version = shop.warehouse.version(UNIFIED)
    outcome = shop.run("refreshed", full_refresh=True)
    assert outcome.changed_rows == 3
    assert set(outcome.whole.values()) == {"a full refresh was asked for"}
    assert shop.warehouse.version(UNIFIED) == version + 1
    after = shop.gold()
    assert shop.warehouse.read(UNIFIED).count() == len(after) == len(before)
    for key, row in after.items():
        if key in ("PG-1", "PG-6"):
            assert row["processed_at"] > before[key]["processed_at"]
            assert {**row, "processed_at": None} == {**before[key], "processed_at": None}
        else:
            assert row == before[key]
    assert shop.mart("orders_daily") == daily(shop)
    assert shop.run("nothing new").changed_rows == 0


def test_a_contract_with_other_columns_needs_a_refresh(shop: Shop) -> None:
    columns = {name: kind for name, kind in shop.contracts.gold.columns.items() if name != "product_id"}
    other = shop.contracts.model_copy(update={"gold": shop.contracts.gold.model_copy(update={"columns": columns})})
    with pytest.raises(TableError, match=r"product_id .* should not be there.*lakehouse gold --full-refresh"):
        shop.run("one column less", other)
    before = {key: row["processed_at"] for key, row in shop.gold().items()}
    assert shop.run("refreshed", other, full_refresh=True).changed_rows == 0
    assert "product_id" not in shop.warehouse.read(UNIFIED).columns
    assert {key: row["processed_at"] for key, row in shop.gold().items()} == before
    assert shop.run("goes on", other).changed_rows == 0
    shop.write("mysql_orders", {"order_id": 3})
    assert shop.run("goes on", other).changed_rows == 1
    assert shop.mart("orders_daily") == daily(shop)
