"""Upsert topics without unified orders: what fails on one of them, in a run or in a row, is of that one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from cli.unchanged import published_topics
from gold.topics import upsert
from gold.topics.compare import compare_upsert
from lakehouse.contracts.models import Contracts, GoldTables
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.log import committed_records
from lakehouse.kafka.producer import TransactionalProducer
from tests.support.brokers import plain_config
from tests.support.published import PublishedShop, payload, published_shop, sent, with_topics
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ORDERS: Mapping[str, Any] = {
    **{"topic": f"upsert.{uuid4().hex}", "table": "silver.postgres_orders", "columns": ["status"]},
}
TWO: Mapping[str, Any] = {
    **{"topic": f"upsert.{uuid4().hex}", "table": "silver.mysql_outbox_orders"},
    **{"key_prefix": "k_", "columns": ["order_id", "status"]},
}


@pytest.fixture(scope="module")
def shop(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str
) -> Iterator[PublishedShop]:
    """One story, told by the tests of this module in their order. A table has a key of two columns."""
    tables = contracts.silver.tables
    two = tables["mysql_outbox_orders"].model_copy(update={"keys": ("order_id", "customer_id")})
    silver = contracts.silver.model_copy(update={"tables": {**tables, "mysql_outbox_orders": two}})
    alone = contracts.model_copy(update={"silver": silver, "gold": GoldTables()})
    with published_shop(empty_silver(), with_topics(alone, orders=ORDERS, two=TWO), bootstrap_servers) as published:
        yield published


def test_a_topic_that_fails_does_not_stop_the_others(shop: PublishedShop) -> None:
    own = with_topics(shop.contracts, bad={"table": "silver.mysql_orders"}, good=ORDERS, two=TWO)
    bad, good = own.gold.upsert_topics["bad"], own.gold.upsert_topics["good"]
    admin = AdminClient(plain_config(shop.servers))
    admin.create_topics([NewTopic(bad.topic, 3, 1, config={"cleanup.policy": "delete"})])[bad.topic].result()
    shop.write("postgres_orders", {"order_id": 1}, {"order_id": 2})
    shop.write("mysql_outbox_orders", {"order_id": 1, "customer_id": 7}, {"order_id": 2, "customer_id": 7})
    with pytest.raises(KafkaError, match=r"has cleanup\.policy=delete"):
        shop.publish(own)
    found = compare_upsert(shop.warehouse, shop.chosen, own, "good")
    assert found.differing == 0
    assert found.orders == 2
    assert compare_upsert(shop.warehouse, shop.chosen, own, "bad").unpublished == {
        "silver.mysql_orders": "it was not published yet"
    }
    assert len(shop.upsert_records("two")) == 2
    known = partitions(shop.chosen.kafka())
    assert {*published_topics(shop.chosen, own, known=known)} >= {good.topic, good.progress_topic}
    delete(shop.chosen.kafka(), bad.topic)


def test_a_row_that_is_too_large_keeps_back_no_other(shop: PublishedShop) -> None:
    own = with_topics(shop.contracts, small={"table": "silver.mysql_orders", "max_message_bytes": 1_000}, two=TWO)
    topic = own.gold.upsert_topics["small"]
    shop.write("mysql_orders", {"order_id": 5, "status": "x" * 2_000}, {"order_id": 6})
    shop.write("mysql_outbox_orders", {"order_id": 1, "customer_id": 7, "_is_deleted": True})
    with pytest.raises(KafkaError, match=rf"too large for topic {topic.topic}, whose .* is 1000: 5 \(\d+ bytes\)"):
        shop.publish(own)
    found = [payload(record.key)["order_id"] for record in committed_records(shop.chosen.kafka(), topic.topic)]
    assert found == [6]
    delete(shop.chosen.kafka(), topic.topic, topic.progress_topic)


def test_a_key_may_have_two_columns(shop: PublishedShop) -> None:
    """Both rows were sent, and then the delete of one."""
    records = shop.upsert_records("two")
    assert len(records) == 3
    assert {record.key: record.value for record in records} == {
        b'{"k_order_id":1,"k_customer_id":7}': None,
        b'{"k_order_id":2,"k_customer_id":7}': b'{"order_id":2,"status":"pending"}',
    }


class DiedError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("after_commit", [False, True])
def test_after_a_crash_readers_have_every_version_once(
    shop: PublishedShop, monkeypatch: pytest.MonkeyPatch, *, after_commit: bool
) -> None:
    shop.write("postgres_orders", {"order_id": 50, "status": f"crash {after_commit}"})
    before, commit = len(shop.upsert_records("orders")), TransactionalProducer.commit

    def die(self: TransactionalProducer) -> None:
        self._wait(until=0)
        if after_commit:
            commit(self)
        raise DiedError

    with monkeypatch.context() as dying, pytest.raises(DiedError):
        dying.setattr(TransactionalProducer, "commit", die)
        dying.setattr(TransactionalProducer, "abort", lambda _self: None)
        shop.publish()
    assert len(shop.upsert_records("orders")) == before + after_commit
    assert sent(shop.publish()) == {"orders": 1 - after_commit, "two": 0}
    assert len(shop.upsert_records("orders")) == before + 1
    assert sum(sent(shop.publish()).values()) == 0
    found = compare_upsert(shop.warehouse, shop.chosen, shop.contracts, "orders")
    assert (found.orders, found.differing, found.unpublished, found.behind) == (3, 0, {}, 0)


def test_a_table_that_a_rule_has_not_made_yet_is_waited_for(
    shop: PublishedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = "order_dw_address"
    monkeypatch.setattr(Contracts, "may_be_discovered", lambda _self, name: name == absent)
    own = with_topics(shop.contracts, waits={"table": f"silver.{absent}"})
    outcome = upsert.publish(
        shop.warehouse.spark, shop.chosen, own, "waits", retry_policy=None, republish=False, most=100
    )
    assert outcome == upsert.Upserted(0, skipped=f"not there yet: silver.{absent}")
    assert own.gold.upsert_topics["waits"].topic not in partitions(shop.chosen.kafka())
    assert upsert.pending(shop.warehouse, shop.chosen, own) == {"waits": 0}
