"""What is published when: news once, the net change of a key, and everything again where changes cannot be told.

Of the unified topic and, in the same runs, of the upsert topics: of every key of a table the last record is its row,
and nothing where there is no such row.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from benchmarks.tables import jobs
from cli.tables import verify_messages
from gold.state_store import StateStore
from gold.topics import upsert
from gold.topics.compare import Comparison, compare, compare_upsert
from gold.topics.position import read_publish_position
from gold.unify import UNIFIED
from lakehouse.contracts.joins import Join
from lakehouse.contracts.models import Contracts
from lakehouse.delta.versions import current, last_version
from lakehouse.errors import KafkaError
from tests.support.brokers import plain_config
from tests.support.published import PublishedShop, payload, published_shop, sent, sequences, with_topics
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

JQ = shutil.which("jq")
# Of Spark, to publish some changes: counted, with no room.
JOBS = 4
pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Of each upsert topic here what the contract says, but its topic.
DECLARED: Mapping[str, Mapping[str, Any]] = {
    "orders": {"table": "silver.postgres_orders", "key_prefix": "key_", "value_fields": "except_key"},
    "daily": {"table": "gold.orders_daily", "format": "connect-json"},
    "unified": {"table": "gold.unified_orders", "columns": ["status", "total_amount"]},
    "joined": {"table": "gold.joined_orders", "key_prefix": "key_", "value_fields": "except_key"},
}
# An order of PostgreSQL, and the status of the MySQL order that its customer_id names.
JOINED: Mapping[str, Any] = {
    "table": "postgres_orders",
    "columns": {"order_id": "order_id", "status": "status"},
    "left_join": [{"table": "mysql_orders", "by": {"order_id": "customer_id"}, "columns": {"of_mysql": "status"}}],
}
LATER = {"order_id": 1, "status": "pending", "created_at": "2026-01-02 00:00:00"}


@pytest.fixture(scope="module")
def shop(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str
) -> Iterator[PublishedShop]:
    """One story, told by the tests of this module in their order."""
    joined = contracts.gold.model_copy(update={"joins": {"joined_orders": Join.model_validate(JOINED)}})
    own = with_topics(contracts.model_copy(update={"gold": joined}), **DECLARED)
    with published_shop(empty_silver(), own, bootstrap_servers) as published:
        yield published


def changed(shop: PublishedShop, name: str, **update: Any) -> Contracts:
    """The shop's contracts with this one upsert topic, which is declared otherwise."""
    topic = {**DECLARED[name], "topic": shop.upsert_topic(name), **update}
    return with_topics(shop.contracts, **{name: topic})


def with_unified(contracts: Contracts, **update: Any) -> Contracts:
    """The contracts with a unified topic that is declared otherwise."""
    own = contracts.gold.unified_topic.model_copy(update=update)
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"publication": own})})


def numbers_of_records(shop: PublishedShop) -> dict[str, int]:
    return {"": len(shop.records()), **{name: len(shop.upsert_records(name)) for name in DECLARED}}


def compared_upsert(shop: PublishedShop, name: str) -> Comparison:
    return compare_upsert(shop.warehouse, shop.chosen, shop.contracts, name)


def assert_equal(shop: PublishedShop, *names: str) -> None:
    for name in names or DECLARED:
        found = compared_upsert(shop, name)
        assert (found.differing, found.unpublished, found.behind) == (0, {}, 0), name
        assert found.orders == len(shop.upsert_rows(name))


def group(source: str, status: str, *, day: int | None = None) -> str:
    """The key of a group of the mart, as text."""
    return json.dumps({"day": day, "source_database": source, "fulfillment_status": status})


