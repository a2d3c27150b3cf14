"""The scheduled job as a workspace runs it: the installed wheel, its dependencies alone, a process a task, in order.

The catalog is Spark's own, kept by a Hive metastore in a folder, so that each task finds the tables of the one before.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from demo.broker import embedded_broker
from demo.check import compacted_view
from tests.kafka.test_run import produce
from tests.support.deployment import WheelTask
from tests.support.wheel import build, installed
from tools.bundle import ROOT
from tools.targets import resolved

pytestmark = [pytest.mark.kafka, pytest.mark.cluster]

# What Databricks does with a python_wheel_task, and then what was imported.
RUN = """
import sys
from importlib.metadata import distribution

package, name, *sys.argv[1:] = sys.argv[1:]
(script,) = distribution(package).entry_points.select(group="console_scripts", name=name)
script.load()()
"""
# What every Spark of the test gets: a metastore in a folder in place of Unity Catalog.
DEFAULTS = """
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir {folder}/tables
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={folder}/metastore;create=true
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, subprocess.CompletedProcess[str]]]:
    """The tasks of the scheduled job in dev, one after the other; under `topic` the number of orders on it."""
    folder = tmp_path_factory.mktemp("workspace")
    python = installed(build(folder), folder / "environment")
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS.format(folder=folder), encoding="utf-8")
    with embedded_broker() as servers:
        produce(servers, folder, first=True)
        job = resolved("dev", {"bootstrap_servers": servers})["resources"]["jobs"]["orders_lakehouse"]
        yield {
            task["task_key"]: run(WheelTask("orders_lakehouse", task["task_key"], task, {}), python, folder)
            for task in job["tasks"]
        } | {"topic": subprocess.CompletedProcess([], len(compacted_view(servers, "bigquery.unified.orders")))}


def run(task: WheelTask, python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    wheel_task = task.task["python_wheel_task"]
    # Spark's own catalog in place of the workspace's, and a folder in place of its volumes.
    parameters = [
        one.replace("=orders_dev", "=spark_catalog").replace("=/Volumes/", f"={folder}/Volumes/")
        for one in task.parameters()
    ]
    kept = ("PATH", "HOME", "JAVA_HOME", "LAKEHOUSE_CACHE", "XDG_CACHE_HOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return subprocess.run(
        [str(python), "-c", RUN, wheel_task["package_name"], wheel_task["entry_point"], *parameters, "--json"],
        cwd=folder,
        env={**environment, "SPARK_CONF_DIR": str(folder / "conf")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_every_task_ends_well(ran: Mapping[str, subprocess.CompletedProcess[str]]) -> None:
    for key in ("bronze", "silver", "gold", "publish", "verify"):
        assert ran[key].returncode == 0, f"{key}: {ran[key].stdout}{ran[key].stderr}"


def test_records_went_through_all_layers(ran: Mapping[str, subprocess.CompletedProcess[str]]) -> None:
    told = {key: json.loads(done.stdout) for key, done in ran.items() if key != "topic"}
    assert sum(told["bronze"]["bronze"]["new_records"].values()) > 1000
    assert told["silver"]["silver"]["read"] == sum(told["bronze"]["bronze"]["new_records"].values())
    assert told["gold"]["gold"]["changed_orders"] == told["publish"]["publish"]["sent_records"]
    assert told["publish"]["publish"]["sent_records"] == ran["topic"].returncode > 0


def test_nothing_of_the_checkout_was_needed(ran: Mapping[str, subprocess.CompletedProcess[str]]) -> None:
    assert not any(str(ROOT) in done.stderr for key, done in ran.items() if key != "topic")
