"""Sampling a topic: the records at both ends of every partition, committed ones only, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cli.proposal.propose import propose
from cli.proposal.sample import sample
from demo.replay import replay
from lakehouse.errors import KafkaError, TopicMissingError
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection
from silver.decode.message import Record

pytestmark = pytest.mark.kafka

RECORDINGS = Path(__file__).parents[2] / "demo" / "data"

NewTopicOf = Callable[[int], str]


@pytest.fixture
def kafka(bootstrap_servers: str) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


@pytest.fixture
def topic_of(kafka: KafkaConnection) -> Iterator[NewTopicOf]:
    """Makes a topic of that many partitions, and deletes it afterwards."""
    admin = AdminClient(client_config(kafka))
    made: list[str] = []

    def make(partitions: int) -> str:
        name = f"sampled-{uuid4()}"
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result()
        made.append(name)
        while name not in admin.list_topics(timeout=10).topics:  # it is told a moment after it was made
            time.sleep(0.01)
        return name

    yield make
    for deleted in admin.delete_topics(made).values():
        deleted.result()


def produce(kafka: KafkaConnection, topic: str, values: range, *, partition: int = 0) -> None:
    producer = Producer(client_config(kafka))
    for value in values:
        producer.produce(topic, partition=partition, key=b"k", value=str(value).encode(), headers=[("h", b"1")])
    assert producer.flush(30) == 0


def numbers(records: object) -> list[int]:
    assert isinstance(records, tuple)
    return [int(record.value or b"") for record in records]


def test_a_small_topic_is_read_whole_and_once(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(3)
    produce(kafka, topic, range(5), partition=0)
    produce(kafka, topic, range(5, 7), partition=2)
    records = sample(kafka, topic)
    assert numbers(records) == [0, 1, 2, 3, 4, 5, 6]
    assert records[0] == Record(topic, key=b"k", value=b"0", headers=(("h", b"1"),))


def test_of_a_large_topic_both_ends_of_every_partition_are_read(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(2)
    produce(kafka, topic, range(1000), partition=0)
    produce(kafka, topic, range(1000, 1004), partition=1)
    assert numbers(sample(kafka, topic, most=10)) == [0, 1, 2, 997, 998, 999, 1000, 1001, 1002, 1003]


def test_a_replayed_recording_can_be_proposed_from(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    replay(kafka.bootstrap_servers, RECORDINGS / "pg_default.jsonl.gz", topics={"pg.public.orders": topic})
    texts = propose(topic, sample(kafka, topic))
    assert "121 records: 99 change events, 11 deletes, 11 tombstones" in texts["bronze/topics.yaml"]


def test_tombstones_and_records_without_a_key_are_records(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    producer = Producer(client_config(kafka))
    producer.produce(topic, value=None)
    assert producer.flush(30) == 0
    assert sample(kafka, topic) == (Record(topic, key=None, value=None),)


def test_only_committed_records_are_read_at_either_end(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    writer = Producer({**client_config(kafka), "transactional.id": f"writer-{uuid4()}"})
    writer.init_transactions()
    for values, end in (
        (range(5), writer.abort_transaction),
        (range(5, 10), writer.commit_transaction),
        (range(10, 15), writer.abort_transaction),
    ):
        writer.begin_transaction()
        for value in values:
            writer.produce(topic, value=str(value).encode())
        writer.flush()
        end()
    started = time.monotonic()
    assert numbers(sample(kafka, topic, seconds=30)) == [5, 6, 7, 8, 9]
    # The end of a partition is known: nobody waits for more.
    assert time.monotonic() - started < 20
    # Four from the beginning, five from the end, where only aborted ones are.
    assert numbers(sample(kafka, topic, most=8, seconds=8)) == [5, 6, 7, 8]


def test_an_open_transaction_does_not_hold_it_up(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    writer = Producer({**client_config(kafka), "transactional.id": f"writer-{uuid4()}"})
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, value=b"3")
    writer.flush()
    started = time.monotonic()
    assert numbers(sample(kafka, topic, seconds=30)) == [0, 1, 2]
    assert time.monotonic() - started < 20
    writer.abort_transaction()


def test_an_empty_topic_has_no_records(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    assert sample(kafka, topic_of(2)) == ()


def test_it_leaves_no_group_behind(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    sample(kafka, topic)
    groups = AdminClient(client_config(kafka)).list_consumer_groups().result()
    assert not [group.group_id for group in groups.valid if group.group_id.startswith("lakehouse-sample")]


def test_a_topic_that_is_not_there_is_named_with_what_was_meant(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    with pytest.raises(TopicMissingError, match=f"did you mean {topic}") as refused:
        sample(kafka, topic[:-1])
    assert kafka.bootstrap_servers in refused.value.what


def test_records_that_do_not_come_in_time_are_an_error(kafka: KafkaConnection, topic_of: NewTopicOf) -> None:
    topic = topic_of(1)
    produce(kafka, topic, range(3))
    with pytest.raises(KafkaError, match="in 0 s"):
        sample(kafka, topic, seconds=0)


def test_a_broker_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.kafka.broker.FIRST_LOOK_SECONDS", 0.2)
    monkeypatch.setattr("lakehouse.kafka.broker.TIMEOUT_SECONDS", 0.5)
    with pytest.raises(KafkaError, match="No Kafka broker answers"):
        sample(KafkaConnection(bootstrap_servers="127.0.0.1:1"), "any")
