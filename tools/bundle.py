"""The bundle, read without the Databricks CLI: bundle.yaml, the files it includes, and what their references stand for.

Nothing here asks a workspace. PyYAML is all it needs: the environments of dbx and of Databricks' models run it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
USER = "DBX_USER_NAME"
COMMIT = "BUNDLE_GIT_COMMIT"

# What bundle.yaml and a target may say. Another key could change what is deployed, so it is refused until it is read.
TOP_LEVEL = {"bundle", "include", "sync", "artifacts", "variables", "targets", "resources", "run_as", "permissions"}
OF_A_TARGET = {"mode", "default", "presets", "variables", "run_as", "permissions", "git", "workspace", "resources"}
# Of presets: this one, which changes no resource.
PRESETS = {"artifacts_dynamic_version"}

# The fields that the full name of a resource is made of.
PARTS_OF_A_NAME: Mapping[str, tuple[str, ...]] = {
    "schemas": ("catalog_name", "name"),
    "volumes": ("catalog_name", "schema_name", "name"),
    "secret_scopes": ("name",),
}

REFERENCE = re.compile(r"\$\{([^}]*)\}")
KNOWN = (
    "${var.<name>}, ${bundle.name}, ${bundle.target}, ${bundle.git.commit}, ${workspace.root_path}, "
    "${workspace.current_user.userName}, ${workspace.current_user.short_name}, ${resources.<kind>.<key>.<field>}"
)

Yaml = dict[str, Any]


class BundleError(ValueError):
    """The bundle, or the environment of whoever deploys, says something that cannot be deployed."""


class UnknownIdError(BundleError):
    """A resource needs the id of another, which a workspace alone knows, and nobody said it."""


@dataclass(frozen=True)
class Bundle:
    """bundle.yaml, and every resource by kind and key."""

    settings: Yaml
    resources: Mapping[str, Mapping[str, Yaml]]

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets, in the order of the file."""
        return tuple(self.settings["targets"])

    def of_target(self, target: str) -> Bundle:
        """The bundle with what a target says of its resources: mappings are merged, and of two values its own counts.

        Raises BundleError for a resource that there is not: the target would make one of its own.
        """
        merged = {kind: dict(of_kind) for kind, of_kind in self.resources.items()}
        for kind, of_kind in (self.settings["targets"][target].get("resources") or {}).items():
            for key, own in of_kind.items():
                if key not in merged.get(kind, {}):
                    raise BundleError(
                        f"bundle.yaml: targets.{target}.resources.{kind}.{key}: there is no such resource."
                    )
                merged[kind][key] = _merged_with(merged[kind][key], own, f"targets.{target}.resources.{kind}.{key}")
        return Bundle(self.settings, merged)


def read_bundle(root: Path = ROOT) -> Bundle:
    """The bundle in `root`: bundle.yaml and every file that it includes."""
    settings = _load(root, root / "bundle.yaml")
    _refuse_others(settings, TOP_LEVEL, "bundle.yaml")
    for name, target in settings["targets"].items():
        _refuse_others(target, OF_A_TARGET, f"bundle.yaml: targets.{name}")
        _refuse_others(target.get("presets", {}), PRESETS, f"bundle.yaml: targets.{name}.presets")
    paths = sorted({path for pattern in settings.get("include", []) for path in root.glob(pattern)})
    files = {str(path.relative_to(root)): _load(root, path) for path in paths}
    for name, content in files.items():
        _refuse_others(content, {"resources"}, name)
    resources = _merged({"bundle.yaml": settings, **files})
    return Bundle(settings, resources)


def _load(root: Path, path: Path) -> Yaml:
    """The mapping that a file holds; a mistake in it is named with its line."""
    name = path.relative_to(root)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{name} is missing.") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BundleError(f"{name}{line}: {error.problem}. Correct the YAML.") from None
    if not isinstance(content, dict):
        raise BundleError(f"{name}: holds no mapping. Fill it, or delete it.")
    return content


