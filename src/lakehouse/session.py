"""The Spark session: the runtime's own on Databricks, a local one with Delta and Kafka everywhere else."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def spark_session(*, extra: Mapping[str, str] | None = None, java_options: Sequence[str] = ()) -> SparkSession:
    """The session that jobs run in; `extra` settings and `java_options` are for tests.

    Raises InstallationError when Java or one of the pinned jars is missing (local sessions only).
    """
    from pyspark.sql import SparkSession

    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        _allow_deep_plans()
        return SparkSession.builder.getOrCreate()

    from lakehouse.jars import java, spark_jars

    java()
    # They would write every error of a query to standard error, with the value that raised it.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("orders-lakehouse").master("local[*]")
    settings = {
        **_LOCAL,
        _JAVA_OPTIONS: " ".join([_LOCAL[_JAVA_OPTIONS], *java_options]),
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        **(extra or {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = {
    # Spark's start-up notices would stand between our own lines; its errors still come.
    _JAVA_OPTIONS: f'-Dlog4j2.configurationFile="{_LOG_CONFIG}"',
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Times without a zone are UTC in every contract, wherever the machine stands.
    "spark.sql.session.timeZone": "UTC",
    # By default Parquet files get times as INT96, which readers without Spark take for other times before the year 1678
    # and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Where in Python a column was made, for Spark's messages: finding it takes longer than making the column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The plans of a batch have many conditions on the same columns: what follows from all of them together, Spark
    # would spend minutes and all its memory on.
    "spark.sql.constraintPropagation.enabled": "false",
    # One machine: many small tasks cost more than they spread.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


# For a few thousand rows (tests, the demo): there, compiling a plan takes longer than running it, and one task does it.
SMALL_DATA = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# For a process that runs thousands of different plans on few cores (tests): there throughput counts, not pauses, and
# there has to be room for all of the code.
MANY_PLANS = {"spark.driver.memory": "4g"}
MANY_PLANS_JAVA = ("-XX:+UseParallelGC", "-XX:ReservedCodeCacheSize=400m", "-XX:MetaspaceSize=400m")


def is_serverless() -> bool:
    """Whether this is Databricks' serverless compute, which speaks Spark Connect and keeps nothing."""
    return os.environ.get("IS_SERVERLESS", "").lower() == "true"


def in_batch(*, serverless: bool) -> None:
    """Make the process that runs a batch of a stream what the one that started the stream is.

    Over Spark Connect it is another one, which has neither its environment nor what it allowed.
    """
    os.environ["IS_SERVERLESS"] = str(serverless).lower()
    _allow_deep_plans()


def _allow_deep_plans() -> None:
    """Let Spark Connect's Python client send the plans that read records.

    A plan is a message in a message a step, and protobuf copies a hundred levels at most unless it is told otherwise;
    the server reads a thousand.
    """
    with suppress(ImportError):  # a protobuf that is Python throughout has no such limit
        from google._upb import _message

        _message.SetAllowOversizeProtos(True)


@contextmanager
def held(rows: DataFrame) -> Iterator[DataFrame]:
    """The same rows, computed once for everything inside the block; each time on serverless, which cannot keep any.

    What is asked of them plans as if they were a table: the plan that makes them is behind them. Were it not, reading
    the records of a batch would be planned again, and parts of it run again, for each of a dozen questions.
    """
    if is_serverless():
        yield rows
        return
    kept = rows.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        # Spark Connect lets go of its checkpoints itself; here it would wait for the garbage collector.
        if hasattr(kept, "_jdf"):
            kept._jdf.queryExecution().analyzed().rdd().unpersist(False)
