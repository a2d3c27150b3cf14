"""When a stream is started again, and when not: with queries that only pretend."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from lakehouse.errors import BrokerUnavailableError, KafkaError, LakehouseError
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.spark.streams import run_until_done

GONE = BrokerUnavailableError("Gone.", servers="b:1", hint="Wait.")
REFUSED = KafkaError("Refused.", hint="Ask.")


class Query:
    """Ends as it is told to: well, or with the error; having taken so many records."""

    def __init__(self, error: LakehouseError | None, taken: int, *, batches: int = 0) -> None:
        self.error, self.looks, self.batches = error, 0, batches
        self.recentProgress = [SimpleNamespace(numInputRows=taken)]  # pyspark's name

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802  # pyspark's name
        if self.error is not None:
            raise StreamingQueryException(message="stopped")
        self.looks += 1
        return self.looks > self.batches

    @property
    def lastProgress(self) -> SimpleNamespace | None:  # noqa: N802  # pyspark's name
        return SimpleNamespace(batchId=self.looks - 2, numInputRows=1500) if self.looks > 1 else None

    def stop(self) -> None:
        """Nothing runs."""


def run(stories: dict[str, list[tuple[LakehouseError | None, int]]], said: list[str], attempts: int) -> None:
    """Run the sources, each of which ends as its story says, once a start."""
    left: dict[str, Iterator[tuple[LakehouseError | None, int]]] = {name: iter(one) for name, one in stories.items()}
    last: dict[str, LakehouseError | None] = {}

    def start(source: str) -> Any:
        last[source], taken = next(left[source])
        return Query(last[source], taken)

    def explain(source: str, _error: StreamingQueryException) -> LakehouseError:
        error = last[source]
        assert error is not None
        return error

    run_until_done(
        stories, start=start, explain=explain, retry_policy=RetryPolicy("bronze", said.append, (0,) * attempts)
    )
    assert [next(one, None) for one in left.values()] == [None] * len(left), "every story was told to its end"


def counts(said: list[str]) -> list[str]:
    return [text.split(": ")[0] + text[text.rindex(" (") :] for text in said]


def test_only_the_source_without_a_broker_is_started_again() -> None:
    said: list[str] = []
    run({"a": [(None, 1)], "b": [(GONE, 0), (GONE, 0), (None, 1)]}, said, 2)
    assert counts(said) == ["bronze b (1 of 2)", "bronze b (2 of 2)"]


def test_the_count_begins_anew_when_something_was_taken() -> None:
    said: list[str] = []
    run({"a": [(GONE, 0), (GONE, 5), (GONE, 0), (None, 1)]}, said, 2)
    assert counts(said) == ["bronze a (1 of 2)", "bronze a (1 of 2)", "bronze a (2 of 2)"]


def test_after_the_last_attempt_the_error_is_raised() -> None:
    said: list[str] = []
    with pytest.raises(BrokerUnavailableError):
        run({"a": [(GONE, 0), (GONE, 0), (GONE, 0), (None, 1)]}, said, 2)
    assert len(said) == 2


def test_a_refusal_is_not_tried_again() -> None:
    said: list[str] = []
    with pytest.raises(KafkaError, match="Refused"):
        run({"a": [(REFUSED, 3), (None, 1)], "b": [(GONE, 0), (None, 1)]}, said, 2)
    assert counts(said) == ["bronze b (1 of 2)"]


def test_a_start_that_finds_no_broker_is_tried_again() -> None:
    said: list[str] = []
    starts = iter([True, False])

    def start(_source: str) -> Any:
        if next(starts):
            raise GONE
        return Query(None, 1)

    run_until_done(
        ["a"], start=start, explain=lambda *_: REFUSED, retry_policy=RetryPolicy("bronze", said.append, (0,))
    )
    assert counts(said) == ["bronze a (1 of 1)"]


def test_long_streams_say_how_far_they_are() -> None:
    said: list[str] = []
    query: Any = Query(None, 1, batches=3)

    def explain(_source: str, error: StreamingQueryException) -> LakehouseError:
        raise error

    run_until_done(["a"], start=lambda _source: query, explain=explain, progress=said.append)
    assert said == ["a batch 1 (1,500 records)", "a batch 2 (1,500 records)"]
