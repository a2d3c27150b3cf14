"""A Java that dies under a running command, as it does when its heap is too small: one sentence, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

# The command, whose own Java is killed when silver has the warehouse: between two calls, in the middle of a job, or so
# that the connection is reset, not closed, under a call.
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

def reset(warehouse, contracts):
    # What the kernel does when Java ends with something of ours unread: not to be had on demand by a kill.
    from py4j.clientserver import ClientServerConnection
    from py4j.protocol import ERROR_ON_RECEIVE, Py4JNetworkError

    java = SparkContext._gateway.proc
    send_command = ClientServerConnection.send_command

    def lost(connection, command):
        ClientServerConnection.send_command = send_command
        java.kill()
        java.wait()
        raise Py4JNetworkError("Error while sending or receiving", ConnectionResetError(104, "reset"), ERROR_ON_RECEIVE)

    ClientServerConnection.send_command = lost
    ensure_tables(warehouse, contracts)

def during(warehouse, contracts):
    threading.Timer(3, SparkContext._gateway.proc.kill).start()
    warehouse.spark.range(10**15).selectExpr("sum(id % 7)").collect()

apply.ensure_tables = {"between": between, "during": during, "reset": reset}[sys.argv[1]]
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "when", ["between", *(pytest.param(when, marks=pytest.mark.slow) for when in ("during", "reset"))]
)
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
    assert "--spark-conf spark.driver.memory=4g" in error["hint"]
    assert "Traceback" not in ended.stderr, ended.stderr
