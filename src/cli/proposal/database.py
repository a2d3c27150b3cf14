"""Contracts for a database, proposed from samples of a broker's topics: a rule by which silver makes its tables.

The comments and the table say names, counts and shapes; no value of a row is in them. Imports without pyspark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cli.proposal.includes import Include, Named, includes, literal
from cli.proposal.looked import Looked
from cli.proposal.options import Option, options
from cli.proposal.selected import Selected, select
from cli.proposal.texts.published import gold_text
from cli.proposal.texts.text import comment, line, scalar, schema_line
from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.checks.mistakes import GOLD, TOPICS
from lakehouse.contracts.parts.names import as_name
from lakehouse.contracts.topics import TableRule
from lakehouse.registered import RegisteredSchema
from silver.by_rule.definitions import Definition, definitions
from silver.by_rule.discovered import Rule, discovered_table, table_of
from silver.decode.reference.message import Record

_MAX_NAMED = 5


@dataclass(frozen=True)
class TopicRow:
    """A topic as a person is shown it. Of one that is not taken there are only `records` and `remark`."""

    topic: str
    taken: bool
    table: str = ""
    silver_table: str = ""
    keys: tuple[str, ...] = ()
    columns: int | None = None
    types_by: str = ""
    records: int | None = None
    remark: str = ""


@dataclass(frozen=True)
class DatabaseProposal:
    """The files of a folder of contracts, and what was found: the topics of the database first, then the others."""

    texts: Mapping[str, str]
    rows: tuple[TopicRow, ...]


@dataclass(frozen=True)
class SchemaChanges:
    """Records of the connector's topic of schema changes; `is_whole`: all that it has."""

    records: Sequence[Record] = ()
    is_whole: bool = True


@dataclass(frozen=True)
class _Stated:
    """What is known beside the events. `registered`: the registry's schemas. `defined`: tables by the database."""

    registered: Mapping[int, RegisteredSchema] | None
    defined: Mapping[str, Definition]
    is_whole: bool
    """Whether all that the topic of schema changes has is known."""


@dataclass(frozen=True)
class _Found:
    """All that the files say."""

    selected: Selected
    looked: Sequence[Looked]
    source: str
    rule_name: str
    rule: TableRule
    includes: Sequence[Include]
    options: Sequence[Option]
    discovered: Mapping[str, DiscoveredTable]
    """By topic."""
    remarks: Mapping[str, str]


def propose_database(
    database: str,
    looked: Sequence[Looked],
    *,
    schema_changes: SchemaChanges = SchemaChanges(),
    registered: Mapping[int, RegisteredSchema] | None = None,
) -> DatabaseProposal:
    """The contracts for all tables of a database. `registered`: the registry's schemas that records name.

    Raises TopicMissingError when no topic is of the database, SettingsError where silver cannot read what is.
    """
    selected = select(database, looked)
    stated = _Stated(registered, definitions(schema_changes.records, registered), schema_changes.is_whole)
    found = _found(selected, looked, stated)
    texts = {TOPICS: _topics(found), GOLD: gold_text(found.rule, list(found.discovered.values()))}
    return DatabaseProposal(
        texts={file: "\n".join([schema_line(file), *lines, ""]) for file, lines in texts.items()}, rows=_rows(found)
    )


def _found(selected: Selected, looked: Sequence[Looked], stated: _Stated) -> _Found:
    taken = {one.topic for one in selected.topics}
    ignored = {*selected.heartbeats, *([selected.schema_changes] if selected.schema_changes else [])}
    others = [one for one in looked if one.topic not in taken | ignored]
    patterns = includes(
        [_named(one, selected) for one in selected.topics], [one.topic for one in others if one.what != "empty"]
    )
    known = {_table(one, selected): one.events for one in selected.topics}
    chosen = options(known, stated.defined)
    rule = TableRule.model_validate(
        {
            "include": tuple(one.pattern for one in patterns),
            "exclude": tuple(literal(one.topic) for one in others if _is_excluded(one, patterns)),
            "name": _route(selected),
            "schema_changes": _used(selected, known, stated),
            **{option.name: option.value for option in chosen},
        }
    )
    source = as_name(selected.prefixes[0] if len(selected.prefixes) == 1 else selected.database) or "source"
    rule_name = as_name(selected.database) or "database"
    discovered, remarks = dict[str, DiscoveredTable](), dict(selected.remarks)
    for one in selected.topics:
        wanted = Rule(source, selected.kind, rule_name, rule)
        table, remark = _discovered(wanted, one, {discovered[topic].name for topic in discovered}, stated)
        discovered[one.topic] = table
        remarks[one.topic] = "; ".join(part for part in (remark, selected.remarks.get(one.topic, "")) if part)
    return _Found(selected, looked, source, rule_name, rule, patterns, chosen, discovered, remarks)


