"""What is looked at of the unified topic: its newest records, or the first ones after a time, and not more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse.contracts.models import Contracts
from lakehouse.kafka.connection import KafkaConnection
from monitoring.readings import unified_topic
from monitoring.readings.unified_topic import published_of, sources_on
from tests.support.brokers import plain_config
from tests.support.shop import delete

pytestmark = [pytest.mark.kafka]

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FOREIGN: list[tuple[str, str | bytes | None]] = [("trace", b"\xff\xfe"), ("change_sequence", b"\x80")]


@pytest.fixture
def kafka(bootstrap_servers: str) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


@pytest.fixture
def unified(contracts: Contracts, kafka: KafkaConnection) -> Iterator[Contracts]:
    """Contracts with a topic of two partitions: in each an order of PostgreSQL, then nine of MySQL, one an hour."""
    topic = f"unified-{uuid4()}"
    admin = AdminClient(plain_config(kafka.bootstrap_servers))
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])[topic].result()
    producer = Producer(plain_config(kafka.bootstrap_servers))
    for partition in (0, 1):
        for hour in range(10):
            key = f'{{"composite_key":"{"MY" if hour else "PG"}-{10 * partition + hour}"}}'
            millis = int((NOON + timedelta(hours=hour)).timestamp() * 1000)
            value = None if hour == 9 else b"{}"
            producer.produce(topic, value, key.encode(), partition, timestamp=millis, headers=FOREIGN)
        # Somebody else's.
        producer.produce(topic, b"\xff", b"\xff" if partition else b"[" * 100_000, partition, headers=FOREIGN)
    assert producer.flush(30) == 0
    gold = contracts.gold
    publication = gold.unified_topic.model_copy(update={"topic": topic})
    yield contracts.model_copy(update={"gold": gold.model_copy(update={"publication": publication})})
    delete(kafka, topic)


def offsets(kafka: KafkaConnection, unified: Contracts, key: str, since: datetime | None = None) -> object:
    found = published_of(kafka, unified, key, since=since)
    return [(one.partition, one.offset, one.value) for one in found.records], found.is_whole


def test_a_topic_of_few_records_is_read_whole(kafka: KafkaConnection, unified: Contracts) -> None:
    assert sources_on(kafka, unified) == {"postgres": True, "mysql": True}
    assert offsets(kafka, unified, "PG-10") == ([(1, 0, "{}")], True)
    assert offsets(kafka, unified, "MY-9") == ([(0, 9, None)], True)
    assert offsets(kafka, unified, "MY-1") == ([(0, 1, "{}")], True)
    assert offsets(kafka, unified, "MY-77") == ([], True)


def test_of_many_records_the_newest_are_read(
    kafka: KafkaConnection, unified: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unified_topic, "MAX_RECORDS", 10)
    assert sources_on(kafka, unified) == {"postgres": None, "mysql": True}
    assert offsets(kafka, unified, "MY-9") == ([(0, 9, None)], False)
    assert offsets(kafka, unified, "PG-10") == ([], False)


def test_an_order_is_found_where_its_row_was_changed(
    kafka: KafkaConnection, unified: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unified_topic, "MAX_RECORDS", 6)
    assert offsets(kafka, unified, "PG-10", NOON) == ([(1, 0, "{}")], False)
    # Clocks may differ by an hour.
    assert offsets(kafka, unified, "MY-3", NOON + timedelta(hours=4)) == ([(0, 3, "{}")], False)
    assert offsets(kafka, unified, "MY-3", NOON + timedelta(hours=5)) == ([], False)
    assert offsets(kafka, unified, "MY-9", NOON) == ([], False)
    later = datetime.now(UTC) + timedelta(days=1)
    assert offsets(kafka, unified, "MY-9", later) == ([], False)


def test_a_source_without_an_order_is_known_only_by_the_whole_topic(kafka: KafkaConnection, unified: Contracts) -> None:
    prefix = unified.gold.sources["postgres"].model_copy(update={"prefix": "XX"})
    gold = unified.gold.model_copy(update={"sources": {**unified.gold.sources, "postgres": prefix}})
    assert sources_on(kafka, unified.model_copy(update={"gold": gold})) == {"postgres": False, "mysql": True}
