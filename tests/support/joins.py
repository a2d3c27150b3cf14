"""The tables of `order_dw` (users, orders, feedback) in a folder of contracts, and their silver, written by hand."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pyspark.sql import functions as F

from gold.derived import joins
from gold.derived.joined import full_join, join_table
from gold.state_store import StateStore
from lakehouse.batches import BATCHES
from lakehouse.contracts.files import MODELS, load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.spark.sizing import rewrite_small_table
from silver.batch.merge import silver_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCES = Path(__file__).parents[2] / "src"
USER, ORDER, FEEDBACK = "order_dw_user", "order_dw_order", "order_dw_feedback"
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    USER: {"id": "BIGINT", "name": "STRING"},
    ORDER: {"id": "BIGINT", "product": "STRING", "user_id": "BIGINT"},
    FEEDBACK: {"id": "BIGINT", "user_id": "BIGINT", "comment": "STRING"},
}
USER_ORDERS: dict[str, Any] = {
    "table": ORDER,
    "columns": {"order_id": "id", "product": "product"},
    "left_join": [{"table": USER, "by": {"id": "user_id"}, "columns": {"user_name": "name"}}],
}
# The files that declare the tables and the joins, without any.
NOTHING: Mapping[str, Any] = {
    "bronze/topics.yaml": {"sources": {}},
    "silver/tables.yaml": {"tables": {}},
    "gold/tables.yaml": {},
}
Row = Mapping[str, Any]


def user_orders() -> dict[str, Any]:
    """The join of orders with the names of their users, to change at will."""
    return copy.deepcopy(USER_ORDERS)


def write_contracts(
    folder: Path,
    *,
    joins: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]] = COLUMNS,
    gold: Mapping[str, Any] | None = None,
    keys: Mapping[str, list[str]] | None = None,
    is_alone: bool = False,
) -> Path:
    """The packaged contracts with the source `order_dw` and these joins. `gold`: what else its tables.yaml has.

    `is_alone`: the folder has nothing else.
    """
    for name in MODELS:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not is_alone:
            shutil.copy(SOURCES / name, target)
    declared = copy.deepcopy(dict(NOTHING))
    if not is_alone:
        declared = {name: yaml.safe_load((folder / name).read_text()) for name in NOTHING}
    topics, silver, tables = declared.values()
    feeds = {
        name: {"topics": [name.replace("order_dw_", "order_dw.")], "envelope": "table", "binary_handling_mode": "bytes"}
        for name in columns
    }
    topics["sources"]["order_dw"] = {"kind": "mysql", "feeds": feeds}
    for name, of_table in columns.items():
        own = (keys or {}).get(name, ["id"])
        identity: dict[str, Any] = {"keys": own} if own else {"append_only": True}
        silver["tables"][name] = {**identity, "sequence_by": "source_position", "columns": dict(of_table)}
    tables |= {"joins": dict(joins), **(gold or {})}
    for name, content in declared.items():
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def contracts_with(folder: Path, **how: Any) -> Contracts:
    """The same, read."""
    return load_contracts(write_contracts(folder, **how))


@dataclass
class OrderDw:
    """Silver tables written by hand, and the joins that are kept up with them."""

    warehouse: Warehouse
    contracts: Contracts
    store: StateStore = field(default_factory=StateStore)

    def create(self, feeds: Iterable[str] = COLUMNS) -> None:
        self.warehouse.ensure(BATCHES)
        self.warehouse.ensure_all([silver_table(self.contracts.feeds[feed]) for feed in feeds])

    def make_again(self, feed: str) -> None:
        """Delete the silver table and create it again, empty."""
        shutil.rmtree(self.warehouse.path(f"silver.{feed}"))
        self.create([feed])

    def write(self, feed: str, *rows: Row) -> None:
        """Upsert rows, in one commit. `_is_deleted` of a row: it stays, as silver keeps what is deleted."""
        table, columns = self.warehouse.delta(f"silver.{feed}"), self.contracts.feeds[feed].columns
        ddl = ", ".join(f"{name} {declared.type.ddl}" for name, declared in columns.items())
        new = inline_rows(
            self.warehouse.spark, [{"_is_deleted": False, **row} for row in rows], f"{ddl}, _is_deleted BOOLEAN"
        )
        full = new.withColumns(
            {name: F.lit(None).cast(kind) for name, kind in table.toDF().dtypes if name not in new.columns}
        )
        same = " AND ".join(f"t.{key} = s.{key}" for key in self.contracts.feeds[feed].keys)
        merge = table.alias("t").merge(full.alias("s"), same)
        with rewrite_small_table(self.warehouse.spark, 0):
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def pending(self, *, whole: bool = False) -> dict[str, int | None]:
        """How many rows of each join the next run would compute again."""
        consumed = self.store.read(self.warehouse).joins
        return joins.pending(self.warehouse, self.contracts, consumed=consumed, whole=whole)

    def refresh(self, *, record: bool = True, **how: Any) -> joins.JoinsOutcome:
        """Bring the joins up. Without `record` the run dies before it has written down what it has taken."""
        state = self.store.read(self.warehouse)
        consumed = dict(state.joins)
        outcome = joins.refresh(self.warehouse, self.contracts, consumed=consumed, **how)
        if record:
            self.store.write(self.warehouse, state.model_copy(update={"joins": consumed}))
        return outcome

    def rows(self, name: str = "user_orders") -> list[tuple[Any, ...]]:
        """The rows of a join, in order."""
        return ordered(self.warehouse.read(f"gold.{name}"))

    def whole(self, name: str = "user_orders") -> list[tuple[Any, ...]]:
        """What they have to be: the whole join of silver as it is now."""
        table = join_table(self.contracts, name)
        return ordered(full_join(table, {feed: self.warehouse.read(f"silver.{feed}") for feed in table.join.tables}))

    def lose_changes(self, feed: str) -> None:
        """Delete the files of the change data feed, as VACUUM does after some days."""
        shutil.rmtree(f"{self.warehouse.path(f'silver.{feed}')}/_change_data")


def ordered(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows.collect()), key=str)
