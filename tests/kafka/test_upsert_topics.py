"""Upsert topics: of every key of a table the last record is its row, and nothing where there is no such row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.tables import jobs
from cli.settled import ends_of_publish
from cli.tables import verify
from gold import upsert
from gold.compare import Comparison, compare_upsert
from gold.publish import PublishOutcome
from lakehouse.consumed import current, last_version
from lakehouse.contracts.models import Contracts, UpsertTopic
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.log import Record, committed_records
from lakehouse.kafka.producer import TransactionalProducer
from tests.support.brokers import plain_config
from tests.support.published import PublishedShop, published_shop
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.spark.tables import Warehouse

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Of each upsert topic here what the contract says, but its topic.
DECLARED: Mapping[str, Mapping[str, Any]] = {
    "orders": {"table": "silver.postgres_orders", "key_prefix": "key_", "value_fields": "except_key"},
    "daily": {"table": "gold.orders_daily", "format": "connect-json"},
    "unified": {"table": "gold.unified_orders", "columns": ["status", "total_amount"]},
}
LATER = {"order_id": 1, "status": "pending", "created_at": "2026-01-02 00:00:00"}


@pytest.fixture(scope="module")
def shop(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str
) -> Iterator[PublishedShop]:
    """One story, told by the tests of this module in their order."""
    own = with_topics(contracts, **DECLARED)
    with published_shop(empty_silver(), own, bootstrap_servers) as published:
        yield published
        known = partitions(published.chosen.kafka())
        made = [name for topic in own.gold.upsert_topics.values() for name in (topic.topic, topic.progress_topic)]
        delete(published.chosen.kafka(), *(name for name in made if name in known))


def with_topics(contracts: Contracts, **declared: Mapping[str, Any]) -> Contracts:
    """The contracts with these upsert topics, each on a topic of its own that is new unless it is named."""
    topics = {
        name: UpsertTopic.model_validate(
            {"topic": f"upsert.{uuid4().hex}", "partitions": 3, "replication_factor": 1, **one}
        )
        for name, one in declared.items()
    }
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"upsert_topics": topics})})


def topic_of(shop: PublishedShop, name: str) -> str:
    return shop.contracts.gold.upsert_topics[name].topic


def changed(shop: PublishedShop, name: str, **update: Any) -> Contracts:
    """The shop's contracts with this one topic, which is declared otherwise."""
    topic = {**DECLARED[name], "topic": topic_of(shop, name), **update}
    return with_topics(shop.contracts, **{name: topic})


def records(shop: PublishedShop, name: str) -> list[Record]:
    return list(committed_records(shop.chosen.kafka(), topic_of(shop, name)))


def rows(shop: PublishedShop, name: str) -> dict[str, Any]:
    """What compaction leaves: by the text of its payload, the last value of every key that has one."""
    last = {record.key: record.value for record in records(shop, name)}
    return {payload_text(key): payload(value) for key, value in last.items() if value is not None}


def payload(record: bytes) -> Any:
    read = json.loads(record)
    return read.get("payload", read)


def payload_text(record: bytes) -> str:
    return json.dumps(payload(record))


def sent(outcome: PublishOutcome) -> dict[str, int]:
    return {name: one.sent for name, one in outcome.upserted.items()}


def compared(shop: PublishedShop, name: str) -> Comparison:
    return compare_upsert(shop.warehouse, shop.chosen, shop.contracts, name)


def assert_equal(shop: PublishedShop, *names: str) -> None:
    for name in names or shop.contracts.gold.upsert_topics:
        found = compared(shop, name)
        assert (found.differing, found.unpublished, found.behind) == (0, {}, 0), name
        assert found.orders == len(rows(shop, name))


def test_a_table_that_is_not_there_yet_is_left_alone(shop: PublishedShop) -> None:
    shop.write("postgres_orders", LATER, {"order_id": 2}, {"order_id": 3, "_is_deleted": True})
    shop.write("mysql_orders", {"order_id": 1, "status": "completed"})
    pending = upsert.pending(shop.warehouse, shop.chosen, shop.contracts)
    assert pending == {"orders": 2, "daily": 0, "unified": 0}


