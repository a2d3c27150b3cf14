"""The records of a topic, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.kafka.broker import GROUP_PREFIX, client_config, not_granted, partitions, stopped_answering
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition, ends

# So many of the last offsets are read in search of a topic's last record.
FIRST_LOOK_BACK = 64


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
    Raises KafkaError when the broker refuses, BrokerUnavailableError when it does not answer.
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
                    raise not_granted(connection, error, what, hint="Check the broker's log.")
    finally:
        consumer.close()


def last_record(connection: KafkaConnection, topic: str) -> Record | None:
    """The last committed record of a topic with one partition; None where there is none, or no such topic.

    Read from the end: at first the last offsets alone, and as long as none of these has a committed record (markers of
    transactions, and what was taken back), twice as many. Raises as `committed_records` does.
    """
    if topic not in partitions(connection):
        return None
    topic_partition, look_back = Partition(topic, 0), FIRST_LOOK_BACK
    there = ends(connection, [topic_partition])[topic_partition]
    while True:
        begin = max(there.earliest, there.latest - look_back)
        found = deque(committed_records(connection, topic, begin={topic_partition.number: begin}), maxlen=1)
        if found or begin == there.earliest:
            return found[0] if found else None
        look_back *= 2


def _record(message: Any) -> Record:
    headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
    return Record(message.partition(), message.offset(), message.key() or b"", message.value(), headers)
