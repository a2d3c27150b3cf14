"""The demo: that its own check can fail, and that it leaves no process behind however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.__main__ import DATA
from demo.check import final_rows, silver_differences
from lakehouse.contracts.models import Contracts
from silver.apply import ensure_tables
from tests.support.bronze import bronze_rows
from tests.support.processes import descendants, left_after
from tests.support.recordings import read, with_last_value_changed, write
from tests.support.silver import apply

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parent.parent.parent
CAPTURES = ROOT / "tests" / "captures"
SESSION_SECONDS = 120.0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo in a process of its own, with its broker and Spark's Java running."""
    command = [sys.executable, "-m", "demo", "--warehouse", str(tmp_path / "warehouse")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    deadline = time.monotonic() + SESSION_SECONDS
    said = ""
    for line in process.stdout:
        said += line
        if "… bronze" in line or time.monotonic() > deadline:
            break
    assert "… bronze" in said, said
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(demo: subprocess.Popen[str], number: signal.Signals) -> None:
    started = descendants(demo.pid)
    assert len(started) >= 2, "a broker and Spark's Java"
    demo.send_signal(number)
    demo.communicate(timeout=60)
    assert left_after(started, seconds=20) == set()
    assert demo.returncode == (-number if number == signal.SIGKILL else 128 + number)


def test_the_check_names_the_key_whose_last_event_was_changed(
    warehouse: Warehouse, contracts: Contracts, tmp_path: Path
) -> None:
    topic = "pgord.public.orders"
    records = read(CAPTURES / "pg_ordering.jsonl.gz")
    changed = with_last_value_changed(records, topic=topic, key='{"order_id":3}', column="customer_id", value=7)
    ensure_tables(warehouse, contracts)
    truth = {"silver.postgres_orders": "pg_ordering"}
    batch = bronze_rows(
        warehouse.spark,
        write(tmp_path / "changed.jsonl.gz", changed),
        topics={topic: "postgres_prod_tables.public.orders"},
    )
    apply(warehouse, contracts, "postgres", batch)
    (sentence,) = silver_differences(warehouse, data=CAPTURES, truth=truth)
    assert sentence == "silver.postgres_orders differs from its source in 1 of 11 keys: 3."


@pytest.mark.whole
def test_the_whole_demo_passes_and_fails_with_one_changed_value(tmp_path: Path) -> None:
    done = _run_demo(tmp_path, DATA)
    assert done.returncode == 0
    report = tmp_path / "warehouse" / "report.html"
    assert str(report) in done.stdout
    shown = report.read_text(encoding="utf-8")
    assert "gold.unified_orders" in shown
    # The recordings are of years ago, and nothing is late.
    assert "■ critical" not in shown
    changed = tmp_path / "data"
    shutil.copytree(DATA, changed)
    recording = changed / "pg_big_20k.jsonl.gz"
    key = max(final_rows(DATA / "pg_big_20k.final.json.gz", "orders", key="order_id"))
    records = with_last_value_changed(
        read(recording),
        topic="pgbig2.public.orders",
        key=json.dumps({"order_id": key}, separators=(",", ":")),
        column="customer_id",
        value=-1,
    )
    write(recording, records)
    done = _run_demo(tmp_path, changed)
    assert done.returncode == 1
    assert f"silver.postgres_orders differs from its source in 1 of 8842 keys: {key}." in done.stdout


def _run_demo(folder: Path, data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", "--warehouse", str(folder / "warehouse"), "--data", str(data)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