def test_a_first_run_publishes_all_of_gold_once(shop: PublishedShop) -> None:
    customers = {"customer_id": 1}, {"customer_id": 1}, {"customer_id": 2}, {"customer_id": 1}
    rows = [{"order_id": number, **customer} for number, customer in enumerate(customers, 2)]
    shop.write("postgres_orders", LATER, *rows, {"order_id": 6, "_is_deleted": True})
    shop.write("mysql_orders", {"order_id": 1}, {"order_id": 2, "status": "completed"})
    # A table that is not there yet is left alone.
    assert shop.upsert_pending() == {"orders": 5, "daily": 0, "unified": 0, "joined": 0}
    shop.run("first")
    assert shop.pending() == 7
    outcome = shop.publish()
    assert outcome.sent == 7
    assert set(outcome.whole) == {"postgres", "mysql"}
    assert shop.sent() == sorted((key, False) for key in shop.gold())
    assert shop.differences() == []
    assert shop.pending() == 0
    assert sent(outcome) == {"orders": 5, "daily": 4, "unified": 7, "joined": 5}
    assert {one.why for one in outcome.upserted.values()} == {"nothing is known to be published of it"}


def test_every_row_that_is_there_is_on_its_upsert_topic(shop: PublishedShop) -> None:
    found = shop.upsert_rows("orders")
    assert sorted(found) == [f'{{"key_order_id": {number}}}' for number in range(1, 6)]
    columns = [name for name in shop.contracts.silver.tables["postgres_orders"].columns if name != "order_id"]
    assert list(found['{"key_order_id": 1}']) == columns
    assert found['{"key_order_id": 1}']["created_at"] == "2026-01-02T00:00:00.000000Z"
    (said,) = verify_messages.topic_sentences(compared_upsert(shop, "orders"))
    assert said == f"Topic {shop.upsert_topic('orders')} has the 5 rows of silver.postgres_orders, and no other."

    daily = shop.upsert_rows("daily")
    of_mart = {"day": 20455, "source_database": "postgresql", "fulfillment_status": "PENDING"}
    assert daily[json.dumps(of_mart)] | {"revenue": None} == {**of_mart, "orders": 1, "revenue": None}
    assert group("mysql", "FULFILLED") in daily
    (key, *_more) = [json.loads(record.key)["schema"]["fields"] for record in shop.upsert_records("daily")]
    assert [(field["field"], field["optional"]) for field in key] == [(name, True) for name in of_mart]

    assert shop.upsert_rows("unified")['{"composite_key": "MY-2"}'] == {"status": "completed", "total_amount": 10.0}
    headers = shop.upsert_records("unified")[0].headers
    assert headers["change_type"] == "UPSERT"
    assert headers["change_sequence"].count("/") == 1

    of_mysql = {1: "pending", 2: "pending", 3: "pending", 4: "completed", 5: "pending"}
    rows = {f'{{"key_order_id": {key}}}': {"status": "pending", "of_mysql": status} for key, status in of_mysql.items()}
    assert shop.upsert_rows("joined") == rows


