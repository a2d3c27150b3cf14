"""A connector's JSON file, read so that every mistake of the file is a finding with its line.

Kafka Connect takes `{"name": ..., "config": {...}}` to create a connector, and the bare options to change it. Beside
`name` and `config` a file may have `topics`, which becomes transforms in `config` (connectors.topics).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.checking.findings import Finding
from connectors.connectors import Connector
from connectors.topics import with_topics
from lakehouse.errors import SettingsError


@dataclass(frozen=True)
class ConnectorFile:
    """What a file holds: the connector if it is one, and what is wrong with the file itself."""

    connector: Connector | None
    findings: tuple[Finding, ...] = ()


# Of a place in the file ("name", "NAME: KEY") and the text there: the text with what is filled in.
Fill = Callable[[str, str], str]


def as_it_is(_place: str, text: str) -> str:
    """The text, nothing filled in."""
    return text


def read_file(path: Path, *, fill: Fill = as_it_is) -> ConnectorFile:
    """The connector in a file. Raises SettingsError when the file cannot be read at all, and what `fill` raises."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{path} cannot be read: {why}.", hint="Give the path of a connector's JSON.") from None
    return read_text(text, file=str(path), name=path.stem, fill=fill)


def read_text(text: str, *, file: str, name: str, fill: Fill = as_it_is) -> ConnectorFile:
    """The connector in a text. `name` is its name where the text has options only. Raises what `fill` raises."""
    findings: list[Finding] = []

    def found(check: str, line: int | None, key: str, what: str, hint: str) -> None:
        findings.append(Finding(check=check, file=file, line=line, connector=name, key=key, what=what, hint=hint))

    comments, bare = without_comments(text)
    for line in comments:
        found("json", line, "(file)", "a comment: JSON has none, and Kafka Connect refuses the file.", "Remove it.")
    repeated: list[str] = []
    try:
        parsed = json.loads(bare, object_pairs_hook=lambda pairs: _object(pairs, repeated))
    except json.JSONDecodeError as error:
        found("json", error.lineno, "(file)", f"not valid JSON: {_explained(error, bare)}.", "Fix the line.")
        return ConnectorFile(None, tuple(findings))
    lines = _lines(bare)
    for key in repeated:
        found("json", lines.get(key), key, "the option stands here twice; the last one counts.", "Remove one of them.")
    topics: list[Any] = []
    if isinstance(parsed, dict) and isinstance(parsed.get("config"), dict):
        name, options = str(parsed.get("name", name)), parsed["config"]
        topics = [parsed["topics"]] if "topics" in parsed else []
    elif isinstance(parsed, dict) and "connector.class" in parsed:
        name, options = str(parsed.get("name", name)), parsed
    else:
        what = 'no connector: neither {"name", "config"} nor options with connector.class.'
        found("json", 1, "(file)", what, "Give the connector's configuration.")
        return ConnectorFile(None, tuple(findings))
    config = {}
    for key, value in options.items():
        if isinstance(value, bool):
            config[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            config[key] = fill(f"{name}: {key}", str(value))
        else:
            kind = "nothing (null)" if value is None else "a list" if isinstance(value, list) else "an object"
            found("json", lines.get(key), key, f"the value is {kind}; an option is text.", "Write it as a string.")
    connector = Connector(name=fill("name", name), config=config, file=file, lines=lines)
    for given in topics:
        connector, wrong = with_topics(connector, _filled(given, lambda text: fill(f"{name}: topics", text)))
        findings += wrong
    return ConnectorFile(connector, tuple(findings))


def _filled(parsed: Any, fill: Callable[[str], str]) -> Any:
    """The same with every text in it filled in, keys too."""
    if isinstance(parsed, dict):
        return {fill(key): _filled(value, fill) for key, value in parsed.items()}
    return fill(parsed) if isinstance(parsed, str) else parsed


def without_comments(text: str) -> tuple[tuple[int, ...], str]:
    """The lines where comments begin, and the text with blanks instead of them, every line where it was."""
    lines, pieces, end = [], [], 0
    for start, stop in _comments(text):
        lines.append(text.count("\n", 0, start) + 1)
        pieces += [text[end:start], re.sub(r"[^\n]", " ", text[start:stop])]
        end = stop
    return tuple(lines), "".join([*pieces, text[end:]])


# A string, which may hold what looks like a comment, or a comment.
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z)|#[^\n]*)', re.DOTALL)


def _comments(text: str) -> Iterator[tuple[int, int]]:
    for token in _TOKEN.finditer(text):
        if token["comment"] is not None:
            yield token.span()


def _object(pairs: list[tuple[str, Any]], repeated: list[str]) -> dict[str, Any]:
    names = [name for name, _value in pairs]
    repeated.extend(sorted({name for name in names if names.count(name) > 1}))
    return dict(pairs)


def _lines(text: str) -> dict[str, int]:
    """The line of every key; of one that occurs twice, the last."""
    keys = re.finditer(r'("(?:\\.|[^"\\\n])*")\s*:', text)
    return {json.loads(key[1]): text.count("\n", 0, key.start()) + 1 for key in keys}


def _explained(error: json.JSONDecodeError, text: str) -> str:
    """What Python's parser stumbles over, in plain words."""
    if text[: error.pos].rstrip().endswith(",") and text[error.pos : error.pos + 1] in {"}", "]"}:
        return "a comma before the closing bracket"
    if error.msg == "Illegal trailing comma before end of object":
        return "a comma before the closing bracket"
    if error.msg == "Expecting ',' delimiter":
        return "a comma or a bracket is missing before this place"
    if error.msg == "Expecting property name enclosed in double quotes":
        return "a key in double quotes is missing"
    return error.msg[:1].lower() + error.msg[1:]
