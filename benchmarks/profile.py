"""Where a run's seconds go: its layers, and the stages of Spark's jobs that took longest, from Spark's event log.

Such a run is not one of those whose seconds are compared: writing the log takes time of its own.
https://spark.apache.org/docs/latest/monitoring.html#viewing-after-the-fact
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

LAYERS, STAGES = "profile", "longest stages"
MAX_STAGES = 20
# What Spark says of every batch of a stream, in lines of their own behind the stream's name.
_OF_BATCH = re.compile(r"\nid = \S+\nrunId = \S+\nbatch = \w+")
# Of a file, or a table's folder, the last two names are enough.
_FOLDERS = re.compile(r"(?:file:)?/\S*/(?=[^/\s]+/[^/\s]+)")
# Scala's name of a function without a name has that of the one that it stands in.
_NAMELESS = re.compile(r"\$anonfun\$(\w+)\$\d+")
# What an operator reads or writes stands behind its name.
_OPERATOR = re.compile(r"^[A-Z]\w+( parquet| json| text| ExistingRDD)?")


@dataclass(frozen=True)
class Layer:
    """A part of the run. Times are seconds of the clock."""

    name: str
    begun: float
    ended: float


@dataclass(frozen=True)
class Stage:
    """A stage of one of Spark's jobs that was run: seconds of the clock, and of its `tasks` together."""

    job: int
    number: int
    what: str
    operators: tuple[str, ...]
    tasks: int
    begun: float
    ended: float
    task_seconds: float
    rows_shuffled: int


def settings(folder: Path) -> list[str]:
    """The arguments of `lakehouse run` that have it write Spark's event log into the folder, which has to be there."""
    told = {"enabled": "true", "dir": folder.as_uri(), "compress": "false", "rolling.enabled": "false"}
    return [part for key, value in told.items() for part in ("--spark-conf", f"spark.eventLog.{key}={value}")]


def stages_in(folder: Path) -> list[Stage]:
    """The stages that the one event log in the folder tells of."""
    (log,) = [file for file in folder.iterdir() if not file.name.startswith(".")]
    with log.open() as lines:
        return stages(json.loads(line) for line in lines)


def stages(events: Iterable[Mapping[str, Any]]) -> list[Stage]:
    """The stages that were completed, in that order. A stage that several jobs name is the first one's."""
    job_of: dict[int, tuple[int, str]] = {}
    found = []
    for event in events:
        if event["Event"] == "SparkListenerJobStart":
            told = event["Properties"].get("spark.job.description", "")
            for number in event["Stage IDs"]:
                job_of.setdefault(number, (event["Job ID"], told))
        elif event["Event"] == "SparkListenerStageCompleted":
            info = event["Stage Info"]
            job, told = job_of[info["Stage ID"]]
            found.append(_stage(info, job, what(told or info["Stage Name"])))
    return found


def _stage(info: Mapping[str, Any], job: int, told: str) -> Stage:
    sums = {one["Name"]: one["Value"] for one in info["Accumulables"] if one["Name"].startswith("internal.metrics.")}
    scopes = [json.loads(rdd["Scope"])["name"] for rdd in info["RDD Info"] if "Scope" in rdd]
    operators = [found[0] for scope in scopes if (found := _OPERATOR.match(scope))]
    return Stage(
        job,
        info["Stage ID"],
        told,
        tuple(dict.fromkeys(operators)),
        info["Number of Tasks"],
        info["Submission Time"] / 1000,
        info["Completion Time"] / 1000,
        int(sums.get("internal.metrics.executorRunTime", 0)) / 1000,
        int(sums.get("internal.metrics.shuffle.write.recordsWritten", 0)),
    )


def what(description: str) -> str:
    """Spark's description of a job in one line, without what differs from run to run."""
    named = _NAMELESS.sub(r"\1", _OF_BATCH.sub("", description))
    return " ".join(_FOLDERS.sub("", named.replace("<br/>", " ")).split())


def layers_table(layers: Sequence[Layer], stages: Sequence[Stage]) -> Table:
    """Of every layer its jobs and stages, and for how many of its seconds one was at work.

    In the others Python and Spark's driver describe, plan and commit.
    """
    table = Table(
        "layer", "seconds", "of them with a stage at work", "Spark's jobs", "stages", "tasks", "rows shuffled"
    )
    for layer in layers:
        its = [stage for stage in stages if _is_in(stage, layer)]
        table.add_row(
            layer.name,
            f"{layer.ended - layer.begun:.1f}",
            f"{acquire_lock(its):.1f}",
            str(len({stage.job for stage in its})),
            str(len(its)),
            f"{sum(stage.tasks for stage in its):,}",
            f"{sum(stage.rows_shuffled for stage in its):,}",
        )
    return table


def stages_table(layers: Sequence[Layer], stages: Sequence[Stage]) -> Table:
    """The stages that took longest, the longest first.

    A stage's seconds begin when its tasks may run: much longer than these, it has waited for a core.
    """
    table = Table("layer", "job", "stage", "what", "operators", "tasks", "seconds", "of all tasks", "rows shuffled")
    for stage in sorted(stages, key=lambda one: one.begun - one.ended)[:MAX_STAGES]:
        table.add_row(
            next((layer.name for layer in layers if _is_in(stage, layer)), ""),
            str(stage.job),
            str(stage.number),
            stage.what,
            ", ".join(stage.operators),
            str(stage.tasks),
            f"{stage.ended - stage.begun:.1f}",
            f"{stage.task_seconds:.1f}",
            f"{stage.rows_shuffled:,}",
        )
    return table


def acquire_lock(stages: Iterable[Stage]) -> float:
    """The seconds in which one of the stages, or several at once, were at work."""
    seconds, until = 0.0, 0.0
    for stage in sorted(stages, key=lambda one: one.begun):
        seconds += max(0.0, stage.ended - max(until, stage.begun))
        until = max(until, stage.ended)
    return seconds


def _is_in(stage: Stage, layer: Layer) -> bool:
    return layer.begun <= stage.begun < layer.ended
