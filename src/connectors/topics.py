"""`topics` of a connector's file, beside `name` and `config`: what the topics of its tables are called.

Absent, Debezium's names hold: PREFIX.DATABASE.TABLE, of PostgreSQL PREFIX.SCHEMA.TABLE. A pattern names the topic of
every table, `"topic_<>"` or `"{database}_{table}"`; an object names that of each table in it, `{"order_dw.user":
"users"}`. Kafka Connect gets RegexRouters for it: they match the whole of Debezium's names of this connector, and so no
topic of heartbeats, schema changes or transactions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connectors.checking.findings import Finding
from connectors.connectors import Connector
from connectors.routes import LEGAL, LONGEST, REGEX_ROUTER, Route, default_regex, default_topic, quoted

# Key, what, hint.
Mistake = tuple[str, str, str]
KEY = "topics"
_PLACEHOLDER = re.compile(r"<[^<>]*>|\{[^{}]*\}")
_TABLE = ("<>", "{table}")


def with_topics(connector: Connector, topics: Any) -> tuple[Connector, tuple[Finding, ...]]:
    """The connector with the transforms that give its tables' topics these names, or as it was and what is wrong."""
    mistakes = [*_wrong(connector, topics)]
    named = connector
    if not mistakes and isinstance(topics, str):
        named = _with_routes(connector, _of_pattern(connector, topics))
        mistakes = [*_shared(named)]
    elif not mistakes:
        named = _with_routes(connector, _of_names(connector, topics))
    return connector if mistakes else named, tuple(_finding(connector, *one) for one in mistakes)


def _of_pattern(connector: Connector, pattern: str) -> Sequence[Route]:
    groups = {_own(connector): "$1"} | dict.fromkeys(_TABLE, "$2")
    replacement = _PLACEHOLDER.sub(lambda one: groups[one[0]], pattern)
    prefix = connector.get("topic.prefix")
    regex = default_regex(prefix)
    # Only where the option that names one of them makes it look like a table's.
    others = [topic for topic in connector.other_topics if re.fullmatch(regex, topic)]
    return [Route("".join(f"(?!{quoted(topic)}$)" for topic in others) + regex, replacement)]


def _of_names(connector: Connector, names: Mapping[str, str]) -> Sequence[Route]:
    prefix = connector.get("topic.prefix")
    return [Route(quoted(default_topic(prefix, table)), name) for table, name in names.items()]


def _with_routes(connector: Connector, routes: Sequence[Route]) -> Connector:
    before = connector.listed("transforms")
    base = KEY
    while any(name.startswith(base) for name in before):
        base += "_"
    names = [base] if len(routes) == 1 else [f"{base}{number}" for number, _route in enumerate(routes, start=1)]
    if not names:
        return connector
    config = {**connector.config, "transforms": ",".join((*before, *names))}
    for name, route in zip(names, routes, strict=True):
        config[f"transforms.{name}.type"] = REGEX_ROUTER
        config[f"transforms.{name}.regex"] = route.regex
        config[f"transforms.{name}.replacement"] = route.replacement
    return connector.model_copy(update={"config": config})


def _wrong(connector: Connector, topics: Any) -> Iterator[Mistake]:
    of_connector = [*_wrong_connector(connector)]
    yield from of_connector
    if isinstance(topics, str):
        yield from _wrong_pattern(connector, topics)
    elif not isinstance(topics, dict):
        yield KEY, "it is neither a pattern nor an object.", 'Write "topic_<>", or {"DATABASE.TABLE": "NAME"}.'
    elif not of_connector:
        taken: dict[str, str] = {}
        for table, name in topics.items():
            yield from ((f"{KEY}: {table}", *one) for one in _wrong_name(connector, table, name, taken))


def _wrong_connector(connector: Connector) -> Iterator[Mistake]:
    if connector.database is None:
        what = "only the topics of Debezium's connectors of PostgreSQL, MySQL and MariaDB get names by it."
        yield KEY, what, "Remove it."
        return
    if connector.routes_outbox:
        what = "the EventRouter names the topics of its events itself."
        yield KEY, what, "Remove it: the EventRouter has route.topic.replacement."
    prefix = connector.get("topic.prefix")
    if not prefix or "${" in prefix:
        what = "the names are made from topic.prefix, which is absent or is filled in later."
        yield KEY, what, "Set topic.prefix; of a variable of the bundle: lakehouse connect render."
    for option, default in (("topic.delimiter", "."), ("topic.naming.strategy", _STRATEGY)):
        if connector.get(option, default) != default:
            yield KEY, f"{option} gives topics other names than those it goes by.", f"Remove {option}, or {KEY}."


