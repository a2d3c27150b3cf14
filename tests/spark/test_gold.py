"""Gold: one row an order over both databases, kept up from what changed in silver, held back by gate 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gold.state_store import StateStore
from gold.unify import highest_feed_that_knows, order_columns, orders_of_feed, with_fulfillment
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.quality.results import RESULTS
from tests.support.gold import Shop, silver, ungated, without_marts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def by_id(orders: DataFrame) -> dict[int, dict[str, Any]]:
    return {row["order_id"]: row.asDict() for row in orders.collect()}


def test_the_highest_feed_that_knows_a_key_decides(spark: SparkSession, contracts: Contracts) -> None:
    table = silver(spark, {"order_id": 1, "status": "paid"}, {"order_id": 2, "_is_deleted": True})
    outbox = silver(
        spark,
        {"order_id": 1, "status": "told by the outbox"},
        {"order_id": 2, "status": "told by the outbox"},
        {"order_id": 3, "status": "told by the outbox"},
    )
    feeds = [orders_of_feed(feed, columns=order_columns(contracts.gold)) for feed in (table, outbox)]
    orders = by_id(highest_feed_that_knows(feeds, key="order_id"))
    assert orders[1]["status"] == "paid"
    assert orders[2]["is_deleted"]
    assert orders[3]["status"] == "told by the outbox"
    assert len(orders) == 3


def test_a_column_that_a_feed_lacks_is_null(spark: SparkSession, contracts: Contracts) -> None:
    (order,) = orders_of_feed(silver(spark, {"order_id": 1}), columns=order_columns(contracts.gold)).collect()
    assert order["product_id"] is None
    assert order["created_at"] is None


def test_fulfillment_of_every_status(spark: SparkSession, contracts: Contracts) -> None:
    statuses = ["completed", "cancelled", "pending", "refunded", "COMPLETED", None]
    rows = silver(spark, *[{"order_id": number, "status": status} for number, status in enumerate(statuses)])
    enriched = with_fulfillment(rows, contracts.gold.fulfillment)
    found = [order["fulfillment_status"] for _number, order in sorted(by_id(enriched).items())]
    assert found == ["FULFILLED", "CANCELLED", "PENDING", "PENDING", "PENDING", "PENDING"]
    without = with_fulfillment(rows, None).collect()
    assert {order["fulfillment_status"] for order in without} == {None}


@pytest.fixture
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts) -> Shop:
    warehouse = empty_silver()
    chosen = settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints)
    return Shop(warehouse, chosen, ungated(without_marts(contracts)))


def test_gold_follows_silver_and_touches_only_what_changed(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2}, {"order_id": 3})
    shop.write("mysql_orders", {"order_id": 1, "status": "completed", "total_amount": "99999999.99"})
    assert shop.run("first").changed_rows == 4
    first = shop.gold()
    assert set(first) == {"PG-1", "PG-2", "PG-3", "MY-1"}
    assert (first["MY-1"]["source_database"], first["MY-1"]["fulfillment_status"]) == ("mysql", "FULFILLED")
    assert str(first["MY-1"]["total_amount"]) == "99999999.99"

    version = shop.warehouse.version("gold.unified_orders")
    assert shop.run("nothing new").changed_rows == 0
    assert shop.warehouse.version("gold.unified_orders") == version

    shop.write(
        "postgres_orders",
        {"order_id": 1, "status": "cancelled"},
        {"order_id": 2, "_is_deleted": True},
        {"order_id": 3},  # written again, the same
        {"order_id": 4},
    )
    assert shop.run("second").changed_rows == 3
    second = shop.gold()
    assert set(second) == {"PG-1", "PG-3", "PG-4", "MY-1"}
    assert second["PG-1"]["fulfillment_status"] == "CANCELLED"
    assert second["PG-1"]["processed_at"] > first["PG-1"]["processed_at"]
    for same in ("PG-3", "MY-1"):
        assert second[same] == first[same]

    incremental = {key: _without_time(row) for key, row in second.items()}
    shop.warehouse.spark.sql(f"DELETE FROM delta.`{shop.warehouse.path('ops.batches')}`")
    shop.warehouse.spark.sql(f"DELETE FROM delta.`{shop.warehouse.path('gold.unified_orders')}`")
    shop.run("everything again")
    assert {key: _without_time(row) for key, row in shop.gold().items()} == incremental


def test_keys_that_no_feed_has_any_more_leave_gold(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2}, {"order_id": 3, "status": "paid"})
    shop.write("postgres_outbox_orders", {"order_id": 3, "status": "told by the outbox"}, {"order_id": 4})
    shop.write("mysql_orders", {"order_id": 1}, {"order_id": 2})
    shop.run("first")
    before = shop.gold()
    assert set(before) == {"PG-1", "PG-2", "PG-3", "PG-4", "MY-1", "MY-2"}

    # A key that the first feed does not know, one that it comes to know, and one that it has as deleted.
    shop.write("postgres_outbox_orders", {"order_id": 3, "status": "told again"}, {"order_id": 5}, {"order_id": 6})
    shop.write("postgres_orders", {"order_id": 4, "status": "paid"}, {"order_id": 6, "_is_deleted": True})
    assert shop.run("of both feeds").changed_rows == 2
    of_both = shop.gold()
    assert set(of_both) == {*before, "PG-5"}
    assert (of_both["PG-3"]["status"], of_both["PG-4"]["status"]) == ("paid", "paid")

    shop.make_anew("postgres_orders")
    shop.write("postgres_orders", {"order_id": 1})
    shop.warehouse.delta("silver.mysql_orders").delete("order_id = 2")
    # PG-2 and MY-2 go, PG-3 and PG-4 are the outbox's again, and PG-6 is nobody's deleted order any more.
    assert shop.run("a table made anew, and a row removed").changed_rows == 5
    after = shop.gold()
    assert set(after) == {"PG-1", "PG-3", "PG-4", "PG-5", "PG-6", "MY-1"}
    assert after["PG-3"]["status"] == "told again"
    for same in ("PG-1", "PG-5", "MY-1"):
        assert after[same] == of_both[same]

    # The same of more keys than are fetched.
    for module in ("change_feed.changes", "orders", "quality.prove"):
        monkeypatch.setattr(f"gold.{module}.MAX_FETCHED", 0)
    shop.write("postgres_outbox_orders", {"order_id": 3, "status": "told once more"}, {"order_id": 7}, {"order_id": 8})
    of_first = {"order_id": 2}, {"order_id": 3, "status": "paid"}, {"order_id": 4, "status": "paid"}
    shop.write("postgres_orders", *of_first, {"order_id": 8, "_is_deleted": True})
    assert shop.run("many keys of both feeds").changed_rows == 4
    of_both = shop.gold()
    assert set(of_both) == {*after, "PG-2", "PG-7"}
    assert (of_both["PG-3"]["status"], of_both["PG-4"]["status"]) == ("paid", "paid")

    shop.make_anew("postgres_orders")
    shop.write("postgres_orders", {"order_id": 1})
    shop.warehouse.delta("silver.mysql_orders").delete("order_id = 1")
    # PG-2 and MY-1 go, PG-3 and PG-4 are the outbox's again, and PG-8 is nobody's deleted order any more.
    assert shop.run("many keys of a table made anew, and a row removed").changed_rows == 5
    after = shop.gold()
    assert set(after) == {"PG-1", *(f"PG-{number}" for number in range(3, 9))}
    assert after["PG-3"]["status"] == "told once more"
    for same in ("PG-1", "PG-5", "PG-6", "PG-7"):
        assert after[same] == of_both[same]

    shutil.rmtree(shop.warehouse.path("gold.unified_orders"))
    assert shop.run("gold made anew").changed_rows == 7
    assert set(shop.gold()) == set(after)


def test_gold_is_what_the_contract_says_now(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 1, "status": "paid"}, {"order_id": 2, "_is_deleted": True})
    shop.write("postgres_outbox_orders", {"order_id": 1}, {"order_id": 2}, {"order_id": 3})
    shop.write("mysql_orders", {"order_id": 1, "status": "refunded"})
    table, outbox = shop.contracts.gold.sources["postgres"].feeds
    shop.run("both feeds")
    assert found(shop) == {"PG-1": ("paid", "PENDING"), "PG-3": ("pending", "PENDING"), "MY-1": ("refunded", "PENDING")}

    only_table = with_gold(shop.contracts, postgres={"feeds": (table,)}, mysql=None)
    shop.run("one feed less, and one source less", only_table)
    assert found(shop) == {"PG-1": ("paid", "PENDING")}

    only_outbox = with_gold(
        shop.contracts, postgres={"feeds": (outbox,)}, mysql={"prefix": "MA"}, fulfillment={"refunded": "CANCELLED"}
    )
    shop.run("another feed, another prefix, another fulfillment", only_outbox)
    assert found(shop) == {
        **dict.fromkeys(("PG-1", "PG-2", "PG-3"), ("pending", "PENDING")),
        "MA-1": ("refunded", "CANCELLED"),
    }

    shop.run("as it was before, of the same silver", only_table)
    assert found(shop) == {"PG-1": ("paid", "PENDING")}


def found(shop: Shop) -> dict[str, tuple[str, str]]:
    """Gold's `status` and `fulfillment_status`, by `composite_key`."""
    return {key: (row["status"], row["fulfillment_status"]) for key, row in shop.gold().items()}