def _named(one: Looked, selected: Selected) -> Named:
    (origin, *_), (table,) = one.origins, one.tables
    outer = origin.schema if selected.kind == "postgresql" else origin.database
    return Named(one.topic, table, outer or "", min(one.prefixes, default=""))


def _table(one: Looked, selected: Selected) -> str:
    return table_of(one.events[0], selected.kind)


def _is_excluded(one: Looked, patterns: Sequence[Include]) -> bool:
    is_known = one.what not in ("empty", "unread")
    return is_known and any(re.fullmatch(include.pattern, one.topic) for include in patterns)


def _route(selected: Selected) -> str:
    """The names of the silver tables; with the schema where two schemas have a table of one name."""
    if selected.by == "schema":
        return "{schema}_{table}"
    tables = Counter(table for one in selected.topics for table in one.tables)
    schemas = {origin.schema for one in selected.topics for origin in one.origins}
    is_in_several = len(schemas) > 1 and max(tables.values()) > 1
    return "{database}_{schema}_{table}" if is_in_several else "{database}_{table}"


def _used(selected: Selected, tables: Collection[str], stated: _Stated) -> str | None:
    """The topic of schema changes, unless it is known to state none of the tables: they would wait for it."""
    is_of_use = not stated.is_whole or any(table in stated.defined for table in tables)
    return selected.schema_changes if is_of_use else None


def _discovered(rule: Rule, one: Looked, taken: Collection[str], stated: _Stated) -> tuple[DiscoveredTable, str]:
    """What silver will make of a topic, and a remark. It has more of the topic of schema changes than a sample."""
    by_values = discovered_table(rule, one.topic, one.sample, taken=taken, registered=stated.registered)
    of_values = by_values.why or _without_key(by_values)
    changes = rule.declared.schema_changes
    if changes is None:
        return by_values, of_values
    if stated.is_whole or by_values.table in stated.defined or by_values.known_by == "schema of the messages":
        discovered = discovered_table(
            rule, one.topic, one.sample, taken=taken, registered=stated.registered, defined=stated.defined
        )
        return discovered, discovered.why or _without_key(discovered)
    return by_values, "; ".join(part for part in (of_values, f"not in what was read of {changes}") if part)


def _without_key(discovered: DiscoveredTable) -> str:
    return "" if discovered.keys else "no key: silver has the list of its changes"


# The table


def _rows(found: _Found) -> tuple[TopicRow, ...]:
    taken = [_taken_row(found, one) for one in found.selected.topics]
    names = {row.topic for row in taken}
    others = sorted((one for one in found.looked if one.topic not in names), key=_near_first)
    return (*taken, *(TopicRow(one.topic, False, records=one.records, remark=_other(found, one)) for one in others))


def _taken_row(found: _Found, one: Looked) -> TopicRow:
    discovered = found.discovered[one.topic]
    return TopicRow(
        topic=one.topic,
        taken=True,
        table=_table(one, found.selected),
        silver_table=f"silver.{discovered.name}",
        keys=discovered.keys,
        columns=len(discovered.columns) if discovered.is_made else None,
        types_by=discovered.known_by,
        records=one.records,
        remark=found.remarks[one.topic],
    )


_ORDER = ("events", "schema changes", "heartbeats", "empty", "unread", "other", "schema history", "internal")


def _near_first(one: Looked) -> tuple[int, str]:
    return _ORDER.index(one.what), one.topic


def _other(found: _Found, one: Looked) -> str:
    """What a topic is that is not taken."""
    if one.topic in found.remarks:
        return found.remarks[one.topic]
    if one.what in ("schema changes", "heartbeats") and one.prefixes:
        return _of_connector(found, one)
    if one.what == "events":
        names = sorted({origin.database for origin in one.origins})
        return f"of database {', '.join(names)}" if names else "events that do not name their database"
    return (
        f"{one.summary}; the rule includes it"
        if one.what == "empty" and found.rule.has_topic(one.topic)
        else one.summary
    )


