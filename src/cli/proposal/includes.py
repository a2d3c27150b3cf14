"""The regular expressions for the topics of a database, as narrow as their names allow. Imports without pyspark."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Fewer letters and digits around the table's name say nothing of whose topics these are.
_LEAST_FIXED = 2


@dataclass(frozen=True)
class Named:
    """A topic, and what its events say of where they are from."""

    topic: str
    table: str
    outer: str
    """The database; of PostgreSQL the schema."""
    prefix: str
    """The connector's `topic.prefix`."""


@dataclass(frozen=True)
class Include:
    """A regular expression, the topics found that it matches, and whether it matches those of new tables."""

    pattern: str
    topics: tuple[str, ...]
    is_open: bool


def includes(found: Sequence[Named], others: Collection[str]) -> Sequence[Include]:
    """Patterns that match all topics found, none twice. `others`: topics that may be of something else.

    Topics whose names end as Debezium's own do (DATABASE.TABLE, of PostgreSQL SCHEMA.TABLE) have one that matches new
    tables, and maybe others. Two or more that have the table's name between the same words have such a one where
    it matches no other. Every other topic is named by itself.
    """
    groups: dict[tuple[str, str], list[Named]] = {}
    for one in found:
        groups.setdefault(_around(one), []).append(one)
    patterns, left = list[str](), sorted(one.topic for one in found)
    for (before, behind), members in groups.items():
        pattern = f"{literal(before)}.*{literal(behind)}"
        is_default = not behind and all(f".{before}".endswith(f".{_as_debezium_writes(one.outer)}.") for one in members)
        is_clear = _fixed(before + behind) >= _LEAST_FIXED and not any(re.fullmatch(pattern, name) for name in others)
        if is_default or (len(members) > 1 and is_clear):
            patterns.append(pattern)
    includes = list[Include]()
    for pattern in sorted(patterns):
        names = tuple(name for name in left if re.fullmatch(pattern, name))
        includes.append(Include(pattern, names, is_open=True))
        left = [name for name in left if name not in names]
    return [
        *(one for one in includes if one.topics),
        *(Include(literal(name), (name,), is_open=False) for name in left),
    ]


def literal(topic: str) -> str:
    """The regular expression that matches this name of a topic, or this part of one, alone."""
    return topic.replace(".", r"\.")  # no other character of topics' names means something there


def _around(one: Named) -> tuple[str, str]:
    """What stands before and behind the table's name in the topic's; the whole name where that is not in it."""
    table = _as_debezium_writes(one.table)
    if one.topic == f"{_default(one)}{table}":
        return _default(one), ""
    at = list(re.finditer(rf"(?<![A-Za-z0-9]){re.escape(table)}(?![A-Za-z0-9])", one.topic))
    if not table or not at:
        return one.topic, ""
    return one.topic[: at[-1].start()], one.topic[at[-1].end() :]


def _default(one: Named) -> str:
    return f"{_as_debezium_writes(one.prefix)}.{_as_debezium_writes(one.outer)}."


def _as_debezium_writes(name: str) -> str:
    """The name as it stands in the names of topics: with `_` for what those cannot have."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _fixed(text: str) -> int:
    return sum(character.isalnum() for character in text)
