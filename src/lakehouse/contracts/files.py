"""Contracts from a folder of YAML files: all of them read, all mistakes found, each with file, line and key.

Imports without pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml
from pydantic import ValidationError

from lakehouse.contracts.checks.mistakes import Mistake, closest, did_you_mean
from lakehouse.contracts.checks.references import mistakes
from lakehouse.contracts.models import Contracts, Gate, GoldTables, TableGate
from lakehouse.contracts.parts.base import Model
from lakehouse.contracts.tables import SilverTables
from lakehouse.contracts.thresholds import Thresholds
from lakehouse.contracts.topics import Topics
from lakehouse.errors import ContractError, ContractProblem, SettingsError


def place_and_reason(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """The line in `text` that the parser refuses, from 1, and what it says of it.

    A character that YAML does not have (a control character, say) is refused before there are lines: the parser knows
    its offset in the text alone.
    """
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        return line, f"the character U+{error.character:04X} in column {column} is not allowed there"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return mark.line + 1 if mark else 1, problem or "it cannot be parsed"


# The files of a folder of contracts, in the order of the flow; the packaged ones are in the folders of the layers.
MODELS: Mapping[str, type[Model]] = {
    "bronze/topics.yaml": Topics,
    "silver/tables.yaml": SilverTables,
    "silver/gate.yaml": Gate,
    "gold/tables.yaml": GoldTables,
    "gold/gate.yaml": TableGate,
    "monitoring/thresholds.yaml": Thresholds,
}
# A folder without them has the packaged ones.
OPTIONAL = frozenset({"monitoring/thresholds.yaml"})
# A folder without them has none of what they declare.
EMPTY = frozenset({"silver/tables.yaml", "silver/gate.yaml", "gold/tables.yaml", "gold/gate.yaml"})
# What editors complete and check the files by; the files name them in their first line.
SCHEMAS: Mapping[str, type[Model]] = {
    "topics.json": Topics,
    "silver_tables.json": SilverTables,
    "gate.json": Gate,
    "gold_tables.json": GoldTables,
    "gold_gate.json": TableGate,
    "thresholds.json": Thresholds,
}
_ATTRIBUTES = ("topics", "silver", "silver_gate", "gold", "gold_gate", "thresholds")

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """One YAML file: its text as nodes that know their lines, and the contract if it has no mistake."""

    file: str
    root: yaml.Node | None
    contract: Model | None
    problems: tuple[ContractProblem, ...]

    def problem(self, path: Path, what: str) -> ContractProblem:
        """The problem, at the line of the deepest part of `path` that the file really has."""
        return ContractProblem(self.file, _line_of(self.root, path), _key(path), what)


def load_contracts(folder: Traversable | None = None) -> Contracts:
    """The contracts in `folder`, or those that the wheel carries.

    Raises ContractError with every mistake of every file, SettingsError when there is no such folder.
    """
    documents = read_documents(folder)
    problems = [problem for document in documents.values() for problem in document.problems]
    if not problems:
        contracts = Contracts.model_validate(
            dict(zip(_ATTRIBUTES, (document.contract for document in documents.values()), strict=True))
        )
        problems = [_located(documents, mistake) for mistake in mistakes(contracts)]
        if not problems:
            return contracts
    raise ContractError(problems)


def read_documents(folder: Traversable | None) -> Mapping[str, Document]:
    """Every file of a folder of contracts, read and checked by itself. Raises SettingsError without such a folder."""
    if folder is not None and not folder.is_dir():
        raise SettingsError(
            f"There is no folder of contracts {folder}.",
            hint="Check --contracts (LAKEHOUSE_CONTRACTS), or begin one: lakehouse init FOLDER.",
        )
    documents = {}
    for name, model in MODELS.items():
        path = _packaged(name) if folder is None else folder.joinpath(*name.split("/"))
        if folder is not None and name in EMPTY and not path.is_file():
            documents[name] = _absent(folder, model, name)
            continue
        is_own = folder is not None and not (name in OPTIONAL and not path.is_file())
        documents[name] = read_document(path if is_own else _packaged(name), model, name=str(path) if is_own else name)
    return documents


def _absent(folder: Traversable, model: type[Model], name: str) -> Document:
    """A file that is not there: it declares nothing. One beside it of nearly its name is a mistake."""
    layer, file = name.split("/")
    at, own = folder.joinpath(layer), file.removesuffix(".yaml")
    there = [one.name for one in at.iterdir()] if at.is_dir() else []
    stems = {
        one.rsplit(".", 1)[0]: one
        for one in there
        if one.endswith((".yaml", ".yml")) and f"{layer}/{one}" not in MODELS
    }
    path = str(at.joinpath(file))
    for near in get_close_matches(own, stems, n=1, cutoff=0.7):
        what = f"this file of the contracts is absent; is {stems[near]} meant to be it?"
        return Document(path, None, None, (ContractProblem(path, 1, "(file)", what),))
    return Document(path, None, model(), ())


def packaged_text(name: str) -> str:
    """The text of a contract that the wheel carries, by its key in MODELS."""
    return _packaged(name).read_text(encoding="utf-8")


def _packaged(name: str) -> Traversable:
    layer, file = name.split("/")
    return files(layer) / file


def read_document(path: Traversable, model: type[Model], *, name: str) -> Document:
    """One file. `name` is how messages call it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        absent = "this file of the contracts is absent; `lakehouse init` writes one to start from"
        return Document(name, None, None, (ContractProblem(name, 1, "(file)", absent),))
    except UnicodeDecodeError:
        return Document(name, None, None, (ContractProblem(name, 1, "(file)", "the file is not UTF-8 text"),))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line, why = place_and_reason(error, text)
        return Document(name, None, None, (ContractProblem(name, line, "(file)", f"not valid YAML: {why}"),))
    document = Document(name, root, None, ())
    problems = [document.problem(path, what) for path, what in _repeated_keys(root)]
    contract = None
    try:
        contract = model.model_validate(raw)
    except ValidationError as error:
        schema = model.model_json_schema()
        problems += [document.problem(path, what) for path, what in _refusals(error, schema)]
    problems.sort(key=lambda problem: problem.line or 0)
    return Document(name, root, None if problems else contract, tuple(problems))


