"""The connectors of the bundle, `resources/connect/*.json`, rendered with its variables for a target.

The bundle's variables are in bundle.yaml, the connectors' in resources/connect/variables.yaml beside it.

What counts, first: `--var NAME=VALUE`, the environment's `BUNDLE_VAR_<name>`, the target, the default. Empty text is no
value. `${var.x}`, `${bundle.name}` and `${bundle.target}` are filled in, wherever they are; every other `${...}` is
left as it is: it is Kafka Connect's or Debezium's. Rules: https://docs.databricks.com/dev-tools/bundles/variables
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from connectors.files import ConnectorFile, read_file
from lakehouse.contracts.checks.mistakes import did_you_mean
from lakehouse.contracts.files import place_and_reason
from lakehouse.errors import SettingsError

_PLACEHOLDER = re.compile(r"\$\{((?:var|bundle|workspace|resources)\.[\w.-]+)\}")


# The variables that connectors alone need: no resource of Databricks does, so they are not in the bundle's file.
OF_CONNECTORS = Path("resources/connect/variables.yaml")


@dataclass(frozen=True)
class Bundle:
    """A bundle.yaml, as text: its name, its targets, and what each says of every variable, its connectors' too."""

    file: str
    name: str
    default_target: str
    declared: Mapping[str, Mapping[str, Any]]
    targets: Mapping[str, Mapping[str, Any]]

    def has_no(self, variable: str, used: str = "") -> SettingsError:
        """The error of a variable that is not declared; `used`: where it is wanted, in brackets."""
        what = f"{self.file} has no variable {variable!r}{used}{did_you_mean(variable, self.declared)}"
        return SettingsError(what, hint=f"It has: {', '.join(self.declared)}.")


@dataclass(frozen=True)
class Variables:
    """The variables of one target. `given` goes before everything else."""

    bundle: Bundle
    target: str
    given: Mapping[str, str]

    def value(self, name: str, *, used_in: str = "", seen: tuple[str, ...] = ()) -> str:
        """The variable's value, with what it refers to filled in.

        Raises SettingsError, which says where the variable is used and how to set it, when it is not declared, has no
        value, needs a workspace, or refers to itself.
        """
        used = f" ({used_in})" if used_in else ""
        if name not in self.bundle.declared:
            raise self.bundle.has_no(name, used)
        if name in seen:
            raise SettingsError(
                f"{self.bundle.file}: the variable {name} refers to itself{used}.", hint="Give it a value of its own."
            )
        text = self._text(name)
        if not text:
            raise SettingsError(
                f"The variable {name} has no value in target {self.target}{used}.",
                hint=f"Set BUNDLE_VAR_{name}, pass --var {name}=VALUE, or write it into the file that declares it, "
                f"targets.{self.target}.variables.",
            )
        return self.filled(text, used_in=used_in or f"variable {name}", seen=(*seen, name))

    def filled(self, text: str, *, used_in: str, seen: tuple[str, ...] = ()) -> str:
        """The text with every variable in it filled in. Raises what `value` raises."""

        def replaced(match: re.Match[str]) -> str:
            kind, _dot, rest = match[1].partition(".")
            if kind == "var":
                return self.value(rest, used_in=used_in, seen=seen)
            known = {"bundle.name": self.bundle.name, "bundle.target": self.target}
            if match[1] in known:
                return known[match[1]]
            raise SettingsError(
                f"{used_in}: ${{{match[1]}}} is known to Databricks only.",
                hint="Give the variable that holds it a value of its own: BUNDLE_VAR_<name>, or --var NAME=VALUE.",
            )

        return _PLACEHOLDER.sub(replaced, text)

    def value_or(self, name: str, default: str) -> str:
        """The variable's value; the default where the bundle does not declare it, or gives it none."""
        has_value = name in self.bundle.declared and self._text(name)
        return self.value(name) if has_value else default

    def _text(self, name: str) -> str:
        if name in self.given:
            return self.given[name]
        value = self.bundle.targets[self.target].get(name, self.bundle.declared[name].get("default"))
        if isinstance(value, Mapping):  # {default: ...}, or a lookup, which only Databricks can do
            value = value.get("default")
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def load_bundle(path: Path) -> Bundle:
    """The bundle in a file, with the variables of its connectors where it has that file.

    Raises SettingsError when there is none, when it is not one, or when both files have a variable of one name.
    """
    parsed = _yaml(path)
    if not isinstance(parsed.get("targets"), Mapping):
        raise SettingsError(f"{path} is no bundle: it has no targets.", hint="Pass --bundle FILE.")
    targets = {str(name): target or {} for name, target in parsed["targets"].items()}
    default = next((name for name, target in targets.items() if target.get("default")), next(iter(targets)))
    declared = _declared(parsed)
    values: dict[str, Mapping[str, Any]] = {name: target.get("variables") or {} for name, target in targets.items()}
    variables_file = path.parent / OF_CONNECTORS
    if variables_file.exists():
        own = _yaml(variables_file)
        _refuse_foreign(own, declared, values, variables_file=variables_file, path=path)
        declared = {**declared, **_declared(own)}
        for name, target in (own.get("targets") or {}).items():
            values[name] = {**values[name], **(target.get("variables") or {})}
    return Bundle(str(path), str((parsed.get("bundle") or {}).get("name", "")), default, declared, values)


