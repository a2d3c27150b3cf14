"""The Databricks bundle, as far as it can be checked without a workspace: its files, its job, and the wheel it deploys.

`databricks bundle validate` does not notice a bad cron expression, a dependency on a task that does not exist, an
entry point or an option that the wheel does not have. These tests do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from graphlib import TopologicalSorter
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, cast
from uuid import UUID
from zipfile import ZipFile
from zoneinfo import ZoneInfo

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import cli.main
from cli.options import Chosen
from lakehouse.config import TARGETS, Settings
from lakehouse.connect.render import VARIABLES_OF_COMMANDS

ROOT = Path(__file__).parents[2]
DEPLOYED = ("dev", "staging", "prod")
ORDER = ["bronze", "silver", "gold", "publish"]
PACKAGES = ("bronze", "silver", "gold", "lakehouse", "cli")
CONTRACTS = (
    "bronze/topics.yaml",
    "silver/tables.yaml",
    "silver/gate.yaml",
    "gold/tables.yaml",
    "gold/gate.yaml",
    "lakehouse/jars.yaml",
)

# What whoever deploys passes; everything else has its value in the bundle.
PASSED = {
    "bootstrap_servers": "broker-1:9092,broker-2:9092",
    "notification_email": "on-call@example.com",
    "service_principal_name": "00000000-0000-0000-0000-000000000000",
}
WORKSPACE = {"bundle.name": "orders-lakehouse", "workspace.current_user.userName": "someone@example.com"}

Yaml = dict[str, Any]
REFERENCE = re.compile(r"\$\{([^}]*)\}")


def load(path: Path) -> Yaml:
    return cast(Yaml, yaml.safe_load(path.read_text(encoding="utf-8")))


BUNDLE = load(ROOT / "bundle.yaml")
JOB: Yaml = load(ROOT / "resources/orders-lakehouse.job.yml")["resources"]["jobs"]["orders_lakehouse"]
TASKS: dict[str, Yaml] = {task["task_key"]: task for task in JOB["tasks"]}


def references(node: Any) -> Iterator[str]:
    """What stands between `${` and `}`, anywhere below `node`."""
    if isinstance(node, dict):
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)
    elif isinstance(node, str):
        yield from REFERENCE.findall(node)


def values_in(target: str) -> dict[str, str]:
    """Every reference's value in a target: what the target says, else the default, else what is passed."""
    known = {**WORKSPACE, "bundle.target": target}
    for name, variable in BUNDLE["variables"].items():
        value = BUNDLE["targets"][target].get("variables", {}).get(name, variable.get("default", PASSED.get(name)))
        assert isinstance(value, str), f"{target}: no value, or none that is text, for {name}"
        known[f"var.{name}"] = value
    return known


def resolved(text: str, target: str) -> str:
    """The text with its references replaced, and theirs in turn."""
    known = values_in(target)
    while REFERENCE.search(text):
        text = REFERENCE.sub(lambda match: known[match[1]], text)
    return text


def parameters(task: str, target: str) -> list[str]:
    return [resolved(text, target) for text in TASKS[task]["python_wheel_task"]["parameters"]]


# The files.


def test_the_folder_has_one_root_file() -> None:
    names = ("databricks.yml", "databricks.yaml", "bundle.yml", "bundle.yaml")
    assert [name for name in names if (ROOT / name).exists()] == ["bundle.yaml"]


def test_the_bundle_has_a_name_and_an_identity() -> None:
    assert BUNDLE["bundle"]["name"] == "orders-lakehouse"
    assert str(UUID(BUNDLE["bundle"]["uuid"])) == BUNDLE["bundle"]["uuid"]


def test_every_resource_file_is_included_and_every_pattern_finds_one() -> None:
    found = {pattern: set(ROOT.glob(pattern)) for pattern in BUNDLE["include"]}
    assert all(found.values()), f"no file for one of {list(found)}"
    assert set().union(*found.values()) == {*ROOT.glob("resources/**/*.yml"), *ROOT.glob("resources/**/*.yaml")}


def test_a_resource_file_is_named_for_its_resource_and_kind() -> None:
    for path in ROOT.glob("resources/*.yml"):
        name, kind = path.name.removesuffix(".yml").rsplit(".", maxsplit=1)
        assert load(path)["resources"].keys() == {f"{kind}s"}
        assert load(path)["resources"][f"{kind}s"].keys() == {name.replace("-", "_")}


