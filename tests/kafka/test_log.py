"""The last record of a topic is looked for from its end."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse.kafka import log
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import FIRST_LOOK_BACK, last_record

pytestmark = pytest.mark.kafka

COMMITS = FIRST_LOOK_BACK


@pytest.fixture
def kafka(bootstrap_servers: str) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


@pytest.fixture
def topic(kafka: KafkaConnection) -> Iterator[str]:
    name, admin = f"log-{uuid4()}", AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result()
    yield name
    admin.delete_topics([name])[name].result()


def test_only_the_end_is_read_and_more_where_it_has_no_committed_record(
    kafka: KafkaConnection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    read = log.committed_records

    def counted(connection: KafkaConnection, name: str, *, begin: dict[int, int]) -> Iterator[log.Record]:
        begun.append(begin[0])
        yield from read(connection, name, begin=begin)

    monkeypatch.setattr(log, "committed_records", counted)
    assert last_record(kafka, "no such topic") is None
    assert last_record(kafka, topic) is None
    producer = Producer({**client_config(kafka), "transactional.id": topic})
    producer.init_transactions()
    for number in range(COMMITS):
        producer.begin_transaction()
        producer.produce(topic, key=b"k", value=str(number).encode())
        producer.commit_transaction()
    begun.clear()
    found = last_record(kafka, topic)
    assert found is not None
    assert found.value == str(COMMITS - 1).encode()
    # Of each transaction the marker has an offset too.
    assert begun == [2 * COMMITS - FIRST_LOOK_BACK]

    producer.begin_transaction()
    for _ in range(FIRST_LOOK_BACK):
        producer.produce(topic, key=b"k", value=b"taken back")
    producer.flush()
    producer.abort_transaction()
    begun.clear()
    assert last_record(kafka, topic) == found
    end = 2 * COMMITS + FIRST_LOOK_BACK + 1
    assert begun == [end - FIRST_LOOK_BACK, end - 2 * FIRST_LOOK_BACK]