def _refuse_others(content: Yaml, known: set[str], where: str) -> None:
    """Raises for a key that is not read."""
    for key in sorted(content.keys() - known):
        raise BundleError(f"{where}: {key} is not read. Say it in the jobs, or add it to tools/bundle.py.")


def _merged_with(base: Yaml, own: Yaml, where: str) -> Yaml:
    """`base` with the values of `own`. A list would be appended to that of the base, so it is refused."""
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, list):
            raise BundleError(f"bundle.yaml: {where}.{key}: a list is added to that of the file. Make it a variable.")
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merged_with(base[key], value, f"{where}.{key}") if both else value
    return merged


def _merged(files: Mapping[str, Yaml]) -> Mapping[str, Mapping[str, Yaml]]:
    """The resources of all files, by kind and key; a key is in one file only."""
    merged: dict[str, dict[str, Yaml]] = {}
    for name, content in files.items():
        for kind, resources in (content.get("resources") or {}).items():
            for key, resource in (resources or {}).items():
                if not isinstance(resource, dict):
                    raise BundleError(f"{name}: resources.{kind}.{key} holds no mapping. Fill it, or delete it.")
                if key in merged.setdefault(kind, {}):
                    raise BundleError(f"{name}: resources.{kind}.{key} is in another file too. Rename one of them.")
                merged[kind][key] = resource
    return merged


@dataclass(frozen=True)
class Values:
    """What references stand for in a target. Values of the deployer come from `environ`, as with the bundle."""

    bundle: Bundle
    target: str
    environ: Mapping[str, str]

    def resolve(self, node: Any, where: str, within: tuple[str, ...] = ()) -> Any:
        """`node` with every reference in it replaced, and theirs in turn. One that is all of a text keeps its type."""
        if isinstance(node, dict):
            return {key: self.resolve(value, f"{where}.{key}", within) for key, value in node.items()}
        if isinstance(node, list):
            return [self.resolve(value, f"{where}[{index}]", within) for index, value in enumerate(node)]
        if not isinstance(node, str):
            return node
        whole = REFERENCE.fullmatch(node)
        if whole:
            return self._value(whole[1], where, within)
        return REFERENCE.sub(lambda match: _text(self._value(match[1], where, within), match[0], where), node)

    def _value(self, reference: str, where: str, within: tuple[str, ...]) -> Any:
        """What one reference stands for."""
        if reference in within:
            raise BundleError(f"{where}: ${{{reference}}} is part of its own value. Break the circle in bundle.yaml.")
        return self.resolve(self._said(reference, where), where, (*within, reference))

    def _said(self, reference: str, where: str) -> Any:
        """The value as it is written, with references of its own."""
        kind, *names = reference.split(".")
        if kind == "var" and names:
            return _inside(self._variable(names[0], where), names[1:], reference, where)
        if kind == "resources" and len(names) > 2:
            return self._of_a_resource(reference, where)
        known: Mapping[str, Callable[[], Any]] = {
            "bundle.name": lambda: self.bundle.settings["bundle"]["name"],
            "bundle.target": lambda: self.target,
            "bundle.git.commit": lambda: self.environ.get(COMMIT),
            "workspace.root_path": lambda: self.bundle.settings["targets"][self.target]["workspace"]["root_path"],
            "workspace.current_user.userName": self.user_name,
            "workspace.current_user.short_name": self.short_name,
        }
        if reference in known:
            return known[reference]()
        raise BundleError(f"{where}: ${{{reference}}} is not known. Known are {KNOWN}.")

    def _variable(self, name: str, where: str) -> Any:
        """A variable's value: of the environment, else of the target, else its default."""
        declared: Yaml = self.bundle.settings.get("variables", {})
        if name not in declared:
            meant = "".join(f' Did you mean "{other}"?' for other in get_close_matches(name, declared, n=1))
            raise BundleError(f'{where}: bundle.yaml has no variable "{name}".{meant}')
        of_target = self.bundle.settings["targets"][self.target].get("variables", {})
        said = self.environ.get(f"BUNDLE_VAR_{name}", of_target.get(name, declared[name].get("default")))
        if said is None or (said == "" and "default" not in declared[name]):
            what = " ".join(str(declared[name].get("description", "")).split())
            raise BundleError(f'no value for the variable "{name}" in {self.target}. Set BUNDLE_VAR_{name}: {what}')
        return said

    def user_name(self) -> str:
        """Who deploys. dbx does not ask the workspace."""
        if not self.environ.get(USER):
            raise BundleError(
                f"{self.target} needs to know who deploys. Set {USER} to your user name, an e-mail address."
            )
        return self.environ[USER]

    def short_name(self) -> str:
        """Who deploys, as the names of jobs in development begin."""
        return re.sub(r"\W", "_", self.user_name().split("@")[0]).lower()

    def _of_a_resource(self, reference: str, where: str) -> Any:
        """A field of a resource: as its file has it, or as it follows from that."""
        _, kind, key, *names = reference.split(".")
        there = self.bundle.resources.get(kind, {})
        if key not in there:
            raise BundleError(
                f'{where}: ${{{reference}}}: no resource "{key}" among {kind}: {", ".join(there) or "there is none"}.'
            )
        known = {**there[key], **_following(kind, there[key])}
        if names == ["id"] and "id" not in known:
            return self._id(kind, key)
        return _inside(known, names, reference, where)

    def _id(self, kind: str, key: str) -> str | int:
        """The id that Databricks gave to a resource, which only whoever deploys can know."""
        name = id_variable(kind, key)
        if not self.environ.get(name):
            raise UnknownIdError(f"needs the id of {kind}.{key}, which is not known. Set {name} once it has one.")
        # Of a job it is a number in all that refers to it.
        return int(self.environ[name]) if kind == "jobs" and self.environ[name].isdecimal() else self.environ[name]


