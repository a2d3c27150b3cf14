"""dbx's deployment files: what is made of the bundle. docs/dbx.md."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.bundle import Bundle, BundleError, Values, Yaml, left_to_deployer, read_bundle, texts
from tools.dbx.workflows import ADDED_CLUSTER, LEFT_OUT, Environment, NotExpressibleError, environment, workflow

ROOT = Path(__file__).parents[2]
BUNDLE = read_bundle(ROOT)
JOBS = BUNDLE.resources["jobs"]

# What whoever deploys says; and the ids of what dbx does not make, which they look up.
PASSED = {
    **{f"BUNDLE_VAR_{name}": "passed" for name in left_to_deployer(BUNDLE, "prod")},
    **{f"DBX_ID_{kind}_{key}": "1" for kind, keys in BUNDLE.resources.items() for key in keys},
    "BUNDLE_VAR_bootstrap_servers": "broker-1:9092,broker-2:9092",
    "BUNDLE_VAR_notification_email": "on-call@example.com",
    "BUNDLE_VAR_service_principal_name": "00000000-0000-0000-0000-000000000000",
    "DBX_USER_NAME": "Jane.Doe@example.com",
}

EVERY_TARGET = pytest.mark.parametrize("target", BUNDLE.targets)


def made(target: str, bundle: Bundle = BUNDLE, environ: Mapping[str, str] = PASSED) -> Environment:
    return environment(bundle, target, environ)


def by_job(target: str) -> Iterator[tuple[str, Yaml]]:
    """Each job's key, with the workflow that is made of it."""
    return zip(JOBS, made(target).workflows, strict=True)


def job(**fields: Any) -> Yaml:
    """A job of one task that says as little as it may, and `fields`."""
    wheel = {"package_name": "orders_lakehouse", "entry_point": "lakehouse"}
    return {"name": "one", "tasks": [{"task_key": "only", "python_wheel_task": wheel}], **fields}


def workflow_of(definition: Yaml, target: str = "staging", **resources: Mapping[str, Yaml]) -> Yaml:
    bundle = Bundle(BUNDLE.settings, resources)
    return workflow(Values(bundle, target, PASSED), "one", definition)


# The bundle as it is.


@EVERY_TARGET
def test_every_job_is_a_workflow(target: str) -> None:
    assert not made(target).unchanged_toast
    prefix = "[dev jane_doe] " if target == "dev" else ""
    assert [each["name"] for _, each in by_job(target)] == [f"{prefix}{each['name']}" for each in JOBS.values()]


@EVERY_TARGET
def test_every_task_is_there_in_its_order_and_waits_for_the_same(target: str) -> None:
    def order(tasks: list[Yaml]) -> list[tuple[str, Any, Any]]:
        return [(task["task_key"], task.get("depends_on"), task.get("run_if")) for task in tasks]

    for key, each in by_job(target):
        assert order(each["tasks"]) == order(JOBS[key]["tasks"])


@EVERY_TARGET
def test_no_reference_is_left(target: str) -> None:
    assert not [text for text in texts(made(target).workflows) if "${" in text]


@EVERY_TARGET
def test_every_parameter_has_the_value_of_its_target(target: str) -> None:
    tasks = {task["task_key"]: task for task in dict(by_job(target))["orders_lakehouse"]["tasks"]}
    assert tasks["bronze"]["python_wheel_task"] == {
        "package_name": "orders_lakehouse",
        "entry_point": "lakehouse",
        "parameters": [
            "bronze",
            f"--warehouse=orders_{target}",
            "--schemas=bronze=bronze,silver=silver,clean=clean,gold=gold,quality=quality,ops=ops",
            f"--checkpoints=/Volumes/orders_{target}/ops/checkpoints",
            f"--target={target}",
            "--log-format=json",
            "--wait=60",
            "--bootstrap-servers=broker-1:9092,broker-2:9092",
            "--kafka-config=",
            f"--secret-scope=orders-lakehouse-{'dev-jane_doe' if target == 'dev' else target}",
            "--max-offsets-per-trigger=1000000",
        ],
    }
    assert tasks["publish"]["email_notifications"] == {"on_failure": ["on-call@example.com"]}


