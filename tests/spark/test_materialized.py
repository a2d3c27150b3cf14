"""Rows that are kept for a block: where the compute keeps none, in files of their own, the same rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks.tables import jobs
from lakehouse.spark import materialized as materialized_rows
from lakehouse.spark.materialized import (
    MATERIALIZED_ROWS,
    MAX_BYTES_WITHOUT_LIMIT,
    counted,
    fetched,
    fetched_each,
    forget_materialized,
    in_arrow,
    materialize_in,
    materialized,
    without_byte_limit,
)
from silver.batch.events import bronze_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark


def odd_rows(spark: SparkSession) -> DataFrame:
    """Values of every kind that silver has."""
    return spark.sql("""
        SELECT id, CAST(NULL AS STRING) AS nothing, X'00FF' AS bytes, DECIMAL('1.20') AS amount,
          TIMESTAMP '0001-01-01 00:00:00.000001' AS early, TIMESTAMP '9999-12-31 23:59:59.999999' AS late,
          named_struct('a', id, 'b', array(named_struct('c', 'ü')), 'd', map('k', CAST(NULL AS BIGINT))) AS nested,
          array(named_struct('key', 'h', 'value', X'01')) AS `headers of it`
        FROM range(3)
    """)


def told(rows: DataFrame) -> list[Row]:
    """Each row as text: Python has no year 10000."""
    return rows.selectExpr("to_json(struct(*)) AS row", "CAST(early AS STRING)", "CAST(late AS STRING)").collect()


@pytest.mark.parametrize("on_serverless", [False, True])
def test_the_same_rows_for_every_question(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_serverless: bool
) -> None:
    monkeypatch.setenv(MATERIALIZED_ROWS, "")
    if on_serverless:
        monkeypatch.setenv("IS_SERVERLESS", "true")
    materialize_in(str(tmp_path), run_id="a-run")
    rows = odd_rows(spark)
    with materialized(rows) as kept:
        assert sorted(told(kept)) == sorted(told(kept)) == sorted(told(rows))
        assert kept.dtypes == rows.dtypes
        files = list(tmp_path.glob("_materialized_rows/a-run/*/*.parquet"))
        assert bool(files) == on_serverless
    assert not list(tmp_path.glob("_materialized_rows/a-run/*"))


def test_what_a_dead_run_left_goes_after_a_day(spark: SparkSession, tmp_path: Path) -> None:
    for name, hours in (("old", 25), ("new", 1)):
        folder = tmp_path / "_materialized_rows" / name
        (folder / "rows").mkdir(parents=True)
        os.utime(folder, (time.time() - hours * 3600,) * 2)
    assert forget_materialized(spark, str(tmp_path)) == 1
    assert [folder.name for folder in tmp_path.glob("_materialized_rows/*")] == ["new"]


def test_at_a_uri_no_row_stays_when_the_block_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MATERIALIZED_ROWS, f"file://{tmp_path}/_materialized_rows/a-run")
    with materialized(odd_rows(spark)) as kept:
        assert rows_in_files(spark, tmp_path) == len(told(kept)) == 3
    assert rows_in_files(spark, tmp_path) == 0
    with pytest.raises(ZeroDivisionError), materialized(odd_rows(spark)) as kept:
        raise ZeroDivisionError
    assert rows_in_files(spark, tmp_path) == 0


def test_at_a_uri_what_a_dead_run_left_goes_after_a_day(spark: SparkSession, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    assert forget_materialized(spark, uri) == 0
    for name, hours in (("old", 25), ("new", 1)):
        odd_rows(spark).write.parquet(f"{uri}/_materialized_rows/{name}/rows")
        for file in (tmp_path / "_materialized_rows" / name / "rows").iterdir():
            os.utime(file, (time.time() - hours * 3600,) * 2)
    assert rows_in_files(spark, tmp_path) == 6
    assert [forget_materialized(spark, uri), forget_materialized(spark, uri)] == [1, 0]
    assert rows_in_files(spark, tmp_path / "_materialized_rows" / "new") == rows_in_files(spark, tmp_path) == 3


def rows_in_files(spark: SparkSession, folder: Path) -> int:
    files = [str(file) for file in folder.rglob("*.parquet")]
    return spark.read.parquet(*files).count() if files else 0


def test_rows_are_fetched_in_parts_that_the_driver_can_hold(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are in one partition: what a task returns goes through the driver's memory whole."""
    monkeypatch.setattr(materialized_rows, "ROWS_AT_ONCE", 10)
    rows = spark.range(0, 95, 1, numPartitions=1)
    parts = [table.column("id").to_pylist() for table in in_arrow(rows, count=95, size_in_bytes=0)]
    assert sorted(number for part in parts for number in part) == [*range(95)]
    assert max(map(len, parts)) <= 10


