"""Records sent to a compacted topic in transactions, and with them the publish position.

After a crash at any moment, readers of committed records have every version of the position once. A record that is too
large for the topic blocks no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gold.topics.differences import NewRecords
from gold.topics.position import PublishPosition
from lakehouse.contracts.models import CompactedTopic
from lakehouse.errors import KafkaError
from lakehouse.kafka.producer import TransactionalProducer
from lakehouse.quality.table_rules import MAX_KEYS
from lakehouse.secrets import MASK
from lakehouse.spark.materialized import in_arrow

# What readers wait for at most before they see any of it.
MAX_IN_A_TRANSACTION = 1_000_000
# What Kafka writes around key, value and headers of a record that goes alone: its lengths, and the head of its batch.
FRAME_BYTES = 256


@dataclass(frozen=True)
class Sent:
    """How many records were sent, the publish position then, and the bytes of those too large, by key."""

    number: int
    position: PublishPosition
    too_large: Mapping[bytes, int]


def send(
    producer: TransactionalProducer,
    new: NewRecords,
    topic: CompactedTopic,
    sources: tuple[str, ...],
    after: PublishPosition,
    *,
    most: int,
) -> Sent:
    """Send the records that are not too large, then the publish position.

    While more than `most`, or than one transaction takes, go in parts, and as long as one is too large, their sources
    have no position.
    """
    sent, too_large = 0, dict[bytes, int]()
    for key, value, headers in _fetched(new):
        if sent and (sent % most == 0 or producer.is_full):
            commit(producer, topic, after.without(sources))
        size = _size(key, value, headers)
        if value is not None and size > topic.max_message_bytes:
            too_large[key] = size
            continue
        producer.send(topic.topic, key=key, value=value, headers=headers)
        sent += 1
    position = after.without(sources) if too_large else after
    commit(producer, topic, position)
    return Sent(sent, position, too_large)


def _fetched(new: NewRecords) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
    """The records, a partition of them at a time: key, value and headers."""
    headers = ("change_type", "change_sequence")
    rows = new.rows.select("key", "value", *headers)
    for packed in in_arrow(rows, count=new.count, size_in_bytes=new.size_in_bytes):
        for key, value, *of_headers in zip(*(column.to_pylist() for column in packed.columns), strict=True):
            yield key, value, dict(zip(headers, of_headers, strict=True))


def _size(key: bytes, value: bytes | None, headers: Mapping[str, str]) -> int:
    """How many bytes Kafka has to take at once, at most."""
    of_headers = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    return FRAME_BYTES + len(key) + len(value or b"") + of_headers


def commit(producer: TransactionalProducer, topic: CompactedTopic, position: PublishPosition) -> None:
    """Commit what was sent, together with the publish position."""
    key = json.dumps({"topic": topic.topic}).encode()
    producer.send(topic.progress_topic, key=key, value=position.model_dump_json().encode(), headers={})
    producer.commit()


def not_sent(topic: CompactedTopic, too_large: Mapping[bytes, int], *, is_sensitive: bool) -> KafkaError:
    """The error of records that are too large: their keys, where these may be shown."""
    shown = [
        f"{MASK if is_sensitive else _shown(key)} ({size} bytes)" for key, size in list(too_large.items())[:MAX_KEYS]
    ]
    more = f" and {len(too_large) - len(shown)} more" if len(too_large) > len(shown) else ""
    return KafkaError(
        f"publish: too large for topic {topic.topic}, whose max_message_bytes in gold/tables.yaml is "
        f"{topic.max_message_bytes}: {', '.join(shown)}{more}. All other records were sent.",
        hint="Raise max_message_bytes, and the topic's max.message.bytes (the next run says how), or make the values "
        "smaller where they come from. Until then, every run compares the topic with its table whole.",
    )


def _shown(key: bytes) -> str:
    """The values in the key of a record of ours; of Avro its bytes in hex."""
    if key.startswith(b"\0"):
        return key.hex()
    read = json.loads(key)
    payload = read.get("payload")
    return ", ".join(str(value) for value in (payload if isinstance(payload, dict) else read).values())
