"""A Java that dies under a running command, as it does when its heap is too small: one sentence, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

# The command, whose own Java is killed when silver has the warehouse: between two calls, or in the middle of a job.
KILLED = """
import sys, threading
from cli.main import main
from pyspark import SparkContext
from silver import apply

ensure_tables = apply.ensure_tables

def between(warehouse, contracts):
    java = SparkContext._gateway.proc
    java.kill()
    java.wait()
    ensure_tables(warehouse, contracts)

def during(warehouse, contracts):
    threading.Timer(3, SparkContext._gateway.proc.kill).start()
    warehouse.spark.range(10**15).selectExpr("sum(id % 7)").collect()

apply.ensure_tables = {"between": between, "during": during}[sys.argv[1]]
main(sys.argv[2:])
"""


@pytest.mark.parametrize("when", ["between", "during"])
def test_it_is_named_and_the_remedy_too(tmp_path: Path, when: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEHOUSE_", "PYTEST_"))}
    # Where the jars are is no setting of the product.
    environment = kept | {name: os.environ[name] for name in ("LAKEHOUSE_CACHE",) if name in os.environ}
    command = [sys.executable, "-c", KILLED, when, "silver", "--warehouse", str(tmp_path / "warehouse"), "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1, ended.stderr
    (error,) = json.loads(ended.stdout)["errors"]
    assert error["kind"] == "JavaGone"
    assert error["what"] == "lakehouse silver: Spark's Java has ended in the middle of it."
    assert "--spark-conf spark.driver.memory=4g" in error["remedy"]
    assert "Traceback" not in ended.stderr, ended.stderr
