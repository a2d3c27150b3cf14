"""The bundle as a deployment resolves it, without a workspace: a target's settings and resources, references filled in.

Needs PyYAML alone. It does what the Databricks CLI does, as far as this bundle asks for it:
https://docs.databricks.com/dev-tools/bundles
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

ROOT = Path(__file__).parents[1]
TARGETS = ("dev", "staging", "prod")
REFERENCE = re.compile(r"\$\{([^}]*)\}")
Yaml = dict[str, Any]
# In development mode these get a prefix with the engineer's short name; volumes and secret scopes get none.
_PREFIXED = {
    "jobs": "[dev {who}] {name}",
    "alerts": "[dev {who}] {name}",
    "sql_warehouses": "[dev {who}] {name}",
    "schemas": "dev_{who}_{name}",
}
_NAMES = {"alerts": "display_name"}


def load(file: Path) -> Yaml:
    """A file of the bundle, as it stands there."""
    return cast(Yaml, yaml.safe_load(file.read_text(encoding="utf-8")))


def bundle() -> Yaml:
    """The root file."""
    return load(ROOT / "bundle.yaml")


def resource_files() -> list[Path]:
    """The files that the root file includes."""
    return sorted(file for pattern in bundle()["include"] for file in ROOT.glob(pattern))


def resources() -> Mapping[str, Mapping[str, Yaml]]:
    """Every resource as it is written, by kind (`jobs`, `schemas`, ...) and key."""
    found: dict[str, dict[str, Yaml]] = {}
    for file in resource_files():
        for kind, of_kind in load(file)["resources"].items():
            for key, resource in of_kind.items():
                if key in found.setdefault(kind, {}):
                    raise ValueError(f"{file}: resources.{kind}.{key} is in another file, too.")
                found[kind][key] = resource
    return found


def resolved(target: str, passed: Mapping[str, str], *, user: str = "someone@example.com") -> Yaml:
    """The target's settings under `target` and all `resources`, without a reference left.

    `passed`: the values of variables that whoever deploys gives. An id that only a workspace knows is `<kind.key>`.
    Raises KeyError for a reference to what is not there.
    """
    root = bundle()
    chosen = root["targets"][target]
    named = {kind: {key: dict(one) for key, one in of_kind.items()} for kind, of_kind in resources().items()}
    who = re.sub(r"\W", "_", user.partition("@")[0])
    if chosen.get("mode") == "development":
        for kind, pattern in _PREFIXED.items():
            for resource in named.get(kind, {}).values():
                name = _NAMES.get(kind, "name")
                resource[name] = pattern.format(who=who, name=resource[name])
    known: dict[str, Any] = {
        "bundle.name": root["bundle"]["name"],
        "bundle.target": target,
        "workspace.current_user.userName": user,
        "workspace.current_user.short_name": who,
        "workspace.file_path": f"/Workspace/Users/{user}/.bundle/{root['bundle']['name']}/{target}/files",
        **{f"var.{name}": value for name, value in values(target, passed).items()},
    }
    for kind, of_kind in named.items():
        for key, resource in of_kind.items():
            known[f"resources.{kind}.{key}.id"] = f"<{kind}.{key}>"
            known[f"resources.{kind}.{key}.name"] = resource.get(_NAMES.get(kind, "name"))
    settings = {key: value for key, value in chosen.items() if key != "variables"}
    return cast(Yaml, _filled({"target": settings, "resources": named}, known))


def values(target: str, passed: Mapping[str, str]) -> Mapping[str, Any]:
    """Every variable's value: what the target says, else what is passed, else the default. KeyError without any."""
    root = bundle()
    of_target = root["targets"][target].get("variables", {})
    found = {}
    for name, variable in root["variables"].items():
        options = (of_target.get(name), passed.get(name), variable.get("default"))
        given = [value for value in options if value is not None]
        if not given:
            raise KeyError(f"{target}: no value for the variable {name}")
        found[name] = given[0]
    return found


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


def differences(passed: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the targets do not have in common: the value of each (None where it has none), and `at` which paths."""
    flat = {target: dict(_flat(resolved(target, passed))) for target in TARGETS}
    paths: dict[str, list[str]] = {}
    values_of: dict[str, dict[str, Any]] = {}
    for path in sorted(set().union(*flat.values())):
        of_targets = {target: flat[target].get(path) for target in TARGETS}
        if len({repr(value) for value in of_targets.values()}) > 1:
            paths.setdefault(repr(of_targets), []).append(path)
            values_of[repr(of_targets)] = of_targets
    return [{**values_of[key], "at": at} for key, at in paths.items()]


def _filled(node: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, known) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, known) for value in node]
    if not isinstance(node, str):
        return node
    whole = REFERENCE.fullmatch(node)
    if whole:  # a variable may be more than text
        return _filled(known[whole[1]], known)
    text = REFERENCE.sub(lambda match: str(known[match[1]]), node)
    return _filled(text, known) if REFERENCE.search(text) else text


def _flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves by their path; of a list of tasks or the like by its key, not by its number."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            key = value.get("task_key", number) if isinstance(value, dict) else number
            yield from _flat(value, f"{path}[{key}]")
    else:
        yield path, node
