"""Files beside the tables, as those of a stream's checkpoint, and folders: no job where Spark's Java is at hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lakehouse.spark.java import has_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_text(spark: SparkSession, path: str) -> str | None:
    """The text of the file; None when there is no such file."""
    if not has_java(spark):
        return _read_by_spark(spark, path)
    jvm: Any = spark._jvm
    system, file = _located(spark, path)
    if not system.exists(file):
        return None
    stream = system.open(file)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def file_names(spark: SparkSession, folder: str) -> list[str]:
    """The names of the files in the folder; none when there is no such folder."""
    if not has_java(spark):
        return _names_by_spark(spark, folder)
    system, path = _located(spark, folder)
    return [str(status.getPath().getName()) for status in system.listStatus(path)] if system.exists(path) else []


def remove_if_abandoned(spark: SparkSession, folder: str, *, seconds: float) -> bool:
    """Remove a table's folder that has nothing but temporary files of a first commit, the last `seconds` ago.

    Whether it was removed; never where Spark's Java is not at hand.
    """
    if not has_java(spark):
        return False
    system, path = _located(spark, folder)
    if not system.exists(path):
        return False
    # Delta writes a commit under a name with a dot before it, and so does Hadoop with checksums.
    files = system.listFiles(path, True)
    changed_ms = [system.getFileStatus(path).getModificationTime()]
    changed_ms += [status.getModificationTime() for status in system.listStatus(path)]
    while files.hasNext():
        file = files.next()
        if not str(file.getPath().getName()).startswith("."):
            return False
        changed_ms.append(file.getModificationTime())
    if max(changed_ms) > (time.time() - seconds) * 1000:
        return False
    return bool(system.delete(path, True))


def _located(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's client for the place, with the settings of the session; and the path as it takes it."""
    jvm: Any = spark._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    return location.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), location


def _read_by_spark(spark: SparkSession, path: str) -> str | None:
    from pyspark.errors import AnalysisException

    try:
        return str(spark.read.text(path, wholetext=True).collect()[0]["value"])
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def _names_by_spark(spark: SparkSession, folder: str) -> list[str]:
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.format("binaryFile").load(folder).select("path").collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return [row["path"].rsplit("/", 1)[1] for row in rows]
