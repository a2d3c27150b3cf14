"""Publishing when gate 2 holds a source: the other goes on, and what waited is caught up with, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from rich.console import Console

from cli.jobs import RunContext, run_jobs
from demo.check import read_topic, topic_differences
from gold.state import NOTHING_CONSUMED
from gold.unify import UNIFIED
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.errors import GateHeldError
from lakehouse.kafka.broker import partitions
from lakehouse.process.steps import Steps
from tests.support.gold import Shop, restate
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def shop(empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str) -> Iterator[Shop]:
    """Silver tables written by hand, and a topic of this test."""
    warehouse = empty_silver()
    publication = contracts.gold.unified_topic.model_copy(update={"topic": f"unified.{uuid4().hex}"})
    own = contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"publication": publication})})
    chosen = settings(
        warehouse=warehouse.location, checkpoints=warehouse.checkpoints, bootstrap_servers=bootstrap_servers
    )
    yield Shop(warehouse, chosen, own)
    delete(chosen.kafka(), publication.topic)


def gold_and_publish(shop: Shop) -> list[GateHeldError]:
    """Run both jobs; the errors of the gate."""
    known = partitions(shop.chosen.kafka())
    steps = Steps(Console(quiet=True))
    work = RunContext(shop.warehouse.spark, shop.chosen, shop.contracts, steps, known, uuid4().hex)
    failures = run_jobs(("gold", "publish"), work).failures
    held = [failure for failure in failures if isinstance(failure, GateHeldError)]
    assert list(failures) == held
    return held


def sent(shop: Shop) -> list[tuple[str, bool]]:
    """Every record of the topic: its key, and whether it is a delete."""
    records = read_topic(shop.chosen.kafka().bootstrap_servers, shop.contracts.gold.unified_topic.topic)
    return sorted((json.loads(key)["composite_key"], value is None) for key, value in records)


def differs(shop: Shop) -> list[str]:
    servers, topic = shop.chosen.kafka().bootstrap_servers, shop.contracts.gold.unified_topic.topic
    return topic_differences(shop.warehouse, bootstrap_servers=servers, topic=topic)


def test_one_source_is_published_while_the_other_waits_and_is_caught_up_with(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2})
    shop.write("mysql_orders", {"order_id": 1})
    assert gold_and_publish(shop) == []
    first = [("MY-1", False), ("PG-1", False), ("PG-2", False)]
    assert sent(shop) == first

    # Gold loses an order, and both sources have news.
    shop.warehouse.delta(UNIFIED).delete("composite_key = 'PG-2'")
    shop.write("postgres_orders", {"order_id": 3})
    shop.write("mysql_orders", {"order_id": 1, "status": "paid"}, {"order_id": 2})
    (held,) = gold_and_publish(shop)
    assert held.exit_code == 3
    assert "Gate 2 holds postgres back from the topic; everything else was published." in str(held)
    news = [*first, ("MY-1", False), ("MY-2", False)]
    assert sent(shop) == sorted(news)

    # Gold is made anew from silver: the source goes on, and what the other had is not sent again.
    restate(shop.warehouse, orders=NOTHING_CONSUMED)
    shop.write("mysql_orders", {"order_id": 3})
    assert gold_and_publish(shop) == []
    caught_up = sorted([*news, ("MY-3", False), ("PG-2", False), ("PG-3", False)])
    assert sent(shop) == caught_up
    assert differs(shop) == []

    assert gold_and_publish(shop) == []
    assert sent(shop) == caught_up


def test_both_gates_name_the_sources_that_they_hold(shop: Shop) -> None:
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2})
    shop.write("mysql_orders", {"order_id": 1})
    assert gold_and_publish(shop) == []
    shop.warehouse.delta(UNIFIED).delete("composite_key = 'PG-2'")
    shop.write("mysql_orders", {"order_id": 2, "total_amount": "-1.00"})
    (held,) = gold_and_publish(shop)
    assert "Gate 2 holds mysql back from gold and postgres back from the topic" in str(held)
    assert len(sent(shop)) == 3
