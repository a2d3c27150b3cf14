"""What is on the unified topic: which sources have an order there, and the records of one order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from lakehouse.contracts.models import Contracts
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from lakehouse.kafka.offsets import Partition, ends, offsets_at_time
from monitoring.readings.topics import began_at, millis

# Of the unified topic so many records are looked at, some seconds' worth; each partition has its share.
MAX_RECORDS = 500_000
# Clocks of those who write tables and of those who write records differ by less.
CLOCKS = timedelta(hours=1)


def sources_on(connection: KafkaConnection, contracts: Contracts) -> dict[str, bool | None]:
    """By source of gold, whether the unified topic has an order of it; None where its newest records have none.

    Reads until each source has one, and MAX_RECORDS at most; nothing without unified orders. Raises KafkaError.
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
    """The newest records of a topic, or the first ones that are not older than `since`; MAX_RECORDS at most."""
    topic_partitions = [Partition(topic, number) for number in partitions(connection).get(topic, ())]
    ended = ends(connection, topic_partitions)
    most = max(MAX_RECORDS // max(len(topic_partitions), 1), 1)
    if since is None:
        begin = {
            topic_partition: max(ended[topic_partition].latest - most, ended[topic_partition].earliest)
            for topic_partition in topic_partitions
        }
    else:
        began = offsets_at_time(connection, topic_partitions, timestamp_ms=millis(since))
        begin = {
            topic_partition: max(began_at(began, ended, topic_partition), ended[topic_partition].earliest)
            for topic_partition in topic_partitions
        }
    is_whole = all(
        begin[topic_partition] == ended[topic_partition].earliest
        and ended[topic_partition].latest - begin[topic_partition] <= most
        for topic_partition in topic_partitions
    )
    return _Window({topic_partition.number: offset for topic_partition, offset in begin.items()}, most, is_whole)


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
    """The records of an order that the topic still has, among the first MAX_RECORDS since a time.

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
