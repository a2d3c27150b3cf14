"""`--trigger continuous`: when the next pass begins, and when the warehouse is unlocked.

Where bronze is among the jobs, a pass begins as soon as Kafka has new records, and else once in LONGEST_WAIT_SECONDS,
for what people have asked for meanwhile, and for rules that depend on the time. Other jobs run between two turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from lakehouse.config import Settings
from lakehouse.contracts.topics import Topics
from lakehouse.errors import BrokerGoneError, KafkaError
from lakehouse.kafka.broker import Admin, TopicPartitions, partitions
from lakehouse.kafka.offsets import Partition, latest
from lakehouse.kafka.retry import RetryPolicy

if TYPE_CHECKING:
    from lakehouse.spark.lease import Lease

# Passes of all jobs share one lock of the warehouse (a turn), and begin in its first so many seconds: to lock is a
# commit, and to unlock another.
TURN_SECONDS = 60.0
# Between two turns the warehouse is unlocked: whoever waits for it looks every five seconds.
PAUSE_SECONDS = 5.0
# Without new records the next pass begins after so long.
LONGEST_WAIT_SECONDS = 60.0
LOOK_EVERY_SECONDS = 2.0


@dataclass(frozen=True)
class Seen:
    """What a look at the broker has found: its topics; and where the partitions end that bronze reads."""

    known: TopicPartitions
    ends: Mapping[Partition, int]


@dataclass
class Broker:
    """The broker, as these jobs need it. One client is kept for all looks: `close` ends it."""

    settings: Settings
    topics: Topics
    names: Sequence[str]
    _kept: Admin | None = field(default=None, init=False)

    @property
    def brings_news(self) -> bool:
        """Whether one of the jobs reads it."""
        return "bronze" in self.names

    def known(self) -> TopicPartitions:
        """Its topics; none where no job needs it. Raises KafkaError."""
        return partitions(self.settings.kafka()) if self._is_needed else {}

    def look(self, retry_policy: RetryPolicy | None = None) -> Seen:
        """What is there now. Raises KafkaError; a broker that does not answer is waited for as `retry_policy` says."""
        attempt = 0
        while True:
            try:
                return self._seen()
            except BrokerGoneError as gone:
                if retry_policy is None or attempt == len(retry_policy.waits):
                    raise
                retry_policy.announce(gone.servers, attempt)
                time.sleep(retry_policy.waits[attempt])
                attempt += 1

    def close(self) -> None:
        """End the client that was kept. The next look makes another."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def _is_needed(self) -> bool:
        return not {"bronze", "publish"}.isdisjoint(self.names)

    def _seen(self) -> Seen:
        if not self._is_needed:
            return Seen({}, {})
        if self._kept is None:
            self._kept = Admin(self.settings.kafka())
        try:
            return self._asked(self._kept)
        except KafkaError:
            # The next one reads its secrets again: they may have been rotated.
            self.close()
            raise

    def _asked(self, kept: Admin) -> Seen:
        known = partitions(self.settings.kafka(), kept=kept)
        if not self.brings_news:
            return Seen(known, {})
        read = {topic for source in self.topics.sources.values() for topic in source.assigned(known)}
        places = [Partition(topic, number) for topic in sorted(read) for number in known[topic]]
        return Seen(known, latest(self.settings.kafka(), places, kept=kept))


def go_on(
    one_pass: Callable[[TopicPartitions, Lease], None],
    *,
    turn: Callable[[], AbstractContextManager[Lease]],
    turn_seconds: float,
    broker: Broker,
    retry_policy: RetryPolicy,
) -> NoReturn:
    """Pass after pass, until one raises.

    While there are new records, and `turn_seconds` are not over, the next one runs in the same `turn`.
    """
    with closing(broker):
        seen = broker.look(retry_policy)
        while True:
            with turn() as lease:
                ends_at = time.monotonic() + turn_seconds
                while True:
                    one_pass(seen.known, lease)
                    before, seen = seen, broker.look(retry_policy)
                    # What came while bronze was running may have been read: then the next pass finds nothing.
                    is_news = seen.ends != before.ends
                    if not is_news or time.monotonic() >= ends_at:
                        break
            time.sleep(PAUSE_SECONDS)
            if broker.brings_news and not is_news:
                seen = _pending_lookup(broker, seen, retry_policy)


def _pending_lookup(broker: Broker, before: Seen, retry_policy: RetryPolicy) -> Seen:
    """What the broker has, as soon as that has changed, or after LONGEST_WAIT_SECONDS."""
    ends_at = time.monotonic() + LONGEST_WAIT_SECONDS
    while (seen := broker.look(retry_policy)).ends == before.ends and time.monotonic() < ends_at:
        time.sleep(LOOK_EVERY_SECONDS)
    return seen
