"""Small files of many batches are joined, by the process that writes them or the next, and nobody sees a change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bronze.events import events_table
from lakehouse import batches
from lakehouse.batches import BATCHES as AUDIT
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.delta_log import written_bytes
from lakehouse.delta.tables import UPSERTED, TableSpec, Warehouse, inline_rows
from silver import apply
from silver.accounts.audit import append, begin_generations, read_state
from silver.order.state import State, read_row, segment_rows, writer_of
from tests.support.facts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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
        row = inline_rows(spark, [{"id": number}], SPEC.columns)
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
    joined, written = (
        written_bytes(warehouse, SPEC.name, after=JOINED_AT + at, to=JOINED_AT + at + 1) for at in (0, 1)
    )
    both = written_bytes(warehouse, SPEC.name, after=JOINED_AT, to=JOINED_AT + 2)
    assert both == joined + written > joined > 0


def test_runs_of_one_batch_each_leave_few_files_of_what_the_next_one_reads(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, segments = empty_silver(), 6
    monkeypatch.setattr(batches, "MAX_FILES", segments - 1)
    for source in contracts.topics.sources:
        warehouse.ensure(events_table(source))
    state = begin_generations(warehouse, {"postgres": State()})["postgres"]
    for number in range(1, segments):
        # Two runs of the connector, by turns.
        facts = [counted(10 * number, 10 * number + 9, run=f"run-{number % 2}")]
        of_batch = {"run": "a run", "source": "postgres", "generation": state.generation, "batch": number}
        rows = [*segment_rows(state, facts), read_row(state.read_ranges)]
        writer = writer_of("postgres", state.generation)
        state = append(warehouse, state, rows, of_batch=of_batch, writer=writer)
        assert number_of_files(warehouse) == number + 1
    chosen = settings(warehouse=warehouse.location, checkpoints=warehouse.checkpoints)
    apply.run(warehouse.spark, chosen, contracts, run_id="the next one")
    assert number_of_files(warehouse) == 1
    assert read_state(warehouse, "postgres") == state
    own = warehouse.read(AUDIT.name).where("source = 'postgres'")
    kept = own.selectExpr("count(segment) AS segments", "count(read_ranges) AS ranges").collect()[0]
    assert tuple(kept) == (2, 1), "what later rows have replaced is gone"


def number_of_files(warehouse: Warehouse) -> int:
    return len(warehouse.read(AUDIT.name).inputFiles())
