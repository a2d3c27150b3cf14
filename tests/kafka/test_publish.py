"""What is published when: news once, the net change of a key, and everything again where changes cannot be told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
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
from cli.tables import verify
from gold.compare import Comparison, compare
from gold.position import read_publish_position
from gold.unify import UNIFIED
from lakehouse.consumed import Consumed
from lakehouse.contracts.models import Contracts
from lakehouse.errors import KafkaError
from tests.support.brokers import plain_config
from tests.support.published import PublishedShop, published_shop, sequences
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.spark.tables import Warehouse

JQ = shutil.which("jq")
# Of Spark, to publish some changes: counted, with no room.
JOBS = 4
pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def shop(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, bootstrap_servers: str
) -> Iterator[PublishedShop]:
    """One story, told by the tests of this module in their order."""
    with published_shop(empty_silver(), contracts, bootstrap_servers) as published:
        yield published


def test_a_first_run_publishes_all_of_gold_once(shop: PublishedShop) -> None:
    shop.write("postgres_orders", *({"order_id": number} for number in range(1, 6)))
    shop.write("mysql_orders", {"order_id": 1}, {"order_id": 2})
    shop.run("first")
    assert shop.pending() == 7
    outcome = shop.publish()
    assert outcome.sent == 7
    assert set(outcome.whole) == {"postgres", "mysql"}
    assert shop.sent() == sorted((key, False) for key in shop.gold())
    assert shop.differences() == []
    assert shop.pending() == 0
    assert shop.publish().sent == 0
    assert len(shop.records()) == 7


def test_only_what_became_of_a_key_is_published(shop: PublishedShop) -> None:
    before = len(shop.records())
    stories: tuple[list[dict[str, Any]], ...] = (
        [{"order_id": 1, "status": "paid"}, {"order_id": 1, "status": "completed"}],  # changed twice
        [{"order_id": 2, "_is_deleted": True}, {"order_id": 2}],  # deleted, and there again
        [{"order_id": 3, "status": "paid"}, {"order_id": 3, "_is_deleted": True}],  # gone
        [{"order_id": 9}, {"order_id": 9, "_is_deleted": True}],  # never seen by a reader
        [{"order_id": 10, "_is_deleted": True}, {"order_id": 10}],  # new
        [{"order_id": 4, "status": "paid"}, {"order_id": 4}],  # changed back: processed_at is another
    )
    for number in range(2):
        shop.write("postgres_orders", *(story[number] for story in stories))
        shop.run(f"step {number}")
    assert shop.pending() == 5
    consumed = Consumed()
    consumed.now(shop.warehouse)  # as gold leaves it
    jobs_before = jobs(shop.warehouse.spark)
    outcome = shop.publish(consumed=consumed)
    assert jobs(shop.warehouse.spark) - jobs_before <= JOBS
    assert (outcome.sent, outcome.whole) == (5, {})
    news = sorted([("PG-1", False), ("PG-2", False), ("PG-3", True), ("PG-10", False), ("PG-4", False)])
    assert len(shop.records()) == before + 5
    first = sorted([(f"PG-{number}", False) for number in range(1, 6)] + [("MY-1", False), ("MY-2", False)])
    assert shop.sent() == sorted([*first, *news])
    assert shop.differences() == []
    for of_key in sequences(shop.records()).values():
        assert of_key == sorted(set(of_key))


def test_a_refresh_that_changes_nothing_publishes_nothing(shop: PublishedShop) -> None:
    before, number = shop.gold(), len(shop.records())
    assert shop.run("again", full_refresh=True).changed_rows == 0
    assert shop.gold() == before
    assert shop.publish().sent == 0
    assert len(shop.records()) == number
    assert shop.differences() == []


def test_gold_made_anew_sends_what_differs_and_deletes_what_is_gone(shop: PublishedShop) -> None:
    shutil.rmtree(shop.warehouse.path(UNIFIED))
    shop.write("mysql_orders", {"order_id": 2, "_is_deleted": True})
    shop.run("gold made anew")
    outcome = shop.publish()
    assert outcome.whole == dict.fromkeys(("postgres", "mysql"), "gold was rebuilt, or restored to an earlier version")
    # Every row has another processed_at now.
    assert outcome.sent == len(shop.gold()) + 1
    assert shop.sent().count(("MY-2", True)) == 1
    assert shop.differences() == []
    for of_key in sequences(shop.records()).values():
        assert of_key == sorted(set(of_key))


def test_without_its_marker_the_topic_itself_says_what_is_there(shop: PublishedShop) -> None:
    delete(shop.chosen.kafka(), shop.progress_topic)
    shop.write("postgres_orders", {"order_id": 1, "status": "refunded"}, {"order_id": 10, "_is_deleted": True})
    shop.run("without marker")
    number = len(shop.records())
    assert shop.pending() == 2
    outcome = shop.publish()
    assert outcome.whole == dict.fromkeys(("postgres", "mysql"), "nothing is known to be published of it")
    assert outcome.sent == 2
    assert len(shop.records()) == number + 2
    assert shop.differences() == []


def test_a_topic_made_anew_gets_all_of_gold(shop: PublishedShop) -> None:
    delete(shop.chosen.kafka(), shop.topic)
    outcome = shop.publish()
    assert set(outcome.whole.values()) == {"the topic was created again, or its format or columns are others"}
    assert outcome.sent == len(shop.gold())
    assert shop.differences() == []


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
    (said,) = verify.topic_sentences(sound)
    assert said == f"Topic {shop.topic} has the {sound.orders} orders of gold, and no other."

    forger = Producer({**plain_config(shop.servers), "partitioner": "murmur2_random"})
    # Changed, made up, deleted; and a delete of nothing.
    for key, value in (("PG-1", b"{}"), ("PG-77", b'{"order_id":77}'), ("MY-1", None), ("PG-78", None)):
        forger.produce(shop.topic, key=json.dumps({"composite_key": key}, separators=(",", ":")), value=value)
    assert forger.flush(30) == 0
    forged = compared(shop)
    assert (forged.differing, forged.keys) == (3, ("MY-1", "PG-1", "PG-77"))
    error = verify.topic_differs(forged)
    assert error.exit_code == 8
    assert "in 3 keys: MY-1, PG-1, PG-77. Find out who else writes to it" in str(error)

    # The order that gold does not have is deleted.
    assert shop.pending(republish=True) == len(shop.gold()) + 1
    outcome = shop.publish(republish=True)
    assert outcome.sent == len(shop.gold()) + 1
    assert len(shop.records()) == number + 4 + outcome.sent
    assert shop.differences() == []
    assert compared(shop) == sound


@pytest.mark.skipif(JQ is None, reason="jq is not installed")
def test_jq_reads_the_flat_format(shop: PublishedShop) -> None:
    values = b"\n".join(
        record.value for record in shop.records() if record.value and b"source_database" in record.value
    )
    done = subprocess.run([str(JQ), "-r", ".source_database"], input=values, capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == {"postgresql", "mysql"}


def test_many_records_go_in_parts_that_a_reader_can_count_on(shop: PublishedShop) -> None:
    shop.write("postgres_orders", *({"order_id": number} for number in range(100, 125)))
    shop.run("many")
    assert shop.publish(most_in_a_transaction=10).sent == 25
    assert shop.differences() == []
    assert shop.pending() == 0


def text(size: int, *, seed: int) -> str:
    """Text that cannot be compressed to less than three quarters."""
    return b64encode(Random(seed).randbytes(size * 3 // 4)).decode()  # noqa: S311


def with_limit(contracts: Contracts, limit: int) -> Contracts:
    """The contracts with a topic that takes messages of so many bytes."""
    own = contracts.gold.unified_topic.model_copy(update={"max_message_bytes": limit})
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"publication": own})})


def test_a_large_order_and_the_next_one_are_published(shop: PublishedShop) -> None:
    shop.write("postgres_orders", {"order_id": 200, "status": text(2 << 20, seed=1)})
    shop.run("large")
    assert shop.publish().sent == 1
    shop.write("postgres_orders", {"order_id": 201})
    shop.run("the next one")
    assert shop.publish().sent == 1
    assert shop.differences() == []


def test_an_order_that_is_too_large_is_named_and_keeps_back_no_other(shop: PublishedShop) -> None:
    low = with_limit(shop.contracts, 1_000_000)
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
    assert "postgres" not in marker.places

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

    assert shop.publish().sent == 1
    assert shop.differences() == []
    assert shop.pending() == 0


def test_another_format_replaces_every_key(shop: PublishedShop) -> None:
    own = shop.contracts.gold.unified_topic.model_copy(update={"format": "connect-json"})
    connect = shop.contracts.model_copy(update={"gold": shop.contracts.gold.model_copy(update={"publication": own})})
    flat = {record.key for record in shop.records()}
    outcome = shop.publish(connect)
    assert set(outcome.whole.values()) == {"the topic was created again, or its format or columns are others"}
    last = {record.key: record.value for record in shop.records()}
    assert all(last[key] is None for key in flat)
    live = {key for key, value in last.items() if value is not None}
    assert {json.loads(key)["payload"]["composite_key"] for key in live} == set(shop.gold())


def test_a_topic_with_a_lower_limit_is_refused_until_it_is_raised(shop: PublishedShop) -> None:
    admin = AdminClient(plain_config(shop.servers))
    delete(shop.chosen.kafka(), shop.topic)
    config = {"cleanup.policy": "compact", "max.message.bytes": "8388607"}
    admin.create_topics([NewTopic(shop.topic, 3, 1, config=config)])[shop.topic].result()
    with pytest.raises(KafkaError) as error:
        shop.publish()
    assert f"Topic {shop.topic} has max.message.bytes=8388607, and the contract says 8388608" in str(error.value)
    assert (
        f"kafka-configs.sh --bootstrap-server {shop.servers} --alter --entity-type topics --entity-name {shop.topic} "
        "--add-config max.message.bytes=8388608"
    ) in str(error.value)
    raised = ConfigEntry("max.message.bytes", "8388608", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, shop.topic, incremental_configs=[raised])
    admin.incremental_alter_configs([resource])[resource].result()
    assert shop.publish().sent == len(shop.gold())
    assert shop.differences() == []


def test_a_topic_that_is_not_kept_as_it_must_be_is_refused(shop: PublishedShop) -> None:
    admin = AdminClient(plain_config(shop.servers))
    delete(shop.chosen.kafka(), shop.topic)
    policy = {"cleanup.policy": "compact,delete"}
    admin.create_topics([NewTopic(shop.topic, 3, 1, config=policy)])[shop.topic].result()
    with pytest.raises(KafkaError, match=r"has cleanup.policy=compact,delete: it would forget orders"):
        shop.publish()
    delete(shop.chosen.kafka(), shop.topic)
    assert shop.publish().sent == len(shop.gold())
    admin.create_partitions([NewPartitions(shop.topic, 4)])[shop.topic].result()
    with pytest.raises(KafkaError, match=r"has 4 partitions, and the contract says 3"):
        shop.publish()
