"""`lakehouse forget`: a row that the source has deleted is gone from every layer, and stays so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from cli.main import main
from lakehouse.contracts.files import load_contracts
from tests.support.command_line import run as run_command
from tests.support.dying_erasure import MOMENTS
from tests.support.erasure import MYSQL, POSTGRES, Jobs, files_with, mysql, outbox, postgres, tombstone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
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


def found_in(table: str, where: str, *, rows: int = 0, files: int = 0) -> Mapping[str, Any]:
    return {"table": table, "where": where, "rows": rows, "files": files}


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

    own = Path(jobs.warehouse.path("silver.postgres_orders"))
    kept = next(own / name for name in files_with(str(own), FIRST) if name.startswith("part-"))
    copy = Path(shutil.copy(kept, jobs.folder))

    code, said = forget("postgres_orders", str(KEY), "--yes", "--vacuum")
    assert (code, said["found"]) == (0, [])
    assert files_with(location, FIRST, LAST, SENT) == []
    assert unaccounted(jobs, folder, capsys) == []
    for table, rows in others.items():
        gone = [] if table == "silver.mysql_orders" else [row for row in rows if row[0] == KEY]
        assert jobs.rows(table, "order_id", "note") == [row for row in rows if row not in gone]
    assert forget("postgres_orders", str(KEY), "--prove") == (0, ANY)
    shutil.copy(copy, own / "a-file-that-is-left.parquet")
    code, said = forget("postgres_orders", str(KEY), "--prove")
    assert (code, said["found"]) == (5, [found_in("silver.postgres_orders", "old files", rows=1, files=1)])
    (own / "a-file-that-is-left.parquet").unlink()

    # Silver is rebuilt from bronze, and ends the same.
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


def test_what_comes_late_is_no_row_and_what_comes_later_is_one(
    jobs: Jobs, forget: Callable[..., tuple[int, Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = forget("postgres_orders", str(KEY), "--yes")
    assert code == 0
    found = {(one["table"], one["where"]) for one in said["found"]}
    assert {where for _table, where in found} == {"marked", "old files", "log"}
    assert ("bronze.postgres_events", "old files") in found

    # The connector begins again, some changes back.
    again = {"run": "another run"}
    jobs.store(
        "postgres",
        *(postgres(7, KEY, "u", 120, note=FIRST, **again), postgres(8, KEY, "d", 140, **again)),
        tombstone(POSTGRES, 9, KEY),
        *(postgres(10, OTHER, "u", 150, **again), postgres(11, OTHER, "u", 160, note="later", **again)),
        outbox(2, KEY, SENT, event="event-0"),
    )
    jobs.run()
    columns = ("order_id", "note", "_position.epoch")
    assert jobs.rows("silver.postgres_orders", *columns) == [(OTHER, "later", 0)]
    assert jobs.rows("silver.postgres_outbox_orders", "order_id") == [(OTHER,)]
    assert {row[0] for row in jobs.rows("silver.postgres_orders_history", "order_id")} == {OTHER}
    assert unaccounted(jobs, folder, capsys) == []
    code, said = forget("postgres_orders", str(KEY), "--prove")
    assert code == 5
    assert found_in("bronze.postgres_events", "rows", rows=4) in said["found"]
    code, said = forget("postgres_orders", str(KEY), "--yes")
    assert (code, [one for one in said["found"] if one["where"] == "rows"]) == (0, [])

    jobs.store("postgres", postgres(12, KEY, "c", 200, note="a new row", **again))
    jobs.run()
    assert (KEY, "a new row") in jobs.rows("silver.postgres_orders", "order_id", "note")
    assert (f"PG-{KEY}",) in jobs.rows("gold.unified_orders", "composite_key")


def test_what_may_not_be_erased_is_refused(jobs: Jobs, forget: Callable[..., tuple[int, Any]]) -> None:
    def why_not(*words: str) -> tuple[int, str]:
        code, said = forget(*words, "--yes")
        return code, " ".join(f"{one['what']} {one['hint']}" for one in said["errors"])

    before = jobs.warehouse.version("bronze.postgres_events")
    code, why = why_not("postgres_orders", str(KEY), str(OTHER))
    assert (code, "1 of 2 rows are not deleted in the source (keys number 2)" in why) == (5, True)
    code, why = why_not("postgres_orders", str(KEY), "no number")
    assert (code, "Key number 2 is no key" in why, "no number" in why) == (2, True, False)
    assert why_not("no_table", "1")[0] == 2
    assert why_not("postgres_orders") == (2, ANY)
    jobs.store("postgres", postgres(7, OTHER, "u", 160))
    code, why = why_not("postgres_orders", str(KEY))
    assert (code, "silver has not read all that bronze has of postgres" in why) == (5, True)
    jobs.run()
    # A record of a changed key has both keys.
    links = [("__debezium.newkey", '{"order_id":5}')]
    moved = postgres(8, OTHER, "d", 170)
    moved["headers"] = [*map(list, links), *moved["headers"]]
    created = postgres(9, 5, "c", 170)
    created["headers"] = [["__debezium.oldkey", json.dumps({"order_id": OTHER})], *created["headers"]]
    jobs.store("postgres", moved, created)
    jobs.run()
    code, why = why_not("postgres_orders", str(OTHER))
    assert (code, f"{POSTGRES}/0/8" in why, "Name both keys" in why) == (5, True, True)
    rejected = postgres(10, KEY, "c", 180, total_amount="-1.00")
    jobs.store("postgres", rejected)
    jobs.run()
    code, why = why_not("postgres_orders", str(KEY))
    assert (code, "pending in quarantine" in why, f"{POSTGRES}/0/10" in why) == (5, True, True)
    assert jobs.warehouse.version("bronze.postgres_events") == before + 3


def test_the_other_source(jobs: Jobs, forget: Callable[..., tuple[int, Any]]) -> None:
    """MySQL, without an outbox event, by keys of a file."""
    jobs.store("mysql", mysql(2, KEY, "d", 200), tombstone(MYSQL, 3, KEY))
    jobs.run()
    keys = jobs.folder / "keys"
    keys.write_text(f"{KEY}\n\n")
    code, said = forget("mysql_orders", "--keys-from", str(keys), "--yes", "--vacuum")
    assert (code, said["found"]) == (0, [])
    assert [one["records"] for one in said["plan"]] == [3, 0]
    assert files_with(jobs.warehouse.location, "of MySQL") == []
    assert jobs.rows("silver.mysql_orders", "order_id") == [(OTHER,)]
    assert files_with(jobs.warehouse.location, FIRST)


@pytest.mark.slow
def test_a_command_that_was_killed_anywhere_is_run_again(
    jobs: Jobs, forget: Callable[..., tuple[int, Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one warehouse one process after the other dies, each a step later."""
    where = ("--warehouse", jobs.warehouse.location, "--contracts", str(folder))
    words = ("postgres_orders", str(KEY), "--yes", "--vacuum", *where)
    for moment in MOMENTS:
        died = subprocess.run(
            [sys.executable, "-m", "tests.support.dying_erasure", moment, *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL, (moment, died.stderr)
    assert jobs.warehouse.properties("bronze.postgres_events")["delta.appendOnly"] == "true"
    code, said = forget("postgres_orders", str(KEY), "--yes", "--vacuum")
    assert (code, said["found"]) == (0, [])
    assert files_with(jobs.warehouse.location, FIRST, LAST, SENT) == []
    assert unaccounted(jobs, folder, capsys) == []
    erased = jobs.rows("ops.erased", "kind", "topic", "offset", "key_digest")
    records = [row for row in erased if row[0] == "record"]
    assert (len(records), len(records)) == (6, len(set(records)))