# Targets and variables.


def test_there_are_three_targets_and_the_commands_know_them() -> None:
    assert tuple(BUNDLE["targets"]) == DEPLOYED
    assert set(DEPLOYED) < set(TARGETS)
    assert [name for name, target in BUNDLE["targets"].items() if target.get("default")] == ["dev"]
    assert {name: target["mode"] for name, target in BUNDLE["targets"].items()} == {
        "dev": "development",
        "staging": "production",
        "prod": "production",
    }


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_shared_target_has_one_copy_that_belongs_to_a_service_principal(target: str) -> None:
    principal = PASSED["service_principal_name"]
    root = resolved(BUNDLE["targets"][target]["workspace"]["root_path"], target)
    assert root == f"/Workspace/Users/{principal}/.bundle/orders-lakehouse/{target}"
    assert resolved(BUNDLE["targets"][target]["run_as"]["service_principal_name"], target) == principal
    levels = {next(iter(who)): who["level"] for who in BUNDLE["targets"][target]["permissions"]}
    assert levels == {"service_principal_name": "CAN_MANAGE", "group_name": "CAN_RUN"}


def test_no_workspace_is_named() -> None:
    workspaces = [BUNDLE.get("workspace", {}), *(target.get("workspace", {}) for target in BUNDLE["targets"].values())]
    assert not any({"host", "profile"} & workspace.keys() for workspace in workspaces)


def test_every_variable_is_declared_described_and_used() -> None:
    connectors = [json.loads(path.read_text()) for path in ROOT.glob("resources/connect/*.json")]
    resources = [load(path) for path in ROOT.glob("resources/*.yml")]
    files = [BUNDLE, *resources, *connectors, load(ROOT / "conf/cluster.yml")]
    used = {name.removeprefix("var.") for name in references(files) if name.startswith("var.")}
    assert not used & set(VARIABLES_OF_COMMANDS)
    assert used | set(VARIABLES_OF_COMMANDS) == BUNDLE["variables"].keys()
    assert all(variable["description"].strip() for variable in BUNDLE["variables"].values())
    for target in BUNDLE["targets"].values():
        assert target.get("variables", {}).keys() <= BUNDLE["variables"].keys()


def test_every_reference_has_a_value() -> None:
    files = [BUNDLE, *(load(path) for path in ROOT.glob("resources/*.yml"))]
    for target in DEPLOYED:
        assert set(references(files)) <= values_in(target).keys()


@pytest.mark.parametrize("target", DEPLOYED)
def test_every_target_has_a_catalog_of_its_own(target: str) -> None:
    # Not quoted in SQL, so no hyphen.
    assert re.fullmatch(r"\w+", resolved("${var.catalog}", target))
    others = {resolved("${var.catalog}", other) for other in DEPLOYED if other != target}
    assert resolved("${var.catalog}", target) not in others


# The job.


def test_tasks_run_in_order() -> None:
    upstream = {key: {other["task_key"] for other in task.get("depends_on", [])} for key, task in TASKS.items()}
    assert len(TASKS) == len(JOB["tasks"]), "two tasks of one name"
    assert set().union(*upstream.values()) <= TASKS.keys(), "depends_on names a task that is not there"
    assert list(TopologicalSorter(upstream).static_order()) == ORDER  # raises CycleError
    assert [upstream[task] for task in ORDER] == [set(), {"bronze"}, {"silver"}, {"gold"}]


def test_one_task_that_fails_does_not_keep_the_next_from_running_and_is_told() -> None:
    for key, task in TASKS.items():
        assert task.get("run_if") == (None if key == "bronze" else "ALL_DONE")
        assert task["email_notifications"]["on_failure"] == ["${var.notification_email}"]
        assert task["notification_settings"]["alert_on_last_attempt"] is True


def test_every_task_is_bounded_in_time_and_attempts() -> None:
    for task in TASKS.values():
        assert task["timeout_seconds"] > 0
        assert 0 <= task["max_retries"] <= 3
        assert task["disable_auto_optimization"] is True


def test_runs_wait_for_one_another() -> None:
    assert JOB["max_concurrent_runs"] == 1
    assert JOB["queue"] == {"enabled": True}


