"""A few records of a topic, and what they are before there is a contract: events that state a row, or something else.

They are read and gone: no group and no commit stays behind. Silver's decoder reads them, with a contract that declares
none of their fields: a flattened row is then no event, and any object may be an outbox's payload. Imports without
pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Literal, cast
from uuid import uuid4

from lakehouse.contracts.column_types import SimpleType
from lakehouse.contracts.models import Column, Feed
from lakehouse.errors import KafkaError, TopicMissingError
from lakehouse.kafka.broker import client_config, partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Ends, Partition, ends
from lakehouse.registered import RegisteredSchema
from silver.decode.avro import is_confluent, schema_id
from silver.decode.message import (
    FieldSchema,
    Key,
    Object,
    Record,
    Source,
    Statement,
    decoded_text,
    text_of,
)
from silver.decode.outbox import outbox_statement
from silver.decode.table import Fields, fields_of, is_heartbeat, is_schema_change, is_transaction, table_statement
from silver.decode.wrapper import Unwrapping

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


@dataclass(frozen=True)
class Event:
    """What a record says of one row."""

    envelope: Literal["table", "outbox"]
    row: Object | None
    """The fields of the row, or of the payload; None for a delete."""
    key: Key
    """Of an outbox the aggregateid, a single value."""
    schemas: Mapping[str, FieldSchema] = field(default_factory=dict)
    """Of a table whose messages carry their schema: Kafka Connect's schema of every field of the row."""
    connector: str | None = None
    """The kind of database, as Debezium calls its connector."""
    logical_name: str | None = None
    """The connector's `topic.prefix`."""
    source: Source | None = None
    """Of a table, the event's source block."""


class NoEvent(Enum):
    """A record that states no row: what to call one, and many."""

    TOMBSTONE = ("tombstone", "tombstones")
    HEARTBEAT = ("heartbeat", "heartbeats")
    TRANSACTION = ("transaction marker", "transaction markers")
    SCHEMA_CHANGE = ("schema change", "schema changes")
    TRUNCATE = ("truncate", "truncates")
    MESSAGE = ("logical message", "logical messages")
    FLAT_ROW = ("row without an envelope", "rows without an envelope")
    BINARY = ("binary value", "binary values")
    NOT_JSON = ("value that is not JSON", "values that are not JSON")
    OTHER_SHAPE = ("value of another shape", "values of another shape")


def schema_ids(records: Iterable[Record]) -> set[int]:
    """The ids of the registry's schemas that the records name."""
    messages = (message for record in records for message in (record.key, record.value) if message)
    return {schema_id(message) for message in messages if is_confluent(message)}


def events_of(
    records: Iterable[Record], registered: Mapping[int, RegisteredSchema] | None = None
) -> Sequence[Event | NoEvent]:
    """The event that each record is, or what else it is. `registered`: the registry's schemas that they name."""
    unwrapped = Unwrapping(registered)
    return [_event(record, unwrapped) for record in records]


def _declaring(column: str, declared: Column) -> Fields:
    """What a contract says that has this one column."""
    return fields_of(
        Feed(
            name="sampled",
            source="sampled",
            kind="postgresql",
            topics=("sampled",),
            envelope="table",
            append_only=True,
            sequence_by="kafka_offset",
            columns={column: declared},
        )
    )


_STRING = SimpleType("STRING")
_NO_FIELD = _declaring("topic", Column(type=_STRING, from_topic="(.*)"))
# For an outbox event that is an object whose `payload` holds no object: it is a field of the payload itself.
_PAYLOAD = _declaring("payload", Column(type=_STRING))


def _is_binary(value: bytes) -> bool:
    return is_confluent(value) or decoded_text(value) is None


def _event(record: Record, unwrapped: Unwrapping) -> Event | NoEvent:
    statement = table_statement(record, _NO_FIELD, unwrapped)
    if statement.kind == "tombstone":
        return NoEvent.TOMBSTONE
    body = statement.body
    if body is None:
        return NoEvent.BINARY if _is_binary(record.value or b"") else NoEvent.NOT_JSON
    if not isinstance(body, dict):
        return _outbox(record, statement, unwrapped)
    source = body.get("source")
    if "op" in body and isinstance(source, dict):
        return _change(statement, connector=text_of(source.get("connector")))
    if is_heartbeat(body, statement.key):
        return NoEvent.HEARTBEAT
    if is_transaction(body):
        return NoEvent.TRANSACTION
    if is_schema_change(body):
        return NoEvent.SCHEMA_CHANGE
    # The EventRouter gives every record the header `id`, and the aggregateid as its key; a flattened row has neither.
    is_routed = record.header("id") is not None or statement.key.value is not None
    return _outbox(record, statement, unwrapped) if is_routed else NoEvent.FLAT_ROW


def _change(statement: Statement, *, connector: str | None) -> Event | NoEvent:
    """Debezium's change event of a table, whole: with its op and its source block."""
    if statement.kind != "change" or statement.source is None:
        others = {"truncate": NoEvent.TRUNCATE, "ignored": NoEvent.MESSAGE}
        return others.get(statement.kind, NoEvent.OTHER_SHAPE)
    return Event(
        envelope="table",
        row=None if statement.is_delete else statement.row,
        key=statement.key,
        schemas=statement.schemas or {},
        connector=connector,
        logical_name=statement.source.name,
        source=statement.source,
    )


def _outbox(record: Record, statement: Statement, unwrapped: Unwrapping) -> Event | NoEvent:
    rows = (outbox_statement(record, declared, unwrapped).row for declared in (_NO_FIELD, _PAYLOAD))
    row = next((one for one in rows if one is not None), None)
    if row is None:
        return NoEvent.OTHER_SHAPE
    return Event(
        envelope="outbox",
        row=row,
        key=Key(value=statement.key.value),
        connector=record.header("__debezium.context.connectorName"),
        logical_name=record.header("__debezium.context.connectorLogicalName"),
    )
