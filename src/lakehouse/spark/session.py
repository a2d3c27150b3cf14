"""The Spark session: the runtime's own on Databricks; with Delta and Kafka on this machine or a cluster elsewhere.

What is set for it is decided by pure functions, `cluster` and `session_settings`.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from lakehouse.errors import InstallationError, LakehouseError
from lakehouse.spark.settings import NEEDED, ON_DATABRICKS, Cluster, is_local, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def elsewhere(spark: SparkSession) -> str | None:
    """The master of a session whose Spark runs on a cluster; None on this machine, and on Databricks."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return None
    master = str(spark.sparkContext.master)
    return None if is_local(master) else master


def spark_session(
    asked: Cluster | None = None,
    *,
    is_lasting: bool = False,
    extra: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> SparkSession:
    """The session that jobs run in, where `asked` says; `extra` settings and `java_options` are for tests.

    `is_lasting`: it goes on for hours, so Java may compile twice what it runs often.

    Raises InstallationError when Java or one of the pinned jars is missing, LakehouseError when no master answers, and
    SettingsError as `session_settings` does. On Databricks it is the runtime's own, set to UTC and ANSI mode.
    """
    from pyspark.sql import SparkSession

    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        session = SparkSession.builder.getOrCreate()
        for key in ON_DATABRICKS:
            session.conf.set(key, NEEDED[key])
        return session

    # They would write every error of a query to standard error, with the value that raised it.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # A connection to Java that is lost in the middle of a call is said once, with what to do (`failures`), not in a
    # trace as well. py4j writes its own to the root logger.
    logging.getLogger().addFilter(_is_no_lost_call)
    asked = asked or Cluster()
    asked = Cluster(asked.master, {**asked.settings, **(extra or {})})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        settings = session_settings(asked, submitted=_submitted())
    else:
        compiler = [] if is_lasting else [_QUICK_COMPILER]
        settings = session_settings(asked, jars=_own_jars(), java_options=[*compiler, *java_options])
        _prepare(settings["spark.master"])
        _start_java(settings)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def own_session(spark: SparkSession, *, doing: str) -> Iterator[SparkSession]:
    """A session with the same settings, which may be changed in it alone: for a thread beside others.

    On Databricks the session itself: nothing is changed there. `doing`: what Spark's pages call the jobs of the thread.
    """
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        yield spark
    elif not hasattr(spark, "_jsparkSession"):
        session: SparkSession = cast(Any, spark).cloneSession()  # of Spark Connect
        try:
            yield session
        finally:
            session.stop()
    else:
        java = spark._jsparkSession.cloneSession()
        # Delta asks the thread for its session.
        sessions = spark._get_j_spark_session_class(spark._jvm)
        sessions.setActiveSession(java)
        spark.sparkContext.setJobDescription(doing)
        try:
            yield type(spark)(spark.sparkContext, java)
        finally:
            sessions.setActiveSession(spark._jsparkSession)


def release_jvm_refs() -> None:
    """Let Java have back what only this process still names: the plans of queries that are over.

    A py4j object refers to itself once a method of it was called, so it goes with Python's collector of cycles alone.
    That counts Python's objects: a few thousand of them, behind which Java holds hundreds of megabytes.
    """
    gc.collect()


def _is_no_lost_call(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


def _own_jars() -> list[str]:
    from lakehouse.spark.jars import java, spark_jars

    java()
    return [str(jar) for jar in spark_jars()]


def _prepare(master: str) -> None:
    """What this process needs before it starts Spark's Java. Raises LakehouseError when no master answers."""
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif master.startswith("spark://") and not any(map(_answers, master.removeprefix("spark://").split(","))):
        # Spark itself would try for a minute, and say it in a trace.
        raise LakehouseError(
            f"No Spark master answers at {master}.", hint="Start it, or give the address that its web page shows."
        )


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, unless it runs: what it prints goes to standard error. Standard output is for answers alone.

    Delta prints a line of its own for every VACUUM.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf().setAll(list(settings.items()))
        java = launch_gateway(conf, {"stdout": STANDARD_ERROR})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=java)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _submitted() -> dict[str, str]:
    """What spark-submit and its defaults say. Raises InstallationError when Spark was started without our jars."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the Java that runs already
    jvm = SparkContext._jvm
    if jvm is None or not all(map(jvm.org.apache.spark.util.Utils.classIsLoadable, _CLASSES)):
        raise InstallationError(
            "spark-submit has started Spark without the jars of Delta and Kafka.",
            hint='Pass it --jars "$(lakehouse jars --paths)".',
        )
    return dict(SparkConf().getAll())


STANDARD_ERROR = 2
# Java's first compiler alone. Most of a command's time Java is cold, and its second compiler takes the cores away from
# the queries: what it makes of them later does not pay for that in one run (decision 40).
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_CLASSES = ("io.delta.sql.DeltaSparkSessionExtension", "org.apache.spark.sql.kafka010.KafkaSourceProvider")
