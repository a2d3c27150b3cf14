"""dbx's deployment, made from the bundle: a target is an environment, a job is a workflow. docs/dbx.md.

conf/deployment.yml.j2 calls `deployment`, through .dbx/_custom_jinja_functions.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.bundle import ROOT, Bundle, BundleError, UnknownIdError, Values, Yaml, read_bundle

# What dbx cannot do, and why. Every other field of a job or task is passed on: dbx's models keep fields that they do
# not know, and version 2.1 of the Jobs API takes them. docs/dbx.md has the same list.
LEFT_OUT: Mapping[str, str] = {
    "job.environments": "serverless compute. A classic cluster takes its place: dbx adds the wheel to the libraries of "
    "each task, which serverless tasks may not have",
    "job.performance_target": "serverless compute only",
    "job.budget_policy_id": "serverless compute only",
    "job.usage_policy_id": "serverless compute only",
    "job.lifecycle": "says how the bundle deploys",
    "task.environment_key": "serverless compute only",
    "task.disable_auto_optimization": "serverless compute only; classic compute retries as max_retries says",
    "target.git": "dbx deploys from any branch",
    "target.workspace": "where the bundle keeps its files; dbx keeps its own where .dbx/project.json says",
    "target.presets": "the time in the version of a wheel is not needed: dbx uploads each wheel to a folder of its own",
    "resources other than jobs": "dbx makes no schema, volume, secret scope or alert",
}

# Levels of permission that are called otherwise for a job.
LEVELS = {"CAN_RUN": "CAN_MANAGE_RUN"}

ON_A_CLUSTER = {"python_wheel_task", "spark_python_task", "spark_jar_task", "notebook_task", "dbt_task"}
CLUSTER_OF_A_TASK = {"job_cluster_key", "new_cluster", "existing_cluster_id"}
ADDED_CLUSTER = "classic"
# What jobs that the bundle runs on serverless compute get in its place.
CLUSTER = "${var.classic_cluster}"


class NotExpressibleError(BundleError):
    """One job cannot be a workflow of dbx; the others can."""


@dataclass(frozen=True)
class Environment:
    """The workflows of one target; and the jobs that are none of them, by key, with the reason."""

    workflows: list[Yaml]
    unchanged_toast: Mapping[str, str]


def deployment(environ: Mapping[str, str], root: Path = ROOT) -> str:
    """The text of dbx's deployment file: of the environment that the running command is for, or else of all."""
    bundle = read_bundle(root)
    environments: Yaml = {}
    targets = chosen(bundle.targets)
    for target in targets:
        made = environment(bundle, target, environ)
        for key, reason in made.unchanged_toast.items():
            print(f"{target}: the job {key} is left out: it {reason}", file=sys.stderr)
        environments[target] = {"workflows": made.workflows}
    built = build(Values(bundle, targets[0], environ)) if targets else {}
    content = {"build": built, "environments": environments}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def chosen(targets: tuple[str, ...]) -> tuple[str, ...]:
    """The target that the running command of dbx was given with -e; all of them outside a command.

    dbx reads the whole file whatever it deploys. Without this, a deployment of dev would need the values of prod.
    """
    try:
        from click import get_current_context
    except ImportError:
        return targets
    context = get_current_context(silent=True)
    name = context.params.get("environment_name") if context else None
    return tuple(target for target in targets if name in {None, target})


def build(values: Values) -> Yaml:
    """How dbx builds the wheel: with the bundle's commands, and so refuses what the bundle refuses. It has no shell."""
    artifacts: Yaml = values.bundle.settings["artifacts"]
    built = {name: artifact["build"].split(" && ") for name, artifact in artifacts.items() if "build" in artifact}
    commands = [(name, command) for name, parts in built.items() for command in parts]
    return {"commands": [values.resolve(command, f"artifacts.{name}") for name, command in commands]}


def environment(bundle: Bundle, target: str, environ: Mapping[str, str]) -> Environment:
    """Every job of the bundle as a workflow, with the values of a target."""
    bundle = bundle.of_target(target)
    values = Values(bundle, target, environ)
    workflows: list[Yaml] = []
    unchanged_toast: dict[str, str] = {}
    for key, job in bundle.resources.get("jobs", {}).items():
        try:
            workflows.append(workflow(values, key, job))
        except (NotExpressibleError, UnknownIdError) as error:
            unchanged_toast[key] = str(error)
    return Environment(workflows, unchanged_toast)


def workflow(values: Values, key: str, job: Yaml) -> Yaml:
    """One job as dbx takes it. Tasks keep their order."""
    where = f"resources.jobs.{key}"
    made: Yaml = values.resolve({name: value for name, value in job.items() if f"job.{name}" not in LEFT_OUT}, where)
    _check(made, where)
    clusters = made.get("job_clusters", [])
    cluster_key = clusters[0]["job_cluster_key"] if clusters else ADDED_CLUSTER
    libraries = {
        each["environment_key"]: _libraries(values.resolve(each.get("spec", {}), where), where)
        for each in job.get("environments", [])
    }
    made["tasks"] = [_task(task, cluster_key, libraries, where) for task in made["tasks"]]
    if not clusters and any(task.get("job_cluster_key") == ADDED_CLUSTER for task in made["tasks"]):
        made["job_clusters"] = [{"job_cluster_key": ADDED_CLUSTER, "new_cluster": values.resolve(CLUSTER, where)}]
    _check_tasks(made, where)
    made = {**_without(made, "permissions"), **_rights(values, made, where)}
    return {**made, **_development(values, made)}


