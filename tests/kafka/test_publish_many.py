"""A million orders in one run: each of them once, with no more memory than for a tenth of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.whole]

ROOT = Path(__file__).parents[2]


def test_a_million_orders_take_no_more_memory_than_a_tenth_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.publish", "100000", "1000000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    few, many = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (few["sent"], many["sent"]) == (100_000, 1_000_000)
    assert many["mb_more"] < few["mb_more"] + 50