@pytest.mark.parametrize("target", DEPLOYED)
def test_the_schedule_is_one_that_quartz_takes(target: str) -> None:
    schedule = {key: resolved(value, target) for key, value in JOB["schedule"].items()}
    ZoneInfo(schedule["timezone_id"])  # raises when there is no such zone
    assert schedule["pause_status"] == ("UNPAUSED" if target == "prod" else "PAUSED")
    check_quartz(schedule["quartz_cron_expression"])


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


@pytest.mark.parametrize("target", DEPLOYED)
@pytest.mark.parametrize("task", ORDER)
def test_the_command_takes_the_parameters(task: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings_of(task, target, monkeypatch)
    assert "/" not in chosen.warehouse
    assert chosen.checkpoints == f"/Volumes/{chosen.warehouse}/ops/checkpoints"
    assert chosen.target == target
    if task in {"bronze", "publish"}:
        assert chosen.kafka().bootstrap_servers == PASSED["bootstrap_servers"]
    assert bool(chosen.max_offsets_per_trigger) == (task == "bronze")


def settings_of(task: str, target: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the task's command makes of its parameters: the entry point is called, and its job is not run.

    The environment of whoever runs the tests must not fill in what the bundle forgot.
    """
    ran: list[tuple[Settings, Sequence[str]]] = []

    def run_jobs(chosen: Chosen, names: Sequence[str], **asked: object) -> None:
        assert not any(asked.values())
        ran.append((chosen.settings, names))

    monkeypatch.setattr(cli.main, "_run_jobs", run_jobs)
    monkeypatch.setattr(sys, "argv", [task, *parameters(task, target)])
    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)
    entry_point(task)()
    ((chosen, names),) = ran
    assert names == (task,)
    return chosen


def entry_point(task: str) -> Callable[[], None]:
    """The function behind the task's entry point, by its name in pyproject.toml's convention: `<task>_job`."""
    return cast(Callable[[], None], getattr(cli.main, f"{task}_job"))


# The wheel.


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
    (name,) = {task["python_wheel_task"]["package_name"] for task in TASKS.values()}
    (found,) = distributions(name=name, path=[str(installed)])
    return found


def build(folder: Path) -> Path:
    """The wheel, built by the backend that `uv build --wheel` calls, which needs neither uv nor a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_bundle_builds_and_installs_the_wheel(wheel: Path) -> None:
    (artifact,) = BUNDLE["artifacts"].values()
    assert artifact == {"type": "whl", "build": "uv build --wheel", "dynamic_version": True}
    environments = {environment["environment_key"]: environment["spec"] for environment in JOB["environments"]}
    assert {task["environment_key"] for task in TASKS.values()} == environments.keys()
    for spec in environments.values():
        # Relative to the file that says so. `uv build` puts the wheel into dist/.
        (dependency,) = spec["dependencies"]
        assert (ROOT / "resources" / Path(dependency).parent).resolve() == ROOT / "dist"
        assert wheel.match(Path(dependency).name)


def test_the_wheel_takes_the_python_of_the_environment(distribution: Distribution) -> None:
    python = {"5": "3.12.3"}
    for environment in JOB["environments"]:
        version = python[environment["spec"]["environment_version"]]
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

from lakehouse.contract_files import load_contracts

load_contracts()
assert "pyspark" not in sys.modules
"""
    wheel_tasks = [task["python_wheel_task"] for task in TASKS.values()]
    names = [wheel_task["entry_point"] for wheel_task in wheel_tasks]
    command = [sys.executable, "-c", code, str(installed), wheel_tasks[0]["package_name"], *names]
    done = subprocess.run(command, cwd=installed, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_an_entry_point_runs_the_task_it_is_named_for(distribution: Distribution) -> None:
    scripts = distribution.entry_points.select(group="console_scripts")
    for key, task in TASKS.items():
        (script,) = scripts.select(name=task["python_wheel_task"]["entry_point"])
        assert (script.name, script.value) == (f"lakehouse-{key}", f"cli.main:{entry_point(key).__name__}")


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
    assert extra == {"pyspark", "delta-spark"}
    assert "great-expectations" in always
    assert not {name for name in always if "spark" in name or name == "databricks-connect"}


def test_the_same_sources_make_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()
