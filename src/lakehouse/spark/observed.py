"""Rows that are counted by the action that takes them: no query asks for what an append has just seen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehouse.spark.java import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Spark says what an action has seen in a thread of its own, some milliseconds after the action has ended.
WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


@dataclass(frozen=True)
class Observed:
    """`rows`, whose first action computes the metrics."""

    rows: DataFrame
    _observation: Any

    def values(self) -> Mapping[str, Any] | None:
        """The metrics by name, after the action; None when no rows went through: Delta passed over the append.

        Spark's own `get` would wait for them for ever.
        """
        if hasattr(self._observation, "_jo"):  # over Spark Connect they have come with the answer, or not
            until = time.monotonic() + WAIT_SECONDS
            while not self._observation._jo.future().isCompleted():
                if time.monotonic() > until:
                    return None
                time.sleep(_PAUSE_SECONDS)
        return self._observation.get or None


def observe(rows: DataFrame, metrics: Mapping[str, Column]) -> Observed:
    """The rows, with metrics (aggregates, by name) that their first action computes as it goes.

    An action that shuffles them behind this point, and loses an executor, may count some of them twice.
    """
    of_session = "pyspark.sql.connect.observation" if is_connect(rows.sparkSession) else "pyspark.sql"
    observation: Any = import_module(of_session).Observation()
    return Observed(rows.observe(observation, *[metric.alias(name) for name, metric in metrics.items()]), observation)
