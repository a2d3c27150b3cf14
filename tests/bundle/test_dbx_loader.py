"""dbx's own loader reads what is made of the bundle, and refuses what it would not deploy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.bundle import ROOT, read_bundle

BUNDLE = read_bundle(ROOT)
JOBS = BUNDLE.resources["jobs"]
FILES = (
    "bundle.yaml",
    "resources/*.yml",
    "conf/*",
    ".dbx/*.py",
    ".dbx/project.json",
    "tools/bundle.py",
    "tools/dbx/*.py",
)

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
        ("- task_key: verify", "- task_key: publish", "Duplicated task keys"),
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
