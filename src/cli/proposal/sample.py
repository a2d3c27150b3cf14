"""A few records of a topic, or of many. They are read and gone: no group and no commit stays behind.

Imports without pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from lakehouse.contracts.checks.mistakes import did_you_mean
from lakehouse.errors import BrokerUnavailableError, KafkaError, TopicMissingError
from lakehouse.kafka.broker import TopicPartitions, client_config, partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition, ends
from silver.decode.reference.message import Record

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka import KafkaError as ClientError


MAX_RECORDS, SECONDS = 500, 10.0
# Of many topics: so many are read at a time, and of each record batch no more than this.
TOGETHER, FETCHED_BYTES = 10, 262_144


@dataclass(frozen=True)
class Unread:
    """Why nothing was read of a topic that may have records."""

    why: str


NO_TIME = Unread("not looked at: the time was over")
NO_RIGHT = Unread("not looked at: no right to read it")
NO_ANSWER = Unread("not looked at: none of its records came in time")
NO_OFFSETS = Unread("not looked at: the broker does not say what it has")


@dataclass(frozen=True)
class _Range:
    """A part of a partition: from an offset to before another, and the most records to take of it."""

    topic_partition: Partition
    first: int
    end: int
    most: int


def sample(
    connection: KafkaConnection, topic: str, *, most: int = MAX_RECORDS, seconds: float = SECONDS
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
    filled = {topic_partition.number: at for topic_partition, at in found.items() if at.earliest < at.latest}
    if not filled:
        return ()
    return _read(connection, topic, filled, most=most, seconds=seconds)


def _missing(connection: KafkaConnection, topic: str, known: Mapping[str, object]) -> TopicMissingError:
    return TopicMissingError(
        f"Topic {topic} is not on {connection.bootstrap_servers}{did_you_mean(topic, known, most=3)}",
        hint=f"Name one of the {len(known)} topics that it has, or start the connector that publishes there.",
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

    def refuse(_topic: str, error: ClientError) -> None:
        raise KafkaException(error)

    deadline = time.monotonic() + seconds
    consumer = Consumer({**client_config(connection), **_own_config()})
    try:
        messages = _both_ends(consumer, {topic: partition_ends}, most, deadline, refuse)
    except KafkaException as error:
        raise KafkaError(
            f"The broker at {connection.bootstrap_servers} does not let topic {topic} be read: {error.args[0].str()}.",
            hint="Check that it is up, and that this client may read the topic.",
        ) from None
    finally:
        consumer.close()
    if not messages and time.monotonic() >= deadline:
        raise KafkaError(
            f"No record of topic {topic} came from {connection.bootstrap_servers} in {seconds:.0f} s; it has some.",
            hint="Check the connection to every broker of the cluster, and try again.",
        )
    return _records(messages)


def samples(
    connection: KafkaConnection, topics: TopicPartitions, *, most: int, seconds: float
) -> Iterator[Mapping[str, Sequence[Record] | Unread]]:
    """The same of many topics, some of them at a time, in their order: of each at most `most`, or why there are none.

    All together in about `seconds`. Raises BrokerUnavailableError when the broker does not answer.
    """
    from confluent_kafka import Consumer

    deadline = time.monotonic() + seconds
    names = list(topics)
    fetched = {"max.partition.fetch.bytes": FETCHED_BYTES, "queued.min.messages": 2 * most}
    consumer = Consumer({**client_config(connection), **_own_config(), **fetched})
    try:
        for number in range(0, len(names), TOGETHER):
            some = {name: topics[name] for name in names[number : number + TOGETHER]}
            until = min(deadline, time.monotonic() + SECONDS)
            if time.monotonic() >= deadline:
                yield dict.fromkeys(some, NO_TIME)
            else:
                yield _of_some(connection, consumer, some, most, until)
    finally:
        consumer.close()


def _of_some(
    connection: KafkaConnection, consumer: Consumer, topics: TopicPartitions, most: int, deadline: float
) -> Mapping[str, Sequence[Record] | Unread]:
    filled, unread = _filled(connection, topics), dict[str, Unread]()
    unread |= {topic: found for topic, found in filled.items() if isinstance(found, Unread)}
    to_read = {topic: found for topic, found in filled.items() if not isinstance(found, Unread) and found}

    def refuse(topic: str, _error: ClientError) -> None:
        unread[topic] = NO_RIGHT

    by_topic: dict[str, list[Message]] = {topic: [] for topic in topics}
    for message in _both_ends(consumer, to_read, most, deadline, refuse):
        by_topic[message.topic() or ""].append(message)
    is_late = time.monotonic() >= deadline
    unread |= {topic: NO_ANSWER for topic in to_read if is_late and not by_topic[topic] and topic not in unread}
    return {topic: unread.get(topic) or _records(messages) for topic, messages in by_topic.items()}


def _filled(connection: KafkaConnection, topics: TopicPartitions) -> Mapping[str, Mapping[int, Ends] | Unread]:
    """Of every topic the ends of the partitions that have records. One that is refused leaves the others."""
    try:
        found = ends(connection, [Partition(topic, number) for topic, numbers in topics.items() for number in numbers])
    except BrokerUnavailableError:
        raise
    except KafkaError:
        if len(topics) == 1:
            return dict.fromkeys(topics, NO_OFFSETS)
        return {topic: _filled(connection, {topic: numbers})[topic] for topic, numbers in topics.items()}
    filled: dict[str, dict[int, Ends]] = {topic: {} for topic in topics}
    for topic_partition, at in found.items():
        if at.earliest < at.latest:
            filled[topic_partition.topic][topic_partition.number] = at
    return filled


Refuse = Callable[[str, "ClientError"], None]


def _both_ends(
    consumer: Consumer, topics: Mapping[str, Mapping[int, Ends]], most: int, deadline: float, refuse: Refuse
) -> list[Message]:
    """The first and the last records of every partition: of each topic at most `most`, in the order of the offsets."""
    firsts, rests = list[_Range](), list[_Range]()
    for topic, partition_ends in topics.items():
        for number, share in _shares(partition_ends, most).items():
            at, topic_partition = partition_ends[number], Partition(topic, number)
            # A partition that is taken whole has no second half.
            tail = share // 2 if share < _size(at) else 0
            firsts.append(_Range(topic_partition, at.earliest, at.latest - tail, share - tail))
            if tail:
                rests.append(_Range(topic_partition, at.latest - tail, at.latest, tail))
    messages = [*_take(consumer, firsts, deadline, refuse), *_take(consumer, rests, deadline, refuse)]
    messages.sort(key=lambda message: (message.topic(), message.partition(), message.offset()))
    return messages


def _records(messages: Sequence[Message]) -> Sequence[Record]:
    return tuple(Record(str(one.topic()), one.key(), one.value(), _headers(one)) for one in messages)


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


def _take(consumer: Consumer, ranges: Sequence[_Range], deadline: float, refuse: Refuse) -> list[Message]:
    """The records of these ranges, until all are read to their end or the time is over. Raises KafkaException.

    `refuse`: is called for a topic that cannot be read, whose ranges are then left.
    """
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import TopicPartition

    taken: dict[Partition, list[Message]] = {span.topic_partition: [] for span in ranges}
    open_ones = {span.topic_partition: span for span in ranges}
    consumer.assign(
        [TopicPartition(span.topic_partition.topic, span.topic_partition.number, span.first) for span in ranges]
    )
    while open_ones and (left := deadline - time.monotonic()) > 0:
        for message in consumer.consume(num_messages=100, timeout=min(left, 0.5)):
            topic_partition = Partition(str(message.topic()), cast("int", message.partition()))
            error = message.error()
            if error is not None and error.code() != ClientError._PARTITION_EOF:
                refuse(topic_partition.topic, error)
                refused = [one for one in open_ones if one.topic == topic_partition.topic]
                consumer.incremental_unassign([TopicPartition(*one) for one in refused])
                for one in refused:
                    del open_ones[one]
            if topic_partition not in open_ones:
                continue
            span, offset = open_ones[topic_partition], message.offset() or 0
            if error is None and offset < span.end:
                taken[topic_partition].append(message)
            # Aborted records and markers leave gaps: the end is also reached with a record at or behind it.
            if error is not None or len(taken[topic_partition]) == span.most or offset >= span.end - 1:
                del open_ones[topic_partition]
                consumer.incremental_unassign([TopicPartition(*topic_partition)])
    consumer.unassign()
    return [message for messages in taken.values() for message in messages]
