"""The upsert topic of a join: of every key of it the last record is its row. One whose table is not there waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from gold import upsert
from gold.compare import compare_upsert
from lakehouse.config import Settings, settings
from lakehouse.contracts.models import Contracts
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.log import committed_records
from lakehouse.spark.tables import Warehouse
from tests.support.joins import ORDER, USER, OrderDw, contracts_with, user_orders
from tests.support.shop import delete

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TOPIC, ABSENT = f"upsert.{uuid4().hex}", f"upsert.{uuid4().hex}"
ADDRESS = "order_dw_address"


@pytest.fixture
def chosen(tmp_path: Path, bootstrap_servers: str) -> Iterator[Settings]:
    found = settings(warehouse=str(tmp_path / "w"), bootstrap_servers=bootstrap_servers)
    yield found
    delete(found.kafka(), *({TOPIC, f"{TOPIC}.progress"} & partitions(found.kafka()).keys()))


def test_the_topic_of_a_join_follows_both_of_its_sides(
    spark: SparkSession, tmp_path: Path, chosen: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contracts, "may_come", lambda _self, name: name == ADDRESS)
    declared: dict[str, Any] = {"partitions": 1, "replication_factor": 1}
    topics = {
        "joined": {
            **{**declared, "topic": TOPIC, "table": "gold.user_orders"},
            **{"key_prefix": "key_", "value_fields": "except_key"},
        },
        "waits": {**declared, "topic": ABSENT, "table": f"silver.{ADDRESS}"},
    }
    contracts = contracts_with(tmp_path / "c", joins={"user_orders": user_orders()}, gold={"upsert_topics": topics})
    dw = OrderDw(Warehouse(spark, chosen.warehouse, chosen.checkpoints), contracts)
    dw.create()

    def publish(name: str = "joined") -> upsert.Upserted:
        dw.refresh()
        return upsert.publish(spark, chosen, contracts, name, retry_policy=None, republish=False, most=100)

    dw.write(USER, {"id": 1, "name": "Tom"}, {"id": 2, "name": "Jerry"})
    dw.write(ORDER, {"id": 1, "product": "Football", "user_id": 2}, {"id": 2, "product": "Basket", "user_id": 1})
    assert publish().sent == 2
    dw.write(USER, {"id": 2, "name": "Gerald"})
    assert publish() == upsert.Upserted(1)
    dw.write(ORDER, {"id": 2, "product": "Basket", "user_id": 1, "_is_deleted": True})
    assert publish() == upsert.Upserted(1)
    assert publish() == upsert.Upserted(0)
    sent = [(record.key, record.value) for record in committed_records(chosen.kafka(), TOPIC)]
    assert len(sent) == 4
    last = {json.loads(key)["key_order_id"]: value and json.loads(value) for key, value in sent}
    assert last == {1: {"product": "Football", "user_name": "Gerald"}, 2: None}
    found = compare_upsert(dw.warehouse, chosen, contracts, "joined")
    assert (found.orders, found.differing, found.behind) == (1, 0, 0)

    assert publish("waits") == upsert.Upserted(0, skipped=f"not there yet: silver.{ADDRESS}")
    assert ABSENT not in partitions(chosen.kafka())
    assert upsert.pending(dw.warehouse, chosen, contracts) == {"joined": 0, "waits": 0}
