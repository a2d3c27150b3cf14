"""Made-up records of a MySQL database `order_dw` with the tables user, order and feedback, and of other things."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cli.proposal.looked import Looked, looked_at
from silver.decode.reference.message import Record

# The types of Kafka Connect that a made-up row's values have.
_CONNECT = {int: "int64", str: "string", bool: "boolean", float: "double"}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "user": {"id": 11, "name": "s3cr3t-name", "created": 1_700_000_000_000},
    "order": {"id": 21, "user_id": 11, "amount": "s3cr3t99", "at": 1_700_000_000_000},
    "feedback": {"id": 31, "order_id": 21, "text": "s3cr3t-text"},
}


def change(
    topic: str,
    row: Mapping[str, Any] | None,
    *,
    table: str,
    key: Sequence[str] = ("id",),
    schemas: bool = False,
    op: str = "c",
    **source: Any,
) -> Record:
    """A change event; of MySQL's database order_dw by a connector of that name unless `source` says otherwise."""
    block = {"connector": "mysql", "name": "order_dw", "db": "order_dw", "table": table, "file": "b.1", "pos": 4}
    value: Mapping[str, Any] = {"before": None, "after": row, "source": {**block, **source}, "op": op}
    if schemas:
        fields = [{"field": name, "type": _CONNECT[type(one)], "optional": True} for name, one in (row or {}).items()]
        after = {"type": "struct", "field": "after", "fields": fields}
        value = {"schema": {"type": "struct", "fields": [after]}, "payload": value}
    fields_of_key = {name: (row or {"id": 1})[name] for name in key}
    return Record(topic, encoded(fields_of_key) if key else None, encoded(value))


def encoded(value: object) -> bytes:
    """As a JSON converter writes it."""
    return json.dumps(value).encode()


def tables(name: str, *, schemas: bool = False, **source: Any) -> list[Looked]:
    """The three tables' topics, called as `name` says."""
    return [
        looked(change(name.format(table=table), row, table=table, schemas=schemas, **source))
        for table, row in ROWS.items()
    ]


def looked(*records: Record) -> Looked:
    """What the topic of these records is."""
    return looked_at(records[0].topic, records, None)


def heartbeat(topic: str, server: str = "order_dw") -> Looked:
    """A topic of heartbeats."""
    return looked(Record(topic, encoded({"serverName": server}), encoded({"ts_ms": 1})))


def schema_change(topic: str, table: str, columns: Mapping[str, str], **more: object) -> Record:
    """A record of a topic of schema changes, which creates a table."""
    made = []
    for position, (name, declared) in enumerate(columns.items(), start=1):
        kind, _open, sizes = declared.partition("(")
        length, _comma, scale = sizes.rstrip(")").partition(",")
        numbers = {"length": int(length) if length else None, "scale": int(scale) if scale else None}
        made.append({"name": name, "typeName": kind, "position": position, **numbers})
    body = {
        "source": {"connector": "mysql", "name": "order_dw", "db": "order_dw"},
        "databaseName": "order_dw",
        "ddl": "CREATE TABLE s3cr3t",
        "tableChanges": [
            {
                "type": "CREATE",
                "id": f'"order_dw"."{table}"',
                "table": {"primaryKeyColumnNames": ["id"], "columns": made},
            }
        ],
    }
    return Record(topic, encoded({"databaseName": "order_dw"}), encoded({**body, **more}))


CREATED = {
    "user": {"id": "BIGINT", "name": "VARCHAR(50)", "created": "DATETIME"},
    "order": {"id": "BIGINT", "user_id": "BIGINT", "amount": "DECIMAL(10,2)", "at": "DATETIME(3)"},
    "feedback": {"id": "BIGINT", "order_id": "BIGINT", "text": "TEXT"},
}


def schema_changes(topic: str = "order_dw") -> list[Record]:
    """The records of a topic of schema changes that creates the three tables."""
    return [schema_change(topic, table, columns) for table, columns in CREATED.items()]
