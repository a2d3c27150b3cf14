"""The Spark session: the runtime's own on Databricks; with Delta and Kafka on this machine or a cluster elsewhere.

What is set for it is decided by pure functions, `cluster` and `session_settings`.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lakehouse.errors import InstallationError, LakehouseError, SettingsError
from lakehouse.spark.sizing import FEW_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Cluster:
    """Where Spark is to run, and further settings of it: what a command was given.

    `master` None: as spark-submit says, else this machine. Values of `settings` can be secrets: they are in no message.
    """

    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


def cluster(*, master: str | None, spark_conf: Sequence[str] = ()) -> Cluster:
    """What `--master` and `--spark-conf` (each KEY=VALUE; of one key the last) ask for.

    Raises SettingsError for what is no master or no setting of Spark, and for either on Databricks.
    """
    if "DATABRICKS_RUNTIME_VERSION" in os.environ and (master or spark_conf):
        raise SettingsError(
            f"{'--master' if master else '--spark-conf'} has no meaning on Databricks: Spark runs there already.",
            remedy="Leave it out (and LAKEHOUSE_MASTER): the job's compute says where Spark runs and how.",
        )
    if master is not None and not _MASTER.fullmatch(master):
        raise SettingsError(
            f"{master!r} is no master of Spark.",
            remedy="Give spark://HOST:PORT[,HOST:PORT…], yarn, k8s://URL, local[N] or local[*].",
        )
    conf = {}
    for number, given in enumerate(spark_conf, start=1):
        key, is_there, value = given.partition("=")
        if not is_there or not _KEY.fullmatch(key):
            # Not what it is instead: it can be a secret.
            raise SettingsError(
                f"--spark-conf number {number} is not KEY=VALUE with a key of Spark, which begins with spark.",
                remedy="Give, for example, --spark-conf spark.executor.memory=2g; settings of Hadoop begin with "
                "spark.hadoop.",
            )
        if key in _OPTIONS_OF_THEIR_OWN:
            raise SettingsError(f"{key} is not for --spark-conf.", remedy=_OPTIONS_OF_THEIR_OWN[key])
        conf[key] = value
    return Cluster(master, conf)


def session_settings(
    asked: Cluster,
    *,
    jars: Sequence[str] = (),
    java_options: Sequence[str] = (),
    submitted: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Every setting of a session outside Databricks, `spark.master` too.

    `submitted`: what spark-submit and its defaults say, where Spark's Java was started by it: that goes before what is
    set here, and `asked.settings` before both. None: the Java is started with these, `jars` and `java_options`.

    Raises SettingsError when a setting that the tables need is another one, when spark-submit has another master than
    `asked`, and when a setting comes too late for a Java that runs already.
    """
    master = _master(asked, submitted)
    settings = {
        **_EVERYWHERE,
        **(_ONE_MACHINE if is_local(master) else _MANY_MACHINES),
        **(_OF_OUR_JAVA if submitted is None else submitted),
        **asked.settings,
        "spark.master": master,
    }
    if submitted is None:
        settings[_JAVA_OPTIONS] = _options_of_our_java([*java_options, asked.settings.get(_JAVA_OPTIONS, "")])
        more = asked.settings.get("spark.jars", "")
        settings["spark.jars"] = ",".join([*jars, *([more] if more else [])])
    else:
        late = sorted(key for key in asked.settings if key in _TOO_LATE and asked.settings[key] != submitted.get(key))
        if late:
            raise SettingsError(
                f"{', '.join(late)} in --spark-conf: too late, since spark-submit has started Spark's Java already.",
                remedy="Give it to spark-submit, by --conf or an option of its own.",
            )
    if settings.get("spark.app.name") in (None, _FILE_FOR_SPARK_SUBMIT):
        settings["spark.app.name"] = "orders-lakehouse"
    for key, needed in _NEEDED.items():
        value = settings.setdefault(key, needed)
        # Of extensions there may be others beside Delta's.
        if needed not in (value.replace(" ", "").split(",") if key == _EXTENSIONS else [value]):
            raise SettingsError(
                f"The setting {key} is not {needed}, which the tables need.",
                remedy="Leave it out of --spark-conf, of spark-submit and of its defaults: it is set here.",
            )
    return settings


def is_local(master: str) -> bool:
    """Whether Spark runs in one process of this machine."""
    return master == "local" or master.startswith("local[")


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
        for key in _ON_DATABRICKS:
            session.conf.set(key, _NEEDED[key])
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


def let_java_forget() -> None:
    """Let Java have back what only this process still names: the plans of queries that are over.

    A py4j object refers to itself once a method of it was called, so it goes with Python's collector of cycles alone.
    That counts Python's objects: a few thousand of them, behind which Java holds hundreds of megabytes.
    """
    gc.collect()


