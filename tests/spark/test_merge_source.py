"""A MERGE of few rows into a large table moves few rows: counted, with inserts among them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lakehouse.delta.tables import UPSERTED, TableSpec, Warehouse
from lakehouse.spark.materialized import is_filtered, materialized, merge_source
from lakehouse.spark.sizing import LARGE_ROWS, MAX_BROADCAST, tuned_for
from tests.support.counted import last_stage, shuffled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPEC = TableSpec("silver.large", "id STRING, said BIGINT", properties=UPSERTED)
ROWS, CHANGES = 120_000, 40
LARGE = 1_000_000_000


def merged(warehouse: Warehouse, *, first: int, size_in_bytes: int) -> int:
    """How many rows were moved by a MERGE of some rows, half of them new, into a table that is said to be so large."""
    spark = warehouse.spark
    # As in a batch of a stream, Spark does not know how many they are.
    rows = [(f"key {number:09d}", 1) for number in range(first, first + CHANGES)]
    changes = spark.createDataFrame(rows, SPEC.columns)
    before = last_stage(spark)
    with ExitStack() as stack:
        stack.enter_context(tuned_for(spark, LARGE_ROWS))
        told = stack.enter_context(materialized(changes)).groupBy("id").agg(F.max("said").alias("said"))
        source = stack.enter_context(merge_source(told, key="id", count=CHANGES, size_in_bytes=size_in_bytes))
        (
            warehouse.delta(SPEC.name)
            .alias("target")
            .merge(source.alias("new"), "target.id = new.id")
            .whenMatchedUpdate(set={"said": "target.said + new.said"})
            .whenNotMatchedInsertAll()
            .execute()
        )
    return shuffled(spark, after=before)


def test_a_few_rows_are_merged_into_a_large_table_without_sorting_it(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path), str(tmp_path / "_checkpoints"))
    warehouse.ensure(SPEC)
    key = F.format_string("key %09d", F.col("id")).alias("id")
    warehouse.append(SPEC.name, spark.range(ROWS).select(key, F.lit(0).cast("bigint").alias("said")))
    setting = "spark.sql.autoBroadcastJoinThreshold"
    earlier = str(spark.conf.get(setting))
    spark.conf.set(setting, "1b")
    try:
        half = CHANGES // 2
        assert merged(warehouse, first=ROWS - half, size_in_bytes=0) > ROWS
        assert 0 < merged(warehouse, first=ROWS, size_in_bytes=LARGE) < ROWS / 20
        assert spark.conf.get(setting) == "1b"
    finally:
        spark.conf.set(setting, earlier)
    found = warehouse.read(SPEC.name).groupBy("said").count().collect()
    assert {row["said"]: row["count"] for row in found} == {0: ROWS - half, 1: 2 * half, 2: half}


def test_what_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_filtered(MAX_BROADCAST, LARGE)
    assert not is_filtered(MAX_BROADCAST + 1, LARGE)
    assert not is_filtered(1, 100_000)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18")
    assert not is_filtered(1, LARGE)


def test_rows_that_may_be_many_are_left_as_they_are(spark: SparkSession) -> None:
    rows: DataFrame = spark.range(3)
    with merge_source(rows, key="id", count=None, size_in_bytes=LARGE) as source:
        assert source is rows