def test_a_first_run_publishes_every_row_that_is_there(shop: PublishedShop) -> None:
    shop.run("first")
    outcome = shop.publish()
    assert outcome.sent == 3
    assert sent(outcome) == {"orders": 2, "daily": 3, "unified": 3}
    assert {one.why for one in outcome.upserted.values()} == {"nothing is known to be published of it"}

    found = rows(shop, "orders")
    assert sorted(found) == ['{"key_order_id": 1}', '{"key_order_id": 2}']
    columns = [name for name in shop.contracts.silver.tables["postgres_orders"].columns if name != "order_id"]
    assert list(found['{"key_order_id": 1}']) == columns
    assert found['{"key_order_id": 1}']["created_at"] == "2026-01-02T00:00:00.000000Z"

    of_mart = {"day": 20455, "source_database": "postgresql", "fulfillment_status": "PENDING"}
    without_day = {"day": None, "source_database": "mysql", "fulfillment_status": "FULFILLED"}
    assert rows(shop, "daily")[json.dumps(of_mart)] | {"revenue": None} == {**of_mart, "orders": 1, "revenue": None}
    assert json.dumps(without_day) in rows(shop, "daily")
    (key, *_more) = [json.loads(record.key)["schema"]["fields"] for record in records(shop, "daily")]
    assert [(field["field"], field["optional"]) for field in key] == [(name, True) for name in of_mart]

    assert rows(shop, "unified")['{"composite_key": "MY-1"}'] == {"status": "completed", "total_amount": 10.0}
    headers = records(shop, "unified")[0].headers
    assert headers["change_type"] == "UPSERT"
    assert headers["change_sequence"].count("/") == 1
    assert_equal(shop)
    (said,) = verify.topic_sentences(compared(shop, "orders"))
    assert said == f"Topic {topic_of(shop, 'orders')} has the 2 rows of silver.postgres_orders, and no other."


def test_a_table_without_a_new_commit_costs_no_job_and_no_record(shop: PublishedShop) -> None:
    before = {name: len(records(shop, name)) for name in DECLARED}
    spark, costs = shop.warehouse.spark, []
    for own in (with_topics(shop.contracts), shop.contracts, with_topics(shop.contracts), shop.contracts):
        jobs_before = jobs(spark)
        assert sum(sent(shop.publish(own)).values()) == 0
        costs.append(jobs(spark) - jobs_before)
    assert costs[2] == costs[3]
    assert {name: len(records(shop, name)) for name in DECLARED} == before
    assert last_version(shop.warehouse, "gold.orders_daily") == current(shop.warehouse, "gold.orders_daily")


def test_an_update_a_delete_and_an_insert_again_are_the_last_record_of_their_key(shop: PublishedShop) -> None:
    shop.write("postgres_orders", {**LATER, "status": "paid"}, {"order_id": 2, "_is_deleted": True}, {"order_id": 3})
    shop.write("postgres_orders", {"order_id": 9})
    shop.write("postgres_orders", {"order_id": 9, "_is_deleted": True})  # never seen by a reader
    shop.run("changes")
    assert upsert.pending(shop.warehouse, shop.chosen, shop.contracts)["orders"] == 3
    outcome = shop.publish()
    assert sent(outcome)["orders"] == 3
    assert {one.why for one in outcome.upserted.values()} == {None}
    found = rows(shop, "orders")
    assert {key: row["status"] for key, row in found.items()} == {
        '{"key_order_id": 1}': "paid",
        '{"key_order_id": 3}': "pending",
    }
    (gone,) = [record for record in records(shop, "orders") if record.value is None]
    assert payload(gone.key) == {"key_order_id": 2}
    assert gone.headers["change_type"] == "DELETE"
    assert_equal(shop)

    shop.write("postgres_orders", {"order_id": 2, "status": "again"})
    assert sent(shop.publish())["orders"] == 1
    assert rows(shop, "orders")['{"key_order_id": 2}']["status"] == "again"
    places: dict[bytes, set[int]] = {}
    for name in DECLARED:
        for record in records(shop, name):
            places.setdefault(name.encode() + record.key, set()).add(record.partition)
    assert {len(of_key) for of_key in places.values()} == {1}
    assert_equal(shop, "orders")


