"""`quality.results`: how every rule of every gate came out, run by run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Gate
from lakehouse.tables import TableSpec, small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VALUES = """
    run STRING, gate STRING, source STRING, feed STRING, rule STRING, on_failure STRING,
    evaluated BIGINT, failed BIGINT, passed BOOLEAN, sample_keys ARRAY<STRING>
"""

RESULTS = TableSpec(name="quality.results", columns=f"{_VALUES}, evaluated_at TIMESTAMP")


@dataclass(frozen=True)
class Result:
    """One rule, judged on what one run brought: `gate` is `silver` (rows) or `gold` (tables)."""

    run: str
    gate: str
    source: str
    feed: str
    rule: str
    on_failure: str
    evaluated: int
    failed: int
    passed: bool
    sample_keys: tuple[str, ...] = ()


def result_rows(spark: SparkSession, results: Iterable[Result]) -> DataFrame:
    """Rows of `quality.results`, evaluated now."""
    return small_table(spark, [asdict(result) for result in results], _VALUES).withColumn(
        "evaluated_at", F.current_timestamp()
    )


def held_sources(results: DataFrame, gate: Gate) -> list[str]:
    """The sources that gate 2 holds: the last verdict on one of their `fail` rules was that it is not met."""
    holding = [rule.name for rule in gate.expectations if rule.on_failure == "fail"]
    last = (
        results.where((F.col("gate") == "gold") & F.col("rule").isin(holding))
        .groupBy("source", "feed", "rule")
        .agg(F.max_by("passed", "evaluated_at").alias("passed"))
    )
    return sorted(row["source"] for row in last.where(~F.col("passed")).select("source").distinct().collect())
