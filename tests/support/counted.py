"""What Spark has done so far, counted by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shuffled(spark: SparkSession) -> int:
    """How many rows Spark has written for other stages to read, so far."""
    store = spark.sparkContext._jsc.sc().statusStore()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    nothing = gateway.new_array(gateway.jvm.double, 0)
    stages = store.stageList(None, False, False, nothing, None)
    return sum(stages.apply(number).shuffleWriteRecords() for number in range(stages.size()))
