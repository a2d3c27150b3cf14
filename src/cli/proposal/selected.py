"""Which topics of a broker are those of a database, and what the others are. Imports without pyspark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from cli.proposal.looked import Looked, Place
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
        if not any(_is_of(place, database, by) for place in one.places):
            continue
        if not all(_is_of(place, database, by) for place in one.places):
            others = _databases(place for place in one.places if not _is_of(place, database, by))
            remarks[one.topic] = f"events of other databases too: {', '.join(others)}; declare feeds for it"
        elif len(one.tables) > 1:
            remarks[one.topic] = f"events of {len(one.tables)} tables: declare a feed for each"
        else:
            candidates.append(one)
    kind = _kind(database, candidates, remarks)
    candidates = [one for one in candidates if {place.connector for place in one.places} == {kind}]
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
    return any(_is_of(place, database, "database") or _is_of(place, database, "schema") for place in one.places)


def _named(database: str, looked: Sequence[Looked]) -> Literal["database", "schema"]:
    places = [place for one in looked for place in one.places]
    is_schema = not any(_is_of(place, database, "database") for place in places)
    return "schema" if is_schema and any(_is_of(place, database, "schema") for place in places) else "database"


def _is_of(place: Place, database: str, by: Literal["database", "schema"]) -> bool:
    if by == "database":
        return place.database == database
    return place.connector == "postgresql" and place.schema == database


def _kind(database: str, candidates: Sequence[Looked], remarks: dict[str, str]) -> SourceKind:
    """The kind that most of them are of; the others get a remark."""
    connectors = Counter(place.connector for one in candidates for place in one.places)
    known = [(kind, count) for kind, count in connectors.most_common() if kind in KINDS]
    if connectors and not known:
        raise SettingsError(
            f"The events of database {database} are from the connector {connectors.most_common(1)[0][0]!r}: silver "
            "cannot order its positions.",
            remedy=f"Name a database of {', '.join(KINDS)}.",
        )
    kind = next(one for one in KINDS if not known or one == known[0][0])
    for one in candidates:
        other = next((place.connector for place in one.places if place.connector != kind), None)
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
        (place, *_), (table,) = one.places, one.tables
        first = by_table.setdefault((place.schema, table), one)
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
            remedy="Declare their feeds by hand (docs/own-tables.md).",
        )
    unread = [one for one in looked if one.what == "unread"]
    known = _databases(place for one in looked for place in one.places)
    known += sorted({place.schema for one in looked for place in one.places if place.schema} - set(known))
    stated = sorted(one.topic for one in looked if database in one.databases)
    empty = sorted(one.topic for one in looked if one.what == "empty" and database.lower() in one.topic.lower())
    close = get_close_matches(database, known, n=1) or [name for name in known if name.lower() == database.lower()]
    what = f"No topic has change events of a database {database}"
    what += f"; did you mean {close[0]}?" if close else "."
    what += f" Databases and schemas that have some: {', '.join(known)}." if known else " No other database has any."
    for topics, said in ((stated, "its schema changes are in"), (empty, "without a record yet:")):
        what += f" {said[0].upper()}{said[1:]} {', '.join(topics)}." if topics else ""
    by_hint = [one.topic for one in looked if "schema_registry" in one.said]
    remedies = []
    if by_hint:
        remedies.append(f"Name schema_registry in the file of --kafka-config, to read {by_hint[0]}")
    if unread:
        remedies.append(f"Try again, {len(unread)} of {len(looked)} topics were not looked at: {unread[0].said}")
    if not remedies:
        remedies.append("Check the name, and that the connector has published a first change: lakehouse connect status")
    return TopicMissingError(what, remedy="; or: ".join(remedies) + ".")


def _databases(places: Iterable[Place]) -> list[str]:
    return sorted({place.database for place in places})


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "unknown"
