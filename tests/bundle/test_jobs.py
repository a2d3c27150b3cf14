"""The jobs of the bundle, offline. `databricks bundle validate` notices none of what these tests ask.

A bad cron expression, a dependency on a task that is not there, an entry point or an option that the wheel does not
have, a right that is missing: all of it would be told by the first run.
"""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import typer.main
from typer.core import TyperGroup

from cli.main import app
from lakehouse.config import settings
from lakehouse.delta.address import SCHEMAS
from tests.support.deployment import JOBS, RESOLVED, WheelTask, task_of, wheel_tasks
from tools.bundle import references
from tools.targets import BUNDLE, PASSED, TARGETS

ORDER = ["bronze", "silver", "gold", "publish", "verify"]
MEDALLION = ("orders_lakehouse", "orders_lakehouse_classic")
SERVERLESS = set(JOBS) - {"orders_lakehouse_classic", "continuous"}
TASKS = [(job, task["task_key"]) for job, settings in JOBS.items() for task in settings["tasks"]]
OF_WHEEL = [(one.job, one.key) for one in wheel_tasks("prod")]


def test_the_jobs_are_these() -> None:
    assert set(JOBS) == {
        *MEDALLION,
        *("continuous", "maintenance", "quality_report", "replay", "backfill"),
    }


@pytest.mark.parametrize("job", JOBS)
def test_tasks_depend_on_tasks_that_are_there_without_a_cycle(job: str) -> None:
    tasks = {task["task_key"]: task for task in JOBS[job]["tasks"]}
    assert len(tasks) == len(JOBS[job]["tasks"]), "two tasks of one name"
    upstream = {key: {other["task_key"] for other in task.get("depends_on", [])} for key, task in tasks.items()}
    assert set().union(*upstream.values()) <= tasks.keys(), "depends_on names a task that is not there"
    assert list(TopologicalSorter(upstream).static_order()) == list(tasks)  # raises CycleError


@pytest.mark.parametrize("job", MEDALLION)
def test_the_layers_run_in_order_and_one_that_fails_does_not_keep_the_next_from_running(job: str) -> None:
    tasks = JOBS[job]["tasks"]
    assert [task["task_key"] for task in tasks] == ORDER
    assert [[other["task_key"] for other in task.get("depends_on", [])] for task in tasks] == [
        [],
        *([key] for key in ORDER[:-1]),
    ]
    assert [task.get("run_if") for task in tasks] == [None, *["ALL_DONE"] * 4]


def test_the_classic_job_differs_in_its_compute_alone() -> None:
    def without_compute(job: dict[str, Any]) -> dict[str, Any]:
        of_compute = ("environment_key", "job_cluster_key", "libraries", "disable_auto_optimization")
        tasks = [{key: value for key, value in task.items() if key not in of_compute} for task in job["tasks"]]
        own = ("name", "description", "environments", "performance_target", "job_clusters", "tasks")
        rest = {key: value for key, value in job.items() if key not in own}
        return {**rest, "schedule": {**job["schedule"], "pause_status": ""}, "tasks": tasks}

    serverless, classic = (JOBS[job] for job in MEDALLION)
    assert without_compute(serverless) == without_compute(classic)
    for target in TARGETS:
        jobs = RESOLVED[target]["resources"]["jobs"]
        assert jobs["orders_lakehouse_classic"]["schedule"]["pause_status"] == "PAUSED"
        assert jobs["continuous"]["continuous"]["pause_status"] == "PAUSED"


@pytest.mark.parametrize(("job", "key"), OF_WHEEL)
def test_every_task_is_bounded_and_its_failure_is_told(job: str, key: str) -> None:
    task = task_of(job, key, "prod").task
    assert 0 <= task["max_retries"] <= 3
    assert task["timeout_seconds"] > 0 or job == "continuous"
    assert task["email_notifications"]["on_failure"] == [PASSED["prod"]["notification_email"]]
    assert task["notification_settings"]["alert_on_last_attempt"] is True
    assert task.get("disable_auto_optimization", False) == (job in SERVERLESS)


def test_runs_of_a_job_wait_for_one_another() -> None:
    for name, job in JOBS.items():
        assert job["max_concurrent_runs"] == 1
        assert job.get("queue") == ({"enabled": True} if name != "continuous" else None)


