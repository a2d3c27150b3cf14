"""Sources side by side: one that fails does not end the others, one whose server is gone tries again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.delta.tables import AT_A_TIME
from lakehouse.errors import LakehouseError
from lakehouse.kafka.retry import GONE, RetryPolicy
from lakehouse.spark.session import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Round:
    """The sources that failed, each with its error; and those that had taken something before."""

    failed: Mapping[str, LakehouseError]
    took_some: frozenset[str] = frozenset()


def until_done(
    sources: Iterable[str], once: Callable[[Sequence[str]], Round], *, retry_policy: RetryPolicy | None = None
) -> None:
    """Have `once` work for all sources, and again for those whose broker or schema registry does not answer.

    As often as `retry_policy` says; whenever one of them took something, the count begins again. At the end, raises the
    first failure.
    """
    pending = list(sources)
    failures: list[LakehouseError] = []
    attempt = 0
    while pending:
        round_ = once(pending)
        gone = {source: error for source, error in round_.failed.items() if isinstance(error, GONE)}
        failures += [error for source, error in round_.failed.items() if source not in gone]
        if not round_.took_some.isdisjoint(gone):
            attempt = 0
        if retry_policy is None or attempt == len(retry_policy.waits):
            failures += gone.values()
            break
        for source, error in gone.items():
            retry_policy.announce(error, attempt, of=source)
        if gone:
            time.sleep(retry_policy.waits[attempt])
        attempt += 1
        pending = list(gone)
    if failures:
        raise failures[0]


def in_threads(
    spark: SparkSession, sources: Sequence[str], work: Callable[[SparkSession, str], None], *, layer: str
) -> Round:
    """`work` of a layer for every source, in a session of its own with the same settings; a few at a time.

    A LakehouseError ends the work for its source; any other exception is raised when all have ended.
    """
    from pyspark.util import inheritable_thread_target

    def of_source(source: str) -> None:
        with own_session(spark, doing=f"{layer} {source}") as session:
            work(session, source)

    failed: dict[str, LakehouseError] = {}
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        # One target for each: threads of one target share what describes their jobs.
        ended = {source: threads.submit(inheritable_thread_target(spark)(of_source), source) for source in sources}
    for source, one in ended.items():
        try:
            one.result()
        except LakehouseError as error:
            failed[source] = error
    return Round(failed)