def _located(documents: Mapping[str, Document], mistake: Mistake) -> ContractProblem:
    return documents[mistake.file].problem(mistake.path, mistake.what)


def _repeated_keys(node: yaml.Node | None, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Keys that occur twice in one mapping: YAML would take the last in silence."""
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _repeated_keys(item, (*path, number))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in lines and key.tag != "tag:yaml.org,2002:merge":
                yield (*path, key.value), f"{key.value!r} stands here twice, in lines {lines[key.value]} and {line}"
            lines.setdefault(key.value, line)
            yield from _repeated_keys(value, (*path, key.value))


def _refusals(error: ValidationError, schema: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """What the model refused, as paths and sentences. A misspelt key explains the absence of its right name."""
    found = error.errors(include_url=False)
    misspelt: dict[tuple[Path, str], str] = {}
    for one in found:
        if one["type"] == "extra_forbidden":
            path = _path(one["loc"])
            valid = _keys_at(schema, path[:-1])
            name = str(path[-1])
            misspelt |= {(path[:-1], meant): name for meant in closest(name, valid)}
            hint = did_you_mean(name, valid)
            yield path, f"the key {name!r} is not known here{hint} Keys here are: {', '.join(valid)}"
    for one in found:
        path = _path(one["loc"])
        if one["type"] == "missing" and (path[:-1], str(path[-1])) not in misspelt:
            yield path, f"the key {path[-1]!r} is required and absent"
    seen = set()
    for one in found:
        path = _path(one["loc"])
        # Of the branches of a union each complains: the first is enough.
        if one["type"] not in {"extra_forbidden", "missing"} and path not in seen:
            seen.add(path)
            yield path, _sentence(one["type"], one["msg"], one["input"], one.get("ctx", {}))


def _sentence(kind: str, message: str, value: object, context: Mapping[str, Any]) -> str:
    if kind == "literal_error":
        valid = str(context["expected"])
        names = valid.replace("'", "").replace(" or ", ", ").split(", ")
        return f"{value!r} is not one of {valid}{did_you_mean(str(value), names, otherwise='')}"
    if kind == "string_pattern_mismatch":
        return f"{value!r} cannot be a name here: it must match {context['pattern']}"
    text = message.removeprefix("Value error, ")
    shown = f" (it is {value!r})" if isinstance(value, str | int | float | bool) and kind != "value_error" else ""
    return text[:1].lower() + text[1:] + shown if kind != "value_error" else text


def _path(location: Sequence[str | int]) -> Path:
    """Pydantic's location without what it adds itself: the marks of keys, and names of models and of validators."""
    return tuple(part for part in location if isinstance(part, int) or not _ADDED.match(part))


# Of unions, keys and validators: `StartAtOffsets`, `[key]`, `literal['earliest',…]`, `function-plain[parse_type()]`.
_ADDED = re.compile(r"StartAt|\[key\]$|literal\[|function-")


def _keys_at(schema: Mapping[str, Any], path: Path) -> list[str]:
    """The keys that the model knows at a path of the file."""
    nodes = _objects(schema, schema)
    for part in path:
        nodes = [
            below
            for node in nodes
            for child in (
                node.get("properties", {}).get(part),
                node.get("additionalProperties"),
                *node.get("patternProperties", {}).values(),
                node.get("items") if isinstance(part, int) else None,
            )
            if isinstance(child, Mapping)
            for below in _objects(schema, child)
        ]
    return sorted({key for node in nodes for key in node.get("properties", {})})


def _objects(schema: Mapping[str, Any], node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The node with references followed and alternatives taken apart."""
    if "$ref" in node:
        return _objects(schema, schema["$defs"][str(node["$ref"]).rsplit("/", 1)[1]])
    alternatives: Iterable[Mapping[str, Any]] = node.get("anyOf", ())
    return [node, *[below for one in alternatives for below in _objects(schema, one)]]


def _key(path: Path) -> str:
    return ".".join(str(part) for part in path) or "(file)"


def _line_of(root: yaml.Node | None, path: Iterable[object]) -> int:
    """The line of the deepest node on `path` that the YAML really has."""
    node, line = root, 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            for key, value in reversed(node.value):  # of a key that occurs twice, the last
                if key.value == str(part):
                    node, line = value, key.start_mark.line + 1
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line
