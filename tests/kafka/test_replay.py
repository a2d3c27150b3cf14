"""Replaying a recording: every record comes back as it was recorded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from demo.replay import replay
from lakehouse.errors import KafkaError, SettingsError
from tests.support.brokers import plain_config

pytestmark = pytest.mark.kafka

SOURCE = "pg.public.orders"
LONG_AGO = 1_500_000_000_000
FAR_AHEAD = 4_000_000_000_000

RECORDS: list[dict[str, Any]] = [
    {"partition": 0, "timestamp": LONG_AGO, "key": '{"order_id":1}', "value": '{"note":"注文 🚀"}', "headers": []},
    {"partition": 0, "timestamp": LONG_AGO - 7, "key": '{"order_id":1}', "value": None, "headers": [["id", "a"]]},
    {
        "partition": 2,
        "timestamp": FAR_AHEAD,
        "key": None,
        "value": "",
        "headers": [["x", "1"], ["x", "2"], ["y", None]],
    },
    {"partition": 2, "timestamp": LONG_AGO, "key": "", "value": "not JSON", "headers": [["", "é"]]},
]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    other = {"topic": "other", "partition": 0, "timestamp": LONG_AGO, "key": "k", "value": "v", "headers": []}
    lines = [other, *({"topic": SOURCE, "offset": 100 + n, **record} for n, record in enumerate(RECORDS))]
    path = tmp_path / "capture.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


@pytest.fixture
def target(bootstrap_servers: str) -> Iterator[str]:
    """The name of a topic that does not exist yet, and does not afterwards."""
    name = f"replayed-{uuid4()}"
    yield name
    admin = AdminClient(plain_config(bootstrap_servers))
    for deleted in admin.delete_topics([name]).values():
        deleted.exception()


def records_of(bootstrap_servers: str, topic: str) -> list[dict[str, Any]]:
    """Every record of the topic, by partition and offset, in the form of a recording."""
    consumer = Consumer({**plain_config(bootstrap_servers), "group.id": "none", "enable.partition.eof": False})
    partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    expected = 0
    for partition in partitions:
        _low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition))
        expected += high
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    messages = consumer.consume(expected, timeout=30) if expected else []
    consumer.close()
    return [as_recorded(message) for message in sorted(messages, key=lambda one: (one.partition(), one.offset()))]


def as_recorded(message: Any) -> dict[str, Any]:
    kind, timestamp = message.timestamp()
    assert kind == TIMESTAMP_CREATE_TIME
    headers: Sequence[tuple[str, bytes | None]] = message.headers() or []
    return {
        "partition": message.partition(),
        "timestamp": timestamp,
        "key": text(message.key()),
        "value": text(message.value()),
        "headers": [[name, text(value)] for name, value in headers],
    }


def text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def test_every_record_comes_back_as_it_was_recorded(bootstrap_servers: str, capture: Path, target: str) -> None:
    assert replay(bootstrap_servers, capture, topics={SOURCE: target}) == {target: len(RECORDS)}
    assert records_of(bootstrap_servers, target) == RECORDS


def test_the_target_gets_the_partitions_of_the_recording(bootstrap_servers: str, capture: Path, target: str) -> None:
    replay(bootstrap_servers, capture, topics={SOURCE: target})
    topics = AdminClient(plain_config(bootstrap_servers)).list_topics(timeout=10).topics
    assert sorted(topics[target].partitions) == [0, 1, 2]
    assert SOURCE not in topics


def test_a_second_replay_appends_to_the_topic(bootstrap_servers: str, capture: Path, target: str) -> None:
    for _ in range(2):
        replay(bootstrap_servers, capture, topics={SOURCE: target})
    twice = [*RECORDS[:2] * 2, *RECORDS[2:] * 2]
    assert records_of(bootstrap_servers, target) == twice


def test_a_topic_that_was_not_recorded_is_named(bootstrap_servers: str, capture: Path, target: str) -> None:
    with pytest.raises(SettingsError, match=r"no records of absent\. It has: other, pg\.public\.orders\."):
        replay(bootstrap_servers, capture, topics={"absent": target})


def test_a_record_that_is_not_taken_is_an_error(bootstrap_servers: str, capture: Path, target: str) -> None:
    admin = AdminClient(plain_config(bootstrap_servers))
    admin.create_topics([NewTopic(target, num_partitions=1, replication_factor=1)])[target].result()
    with pytest.raises(KafkaError, match=f"{target}, partition 2: .*Unknown partition"):
        replay(bootstrap_servers, capture, topics={SOURCE: target})
