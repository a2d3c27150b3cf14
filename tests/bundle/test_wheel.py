"""The wheel that the bundle deploys: what is in it, what it asks for, and that two builds give the same bytes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.deployment import JOBS, wheel_tasks
from tests.support.wheel import build
from tools.bundle import ROOT
from tools.targets import BUNDLE

PACKAGES = ("bronze", "silver", "gold", "connectors", "lakehouse", "monitoring", "cli", "orders_lakehouse")
CONTRACTS = (
    "bronze/topics.yaml",
    "silver/tables.yaml",
    "silver/gate.yaml",
    "gold/tables.yaml",
    "gold/gate.yaml",
    "lakehouse/spark/jars.yaml",
    "monitoring/page.css",
    "monitoring/page.html",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what installing the wheel would put into site-packages."""
    folder = tmp_path_factory.mktemp("installed")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def distribution(installed: Path) -> Distribution:
    """Found as Databricks finds it: by the package_name of the tasks."""
    (name,) = {one.task["python_wheel_task"]["package_name"] for one in wheel_tasks("prod")}
    (found,) = distributions(name=name, path=[str(installed)])
    return found


def test_the_bundle_builds_and_installs_the_wheel(wheel: Path) -> None:
    (artifact,) = BUNDLE.settings["artifacts"].values()
    assert artifact.keys() == {"type", "build"}
    assert artifact["build"].endswith(" && uv build --wheel --build-isolation --clear")
    # Relative to the file that says so. `uv build` puts the wheel into dist/.
    patterns = {
        one
        for job in JOBS.values()
        for environment in job.get("environments", [])
        for one in environment["spec"]["dependencies"]
    }
    patterns |= {one["whl"] for job in JOBS.values() for task in job["tasks"] for one in task.get("libraries", [])}
    (pattern,) = patterns
    assert (ROOT / "resources" / Path(pattern).parent).resolve() == ROOT / "dist"
    assert wheel.match(Path(pattern).name)


def test_the_wheel_takes_the_python_of_the_environments(distribution: Distribution) -> None:
    python = {"5": "3.12.3"}
    specs = [environment["spec"] for job in JOBS.values() for environment in job.get("environments", [])]
    assert len(specs) == 5
    for spec in specs:
        version = python[spec["environment_version"]]
        assert SpecifierSet(distribution.metadata["Requires-Python"]).contains(version)


def test_every_entry_point_is_in_the_wheel_and_loads_without_spark(installed: Path) -> None:
    # In a process of its own, since in this one `cli.main` is the one in src/.
    code = """
import sys
from importlib.metadata import distribution

folder, package, *names = sys.argv[1:]
sys.path.insert(0, folder)
scripts = distribution(package).entry_points.select(group="console_scripts")
for name in names:
    (script,) = scripts.select(name=name)
    assert callable(script.load()), name
    assert sys.modules[script.module].__file__.startswith(folder), sys.modules[script.module].__file__

from lakehouse.contracts.files import load_contracts

load_contracts()
assert "pyspark" not in sys.modules
"""
    tasks = [one.task["python_wheel_task"] for one in wheel_tasks("prod")]
    names = sorted({task["entry_point"] for task in tasks})
    command = [sys.executable, "-c", code, str(installed), tasks[0]["package_name"], *names]
    done = subprocess.run(command, cwd=installed, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_task_is_a_command_of_the_one_entry_point(distribution: Distribution) -> None:
    (script,) = distribution.entry_points.select(group="console_scripts")
    assert (script.name, script.value) == ("lakehouse", "cli.main:main")
    assert {one.task["python_wheel_task"]["entry_point"] for one in wheel_tasks("prod")} == {script.name}


def test_the_wheel_holds_the_packages_whole_and_nothing_else(wheel: Path) -> None:
    held = set(ZipFile(wheel).namelist())
    assert held >= set(CONTRACTS)
    assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == set(PACKAGES)
    # .gitignore applies to the wheel too: a package named like one of its lines would be missing.
    sources = [path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file()]
    wanted = {path.as_posix() for path in sources if "__pycache__" not in path.parts and path.parts[0] in PACKAGES}
    assert {name for name in held if ".dist-info/" not in name} == wanted


def test_the_wheel_leaves_spark_to_databricks(distribution: Distribution) -> None:
    requirements = [Requirement(text) for text in distribution.requires or []]
    always = {each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}
    extra = {each.name for each in requirements if each.marker and each.marker.evaluate({"extra": "local"})} - always
    # What reads Delta without Spark, too: there the session is at hand.
    assert extra == {"pyspark", "delta-spark", "deltalake"}
    assert "great-expectations" in always
    assert not {name for name in always if "spark" in name or name == "databricks-connect"}


def test_the_same_sources_make_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()