def _check(job: Yaml, where: str) -> None:
    """Raises for a job without a name or without tasks that are named."""
    if not isinstance(job.get("name"), str):
        raise BundleError(f"{where}: has no name.")
    tasks = job.get("tasks")
    if not isinstance(tasks, list) or not tasks:
        raise BundleError(f"{where}: has no tasks.")
    if not all(isinstance(task, dict) and task.get("task_key") for task in tasks):
        raise BundleError(f"{where}: a task has no task_key.")


def _check_tasks(job: Yaml, where: str) -> None:
    """Raises for what dbx would pass on, and the workspace refuse."""
    tasks = {task["task_key"] for task in job["tasks"]}
    clusters = {each["job_cluster_key"] for each in job.get("job_clusters", [])}
    for task in job["tasks"]:
        for other in task.get("depends_on", []):
            if other.get("task_key") not in tasks:
                raise BundleError(f"{where}: {task['task_key']} depends on {other.get('task_key')}, which is no task.")
        if task.get("job_cluster_key", ADDED_CLUSTER) not in clusters | {ADDED_CLUSTER}:
            raise BundleError(f"{where}: {task['task_key']}: no cluster {task['job_cluster_key']} in job_clusters.")
    for path in _relative(job, where):
        raise BundleError(f"{path} is a path from that file, and dbx uploads nothing but the wheel.")


def _task(task: Yaml, cluster_key: str, libraries: Mapping[str, list[Yaml]], where: str) -> Yaml:
    """One task: on a cluster if it needs one, with what its environment installs besides the wheel."""
    made = {name: value for name, value in task.items() if f"task.{name}" not in LEFT_OUT}
    if ON_A_CLUSTER & task.get("for_each_task", {}).get("task", {}).keys():
        raise NotExpressibleError(f"runs {task['task_key']} for each of many, and dbx adds the wheel to no such task.")
    if not ON_A_CLUSTER & task.keys():
        # Or dbx adds the wheel to its libraries, which only tasks on a cluster have.
        return {**made, "deployment_config": {"no_package": True}}
    if not CLUSTER_OF_A_TASK & task.keys():
        made["job_cluster_key"] = cluster_key
    of_environment = task.get("environment_key")
    if of_environment is not None and of_environment not in libraries:
        raise BundleError(f"{where}: {task['task_key']}: no environment {of_environment}.")
    own = [library for library in task.get("libraries", []) if not _is_our_wheel(library.get("whl"))]
    added = libraries.get(of_environment, []) if of_environment else []
    made = _without(made, "libraries")
    return {**made, "libraries": [*own, *added]} if own or added else made


def _without(mapping: Yaml, key: str) -> Yaml:
    """The mapping, less one key."""
    return {name: value for name, value in mapping.items() if name != key}


def _libraries(spec: Yaml, where: str) -> list[Yaml]:
    """What a serverless environment installs besides our wheel, as libraries of a task on a cluster."""
    libraries: list[Yaml] = []
    for dependency in spec.get("dependencies", []):
        if dependency.startswith("-"):
            raise BundleError(f"{where}: {dependency} is an option of pip, which libraries of a cluster do not have.")
        if not _is_our_wheel(dependency):
            is_wheel = dependency.endswith(".whl")
            libraries.append({"whl": dependency} if is_wheel else {"pypi": {"package": dependency}})
    return libraries


def _is_our_wheel(dependency: str | None) -> bool:
    """Whether it is the wheel that the bundle builds: dbx builds it too, and adds it by itself."""
    return dependency is not None and dependency.startswith(".") and Path(dependency).parent.name == "dist"


def _relative(node: Any, where: str) -> Iterator[str]:
    """Where a text below `node` is a path that begins in the folder of its file, and what it is."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _relative(value, f"{where}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _relative(value, f"{where}[{index}]")
    elif isinstance(node, str) and node.startswith(("./", "../")):
        yield f"{where}: {node}"


def _rights(values: Values, job: Yaml, where: str) -> Yaml:
    """Who the job runs as, and who may do what with it. dbx wants exactly one owner: who it runs as, or who deploys."""
    settings, target = values.bundle.settings, values.bundle.settings["targets"][values.target]
    of_all = target.get("run_as", settings.get("run_as", {}))
    run_as: Yaml = job.get("run_as") or values.resolve(of_all, f"{where}: run_as")
    made: Yaml = {"run_as": run_as} if run_as else {}
    permissions = [*settings.get("permissions", []), *target.get("permissions", []), *job.get("permissions", [])]
    if not permissions:
        return made
    granted: dict[tuple[str, str], str] = {}
    for permission in values.resolve(permissions, f"{where}: permissions"):
        ((kind, who),) = _without(permission, "level").items()
        granted[kind, who] = LEVELS.get(permission["level"], permission["level"])
    owner = run_as or {"user_name": values.user_name()}
    granted.update(dict.fromkeys(owner.items(), "IS_OWNER"))
    return {
        **made,
        "access_control_list": [{kind: who, "permission_level": level} for (kind, who), level in granted.items()],
    }


def _development(values: Values, job: Yaml) -> Yaml:
    """What development changes, as the bundle does: the name says whose job it is, and nothing starts by itself."""
    if values.bundle.settings["targets"][values.target].get("mode") != "development":
        return {}
    who = values.short_name()
    starts = {"schedule", "trigger", "continuous"} & job.keys()
    paused = {name: {**job[name], "pause_status": "PAUSED"} for name in sorted(starts)}
    return {"name": f"[dev {who}] {job['name']}", "tags": {**job.get("tags", {}), "dev": who}, **paused}
