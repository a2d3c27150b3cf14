"""Tables as they are declared: created where they are not there yet, and compared with what is there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakehouse.delta.files import remove_if_abandoned
from lakehouse.errors import UnfinishedTableError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lakehouse.delta.tables import TableSpec, Warehouse

# How long a table may be half made by a stream beside this one, in seconds.
_WHILE_ANOTHER_CREATES = (0.2, 0.5, 1.0)
# A first commit takes seconds.
_ABANDONED_SECONDS = 60.0
# Properties of a table that are ours begin so: they say how its rows were made.
OWN_PROPERTY = "orders-lakehouse."
_CHANGED_CONTRACT = (
    "The contract changed after the table was made: take the change back, or run `lakehouse gold --full-refresh`: it "
    "rebuilds gold from silver."
)
_MADE_ANEW = (
    "The contract changed after the table was made: take the change back, or delete all silver tables of the source, "
    "and run silver: it rebuilds them from bronze."
)
OF_ANOTHER_RELEASE = "Another release of this code has made the table: use that one, or start a new warehouse."
# By schema: the columns of the others are not the contract's.
HINTS = {"silver": _MADE_ANEW, "gold": _CHANGED_CONTRACT}
# What Delta says of a folder that has a `_delta_log` without any commit.
_HALF_MADE = ("DELTA_TABLE_NOT_FOUND", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")


def ensure_table(warehouse: Warehouse, spec: TableSpec, *, is_locked: bool) -> None:
    """`Warehouse.ensure`: waits for whoever creates the table at the same time."""
    from delta.exceptions import ProtocolChangedException
    from pyspark.errors import AnalysisException

    pauses = iter(_WHILE_ANOTHER_CREATES)
    while True:
        try:
            _create(warehouse, spec)
            return
        except ProtocolChangedException:  # a stream beside this one has just created it
            if next(pauses, None) is None:
                raise
        except AnalysisException as error:
            if error.getCondition() not in _HALF_MADE:
                raise
            seconds = next(pauses, None)
            if seconds is not None:
                time.sleep(seconds)
            elif not (is_locked and _remove_abandoned(warehouse, spec)):
                raise _unfinished(warehouse, spec) from None


def _remove_abandoned(warehouse: Warehouse, spec: TableSpec) -> bool:
    return not warehouse.in_catalog and remove_if_abandoned(
        warehouse.spark, warehouse.path(spec.name), seconds=_ABANDONED_SECONDS
    )


def _unfinished(warehouse: Warehouse, spec: TableSpec) -> UnfinishedTableError:
    return UnfinishedTableError(
        f"The table {spec.name} has a folder {warehouse.path(spec.name)}, and no commit in it: its creation has begun "
        "and has not ended.",
        hint="Run again in a minute: what a killed run has left is removed then. If that says the same, and no "
        "Parquet file is in that folder, delete the folder.",
    )


def _create(warehouse: Warehouse, spec: TableSpec) -> None:
    from delta.tables import DeltaTable

    if warehouse.exists(spec.name):
        warehouse.require_columns(spec)
        return
    if warehouse.in_catalog:
        _create_in_catalog(warehouse, spec)
        return
    builder = DeltaTable.createIfNotExists(warehouse.spark).location(warehouse.path(spec.name))
    builder = builder.addColumns(declared(spec.columns))
    if spec.partition_by:
        builder = builder.partitionedBy(*spec.partition_by)
    for key, value in spec.properties.items():
        builder = builder.property(key, value)
    if spec.comment:
        builder = builder.comment(spec.comment)
    builder.execute()


def _create_in_catalog(warehouse: Warehouse, spec: TableSpec) -> None:
    """In SQL: Delta's builder takes no name of three levels (4.4.0)."""
    ensure_schema(warehouse, spec.name)
    parts = [f"CREATE TABLE IF NOT EXISTS {warehouse.path(spec.name)} ({spec.columns}) USING DELTA"]
    if spec.partition_by:
        parts.append(f"PARTITIONED BY ({', '.join(spec.partition_by)})")
    if spec.properties:
        properties = [f"{_text(key)} = {_text(value)}" for key, value in spec.properties.items()]
        parts.append(f"TBLPROPERTIES ({', '.join(properties)})")
    if spec.comment:
        parts.append(f"COMMENT {_text(spec.comment)}")
    warehouse.spark.sql(" ".join(parts))


def ensure_schema(warehouse: Warehouse, name: str) -> None:
    """Create the schema of a table in a catalog, unless it is there: to see that takes no right to create."""
    schema = warehouse.path(name).rsplit(".", 1)[0]
    if not warehouse.spark.catalog.databaseExists(schema):
        warehouse.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")


def differences(warehouse: Warehouse, spec: TableSpec) -> list[str]:
    """What `Warehouse.require_columns` raises, as sentences; none where the table is as it is declared."""
    wanted = _types(declared(spec.columns))
    found = _types(warehouse.read(spec.name).schema)
    sentences = [
        f"{name} should be {kind} and is {found.get(name, 'missing')}"
        for name, kind in wanted.items()
        if found.get(name) != kind
    ]
    sentences += [f"{name} ({kind}) should not be there" for name, kind in found.items() if name not in wanted]
    own = {key: value for key, value in spec.properties.items() if key.startswith(OWN_PROPERTY)}
    made_by = warehouse.properties(spec.name) if own else {}
    sentences += [
        f"its {key.removeprefix(OWN_PROPERTY)} should be {value} and is {made_by.get(key, 'not known')}"
        for key, value in own.items()
        if made_by.get(key) != value
    ]
    return sentences


def add_missing_columns(warehouse: Warehouse, spec: TableSpec) -> None:
    """`Warehouse.add_columns`."""
    from pyspark.sql.types import StructType

    found, wanted = warehouse.read(spec.name).schema, declared(spec.columns)
    new = _missing(found, wanted)
    known = {column.name.lower(): column.dataType for column in found}
    for column in wanted:  # of a struct its fields
        there = known.get(column.name.lower())
        if isinstance(column.dataType, StructType) and isinstance(there, StructType):
            new += _missing(there, column.dataType, inside=f"`{column.name}`.")
    if new:
        warehouse.spark.sql(f"ALTER TABLE {warehouse.sql_name(spec.name)} ADD COLUMNS ({', '.join(new)})")
        if spec.comment:
            warehouse.spark.sql(f"COMMENT ON TABLE {warehouse.sql_name(spec.name)} IS {_text(spec.comment)}")


def _missing(found: StructType, wanted: StructType, *, inside: str = "") -> list[str]:
    """What is not there, as ALTER TABLE names it; each in its place among the others."""
    known, columns = _types(found), list(wanted)
    return [
        f"{inside}`{column.name}` {column.dataType.simpleString()}"
        + (" FIRST" if after is None else f" AFTER `{after.name}`")
        for column, after in zip(columns, [None, *columns[:-1]], strict=True)
        if column.name.lower() not in known
    ]


def declared(columns: str) -> StructType:
    """The columns of a declaration in Spark SQL. Needs a session."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(columns)
    if not isinstance(schema, StructType):
        raise TypeError(columns)
    return schema


def _text(text: str) -> str:
    """A literal in Spark SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def _types(schema: StructType) -> dict[str, str]:
    """The type of every column, in Spark SQL, by its name in lower case: Spark ignores case."""
    return {column.name.lower(): column.dataType.simpleString() for column in schema}
