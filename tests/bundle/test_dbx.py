"""dbx's deployment files: what is made of the bundle, and what dbx's own loader says to it. docs/dbx.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.dbx.bundle import Bundle, BundleError, NotExpressibleError, Values, left_to_deployer, read_bundle
from tools.dbx.workflows import ADDED_CLUSTER, LEFT_OUT, Environment, environment, workflow

ROOT = Path(__file__).parents[2]
BUNDLE = read_bundle(ROOT)
JOBS = BUNDLE.resources["jobs"]
FILES = ("bundle.yaml", "resources/*.yml", "conf/*", ".dbx/*.py", ".dbx/project.json", "tools/dbx/*.py")

# What whoever deploys says; and the ids of what dbx does not make, which they look up.
PASSED = {
    **{f"BUNDLE_VAR_{name}": "passed" for name in left_to_deployer(BUNDLE, "prod")},
    **{f"DBX_ID_{kind}_{key}": "1" for kind, keys in BUNDLE.resources.items() for key in keys},
    "BUNDLE_VAR_bootstrap_servers": "broker-1:9092,broker-2:9092",
    "BUNDLE_VAR_notification_email": "on-call@example.com",
    "BUNDLE_VAR_service_principal_name": "00000000-0000-0000-0000-000000000000",
    "DBX_USER_NAME": "Jane.Doe@example.com",
}

Yaml = dict[str, Any]
EVERY_TARGET = pytest.mark.parametrize("target", BUNDLE.targets)


def made(target: str, bundle: Bundle = BUNDLE, environ: Mapping[str, str] = PASSED) -> Environment:
    return environment(bundle, target, environ)


def by_job(target: str) -> Iterator[tuple[str, Yaml]]:
    """Each job's key, with the workflow that is made of it."""
    return zip(JOBS, made(target).workflows, strict=True)


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for value in node.values():
            yield from texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from texts(value)
    elif isinstance(node, str):
        yield node


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
    assert not made(target).left_out
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
        left_out = {name[4:] for name in LEFT_OUT if name.startswith("job.")}
        assert JOBS[key].keys() - each.keys() <= left_out | {"permissions"}
        for task, theirs in zip(JOBS[key]["tasks"], each["tasks"], strict=True):
            left_out = {name[5:] for name in LEFT_OUT if name.startswith("task.")}
            assert task.keys() - theirs.keys() <= left_out | {"libraries"}


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
    assert content["build"] == {"commands": ["uv build --wheel"]}
    assert content["environments"] == {target: {"workflows": made(target).workflows} for target in BUNDLE.targets}


def test_the_guide_has_everything_that_is_left_out() -> None:
    guide = (ROOT / "docs/dbx.md").read_text()
    for name in LEFT_OUT:
        assert f"`{name.split('.')[-1]}`" in guide or name in guide, name


# What a bundle may say.


def test_references_to_resources_have_the_names_of_their_files() -> None:
    values = Values(
        Bundle(
            BUNDLE.settings,
            {
                "schemas": {"ops": {"catalog_name": "${var.catalog}", "name": "ops"}},
                "volumes": {
                    "kept": {
                        "catalog_name": "${var.catalog}",
                        "schema_name": "${resources.schemas.ops.name}",
                        "name": "kept",
                    }
                },
                "secret_scopes": {"kafka": {"name": "kafka-${bundle.target}"}},
            },
        ),
        "prod",
        {},
    )
    assert values.resolve("${resources.schemas.ops.name}", "") == "ops"
    assert values.resolve("${resources.schemas.ops.id}", "") == "orders_prod.ops"
    assert values.resolve("${resources.volumes.kept.volume_path}/x", "") == "/Volumes/orders_prod/ops/kept/x"
    assert values.resolve("{{secrets/${resources.secret_scopes.kafka.name}/key}}", "") == "{{secrets/kafka-prod/key}}"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("var.bootstrap_server", 'no variable "bootstrap_server". Did you mean "bootstrap_servers"?'),
        ("bundle.git.commit", "not known for dbx. Known are"),
        ("workspace.file_path", "not known for dbx. Known are"),
        ("resources.schemas.opps.name", 'no resource "opps" among schemas'),
        ("resources.jobs.orders_lakehouse.nom", 'there is no "nom"'),
    ],
)
def test_a_reference_that_is_not_known_is_refused(reference: str, says: str) -> None:
    with pytest.raises(BundleError, match=re.escape(says)):
        Values(BUNDLE, "dev", PASSED).resolve({"parameters": ["a", f"${{{reference}}}"]}, "job")


def test_a_reference_alone_keeps_its_type_and_a_circle_is_refused() -> None:
    settings = {
        **BUNDLE.settings,
        "variables": {"hours": {"default": 3}, "a": {"default": "x${var.b}"}, "b": {"default": "${var.a}"}},
    }
    values = Values(Bundle(settings, {}), "staging", {})
    assert values.resolve({"n": "${var.hours}", "t": "${var.hours}h"}, "") == {"n": 3, "t": "3h"}
    with pytest.raises(BundleError, match="part of its own value"):
        values.resolve("${var.a}", "")


