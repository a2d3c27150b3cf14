"""The Databricks bundle as far as it can be checked without a workspace: its root file, targets and variables."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
import yaml

from lakehouse.config import TARGETS as TARGETS_OF_COMMANDS
from tests.support.deployment import RESOLVED
from tools.bundle import COMMIT, ROOT, BundleError, Values, references
from tools.targets import BUNDLE, PASSED, TARGETS, differences, resolved

ROOT_FILE = BUNDLE.settings
FILES = sorted(ROOT.glob("resources/*.yml"))
KINDS = {"jobs", "schemas", "volumes", "secret_scopes", "alerts", "sql_warehouses"}


def test_the_cli_is_new_enough_for_what_the_guide_says() -> None:
    # `validate --strict` and secret scopes came before it; until it, empty grants were created at each deployment.
    assert ROOT_FILE["bundle"]["databricks_cli_version"] == ">= 1.11.0"
    assert "The Databricks CLI, 1.11.0 or later" in (ROOT / "docs/deploy.md").read_text(encoding="utf-8")


def test_only_what_a_job_reads_is_uploaded() -> None:
    """Anything more is seconds in which a deployment is half done."""
    (path,) = ROOT_FILE["sync"]["paths"]
    assert [one.name for one in (ROOT / path).rglob("*") if one.is_file()] == ["sasl_ssl.yaml"]
    named = re.findall(r"\$\{workspace\.file_path\}/(\S+?)'", (ROOT / "docs/deploy.md").read_text(encoding="utf-8"))
    assert named == [f"{path}/sasl_ssl.yaml"]
    assert set(ROOT_FILE["sync"]) == {"paths"}


@pytest.mark.parametrize("target", ["staging", "prod"])
def test_a_wheel_stays_where_it_is_until_jobs_name_another(target: str) -> None:
    """A deployment clears the folder `artifact_path` before anything else: that of its own commit, no other."""
    commits = ("a" * 40, "b" * 40)
    folders = [workspace_of(target, commit)["artifact_path"] for commit in commits]
    root = workspace_of(target, commits[0])["root_path"]
    assert folders == [f"{root}/artifacts/{commit}" for commit in commits]


def workspace_of(target: str, commit: str) -> dict[str, str]:
    environ = {**{f"BUNDLE_VAR_{name}": value for name, value in PASSED[target].items()}, COMMIT: commit}
    settings: dict[str, str] = Values(BUNDLE, target, environ).resolve(ROOT_FILE["targets"][target]["workspace"], "")
    return settings


def test_the_time_is_in_the_version_in_development_alone() -> None:
    """Elsewhere a second deployment of a commit must change nothing."""
    dynamic = {target: RESOLVED[target]["artifacts"]["wheel"].get("dynamic_version", False) for target in TARGETS}
    assert dynamic == {"dev": True, "staging": False, "prod": False}
    wanted = {target: re.findall(r"--of=(\w+)", RESOLVED[target]["artifacts"]["wheel"]["build"]) for target in TARGETS}
    assert wanted == {"dev": ["any"], "staging": ["commit"], "prod": ["tag"]}


def test_the_data_of_prod_is_protected() -> None:
    kinds = ("schemas", "volumes", "secret_scopes")
    protected = {
        target: {
            f"{kind}.{key}"
            for kind in kinds
            for key, one in RESOLVED[target]["resources"][kind].items()
            if one.get("lifecycle") == {"prevent_destroy": True}
        }
        for target in TARGETS
    }
    everything = {f"{kind}.{key}" for kind in kinds for key in BUNDLE.resources[kind]}
    assert protected == {"dev": set(), "staging": set(), "prod": everything}
    assert len(everything) == 9


def test_staging_and_prod_may_share_a_workspace() -> None:
    """Names that are unique in one."""
    for kind in ("sql_warehouses", "secret_scopes"):
        names = [one["name"] for target in TARGETS for one in RESOLVED[target]["resources"][kind].values()]
        assert len(names) == len(set(names)), kind
    assert len({RESOLVED[target]["target"]["workspace"]["root_path"] for target in ("staging", "prod")}) == 2


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
    used = {name.removeprefix("var.") for name in references([ROOT_FILE, BUNDLE.resources]) if name.startswith("var.")}
    assert used == ROOT_FILE["variables"].keys()
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
        for missing in (passed, {**passed, name: ""}):
            with pytest.raises(BundleError, match=f'"{name}" in prod'):
                resolved("prod", missing)


def test_what_must_be_passed_is_looked_at_before_a_wheel_is_built() -> None:
    without = {name for name, variable in ROOT_FILE["variables"].items() if "default" not in variable}
    for target in TARGETS:
        command = RESOLVED[target]["artifacts"]["wheel"]["build"].partition(" && ")[0]
        assert set(re.findall(r"(\w+)='[^']+'", command)) == without


def test_every_target_has_a_catalog_of_its_own() -> None:
    catalogs = [ROOT_FILE["targets"][target]["variables"]["catalog"] for target in TARGETS]
    assert len(set(catalogs)) == len(TARGETS)
    # Not quoted in SQL, so no hyphen.
    assert all(re.fullmatch(r"\w+", catalog) for catalog in catalogs)


def test_what_differs_between_the_targets_was_reviewed() -> None:
    """After a change: `make generated`, and look at what it has written."""
    reviewed = yaml.safe_load((ROOT / "tests/bundle/targets.yaml").read_text(encoding="utf-8"))
    assert differences(PASSED) == reviewed