def _is_no_lost_call(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


def _options_of_our_java(more: Sequence[str]) -> str:
    """Ours, then `more`. A Java takes one garbage collector, so ours gives way to another."""
    given = " ".join(options for options in more if options)
    collector = [] if _SOME_COLLECTOR.search(given) else [_COLLECTOR]
    return " ".join([_OF_OUR_JAVA[_JAVA_OPTIONS], *collector, *([given] if given else [])])


def _master(asked: Cluster, submitted: Mapping[str, str] | None) -> str:
    if submitted is None:
        return asked.master or "local[*]"
    master = submitted.get("spark.master", "local[*]")
    if asked.master not in (None, master):
        raise SettingsError(
            f"spark-submit has the master {master}, and --master or LAKEHOUSE_MASTER says {asked.master}.",
            remedy="Give it to spark-submit alone.",
        )
    return master


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
            f"No Spark master answers at {master}.", remedy="Start it, or give the address that its web page shows."
        )


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, unless it runs: what it prints goes to standard error. Standard output is for answers alone.

    Delta prints a line of its own for every VACUUM, and the lease has one from time to time.
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
            remedy='Pass it --jars "$(lakehouse jars --paths)".',
        )
    return dict(SparkConf().getAll())


STANDARD_ERROR = 2
_MASTER = re.compile(r"local(\[[^\]]*\])?|local-cluster\[[^\]]*\]|spark://[^,/]+:\d+(,[^,/]+:\d+)*|yarn|k8s://\S+")
_KEY = re.compile(r"spark(\.[\w-]+)+")
_OPTIONS_OF_THEIR_OWN = {
    "spark.master": "Pass --master URL.",
    "spark.submit.deployMode": "Use spark-submit --deploy-mode.",
}
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_EXTENSIONS = "spark.sql.extensions"
# Without these the tables would be wrong, or none: always set, wherever Spark runs.
_NEEDED = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Times without a zone are UTC in every contract, wherever the machine is.
    "spark.sql.session.timeZone": "UTC",
    # By default Parquet files get times as INT96, which readers without Spark take for other times before the year 1678
    # and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark's default. Without it, a value that does not fit would become NULL.
    "spark.sql.ansi.enabled": "true",
}
# Of those, the ones that serverless compute lets a session set, and that a workspace may have set otherwise:
# https://docs.databricks.com/aws/en/spark/conf#serverless
_ON_DATABRICKS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
_EVERYWHERE = {
    # Where in Python a column was made, for Spark's messages: finding it takes longer than making the column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The plans of a batch have many conditions on the same columns: what follows from all of them together, Spark
    # would spend minutes and all its memory on.
    "spark.sql.constraintPropagation.enabled": "false",
    # Spark takes a table for as large as its files, which are compressed: one of ten million rows would seem small
    # enough to be broadcast, and would not fit into the driver's memory.
    "spark.sql.sources.fileCompressionFactor": "20",
    # What goes to a Python worker at a time: a value may be as large as Kafka lets it be. Without a limit
    # where rows are known to be small together (lakehouse.spark.materialized.without_byte_limit).
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
    # Java compiles no method of more than 8,000 bytes of code, so one that Spark generates would run slower than steps
    # that are called one by one (-XX:-DontCompileHugeMethods).
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Whoever goes on for long writes a small file a batch: Delta joins them when a process has written fifty.
    # https://docs.delta.io/latest/optimizations-oss.html#auto-compaction
    "spark.databricks.delta.autoCompact.enabled": "true",
    # Into files, and parts of files, that several tasks can share, and of which few are written again.
    "spark.databricks.delta.autoCompact.maxFileSize": str(32 * 1024 * 1024),
    "spark.hadoop.parquet.block.size": str(32 * 1024 * 1024),
    # A backlog takes half the room that it takes with Spark's own choice, in the same time (docs/benchmarks.md).
    "spark.sql.parquet.compression.codec": "zstd",
    # A task folds with one thread: the others are other tasks'.
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
}
_ONE_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    **FEW_ROWS,
    # Every sort, aggregation and broadcast table takes a page at least. Spark's own choice would be 64 MB, hundreds of
    # times in a pass of a few rows: Java would spend a fourth of its time on collecting garbage.
    "spark.buffer.pageSize": "1m",
    # Many small tasks cost more than they spread.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
_MANY_MACHINES = {
    # VACUUM lists a table in so many tasks, however small it is: Spark's default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
# Of the Java that this process starts.
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Throughput counts here, not pauses.
_COLLECTOR = "-XX:+UseParallelGC"
_SOME_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_OF_OUR_JAVA = {
    # Spark's start-up notices would come between our own lines; its errors still come. Every question brings code of
    # its own: there has to be room for it, or Java throws away what it has compiled, and compiles it again.
    _JAVA_OPTIONS: f'-Dlog4j2.configurationFile="{_LOG_CONFIG}" -XX:ReservedCodeCacheSize=400m -XX:MetaspaceSize=400m',
    "spark.driver.memory": "2g",
}
# Java's first compiler alone. Most of a command's time Java is cold, and its second compiler takes the cores away from
# the queries: what it makes of them later does not pay for that in one run (docs/benchmarks.md).
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
# A Java that runs does not read them any more.
_TOO_LATE = (
    *(_JAVA_OPTIONS, "spark.driver.defaultJavaOptions", "spark.driver.memory", "spark.driver.memoryOverhead"),
    *("spark.driver.extraClassPath", "spark.driver.extraLibraryPath"),
    *("spark.jars", "spark.jars.packages", "spark.submit.pyFiles"),
)
_CLASSES = ("io.delta.sql.DeltaSparkSessionExtension", "org.apache.spark.sql.kafka010.KafkaSourceProvider")
# spark-submit names an application after its file, unless it is given a name.
_FILE_FOR_SPARK_SUBMIT = "__main__.py"


# For a process that keeps thousands of different plans (tests).
MANY_PLANS = {"spark.driver.memory": "4g"}
