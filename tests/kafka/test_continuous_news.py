"""Passes that go on beside a real broker: each begins with Kafka's news, and others get the warehouse in between."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from cli import continuous
from cli.continuous import Broker, run_forever
from lakehouse.contracts.topics import Topics
from lakehouse.delta.locks import locked
from lakehouse.kafka.broker import TopicPartitions
from lakehouse.kafka.offsets import Partition
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.process.lock import Lock, this_process
from tests.support.shop import OTHER, TOPIC, Shop, create

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MAX_SECONDS = 240


class EndedError(Exception):
    """The last pass."""


def test_a_pass_comes_with_news_and_the_warehouse_is_free_before_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(continuous, "LOOK_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(continuous, "LONGEST_WAIT_SECONDS", 2 * MAX_SECONDS)
    took: list[list[str]] = []
    came = threading.Event()

    def one_pass(known: TopicPartitions, lock: Lock, *, is_news: bool) -> None:
        lock.check()
        assert known
        shop.run()
        took.append(shop.values())
        came.set()
        if "a-2" in took[-1] or time.monotonic() - begun > MAX_SECONDS:
            raise EndedError

    def somebody() -> None:
        """Waits for the warehouse, and brings news when it was free."""
        came.wait(MAX_SECONDS)
        with turn(wait=timedelta(seconds=MAX_SECONDS)):
            free_after.append(len(took))
        shop.produce("a-1")
        shop.produce("a-2", partition=1)

    turn = partial(locked, shop.warehouse, holder=this_process(run_id="one", command="run"), say=lambda _said: None)
    monkeypatch.setattr("lakehouse.process.lock.LOOK_EVERY_SECONDS", 0.1)
    free_after: list[int] = []
    shop.produce("a-0")
    other = threading.Thread(target=somebody)
    other.start()
    begun = time.monotonic()
    with pytest.raises(EndedError):
        run_forever(
            one_pass,
            turn=turn,
            turn_seconds=60.0,
            broker=Broker(shop.chosen, Topics(sources={"shop": shop.source}), ("bronze",)),
            retry_policy=RetryPolicy("run", lambda _said: None),
        )
    other.join()
    assert time.monotonic() - begun < MAX_SECONDS, "it came with the news, not when the longest wait was over"
    assert (took[0], took[-1], free_after) == (["a-0"], ["a-0", "a-1", "a-2"], [1])
    assert len(took) in (2, 3), "and without news there was none"


def test_looks_at_the_broker_share_a_client_and_see_what_is_new(shop: Shop) -> None:
    broker = Broker(shop.chosen, Topics(sources={"shop": shop.source}), ("bronze",))
    threads_before = threads()
    seen = [broker.look()]
    while_looking = threads()
    assert while_looking > threads_before
    shop.produce("a-0")
    seen.append(broker.look())
    create(shop.kafka, OTHER)
    seen.append(broker.look())
    assert [look.ends[Partition(TOPIC, 0)] for look in seen] == [0, 1, 1]
    assert [OTHER in look.known for look in seen] == [False, False, True]
    broker.close()
    assert threads() < while_looking


def threads() -> int:
    """Of this process, librdkafka's too."""
    return len(list(Path("/proc/self/task").iterdir()))
