"""Small files of many batches are joined by the process that writes them, and nobody sees a change in that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse.tables import UPSERTED, TableSpec, Warehouse, small_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPEC = TableSpec("silver.written_often", "id BIGINT", properties=UPSERTED)
BATCHES = 60
# Delta joins them when a process has written so many (spark.databricks.delta.autoCompact.minNumFiles).
JOINED_AT = 50


def files(warehouse: Warehouse) -> int:
    return int(warehouse.delta(SPEC.name).detail().select("numFiles").collect()[0]["numFiles"])


def test_a_process_that_goes_on_joins_its_small_files(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path), str(tmp_path / "_checkpoints"))
    warehouse.ensure(SPEC)
    for number in range(BATCHES):
        row = small_table(spark, [{"id": number}], SPEC.columns)
        warehouse.append_once(SPEC.name, row, writer="batches", number=number)
    assert files(warehouse) == BATCHES - JOINED_AT + 1
    assert sorted(row["id"] for row in warehouse.read(SPEC.name).collect()) == [*range(BATCHES)]

    last = warehouse.version(SPEC.name)
    assert last == BATCHES + 1, "a commit of its own"
    feed = warehouse.changes(SPEC.name, first=1, last=last)
    assert [(row["_change_type"], row["count"]) for row in feed.groupBy("_change_type").count().collect()] == [
        ("insert", BATCHES)
    ]
    commits = warehouse.delta(SPEC.name).history().where("operation = 'OPTIMIZE'").select("version").collect()
    assert [row["version"] for row in commits] == [JOINED_AT + 1]
    joined, written = (warehouse.written_bytes(SPEC.name, after=JOINED_AT + at, to=JOINED_AT + at + 1) for at in (0, 1))
    both = warehouse.written_bytes(SPEC.name, after=JOINED_AT, to=JOINED_AT + 2)
    assert both == joined + written > joined > 0