def _declared(parsed: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {str(name): variable or {} for name, variable in (parsed.get("variables") or {}).items()}


def _refuse_foreign(
    own: Mapping[str, Any],
    declared: Mapping[str, Any],
    targets: Mapping[str, Any],
    *,
    variables_file: Path,
    path: Path,
) -> None:
    """Raises SettingsError for a variable that both files declare, and for a target that the bundle has not."""
    for name in _declared(own):
        if name in declared:
            raise SettingsError(f"{variables_file} has the variable {name} of {path}.", hint="Keep one of the two.")
    for name in own.get("targets") or {}:
        if name not in targets:
            raise SettingsError(
                f"{variables_file} has the target {name}, which {path} has not.",
                hint=f"It has: {', '.join(targets)}.",
            )


def _yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a file. Raises SettingsError when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"{path} cannot be read: {why}.", hint="Run this in the bundle's folder, or pass --bundle FILE."
        ) from None
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line, why = place_and_reason(error, text)
        raise SettingsError(f"{path}:{line}: not valid YAML: {why}.", hint="Fix the line.") from None
    if not isinstance(parsed, Mapping):
        raise SettingsError(f"{path} holds no mapping.", hint="Pass --bundle FILE.")
    return parsed


def variables_of(
    bundle: Bundle, target: str | None, *, given: Sequence[str], environment: Mapping[str, str]
) -> Variables:
    """The variables of a target, the default one for None. `given` are NAME=VALUE of the command line.

    Raises SettingsError for an unknown target, and for a variable that is not declared or has no `=`.
    """
    chosen = target or bundle.default_target
    if chosen not in bundle.targets:
        raise SettingsError(
            f"{bundle.file} has no target {chosen!r}.", hint=f"Its targets are: {', '.join(bundle.targets)}."
        )
    overrides = {
        name: environment[f"BUNDLE_VAR_{name}"] for name in bundle.declared if environment.get(f"BUNDLE_VAR_{name}")
    }
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError("A --var has no value.", hint="Write --var NAME=VALUE.")
        if name not in bundle.declared:
            raise bundle.has_no(name)
        overrides[name] = value
    return Variables(bundle, chosen, overrides)


OWN_SERVER_IDS = ("mysql_own_server_id", "mariadb_own_server_id")


def resource_files(bundle_file: Path) -> tuple[Path, ...]:
    """The connectors' files beside a bundle. Raises SettingsError when there is none."""
    folder = bundle_file.parent / "resources" / "connect"
    found = tuple(sorted(folder.glob("*.json")))
    if not found:
        raise SettingsError(f"There is no connector in {folder}.", hint="Pass --bundle FILE, or give files.")
    return found


def chosen_files(files: Sequence[Path], variables: Variables, names: Sequence[str]) -> tuple[Path, ...]:
    """The files of the named connectors, by the names of the files; for no name those of the variable `connectors`.

    Raises SettingsError for a name that no file has.
    """
    known = {path.stem: path for path in files}
    listed = [name.strip() for name in variables.value_or("connectors", ",".join(known)).split(",")]
    wanted = [*dict.fromkeys(name.removesuffix(".json") for name in (names or listed) if name)]
    for name in wanted:
        if name not in known:
            what = f"There is no connector {name!r} in {files[0].parent}{did_you_mean(name, known)}"
            raise SettingsError(what, hint=f"There are: {', '.join(known)}.")
    return tuple(known[name] for name in wanted)


def rendered(path: Path, variables: Variables) -> ConnectorFile:
    """The connector of a file with every variable of the bundle filled in, and what is wrong with the file.

    Raises SettingsError, which names variable, file and key, for a variable without a value.
    """
    return read_file(path, fill=lambda used_in, text: variables.filled(text, used_in=f"{path}: {used_in}"))


def own_server_ids(variables: Variables) -> tuple[str, ...]:
    """The ids that the database servers of a target have themselves."""
    return tuple(value for name in OWN_SERVER_IDS if (value := variables.value_or(name, "")))
