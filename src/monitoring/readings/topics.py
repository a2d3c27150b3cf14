"""What the broker says of a source's topics: where they end, how fast they grow, and how old what is unread is."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import Source
from lakehouse.kafka.broker import GROUP_PREFIX, TopicPartitions, client_config, partitions, topic_settings
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition, ends, offsets_at_time

if TYPE_CHECKING:
    from confluent_kafka import Message

_Value = TypeVar("_Value")
# Over so long the rate of arrival is taken.
WINDOW = timedelta(minutes=10)
# The header that names the run of the connector, since Debezium 3.2.
RUN_ID = "__debezium.context.runId"
# How the topics of Debezium's heartbeats begin, by default.
HEARTBEATS = "__debezium-heartbeat"
# Kafka has no offsets for markers of transactions and what compaction removed: so many before the end are looked at.
_BEFORE_END = 5
_MAX_WAIT_SECONDS = 1.5


@dataclass(frozen=True)
class Sent:
    """A record as far as times go. `source_ms`: when its change was committed, by its source block; None without.

    `names_run`: whether a header names the run of the connector.
    """

    timestamp_ms: int
    source_ms: int | None = None
    has_key: bool = True
    names_run: bool = True


@dataclass(frozen=True)
class SourceTopics:
    """What a broker has of a source.

    `absent`: topics that the contract names and the broker has not. `unread`: of each partition with records behind
    `next_offsets` the first of these, and `unread_from` its offset. `last`: the newest records, of data and of
    heartbeats. `rate`: records a second. `lost`: partitions whose next record is gone. `keyless`: topics of rows whose
    newest record has no key; `nameless`: name no connector run. `kept_ms`: by topic its retention, where it has one.
    """

    absent: Sequence[str] = ()
    ends: Mapping[Partition, Ends] = field(default_factory=dict)
    unread: Mapping[Partition, Sent] = field(default_factory=dict)
    unread_from: Mapping[Partition, int] = field(default_factory=dict)
    unread_records: int = 0
    last: Mapping[Partition, Sent] = field(default_factory=dict)
    rate: float | None = None
    lost: Sequence[Partition] = ()
    keyless: Collection[str] = ()
    nameless: Collection[str] = ()
    kept_ms: Mapping[str, int] = field(default_factory=dict)

    def lost_in_seconds(self, *, now_ms: int) -> float | None:
        """Until retention removes the first record that was not read; None where nothing is unread, or is kept."""
        left = [
            (one.timestamp_ms + self.kept_ms[topic_partition.topic] - now_ms) / 1000
            for topic_partition, one in self.unread.items()
            if topic_partition.topic in self.kept_ms
        ]
        return min(left, default=None)


def topics_of(
    connection: KafkaConnection,
    contracts: Contracts,
    *,
    next_offsets: Mapping[tuple[str, str, int], int],
    now: datetime,
) -> dict[str, SourceTopics]:
    """By source. Raises KafkaError where the broker refuses, BrokerUnavailableError where it does not answer."""
    known = partitions(connection)
    by_source = {name: _topic_partitions(source, known) for name, source in contracts.topics.sources.items()}
    every = [partition for of_source in by_source.values() for partition in of_source]
    limits = ends(connection, every)
    began = offsets_at_time(connection, every, timestamp_ms=millis(now - WINDOW)) if every else {}
    settings = topic_settings(connection, sorted({partition.topic for partition in every})) if every else {}
    following = {
        name: {each: next_offsets.get((name, *each), limits[each].earliest) for each in of_source}
        for name, of_source in by_source.items()
    }
    unread_from = {
        partition: max(offset, limits[partition].earliest)
        for offsets in following.values()
        for partition, offset in offsets.items()
        if offset < limits[partition].latest
    }
    last_from = {
        partition: max(limits[partition].latest - _BEFORE_END, limits[partition].earliest)
        for partition in every
        if limits[partition].latest > limits[partition].earliest
    }
    first_unread = read_one(connection, unread_from)
    newest = read_one(connection, last_from, newest=True)
    kept_ms = {topic: kept for topic in settings if (kept := _retention(settings[topic])) is not None}
    topics = {}
    for name, of_source in by_source.items():
        source = contracts.topics.sources[name]
        own_unread, last = _among(of_source, unread_from), _among(of_source, newest)
        rows = [(partition.topic, sent) for partition, sent in last.items()]
        rows = [(topic, sent) for topic, sent in rows if topic not in source.ignored_topics]
        new = sum(limits[partition].latest - began_at(began, limits, partition) for partition in of_source)
        topics[name] = SourceTopics(
            absent=sorted(set(source.topic_names) - set(known)),
            ends=_among(of_source, limits),
            unread=_among(own_unread, first_unread),
            unread_from=own_unread,
            unread_records=sum(limits[partition].latest - offset for partition, offset in own_unread.items()),
            last=last,
            rate=new / WINDOW.total_seconds(),
            lost=[each for each, offset in following[name].items() if offset < limits[each].earliest],
            keyless={topic for topic, sent in rows if not sent.has_key},
            nameless={topic for topic, sent in rows if not sent.names_run},
            kept_ms=kept_ms,
        )
    return topics


def _among(chosen: Iterable[Partition], values: Mapping[Partition, _Value]) -> dict[Partition, _Value]:
    """The values of these partitions, where there are any."""
    return {partition: values[partition] for partition in chosen if partition in values}


def _topic_partitions(source: Source, known: TopicPartitions) -> list[Partition]:
    return [Partition(topic, number) for topic in source.assigned(known) for number in known[topic]]


def began_at(began: Mapping[Partition, int | None], ended: Mapping[Partition, Ends], topic_partition: Partition) -> int:
    """Where the partition stood when the time began: at its end where nothing has come since."""
    offset = began[topic_partition]
    return ended[topic_partition].latest if offset is None else offset


def _retention(settings: Mapping[str, str]) -> int | None:
    """`retention.ms`, where records go by their age."""
    kept = int(settings.get("retention.ms", -1))
    return kept if "delete" in settings.get("cleanup.policy", "") and kept >= 0 else None


def read_one(
    connection: KafkaConnection, wanted: Mapping[Partition, int], *, newest: bool = False
) -> dict[Partition, Sent]:
    """Of every partition the first record from an offset on, or (`newest`) the last there is. Some may be missing.

    Reads committed records, in a group of its own that commits nothing.
    """
    from confluent_kafka import Consumer, TopicPartition

    if not wanted:
        return {}
    found: dict[Partition, Sent] = {}
    open_places = set(wanted)
    with closing(Consumer(reader(connection))) as consumer:
        consumer.assign(
            [
                TopicPartition(topic_partition.topic, topic_partition.number, offset)
                for topic_partition, offset in wanted.items()
            ]
        )
        until = time.monotonic() + _MAX_WAIT_SECONDS
        while open_places and time.monotonic() < until:
            for message in consumer.consume(num_messages=500, timeout=0.2):
                topic_partition = Partition(str(message.topic()), int(message.partition() or 0))
                if message.error() is not None:  # the end of the partition, or one that cannot be read
                    open_places.discard(topic_partition)
                elif newest or topic_partition not in found:
                    found[topic_partition] = _sent(message)
                    if not newest:
                        open_places.discard(topic_partition)
    return found


def reader(connection: KafkaConnection) -> dict[str, Any]:
    """The settings of a consumer of committed records, in a group of its own that commits nothing."""
    return {
        **client_config(connection),
        "group.id": f"{GROUP_PREFIX}-status-{uuid4().hex}",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }


def _sent(message: Message) -> Sent:
    _kind, timestamp_ms = message.timestamp()
    names_run = any(header[0] == RUN_ID for header in message.headers() or ())
    return Sent(timestamp_ms, source_ms(message.value()), has_key=message.key() is not None, names_run=names_run)


def source_ms(value: bytes | str | None) -> int | None:
    """When the change was committed, by `source.ts_ms` of a change event with or without its schema; None without."""
    if not value:
        return None
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return None
    body = read.get("payload", read) if isinstance(read, dict) else None
    source = body.get("source") if isinstance(body, dict) else None
    at = source.get("ts_ms") if isinstance(source, dict) else None
    return at if isinstance(at, int) else None


def connector_seconds(last: Iterable[Sent], *, now_ms: int) -> float:
    """How long the newest changes took from their commit to Kafka; nothing where none came within the window."""
    window_ms = WINDOW.total_seconds() * 1000
    recent = [one for one in last if one.source_ms is not None and now_ms - one.timestamp_ms <= window_ms]
    return max(((one.timestamp_ms - (one.source_ms or 0)) / 1000 for one in recent), default=0.0)


def millis(at: datetime) -> int:
    """A time as Kafka has it."""
    return int(at.astimezone(UTC).timestamp() * 1000)
