"""Recorded change events, produced again: every record into its recorded partition, in its recorded order."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse.errors import KafkaError, SettingsError
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection

DELIVERY_SECONDS = 60

Acknowledge = Callable[[ClientError | None, Message], None]


@dataclass(frozen=True)
class Recorded:
    """One record of a recording; `value` None is a tombstone."""

    topic: str
    partition: int
    timestamp: int
    key: str | bytes | None
    value: str | bytes | None
    headers: tuple[tuple[str, str | None], ...]


def replay(
    bootstrap_servers: str,
    capture: Path,
    *,
    topics: Mapping[str, str],
    last: int = 0,
    only_last: bool = False,
    as_sent: Callable[[Recorded], Recorded] | None = None,
) -> Mapping[str, int]:
    """Produce the recorded topics that `topics` names into the topics it maps them to; how many records each got.

    Without the `last` records of every partition, or with `only_last` just these: a recording in two parts.

    `as_sent`: what is produced in place of a record.

    A target that does not exist is created with as many partitions as were recorded. Key, value, headers and
    timestamp are the recorded ones, and every record was acknowledged.
    Raises SettingsError when the recording lacks one of the topics, KafkaError when the broker does not take a record.
    """
    records = [record for record in recorded(capture) if record.topic in topics]
    lacking = sorted(topics.keys() - {record.topic for record in records})
    if lacking:
        raise SettingsError(
            f"{capture.name} has no records of {', '.join(lacking)}.",
            hint=f"It has: {', '.join(sorted({record.topic for record in recorded(capture)}))}.",
        )
    _create_missing(bootstrap_servers, _partitions(records, topics))
    records = _part(records, last=last, only_last=only_last)
    records = records if as_sent is None else [as_sent(record) for record in records]
    _produce(bootstrap_servers, records, topics)
    return Counter(topics[record.topic] for record in records)


def recorded(capture: Path) -> Iterator[Recorded]:
    """The records of a `NAME.jsonl.gz`, in the order of the file: by topic and partition, then by offset."""
    with gzip.open(capture, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield Recorded(
                topic=record["topic"],
                partition=record["partition"],
                timestamp=record["timestamp"],
                key=record["key"],
                value=record["value"],
                headers=tuple((name, value) for name, value in record["headers"]),
            )


def cut(capture: Path, to: Path, *, topics: Iterable[str], first: int) -> Path:
    """A recording of the first so many records of every partition of these topics."""
    wanted = set(topics)
    seen: Counter[tuple[str, int]] = Counter()
    with gzip.open(capture, "rt", encoding="utf-8") as lines, gzip.open(to, "wt", encoding="utf-8") as kept:
        for line in lines:
            record = json.loads(line)
            place = (record["topic"], record["partition"])
            if record["topic"] in wanted and seen[place] < first:
                seen[place] += 1
                kept.write(line)
    return to


def _part(records: Sequence[Recorded], *, last: int, only_last: bool) -> list[Recorded]:
    """The records without the last so many of every partition, or only these."""
    to_come = Counter((record.topic, record.partition) for record in records)
    kept = []
    for record in records:
        place = (record.topic, record.partition)
        if (to_come[place] <= last) == only_last:
            kept.append(record)
        to_come[place] -= 1
    return kept


def _partitions(records: Iterable[Recorded], topics: Mapping[str, str]) -> dict[str, int]:
    """How many partitions each target needs to hold every record where it was recorded."""
    counts: dict[str, int] = {}
    for record in records:
        target = topics[record.topic]
        counts[target] = max(counts.get(target, 0), record.partition + 1)
    return counts


def _create_missing(bootstrap_servers: str, partitions: Mapping[str, int]) -> None:
    new = [NewTopic(topic, num_partitions=count, replication_factor=1) for topic, count in partitions.items()]
    admin = AdminClient(
        client_config(KafkaConnection(bootstrap_servers=bootstrap_servers))
    )  # named: its requests end with it
    for topic, created in admin.create_topics(new).items():
        try:
            created.result()
        except KafkaException as error:
            if error.args[0].code() != ClientError.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    f"The broker at {bootstrap_servers} did not create topic {topic}: {error.args[0].str()}.",
                    hint="Check that it is up and lets this client create topics.",
                ) from None


def _produce(bootstrap_servers: str, records: Sequence[Recorded], topics: Mapping[str, str]) -> None:
    """Produce and wait for every acknowledgement. Raises KafkaError with the first refusal."""
    refusals: list[str] = []

    def acknowledge(error: ClientError | None, message: Message) -> None:
        if error is not None:
            refusals.append(f"{message.topic()}, partition {message.partition()}: {error.str()}")

    # Idempotent: acknowledged by all replicas, each record once, and in this order even after a retry.
    config = {"enable.idempotence": True, "delivery.timeout.ms": DELIVERY_SECONDS * 1000, "linger.ms": 20}
    producer = Producer({**client_config(KafkaConnection(bootstrap_servers=bootstrap_servers)), **config})
    for record in records:
        target = topics[record.topic]
        try:
            _enqueue(producer, target, record, acknowledge)
        except KafkaException as error:
            refusals.append(f"{target}, partition {record.partition}: {error.args[0].str()}")
            break
    producer.flush()
    if refusals:
        raise KafkaError(
            f"{bootstrap_servers} did not take every record; the first refusal: {refusals[0]}.",
            hint="Check that the broker is up and the topic has as many partitions as were recorded.",
        )


def _enqueue(producer: Producer, target: str, record: Recorded, acknowledge: Acknowledge) -> None:
    """Hand one record to the producer, waiting while its queue is full."""
    while True:
        try:
            producer.produce(
                target,
                partition=record.partition,
                timestamp=record.timestamp,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                on_delivery=acknowledge,
            )
        except BufferError:
            producer.poll(1)
        else:
            producer.poll(0)
            return