def test_a_slow_run_is_told() -> None:
    for name in MEDALLION:
        (rule,) = JOBS[name]["health"]["rules"]
        assert rule == {"metric": "RUN_DURATION_SECONDS", "op": "GREATER_THAN", "value": 1800}
        told = JOBS[name]["email_notifications"]["on_duration_warning_threshold_exceeded"]
        assert told == ["${var.notification_email}"]


# Schedules.


def schedules(target: str) -> list[dict[str, str]]:
    found = RESOLVED[target]["resources"]
    of_jobs = [job["schedule"] for job in found["jobs"].values() if "schedule" in job]
    of_alerts = [
        {"quartz_cron_expression": alert["schedule"]["quartz_cron_schedule"], **alert["schedule"]}
        for alert in found["alerts"].values()
    ]
    return [*of_jobs, *of_alerts]


@pytest.mark.parametrize("target", TARGETS)
def test_every_schedule_is_one_that_quartz_takes(target: str) -> None:
    found = schedules(target)
    assert len(found) == 6
    for schedule in found:
        ZoneInfo(schedule["timezone_id"])  # raises when there is no such zone
        check_quartz(schedule["quartz_cron_expression"])
    paused = {schedule["pause_status"] for schedule in found}
    assert paused == ({"PAUSED", "UNPAUSED"} if target == "prod" else {"PAUSED"})


@pytest.mark.parametrize("wrong", ["0/15 * * * *", "0 0/15 * * * *", "0 0 25 * * ?", "0 0 0 ? * ?", "0 a * * * ?"])
def test_other_expressions_are_not(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_quartz(wrong)


def check_quartz(expression: str) -> None:
    """Six or seven fields, from seconds to years; one of the two days is `?`; every number is in its range."""
    fields = expression.split()
    assert len(fields) in {6, 7}, f"{expression!r} has {len(fields)} fields"
    assert [fields[3], fields[5]].count("?") == 1, f"{expression!r}: exactly one of the two days must be ?"
    ranges = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (1, 7), (1970, 2099)]
    for position, (field, (low, high)) in enumerate(zip(fields, ranges, strict=False)):
        assert re.fullmatch(r"[0-9*/,?-]+" if position < 3 else r"[0-9A-Z*/,?#-]+", field), f"{expression!r}: {field!r}"
        assert all(low <= int(number) <= high for number in re.findall(r"(?<!/)\b\d+", field)), f"{field!r}: range"


# What the tasks are told.


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("job", "key"), OF_WHEEL)
def test_the_command_takes_the_parameters(job: str, key: str, target: str) -> None:
    task = task_of(job, key, target)
    given = parsed(task)
    schemas = given.pop("schemas")
    chosen = settings(
        warehouse=given["warehouse"],
        checkpoints=given["checkpoints"],
        schemas=schemas,
        target=given["target"],
        bootstrap_servers=given["bootstrap_servers"],
        kafka_config=given["kafka_config"],
        secret_scope=given["secret_scope"],
    )
    names = {key: one["name"] for key, one in RESOLVED[target]["resources"]["schemas"].items()}
    assert dict(chosen.schemas) == names
    assert set(names) == set(SCHEMAS)
    volume = RESOLVED[target]["resources"]["volumes"]["checkpoints"]
    where = f"/Volumes/{volume['catalog_name']}/{volume['schema_name']}/{volume['name']}"
    assert (chosen.warehouse, chosen.checkpoints) == (f"orders_{target}", where)
    assert (chosen.target, given["wait"]) == (target, 60)
    asks_kafka = {"bronze", "publish", "republish", "verify", "run", "move"}
    assert chosen.bootstrap_servers == (PASSED[target]["bootstrap_servers"] if key in asks_kafka else None)


def parsed(task: WheelTask) -> dict[str, Any]:
    """What the command makes of the task's parameters, without the environment of whoever runs the tests."""
    context = typer.main.get_command(app).make_context("lakehouse", task.parameters(), resilient_parsing=False)
    while isinstance(context.command, TyperGroup):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None, f"{task.job}.{task.key}: there is no command {name}"
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)


