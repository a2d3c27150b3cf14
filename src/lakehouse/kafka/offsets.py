"""What a broker says of its topics: their ids, where their partitions begin and end, and the offset at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse.kafka.broker import TIMEOUT_SECONDS, Admin, client_config, not_granted
from lakehouse.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


@dataclass(frozen=True)
class Ends:
    """The offset of the earliest record that a partition still has, and the one that its next record will get."""

    earliest: int
    latest: int


def topic_ids(connection: KafkaConnection, topics: Iterable[str], *, kept: Admin | None = None) -> dict[str, str]:
    """The id of every topic: another one after the topic was deleted and created again.

    Asks by the client that is `kept`, else by its own. Raises KafkaError.
    """
    from confluent_kafka import TopicCollection

    names = list(topics)
    if not names:
        return {}
    with _errors(connection, "describe its topics"):
        admin = kept.client if kept else _admin(connection)
        described = admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_SECONDS)
        return {name: str(future.result().topic_id) for name, future in described.items()}


def ends(
    connection: KafkaConnection, topic_partitions: Iterable[Partition], *, kept: Admin | None = None
) -> dict[Partition, Ends]:
    """The ends of every partition, for a reader of committed records.

    Asks by the client that is `kept`, else by its own. Raises KafkaError.
    """
    from confluent_kafka.admin import OffsetSpec

    wanted = list(topic_partitions)
    earliest = _offsets(connection, dict.fromkeys(wanted, OffsetSpec.earliest()), kept)  # type: ignore[no-untyped-call]
    last = latest(connection, wanted, kept=kept)
    return {topic_partition: Ends(earliest[topic_partition], last[topic_partition]) for topic_partition in wanted}


def latest(
    connection: KafkaConnection, topic_partitions: Iterable[Partition], *, kept: Admin | None = None
) -> dict[Partition, int]:
    """The offset that the next record of every partition will get, for a reader of committed records.

    Asks by the client that is `kept`, else by its own. Raises KafkaError.
    """
    from confluent_kafka.admin import OffsetSpec

    wanted = dict.fromkeys(topic_partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return _offsets(connection, wanted, kept)


def offsets_at_time(
    connection: KafkaConnection, topic_partitions: Sequence[Partition], *, timestamp_ms: int
) -> dict[Partition, int | None]:
    """The offset of the first record that is not older than the time, None where all are older. Raises KafkaError."""
    from confluent_kafka.admin import OffsetSpec

    found = _offsets(
        connection, {topic_partition: OffsetSpec.for_timestamp(timestamp_ms) for topic_partition in topic_partitions}
    )
    return {topic_partition: offset if offset >= 0 else None for topic_partition, offset in found.items()}


def _offsets(
    connection: KafkaConnection, wanted: Mapping[Partition, Any], kept: Admin | None = None
) -> dict[Partition, int]:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException

    if not wanted:
        return {}
    no_leader = (ClientError.NOT_LEADER_FOR_PARTITION, ClientError.LEADER_NOT_AVAILABLE)
    with _errors(connection, "state its offsets"):
        admin = kept.client if kept else _admin(connection)
        pauses = iter(_PAUSES)
        while True:
            try:
                return _stated(admin, wanted)
            except KafkaException as error:
                seconds = next(pauses, None)
                if seconds is None or error.args[0].code() not in no_leader:
                    raise
            time.sleep(seconds)


# A topic that is just being created has no leader for a moment.
_PAUSES = (0.1, 0.3, 0.6, 1.0, 2.0)


def _stated(admin: AdminClient, wanted: Mapping[Partition, Any]) -> dict[Partition, int]:
    from confluent_kafka import IsolationLevel, TopicPartition

    listed = admin.list_offsets(
        {
            TopicPartition(topic_partition.topic, topic_partition.number): spec
            for topic_partition, spec in wanted.items()
        },
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=TIMEOUT_SECONDS,
    )
    return {Partition(at.topic, at.partition): future.result().offset for at, future in listed.items()}


def _admin(connection: KafkaConnection) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_config(connection))


@contextmanager
def _errors(connection: KafkaConnection, what: str) -> Iterator[None]:
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        hint = "Check that it is up, and that this client may describe the topics."
        raise not_granted(connection, error.args[0], f"did not {what}", hint=hint) from None
