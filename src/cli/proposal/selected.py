"""Which topics of a broker are those of a database, and what the others are. Imports without pyspark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cli.proposal.looked import Looked, TableOrigin
from lakehouse.contracts.checks.mistakes import did_you_mean
from lakehouse.contracts.topics import SourceKind
from lakehouse.errors import SettingsError, TopicMissingError

KINDS: tuple[SourceKind, ...] = get_args(SourceKind)


@dataclass(frozen=True)
class Selected:
    """The topics of a database: each has the changes of one of its tables."""

    database: str
    kind: SourceKind
    by: Literal["database", "schema"]
    """What has the name: a schema only of PostgreSQL, where no database has it."""
    topics: tuple[Looked, ...]
    prefixes: tuple[str, ...]
    """The `topic.prefix` of their connectors, the most frequent first."""
    schema_changes: str | None
    heartbeats: tuple[str, ...]
    remarks: Mapping[str, str]
    """Of topics, those that were taken and others: what is to be known of them."""


def select(database: str, looked: Sequence[Looked]) -> Selected:
    """The topics of the database. Raises TopicMissingError without any, SettingsError where silver knows no such one.

    A topic is of the database if all its events are, as their source blocks say, and of one table. Of a table that two
    connectors publish the topic of the one with more topics is taken.
    """
    by = _named(database, looked)
    remarks: dict[str, str] = {}
    candidates = []
    for one in looked:
        if not any(_is_of(origin, database, by) for origin in one.origins):
            continue
        if not all(_is_of(origin, database, by) for origin in one.origins):
            others = _databases(origin for origin in one.origins if not _is_of(origin, database, by))
            remarks[one.topic] = f"events of other databases too: {', '.join(others)}; declare feeds for it"
        elif len(one.tables) > 1:
            remarks[one.topic] = f"events of {len(one.tables)} tables: declare a feed for each"
        else:
            candidates.append(one)
    kind = _kind(database, candidates, remarks)
    candidates = [one for one in candidates if {origin.connector for origin in one.origins} == {kind}]
    taken = _of_one_connector_a_table(candidates, remarks)
    if not taken:
        raise _missing(database, by, looked, remarks)
    prefixes = tuple(name for name, _count in Counter(name for one in taken for name in one.prefixes).most_common())
    return Selected(
        database=database,
        kind=kind,
        by=by,
        topics=tuple(sorted(taken, key=lambda one: one.topic)),
        prefixes=prefixes,
        schema_changes=_schema_changes(database, looked, prefixes) if kind != "postgresql" else None,
        heartbeats=tuple(
            sorted(one.topic for one in looked if one.what == "heartbeats" and not one.prefixes.isdisjoint(prefixes))
        ),
        remarks=remarks,
    )


def may_be_of(database: str, one: Looked) -> bool:
    """Whether the topic has events of a database, or of a schema, of that name."""
    return any(_is_of(origin, database, "database") or _is_of(origin, database, "schema") for origin in one.origins)


def _named(database: str, looked: Sequence[Looked]) -> Literal["database", "schema"]:
    origins = [origin for one in looked for origin in one.origins]
    is_schema = not any(_is_of(origin, database, "database") for origin in origins)
    return "schema" if is_schema and any(_is_of(origin, database, "schema") for origin in origins) else "database"


def _is_of(origin: TableOrigin, database: str, by: Literal["database", "schema"]) -> bool:
    if by == "database":
        return origin.database == database
    return origin.connector == "postgresql" and origin.schema == database


def _kind(database: str, candidates: Sequence[Looked], remarks: dict[str, str]) -> SourceKind:
    """The kind that most of them are of; the others get a remark."""
    connectors = Counter(origin.connector for one in candidates for origin in one.origins)
    known = [(kind, count) for kind, count in connectors.most_common() if kind in KINDS]
    if connectors and not known:
        raise SettingsError(
            f"The events of database {database} are from the connector {connectors.most_common(1)[0][0]!r}: silver "
            "cannot order its positions.",
            hint=f"Name a database of {', '.join(KINDS)}.",
        )
    kind = next(one for one in KINDS if not known or one == known[0][0])
    for one in candidates:
        other = next((origin.connector for origin in one.origins if origin.connector != kind), None)
        if other is not None:
            remarks[one.topic] = f"of a database of the same name, by the connector {other!r}"
    return kind


def _of_one_connector_a_table(candidates: Sequence[Looked], remarks: dict[str, str]) -> list[Looked]:
    frequent = Counter(name for one in candidates for name in one.prefixes)
    ordered = sorted(
        candidates, key=lambda one: (-max((frequent[name] for name in one.prefixes), default=0), one.topic)
    )
    by_table: dict[tuple[str | None, str], Looked] = {}
    taken = []
    for one in ordered:
        (origin, *_), (table,) = one.origins, one.tables
        first = by_table.setdefault((origin.schema, table), one)
        if first is not one and first.prefixes != one.prefixes:
            remarks[one.topic] = f"the same table as in {first.topic}, by another connector ({_names(one.prefixes)})"
            continue
        if first is not one:
            remarks[one.topic] = f"the same table as in {first.topic}: it has a silver table of its own"
        taken.append(one)
    return taken


def _schema_changes(database: str, looked: Sequence[Looked], prefixes: Sequence[str]) -> str | None:
    """The connector's topic of schema changes; one that states some of the database before one that may."""
    of_connector = [one for one in looked if one.what == "schema changes" and not one.prefixes.isdisjoint(prefixes)]
    of_connector.sort(
        key=lambda one: (database not in one.databases, min(prefixes.index(p) for p in one.prefixes if p in prefixes))
    )
    return of_connector[0].topic if of_connector else None


def _missing(
    database: str, by: str, looked: Sequence[Looked], remarks: Mapping[str, str]
) -> TopicMissingError | SettingsError:
    """The error where no topic can be taken: what was seen, and what is to be done."""
    if remarks:
        why = "; ".join(f"{topic}: {remark}" for topic, remark in sorted(remarks.items()))
        return SettingsError(
            f"No topic has the changes of one table of database {database} alone. {why}.",
            hint="Declare their feeds by hand (docs/own-tables.md).",
        )
    unread = [one for one in looked if one.what == "unread"]
    known = _databases(origin for one in looked for origin in one.origins)
    known += sorted({origin.schema for one in looked for origin in one.origins if origin.schema} - set(known))
    stated = sorted(one.topic for one in looked if database in one.databases)
    empty = sorted(one.topic for one in looked if one.what == "empty" and database.lower() in one.topic.lower())
    what = f"No topic has change events of a database {database}{did_you_mean(database, known)}"
    what += f" Databases and schemas that have some: {', '.join(known)}." if known else " No other database has any."
    for topics, summary in ((stated, "its schema changes are in"), (empty, "without a record yet:")):
        what += f" {summary[0].upper()}{summary[1:]} {', '.join(topics)}." if topics else ""
    by_hint = [one.topic for one in looked if "schema_registry" in one.summary]
    hints = []
    if by_hint:
        hints.append(f"Name schema_registry in the file of --kafka-config, to read {by_hint[0]}")
    if unread:
        hints.append(f"Try again, {len(unread)} of {len(looked)} topics were not looked at: {unread[0].summary}")
    if not hints:
        hints.append("Check the name, and that the connector has published a first change: lakehouse connect status")
    return TopicMissingError(what, hint="; or: ".join(hints) + ".")


def _databases(origins: Iterable[TableOrigin]) -> list[str]:
    return sorted({origin.database for origin in origins})


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "unknown"
