"""Two real runs on a warehouse of one machine: one is stopped in the middle of its work, and goes on or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from benchmarks.records import store
from bronze.events import events_table
from demo.__main__ import DATA, RECORDINGS
from lakehouse.process.lock import LockState, current_folder_lock
from silver.order.state import COUNTED, OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.recordings import read, write

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 2000
SECONDS = 300
COMMAND = [sys.executable, "-c", "from cli.main import main; main()", "silver"]


@pytest.fixture
def stored(warehouse: Warehouse, tmp_path: Path) -> Warehouse:
    """A warehouse with records of one source, none of which silver has read."""
    topics = RECORDINGS["pg_big_20k"]
    some = [record for record in read(DATA / "pg_big_20k.jsonl.gz") if record["topic"] in topics][:RECORDS]
    for source in ("postgres", "mysql"):
        warehouse.ensure(events_table(source))
    store(warehouse, "postgres", bronze_rows(warehouse.spark, write(tmp_path / "some.jsonl.gz", some), topics=topics))
    return warehouse


def environment() -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}
    cache = os.environ.get("LAKEHOUSE_CACHE")
    return given | ({"LAKEHOUSE_CACHE": cache} if cache else {})


@contextmanager
def stopped_at_work(warehouse: Warehouse, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`lakehouse silver`, stopped with its Java when it has merged rows and has not written down its batch."""
    command = [*COMMAND, "--warehouse", warehouse.location]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True, env=environment())
    try:
        wait_for(lambda: [*Path(warehouse.location).glob("silver/*/_delta_log/*01.json")], process, log)
        os.killpg(process.pid, signal.SIGSTOP)
        assert warehouse.read("ops.batches").where("layer = 'silver' AND read > 0").isEmpty(), "its batch has ended"
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(condition: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.02)


def silver(warehouse: Warehouse) -> subprocess.CompletedProcess[str]:
    """A second run, which ends by itself."""
    command = [*COMMAND, "--warehouse", warehouse.location]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment())


def state(warehouse: Warehouse) -> LockState:
    found = current_folder_lock(Path(warehouse.location))
    assert found is not None
    return found


def require_every_record_once(warehouse: Warehouse) -> None:
    sums = [F.sum(name).alias(name) for name in COUNTED]
    (row,) = warehouse.read("ops.batches").where("layer = 'silver'").agg(*sums).collect()
    assert row["read"] == RECORDS == sum(row[name] for name in OUTCOMES)
    orders = warehouse.read("silver.postgres_orders").select("order_id")
    assert orders.count() == orders.distinct().count() > 0


def test_a_run_that_is_stopped_and_goes_on_loses_nothing_and_the_second_one_is_told(
    stored: Warehouse, tmp_path: Path
) -> None:
    log = tmp_path / "first.log"
    with stopped_at_work(stored, log) as first:
        refused = silver(stored)
        assert refused.returncode == 7, refused.stderr
        assert "`lakehouse silver` (run " in refused.stderr
        assert f"process {first.pid}) has been working on this warehouse since " in refused.stderr
        os.killpg(first.pid, signal.SIGCONT)
        assert first.wait(SECONDS) == 0, log.read_text(encoding="utf-8")
    assert not state(stored).is_held
    require_every_record_once(stored)
    assert silver(stored).returncode == 0
    require_every_record_once(stored)


def test_a_run_that_is_killed_frees_the_warehouse_and_the_next_one_does_its_work(
    stored: Warehouse, tmp_path: Path
) -> None:
    with stopped_at_work(stored, tmp_path / "first.log") as first:
        assert state(stored).is_held
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert not state(stored).is_held
    second = silver(stored)
    assert second.returncode == 0, second.stderr
    require_every_record_once(stored)
    assert not stored.exists("ops.lease")
