"""The tables of the recorded databases in the end, and those of silver, both as the text that Spark makes of them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

    from lakehouse.contracts.tables import Column as Declared

Rows = Mapping[str, Mapping[str, str | None]]


def text_of(value: Column, declared: Declared) -> Column:
    """A value of silver as text."""
    ddl = declared.type.ddl
    if ddl == "BINARY":
        return F.hex(value)
    return F.to_json(value) if ddl.startswith("ARRAY") else value.cast("string")


def final_rows(file: Path, table: str, *, kind: str) -> Rows:
    """The rows of a table in the end, by the text of its key."""
    final = _tables(file)[table]
    rows = [dict(zip(final["columns"], row, strict=True)) for row in final["rows"]]
    return rows_as_silver(rows, kind=kind, has_all_types=table == "orders_types")


def rows_as_silver(rows: Iterable[Mapping[str, Any]], *, kind: str, has_all_types: bool) -> Rows:
    """Rows of a table as recorded, each value as the text that silver's would be, by the text of the key."""
    as_silver = {"postgresql": POSTGRESQL, "mysql": MYSQL}[kind] if has_all_types else ORDERS
    return {
        str(row["order_id"]): {
            name: None if value is None else as_silver.get(name, str)(value) for name, value in row.items()
        }
        for row in rows
    }


def final_tables(file: Path) -> list[str]:
    """The names of the tables."""
    return list(_tables(file))


def final_events(file: Path, aggregate_type: str, columns: tuple[str, ...]) -> Rows:
    """What the rows of an outbox table say of the aggregates of one type, by the text of the key."""
    outbox = _tables(file)["outbox"]
    found = {}
    for values in outbox["rows"]:
        event = dict(zip(outbox["columns"], values, strict=True))
        if event["aggregatetype"] == aggregate_type:
            payload = event["payload"] if isinstance(event["payload"], dict) else _json(event["payload"])
            row = {name: payload.get(name) for name in columns}
            found[str(row["order_id"])] = {
                name: None if value is None else EVENTS.get(name, str)(value) for name, value in row.items()
            }
    return found


def _tables(file: Path) -> Any:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        return _json(text.read())


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def iso(text: str) -> str:
    """A time or date of PostgreSQL in ISO 8601."""
    text, is_bc = text.removesuffix(" BC"), text.endswith(" BC")
    if is_bc:
        text = f"-{int(text[:4]) - 1:04}{text[4:]}"
    return text.replace(" ", "T").removesuffix("+00") + ("Z" if text.endswith("+00") else "")


def average_micros(text: str) -> str:
    """An interval of PostgreSQL in microseconds, with twelfths of 365.25 days for months."""
    micros, month = 0.0, 365.25 / 12 * 86_400_000_000
    for number, unit in re.findall(r"(-?\d+) (year|mon|day)", text):
        micros += int(number) * {"year": 12 * month, "mon": month, "day": 86_400_000_000}[unit]
    for hours, minutes, seconds in re.findall(r"(\d+):(\d+):([\d.]+)", text):
        micros += (int(hours) * 3600 + int(minutes) * 60 + float(seconds)) * 1_000_000
    return str(round(micros))


def length_of_time(text: str) -> str:
    """A timedelta, as Python writes it, in hours."""
    days, hours, minutes, seconds = (int(part) for part in re.findall(r"-?\d+", text if "day" in text else f"0 {text}"))
    whole = int(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds())
    size = abs(whole)
    return f"{'-' if whole < 0 else ''}{size // 3600:02}:{size // 60 % 60:02}:{size % 60:02}"


def spark_double(value: Any) -> str:
    """A double as Spark writes it."""
    text = str(float(value)).replace("e+", "E").replace("inf", "Infinity").replace("nan", "NaN")
    return text.replace("E308", ".0E308")


def spark_time(text: str) -> str:
    """A time as Spark writes it."""
    text = text.replace("T", " ")
    return text.rstrip("0") if "." in text else text


AsText = Mapping[str, Callable[[Any], str]]
ORDERS: AsText = dict.fromkeys(("created_at", "updated_at"), spark_time)
EVENTS: AsText = {"created_at": spark_time, "total_amount": lambda number: f"{Decimal(number):.2f}"}
POSTGRESQL: AsText = {
    "dbl": spark_double,
    **dict.fromkeys(("ts0", "ts3"), spark_time),
    "ts6": iso,
    "tstz": iso,
    "dt": iso,
    "iv": average_micros,
    "bin": lambda text: text.removeprefix("\\x").upper(),
    "arr": lambda text: text.replace("{", "[").replace("}", "]").replace("NULL", "null"),
}
MYSQL: AsText = {
    "dbl": spark_double,
    **dict.fromkeys(("ts0", "ts3", "ts6", "tstz"), spark_time),
    "tm": length_of_time,
    "bl": lambda value: "true" if value else "false",
    # The spaces are those of the binlog.
    "js": lambda text: json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")),
    "bin": lambda value: base64.b64decode(value["base64"]).hex().upper(),
}