def test_a_group_that_is_gone_is_deleted(shop: PublishedShop) -> None:
    shop.write("mysql_orders", {"order_id": 1, "_is_deleted": True})
    shop.run("group gone")
    assert sent(shop.publish()) == {"orders": 0, "daily": 2, "unified": 2}  # and what has come again
    assert not any("mysql" in key for key in rows(shop, "daily"))
    assert_equal(shop)


def test_a_change_of_other_columns_sends_nothing(shop: PublishedShop) -> None:
    shop.write("postgres_orders", {"order_id": 2, "status": "again", "customer_id": 77})
    shop.run("another column")
    assert sent(shop.publish()) == {"orders": 1, "daily": 0, "unified": 0}
    assert_equal(shop)


class DiedError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("after_commit", [False, True])
def test_after_a_crash_readers_have_every_version_once(
    shop: PublishedShop, monkeypatch: pytest.MonkeyPatch, *, after_commit: bool
) -> None:
    shop.write("postgres_orders", {"order_id": 50, "status": f"crash {after_commit}"})
    shop.publish(with_topics(shop.contracts))
    before, commit = len(records(shop, "orders")), TransactionalProducer.commit

    def die(self: TransactionalProducer) -> None:
        self._wait(until=0)
        if after_commit:
            commit(self)
        raise DiedError

    with monkeypatch.context() as dying, pytest.raises(DiedError):
        dying.setattr(TransactionalProducer, "commit", die)
        dying.setattr(TransactionalProducer, "take_back", lambda _self: None)
        shop.publish()
    assert len(records(shop, "orders")) == before + after_commit
    assert sent(shop.publish())["orders"] == 1 - after_commit
    assert len(records(shop, "orders")) == before + 1
    assert sum(sent(shop.publish()).values()) == 0
    assert_equal(shop, "orders")


def test_many_records_go_in_parts(shop: PublishedShop) -> None:
    shop.write("postgres_orders", *({"order_id": number} for number in range(100, 125)))
    assert sent(shop.publish(most_in_a_transaction=10))["orders"] == 25
    assert_equal(shop, "orders")


def test_what_another_hand_wrote_is_named_and_mended(shop: PublishedShop) -> None:
    forger = Producer({**plain_config(shop.servers), "partitioner": "murmur2_random"})
    for key, value in ((b'{"key_order_id":1}', b"{}"), (b'{"key_order_id":4711}', b"{}")):
        forger.produce(topic_of(shop, "orders"), key=key, value=value)
    assert forger.flush(30) == 0
    found = compared(shop, "orders")
    assert (found.differing, found.keys) == (2, ('{"key_order_id":1}', '{"key_order_id":4711}'))
    said = str(verify.topic_differs(found))
    assert "is not what was published of silver.postgres_orders, in 2 keys" in said
    number = len(rows(shop, "orders")) - 1
    assert sent(shop.publish(republish=True))["orders"] == number + 1
    assert_equal(shop, "orders")


def test_a_changed_contract_publishes_whole_and_deletes_the_old_keys(shop: PublishedShop) -> None:
    old = set(rows(shop, "orders"))
    prefixed = changed(shop, "orders", key_prefix="", value_prefix="after_", value_fields="all")
    outcome = shop.publish(prefixed)
    assert outcome.upserted["orders"].why == "the topic was created again, or its format or columns are others"
    assert sent(outcome)["orders"] == 2 * len(old)
    found = rows(shop, "orders")
    assert set(found) == {key.replace("key_", "") for key in old}
    assert all({"order_id": row["after_order_id"]} == json.loads(key) for key, row in found.items())
    assert sent(shop.publish(prefixed))["orders"] == 0

    connect = shop.publish(changed(shop, "orders", format="connect-json"))
    assert sent(connect)["orders"] == 2 * len(old)
    assert set(rows(shop, "orders")) == old
    assert sent(shop.publish())["orders"] == 2 * len(old)
    assert_equal(shop)