def test_a_task_does_what_it_is_named_for() -> None:
    commands = {f"{job}.{key}": task_of(job, key, "prod").parameters() for job, key in OF_WHEEL}
    for job in MEDALLION:
        for key in ORDER:
            assert commands[f"{job}.{key}"][0] == key
    assert parsed(task_of("continuous", "run", "prod"))["trigger"] == "continuous"
    assert parsed(task_of("maintenance", "optimize", "prod"))["retention_hours"] == 168
    assert parsed(task_of("backfill", "gold", "prod"))["full_refresh"] is True
    for key in ("publish", "republish"):
        assert parsed(task_of("backfill", key, "prod"))["republish"] is (key == "republish")
    replay = parsed(task_of("replay", "move", "prod"))
    assert (replay["source"], replay["to"], replay["yes"]) == ("postgres", "earliest", True)
    docs = parsed(task_of("quality_report", "report", "prod"))["data_docs"]
    assert str(docs) == "/Volumes/orders_prod/quality/data_docs"


def test_a_backfill_sends_what_changed_or_every_order() -> None:
    tasks = {task["task_key"]: task for task in JOBS["backfill"]["tasks"]}
    (parameter,) = JOBS["backfill"]["parameters"]
    assert parameter == {"name": "republish", "default": "false"}
    condition = {"op": "EQUAL_TO", "left": "{{job.parameters.republish}}", "right": "true"}
    assert tasks["is_republished"]["condition_task"] == condition
    for key, outcome in (("publish", "false"), ("republish", "true")):
        assert tasks[key]["depends_on"] == [{"task_key": "is_republished", "outcome": outcome}]
    # The one that is left out has not failed.
    assert tasks["verify"]["run_if"] == "NONE_FAILED"


def test_job_parameters_are_used_and_exist() -> None:
    for job in JOBS.values():
        declared = {one["name"] for one in job.get("parameters", [])}
        assert set(re.findall(r"\{\{job\.parameters\.(\w+)\}\}", str(job["tasks"]))) == declared


def test_a_replay_goes_on_with_the_scheduled_job() -> None:
    (run,) = [task for task in JOBS["replay"]["tasks"] if "run_job_task" in task]
    assert run["run_job_task"] == {"job_id": "${resources.jobs.orders_lakehouse.id}"}


def test_tasks_name_schemas_and_volumes_by_the_resource() -> None:
    for job, key in TASKS:
        (task,) = [task for task in JOBS[job]["tasks"] if task["task_key"] == key]
        if "python_wheel_task" in task:
            named = set(references(task))
            assert "--schemas=${var.schemas}" in task["python_wheel_task"]["parameters"]
            assert "resources.volumes.checkpoints.name" in named
    schemas = set(references(BUNDLE.settings["variables"]["schemas"]["default"]))
    assert schemas == {f"resources.schemas.{schema}.name" for schema in SCHEMAS}


# Compute.


def test_serverless_is_the_default_and_the_other_cluster_is_a_variable() -> None:
    for name, job in JOBS.items():
        for task in job["tasks"]:
            if "python_wheel_task" not in task:
                continue
            if name in SERVERLESS:
                assert task["environment_key"] in {one["environment_key"] for one in job["environments"]}
            else:
                assert task["job_cluster_key"] in {one["job_cluster_key"] for one in job["job_clusters"]}
                assert task["libraries"] == [{"whl": "../dist/*.whl"}]
        for cluster in job.get("job_clusters", []):
            assert cluster["new_cluster"] == "${var.classic_cluster}"
    cluster = BUNDLE.settings["variables"]["classic_cluster"]["default"]
    assert cluster["spark_conf"]["spark.sql.session.timeZone"] == "UTC"
    assert cluster["data_security_mode"] == "DATA_SECURITY_MODE_DEDICATED"


def test_serverless_says_how_fast_it_starts_and_every_job_whose_it_is() -> None:
    nobody_waits = {"maintenance", "quality_report"}
    for target in TARGETS:
        for name, job in RESOLVED[target]["resources"]["jobs"].items():
            fast = "STANDARD" if name in nobody_waits else "PERFORMANCE_OPTIMIZED"
            assert job.get("performance_target") == (fast if name in SERVERLESS else None)
            assert job["tags"] == {"project": "orders-lakehouse", "target": target}


def test_only_available_now_runs_on_serverless() -> None:
    for one in wheel_tasks("prod"):
        if one.job in SERVERLESS:
            assert parsed(one).get("trigger", "available-now") == "available-now"