def test_a_job_that_needs_the_id_of_another_is_left_out_until_the_id_is_said() -> None:
    runs_another = {"task_key": "run", "run_job_task": {"job_id": "${resources.jobs.one.id}"}}
    jobs = {"one": job(), "two": job(name="two", tasks=[runs_another])}
    bundle = Bundle(BUNDLE.settings, {"jobs": jobs})
    some = made("staging", bundle)
    assert [each["name"] for each in some.workflows] == ["one"]
    assert "DBX_ID_jobs_one" in some.left_out["two"]
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


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("bundle.yaml", "    mode: development\n", "    mode: development\n    presets: {}\n", "do not read presets"),
        ("resources/orders-lakehouse.job.yml", "resources:\n", "sync: {}\nresources:\n", "do not read sync"),
        ("resources/orders-lakehouse.job.yml", "      name: orders", "     name: orders", "orders-lakehouse.job.yml:"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    folder = copy(tmp_path)
    change(folder / file, old, new)
    with pytest.raises(BundleError, match=says):
        read_bundle(folder)


# What dbx says.

# What other jobs may have, on their own cluster or none.
OTHERS = """
resources:
  schemas:
    some_schema: {catalog_name: "${var.catalog}", name: some}
  jobs:
    others:
      name: others
      continuous: {pause_status: UNPAUSED}
      parameters: [{name: topic, default: ""}]
      queue: {enabled: true}
      health: {rules: [{metric: STREAMING_BACKLOG_RECORDS, op: GREATER_THAN, value: 1000}]}
      job_clusters:
        - job_cluster_key: own
          new_cluster:
            spark_version: 18.x-scala2.13
            autoscale: {min_workers: 1, max_workers: 2}
            spark_env_vars: {PASSWORD: "{{secrets/kafka/password}}"}
      permissions: [{group_name: readers, level: CAN_VIEW}]
      tasks:
        - task_key: another
          run_job_task:
            job_id: ${resources.jobs.orders_lakehouse.id}
            job_parameters: {topic: "{{job.parameters.topic}}"}
        - task_key: told
          depends_on: [{task_key: another}]
          condition_task: {op: EQUAL_TO, left: "{{job.parameters.topic}}", right: ""}
        - task_key: wheel
          depends_on: [{task_key: told, outcome: "true"}]
          job_cluster_key: own
          python_wheel_task:
            package_name: orders_lakehouse
            entry_point: lakehouse
            parameters: ["--topic={{job.parameters.topic}}", "--schema=${resources.schemas.some_schema.name}"]
          libraries: [{whl: ../dist/*.whl}, {pypi: {package: requests}}]
          webhook_notifications: {on_failure: [{id: some}]}
        - task_key: asked
          sql_task: {warehouse_id: some, query: {query_id: some}}
"""


@pytest.mark.slow
def test_dbx_itself_reads_every_environment_and_says_what_is_wrong(tmp_path: Path) -> None:
    subprocess.run([str(ROOT / "tools/environment.sh"), "tools/dbx"], check=True, capture_output=True)
    done = check(ROOT)
    assert done.returncode == 0, done.stderr
    for target in BUNDLE.targets:
        assert f"{target}: {len(JOBS)} workflow" in done.stdout
    for definition in JOBS.values():
        assert done.stdout.count(f"{definition['name']}: ") == len(BUNDLE.targets)
    assert done.stdout.count("bronze, silver (after bronze), gold (after silver), publish (after gold), verify") >= 3

    folder = copy(tmp_path)
    resource = folder / "resources/orders-lakehouse.job.yml"
    for old, new, says in (
        ("timeout_seconds: 3600", "timeout_seconds: long", "timeout_seconds: value is not a valid integer"),
        ("entry_point: lakehouse", "entry: lakehouse", "entry_point: field required"),
        ("- task_key: publish", "- task_key: gold", "Duplicated task keys"),
        ("- task_key: bronze\n          run_if", "- task_key: bronce\n          run_if", "depends on bronce"),
        ("${var.catalog}", "${var.catalogue}", 'Did you mean "catalog"?'),
        ("entry_point: lakehouse", "entry_point: lakehouse\n            new: 1", "new: dbx drops it"),
    ):
        text = resource.read_text()
        change(resource, old, new)
        done = check(folder)
        assert (done.returncode, says in done.stderr) == (1, True), f"{says}: {done.stderr}"
        assert "Traceback" not in done.stderr
        resource.write_text(text)


@pytest.mark.slow
def test_dbx_takes_other_kinds_of_tasks_and_drops_nothing(tmp_path: Path) -> None:
    subprocess.run([str(ROOT / "tools/environment.sh"), "tools/dbx"], check=True, capture_output=True)
    folder = copy(tmp_path)
    (folder / "resources/others.job.yml").write_text(OTHERS)
    done = check(folder)
    assert done.returncode == 0, done.stderr
    tasks = "others: another, told (after another), wheel (after told), asked"
    assert done.stdout.count(tasks) == len(BUNDLE.targets)
    assert "DBX_ID_jobs_orders_lakehouse" in done.stdout


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make dbx-check`, in a folder; with nothing said by whoever deploys."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BUNDLE_VAR_", "DBX_"))}
    command = [str(ROOT / "tools/dbx/.venv/bin/python"), "-W", "ignore:pkg_resources", "-m", "tools.dbx.check"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, env=environ)


def copy(folder: Path) -> Path:
    """The files that the deployment is made of, in a folder."""
    for path in (path for pattern in FILES for path in ROOT.glob(pattern)):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