def _of_connector(found: _Found, one: Looked) -> str:
    if one.topic in found.selected.heartbeats:
        return "heartbeats of the connector: ignored"
    if one.topic == found.selected.schema_changes:
        return "schema changes of the connector" + ("" if found.rule.schema_changes else ": none of these tables")
    whose = "the" if set(one.prefixes) & set(found.selected.prefixes) else "another"
    return f"{one.what} of {whose} connector ({', '.join(sorted(one.prefixes))})"


# The files


def _topics(found: _Found) -> list[str]:
    selected = found.selected
    count = sum(one.records is not None for one in found.looked)
    what = "schema" if selected.by == "schema" else "database"
    events = sum(len(one.events) for one in selected.topics)
    source_why = (
        f"the connector's topic.prefix, in {events} events"
        if len(selected.prefixes) == 1
        else f"of {len(selected.prefixes)} connectors ({', '.join(sorted(selected.prefixes))}): check"
    )
    return [
        *comment(
            f"Proposed for the {what} {selected.database}: {len(selected.topics)} of {count} topics that were looked "
            "at have its changes, a few records of each."
        ),
        *comment("Silver makes a table of every topic that the rule includes, without a contract for it."),
        *comment("Check what the comments say of every guess, then: lakehouse validate --contracts DIR."),
        "sources:",
        *line(2, f"{scalar(found.source)}:", source_why),
        *line(4, f"kind: {selected.kind}", f"the connector of {events} events"),
        *line(4, "start: earliest", "of the very first run; every later one continues"),
        "    by_rule:",
        f"      {scalar(found.rule_name)}:",
        *_include(found),
        *_exclude(found),
        *line(8, f"name: {scalar(found.rule.name)}", f"for example silver.{min(_made_names(found))}"),
        *_schema_changes(found),
        *[one for option in found.options for one in line(8, f"{option.name}: {option.value}", f"{option.why}: check")],
        *_ignored(found),
    ]


def _made_names(found: _Found) -> list[str]:
    return [discovered.name for discovered in found.discovered.values()]


def _include(found: _Found) -> list[str]:
    lines = []
    empty = [one.topic for one in found.looked if one.what == "empty"]
    for one in found.includes:
        why = _some(one.topics)
        if one.is_open:
            matched = [topic for topic in empty if re.fullmatch(one.pattern, topic)]
            without = f"; without a record yet: {_some(matched)}" if matched else ""
            why = f"{why}, and tables to come{without}"
        lines += line(10, f"- {_quoted(one.pattern)}", why if one.is_open else "")
    if any(not one.is_open for one in found.includes):
        why = "a topic that is named by itself: a new table is not included before its topic is added here"
        return [*line(8, "include:", why), *lines]
    return ["        include:", *lines]


def _some(topics: Sequence[str]) -> str:
    more = len(topics) - _MAX_NAMED
    return ", ".join(topics[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _quoted(pattern: str) -> str:
    return f"'{pattern}'"  # only characters of topics' names, and of the pattern


def _exclude(found: _Found) -> list[str]:
    if not found.rule.exclude:
        return []
    remarks = {literal(one.topic): _other(found, one) for one in found.looked}
    lines = [one for topic in found.rule.exclude for one in line(10, f"- {_quoted(topic)}", remarks[topic])]
    return [*line(8, "exclude:", "they match, and have no changes of one table of the database"), *lines]


def _schema_changes(found: _Found) -> list[str]:
    topic = found.rule.schema_changes
    bare = sorted(
        {discovered.name for discovered in found.discovered.values() if discovered.known_by != "schema of the messages"}
    )
    if topic is not None:
        used = f"for {_some(bare)}" if bare else "not needed, all messages here have one"
        why = f"states the types of columns where messages have no schema: {used}"
        return line(8, f"schema_changes: {scalar(topic)}", why)
    if not bare:
        return []
    unused = found.selected.schema_changes
    is_absent = f"{unused} states none of the tables" if unused else "there is no topic of schema changes"
    if found.selected.kind == "postgresql":
        is_absent = "PostgreSQL has no topic of schema changes"
    why = (
        f"The messages of {_some(bare)} have no schema, and {is_absent}: columns are BIGINT, BOOLEAN or STRING, as "
        "their values are. For the database's own types let the converter write schemas (schemas.enable=true, or Avro)."
    )
    return [f"        {one}" for one in comment(why, indent=8)]


def _ignored(found: _Found) -> list[str]:
    why = "heartbeats of this connector; read when they exist"
    if found.selected.heartbeats:
        return [*line(4, "ignored_topics:", why), *(f"      - {scalar(one)}" for one in found.selected.heartbeats)]
    return line(4, "ignored_topics: []", why)
