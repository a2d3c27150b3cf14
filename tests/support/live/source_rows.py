"""The rows of a source table as text, to lay beside those of silver."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from demo.stack.database import Database
from tests.support.final_state import Rows, rows_as_silver
from tests.support.live.dialects import TYPES, Dialect


def source_rows(database: Database, dialect: Dialect, table: str) -> Rows:
    """The rows of a table now, by the text of its key, each value as silver's would be written."""
    if dialect.kind == "postgresql":
        names = [row["name"] for row in database.rows(_columns_of(table))]
        rows = database.rows(f"SELECT {', '.join(f'{name}::text AS {name}' for name in names)} FROM {table}")
    else:
        rows = [_as_recorded(row) for row in database.rows(f"SELECT * FROM {table}")]
    kind = "postgresql" if dialect.kind == "postgresql" else "mysql"
    return rows_as_silver(rows, kind=kind, has_all_types=table == TYPES)


def _columns_of(table: str) -> str:
    return f"""SELECT column_name AS name FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name = '{table}' ORDER BY ordinal_position"""


def _as_recorded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> Any:
    """As the recordings have it."""
    match value:
        case bytes():
            return {"base64": b64encode(value).decode()}
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case set():
            return ",".join(sorted(value))
        case timedelta():
            return str(value)
        case _:
            return value
