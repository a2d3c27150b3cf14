"""The table that a rule makes of a topic: its name, its key and its columns, from a sample of the topic's records.

Types are those of the messages' schemas; without schemas those of the database's own definition, where the rule names a
topic of schema changes; else the weakest that hold every value: BIGINT, BOOLEAN, and STRING for all others. Imports
without pyspark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.contracts.by_rule import DiscoveredTable, KnownBy, MadeColumn
from lakehouse.contracts.parts.column_types import parse_source_type, parse_type
from lakehouse.contracts.parts.names import as_name, column_name, is_table_name, route_name, unique
from lakehouse.contracts.tables import Column
from lakehouse.contracts.topics import SourceKind, TableRule
from lakehouse.registered import RegisteredSchema
from silver.by_rule.definitions import Definition, guess_of, mixed_encodings
from silver.by_rule.events import Event, events_of, seen
from silver.by_rule.types import Guess, from_schemas, weakest
from silver.decode.drift import BY_DEFINITION, BY_SCHEMA, came_as
from silver.decode.reference.message import Json, Record
from silver.decode.reference.table import table_name


@dataclass(frozen=True)
class Rule:
    """A rule, and the source that has it."""

    source: str
    kind: SourceKind
    name: str
    declared: TableRule


def discovered_table(
    rule: Rule,
    topic: str,
    records: Sequence[Record],
    *,
    taken: Collection[str],
    registered: Mapping[int, RegisteredSchema] | None = None,
    defined: Mapping[str, Definition] | None = None,
) -> DiscoveredTable:
    """The table of a topic with these records; one that cannot be made yet says why, and has no columns.

    `taken`: the names that it cannot have. `registered`: the registry's schemas. `defined`: tables as the database
    defines them; None where the rule names no topic of schema changes.
    """
    readings = events_of(records, registered)
    events = [one for one in readings if isinstance(one, Event) and one.envelope == "table" and one.source is not None]
    tables = {table_of(event, rule.kind) for event in events}
    known_by = known_by_of(events, defined)
    table = min(tables) if len(tables) == 1 and is_table_name(min(tables)) else ""
    name = _name(rule, topic, events[0] if events else None, table, taken)

    def undiscovered(why: str, *, may_be_accepted: bool = True) -> DiscoveredTable:
        return DiscoveredTable(
            source=rule.source,
            rule=rule.name,
            name=name,
            topic=topic,
            table=table,
            known_by=known_by,
            why=why,
            may_be_accepted=may_be_accepted,
        )

    if len(tables) > 1:
        return undiscovered(f"topic {topic} has events of {len(tables)} tables: {', '.join(sorted(tables))}")
    if not any(event.row is not None or event.schemas for event in events):
        return undiscovered(f"nothing in topic {topic} states a row yet: {seen(readings)}")
    if known_by == BY_DEFINITION and table not in (defined or {}):
        asked = table or f"the table of topic {topic}"
        return undiscovered(f"topic {rule.declared.schema_changes} does not say yet what {asked} is")
    if known_by == BY_DEFINITION and (mixed := encodings_differ((defined or {})[table], rule.declared)):
        return undiscovered("; ".join(mixed), may_be_accepted=False)
    keys = _keys(events)
    sample = Sample(rule.declared, events, known_by, (defined or {}).get(table))
    columns: dict[str, MadeColumn] = {}
    for number, field in enumerate(_fields(sample, keys), start=1):
        own = unique(column_name(field, number=number), columns)
        columns[own] = sample.column(own, field)
    named = {column.declared.fields[0] if column.declared.fields else own: own for own, column in columns.items()}
    return DiscoveredTable(
        source=rule.source,
        rule=rule.name,
        name=name,
        topic=topic,
        table=table,
        known_by=known_by,
        keys=tuple(named[key] for key in keys),
        columns=columns,
    )


def encodings_differ(definition: Definition, rule: TableRule) -> tuple[str, ...]:
    """Why records without a schema cannot be read, where the definition of their columns has changed."""
    return tuple(
        f"the column {name} {what}: in messages without a schema nothing says which of its values are which"
        for name, what in mixed_encodings(definition, rule).items()
    )


def table_of(event: Event, kind: str) -> str:
    """The event's table as contracts name it."""
    return "" if event.source is None else table_name(event.source.table or "", event.source, kind)


def known_by_of(events: Iterable[Event], defined: Mapping[str, Definition] | None) -> KnownBy:
    """What says the types of these events' columns."""
    if any(event.schemas for event in events):
        return BY_SCHEMA
    return "values" if defined is None else BY_DEFINITION


@dataclass(frozen=True)
class Sample:
    """Events of a table, and what says the types of its columns. `definition`: as the database has it."""

    rule: TableRule
    events: Sequence[Event]
    known_by: KnownBy
    definition: Definition | None = None

    def column(self, name: str, field: str) -> MadeColumn:
        """The column of a field: its type, and as what it came."""
        guess, came = self._guess(field)
        declared = Column(
            type=parse_type(guess.type),
            fields=() if name == field else (field,),
            source_type=None if guess.source_type is None else parse_source_type(guess.source_type),
            epoch_unit=guess.epoch_unit,
            # What the connector has cut it has cut before there was a table.
            allow_cut_digits=True,
        )
        return MadeColumn(declared=declared, came_as=came)

    def _guess(self, field: str) -> tuple[Guess, tuple[str, ...]]:
        schemas = [event.schemas[field] for event in self.events if field in event.schemas]
        defined = None if self.definition is None else self.definition.columns.get(field)
        if self.known_by == BY_SCHEMA and schemas:
            return from_schemas(schemas), tuple(dict.fromkeys(came_as(schema) for schema in schemas))
        if self.known_by == BY_DEFINITION and defined is not None:
            return guess_of(defined, self.rule), (defined.text,)
        return weakest(_values(field, self.events)), ()


def _name(rule: Rule, topic: str, event: Event | None, table: str, taken: Collection[str]) -> str:
    fixed = rule.declared.names.get(table)
    source = None if event is None else event.source
    of_route = None
    if source is not None:
        of_route = route_name(
            rule.declared.name,
            database=source.db or "",
            schema=source.schema or "",
            table=source.table or "",
            topic=topic,
        )
    return unique(fixed or of_route or as_name(topic) or "table", taken)


def _keys(events: Sequence[Event]) -> tuple[str, ...]:
    keys = Counter(tuple(event.key.fields) for event in events if event.key.fields)
    return keys.most_common(1)[0][0] if keys else ()


def _fields(sample: Sample, keys: Sequence[str]) -> list[str]:
    """All fields, in the order of the database, or of the newest events; then those that older ones had."""
    by_database = sample.known_by == BY_DEFINITION and sample.definition is not None
    of_database = list(sample.definition.columns) if by_database and sample.definition else []
    parts = [part for event in reversed(sample.events) for part in (event.schemas, event.row or {})]
    return list(dict.fromkeys([*of_database, *(field for part in parts for field in part), *keys]))


def _values(field: str, events: Sequence[Event]) -> list[Json]:
    rows = [event.row[field] for event in events if event.row is not None and field in event.row]
    of_keys = [event.key.fields[field] for event in events if event.key.fields and field in event.key.fields]
    return rows or of_keys