def test_another_table_on_the_topic_replaces_its_rows(shop: PublishedShop) -> None:
    other = changed(shop, "orders", table="silver.mysql_orders")
    before = len(rows(shop, "orders"))
    shop.write("mysql_orders", {"order_id": 1})
    assert sent(shop.publish(other))["orders"] == before
    assert set(rows(shop, "orders")) == {'{"key_order_id": 1}'}
    assert sent(shop.publish())["orders"] > 1
    assert_equal(shop, "orders")


def test_a_key_may_have_two_columns(shop: PublishedShop) -> None:
    table = shop.contracts.silver.tables["mysql_outbox_orders"].model_copy(update={"keys": ("order_id", "customer_id")})
    silver = shop.contracts.silver.model_copy(
        update={"tables": {**shop.contracts.silver.tables, "mysql_outbox_orders": table}}
    )
    own = with_topics(
        shop.contracts.model_copy(update={"silver": silver}),
        two={"table": "silver.mysql_outbox_orders", "key_prefix": "k_", "columns": ["order_id", "status"]},
    )
    (topic,) = own.gold.upsert_topics.values()
    shop.write("mysql_outbox_orders", {"order_id": 1, "customer_id": 7}, {"order_id": 2, "customer_id": 7})
    assert sent(shop.publish(own)) == {"two": 2}
    shop.write("mysql_outbox_orders", {"order_id": 1, "customer_id": 7, "_is_deleted": True})
    assert sent(shop.publish(own)) == {"two": 1}
    last = {record.key: record.value for record in committed_records(shop.chosen.kafka(), topic.topic)}
    assert last == {
        b'{"k_order_id":1,"k_customer_id":7}': None,
        b'{"k_order_id":2,"k_customer_id":7}': b'{"order_id":2,"status":"pending"}',
    }
    delete(shop.chosen.kafka(), topic.topic, topic.progress_topic)


def test_a_topic_that_fails_does_not_stop_the_others(shop: PublishedShop) -> None:
    own = with_topics(
        shop.contracts,
        bad={"table": "silver.mysql_orders"},
        good={"table": "silver.postgres_orders", "columns": ["status"]},
    )
    bad, good = own.gold.upsert_topics["bad"], own.gold.upsert_topics["good"]
    admin = AdminClient(plain_config(shop.servers))
    admin.create_topics([NewTopic(bad.topic, 3, 1, config={"cleanup.policy": "delete"})])[bad.topic].result()
    with pytest.raises(KafkaError, match=r"has cleanup\.policy=delete"):
        shop.publish(own)
    found = compare_upsert(shop.warehouse, shop.chosen, own, "good")
    assert found.differing == 0
    assert found.orders > 0
    assert compare_upsert(shop.warehouse, shop.chosen, own, "bad").unpublished == {
        "silver.mysql_orders": "it was not published yet"
    }
    known = partitions(shop.chosen.kafka())
    ends = ends_of_publish(shop.chosen, own, known=known)
    assert {end.split("/")[0] for end in ends} >= {good.topic, good.progress_topic}
    delete(shop.chosen.kafka(), bad.topic, good.topic, good.progress_topic)


def test_a_row_that_is_too_large_keeps_back_no_other(shop: PublishedShop) -> None:
    own = with_topics(shop.contracts, small={"table": "silver.mysql_orders", "max_message_bytes": 1_000})
    (topic,) = own.gold.upsert_topics.values()
    shop.write("mysql_orders", {"order_id": 5, "status": "x" * 2_000}, {"order_id": 6})
    with pytest.raises(KafkaError, match=rf"too large for topic {topic.topic}, whose .* is 1000: 5 \(\d+ bytes\)"):
        shop.publish(own)
    found = [payload(record.key)["order_id"] for record in committed_records(shop.chosen.kafka(), topic.topic)]
    assert 6 in found
    assert 5 not in found
    delete(shop.chosen.kafka(), topic.topic, topic.progress_topic)