def left_to_deployer(bundle: Bundle, target: str) -> list[str]:
    """The variables that have no value in a target unless whoever deploys says one."""
    of_target = bundle.settings["targets"][target].get("variables", {})
    declared: Yaml = bundle.settings.get("variables", {})
    return [name for name, variable in declared.items() if name not in of_target and "default" not in variable]


def texts(node: Any) -> Iterator[str]:
    """Every text that is a value anywhere below `node`."""
    if isinstance(node, dict):
        for value in node.values():
            yield from texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from texts(value)
    elif isinstance(node, str):
        yield node


def references(node: Any) -> list[str]:
    """What stands between `${` and `}`, anywhere below `node`."""
    return [reference for text in texts(node) for reference in REFERENCE.findall(text)]


def id_variable(kind: str, key: str) -> str:
    """The name, in the environment, of a resource's id."""
    return f"DBX_ID_{kind}_{key}"


def _following(kind: str, resource: Yaml) -> Yaml:
    """Fields that a resource has once it is there, and that follow from its file."""
    names = [resource[part] for part in PARTS_OF_A_NAME.get(kind, ()) if part in resource]
    if not names or len(names) < len(PARTS_OF_A_NAME[kind]):
        return {}
    full_name = ".".join(names)
    following = {"id": full_name, "full_name": full_name}
    return {**following, "volume_path": "/".join(["/Volumes", *names])} if kind == "volumes" else following


def _inside(value: Any, names: list[str], reference: str, where: str) -> Any:
    """What `names` lead to in a value, key by key."""
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise BundleError(f'{where}: ${{{reference}}}: there is no "{name}".')
        value = value[name]
    return value


def _text(value: Any, reference: str, where: str) -> str:
    """A value as part of a text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise BundleError(f"{where}: {reference} is no text, and so no part of one. Let it stand alone.")
