"""Spark's own log says nothing of what rows hold (a process of its own, since the log goes to its standard error)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guide import ROOT

pytestmark = pytest.mark.spark

VALUE = "Ada-Lovelace-4711"
PROGRAM = """
import json
import sys
from collections.abc import Callable
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.failures import place_in_code
from lakehouse.spark.session import spark_session
from lakehouse.delta.tables import Warehouse

value, place = sys.argv[1:]


def texts(spark: SparkSession) -> DataFrame:
    return spark.read.format("delta").load(f"{place}/texts")


def cast(spark: SparkSession) -> None:
    texts(spark).select(F.col("text").cast("int")).collect()


def cast_in_a_shuffle(spark: SparkSession) -> None:
    texts(spark).groupBy(F.col("text").cast("int")).count().collect()


def json_that_fails(spark: SparkSession) -> None:
    texts(spark).select(F.from_json("text", "a INT", {"mode": "FAILFAST"})).collect()


def write(spark: SparkSession) -> None:
    texts(spark).select(F.col("text").cast("int")).write.format("delta").save(f"{place}/numbers")


def write_files(spark: SparkSession) -> None:
    texts(spark).select(F.col("text").cast("int")).write.parquet(f"{place}/files")


def merge(spark: SparkSession) -> None:
    news = texts(spark).select("id", F.raise_error(F.concat(F.lit("this is: "), "text")).cast("string").alias("text"))
    table = DeltaTable.forPath(spark, f"{place}/texts").alias("t")
    table.merge(news.alias("s"), "s.id = t.id").whenMatchedUpdateAll().execute()


def ambiguous_merge(spark: SparkSession) -> None:
    news = texts(spark).unionAll(texts(spark))
    table = DeltaTable.forPath(spark, f"{place}/texts").alias("t")
    table.merge(news.alias("s"), "s.id = t.id AND s.text = t.text").whenMatchedUpdateAll().execute()


def python_function(spark: SparkSession) -> None:
    texts(spark).select(F.udf(lambda text: int(text), "int")("text")).collect()


def plan(spark: SparkSession) -> None:
    spark.range(1).select(F.lit(value).cast("int")).collect()


def broadcast(spark: SparkSession) -> None:
    numbers = texts(spark).select(F.col("text").cast("int").alias("id"))
    spark.range(5).join(F.broadcast(numbers), "id").collect()


def stream(name: str, each: Callable[[DataFrame, int], None]) -> Callable[[SparkSession], None]:
    def run(spark: SparkSession) -> None:
        rows = spark.readStream.format("delta").load(f"{place}/texts")
        begun = rows.writeStream.foreachBatch(each).option("checkpointLocation", f"{place}/{name}")
        begun.trigger(availableNow=True).start().awaitTermination()

    return run


def failing_task(rows: DataFrame, number: int) -> None:
    Warehouse(rows.sparkSession, place, place).append("numbers", rows.select(F.col("text").cast("int")))


def failing_python(rows: DataFrame, number: int) -> None:
    raise ValueError(rows.collect()[0]["text"])


def stream_without_python(spark: SparkSession) -> None:
    rows = spark.readStream.format("delta").load(f"{place}/texts").select(F.col("text").cast("int"))
    begun = rows.writeStream.format("delta").option("checkpointLocation", f"{place}/c")
    begun.trigger(availableNow=True).start(f"{place}/streamed").awaitTermination()


cases = {
    "a cast": cast,
    "a cast before a shuffle": cast_in_a_shuffle,
    "JSON": json_that_fails,
    "a write": write,
    "a write of files": write_files,
    "a MERGE": merge,
    "a MERGE of two rows into one": ambiguous_merge,
    "a Python function": python_function,
    "a constant": plan,
    "a broadcast": broadcast,
    "a task of a stream's batch": stream("a", failing_task),
    "Python in a stream's batch": stream("b", failing_python),
    "a stream's own task": stream_without_python,
}
session = spark_session()
session.range(1).select("id", F.lit(value).alias("text")).write.format("delta").save(f"{place}/texts")
failed = dict.fromkeys(cases)
for name, case in cases.items():
    try:
        case(session)
    except Exception as error:
        failed[name] = str(error), place_in_code(error)
Path(place, "failed.json").write_text(json.dumps(failed))
session.stop()
"""


def test_no_value_of_a_row_is_in_sparks_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, VALUE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    failed = json.loads((tmp_path / "failed.json").read_text(encoding="utf-8"))
    assert [name for name, error in failed.items() if error is None] == []
    quoted = [name for name, (said, _place) in failed.items() if VALUE in said]
    assert len(quoted) > len(failed) / 2  # else the log would have had nothing to hide
    assert VALUE not in done.stdout + done.stderr
    assert "ERROR MicroBatchExecution: Query " in done.stderr
    assert "ERROR Executor: Exception in task " in done.stderr
    assert failed["a task of a stream's batch"][1].startswith("lakehouse/delta/tables.py, line ")
