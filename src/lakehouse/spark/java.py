"""Whether Spark's Java is at hand in this process: where it is, much is known without a job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect: its Java, and its disk, may be another machine's."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def has_java(spark: SparkSession) -> bool:
    """Whether Java's classes can be called: not over Spark Connect, and on Databricks few of them may be."""
    return not is_connect(spark) and "DATABRICKS_RUNTIME_VERSION" not in os.environ
