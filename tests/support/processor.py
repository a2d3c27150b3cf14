"""What work costs, in seconds of a processor: the same on a busy machine, which seconds of a clock are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def at_most(seconds: float, spark: SparkSession) -> Iterator[None]:
    """The block keeps Spark's Java busy for less than so long, all its threads together."""
    before = _used(spark)
    yield
    used = _used(spark) - before
    if used >= seconds:
        pytest.fail(f"It took {used:.1f} s of a processor, and {seconds:.0f} are allowed.")


def _used(spark: SparkSession) -> float:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    # Linux: in user and in system mode, fields 14 and 15; the second, the name, ends with the last parenthesis.
    fields = Path(f"/proc/{gateway.proc.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
