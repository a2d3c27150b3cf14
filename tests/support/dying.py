"""The gold or the publish job in a process that kills itself at a given moment: python -m tests.support.dying …

No mock: the process ends as by SIGKILL, with its Java and its open transaction.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from pytest import MonkeyPatch

from gold import build
from gold.state_store import StateStore
from gold.topics import publish, sending
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.kafka.producer import TransactionalProducer
from lakehouse.spark.session import spark_session
from tests.support.gold import ungated

PATCH = MonkeyPatch()


def die() -> NoReturn:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def before_gold_is_recorded() -> None:
    """Gold has its commit, and does not know yet that it was made."""
    PATCH.setattr(StateStore, "write", _dying)


def in_the_middle() -> None:
    """Three records are with the broker, in an open transaction."""
    send, sent = TransactionalProducer.send, list[str]()

    def send_and_die(self: TransactionalProducer, topic: str, **record: Any) -> None:
        send(self, topic, **record)
        sent.append(topic)
        if len(sent) == 3:
            self._wait(until=0)
            die()

    PATCH.setattr(TransactionalProducer, "send", send_and_die)


def before_the_marker() -> None:
    """Every record is with the broker, and not the marker."""

    def commit(producer: TransactionalProducer, *_more: Any) -> None:
        producer._wait(until=0)
        die()

    PATCH.setattr(sending, "commit", commit)


def before_the_commit() -> None:
    """Every record and the marker are with the broker, in an open transaction."""

    def commit(self: TransactionalProducer) -> None:
        self._wait(until=0)
        die()

    PATCH.setattr(TransactionalProducer, "commit", commit)


def after_the_commit() -> None:
    """The transaction is committed, and nobody here knows it."""
    commit = TransactionalProducer.commit

    def commit_and_die(self: TransactionalProducer) -> None:
        commit(self)
        die()

    PATCH.setattr(TransactionalProducer, "commit", commit_and_die)


@dataclass(frozen=True)
class Moment:
    """How the process is made to die, in which job, and the most records of a transaction."""

    prepare: Callable[[], None]
    job: str = "publish"
    most: int = 1_000


MOMENTS = {
    "before gold is recorded": Moment(before_gold_is_recorded, job="gold"),
    "in the middle": Moment(in_the_middle),
    "before the marker": Moment(before_the_marker),
    "before the commit": Moment(before_the_commit),
    "after the commit": Moment(after_the_commit),
    "between parts": Moment(after_the_commit, most=3),
}


def _dying(*_given: Any, **_more: Any) -> NoReturn:
    die()


def main(moment: str, location: str, servers: str, topic: str) -> None:
    """Run the job on the warehouse until that moment."""
    chosen_moment = MOMENTS[moment]
    contracts = load_contracts()
    publication = contracts.gold.unified_topic.model_copy(update={"topic": topic})
    gold = contracts.gold.model_copy(update={"publication": publication})
    own = ungated(contracts).model_copy(update={"gold": gold})
    # It lives for seconds: the quick compiler only.
    spark = spark_session(java_options=("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))
    chosen = settings(warehouse=location, bootstrap_servers=servers)
    chosen_moment.prepare()
    if chosen_moment.job == "gold":
        build.run(spark, chosen, own, run_id=moment)
    else:
        publish.run(spark, chosen, own, most_in_a_transaction=chosen_moment.most)


if __name__ == "__main__":
    main(*sys.argv[1:])
