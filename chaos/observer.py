"""A reader of the unified topic's committed records, all the time: it must see a pass whole, or not at all.

All records of a source with the same `change_sequence`, generation and version of gold, are of one pass. Once the
consumer has read all that is committed, what it has of a pass is all that there ever is.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException

from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection

POLL_SECONDS = 0.2
ANSWER_SECONDS = 1.0
# A transaction is on several partitions, which are read one after the other, at once.
QUIET_SECONDS = 1.5


class Observer:
    """Follows the topic in a thread of its own, from where it ends when it begins."""

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._growing: set[tuple[str, str]] = set()
        self._whole: set[tuple[str, str]] = set()
        self._torn: set[str] = set()
        self.records = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    def torn(self) -> list[str]:
        """The passes that grew after they had been read whole, since the last call."""
        with self._lock:
            found = sorted(self._torn)
            self._torn.clear()
            return found

    def forget(self) -> None:
        """Passes are sent again by a command: what was read before says nothing of them."""
        with self._lock:
            self._growing.clear()
            self._whole.clear()
            self._torn.clear()

    def take(self, source: str, sequence: str) -> None:
        """A record of a pass was read."""
        with self._lock:
            self.records += 1
            if (source, sequence) in self._whole:
                self._torn.add(f"{source} {sequence}")
            self._growing.add((source, sequence))

    def rest(self) -> None:
        """Everything that is committed was read."""
        with self._lock:
            self._whole |= self._growing
            self._growing.clear()

    def _follow(self) -> None:
        config: dict[str, Any] = {
            **client_config(self._connection),
            "group.id": "chaos-observer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 1000,
        }
        consumer = Consumer(config)
        consumer.subscribe([self._topic])
        quiet_since = time.monotonic()
        try:
            while not self._is_over.is_set():
                messages = [one for one in consumer.consume(500, timeout=POLL_SECONDS) if one.error() is None]
                for message in messages:
                    headers = dict(message.headers() or ())
                    source = "postgres" if b'"PG-' in (message.key() or b"") else "mysql"
                    self.take(source, str(headers.get("change_sequence")))
                if messages or not self._answers(consumer):
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > QUIET_SECONDS:
                    self.rest()
                    quiet_since = time.monotonic()
        finally:
            consumer.close()

    def _answers(self, consumer: Consumer) -> bool:
        """Whether the broker does: silence of one that stands still says nothing."""
        try:
            consumer.list_topics(self._topic, timeout=ANSWER_SECONDS)
        except KafkaException:
            return False
        return True
