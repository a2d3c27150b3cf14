"""Random histories of silver, cut into random runs: after each, gold, its marts and the topic are what they must be.

A model in plain Python says what that is. GOLD_ROUNDS=20 tells a longer story, GOLD_SEED another one.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from demo.check import as_text, topic_text
from gold.unify import UNIFIED
from lakehouse.contracts.models import Contracts
from lakehouse.kafka.log import Record
from tests.support.gold import Gold
from tests.support.loaders import Table, change_data_capture, sink
from tests.support.published import PublishedShop, published_shop, sequences

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROUNDS = int(os.environ.get("GOLD_ROUNDS", "4"))
SEED = int(os.environ.get("GOLD_SEED", "7"))
KEYS = 60
FEEDS = {"PG": ("postgres_orders", "postgres_outbox_orders"), "MY": ("mysql_orders", "mysql_outbox_orders")}
NAMES = {"PG": "postgresql", "MY": "mysql"}
STATUSES = ("pending", "completed", "cancelled", "注文", None)
DAYS = ("2026-02-28 23:59:59.999999", "2026-03-01 00:00:00", "1969-12-31 23:59:59.5", None)
AMOUNTS = ("0.00", "-1.50", "99999999.99", "100.10", None)
FULFILLED = {"completed": "FULFILLED", "cancelled": "CANCELLED"}
Row = dict[str, Any]


class Model:
    """What the silver tables hold, and what gold must be."""

    def __init__(self) -> None:
        self.silver: dict[str, dict[int, Row]] = {feed: {} for feeds in FEEDS.values() for feed in feeds}

    def gold(self) -> dict[str, tuple[Any, ...]]:
        """Of every live order by key: status, amount, created_at, source, fulfilment."""
        found = {}
        for prefix, (higher, lower) in FEEDS.items():
            for number, row in {**self.silver[lower], **self.silver[higher]}.items():
                if not row["_is_deleted"]:
                    amount, created = row["total_amount"], row["created_at"]
                    found[f"{prefix}-{number}"] = (
                        row["status"],
                        amount and Decimal(amount),
                        created and datetime.fromisoformat(created),
                        NAMES[prefix],
                        FULFILLED.get(row["status"] or "", "PENDING"),
                    )
        return found

    def daily(self) -> list[tuple[Any, ...]]:
        """`gold.orders_daily`."""
        groups: dict[tuple[Any, ...], list[Decimal | None]] = defaultdict(list)
        for _status, amount, created, source, fulfillment in self.gold().values():
            groups[created and created.date(), source, fulfillment].append(amount)
        rows = []
        for group, amounts in groups.items():
            known = [amount for amount in amounts if amount is not None]
            rows.append((*group, len(amounts), sum(known) if known else None))
        return sorted(rows, key=str)


def changes(chance: random.Random, table: dict[int, Row]) -> list[Row]:
    """Random changes of a silver table: new orders, changed, deleted, written again; now and then a truncate."""
    if table and chance.random() < 0.1:
        return [{**row, "_is_deleted": True} for row in table.values()]
    told = []
    for number in chance.sample(range(KEYS), chance.randint(1, 15)):
        again = number in table and chance.random() < 0.2
        new = {
            "order_id": number,
            "status": chance.choice(STATUSES),
            "total_amount": chance.choice(AMOUNTS),
            "created_at": chance.choice(DAYS),
            "_is_deleted": chance.random() < 0.25,
        }
        told.append(table[number] if again else new)
    return told


@pytest.fixture(scope="module")
def shop(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str
) -> Iterator[PublishedShop]:
    with published_shop(empty_silver(), contracts, bootstrap_servers) as published:
        yield published


def test_gold_its_marts_and_the_topic_follow_any_history(shop: PublishedShop) -> None:
    chance, model = random.Random(SEED), Model()  # noqa: S311
    before: Gold = {}
    for number in range(ROUNDS):
        for feed in chance.sample(sorted(model.silver), chance.randint(1, 4)):
            told = changes(chance, model.silver[feed])
            shop.write(feed, *told)
            model.silver[feed].update({row["order_id"]: row for row in told})
        shop.run(f"round {number}", full_refresh=chance.random() < 0.2)

        gold = shop.gold()
        named = ("status", "total_amount", "created_at", "source_database", "fulfillment_status")
        assert {key: tuple(row[name] for name in named) for key, row in gold.items()} == model.gold(), f"round {number}"
        for key in gold.keys() & before.keys():
            is_same = {**gold[key], "processed_at": None} == {**before[key], "processed_at": None}
            assert (gold[key]["processed_at"] == before[key]["processed_at"]) == is_same, f"round {number}: {key}"
        before = gold
        assert shop.mart("orders_daily") == model.daily(), f"round {number}"

        if chance.random() < 0.7 or number == ROUNDS - 1:
            shop.publish(republish=chance.random() < 0.1, most_in_a_transaction=chance.choice((5, 1_000)))
            assert shop.differences() == [], f"round {number}"
            assert shop.pending() == 0

    records = shop.records()
    for of_key in sequences(records).values():
        assert of_key == sorted(set(of_key))
    _loaders_arrive_at_gold(shop, records, chance)


def _loaders_arrive_at_gold(shop: PublishedShop, records: list[Record], chance: random.Random) -> None:
    """Whatever is redelivered: by sequence in any order, and by the sink's own MERGE in a partition's order."""
    gold = as_text(shop.warehouse.read(UNIFIED), shop.warehouse.read(UNIFIED).columns, key="composite_key")
    shuffled = records + records
    chance.shuffle(shuffled)
    assert _text(change_data_capture(shuffled)) == gold
    doubled = [record for record in records for _ in range(2)]
    cuts = [chance.randint(1, 40) for _ in range(len(doubled) // 10)]
    assert _text(sink(doubled, batches=cuts)) == gold


def _text(table: Table) -> dict[str, Row]:
    return {key: {name: topic_text(value) for name, value in row.items()} for key, row in table.items()}
