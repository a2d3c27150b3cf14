"""What Spark has done so far, counted by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def last_stage(spark: SparkSession) -> int:
    """The number of the last stage that Spark has begun."""
    return max((stage.stageId() for stage in _stages(spark)), default=-1)


def shuffled(spark: SparkSession, *, after: int) -> int:
    """How many rows the stages after this one have written for other stages to read.

    By number, not by a sum before and after: Spark forgets old stages (spark.ui.retainedStages).
    """
    return sum(stage.shuffleWriteRecords() for stage in _stages(spark) if stage.stageId() > after)


def _stages(spark: SparkSession) -> list[Any]:
    store = spark.sparkContext._jsc.sc().statusStore()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    stages = store.stageList(None, False, False, gateway.new_array(gateway.jvm.double, 0), None)
    return [stages.apply(number) for number in range(stages.size())]