def with_gold(
    contracts: Contracts, *, fulfillment: Mapping[str, str] | None = None, **sources: Mapping[str, Any] | None
) -> Contracts:
    """The contracts with other gold sources: what changes of each, None for one that is left out."""
    changed = {
        name: source.model_copy(update=sources.get(name) or {})
        for name, source in contracts.gold.sources.items()
        if sources.get(name, {}) is not None
    }
    assert contracts.gold.fulfillment is not None
    by_status = contracts.gold.fulfillment.model_copy(update={"values": fulfillment} if fulfillment else {})
    update = {"sources": changed, "fulfillment": by_status}
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update=update)})


def test_gate_2_holds_one_source_and_lets_the_other_go_on(shop: Shop, contracts: Contracts) -> None:
    shop = replace(shop, contracts=without_marts(contracts))
    shop.write("postgres_orders", {"order_id": 1})
    shop.write("mysql_orders", {"order_id": 1, "total_amount": "-1.00"})
    outcome = shop.run("held")
    assert outcome.blocked_sources == ("mysql",)
    assert set(shop.gold()) == {"PG-1"}
    results = shop.warehouse.read(RESULTS.name)
    assert StateStore().read(shop.warehouse).blocked_of(shop.contracts.gold.sources) == {"gold": ["mysql"]}
    (verdict,) = results.where("NOT passed AND feed = 'mysql_orders'").collect()
    assert (verdict["rule"], verdict["evaluated"], verdict["failed"]) == ("amount_plausible", 1, 1)

    shop.write("mysql_orders", {"order_id": 1, "total_amount": "1.00"})
    assert shop.run("mended").blocked_sources == ()
    assert set(shop.gold()) == {"PG-1", "MY-1"}
    assert StateStore().read(shop.warehouse).blocked_of(shop.contracts.gold.sources) == {}


def _without_time(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "processed_at"}
