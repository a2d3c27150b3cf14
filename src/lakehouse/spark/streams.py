"""One stream a source, side by side: one that fails does not end the others, one without a broker tries again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from lakehouse.errors import LakehouseError
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.process.steps import Note
from lakehouse.spark.side_by_side import Round, until_done

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Start = Callable[[str], "StreamingQuery"]
Explain = Callable[[str, StreamingQueryException], LakehouseError]


POLL_SECONDS = 2


def run_until_done(
    sources: Iterable[str],
    *,
    start: Start,
    explain: Explain,
    retry_policy: RetryPolicy | None = None,
    progress: Note | None = None,
) -> None:
    """Start the stream of every source and wait until each has processed its backlog; `progress` gets how far it is.

    A source whose broker or schema registry does not answer is started again as often as `retry_policy` says;
    whenever one of them took something, the count begins again. At the end, raises the first failure: what `start`
    raised, or what `explain` makes of a stream that stopped.
    """
    once = partial(_run_once, start=start, explain=explain, progress=progress)
    until_done(sources, once, retry_policy=retry_policy)


def _run_once(sources: Iterable[str], *, start: Start, explain: Explain, progress: Note | None) -> Round:
    """Start the stream of every source and wait until all have ended."""
    queries: dict[str, StreamingQuery] = {}
    failed: dict[str, LakehouseError] = {}
    try:
        for source in sources:
            try:
                queries[source] = start(source)
            except LakehouseError as error:
                failed[source] = error
        for source, query in queries.items():
            try:
                while not query.awaitTermination(POLL_SECONDS):
                    if progress is not None and (how_far := _how_far(queries)):
                        progress(how_far)
            except StreamingQueryException as error:
                failed[source] = explain(source, error)
        took_some = frozenset(
            source
            for source, query in queries.items()
            if source in failed and any(progress.numInputRows for progress in query.recentProgress)
        )
    finally:
        for query in queries.values():
            query.stop()
    return Round(failed, took_some)


def _how_far(queries: Mapping[str, StreamingQuery]) -> str:
    """The last batch of every source that has ended one: `postgres batch 3 (20,000 records)`."""
    last = {source: query.lastProgress for source, query in queries.items()}
    return ", ".join(
        # Not by their keys: over Spark Connect the number of rows is there as an attribute only.
        f"{source} batch {batch.batchId + 1} ({batch.numInputRows:,} records)"
        for source, batch in last.items()
        if batch
    )
