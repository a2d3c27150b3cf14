"""What Spark has done so far, counted by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.clientserver import JavaClient
from py4j.protocol import MEMORY_COMMAND_NAME

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


def jobs_so_far(spark: SparkSession) -> int:
    """How many jobs Spark has run."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def _stages(spark: SparkSession) -> list[Any]:
    store = spark.sparkContext._jsc.sc().statusStore()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    stages = store.stageList(None, False, False, gateway.new_array(gateway.jvm.double, 0), None)
    return [stages.apply(number) for number in range(stages.size())]


@contextmanager
def calls_to_java() -> Iterator[list[str]]:
    """The commands that go to Java inside the block: what it takes to describe plans, and to ask them.

    Without those that let go of objects: the garbage collector sends them when it likes.
    """
    commands: list[str] = []
    send = JavaClient.send_command

    def noted(self: JavaClient, command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):
            commands.append(command)
        return send(self, command, *args, **kwargs)

    JavaClient.send_command = noted
    try:
        yield commands
    finally:
        JavaClient.send_command = send
