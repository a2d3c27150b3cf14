"""Names of topics: what Debezium calls a table's, and what a RegexRouter of Kafka Connect makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REGEX_ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
# What a part of a topic's name may be.
LEGAL = re.compile(r"[A-Za-z0-9._-]+")
LONGEST = 249
# A regex of a database that is not known.
ANY = "[^.]+"
# In a replacement of Java's: `\x`, `$1`, `${name}`.
_REFERENCE = re.compile(r"\\(?P<quoted>.)|\$(?P<number>\d)|\$\{(?P<name>\w+)\}", re.DOTALL)


def sanitized(name: str) -> str:
    """The name as Debezium writes it into a topic's: `_` for every character that Kafka does not take."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def default_topic(prefix: str, table: str) -> str:
    """Debezium's name for the topic of a table, which is `database.table`, of PostgreSQL `schema.table`."""
    return sanitized(f"{prefix}.{table}")[:LONGEST]


def default_regex(prefix: str) -> str:
    """A regex of those names and no others of the connector; group 1 is the database or schema, 2 the table."""
    return rf"{quoted(prefix)}\.({ANY})\.(.+)"


def quoted(name: str) -> str:
    """The name as a regex that matches it and nothing else, of Java and of Python."""
    return re.escape(name).replace(r"\-", "-")


@dataclass(frozen=True)
class Route:
    """A RegexRouter: it renames a topic that its regex matches whole, and lets every other be."""

    regex: str
    replacement: str

    def of(self, topic: str) -> str:
        """The name that it gives the topic. A regex that is none matches nothing."""
        try:
            found = re.fullmatch(re.sub(r"\(\?<(?=\w)", "(?P<", self.regex), topic)
        except re.error:
            return topic
        if found is None:
            return topic

        def filled(one: re.Match[str]) -> str:
            if one["quoted"] is not None:
                return one["quoted"]
            try:
                return found[_group(one)] or ""
            except IndexError:
                return one[0]

        return _REFERENCE.sub(filled, self.replacement)

    def image(self, groups: Mapping[str, str]) -> str:
        """A regex of the names that it gives. `groups`: what is known of the regex's groups; the rest may be all."""
        parts, end = [], 0
        for one in _REFERENCE.finditer(self.replacement):
            parts.append(quoted(self.replacement[end : one.start()]))
            is_text = one["quoted"] is not None
            parts.append(quoted(one["quoted"]) if is_text else f"(?:{groups.get(str(_group(one)), '.+')})")
            end = one.end()
        return "".join([*parts, quoted(self.replacement[end:])])

    def leaves_a_sign(self, groups: Mapping[str, str]) -> bool:
        """Whether the names that it gives have a word that other topics have not: of its own, or of a known group."""
        known = [f"${number}" in self.replacement for number, regex in groups.items() if regex != ANY]
        return any(known) or bool(re.search(r"[A-Za-z0-9]", _REFERENCE.sub("", self.replacement)))


def _group(one: re.Match[str]) -> int | str:
    return int(one["number"]) if one["number"] is not None else one["name"]


def routed(topic: str, routes: Iterable[Route]) -> str:
    """The topic's name after all of the routes, one after the other."""
    for route in routes:
        topic = route.of(topic)
    return topic
