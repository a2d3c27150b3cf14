"""What a topic of schema changes says of tables (MySQL and MariaDB): their columns, types and keys.

Debezium documentation, MySQL connector, "Schema change topic": records with `ddl`, `databaseName` and `tableChanges`.
Imports without pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakehouse.contracts.parts.column_types import MAX_DIGITS
from lakehouse.contracts.topics import ConnectorOptions, TableRule
from lakehouse.registered import RegisteredSchema
from silver.by_rule.types import Guess
from silver.decode.reference.message import MalformedError, Record, text_of, whole_number
from silver.decode.reference.wrapper import Unwrapping

WHY = "{} in the database"
_QUOTED = r'"(?:[^"]|"")*"'


@dataclass(frozen=True)
class DefinedColumn:
    """A column as the database defines it. `name` of its type in capitals, without what MySQL says behind it."""

    type: str
    length: int | None = None
    scale: int | None = None
    is_unsigned: bool = False

    @property
    def text(self) -> str:
        """As SQL writes it: `DECIMAL(10,2)`, `BIGINT UNSIGNED`."""
        sizes = [str(size) for size in (self.length, self.scale) if size is not None]
        return self.type + (f"({','.join(sizes)})" if sizes else "") + (" UNSIGNED" if self.is_unsigned else "")


@dataclass(frozen=True)
class Definition:
    """A table as the database defines it. `versions`: all that its columns have been defined as, the last one too."""

    keys: tuple[str, ...]
    columns: Mapping[str, DefinedColumn]
    versions: Mapping[str, tuple[DefinedColumn, ...]] = field(default_factory=dict, compare=False)


def definitions(
    records: Iterable[Record], registered: Mapping[int, RegisteredSchema] | None = None
) -> dict[str, Definition]:
    """The tables by `database.table`, each as the last of these records defines it; none that was dropped since."""
    unwrapped, found = Unwrapping(registered), dict[str, Definition]()
    # Also of tables that were dropped: their records are still there.
    versions: dict[str, dict[str, tuple[DefinedColumn, ...]]] = {}
    for record in records:
        for change in _changes(record, unwrapped):
            *before, name = _names(text_of(change.get("id")) or "")
            for earlier in (*before, *_names(text_of(change.get("previousId")) or "")):
                found.pop(earlier, None)
            table = change.get("table")
            if isinstance(table, dict):
                definition = _definition(table)
                of_table = versions.setdefault(name, {})
                for column, defined in definition.columns.items():
                    of_table[column] = tuple(dict.fromkeys((*of_table.get(column, ()), defined)))
                found[name] = replace(definition, versions=dict(of_table))
            else:
                found.pop(name, None)
    return found


def mixed_encodings(definition: Definition, options: ConnectorOptions) -> dict[str, str]:
    """By column what it was and what it is, where its values were written in one way and are in another, and no message
    without a schema says in which.
    """
    found = {}
    for name, versions in definition.versions.items():
        of_ways = {encoding(one, options): one.text for one in versions}
        if len(of_ways) > 1 and name in definition.columns:
            found[name] = f"was {' and '.join(of_ways.values())} in turn"
    return found


def encoding(column: DefinedColumn, options: ConnectorOptions) -> str:
    """What a number or an encoded text of the column stands for, which no message without a schema says; empty of a
    value that is written as it is.
    """
    in_base64 = options.decimal_format == "base64"
    if column.type in DECIMALS:
        is_unscaled = options.decimal_handling_mode == "precise" and in_base64
        return f"an unscaled number of scale {column.scale or 0}" if is_unscaled else ""
    if column.type == "BIGINT" and column.is_unsigned:
        is_unscaled = options.bigint_unsigned_handling_mode == "precise" and in_base64
        return "an unscaled number of scale 0" if is_unscaled else "a number without a sign"
    if column.type in _BYTES or (column.type == "BIT" and column.length not in (None, 1)):
        return "bytes"
    return _encoding_of_time(column, options.time_precision_mode) if column.type in _TIMES else ""


def _encoding_of_time(column: DefinedColumn, mode: str) -> str:
    if mode == "isostring":
        return ""
    if column.type == "DATE":
        return "days"
    unit = {"connect": "milliseconds", "microseconds": "microseconds", "nanoseconds": "nanoseconds"}.get(mode)
    if column.type == "TIME":
        return f"{unit or 'microseconds'} of a day"
    return unit or ("milliseconds" if (column.length or 0) <= _MILLIS_DIGITS else "microseconds")


def _changes(record: Record, unwrapped: Unwrapping) -> list[Mapping[str, Any]]:
    try:
        body = unwrapped.message(record.value or b"null", name="The value")[0].payload
    except MalformedError:
        return []
    changes = body.get("tableChanges") if isinstance(body, dict) else None
    return [one for one in changes if isinstance(one, dict)] if isinstance(changes, list) else []


def _names(identity: str) -> list[str]:
    """`"order_dw"."user"` as order_dw.user; of a table that was renamed its names in turn."""
    names = re.findall(rf"{_QUOTED}(?:\.{_QUOTED})*", identity)
    parts = [[part[1:-1].replace('""', '"') for part in re.findall(_QUOTED, name)] for name in names]
    return [".".join(one) for one in parts] or [identity]


def _definition(table: Mapping[str, Any]) -> Definition:
    listed, keys = table.get("columns"), table.get("primaryKeyColumnNames")
    columns = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    columns.sort(key=lambda one: whole_number(one.get("position")) or 0)
    return Definition(
        tuple(str(key) for key in keys) if isinstance(keys, list) else (),
        {str(one.get("name")): _column(one) for one in columns},
    )


def _column(one: Mapping[str, Any]) -> DefinedColumn:
    words = (text_of(one.get("typeName")) or "").upper().split()
    return DefinedColumn(
        " ".join(word for word in words if word not in ("UNSIGNED", "ZEROFILL", "SIGNED")) or "UNKNOWN",
        whole_number(one.get("length")),
        whole_number(one.get("scale")),
        is_unsigned="UNSIGNED" in words or "ZEROFILL" in words,
    )


_WHOLE = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "INT2", "INT3", "INT4", "INT8", "YEAR")
_TEXT = ("CHAR", "VARCHAR", "NCHAR", "NVARCHAR", "CHARACTER", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "LONG")
_BYTES = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
DECIMALS = ("DECIMAL", "NUMERIC", "DEC", "FIXED")
_TIMES = ("DATE", "DATETIME", "TIME")
_SIMPLE: Mapping[str, tuple[str, str | None]] = {
    **dict.fromkeys((*_WHOLE, "BOOL", "BOOLEAN"), ("BIGINT", None)),
    **dict.fromkeys(("FLOAT", "DOUBLE", "REAL", "DOUBLE PRECISION"), ("DOUBLE", None)),
    **dict.fromkeys((*_TEXT, *_BYTES), ("STRING", None)),
    "DATE": ("DATE", None),
    "TIME": ("STRING", "time"),
    "TIMESTAMP": ("TIMESTAMP", "timestamptz"),
    "JSON": ("STRING", "json"),
    "ENUM": ("STRING", "enum"),
    "SET": ("STRING", "set"),
}
_MILLIS_DIGITS = 3


def guess_of(column: DefinedColumn, rule: TableRule) -> Guess:
    """The type that holds every value of the column as the rule's connector writes it."""
    why = WHY.format(column.text)
    if column.type == "BIGINT" and column.is_unsigned:
        return Guess("DECIMAL(20,0)", why, source_type="unsigned_bigint")
    if column.type in DECIMALS:
        return _decimal(column, why, rule)
    if column.type == "DATETIME":
        is_in_millis = rule.time_precision_mode.startswith("adaptive") and (column.length or 0) <= _MILLIS_DIGITS
        return Guess("TIMESTAMP", why, "millis" if is_in_millis else None)
    if column.type == "BIT":
        length = column.length or 1
        return Guess("BOOLEAN" if length == 1 else "STRING", why, source_type=f"bit({length})")
    held, source = _SIMPLE.get(column.type, ("STRING", None))
    return Guess(held, why, source_type=source)


def _decimal(column: DefinedColumn, why: str, rule: TableRule) -> Guess:
    digits, scale = column.length or 10, column.scale or 0
    if digits > MAX_DIGITS:
        return Guess("STRING", why, source_type=f"numeric({digits},{scale})")
    if rule.decimal_handling_mode == "double":  # what came has lost digits already
        return Guess("DOUBLE", why)
    return Guess(f"DECIMAL({digits},{scale})", why)