@EVERY_TARGET
def test_every_task_of_the_wheel_has_a_cluster_of_its_job(target: str) -> None:
    for _, each in by_job(target):
        clusters = {cluster["job_cluster_key"]: cluster["new_cluster"] for cluster in each.get("job_clusters", [])}
        for task in each["tasks"]:
            if "python_wheel_task" in task:
                assert task["job_cluster_key"] in clusters
        if ADDED_CLUSTER in clusters:
            assert clusters[ADDED_CLUSTER] == BUNDLE.settings["variables"]["classic_cluster"]["default"]


@EVERY_TARGET
def test_every_field_is_passed_on_or_said_to_be_left_out(target: str) -> None:
    for key, each in by_job(target):
        unchanged_toast = {name[4:] for name in LEFT_OUT if name.startswith("job.")}
        assert JOBS[key].keys() - each.keys() <= unchanged_toast | {"permissions"}
        for task, theirs in zip(JOBS[key]["tasks"], each["tasks"], strict=True):
            unchanged_toast = {name[5:] for name in LEFT_OUT if name.startswith("task.")}
            assert task.keys() - theirs.keys() <= unchanged_toast | {"libraries"}


def test_only_development_is_paused_and_named_for_who_deploys() -> None:
    paused = {target: dict(by_job(target))["orders_lakehouse"]["schedule"]["pause_status"] for target in BUNDLE.targets}
    assert paused == {"dev": "PAUSED", "staging": "PAUSED", "prod": "UNPAUSED"}
    paused_in_dev = {**PASSED, "BUNDLE_VAR_schedule_pause_status": "UNPAUSED"}
    scheduled = [each["schedule"] for each in made("dev", environ=paused_in_dev).workflows if "schedule" in each]
    assert {schedule["pause_status"] for schedule in scheduled} == {"PAUSED"}


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_shared_target_belongs_to_the_service_principal(target: str) -> None:
    principal = PASSED["BUNDLE_VAR_service_principal_name"]
    for _, each in by_job(target):
        assert each["run_as"] == {"service_principal_name": principal}
        # One owner, or dbx refuses it; then what jobs say themselves.
        assert each["access_control_list"][:2] == [
            {"service_principal_name": principal, "permission_level": "IS_OWNER"},
            {"group_name": "orders-lakehouse-operators", "permission_level": "CAN_MANAGE_RUN"},
        ]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("dev", "BUNDLE_VAR_bootstrap_servers"),
        ("dev", "DBX_USER_NAME"),
        ("staging", "BUNDLE_VAR_service_principal_name"),
        ("prod", "BUNDLE_VAR_notification_email"),
    ],
)
def test_a_value_that_nobody_said_is_named(target: str, name: str) -> None:
    with pytest.raises(BundleError, match=f"{target}.*Set {name}"):
        made(target, environ={key: value for key, value in PASSED.items() if key != name})


def test_the_projects_environments_are_the_targets() -> None:
    project = json.loads((ROOT / ".dbx/project.json").read_text())["environments"]
    assert tuple(project) == BUNDLE.targets
    for target, settings in project.items():
        catalog = Values(BUNDLE, target, {}).resolve("${var.catalog}", "")
        assert settings["properties"]["artifact_location"] == f"dbfs:/Volumes/{catalog}/ops/dbx"


def test_the_functions_that_dbx_loads_make_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    specification = spec_from_file_location("_custom", ROOT / ".dbx/_custom_jinja_functions.py")
    assert specification and specification.loader
    monkeypatch.setattr("sys.path", [*sys.path])
    functions = module_from_spec(specification)
    specification.loader.exec_module(functions)
    content = yaml.safe_load(functions.deployment(PASSED))
    # dbx runs each without a shell, which && would need.
    refusing, building = content["build"]["commands"]
    assert shlex.split(refusing)[:5] == ["python3", "-m", "tools.deployable", "--of=any", "catalog=orders_dev"]
    assert building == "uv build --wheel --build-isolation --clear"
    assert content["environments"] == {target: {"workflows": made(target).workflows} for target in BUNDLE.targets}


