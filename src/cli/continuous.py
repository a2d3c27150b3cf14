"""`--trigger continuous`: when the next pass begins, and when the warehouse is unlocked.

Where bronze is among the jobs, a pass begins as soon as Kafka has new records, and else once in LONGEST_WAIT_SECONDS,
for what people have asked for meanwhile, and for rules that depend on the time: that one does nothing where nothing
has changed (cli.unchanged). Other jobs run between two turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from lakehouse.config import Settings
from lakehouse.contracts.topics import Topics
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import Admin, TopicPartitions, partitions
from lakehouse.kafka.offsets import Partition, latest
from lakehouse.kafka.retry import RetryPolicy, retried

if TYPE_CHECKING:
    from lakehouse.process.lock import Lock

# Passes of all jobs share one lock of the warehouse (a turn), and begin in its first so many seconds: what a process
# knows of the tables holds for a turn, and of a lease each turn is two commits.
TURN_SECONDS = 60.0
# Between two turns the warehouse is unlocked: whoever waits for it looks more often (lakehouse.process.lock).
PAUSE_SECONDS = 5.0
# Without new records the next pass begins after so long.
LONGEST_WAIT_SECONDS = 60.0
LOOK_EVERY_SECONDS = 2.0


class OnePass(Protocol):
    """All jobs once, with the warehouse locked. `is_news`: the broker has records that the pass before did not see."""

    def __call__(self, known: TopicPartitions, lock: Lock, *, is_news: bool) -> None:
        """Raises what ends all passes."""


@dataclass(frozen=True)
class BrokerState:
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

    def look(self, retry_policy: RetryPolicy | None = None) -> BrokerState:
        """What is there now. Raises KafkaError; a broker that does not answer is waited for as `retry_policy` says."""
        return retried(self._seen, retry_policy)

    def close(self) -> None:
        """End the client that was kept. The next look makes another."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def _is_needed(self) -> bool:
        return not {"bronze", "publish"}.isdisjoint(self.names)

    def _seen(self) -> BrokerState:
        if not self._is_needed:
            return BrokerState({}, {})
        if self._kept is None:
            self._kept = Admin(self.settings.kafka())
        try:
            return self._asked(self._kept)
        except KafkaError:
            # The next one reads its secrets again: they may have been rotated.
            self.close()
            raise

    def _asked(self, kept: Admin) -> BrokerState:
        known = partitions(self.settings.kafka(), kept=kept)
        if not self.brings_news:
            return BrokerState(known, {})
        read = {topic for source in self.topics.sources.values() for topic in source.assigned(known)}
        topic_partitions = [Partition(topic, number) for topic in sorted(read) for number in known[topic]]
        return BrokerState(known, latest(self.settings.kafka(), topic_partitions, kept=kept))


def run_forever(
    one_pass: OnePass,
    *,
    turn: Callable[[], AbstractContextManager[Lock]],
    turn_seconds: float,
    broker: Broker,
    retry_policy: RetryPolicy,
) -> NoReturn:
    """Pass after pass, until one raises.

    While there are new records, and `turn_seconds` are not over, the next one runs in the same `turn`.
    """
    with closing(broker):
        seen, is_news = broker.look(retry_policy), False
        while True:
            with turn() as lock:
                ends_at = time.monotonic() + turn_seconds
                while True:
                    one_pass(seen.known, lock, is_news=is_news)
                    before, seen = seen, broker.look(retry_policy)
                    # What came while bronze was running may have been read: then the next pass finds nothing.
                    is_news = seen.ends != before.ends
                    if not is_news or time.monotonic() >= ends_at:
                        break
            time.sleep(PAUSE_SECONDS)
            if broker.brings_news and not is_news:
                before, seen = seen, _pending_lookup(broker, seen, retry_policy)
                is_news = seen.ends != before.ends


def _pending_lookup(broker: Broker, before: BrokerState, retry_policy: RetryPolicy) -> BrokerState:
    """What the broker has, as soon as that has changed, or after LONGEST_WAIT_SECONDS."""
    ends_at = time.monotonic() + LONGEST_WAIT_SECONDS
    while (seen := broker.look(retry_policy)).ends == before.ends and time.monotonic() < ends_at:
        time.sleep(LOOK_EVERY_SECONDS)
    return seen
