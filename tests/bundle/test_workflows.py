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
    assert ".ci/run" in said
    assert "databricks bundle validate --strict -t ${{ matrix.target }}" in said
    assert workflow("pull-request")["jobs"]["validate"]["strategy"]["matrix"]["target"] == ["staging", "prod"]
    assert not [one for one in said if "deploy" in one]


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_deployment_validates_first_and_is_alone(target: str) -> None:
    name = f"deploy-{target}"
    said = commands(name)
    force = " --force" if target == "prod" else ""
    validated, deployed = said[-2:]
    assert validated == f"databricks bundle validate --strict -t {target}"
    assert deployed == f"databricks bundle deploy -t {target}{force}"
    assert workflow(name)["concurrency"] == {"group": name}
    assert workflow(name)["jobs"]["deploy"]["environment"] == target
    if force:
        assert 'git merge-base --is-ancestor "$GITHUB_SHA" origin/main' in said


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
