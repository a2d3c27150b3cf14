"""A batch reads of the past what its own facts ask for and no more: files that it does not need may be gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bronze.events import events_table
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from silver import source_batch
from silver.apply import ensure_tables
from silver.lookback import earlier_records
from silver.lookback.earlier_records import steps_back
from tests.support.bronze import bronze_rows
from tests.support.events import Record, change, order, postgres_image, postgres_source, record, run_headers
from tests.support.recordings import write
from tests.support.silver import Told, apply_rows, job_of, with_gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FEED, TOPIC = "postgres_orders", "postgres_prod_tables.public.orders"
PLACE = (TOPIC, "first", 0)


def event(at: int, offset: int, *, key: int | None = None, run: str = "a") -> Record:
    """An order that is inserted at this place of the log, sent by this connector run."""
    source = postgres_source(at, last_commit=at)
    value = change("c", source, postgres_image(order(at if key is None else key)))
    named = {"order_id": at if key is None else key}
    return record(TOPIC, offset, key=named, value=value, headers=run_headers(run, source=source))


def forget(warehouse: Warehouse, table: str, *, version: int) -> None:
    """Delete the data files that a commit has added to a table."""
    folder = Path(warehouse.path(table))
    for line in (folder / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8").splitlines():
        if "add" in (action := json.loads(line)):
            (folder / action["add"]["path"]).unlink()


def as_list(contracts: Contracts) -> Contracts:
    """The orders of PostgreSQL as a list of changes, without rules."""
    table = contracts.silver.tables[FEED].model_copy(update={"append_only": True, "keys": ()})
    tables = {**contracts.silver.tables, FEED: table}
    return with_gate(contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})}))


@pytest.fixture
def told_of_a_list(spark: SparkSession, contracts: Contracts, tmp_path: Path) -> Told:
    own = as_list(contracts)
    warehouse = Warehouse(spark, str(tmp_path / "warehouse"), str(tmp_path / "warehouse/_checkpoints"))
    ensure_tables(warehouse, own)
    return Told(warehouse, own, "postgres", tmp_path)


def test_a_list_of_changes_is_not_read_for_what_is_new(told_of_a_list: Told) -> None:
    told, warehouse = told_of_a_list, told_of_a_list.warehouse
    for batch in range(3):
        told.tell(*[event(100 * batch + number + 1, 10 * batch + number) for number in range(3)])
    forget(warehouse, f"silver.{FEED}", version=1)
    told.tell(event(301, 30), event(302, 31))
    assert told.counted() == {"read": 11, "applied": 11}
    # A run that sends again what was read before is compared with all of it.
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound"):
        told.tell(event(302, 32, run="b"), event(401, 33, run="b"))


def test_what_is_sent_again_is_once_in_a_list_of_changes(told_of_a_list: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of_a_list
    told.tell(*[event(number + 1, number) for number in range(4)])
    again = [event(2, 4, run="b"), event(3, 5, run="b"), event(9, 6, run="b")]

    def killed(*_given: object, **_more: object) -> None:
        raise SystemError("killed")

    # A batch that breaks off before it is written down is repeated, and finds its own row.
    with monkeypatch.context() as patch, pytest.raises(SystemError):
        patch.setattr(source_batch, "append", killed)
        told.tell(*again)
    assert told.warehouse.read(f"silver.{FEED}").count() == 5
    told.tell(*again)
    assert told.counted() == {"read": 7, "applied": 5, "duplicate": 2}
    assert told.warehouse.read(f"silver.{FEED}").count() == 5


def test_a_replay_is_compared_with_what_its_run_can_have_sent_again(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_records, "FIRST_STEP", 4)
    warehouse, own = empty_silver(), with_gate(contracts)
    job = job_of(warehouse, own, "postgres")
    warehouse.ensure(events_table("postgres"))
    for batch in range(4):
        rows = stored(
            warehouse, tmp_path, [event(10 * batch + number + 1, 10 * batch + number) for number in range(10)]
        )
        apply_rows(warehouse, rows, job=job)
    forget(warehouse, "bronze.postgres_events", version=1)
    # The second one goes further back than the first step.
    runs = {"b": [(38, 40), (39, 41), (40, 42), (41, 43)], "c": [(31, 44), (32, 45), (42, 46)]}
    for run, changes in runs.items():
        rows = stored(warehouse, tmp_path, [event(at, offset, run=run) for at, offset in changes])
        apply_rows(warehouse, rows, job=job)
    audit = warehouse.read("ops.batches").where("batch > 3")
    counted = audit.where("read > 0").orderBy("batch").select("applied", "duplicate").collect()
    assert [tuple(row) for row in counted] == [(1, 3), (1, 2)]
    assert audit.where("epochs IS NOT NULL").isEmpty()
    # What is nowhere near is looked for in all that was read.
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound"):
        apply_rows(warehouse, stored(warehouse, tmp_path, [event(35, 47, run="d", key=350)]), job=job)


def stored(warehouse: Warehouse, folder: Path, records: Sequence[Record]) -> DataFrame:
    """The records in bronze, as a batch."""
    file = write(folder / f"{records[0]['offset']}.jsonl.gz", list(records))
    rows = bronze_rows(warehouse.spark, file, topics={TOPIC: TOPIC})
    warehouse.append("bronze.postgres_events", rows)
    return rows


def test_what_was_read_is_looked_at_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_records, "FIRST_STEP", 4)
    other = (TOPIC, "first", 1)
    steps = [*steps_back({PLACE: (10, 120), other: (0, 99), (TOPIC, "first", 2): (0, 9)}, {PLACE: 100, other: 3})]
    assert steps == [
        ({PLACE: (96, 120), other: (0, 99)}, False),
        ({PLACE: (84, 120), other: (0, 99)}, False),
        ({PLACE: (36, 120), other: (0, 99)}, False),
        ({PLACE: (10, 120), other: (0, 99)}, True),
    ]
