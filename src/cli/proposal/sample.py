"""A few records of a topic. They are read and gone: no group and no commit stays behind. Imports without pyspark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from lakehouse.errors import KafkaError, TopicMissingError
from lakehouse.kafka.broker import client_config, partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition, ends
from silver.decode.message import Record

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


MOST_RECORDS, SECONDS = 500, 10.0


@dataclass(frozen=True)
class _Range:
    """A part of a partition: from an offset to before another, and the most records to take of it."""

    partition: int
    first: int
    end: int
    most: int


def sample(
    connection: KafkaConnection, topic: str, *, most: int = MOST_RECORDS, seconds: float = SECONDS
) -> Sequence[Record]:
    """Committed records from the beginning and the end of every partition, in the order of partitions and offsets.

    At most `most` (but of every partition that has records at least one), read in at most about `seconds` once the
    broker has said where its partitions end; fewer when the time is over.
    Raises TopicMissingError without the topic, KafkaError when the broker does not answer, does not let this client
    read, or sends no record in time although it has some.
    """
    known = partitions(connection)
    if topic not in known:
        raise _missing(connection, topic, known)
    found = ends(connection, [Partition(topic, number) for number in known[topic]])
    filled = {place.number: at for place, at in found.items() if at.earliest < at.latest}
    if not filled:
        return ()
    return _read(connection, topic, filled, most=most, seconds=seconds)


def _missing(connection: KafkaConnection, topic: str, known: Mapping[str, object]) -> TopicMissingError:
    close = get_close_matches(topic, list(known), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else "."
    return TopicMissingError(
        f"Topic {topic} is not on {connection.bootstrap_servers}{hint}",
        remedy=f"Name one of the {len(known)} topics that it has, or start the connector that publishes there.",
    )


def _shares(partition_ends: Mapping[int, Ends], most: int) -> Mapping[int, int]:
    """How many records to take of each partition: equal shares, and what the small ones leave goes to the others."""
    shares: dict[int, int] = {}
    smallest_first = sorted(partition_ends, key=lambda number: _size(partition_ends[number]))
    for taken, number in enumerate(smallest_first):
        left = most - sum(shares.values())
        shares[number] = max(1, min(_size(partition_ends[number]), left // (len(smallest_first) - taken)))
    return shares


def _size(at: Ends) -> int:
    return at.latest - at.earliest


def _read(
    connection: KafkaConnection, topic: str, partition_ends: Mapping[int, Ends], *, most: int, seconds: float
) -> Sequence[Record]:
    from confluent_kafka import Consumer, KafkaException

    shares = _shares(partition_ends, most)
    # A partition that is taken whole has no second half.
    tails = {number: share // 2 for number, share in shares.items() if share < _size(partition_ends[number])}
    heads = [
        _Range(number, at.earliest, at.latest - tails.get(number, 0), shares[number] - tails.get(number, 0))
        for number, at in partition_ends.items()
    ]
    rests = [
        _Range(number, partition_ends[number].latest - tail, partition_ends[number].latest, tail)
        for number, tail in tails.items()
        if tail
    ]
    deadline = time.monotonic() + seconds
    consumer = Consumer({**client_config(connection), **_own_config()})
    try:
        messages = [*_take(consumer, topic, heads, deadline), *_take(consumer, topic, rests, deadline)]
    except KafkaException as error:
        raise KafkaError(
            f"The broker at {connection.bootstrap_servers} does not let topic {topic} be read: {error.args[0].str()}.",
            remedy="Check that it is up, and that this client may read the topic.",
        ) from None
    finally:
        consumer.close()
    if not messages and time.monotonic() >= deadline:
        raise KafkaError(
            f"No record of topic {topic} came from {connection.bootstrap_servers} in {seconds:.0f} s; it has some.",
            remedy="Check the connection to every broker of the cluster, and try again.",
        )
    messages.sort(key=lambda message: (message.partition(), message.offset()))
    return tuple(Record(topic, message.key(), message.value(), _headers(message)) for message in messages)


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    # What a consumer gets is always pairs of bytes; the other types are for producers.
    return tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))


def _own_config() -> Mapping[str, object]:
    return {
        # librdkafka wants a group; of one that neither joins nor commits, no broker hears.
        "group.id": f"lakehouse-sample-{uuid4()}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }


def _take(consumer: Consumer, topic: str, ranges: Sequence[_Range], deadline: float) -> list[Message]:
    """The records of these ranges, until all are read to their end or the time is over. Raises KafkaException."""
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException, TopicPartition

    taken: dict[int, list[Message]] = {span.partition: [] for span in ranges}
    open_ones = {span.partition: span for span in ranges}
    consumer.assign([TopicPartition(topic, span.partition, span.first) for span in ranges])
    while open_ones and (left := deadline - time.monotonic()) > 0:
        for message in consumer.consume(num_messages=100, timeout=min(left, 0.5)):
            number = message.partition()
            error = message.error()
            if error is not None and error.code() != ClientError._PARTITION_EOF:
                raise KafkaException(error)
            if number not in open_ones:
                continue
            span, offset = open_ones[number], message.offset() or 0
            if error is None and offset < span.end:
                taken[number].append(message)
            # Aborted records and markers leave gaps: the end is also reached with a record at or behind it.
            if error is not None or len(taken[number]) == span.most or offset >= span.end - 1:
                del open_ones[number]
                consumer.incremental_unassign([TopicPartition(topic, number)])
    consumer.unassign()
    return [message for messages in taken.values() for message in messages]
