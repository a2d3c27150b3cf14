"""Every setting of a Spark session: what the tables need, what pays here, and what a command may change."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse.errors import SettingsError
from lakehouse.spark.sizing import FEW_ROWS


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
            hint="Leave it out (and LAKEHOUSE_MASTER): the job's compute says where Spark runs and how.",
        )
    if master is not None and not _MASTER.fullmatch(master):
        raise SettingsError(
            f"{master!r} is no master of Spark.",
            hint="Give spark://HOST:PORT[,HOST:PORT…], yarn, k8s://URL, local[N] or local[*].",
        )
    conf = {}
    for number, given in enumerate(spark_conf, start=1):
        key, is_there, value = given.partition("=")
        if not is_there or not _KEY.fullmatch(key):
            # Not what it is instead: it can be a secret.
            raise SettingsError(
                f"--spark-conf number {number} is not KEY=VALUE with a key of Spark, which begins with spark.",
                hint="Give, for example, --spark-conf spark.executor.memory=2g; settings of Hadoop begin with "
                "spark.hadoop.",
            )
        if key in _OPTIONS_OF_THEIR_OWN:
            raise SettingsError(f"{key} is not for --spark-conf.", hint=_OPTIONS_OF_THEIR_OWN[key])
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
                hint="Give it to spark-submit, by --conf or an option of its own.",
            )
    if settings.get("spark.app.name") in (None, _FILE_FOR_SPARK_SUBMIT):
        settings["spark.app.name"] = "orders-lakehouse"
    for key, needed in NEEDED.items():
        value = settings.setdefault(key, needed)
        # Of extensions there may be others beside Delta's.
        if needed not in (value.replace(" ", "").split(",") if key == _EXTENSIONS else [value]):
            raise SettingsError(
                f"The setting {key} is not {needed}, which the tables need.",
                hint="Leave it out of --spark-conf, of spark-submit and of its defaults: it is set here.",
            )
    return settings


def is_local(master: str) -> bool:
    """Whether Spark runs in one process of this machine."""
    return master == "local" or master.startswith("local[")


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
            hint="Give it to spark-submit alone.",
        )
    return master


_MASTER = re.compile(r"local(\[[^\]]*\])?|local-cluster\[[^\]]*\]|spark://[^,/]+:\d+(,[^,/]+:\d+)*|yarn|k8s://\S+")
_KEY = re.compile(r"spark(\.[\w-]+)+")
_OPTIONS_OF_THEIR_OWN = {
    "spark.master": "Pass --master URL.",
    "spark.submit.deployMode": "Use spark-submit --deploy-mode.",
}
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_EXTENSIONS = "spark.sql.extensions"
# Without these the tables would be wrong, or none: always set, wherever Spark runs.
NEEDED = {
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
ON_DATABRICKS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
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
    # A backlog takes half the room that it takes with Spark's own choice, in the same time (decision 40).
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
# A Java that runs does not read them any more.
_TOO_LATE = (
    *(_JAVA_OPTIONS, "spark.driver.defaultJavaOptions", "spark.driver.memory", "spark.driver.memoryOverhead"),
    *("spark.driver.extraClassPath", "spark.driver.extraLibraryPath"),
    *("spark.jars", "spark.jars.packages", "spark.submit.pyFiles"),
)
# spark-submit names an application after its file, unless it is given a name.
_FILE_FOR_SPARK_SUBMIT = "__main__.py"
