"""Records of a database's tables, and the tables that a rule makes of them, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.models import Feed
from lakehouse.contracts.topics import SourceKind, TableRule
from lakehouse.registered import RegisteredSchema
from silver.by_rule.definitions import Definition, definitions
from silver.by_rule.discovered import Rule, Sample, discovered_table
from silver.by_rule.events import Event, events_of
from silver.decode.reference.message import Record

TOPIC, DDL_TOPIC = "order_dw.order_dw.user", "order_dw"
Json = Mapping[str, Any]


def rule(kind: SourceKind = "mysql", **declared: Any) -> Rule:
    """The rule `all` of source `dw`."""
    of_rule = TableRule.model_validate({"include": ("order_dw\\..*",), **declared})
    return Rule("dw", kind, "all", of_rule)


def connect(**types: Any) -> list[Json]:
    """Fields of a struct of Kafka Connect: a type's name, or more of the schema."""
    return [
        {"field": name, "optional": True, **({"type": one} if isinstance(one, str) else one)}
        for name, one in types.items()
    ]


def event(
    row: Json | None,
    *,
    key: Any = None,
    op: str = "c",
    schema: Sequence[Json] | None = None,
    topic: str = TOPIC,
    table: str | None = "user",
    **source: Any,
) -> Record:
    """A change event of `order_dw.user`. `schema`: of its row, where messages have schemas."""
    block = {
        "connector": "mysql",
        "name": "order_dw",
        "db": "order_dw",
        "table": table,
        "file": "b",
        "pos": 4,
        "row": 0,
    }
    body = {"before": None, "after": row, "source": {**block, **source}, "op": op, "ts_ms": 17}
    value: Any = body
    if schema is not None:
        rows = [{"type": "struct", "fields": schema, "field": side} for side in ("before", "after")]
        value = {"schema": {"type": "struct", "fields": rows, "name": "Envelope"}, "payload": body}
    text = None if key is None else json.dumps(key).encode()
    return Record(topic, text, json.dumps(value, separators=(",", ":")).encode())


def defined(
    columns: Mapping[str, str], *, keys: Sequence[str] = ("id",), table: str = '"order_dw"."user"', **more: Any
) -> Record:
    """A record of the topic of schema changes: the table's columns in the words of MySQL."""
    listed = []
    for at, (name, sql) in enumerate(columns.items(), start=1):
        kind, _open, rest = sql.partition("(")
        sizes, _close, behind = rest.partition(")")
        numbers = [int(size) for size in sizes.split(",") if size] + [None, None]
        listed.append(
            {"name": name, "typeName": kind + behind, "length": numbers[0], "scale": numbers[1], "position": at}
        )
    change = {"type": "CREATE", "id": table, "table": {"primaryKeyColumnNames": [*keys], "columns": listed}, **more}
    return changing(change)


def changing(*changes: Any) -> Record:
    """A record of the topic of schema changes."""
    body = {"source": {}, "databaseName": "order_dw", "ddl": "…", "tableChanges": [*changes]}
    return Record(DDL_TOPIC, None, json.dumps(body).encode())


def made(
    *records: Record,
    of: Rule | None = None,
    taken: Sequence[str] = (),
    registered: Mapping[int, RegisteredSchema] | None = None,
    by: Sequence[Record] | None = None,
) -> DiscoveredTable:
    """The table of these records; `by`: what the topic of schema changes says."""
    return discovered_table(
        of or rule(),
        records[0].topic if records else TOPIC,
        records,
        taken=taken,
        registered=registered,
        defined=None if by is None else definitions(by),
    )


def sample(
    table: DiscoveredTable, *records: Record, of: Rule | None = None, definition: Definition | None = None
) -> Sample:
    """The events among these records, for a table that is made."""
    events = [one for one in events_of(records) if isinstance(one, Event)]
    return Sample((of or rule()).declared, events, table.known_by, definition)


def feed_of(
    table: DiscoveredTable, of: Rule | None = None, schemas: Mapping[int, RegisteredSchema] | None = None
) -> Feed:
    """The feed of a table that a rule has made."""
    chosen = of or rule()
    return Feed(
        name=table.name,
        source=table.source,
        kind=chosen.kind,
        discovered=table,
        schemas=None if schemas is None else dict(schemas),
        **vars(table.feed(chosen.declared)),
        **vars(table.silver_table(chosen.declared)),
    )


def types(table: DiscoveredTable) -> dict[str, str]:
    """The type of each column, and what it is in its database where that is said."""
    return {name: _type(column.declared) for name, column in table.columns.items()}


def _type(declared: Any) -> str:
    parts = [declared.type.ddl, declared.source_type and declared.source_type.text, declared.epoch_unit]
    return " ".join(part for part in parts if part)
