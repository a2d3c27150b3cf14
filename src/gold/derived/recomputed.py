"""A table of gold compared with what a computation of all its rows gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gold.change_feed.changes import is_gone
from gold.derived.joined import full_outer_compare
from lakehouse.delta.tables import TableSpec, Warehouse
from lakehouse.delta.versions import last_version
from lakehouse.errors import TableError
from lakehouse.spark.materialized import materialized
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TableComparison:
    """How many rows a table should have, and how many keys are not as they should be; where none were compared, why.

    `is_failure`: it could have been compared, and what it was computed from cannot be read any more.
    """

    table: str
    rows: int = 0
    differing: int = 0
    why_not: str | None = None
    is_failure: bool = False


def compare_table(
    warehouse: Warehouse,
    spec: TableSpec,
    versions: Iterable[Version],
    computed: Callable[[], DataFrame],
    *,
    keys: Sequence[str],
) -> TableComparison:
    """The table compared, in these columns, with what is `computed` from these versions of other tables.

    What cannot be read of tables as they are now is the error that it is.
    """
    name, now = spec.name, [(version, last_version(warehouse, version.table)) for version in versions]
    if not now or not has_columns(warehouse, spec):
        return TableComparison(name, why_not="it was not computed yet under this contract")
    if not all(version.goes_on_to(last) for version, last in now):
        return TableComparison(name, why_not="a table that it was computed from was rebuilt since")
    try:
        with materialized(full_outer_compare(warehouse.read(name), computed(), keys=keys)) as rows:
            return TableComparison(name, rows.where("_expected > 0").count(), rows.where("_differing > 0").count())
    except Exception as error:
        if all(version == last for version, last in now) or not is_gone(error):
            raise
    why_not = "the versions of the tables that it was computed from cannot be read any more"
    return TableComparison(name, why_not=why_not, is_failure=True)


def has_columns(warehouse: Warehouse, spec: TableSpec) -> bool:
    """Whether the table has the columns of the contract."""
    try:
        warehouse.require_columns(spec)
    except TableError:
        return False
    return True