def test_only_what_became_of_a_key_is_published(shop: PublishedShop) -> None:
    before = numbers_of_records(shop)
    stories: tuple[list[dict[str, Any]], ...] = (
        [{**LATER, "status": "paid"}, {**LATER, "status": "completed"}],  # changed twice
        [{"order_id": 2, "_is_deleted": True}, {"order_id": 2}],  # deleted, and there again
        [{"order_id": 3, "status": "paid"}, {"order_id": 3, "_is_deleted": True}],  # gone
        [{"order_id": 9}, {"order_id": 9, "_is_deleted": True}],  # never seen by a reader
        [{"order_id": 10, "_is_deleted": True}, {"order_id": 10}],  # new
        # Changed back: its processed_at alone is another.
        [{"order_id": 4, "customer_id": 2, "status": "paid"}, {"order_id": 4, "customer_id": 2}],
    )
    shop.write("mysql_orders", {"order_id": 2, "status": "cancelled"})
    for number in range(2):
        shop.write("postgres_orders", *(story[number] for story in stories))
        shop.run(f"step {number}")
    # Upsert topics have no processed_at here, so nothing new of orders 2 and 4; but order 4 is joined with MY-2.
    upserted = {"orders": 3, "daily": 4, "unified": 4, "joined": 4}
    assert shop.pending() == 6
    assert upsert.pending(shop.warehouse, shop.chosen, changed(shop, "orders")) == {"orders": 3}
    store = StateStore()
    store.read(shop.warehouse)  # as gold leaves it
    jobs_before = jobs(shop.warehouse.spark)
    outcome = shop.publish(with_topics(shop.contracts), store=store)
    assert jobs(shop.warehouse.spark) - jobs_before <= JOBS
    assert (outcome.sent, outcome.whole) == (6, {})
    outcome = shop.publish()
    assert (outcome.sent, sent(outcome)) == (0, upserted)
    assert {one.why for one in outcome.upserted.values()} == {None}
    assert numbers_of_records(shop) == {name: before[name] + {"": 6, **upserted}[name] for name in before}
    live = ("PG-1", "PG-2", "PG-10", "PG-4", "MY-2")
    first = [f"PG-{number}" for number in range(1, 6)] + ["MY-1", "MY-2"]
    assert shop.sent() == sorted([("PG-3", True), *((key, False) for key in (*first, *live))])
    assert shop.differences() == []
    for of_key in sequences(shop.records()).values():
        assert of_key == sorted(set(of_key))

    assert {key: row["status"] for key, row in shop.upsert_rows("orders").items()} == {
        '{"key_order_id": 1}': "completed",
        **{f'{{"key_order_id": {number}}}': "pending" for number in (2, 4, 5, 10)},
    }
    (gone,) = [record for record in shop.upsert_records("orders") if record.value is None]
    assert payload(gone.key) == {"key_order_id": 3}
    assert gone.headers["change_type"] == "DELETE"
    daily = shop.upsert_rows("daily")
    came, went = {group("mysql", "CANCELLED"), group("postgresql", "FULFILLED", day=20455)}, group("mysql", "FULFILLED")
    assert daily.keys() >= came, "groups that have come"
    assert not daily.keys() & {went, group("postgresql", "PENDING", day=20455)}, "groups that are gone"
    assert shop.upsert_rows("unified")['{"composite_key": "MY-2"}'] == {"status": "cancelled", "total_amount": 10.0}
    assert shop.upsert_rows("joined")['{"key_order_id": 4}'] == {"status": "pending", "of_mysql": "cancelled"}


def test_a_table_without_a_new_commit_costs_no_job_and_no_record(shop: PublishedShop) -> None:
    before, spark, costs = numbers_of_records(shop), shop.warehouse.spark, []
    for own in (with_topics(shop.contracts), shop.contracts):
        jobs_before = jobs(spark)
        outcome = shop.publish(own)
        costs.append(jobs(spark) - jobs_before)
        assert outcome.sent + sum(sent(outcome).values()) == 0
    assert costs[0] == costs[1]
    assert numbers_of_records(shop) == before
    assert last_version(shop.warehouse, "gold.orders_daily") == current(shop.warehouse, "gold.orders_daily")


def test_a_refresh_publishes_what_has_changed_and_nothing_else(shop: PublishedShop) -> None:
    before, number = shop.gold(), len(shop.records())
    again, another_column = {"order_id": 3, "status": "again"}, {"order_id": 5, "customer_id": 77}
    shop.write("postgres_orders", again, another_column)
    shop.write("mysql_orders", {"order_id": 2, "status": "cancelled", "_is_deleted": True})
    assert shop.run("again", full_refresh=True).changed_rows == 3
    gold = shop.gold()
    assert {key for key in {**before, **gold} if before.get(key) != gold.get(key)} == {"PG-3", "PG-5", "MY-2"}
    outcome = shop.publish()
    assert (outcome.sent, outcome.whole) == (3, {})
    assert len(shop.records()) == number + 3
    assert shop.differences() == []

    # Of order 5 neither its group nor what topic `unified` has of it has changed.
    assert sent(outcome) == {"orders": 2, "daily": 2, "unified": 2, "joined": 3}
    assert shop.upsert_rows("orders")['{"key_order_id": 3}']["status"] == "again"
    assert group("mysql", "CANCELLED") not in shop.upsert_rows("daily")
    assert shop.upsert_rows("joined")['{"key_order_id": 3}'] == {"status": "again", "of_mysql": "pending"}
    assert shop.upsert_rows("joined")['{"key_order_id": 5}'] == {"status": "pending", "of_mysql": None}
    places: dict[bytes, set[int]] = {}
    for name in DECLARED:
        for record in shop.upsert_records(name):
            places.setdefault(name.encode() + record.key, set()).add(record.partition)
    assert {len(of_key) for of_key in places.values()} == {1}
    assert_equal(shop)


