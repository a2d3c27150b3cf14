"""The Databricks bundle as far as it can be checked without a workspace: its root file, targets and variables."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest
import yaml

from lakehouse.config import TARGETS as TARGETS_OF_COMMANDS
from lakehouse.connect.render import VARIABLES_OF_COMMANDS
from tests.support.deployment import RESOLVED
from tools.bundle import ROOT, BundleError, references
from tools.targets import BUNDLE, PASSED, TARGETS, differences, resolved

ROOT_FILE = BUNDLE.settings
FILES = sorted(ROOT.glob("resources/*.yml"))
KINDS = {"jobs", "schemas", "volumes", "secret_scopes", "alerts", "sql_warehouses"}


def test_the_folder_has_one_root_file() -> None:
    names = ("databricks.yml", "databricks.yaml", "bundle.yml", "bundle.yaml")
    assert [name for name in names if (ROOT / name).exists()] == ["bundle.yaml"]


def test_the_bundle_has_a_name_and_an_identity() -> None:
    assert ROOT_FILE["bundle"]["name"] == "orders-lakehouse"
    assert str(UUID(ROOT_FILE["bundle"]["uuid"])) == ROOT_FILE["bundle"]["uuid"]


def test_every_resource_file_is_included_and_every_pattern_finds_one() -> None:
    found = {pattern: set(ROOT.glob(pattern)) for pattern in ROOT_FILE["include"]}
    assert all(found.values()), f"no file for one of {list(found)}"
    assert set(FILES) == {*ROOT.glob("resources/**/*.yml")}


def test_a_resource_file_has_one_resource_and_is_named_for_it() -> None:
    for path in FILES:
        name, kind = path.name.removesuffix(".yml").rsplit(".", maxsplit=1)
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert written.keys() == {"resources"}
        assert written["resources"].keys() == {f"{kind}s"}
        assert written["resources"][f"{kind}s"].keys() == {name.replace("-", "_")}
        assert f"{kind}s" in KINDS


def test_there_are_three_targets_and_the_commands_know_them() -> None:
    assert tuple(ROOT_FILE["targets"]) == TARGETS
    assert set(TARGETS) < set(TARGETS_OF_COMMANDS)
    assert [name for name, target in ROOT_FILE["targets"].items() if target.get("default")] == ["dev"]
    assert {name: target["mode"] for name, target in ROOT_FILE["targets"].items()} == {
        "dev": "development",
        "staging": "production",
        "prod": "production",
    }


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_shared_target_has_one_copy_that_belongs_to_a_service_principal(target: str) -> None:
    principal = PASSED[target]["service_principal_name"]
    settings = RESOLVED[target]["target"]
    assert settings["workspace"]["root_path"] == f"/Workspace/Users/{principal}/.bundle/orders-lakehouse/{target}"
    assert settings["run_as"]["service_principal_name"] == principal
    levels = {next(iter(who)): who["level"] for who in settings["permissions"]}
    assert levels == {"service_principal_name": "CAN_MANAGE", "group_name": "CAN_RUN"}


def test_no_workspace_is_named() -> None:
    settings = [ROOT_FILE, *ROOT_FILE["targets"].values()]
    workspaces = [one.get("workspace", {}) for one in settings]
    assert not any({"host", "profile"} & workspace.keys() for workspace in workspaces)


def test_every_variable_is_declared_described_and_used() -> None:
    connectors = [json.loads(path.read_text()) for path in ROOT.glob("resources/connect/*.json")]
    files: list[Any] = [ROOT_FILE, BUNDLE.resources, *connectors]
    used = {name.removeprefix("var.") for name in references(files) if name.startswith("var.")}
    assert not used & set(VARIABLES_OF_COMMANDS)
    assert used | set(VARIABLES_OF_COMMANDS) == ROOT_FILE["variables"].keys()
    assert all(variable["description"].strip() for variable in ROOT_FILE["variables"].values())
    for target in ROOT_FILE["targets"].values():
        assert target.get("variables", {}).keys() <= ROOT_FILE["variables"].keys()


@pytest.mark.parametrize("target", TARGETS)
def test_every_reference_has_a_value(target: str) -> None:
    # A reference to what is not there has already raised.
    assert list(references(RESOLVED[target])) == []


def test_only_what_the_deployer_alone_knows_must_be_passed() -> None:
    without = {name for name, variable in ROOT_FILE["variables"].items() if "default" not in variable}
    assert without == {"catalog", *PASSED["prod"]}
    for name in PASSED["prod"]:
        passed = {key: value for key, value in PASSED["prod"].items() if key != name}
        with pytest.raises(BundleError, match=f'"{name}" in prod'):
            resolved("prod", passed)


def test_every_target_has_a_catalog_of_its_own() -> None:
    catalogs = [ROOT_FILE["targets"][target]["variables"]["catalog"] for target in TARGETS]
    assert len(set(catalogs)) == len(TARGETS)
    # Not quoted in SQL, so no hyphen.
    assert all(re.fullmatch(r"\w+", catalog) for catalog in catalogs)


def test_what_differs_between_the_targets_was_reviewed() -> None:
    """After a change: `make generated`, and look at what it has written."""
    reviewed = yaml.safe_load((ROOT / "tests/bundle/targets.yaml").read_text(encoding="utf-8"))
    assert differences(PASSED) == reviewed
