"""The workflows for GitHub Actions: when they run, what they run, and that nothing they name is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tools.bundle import ROOT
from tools.targets import BUNDLE, PASSED

FILES = {path.stem: path for path in (ROOT / ".github/workflows").glob("*.yml")}


def workflow(name: str) -> dict[str, Any]:
    # YAML 1.1 takes the key `on` for true.
    written = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in written.items()}


def commands(name: str) -> list[str]:
    return [step["run"] for job in workflow(name)["jobs"].values() for step in job["steps"] if "run" in step]


def test_each_is_for_its_event() -> None:
    assert {name: workflow(name)["on"] for name in FILES} == {
        "pull-request": {"pull_request": None},
        "deploy-staging": {"push": {"branches": ["main"]}},
        "deploy-prod": {"push": {"tags": ["v*"]}},
    }


def test_a_pull_request_is_tested_and_validated_and_nothing_is_deployed() -> None:
    said = commands("pull-request")
    assert {".ci/run", "make test-slow"} <= {*said}
    assert "databricks bundle validate --strict -t ${{ matrix.target }}" in said
    assert workflow("pull-request")["jobs"]["validate"]["strategy"]["matrix"]["target"] == ["staging", "prod"]
    assert not [one for one in said if "deploy" in one]
    assert workflow("pull-request")["jobs"]["validate"]["environment"] == "pull-request"  # none of a target's


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_deployment_validates_first_and_is_alone(target: str) -> None:
    name = f"deploy-{target}"
    said = commands(name)
    validated, deployed = said[-2:]
    assert validated == f"databricks bundle validate --strict -t {target}"
    assert deployed == f"databricks bundle deploy -t {target}"
    assert workflow(name)["concurrency"] == {"group": name}
    assert workflow(name)["jobs"]["deploy"]["environment"] == target
    if target == "prod":
        assert 'git merge-base --is-ancestor "$GITHUB_SHA" origin/main' in said
        assert 'test "v$(python3 -m tools.version)" = "$GITHUB_REF_NAME"' in said


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_deployment_needs_the_history_and_the_pinned_uv_alone(target: str) -> None:
    steps = workflow(f"deploy-{target}")["jobs"]["deploy"]["steps"]
    checkout = {step["uses"].partition("@")[0]: step.get("with", {}) for step in steps if "uses" in step}
    assert checkout.keys() == {"actions/checkout", "databricks/setup-cli"}  # neither Java nor the packages of the tests
    assert checkout["actions/checkout"]["fetch-depth"] == 0  # the version comes from tags
    said = "\n".join(commands(f"deploy-{target}"))
    assert "make setup" not in said
    assert "--require-hashes --only-binary=:all: --no-deps -r tools/uv.txt" in said


def test_every_action_is_pinned_by_its_commit() -> None:
    for name, file in FILES.items():
        used = re.findall(r"uses: (\S+)(.*)", file.read_text(encoding="utf-8"))
        assert used, name
        for action, comment in used:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), f"{name}: {action}"
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{name}: {action}: which version is it?"


def test_github_keeps_no_secret() -> None:
    for name, file in FILES.items():
        assert "secrets." not in file.read_text(encoding="utf-8")
        asking = [job for job in workflow(name)["jobs"].values() if "DATABRICKS_HOST" in job.get("env", {})]
        assert len(asking) == 1
        for job in asking:
            assert job["env"]["DATABRICKS_AUTH_TYPE"] == "github-oidc"
            allowed = job.get("permissions", workflow(name)["permissions"])
            assert allowed == {"contents": "read", "id-token": "write"}


def test_every_variable_that_a_deployer_must_give_is_given() -> None:
    for file in FILES.values():
        given = set(re.findall(r"BUNDLE_VAR_(\w+):", file.read_text(encoding="utf-8")))
        assert given == set(PASSED["prod"])
        assert given <= BUNDLE.settings["variables"].keys()


def test_what_they_run_of_this_project_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in FILES:
        for command in commands(name):
            for target in re.findall(r"\bmake ([a-z-]+)", command):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert (ROOT / ".ci/run").stat().st_mode & 0o100
