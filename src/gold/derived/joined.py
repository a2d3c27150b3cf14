"""The rows of a join: which of them changes touch, those of few, and all of them.

Columns that begin with `_` are of the computation alone; those of the join do not begin so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.keys import ChangeSet, ends
from lakehouse.contracts.joins import Join, LeftJoin
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import join_columns
from lakehouse.delta.tables import UPSERTED, TableSpec
from lakehouse.spark.sizing import broadcast

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class JoinTable:
    """The table of a join: its `keys`, and as what it is created."""

    name: str
    join: Join
    keys: tuple[str, ...]
    spec: TableSpec

    def definition(self, *, created_ms: int) -> str:
        """The definition of the join: this table, by this contract."""
        contract = f"{self.join.model_dump_json()} {self.keys} {self.spec.columns}"
        return f"{created_ms} {sha256(contract.encode()).hexdigest()[:16]}"


def join_table(contracts: Contracts, name: str) -> JoinTable:
    """The table `gold.<name>`: its columns as they are declared, in silver's types. All silver tables are there."""
    join = contracts.gold.joins[name]
    declared = ", ".join(f"{column} {type_name}" for column, type_name in join_columns(contracts, join).items())
    keys = join.keys(contracts.feeds[join.table].keys)
    return JoinTable(name, join, keys, TableSpec(name=f"gold.{name}", columns=declared, properties=UPSERTED))


@dataclass(frozen=True)
class Changes:
    """The keys that changed in a silver table, and the columns of the join's own rows that have them."""

    columns: tuple[str, ...]
    keys: ChangeSet


def changed_keys(feed: DataFrame, *, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Every key whose row has come, gone, or was another one for a while, by a change data feed of a silver table.

    A row is the `columns`, and whether it is deleted. Also keys whose row is at the end as it was in the beginning: a
    run that died may have taken it as it was between.
    """
    row = F.struct(*columns, "_is_deleted")
    has_come_or_gone = F.bool_or(F.col("_change_type").isin("insert", "delete"))
    ends_of_row = (F.min(row).alias("_lowest"), F.max(row).alias("_highest"))
    by_key = feed.groupBy(*keys).agg(has_come_or_gone.alias("_has_come_or_gone"), *ends_of_row)
    return by_key.where("_has_come_or_gone OR NOT _lowest <=> _highest").select(*keys)


def own_rows(table: JoinTable, silver: DataFrame) -> DataFrame:
    """The live rows of the join's own table: their columns of the join, and those that refer to other tables."""
    columns = [F.col(source).alias(column) for column, source in table.join.columns.items()]
    for number, one in enumerate(table.join.left_join):
        named = zip(referring_columns(number, one), one.by.values(), strict=True)
        columns += [F.col(source).alias(name) for name, source in named]
    return silver.where("NOT _is_deleted").select(*columns)


def touched_rows(rows: DataFrame, changes: Sequence[Changes]) -> DataFrame:
    """The own rows of a join that have a changed key, their own or that of a row that they refer to."""
    # Delta passes over the files that have none between, and Parquet's reader over parts of files.
    between = [(one.columns[0], ends(one.keys, one.keys.rows.columns[0])) for one in changes]
    ranges = [F.col(column).between(*found) for column, found in between if found is not None]
    found = rows.where(reduce(or_, ranges)) if len(ranges) == len(changes) else rows
    for number, one in enumerate(changes):
        names = [f"_changed_{number}_{column}" for column in range(len(one.columns))]
        wanted = one.keys.rows.toDF(*names).withColumn(f"_is_changed_{number}", F.lit(True))
        found = found.join(broadcast(wanted, one.keys.count), on=_same(one.columns, names), how="left")
    is_touched = reduce(or_, [F.col(f"_is_changed_{number}").isNotNull() for number in range(len(changes))])
    return found.where(is_touched).select(*rows.columns)


def full_join(table: JoinTable, silver: Mapping[str, DataFrame]) -> DataFrame:
    """Every row of the join. `silver`: its tables, by the names of their feeds."""
    return rows_with_others(table, own_rows(table, silver[table.join.table]), silver)


def rows_with_others(
    table: JoinTable, rows: DataFrame, silver: Mapping[str, DataFrame], *, count: int | None = None
) -> DataFrame:
    """These own rows with the columns of all other tables, NULL where they refer to none. `count`: of few rows."""
    found = rows
    for number, one in enumerate(table.join.left_join):
        names, referring = [f"_key_{number}_{key}" for key in one.by], referring_columns(number, one)
        keys = [F.col(key).alias(name) for name, key in zip(names, one.by, strict=True)]
        columns = [F.col(source).alias(column) for column, source in one.columns.items()]
        others = silver[one.table].where("NOT _is_deleted").select(*keys, *columns)
        if count is not None:
            # Their rows first: the own ones, on the left, are the side that could not be broadcast.
            wanted = rows.select(*referring)
            others = others.join(broadcast(wanted, count), on=_same(referring, names), how="left_semi")
            others = broadcast(others, count)
        found = found.join(others, on=_same(referring, names), how="left")
    return found.select(*table.join.column_names)


def referring_columns(number: int, one: LeftJoin) -> tuple[str, ...]:
    """The columns of the own rows that refer to this table, in the order of `by`."""
    return tuple(f"_by_{number}_{key}" for key in one.by)


def _same(left: Sequence[str], right: Sequence[str]) -> Column:
    return reduce(and_, [F.col(one) == F.col(other) for one, other in zip(left, right, strict=True)])


def full_outer_compare(found: DataFrame, expected: DataFrame, *, keys: Sequence[str]) -> DataFrame:
    """Of every key how many rows are `_expected`, and how many rows of it are `_differing`: are too many, or absent."""
    both = found.select(*expected.columns, F.lit(1).alias("_found"), F.lit(0).alias("_expected"))
    both = both.unionByName(expected.withColumns({"_found": F.lit(0), "_expected": F.lit(1)}))
    rows = both.groupBy(*expected.columns).agg(F.sum("_found").alias("_found"), F.sum("_expected").alias("_expected"))
    differing = F.sum(F.abs(F.col("_found") - F.col("_expected")))
    return rows.groupBy(*keys).agg(F.sum("_expected").alias("_expected"), differing.alias("_differing"))