def test_gold_made_anew_sends_what_differs_and_deletes_what_is_gone(shop: PublishedShop) -> None:
    shutil.rmtree(shop.warehouse.path(UNIFIED))
    shop.write("postgres_orders", {"order_id": 5, "_is_deleted": True})
    shop.run("gold made anew")
    outcome = shop.publish()
    assert outcome.whole == dict.fromkeys(("postgres", "mysql"), "gold was rebuilt, or restored to an earlier version")
    # Every row has another processed_at now.
    assert outcome.sent == len(shop.gold()) + 1
    assert shop.sent().count(("PG-5", True)) == 1
    assert shop.differences() == []
    for of_key in sequences(shop.records()).values():
        assert of_key == sorted(set(of_key))
    assert outcome.upserted["unified"] == upsert.Upserted(
        1, f"{UNIFIED} was rebuilt, or restored to an earlier version"
    )
    assert_equal(shop, "unified")


def compared(shop: PublishedShop) -> Comparison:
    return compare(shop.warehouse, shop.chosen, shop.contracts)


def test_republish_mends_what_another_hand_wrote_and_verify_names_it(shop: PublishedShop) -> None:
    number = len(shop.records())
    sound = compared(shop)
    assert (sound.orders, sound.differing, sound.keys, sound.unpublished, sound.behind) == (
        len(shop.gold()),
        0,
        (),
        {},
        0,
    )
    (said,) = verify_messages.topic_sentences(sound)
    assert said == f"Topic {shop.topic} has the {sound.orders} orders of gold, and no other."

    forger = Producer({**plain_config(shop.servers), "partitioner": "murmur2_random"})
    # Changed, made up, deleted; and a delete of nothing.
    for key, value in (("PG-1", b"{}"), ("PG-77", b'{"order_id":77}'), ("MY-1", None), ("PG-78", None)):
        forger.produce(shop.topic, key=json.dumps({"composite_key": key}, separators=(",", ":")), value=value)
    for of_orders, value in ((b'{"key_order_id":1}', b"{}"), (b'{"key_order_id":4711}', b"{}")):
        forger.produce(shop.upsert_topic("orders"), key=of_orders, value=value)
    assert forger.flush(30) == 0
    forged = compared(shop)
    assert (forged.differing, forged.keys) == (3, ("MY-1", "PG-1", "PG-77"))
    error = verify_messages.topic_differs(forged)
    assert error.exit_code == 8
    assert "in 3 keys: MY-1, PG-1, PG-77. Find out who else writes to it" in str(error)
    found = compared_upsert(shop, "orders")
    assert (found.differing, found.keys) == (2, ('{"key_order_id":1}', '{"key_order_id":4711}'))
    assert "is not what was published of silver.postgres_orders, in 2 keys" in str(verify_messages.topic_differs(found))

    # The order that gold does not have is deleted.
    rows = {name: len(shop.upsert_rows(name)) for name in DECLARED}
    assert shop.pending(republish=True) == len(shop.gold()) + 1
    outcome = shop.publish(republish=True)
    assert outcome.sent == len(shop.gold()) + 1
    assert len(shop.records()) == number + 4 + outcome.sent
    assert shop.differences() == []
    assert compared(shop) == sound
    assert sent(outcome) == rows
    assert_equal(shop, "orders")


