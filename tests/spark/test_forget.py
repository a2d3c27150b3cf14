"""`lakehouse forget`: a row that the source has deleted is gone from every layer, and stays so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.main import main
from lakehouse.contracts.files import load_contracts
from tests.support.command_line import run as run_command
from tests.support.erasure import POSTGRES, Jobs, files_with, mysql, outbox, postgres, tombstone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

# What the person has written: of no other row, and the lowest and the highest text of its column.
FIRST, LAST, SENT = "!!canary-of-the-person", "~~canary-of-the-person", "canary-of-the-outbox"
KEY, OTHER = 987654321, 1002


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contracts in which the orders of PostgreSQL keep their history."""
    folder = tmp_path_factory.mktemp("own") / "contracts"
    main(["init", str(folder)])
    tables = folder / "silver" / "tables.yaml"
    text = tables.read_text()
    tables.write_text(text.replace("sequence_by: source_position", "sequence_by: source_position\n    scd_type: 2", 1))
    gate = folder / "gold" / "gate.yaml"
    gate.write_text("{}\n")
    return folder


@pytest.fixture(scope="module")
def stored(spark: SparkSession, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Orders of both sources, one of them a person's: changed, rejected once, sent by an outbox, and deleted."""
    from lakehouse.delta.tables import Warehouse

    location = tmp_path_factory.mktemp("stored") / "warehouse"
    warehouse = Warehouse(spark, str(location), str(location / "_checkpoints"))
    jobs = Jobs(warehouse, load_contracts(folder), tmp_path_factory.mktemp("records"))
    jobs.store(
        "postgres",
        postgres(0, KEY, "c", 100, note=FIRST),
        postgres(1, OTHER, "c", 110, note="another"),
        outbox(0, KEY, SENT),
        outbox(1, OTHER, "another"),
    )
    jobs.store("mysql", mysql(0, KEY, "c", 100, note="of MySQL"), mysql(1, OTHER, "c", 110))
    jobs.run()
    jobs.store(
        "postgres",
        postgres(2, KEY, "u", 120, note=LAST),
        postgres(3, KEY, "u", 130, note=LAST, total_amount="-1.00"),
    )
    jobs.run()
    jobs.store("postgres", postgres(4, KEY, "d", 140), tombstone(POSTGRES, 5, KEY), postgres(6, OTHER, "u", 150))
    jobs.run()
    return jobs


@pytest.fixture
def jobs(stored: Jobs, tmp_path: Path) -> Jobs:
    """A copy of it."""
    from lakehouse.delta.tables import Warehouse

    location = tmp_path / "warehouse"
    shutil.copytree(stored.warehouse.location, location)
    warehouse = Warehouse(stored.warehouse.spark, str(location), str(location / "_checkpoints"))
    records = tmp_path / "records"
    records.mkdir()
    return Jobs(warehouse, stored.contracts, records, stored.runs, {*stored.topics})


@pytest.fixture
def forget(jobs: Jobs, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs `lakehouse forget …`: its exit code, and what it answers."""

    def command(*words: str) -> tuple[int, Any]:
        where = ("--warehouse", jobs.warehouse.location, "--contracts", str(folder), "--json")
        code, said, errors = run_command(capsys, "forget", *words, *where)
        assert FIRST not in said + errors
        return code, json.loads(said)

    return command


def unaccounted(jobs: Jobs, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What `lakehouse verify` finds wrong."""
    where = ("--warehouse", jobs.warehouse.location, "--contracts", str(folder), "--json")
    code, said, _errors = run_command(capsys, "verify", *where)
    found = json.loads(said)
    assert bool(code) == bool(found["errors"])
    return found["errors"]


def test_a_row_is_gone_from_every_file_and_stays_gone(
    jobs: Jobs, forget: Callable[..., tuple[int, Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = jobs.warehouse.location
    assert unaccounted(jobs, folder, capsys) == []
    assert files_with(location, FIRST, LAST, SENT)
    others = {
        table: jobs.rows(table, "order_id", "note")
        for table in ("silver.mysql_orders", "silver.postgres_orders", "silver.postgres_outbox_orders")
    }
    code, said = forget("postgres_orders", str(KEY), "--dry-run")
    (of_table, of_outbox), found = said["plan"], said["found"]
    assert (code, found) == (0, None)
    assert (of_table["records"], of_table["rows"], of_table["versions"], of_table["entries"]) == (5, 1, 3, 1)
    assert (of_outbox["records"], of_outbox["rows"]) == (1, 1)
    assert of_table["topics"] == {POSTGRES: 5}

    code, said = forget("postgres_orders", str(KEY), "--yes", "--vacuum")
    assert (code, said["found"]) == (0, [])
    assert files_with(location, FIRST, LAST, SENT) == []
    assert unaccounted(jobs, folder, capsys) == []
    for table, rows in others.items():
        gone = [] if table == "silver.mysql_orders" else [row for row in rows if row[0] == KEY]
        assert jobs.rows(table, "order_id", "note") == [row for row in rows if row not in gone]
    assert forget("postgres_orders", str(KEY), "--prove")[0] == 0

    # Silver is built anew from bronze, and ends the same.
    tables = ("silver.postgres_orders", "silver.postgres_outbox_orders", "silver.postgres_orders_history")
    columns = {name: [one for one in jobs.warehouse.read(name).columns if one != "_applied_at"] for name in tables}
    before = {name: jobs.rows(name, *columns[name]) for name in tables}
    for name in tables:
        shutil.rmtree(jobs.warehouse.path(name))
    counted = jobs.run()
    assert {name: jobs.rows(name, *columns[name]) for name in tables} == before
    assert (counted["read"], counted["ignored"]) == (9, 6)
    assert unaccounted(jobs, folder, capsys) == []
    assert files_with(location, FIRST, LAST, SENT) == []
