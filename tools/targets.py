"""The bundle as a deployment resolves it, without a workspace: a target's settings and resources, references filled in.

It does what the Databricks CLI does, as far as this bundle asks for it: https://docs.databricks.com/dev-tools/bundles
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tools.bundle import COMMIT, ROOT, USER, Bundle, Values, Yaml, id_variable, read_bundle

BUNDLE = read_bundle(ROOT)
TARGETS = BUNDLE.targets
_TO_ALL = {"bootstrap_servers": "broker-1:9092,broker-2:9092"}
_TO_SHARED = {
    **_TO_ALL,
    "notification_email": "on-call@example.com",
    "service_principal_name": "00000000-0000-0000-0000-000000000000",
    "alert_destination": "11111111-1111-1111-1111-111111111111",
}
# What whoever deploys passes, for example; everything else has its value in the bundle.
PASSED: Mapping[str, Mapping[str, str]] = {"dev": _TO_ALL, "staging": _TO_SHARED, "prod": _TO_SHARED}
# In development mode these get a prefix with the engineer's short name; volumes and secret scopes get none.
_PREFIXED = {
    "jobs": ("name", "[dev {who}] {name}"),
    "alerts": ("display_name", "[dev {who}] {name}"),
    "sql_warehouses": ("name", "[dev {who}] {name}"),
    "schemas": ("name", "dev_{who}_{name}"),
}


def resolved(target: str, passed: Mapping[str, str], *, user: str = "someone@example.com") -> Yaml:
    """The target's settings under `target`, its `artifacts` and all `resources`, without a reference left.

    `passed`: the values of variables that whoever deploys gives. An id that only a workspace knows is 1,
    and the commit is one of zeros.
    Raises BundleError for a reference to what is not there, and for a variable without a value.
    """
    ids = {id_variable(kind, key): "1" for kind, of_kind in BUNDLE.resources.items() for key in of_kind}
    environ = {**{f"BUNDLE_VAR_{name}": value for name, value in passed.items()}, **ids, USER: user, COMMIT: "0" * 40}
    chosen = BUNDLE.settings["targets"][target]
    bundle = BUNDLE.of_target(target)
    if chosen.get("mode") == "development":
        bundle = _prefixed(bundle, Values(bundle, target, environ).short_name())
    settings = {key: value for key, value in chosen.items() if key not in {"variables", "resources"}}
    values = Values(bundle, target, environ)
    said = {"target": settings, "artifacts": _artifacts(chosen), "resources": bundle.resources}
    return {key: values.resolve(node, key) for key, node in said.items()}


def _artifacts(chosen: Yaml) -> Yaml:
    """The artifacts with what a target presets for them."""
    is_dynamic = chosen.get("presets", {}).get("artifacts_dynamic_version", False)
    dynamic = {"dynamic_version": True} if is_dynamic else {}
    return {key: {**artifact, **dynamic} for key, artifact in BUNDLE.settings["artifacts"].items()}


def _prefixed(bundle: Bundle, who: str) -> Bundle:
    """The bundle with the names that development mode gives."""
    named = {kind: {key: dict(one) for key, one in of_kind.items()} for kind, of_kind in bundle.resources.items()}
    for kind, (field, pattern) in _PREFIXED.items():
        for resource in named.get(kind, {}).values():
            resource[field] = pattern.format(who=who, name=resource[field])
    return Bundle(bundle.settings, named)


def differences(passed: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """What the targets do not have in common: the value of each (None where it has none), and `at` which paths."""
    flat = {target: dict(_flat(resolved(target, passed[target]))) for target in TARGETS}
    paths: dict[str, list[str]] = {}
    values_of: dict[str, dict[str, Any]] = {}
    for path in sorted(set().union(*flat.values())):
        of_targets = {target: flat[target].get(path) for target in TARGETS}
        if len({repr(value) for value in of_targets.values()}) > 1:
            paths.setdefault(repr(of_targets), []).append(path)
            values_of[repr(of_targets)] = of_targets
    return [{**values_of[key], "at": at} for key, at in paths.items()]


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
