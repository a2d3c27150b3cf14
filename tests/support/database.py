"""A MySQL database of several tables, as Debezium sends it: events of rows, and its topic of schema changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.records import store
from bronze.events import events_table
from lakehouse.delta.tables import Warehouse
from tests.support.bronze import bronze_rows
from tests.support.recordings import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = Mapping[str, Any]
DDL_TOPIC = "order_dw"
_CONNECT = {"BIGINT": "int64", "INT": "int32", "VARCHAR": "string", "TEXT": "string", "DOUBLE": "double"}


def base_of(sql: str) -> str:
    """The type without its sizes."""
    return sql.partition("(")[0]


@dataclass
class Database:
    """`order_dw`: what its tables are, and where its topics and its log have come to. `with_schemas`: of messages."""

    with_schemas: bool = False
    name: str = "order_dw"
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    topic: str = "order_dw.{database}.{table}"
    pos: int = 100
    offsets: dict[str, int] = field(default_factory=dict)

    def define(self, table: str, columns: Mapping[str, str], *, keys: Sequence[str] = ("id",)) -> dict[str, Any]:
        """CREATE or ALTER it: the record of the topic of schema changes."""
        kind = "ALTER" if table in self.tables else "CREATE"
        self.tables[table], self.keys[table] = dict(columns), tuple(keys)
        listed = [self._defined(name, sql, at) for at, (name, sql) in enumerate(columns.items(), start=1)]
        defined = {"primaryKeyColumnNames": list(keys), "columns": listed}
        change = {"type": kind, "id": f'"{self.name}"."{table}"', "table": defined}
        body = {
            "source": {"connector": "mysql", "name": "order_dw", "db": self.name, "table": table, "snapshot": "false"},
            "ts_ms": 1_767_225_600_000,
            "databaseName": self.name,
            "ddl": f"{kind} TABLE",
            "tableChanges": [change],
        }
        return self._record(DDL_TOPIC, {"databaseName": self.name}, body)

    def _defined(self, name: str, sql: str, at: int) -> dict[str, Any]:
        sizes = sql.partition("(")[2].rstrip(")").split(",") if "(" in sql else []
        numbers = [int(size) for size in sizes] + [None, None]
        return {"name": name, "typeName": base_of(sql), "length": numbers[0], "scale": numbers[1], "position": at}

    def event(self, table: str, op: str, row: Row, *, snapshot: str = "false") -> dict[str, Any]:
        """A change of a row; of a delete the row is its key."""
        self.pos += 100
        source = {
            "version": "3.6.1.Final",
            "connector": "mysql",
            "name": "order_dw",
            "ts_ms": 1_767_225_600_000 + self.pos,
            "snapshot": snapshot,
            "db": self.name,
            "sequence": None,
            "ts_us": (1_767_225_600_000 + self.pos) * 1000,
            "table": table,
            "server_id": 1,
            "file": "binlog.000001",
            "pos": self.pos,
            "row": 0,
        }
        before = dict(row) if op == "d" else None
        after = None if op == "d" else dict(row)
        body = {"before": before, "after": after, "source": source, "op": op, "ts_ms": source["ts_ms"]}
        key = {name: row[name] for name in self.keys[table]}
        topic = self.topic.format(database=self.name, table=table)
        if not self.with_schemas:
            return self._record(topic, key or None, body)
        of_row = [
            {"field": name, "type": _CONNECT[base_of(sql)], "optional": True}
            for name, sql in self.tables[table].items()
            if name in row or op == "d"
        ]
        fields = [
            *({"type": "struct", "fields": of_row, "optional": True, "field": side} for side in ("before", "after")),
            {"type": "struct", "fields": [], "optional": False, "field": "source"},
        ]
        wrapped = {"schema": {"type": "struct", "fields": fields, "name": f"{table}.Envelope"}, "payload": body}
        of_key = [one for one in of_row if one["field"] in self.keys[table]]
        whole_key = {"schema": {"type": "struct", "fields": of_key}, "payload": key}
        return self._record(topic, whole_key if key else None, wrapped)

    def _record(self, topic: str, key: Mapping[str, Any] | None, value: Mapping[str, Any]) -> dict[str, Any]:
        offset = self.offsets.get(topic, 0)
        self.offsets[topic] = offset + 1
        return {
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": 1_767_225_600_000 + self.pos,
            "key": None if key is None else json.dumps(key, separators=(",", ":")),
            "value": json.dumps(value, separators=(",", ":")),
            "headers": [["__debezium.context.runId", "run-1"]],
        }


def arrive(warehouse: Warehouse, source: str, records: Sequence[Mapping[str, Any]], folder: Path) -> DataFrame:
    """The records in bronze, as one commit."""
    warehouse.ensure(events_table(source))
    path = folder / f"{len(list(folder.iterdir()))}.jsonl.gz"
    write(path, [dict(one) for one in records])
    rows = bronze_rows(warehouse.spark, path, topics={topic: topic for topic in {one["topic"] for one in records}})
    store(warehouse, source, rows)
    return rows
