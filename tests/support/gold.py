"""Silver tables written by hand, and the gold job on them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from gold import build
from gold.state_store import StateStore
from gold.unify import UNIFIED
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.spark.sizing import rewrite_small_table
from silver.apply import ensure_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SILVER = """
    order_id BIGINT, customer_id BIGINT, status STRING, total_amount STRING, created_at STRING, _is_deleted BOOLEAN
"""
Gold = Mapping[str, Mapping[str, Any]]


def restate(warehouse: Warehouse, **parts: Any) -> None:
    """Write gold's state down anew, with these parts of it."""
    store = StateStore()
    store.write(warehouse, store.read(warehouse).model_copy(update=parts))


def put_mart_back(warehouse: Warehouse, name: str) -> None:
    """Write down that a mart has the commit of gold before the one that it has."""
    marts = StateStore().read(warehouse).marts
    version = marts[name].versions[UNIFIED]
    before = marts[name].with_later(marts[name].definition, [replace(version, number=version.number - 1)])
    restate(warehouse, marts={**marts, name: before})


def ungated(contracts: Contracts) -> Contracts:
    """The contracts without rules at gate 2: asking them takes longer than all else; they have tests of their own."""
    gate = contracts.gold_gate.model_copy(update={"expectations": (), "publication": ()})
    return contracts.model_copy(update={"gold_gate": gate})


def without_marts(contracts: Contracts) -> Contracts:
    """The contracts without tables of gold that follow the unified orders: they have tests of their own too."""
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"marts": {}})})


def silver(spark: SparkSession, *rows: Mapping[str, Any]) -> DataFrame:
    """Rows of a silver table: those columns that matter here."""
    defaults = {"customer_id": 1, "status": "pending", "total_amount": "10.00", "_is_deleted": False}
    table = inline_rows(spark, [{**defaults, **row} for row in rows], SILVER)
    return table.withColumns(
        {
            "total_amount": F.col("total_amount").cast("decimal(10,2)"),
            "created_at": F.col("created_at").cast("timestamp"),
        }
    )


@dataclass(frozen=True)
class Shop:
    """Silver tables written by hand, and the gold job on them."""

    warehouse: Warehouse
    chosen: Settings
    contracts: Contracts

    def write(self, feed: str, *rows: Mapping[str, Any]) -> None:
        """Upsert rows of a feed's silver table."""
        new = silver(self.warehouse.spark, *rows)
        table = self.warehouse.delta(f"silver.{feed}")
        missing = [name for name in table.toDF().columns if name not in new.columns]
        types = dict(table.toDF().dtypes)
        full = new.withColumns({name: F.lit(None).cast(types[name]) for name in missing})
        merge = table.alias("t").merge(full.alias("s"), "t.order_id = s.order_id")
        with rewrite_small_table(self.warehouse.spark, 0):
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def make_anew(self, feed: str) -> None:
        """Delete the feed's silver table and create it again, empty."""
        shutil.rmtree(self.warehouse.path(f"silver.{feed}"))
        ensure_tables(self.warehouse, self.contracts)

    def run(self, run_id: str, contracts: Contracts | None = None, *, full_refresh: bool = False) -> build.GoldOutcome:
        return build.run(
            self.warehouse.spark,
            self.chosen,
            contracts or self.contracts,
            run_id=run_id,
            full_refresh=full_refresh,
        )

    def lose_changes(self, table: str) -> None:
        """Delete the files of the table's change data feed, as VACUUM does after some days."""
        shutil.rmtree(f"{self.warehouse.path(table)}/_change_data")

    def mart(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a mart, in order."""
        return sorted((tuple(row) for row in self.warehouse.read(f"gold.{name}").collect()), key=str)

    def gold(self) -> Gold:
        rows = self.warehouse.read("gold.unified_orders").collect()
        return {row["composite_key"]: row.asDict() for row in rows}