_STRATEGY = "io.debezium.schema.SchemaTopicNamingStrategy"


def _wrong_pattern(connector: Connector, pattern: str) -> Iterator[Mistake]:
    known = [*_TABLE, _own(connector)]
    unknown = [one for one in dict.fromkeys(_PLACEHOLDER.findall(pattern)) if one not in known]
    for placeholder in unknown:
        what = f"{placeholder} is no placeholder, in {pattern!r}."
        yield KEY, what, f"There are: <> or {{table}}, and {_own(connector)}."
    if unknown:
        return
    if not any(table in pattern for table in _TABLE):
        what = f"{pattern!r} has not the table's name: all tables would share one topic."
        yield KEY, what, 'Write <> where the table\'s name goes: "topic_<>".'
    elif not _is_legal(_PLACEHOLDER.sub("x", pattern)):
        yield KEY, f"Kafka takes no topic of the name {pattern!r}.", _LEGAL


_LEGAL = f"Use letters, digits, dots, hyphens and underscores, {LONGEST} of them at most."


def _wrong_name(connector: Connector, table: str, name: Any, taken: dict[str, str]) -> Iterator[tuple[str, str]]:
    own = _own(connector)[1:-1]
    parts = table.split(".")
    prefix = connector.get("topic.prefix")
    is_table = len(parts) > 1 and all(part.strip() == part != "" for part in parts) and "${" not in table
    is_longer = len(parts) > 2 and parts[0] in {prefix, connector.get("database.dbname")}
    if not is_table or (is_longer and _reads(connector, parts[1:])):
        yield f"it is no table of the form {own}.table.", f"Write {own}.table, without the prefix."
    elif not _reads(connector, parts):
        yield "the connector does not read this table.", "Correct it, or the connector's include.list options."
    if not isinstance(name, str) or not _is_legal(name):
        yield f"Kafka takes no topic of the name {name!r}.", _LEGAL
        return
    if name in connector.other_topics:
        yield f"{name} is the topic of the connector's {connector.other_topics[name]}.", "Take another name."
    elif re.fullmatch(default_regex(prefix), name) and name != default_topic(prefix, table):
        yield f"{name} is Debezium's own name for the topic of another table.", "Take another name."
    same = name.replace(".", "_")
    other = taken.setdefault(same, table)
    if other != table:
        yield f"{other} has the name {name} too; to Kafka a dot and an underscore are the same.", "Take another name."


_ANOTHER = "Take a pattern that gives each table a topic of its own."


def _shared(connector: Connector) -> Iterator[Mistake]:
    """Of tables that are named one by one it is known what a pattern makes of them."""
    taken: dict[str, str] = {}
    for table in connector.tables:
        topic = connector.topic_of(table)
        other = taken.setdefault(topic.replace(".", "_"), table)
        if other != table:
            yield KEY, f"{other} and {table} get the same topic, {topic}.", _ANOTHER
        if topic in connector.other_topics:
            what = f"the topic of {table}, {topic}, is that of the connector's {connector.other_topics[topic]}."
            yield KEY, what, _ANOTHER


def _own(connector: Connector) -> str:
    """The placeholder of what a table is in."""
    return "{schema}" if connector.database == "postgresql" else "{database}"


def _is_legal(name: str) -> bool:
    return LEGAL.fullmatch(name) is not None and name not in {".", ".."} and len(name) <= LONGEST


def _reads(connector: Connector, parts: Sequence[str]) -> bool:
    """Whether the lists of the connector take the table in, as Debezium reads them; a list of a variable may."""
    own = "database.include.list" if connector.reads_binlog else "schema.include.list"
    return _listed(connector, own, parts[0]) and _listed(connector, "table.include.list", ".".join(parts))


def _listed(connector: Connector, option: str, name: str) -> bool:
    patterns = connector.listed(option)
    try:
        return not patterns or any(
            "${" in pattern or re.fullmatch(pattern, name, re.IGNORECASE) for pattern in patterns
        )
    except re.error:
        return True


def _finding(connector: Connector, key: str, what: str, hint: str) -> Finding:
    line = connector.lines.get(key.removeprefix(f"{KEY}: "), connector.lines.get(KEY))
    return Finding(check=KEY, file=connector.file, line=line, connector=connector.name, key=key, what=what, hint=hint)