def test_the_guide_has_everything_that_is_left_out() -> None:
    guide = (ROOT / "docs/dbx.md").read_text()
    for name in LEFT_OUT:
        assert f"`{name.split('.')[-1]}`" in guide or name in guide, name


# What a job may say.


def test_a_job_that_needs_the_id_of_another_is_left_out_until_the_id_is_said() -> None:
    runs_another = {"task_key": "run", "run_job_task": {"job_id": "${resources.jobs.one.id}"}}
    jobs = {"one": job(), "two": job(name="two", tasks=[runs_another])}
    bundle = Bundle(BUNDLE.settings, {"jobs": jobs})
    some = made("staging", bundle)
    assert [each["name"] for each in some.workflows] == ["one"]
    assert "DBX_ID_jobs_one" in some.unchanged_toast["two"]
    every = made("staging", bundle, {**PASSED, "DBX_ID_jobs_one": "77"})
    (task,) = every.workflows[1]["tasks"]
    assert task == {**runs_another, "run_job_task": {"job_id": 77}, "deployment_config": {"no_package": True}}
    assert "job_clusters" not in every.workflows[1]


def test_parameters_of_a_job_its_queue_and_its_rules_are_passed_on() -> None:
    passed_on = {
        "parameters": [{"name": "from", "default": ""}],
        "queue": {"enabled": True},
        "health": {"rules": [{"metric": "RUN_DURATION_SECONDS", "op": "GREATER_THAN", "value": 900}]},
        "continuous": {"pause_status": "UNPAUSED"},
    }
    assert workflow_of(job(**passed_on)).items() >= passed_on.items()
    assert workflow_of(job(**passed_on), "dev")["continuous"] == {"pause_status": "PAUSED"}


def test_a_job_keeps_clusters_of_its_own() -> None:
    own = [{"job_cluster_key": "mine", "new_cluster": {"spark_version": "x", "num_workers": 1}}]
    made_of_it = workflow_of(job(job_clusters=own))
    assert made_of_it["job_clusters"] == own
    assert made_of_it["tasks"][0]["job_cluster_key"] == "mine"
    assert workflow_of(job())["job_clusters"][0]["job_cluster_key"] == ADDED_CLUSTER


def test_what_an_environment_installs_besides_the_wheel_becomes_libraries() -> None:
    spec = {"environment_version": "5", "dependencies": ["../dist/*.whl", "requests>=2", "/Volumes/a/b/c/d.whl"]}
    environments = [{"environment_key": "here", "spec": spec}]
    task = {**job()["tasks"][0], "environment_key": "here"}
    (theirs,) = workflow_of(job(tasks=[task], environments=environments))["tasks"]
    assert theirs["libraries"] == [{"pypi": {"package": "requests>=2"}}, {"whl": "/Volumes/a/b/c/d.whl"}]


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"depends_on": [{"task_key": "gone"}]}, "only depends on gone, which is no task"),
        ({"job_cluster_key": "gone"}, "only: no cluster gone"),
        ({"environment_key": "gone"}, "only: no environment gone"),
        ({"libraries": [{"jar": "../jars/a.jar"}]}, "../jars/a.jar is a path from that file"),
    ],
)
def test_what_dbx_would_pass_on_and_the_workspace_refuse_is_refused(task: Yaml, says: str) -> None:
    with pytest.raises(BundleError, match=re.escape(says)):
        workflow_of(job(tasks=[{**job()["tasks"][0], **task}]))


def test_a_wheel_for_each_of_many_cannot_be() -> None:
    nested = {"task_key": "many", "for_each_task": {"inputs": "[1]", "task": job()["tasks"][0]}}
    with pytest.raises(NotExpressibleError, match="many for each of many"):
        workflow_of(job(tasks=[nested]))