@pytest.mark.skipif(JQ is None, reason="jq is not installed")
def test_jq_reads_the_flat_format(shop: PublishedShop) -> None:
    values = b"\n".join(
        record.value for record in shop.records() if record.value and b"source_database" in record.value
    )
    done = subprocess.run([str(JQ), "-r", ".source_database"], input=values, capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == {"postgresql", "mysql"}


def text(size: int, *, seed: int) -> str:
    """Text that cannot be compressed to less than three quarters."""
    return b64encode(Random(seed).randbytes(size * 3 // 4)).decode()  # noqa: S311


def test_without_its_marker_the_topic_itself_says_what_is_there(shop: PublishedShop) -> None:
    """Many records, and a large one, go in parts that a reader can count on."""
    before, of_orders = len(shop.records()), len(shop.upsert_records("orders"))
    delete(shop.chosen.kafka(), shop.progress_topic)
    many = [{"order_id": number} for number in range(100, 125)]
    large = {"order_id": 200, "status": text(2 << 20, seed=1)}
    others = {**LATER, "status": "refunded"}, {"order_id": 10, "_is_deleted": True}
    shop.write("postgres_orders", *many, large, *others)
    shop.run("without marker")
    assert shop.pending() == 28
    outcome = shop.publish(most_in_a_transaction=10)
    assert outcome.whole == dict.fromkeys(("postgres", "mysql"), "nothing is known to be published of it")
    assert outcome.sent == 28
    assert shop.differences() == []
    assert shop.pending() == 0
    assert sent(outcome)["orders"] == 28
    assert len(shop.records()) == before + 28
    assert len(shop.upsert_records("orders")) == of_orders + 28
    assert_equal(shop, "orders")


def test_an_order_that_is_too_large_is_named_and_keeps_back_no_other(shop: PublishedShop) -> None:
    low = with_unified(with_topics(shop.contracts), max_message_bytes=1_000_000)
    # Nothing is sent again for the new limit.
    assert shop.publish(low).sent == 0

    before = len(shop.records())
    shop.write("postgres_orders", {"order_id": 200, "status": text(1 << 20, seed=2)}, {"order_id": 202})
    shop.write("mysql_orders", {"order_id": 7})
    shop.run("too large")
    with pytest.raises(KafkaError) as error:
        shop.publish(low)
    assert re.search(
        rf"too large for topic {shop.topic}, whose max_message_bytes in gold/tables\.yaml is 1000000: "
        r"PG-200 \(104\d{4} bytes\)\. All other records were sent\. Raise max_message_bytes",
        str(error.value),
    )
    news = shop.records()[before:]
    assert sorted(json.loads(record.key)["composite_key"] for record in news) == ["MY-7", "PG-202"]
    marker = read_publish_position(shop.chosen.kafka(), shop.progress_topic)
    assert "postgres" not in marker.sources

    # Asked again, it says so again, and sends what is new. A key that is sensitive is not named.
    table = low.silver.tables["postgres_orders"]
    key = table.columns["order_id"].model_copy(update={"sensitive": True})
    tables = {
        **low.silver.tables,
        "postgres_orders": table.model_copy(update={"columns": {**table.columns, "order_id": key}}),
    }
    secret = low.model_copy(update={"silver": low.silver.model_copy(update={"tables": tables})})
    shop.write("postgres_orders", {"order_id": 203})
    shop.run("one more")
    with pytest.raises(KafkaError, match=r"is 1000000: ••• \(104\d{4} bytes\)\. All") as masked:
        shop.publish(secret)
    assert "PG-200" not in str(masked.value)
    assert len(shop.records()) == before + 3


def limit_topic(shop: PublishedShop, limit: int) -> None:
    """Let the broker take messages of so many bytes on the unified topic."""
    admin = AdminClient(plain_config(shop.servers))
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, shop.topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def test_a_topic_with_a_lower_limit_is_refused_until_it_is_raised(shop: PublishedShop) -> None:
    limit_topic(shop, 8388607)
    with pytest.raises(KafkaError) as error:
        shop.publish(with_topics(shop.contracts))
    assert f"Topic {shop.topic} has max.message.bytes=8388607, and the contract says 8388608" in str(error.value)
    assert (
        f"kafka-configs.sh --bootstrap-server {shop.servers} --alter --entity-type topics --entity-name {shop.topic} "
        "--add-config max.message.bytes=8388608"
    ) in str(error.value)
    limit_topic(shop, 8388608)
    assert shop.publish().sent == 1, "the order that was too large"
    assert shop.differences() == []
    assert shop.pending() == 0


def test_another_format_replaces_every_key(shop: PublishedShop) -> None:
    flat, old = {record.key for record in shop.records()}, set(shop.upsert_rows("orders"))
    prefixed = changed(shop, "orders", key_prefix="", value_prefix="after_", value_fields="all")
    otherwise = with_unified(prefixed, format="connect-json")
    outcome = shop.publish(otherwise)
    assert set(outcome.whole.values()) == {"the topic was created again, or its format or columns are others"}
    last = {record.key: record.value for record in shop.records()}
    assert all(last[key] is None for key in flat)
    live = {key for key, value in last.items() if value is not None}
    assert {json.loads(key)["payload"]["composite_key"] for key in live} == set(shop.gold())

    why = "the topic was created again, or its format or columns are others"
    assert outcome.upserted["orders"] == upsert.Upserted(2 * len(old), why)
    found = shop.upsert_rows("orders")
    assert set(found) == {key.replace("key_", "") for key in old}
    assert all({"order_id": row["after_order_id"]} == json.loads(key) for key, row in found.items())
    outcome = shop.publish(otherwise)
    assert (outcome.sent, sent(outcome)) == (0, {"orders": 0})

    outcome = shop.publish(changed(shop, "orders", format="connect-json"))
    assert outcome.sent == 2 * len(shop.gold())
    assert compared(shop).differing == 0
    assert sent(outcome)["orders"] == 2 * len(old)
    assert set(shop.upsert_rows("orders")) == old


def test_another_table_on_the_topic_replaces_its_rows(shop: PublishedShop) -> None:
    before = len(shop.upsert_rows("orders"))
    outcome = shop.publish(changed(shop, "orders", format="connect-json", table="silver.mysql_orders"))
    # Order 1 is in both tables, and order 7 in this one alone.
    assert sent(outcome)["orders"] == before + 1
    assert set(shop.upsert_rows("orders")) == {'{"key_order_id": 1}', '{"key_order_id": 7}'}
    assert sent(shop.publish())["orders"] == before + 2
    assert_equal(shop, "orders")


def test_a_topic_that_is_not_kept_as_it_must_be_is_refused(shop: PublishedShop) -> None:
    admin = AdminClient(plain_config(shop.servers))
    delete(shop.chosen.kafka(), shop.topic)
    policy = {"cleanup.policy": "compact,delete"}
    admin.create_topics([NewTopic(shop.topic, 3, 1, config=policy)])[shop.topic].result()
    with pytest.raises(KafkaError, match=r"has cleanup.policy=compact,delete: it would forget orders"):
        shop.publish()
    # Made anew, it gets all of gold.
    delete(shop.chosen.kafka(), shop.topic)
    outcome = shop.publish()
    assert set(outcome.whole.values()) == {"the topic was created again, or its format or columns are others"}
    assert outcome.sent == len(shop.gold())
    assert shop.differences() == []
    admin.create_partitions([NewPartitions(shop.topic, 4)])[shop.topic].result()
    with pytest.raises(KafkaError, match=r"has 4 partitions, and the contract says 3"):
        shop.publish()
