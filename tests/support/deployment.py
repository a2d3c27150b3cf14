"""The bundle as the tests of tests/bundle see it: what whoever deploys passes, and the jobs and their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tools.bundle import Yaml
from tools.targets import BUNDLE, PASSED, TARGETS, resolved

JOBS = BUNDLE.resources["jobs"]
RESOLVED = {target: resolved(target, PASSED[target]) for target in TARGETS}


class WheelTask(NamedTuple):
    """A task that runs the wheel. `defaults`: the parameters of its job, as they are when nobody gives others."""

    job: str
    key: str
    task: Yaml
    defaults: dict[str, str]

    def parameters(self) -> list[str]:
        """Its command line."""
        found = []
        for text in self.task["python_wheel_task"]["parameters"]:
            filled = text
            for name, default in self.defaults.items():
                filled = filled.replace(f"{{{{job.parameters.{name}}}}}", default)
            found.append(filled)
        return found


def wheel_tasks(target: str) -> Iterator[WheelTask]:
    """Every task of every job that runs the wheel, as it is in the target."""
    for job, settings in RESOLVED[target]["resources"]["jobs"].items():
        defaults = {one["name"]: one["default"] for one in settings.get("parameters", [])}
        for task in settings["tasks"]:
            if "python_wheel_task" in task:
                yield WheelTask(job, task["task_key"], task, defaults)


def task_of(job: str, key: str, target: str) -> WheelTask:
    """One of them."""
    (found,) = [one for one in wheel_tasks(target) if (one.job, one.key) == (job, key)]
    return found
