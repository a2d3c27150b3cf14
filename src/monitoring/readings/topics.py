"""What the broker says of a source's topics: where they end, how fast they grow, and how old what is unread is."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.topics import Source
from lakehouse.kafka.broker import GROUP_PREFIX, TopicPartitions, client_config, partitions, topic_settings
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from lakehouse.kafka.offsets import Ends, Partition, ends, offsets_at_time

if TYPE_CHECKING:
    from confluent_kafka import Message

# Over so long the rate of arrival is taken.
WINDOW = timedelta(minutes=10)
# The header that names the run of the connector, since Debezium 3.2.
RUN_ID = "__debezium.context.runId"
# How the topics of Debezium's heartbeats begin, by default.
HEARTBEATS = "__debezium-heartbeat"
# Kafka has no offsets for markers of transactions and what compaction removed: so many before the end are looked at.
_BEFORE_END = 5
_MOST_WAIT_SECONDS = 1.5
# Of the unified topic so many records are looked at, some seconds' worth; each partition has its share.
MOST_RECORDS = 500_000
# Clocks of those who write tables and of those who write records differ by less.
CLOCKS = timedelta(hours=1)


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
            (one.timestamp_ms + self.kept_ms[place.topic] - now_ms) / 1000
            for place, one in self.unread.items()
            if place.topic in self.kept_ms
        ]
        return min(left, default=None)


def topics_of(
    connection: KafkaConnection,
    contracts: Contracts,
    *,
    next_offsets: Mapping[tuple[str, str, int], int],
    now: datetime,
) -> dict[str, SourceTopics]:
    """By source. Raises KafkaError where the broker does not answer or refuses, BrokerGoneError when it is gone."""
    known = partitions(connection)
    by_source = {name: _places(source, known) for name, source in contracts.topics.sources.items()}
    every = [place for places in by_source.values() for place in places]
    ended = ends(connection, every)
    began = offsets_at_time(connection, every, timestamp_ms=_millis(now - WINDOW)) if every else {}
    settings = topic_settings(connection, sorted({place.topic for place in every})) if every else {}
    wanted_next: dict[Partition, int] = {}
    for name, places in by_source.items():
        for place in places:
            following = next_offsets.get((name, place.topic, place.number), ended[place].earliest)
            if following < ended[place].latest:
                wanted_next[place] = max(following, ended[place].earliest)
    last_from = {
        place: max(ended[place].latest - _BEFORE_END, ended[place].earliest)
        for place in every
        if ended[place].latest > ended[place].earliest
    }
    first_unread = read_one(connection, wanted_next)
    newest = read_one(connection, last_from, newest=True)
    found = {}
    for name, places in by_source.items():
        source = contracts.topics.sources[name]
        behind = [place for place in places if place in wanted_next]
        new = sum(ended[place].latest - _began(began, ended, place) for place in places)
        found[name] = SourceTopics(
            absent=sorted(set(source.topic_names) - set(known)),
            ends={place: ended[place] for place in places},
            unread={place: first_unread[place] for place in behind if place in first_unread},
            unread_from={place: wanted_next[place] for place in behind},
            unread_records=sum(ended[place].latest - wanted_next[place] for place in behind),
            last={place: newest[place] for place in places if place in newest},
            rate=new / WINDOW.total_seconds(),
            lost=[
                place
                for place in places
                if next_offsets.get((name, place.topic, place.number), ended[place].earliest) < ended[place].earliest
            ],
            keyless={
                place.topic
                for place in places
                if place in newest and not newest[place].has_key and place.topic not in source.ignored_topics
            },
            nameless={
                place.topic
                for place in places
                if place in newest and not newest[place].names_run and place.topic not in source.ignored_topics
            },
            kept_ms={topic: kept for topic in settings if (kept := _retention(settings[topic])) is not None},
        )
    return found


def _places(source: Source, known: TopicPartitions) -> list[Partition]:
    return [Partition(topic, number) for topic in source.assigned(known) for number in known[topic]]


def _began(began: Mapping[Partition, int | None], ended: Mapping[Partition, Ends], place: Partition) -> int:
    offset = began[place]
    return ended[place].latest if offset is None else offset


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
        consumer.assign([TopicPartition(place.topic, place.number, offset) for place, offset in wanted.items()])
        until = time.monotonic() + _MOST_WAIT_SECONDS
        while open_places and time.monotonic() < until:
            for message in consumer.consume(num_messages=500, timeout=0.2):
                place = Partition(str(message.topic()), int(message.partition() or 0))
                if message.error() is not None:  # the end of the partition, or one that cannot be read
                    open_places.discard(place)
                elif newest or place not in found:
                    found[place] = _sent(message)
                    if not newest:
                        open_places.discard(place)
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


def sources_on(connection: KafkaConnection, contracts: Contracts) -> dict[str, bool | None]:
    """By source of gold, whether the unified topic has an order of it; None where its newest records have none.

    Reads until each source has one, and MOST_RECORDS at most; nothing without unified orders. Raises KafkaError.
    """
    found: dict[str, bool | None] = dict.fromkeys(contracts.gold.sources)
    if not found:
        return {}
    topic = contracts.gold.unified_topic.topic
    window = _window(connection, topic)
    with closing(committed_records(connection, topic, begin=window.begin, most=window.most)) as records:
        for record in records:
            if record.value is not None:
                found |= {name: True for name, one in contracts.gold.sources.items() if _is_of(record.key, one.prefix)}
            if all(found.values()):
                break
    return {name: is_there or (False if window.is_whole else None) for name, is_there in found.items()}


@dataclass(frozen=True)
class _Window:
    """Which records of a topic are looked at: from where on (`begin`, by partition), and how many of each partition.

    `is_whole`: these are all.
    """

    begin: Mapping[int, int]
    most: int
    is_whole: bool


def _window(connection: KafkaConnection, topic: str, *, since: datetime | None = None) -> _Window:
    """The newest records of a topic, or the first ones that are not older than `since`; MOST_RECORDS at most."""
    places = [Partition(topic, number) for number in partitions(connection).get(topic, ())]
    ended = ends(connection, places)
    most = max(MOST_RECORDS // max(len(places), 1), 1)
    if since is None:
        begin = {place: max(ended[place].latest - most, ended[place].earliest) for place in places}
    else:
        began = offsets_at_time(connection, places, timestamp_ms=_millis(since))
        begin = {place: max(_began(began, ended, place), ended[place].earliest) for place in places}
    is_whole = all(
        begin[place] == ended[place].earliest and ended[place].latest - begin[place] <= most for place in places
    )
    return _Window({place.number: offset for place, offset in begin.items()}, most, is_whole)


class Published(NamedTuple):
    """A record of the unified topic; `value` None: the order was deleted."""

    topic: str
    partition: int
    offset: int
    value: str | None
    change_sequence: str | None


class PublishedRecords(NamedTuple):
    """The records of an order among those of the unified topic that were looked at; `is_whole`: these are all."""

    records: Sequence[Published]
    is_whole: bool


def published_of(
    connection: KafkaConnection, contracts: Contracts, composite_key: str, *, since: datetime | None
) -> PublishedRecords:
    """The records of an order that the topic still has, among the first MOST_RECORDS since a time.

    `since`: when its row was changed last, for then it was published; None: not known, the newest records are looked
    at. Raises KafkaError.
    """
    topic = contracts.gold.unified_topic.topic
    window = _window(connection, topic, since=None if since is None else since - CLOCKS)
    found = [
        Published(
            topic,
            record.partition,
            record.offset,
            None if record.value is None else _shown(record.value),
            record.headers.get("change_sequence"),
        )
        for record in committed_records(connection, topic, begin=window.begin, most=window.most)
        if composite_key_in(record.key) == composite_key
    ]
    return PublishedRecords(found, window.is_whole)


def _shown(value: bytes) -> str:
    return f"{len(value)} bytes of Avro" if value.startswith(b"\0") else value.decode("utf-8", errors="replace")


def composite_key_in(key: bytes) -> str | None:
    """The composite key in the key of a record of ours, whichever format it is in; None in any other."""
    if key.startswith(b"\0"):
        # Avro: the id of the schema, the length, which has a second byte from 64 on, the text.
        text = key[7:] if key[5:6] >= b"\x80" else key[6:]
        return text.decode("utf-8", errors="replace")
    try:
        read = json.loads(key)
    except (ValueError, RecursionError):  # the key of somebody else's record may be anything
        return None
    fields = read.get("payload", read) if isinstance(read, dict) else None
    found = fields.get("composite_key") if isinstance(fields, dict) else None
    return found if isinstance(found, str) else None


def _is_of(key: bytes, prefix: str) -> bool:
    """Whether a key of ours is of the source with this prefix, in whatever format."""
    return (composite_key_in(key) or "").startswith(f"{prefix}-")


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


def _millis(at: datetime) -> int:
    return int(at.astimezone(UTC).timestamp() * 1000)
