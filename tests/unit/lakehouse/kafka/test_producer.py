"""What a transactional producer has under way is bounded by bytes, not by the number of records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from lakehouse.errors import KafkaError
from lakehouse.kafka import producer
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.producer import TransactionalProducer, transactional_producer

RECORD = 40_000


class Client:
    """A client of Kafka whose queue takes `capacity` bytes: each poll lets some records arrive."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue: list[tuple[int, Callable[..., None]]] = []
        self.arrived = self.largest = self.commits = self.refused = 0
        self.config: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def bytes_in_queue(self) -> int:
        return sum(size for size, _delivered in self.queue)

    def produce(
        self, _topic: str, *, key: bytes, value: bytes, headers: object, on_delivery: Callable[..., None]
    ) -> None:
        assert headers == []
        size = len(key) + len(value)
        if self.bytes_in_queue + size > self.capacity:
            self.refused += 1
            raise BufferError("Local: Queue full")
        self.queue.append((size, on_delivery))
        self.largest = max(self.largest, self.bytes_in_queue)

    def poll(self, seconds: float) -> None:
        if seconds:
            arrived, self.queue = self.queue[:5], self.queue[5:]
            self.arrived += len(arrived)
            for _size, delivered in arrived:
                delivered(None, None)

    def commit_transaction(self, _seconds: float) -> None:
        assert not self.queue
        self.commits += 1

    def init_transactions(self, _seconds: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def purge(self) -> None: ...

    def abort_transaction(self, _seconds: float) -> None: ...


@contextmanager
def opened(client: Client, patch: pytest.MonkeyPatch, *, most_bytes: int) -> Iterator[TransactionalProducer]:
    def made(config: dict[str, Any]) -> Client:
        client.config = config
        return client

    patch.setattr(confluent_kafka, "Producer", made)
    patch.setattr(producer, "MAX_BYTES_IN_FLIGHT", most_bytes)
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with transactional_producer(connection, transactional_id="x", max_message_bytes=1 << 20) as opened_producer:
        yield opened_producer


def test_records_of_many_bytes_wait_for_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(capacity=1 << 40)
    with opened(client, monkeypatch, most_bytes=20 * RECORD) as sending:
        for number in range(500):
            sending.send("t", key=str(number).encode(), value=b"x" * RECORD, headers={})
        sending.commit()
    assert (client.arrived, client.commits, client.refused) == (500, 1, 0)
    assert client.largest <= 20 * RECORD
    # One record may be larger than all that may be under way.
    assert client.config["queue.buffering.max.kbytes"] * 1024 >= 20 * RECORD + (1 << 20)


def test_a_record_that_is_larger_than_the_bound_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(capacity=1 << 40)
    with opened(client, monkeypatch, most_bytes=RECORD // 2) as sending:
        for number in range(20):
            sending.send("t", key=str(number).encode(), value=b"x" * RECORD, headers={})
        sending.commit()
    assert (client.arrived, client.commits) == (20, 1)
    assert client.largest < 2 * RECORD


def test_a_queue_that_is_full_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(capacity=3 * RECORD)
    with opened(client, monkeypatch, most_bytes=1 << 30) as sending:
        for number in range(20):
            sending.send("t", key=str(number).encode(), value=b"x" * (RECORD - 10), headers={})
        sending.commit()
    assert client.refused > 0
    assert (client.arrived, client.commits) == (20, 1)


def test_a_record_that_no_queue_takes_is_an_error_with_the_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(capacity=RECORD)
    with (
        pytest.raises(
            KafkaError, match=r"A record of 4\d,\d{3} bytes for topic t does not fit .* Lower .* max_message"
        ),
        opened(client, monkeypatch, most_bytes=1 << 30) as sending,
    ):
        sending.send("t", key=b"k", value=b"x" * RECORD, headers={})
    assert client.commits == 0


def test_a_transaction_is_full_by_its_bytes_or_when_half_of_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(producer, "MAX_BYTES_IN_A_TRANSACTION", 3 * RECORD)
    monkeypatch.setattr("lakehouse.kafka.producer.time.monotonic", lambda: now[0])
    with opened(Client(capacity=1 << 40), monkeypatch, most_bytes=1 << 30) as sending:
        full = []
        for number in range(4):
            full.append(sending.is_full)
            sending.send("t", key=str(number).encode(), value=b"x" * RECORD, headers={})
        assert (full, sending.is_full) == ([False] * 3 + [True], True)
        sending.commit()
        assert not sending.is_full
        sending.send("t", key=b"k", value=b"x", headers={})
        assert not sending.is_full
        now[0] += producer.TRANSACTION_SECONDS / 2 + 1
        assert sending.is_full
