"""A producer of records in Kafka transactions, all or none of them visible, with a retry policy for a broker.

Readers with `isolation.level=read_committed` see what was committed, once. What a process that died had begun is taken
back by the next one of the same transactional id (Kafka documentation, "Using Transactions").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import client_config, may_not_write, raise_if_refused, stopped_answering
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.retry import RetryPolicy

if TYPE_CHECKING:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import Message

# Records that were sent and have not arrived are in this process's memory: at most so many, and of so many bytes, but
# for one record more.
MAX_IN_FLIGHT = 50_000
MAX_BYTES_IN_FLIGHT = 64 << 20
# What a record takes beside its key, value and headers, at most.
RECORD_BYTES = 1024
# A broker allows fifteen minutes (transaction.max.timeout.ms) by default, and aborts what lasts longer.
TRANSACTION_SECONDS = 600
# What a transaction may have: to commit it takes a while too.
MAX_BYTES_IN_A_TRANSACTION = 2 << 30


@contextmanager
def transactional_producer(
    connection: KafkaConnection,
    *,
    transactional_id: str,
    max_message_bytes: int,
    retry_policy: RetryPolicy | None = None,
) -> Iterator[TransactionalProducer]:
    """A producer that is alone with its `transactional_id`: what another one has begun under it is taken back.

    It takes records up to `max_message_bytes`, with all that Kafka writes around one.
    Leaving the block with an exception takes back what was not committed. A broker that stops answering is waited for
    as `retry_policy` says; then BrokerUnavailableError is raised. KafkaError when the broker refuses.
    """
    producer = TransactionalProducer(connection, transactional_id, max_message_bytes, retry_policy)
    try:
        producer.start()
        yield producer
    except BaseException:
        producer.abort()
        raise


class TransactionalProducer:
    """See `transactional_producer`, which makes it. A transaction begins with the first record after a commit."""

    def __init__(
        self,
        connection: KafkaConnection,
        transactional_id: str,
        max_message_bytes: int,
        retry_policy: RetryPolicy | None,
    ) -> None:
        from confluent_kafka import Producer

        self._connection = connection
        self._transactional_id = transactional_id
        self._retry_policy = retry_policy
        self._refusals: list[ClientError] = []
        self._topics: set[str] = set()
        self._has_begun = False
        self._bytes_in_flight = 0
        self._bytes_in_transaction = 0
        self._began_at = 0.0
        self._producer = Producer(
            {
                **client_config(connection),
                "error_cb": self._on_error,
                "transactional.id": transactional_id,
                "message.max.bytes": max_message_bytes,
                "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
                # Java's default, so any other producer of the same keys finds the same partitions.
                "partitioner": "murmur2_random",
                "compression.type": "zstd",
                "linger.ms": 20,
                "queue.buffering.max.messages": MAX_IN_FLIGHT,
                "queue.buffering.max.kbytes": (2 * MAX_BYTES_IN_FLIGHT + max_message_bytes) // 1024 + 1,
            }
        )

    def start(self) -> None:
        """Take back what another producer of this id has begun, and shut that one out."""
        self._with_retry(self._producer.init_transactions)

    def send(self, topic: str, *, key: bytes, value: bytes | None, headers: Mapping[str, str]) -> None:
        """Send a record, as part of the transaction."""
        from confluent_kafka import KafkaException

        size = _size(key, value, headers)
        if len(self._producer) >= MAX_IN_FLIGHT // 2:
            self._wait(until=MAX_IN_FLIGHT // 4)
        if self._bytes_in_flight + size > MAX_BYTES_IN_FLIGHT:
            self._wait(until=MAX_IN_FLIGHT, until_bytes=MAX_BYTES_IN_FLIGHT // 2)
        self._topics.add(topic)
        try:
            if not self._has_begun:
                self._producer.begin_transaction()
                self._has_begun, self._began_at, self._bytes_in_transaction = True, time.monotonic(), 0
            self._produce(topic, key=key, value=value, headers=headers, size=size)
        except KafkaException as error:
            raise self._refused(error.args[0]) from None
        self._producer.poll(0)
        self._raise_refusals()

    def _produce(self, topic: str, *, key: bytes, value: bytes | None, headers: Mapping[str, str], size: int) -> None:
        """Give the record to the client; where its queue is full all the same, when all others have arrived."""
        enqueue = partial(
            self._producer.produce,
            topic,
            key=key,
            value=value,
            headers=list(headers.items()),
            on_delivery=partial(self._delivered, size),
        )
        try:
            enqueue()
        except BufferError:
            self._wait(until=0)
            try:
                enqueue()
            except BufferError:
                raise KafkaError(
                    f"A record of {size:,} bytes for topic {topic} does not fit into the queue of the Kafka client.",
                    hint="Lower the topic's max_message_bytes in gold/tables.yaml: larger records are then named, "
                    "and all others sent.",
                ) from None
        self._bytes_in_flight += size
        self._bytes_in_transaction += size

    @property
    def is_full(self) -> bool:
        """Whether the transaction is to be committed before another record: by its bytes, or half of its time is up."""
        is_old = time.monotonic() - self._began_at > TRANSACTION_SECONDS / 2
        return self._has_begun and (is_old or self._bytes_in_transaction >= MAX_BYTES_IN_A_TRANSACTION)

    def commit(self) -> None:
        """Let readers have all that was sent since the last commit. After an error it is not known whether they do."""
        self._wait(until=0)
        self._with_retry(self._producer.commit_transaction)
        self._has_begun = False

    def abort(self) -> None:
        """Take back what was not committed; where the broker does not answer, the next producer does."""
        from confluent_kafka import KafkaException

        self._producer.purge()  # nothing goes out any more
        if self._has_begun:
            with suppress(KafkaException):
                self._producer.abort_transaction(self._connection.timeout_seconds)

    def _delivered(self, size: int, error: ClientError | None, _message: Message) -> None:
        self._bytes_in_flight -= size
        if error is not None:
            self._refusals.append(error)

    def _on_error(self, error: ClientError) -> None:
        if error.fatal() or error.name() == "_AUTHENTICATION":  # the others pass when the broker is back
            self._refusals.append(error)

    def _with_retry(self, step: Callable[[float], None]) -> None:
        """Do the step, which takes the seconds it may last; again as `retry_policy` says while the broker is gone."""
        from confluent_kafka import KafkaException

        waits = self._retry_policy.waits if self._retry_policy is not None else ()
        gone = stopped_answering(self._connection, "publish")
        for attempt, seconds in enumerate((float(self._connection.timeout_seconds), *waits)):
            try:
                step(seconds)
                return
            except KafkaException as error:
                refusal = error.args[0]
                if not refusal.retriable():
                    raise self._refused(refusal) from None
                self._raise_refusals()
            if attempt < len(waits) and self._retry_policy is not None:
                self._retry_policy.announce(gone, attempt)
        raise gone

    def _wait(self, *, until: int, until_bytes: int | None = None) -> None:
        """Wait until at most so many records, of so many bytes, are under way, or the broker has refused one.

        librdkafka itself connects again and sends again, each record once. Raises BrokerUnavailableError when for
        `timeout_seconds`, and then for as long as `retry_policy` says, no record arrived.
        """
        waits = self._retry_policy.waits if self._retry_policy is not None else ()
        gone = stopped_answering(self._connection, "publish")
        under_way, attempt = len(self._producer), 0
        deadline = time.monotonic() + self._connection.timeout_seconds
        while len(self._producer) > until or self._has_more_bytes(until_bytes):
            self._producer.poll(0.2)
            self._raise_refusals()
            if len(self._producer) < under_way:
                under_way, attempt = len(self._producer), 0
                deadline = time.monotonic() + self._connection.timeout_seconds
            elif time.monotonic() >= deadline:
                if self._retry_policy is None or attempt == len(waits):
                    raise gone
                self._retry_policy.announce(gone, attempt)
                deadline = time.monotonic() + waits[attempt]
                attempt += 1
        self._raise_refusals()

    def _has_more_bytes(self, than: int | None) -> bool:
        """Whether records of more bytes are under way; not when none is."""
        return than is not None and self._bytes_in_flight > than and len(self._producer) > 0

    def _raise_refusals(self) -> None:
        if self._refusals:
            raise self._refused(*self._refusals)

    def _why_broken_off(self) -> ClientError | None:
        """Why the client has broken off the transaction and purged its records: an attempt to commit it says so."""
        from confluent_kafka import KafkaException

        try:
            self._producer.commit_transaction(self._connection.timeout_seconds)
        except KafkaException as error:
            reason: ClientError = error.args[0]
            return reason
        return None

    def _refused(self, *refusals: ClientError) -> KafkaError:
        """What the refusals mean; that this client is not let in is raised at once."""
        from confluent_kafka import KafkaError as ClientError

        codes = {refusal.code() for refusal in refusals}
        if codes <= {ClientError._PURGE_QUEUE, ClientError._PURGE_INFLIGHT}:
            refusals = (self._why_broken_off() or refusals[0],)
            codes = {refusals[0].code()}
        for refusal in refusals:
            raise_if_refused(self._connection, refusal)
        topics = ", ".join(sorted(self._topics))
        if ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED in codes:
            return KafkaError(
                f"At {self._connection.bootstrap_servers}, {self._connection} has no right to write in transactions as "
                f"{self._transactional_id}.",
                hint=f"Grant Describe and Write on the transactional id {self._transactional_id}.",
            )
        if codes & {ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.CLUSTER_AUTHORIZATION_FAILED}:
            return may_not_write(self._connection, topics)
        if ClientError._FENCED in codes:
            return KafkaError(
                f"Another publication has begun as {self._transactional_id}, and has taken this one's place.",
                hint="See who else publishes there: one warehouse may publish to a topic, one run at a time.",
            )
        names = ", ".join(sorted({refusal.name() for refusal in refusals}))
        return KafkaError(
            f"Not every record reached {topics or 'its topic'} ({names}); readers of committed records see none.",
            hint="Run `lakehouse publish` again: it sends the same changes once more.",
        )


def _size(key: bytes, value: bytes | None, headers: Mapping[str, str]) -> int:
    """How many bytes the record takes in the client's queue, at most."""
    of_headers = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    return RECORD_BYTES + len(key) + len(value or b"") + of_headers
