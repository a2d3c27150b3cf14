"""What is wrong with the joins of `gold/tables.yaml`. Imports without pyspark.

Nothing is said of a table that a rule may make, and of its columns, until it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lakehouse.contracts.checks.mistakes import Path, unknown
from lakehouse.contracts.joins import Join, LeftJoin
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.parts.column_types import WHOLE_NUMBERS, DecimalType, Type
from lakehouse.contracts.published import UNIFIED_ORDERS

TABLES = "silver/tables.yaml"


def join_mistakes(contracts: Contracts) -> Iterator[tuple[Path, str]]:
    """Where in `gold/tables.yaml` a mistake is, and what it is."""
    for name in contracts.gold.joins:
        yield from mistakes_of_join(contracts, name)


def mistakes_of_join(contracts: Contracts, name: str) -> Iterator[tuple[Path, str]]:
    """The same of one join."""
    join, here = contracts.gold.joins[name], ("joins", name)
    if name == UNIFIED_ORDERS:
        yield here, f"gold.{UNIFIED_ORDERS} is not a join: name it otherwise"
    if name in contracts.gold.marts:
        yield here, f"gold.{name} is a mart too: name it otherwise"
    for column, times in Counter(join.column_names).items():
        if times > 1:
            yield here, f"two of its columns would be named {column}"
    table = contracts.feeds.get(join.table)
    if table is None:
        yield from _unknown_table(contracts, join.table, (*here, "table"))
    else:
        yield from ((here + path, what) for path, what in _of_own_table(join, table))
    for number, one in enumerate(join.left_join):
        there = (*here, "left_join", number)
        other = contracts.feeds.get(one.table)
        if table is not None:
            yield from ((there + path, what) for path, what in _of_references(one, table))
        if other is None:
            yield from _unknown_table(contracts, one.table, (*there, "table"))
            continue
        yield from ((there + path, what) for path, what in _of_other_table(one, other))
        if table is not None:
            yield from ((there + path, what) for path, what in _types(one, table, other))


def _unknown_table(contracts: Contracts, name: str, here: Path) -> Iterator[tuple[Path, str]]:
    if not contracts.may_be_discovered(name):
        yield here, unknown("table", name, contracts.feeds, where=TABLES)


def _of_own_table(join: Join, table: Feed) -> Iterator[tuple[Path, str]]:
    if table.append_only:
        yield ("table",), f"{table.name} is append_only, a list of changes without a key: a join needs one"
    for column, source in join.columns.items():
        if source not in table.columns:
            yield ("columns", column), unknown("column", source, table.columns, where=f"table {table.name}")
    for key in table.keys:
        if key not in join.columns.values():
            what = f"{key} is in the key of {table.name}, which is the key of the join: it has to be one of its columns"
            yield ("columns",), what


def _of_references(one: LeftJoin, table: Feed) -> Iterator[tuple[Path, str]]:
    """What `by` says of the join's own table."""
    for key, column in one.by.items():
        if column not in table.columns:
            yield ("by", key), unknown("column", column, table.columns, where=f"table {table.name}")


def _of_other_table(one: LeftJoin, other: Feed) -> Iterator[tuple[Path, str]]:
    keys = ", ".join(other.keys)
    if other.append_only:
        yield ("table",), f"{other.name} is append_only, a list of changes without a key: many rows could match"
    else:
        for key in one.by:
            if key not in other.columns:
                yield ("by", key), unknown("column", key, other.columns, where=f"table {other.name}")
            elif key not in other.keys:
                what = f"{key} is not in the key of {other.name}, which is {keys}: by its key at most one row matches"
                yield ("by", key), what
        lacking = [key for key in other.keys if key not in one.by]
        if lacking:
            what = f"the key of {other.name} is {keys}, and {', '.join(lacking)} is not here: many rows could match"
            yield ("by",), what
    for column, source in one.columns.items():
        if source not in other.columns:
            yield ("columns", column), unknown("column", source, other.columns, where=f"table {other.name}")


def _types(one: LeftJoin, table: Feed, other: Feed) -> Iterator[tuple[Path, str]]:
    for key, column in one.by.items():
        if key in other.columns and column in table.columns:
            wanted, found = other.columns[key].type, table.columns[column].type
            if wanted != found and not (_is_whole_number(wanted) and _is_whole_number(found)):
                what = (
                    f"{key} of {other.name} is {wanted.ddl}, and {column} of {table.name} is {found.ddl}: they can be "
                    "compared when they are of one type"
                )
                yield ("by", key), what


def _is_whole_number(declared: Type) -> bool:
    """Types whose values Spark compares exactly."""
    return declared.scale == 0 if isinstance(declared, DecimalType) else declared.ddl in WHOLE_NUMBERS
