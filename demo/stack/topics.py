"""What the connectors write, read as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection

PATIENCE_SECONDS = 120.0


def json_event(value: bytes) -> Mapping[str, Any]:
    """The change event, with or without a schema around it."""
    event: Mapping[str, Any] = json.loads(value)
    payload = event.get("payload")
    return payload if "schema" in event and isinstance(payload, dict) else event


def wait_for(
    bootstrap_servers: str,
    topic: str,
    is_it: Callable[[Mapping[str, Any]], bool],
    *,
    event_of: Callable[[bytes], Mapping[str, Any]] = json_event,
) -> None:
    """Wait until the topic has a change event of which this is true. `event_of` reads one: JSON, when left out.

    Raises KafkaError after two minutes.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
    config = {**client_config(connection), "group.id": "nobody", "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "allow.auto.create.topics": "false", "enable.auto.commit": "false"})
    try:
        while not consumer.assignment() and time.monotonic() < deadline:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            value = None if message is None or message.error() else message.value()
            if value is not None and is_it(event_of(value)):
                return
    finally:
        consumer.close()
    raise KafkaError(
        f"{topic} has not told it within {PATIENCE_SECONDS:.0f} s.",
        hint="lakehouse connect status says why.",
    )
