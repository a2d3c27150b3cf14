"""One stream a source, side by side: one that fails leaves the others their way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Start = Callable[[str], "StreamingQuery"]
Explain = Callable[[str, StreamingQueryException], LakehouseError]


def run_until_done(sources: Iterable[str], *, start: Start, explain: Explain) -> None:
    """Start the stream of every source and wait until each has taken all there is.

    At the end, raises the first failure: what `start` raised, or what `explain` makes of a stream that stopped.
    """
    queries: dict[str, StreamingQuery] = {}
    failures: list[LakehouseError] = []
    try:
        for source in sources:
            try:
                queries[source] = start(source)
            except LakehouseError as error:
                failures.append(error)
        for source, query in queries.items():
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                failures.append(explain(source, error))
    finally:
        for query in queries.values():
            query.stop()
    if failures:
        raise failures[0]
