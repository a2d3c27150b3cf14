"""Of every table that may have a topic: its columns with their types, its key, and what of it is sensitive.

Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lakehouse.contracts.joins import Join
from lakehouse.contracts.models import Contracts, GoldTables, Mart, PublicationFormat, UpsertTopic
from lakehouse.contracts.parts.column_types import MAX_DIGITS, DecimalType

UNIFIED_ORDERS = "unified_orders"
# What gold adds to the columns of the contract.
GOLD_ADDS: Mapping[str, str] = {
    "source_database": "STRING",
    "fulfillment_status": "STRING",
    "composite_key": "STRING",
    "processed_at": "TIMESTAMP",
}
# What silver knows of a row besides, and a topic may have.
SILVER_ADDS: Mapping[str, str] = {
    "_op": "STRING",
    "_source_ts": "TIMESTAMP",
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_applied_at": "TIMESTAMP",
}
# What connect-json writes besides decimals.
CONNECT_TYPES = ("BIGINT", "BINARY", "BOOLEAN", "DATE", "INT", "SMALLINT", "STRING", "TIMESTAMP")
# A sum of so many more digits than its numbers holds ten billion of them (Spark's own rule for DECIMAL).
MORE_DIGITS = 10


def unified_columns(tables: GoldTables) -> Mapping[str, str]:
    """Every column of `gold.unified_orders` with its Spark type, in the table's order."""
    return {**{name: declared.ddl for name, declared in tables.columns.items()}, **GOLD_ADDS}


def group_columns(mart: Mart) -> tuple[str, ...]:
    """The columns that identify a group; NULL is a value of them."""
    return (*(("day",) if mart.day else ()), *mart.by)


def mart_columns(tables: GoldTables, mart: Mart) -> Mapping[str, str]:
    """Every column of the mart with its Spark type: its groups, then the count and the sums."""
    types = {**unified_columns(tables), "day": "DATE"}
    columns = {column: types[column] for column in group_columns(mart)}
    columns[mart.count] = "BIGINT"
    for column, summed in mart.sums.items():
        declared = tables.columns[summed]
        if isinstance(declared, DecimalType):
            columns[column] = f"DECIMAL({min(declared.precision + MORE_DIGITS, MAX_DIGITS)},{declared.scale})"
        else:
            columns[column] = "BIGINT"
    return columns


def join_columns(contracts: Contracts, join: Join) -> Mapping[str, str]:
    """Every column of the join with its Spark type, which is that of silver. All of its tables are there."""
    return {
        column: contracts.feeds[table].columns[source].type.ddl
        for table, columns in join.parts
        for column, source in columns.items()
    }


def not_there(contracts: Contracts, name: str) -> tuple[str, ...]:
    """Of the silver tables that a table is, or joins, those that a rule may make and has not made yet."""
    schema, table = name.split(".")
    join = contracts.gold.joins.get(table) if schema == "gold" else None
    needed = join.tables if join is not None else (table,) if schema == "silver" else ()
    return tuple(f"silver.{one}" for one in needed if one not in contracts.feeds and contracts.may_be_discovered(one))


def is_by_rule(contracts: Contracts, name: str) -> bool:
    """Whether the table, or one that it joins, was made by a rule: what is asked of it could not be checked before."""
    schema, table = name.split(".")
    join = contracts.gold.joins.get(table) if schema == "gold" else None
    tables = join.tables if join is not None else (table,) if schema == "silver" else ()
    return not contracts.discovered.keys().isdisjoint(tables)


def why_not_carried(record_format: PublicationFormat, sql_type: str) -> str | None:
    """Why the format cannot carry a column of this Spark type; None where it can."""
    if record_format != "connect-json" or sql_type in CONNECT_TYPES or sql_type.startswith("DECIMAL"):
        return None
    # Where a number is due, Kafka's JsonConverter reads a text as 0.0.
    return "JSON has no NaN" if sql_type in ("DOUBLE", "FLOAT") else "it writes no arrays"


@dataclass(frozen=True)
class KeyedTable:
    """A table with a key: `columns` with their Spark types, `more` that are published by name alone.

    `keeps_deleted`: a row that is deleted stays, with `_is_deleted`. `has_null_keys`: NULL is a value of its key.
    """

    name: str
    keys: tuple[str, ...]
    columns: Mapping[str, str]
    more: Mapping[str, str]
    sensitive: frozenset[str]
    keeps_deleted: bool = False
    has_null_keys: bool = False

    @cached_property
    def every_column(self) -> Mapping[str, str]:
        """All columns that can be published."""
        return {**self.columns, **self.more}

    @property
    def has_sensitive_key(self) -> bool:
        """Whether no key of it may be shown."""
        return not self.sensitive.isdisjoint(self.keys)


def keyed_table(contracts: Contracts, name: str) -> KeyedTable | None:
    """The table of this name; None where the contracts have none, or it has no key."""
    schema, table = name.split(".")
    gold = contracts.gold
    if schema == "silver":
        declared = contracts.feeds.get(table)
        if declared is None or declared.append_only:
            return None
        columns = {column: of.type.ddl for column, of in declared.columns.items()}
        return KeyedTable(name, declared.keys, columns, SILVER_ADDS, declared.sensitive_columns, keeps_deleted=True)
    if table == UNIFIED_ORDERS and gold.has_unified:
        return KeyedTable(name, ("composite_key",), unified_columns(gold), {}, contracts.sensitive_in_gold)
    if table in gold.joins:
        return _keyed_join(contracts, name, gold.joins[table])
    if table not in gold.marts:
        return None
    mart = gold.marts[table]
    made_of = {"day": mart.day, **mart.sums}
    of_mart = mart_columns(gold, mart)
    sensitive = frozenset(column for column in of_mart if made_of.get(column, column) in contracts.sensitive_in_gold)
    return KeyedTable(name, group_columns(mart), of_mart, {}, sensitive, has_null_keys=True)


def _keyed_join(contracts: Contracts, name: str, join: Join) -> KeyedTable | None:
    if any(table not in contracts.feeds for table in join.tables):
        return None
    sensitive = frozenset(
        column
        for table, columns in join.parts
        for column, source in columns.items()
        if source in contracts.feeds[table].sensitive_columns
    )
    keys = join.keys(contracts.feeds[join.table].keys)
    return KeyedTable(name, keys, join_columns(contracts, join), {}, sensitive)


@dataclass(frozen=True)
class Field:
    """A field of a record: its name there, the column that it is, and that column's Spark type."""

    name: str
    column: str
    sql_type: str
    optional: bool = True


def key_fields(table: KeyedTable, topic: UpsertTopic) -> tuple[Field, ...]:
    """The fields of the record's key, in the order of the table's key."""
    return tuple(
        Field(f"{topic.key_prefix}{key}", key, table.every_column[key], optional=table.has_null_keys)
        for key in table.keys
    )


def value_fields(table: KeyedTable, topic: UpsertTopic) -> tuple[Field, ...]:
    """The fields of the record's value: the columns that the topic names, else all that are not sensitive."""
    chosen = topic.columns or [name for name in table.columns if name not in table.sensitive]
    unchanged_toast = table.keys if topic.value_fields == "except_key" else ()
    return tuple(
        Field(f"{topic.value_prefix}{name}", name, table.every_column[name])
        for name in chosen
        if name not in unchanged_toast
    )
