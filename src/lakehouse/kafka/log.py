"""The records of a topic, one after the other."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.kafka.broker import GROUP_PREFIX, client_config, not_granted, partitions, stopped_answering
from lakehouse.kafka.connection import KafkaConnection


@dataclass(frozen=True)
class Record:
    """A record of a topic; `value` None: a tombstone. Headers of others may be no text: what is none is replaced."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: Mapping[str, str]


def committed_records(
    connection: KafkaConnection, topic: str, *, begin: Mapping[int, int] | None = None, most: int | None = None
) -> Generator[Record, None, None]:
    """Every committed record that is on the topic now, each partition in its order; none of a topic that is not there.

    `begin`: at which offset, of the partitions that do not begin at their first. `most`: records of each partition.
    Raises KafkaError when the broker refuses, BrokerGoneError when it does not answer.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
    from confluent_kafka import KafkaError as ClientError

    config: dict[str, Any] = {
        **client_config(connection),
        "group.id": f"{GROUP_PREFIX}-log",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",  # of a partition whose records went meanwhile
        # The end of a partition is said: after a transaction no record has its last offset.
        "enable.partition.eof": True,
        # The broker would wait for records to come before it says that there are no more.
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(config)
    try:
        for number in partitions(connection).get(topic, ()):
            consumer.assign([TopicPartition(topic, number, (begin or {}).get(number, OFFSET_BEGINNING))])
            read = 0
            while read != most:
                message = consumer.poll(connection.timeout_seconds)
                if message is None:
                    raise stopped_answering(connection, f"reading {topic}")
                error = message.error()
                if error is None:
                    read += 1
                    yield _record(message)
                elif error.code() == ClientError._PARTITION_EOF:
                    break
                else:
                    what = f"does not give {topic}"
                    raise not_granted(connection, error, what, remedy="Check the broker's log.")
    finally:
        consumer.close()


def _record(message: Any) -> Record:
    headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
    return Record(message.partition(), message.offset(), message.key() or b"", message.value(), headers)