def test_rows_that_are_large_are_fetched_fewer_at_a_time(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialized_rows, "BYTES_AT_ONCE", 40_000)
    text, several = "repeat('é', 500) AS text", "array(repeat('x', 500), 'y') AS several"
    rows = spark.range(0, 400, 1, numPartitions=1).selectExpr("id", text, several, "CAST(NULL AS STRING) AS nothing")
    count, size_in_bytes = counted(rows)
    assert count == 400
    assert 400 * 1500 < size_in_bytes < 400 * 1600
    parts = [table.num_rows for table in in_arrow(rows, count=count, size_in_bytes=size_in_bytes)]
    assert sum(parts) == 400
    assert max(parts) <= 40
    assert counted(rows.limit(0)) == (0, 0)


def test_rows_of_several_tables_are_fetched_by_one_action(spark: SparkSession) -> None:
    odd = odd_rows(spark).drop("nested", "headers of it")
    text = spark.sql("SELECT CAST(id AS STRING) AS id, id = 1 AS `is it` FROM range(2)")
    parts = [odd, text, odd.where("id > 5")]
    apart = [fetched(rows) for rows in parts]
    before = jobs(spark)
    found = fetched_each(parts, most=5)
    assert found is not None
    assert jobs(spark) - before == 1
    assert [one.table.columns for one in found] == [one.table.columns for one in apart]
    assert [one.rows.dtypes for one in found] == [one.rows.dtypes for one in apart]
    assert fetched_each(parts, most=4) is None


@pytest.fixture
def one_byte(spark: SparkSession) -> Iterator[None]:
    """With such a limit every row goes to Python by itself."""
    limit = "spark.sql.execution.arrow.maxBytesPerBatch"
    before = spark.conf.get(limit)
    assert before == str(64 * 1024 * 1024)
    spark.conf.set(limit, "1")
    yield
    assert spark.conf.get(limit) == "1"
    spark.conf.set(limit, str(before))


@pytest.mark.parametrize(
    ("size_in_bytes", "batches"), [(MAX_BYTES_WITHOUT_LIMIT, 1), (MAX_BYTES_WITHOUT_LIMIT + 1, 3), (None, 3)]
)
@pytest.mark.usefixtures("one_byte")
def test_rows_that_are_small_together_go_to_python_without_a_limit(
    spark: SparkSession, size_in_bytes: int | None, batches: int
) -> None:
    rows = odd_rows(spark).coalesce(1)
    with without_byte_limit(rows, size_in_bytes):
        assert rows.mapInArrow(_sizes, "rows INT").count() == batches


@pytest.mark.usefixtures("one_byte")
def test_a_part_that_is_fetched_is_one_batch(spark: SparkSession) -> None:
    tables = [*in_arrow(odd_rows(spark).coalesce(1), count=3, size_in_bytes=100)]
    assert [table.num_rows for table in tables] == [3]


def _sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int32())})


def test_a_record_without_headers_has_an_empty_list_on_its_way_to_python(spark: SparkSession) -> None:
    bronze = spark.sql("""
        SELECT 't' AS topic, CAST(NULL AS STRING) AS _topic_id, 0 AS partition, 1L AS offset, now() AS timestamp,
          X'00' AS key, X'01' AS value, CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers
    """)
    assert bronze_records(bronze).collect()[0]["headers"] == []
