"""However the process that started the stack ends, nothing of the stack runs on."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from demo.processes import HOST
from demo.stack.registry import SchemaRegistry
from lakehouse.errors import InstallationError
from tools.bundle import ROOT

pytestmark = pytest.mark.live

# What demo.live does with it, without the demo.
PROGRAM = """
import sys, time
from contextlib import ExitStack
from rich.console import Console
from demo.__main__ import end_on_signals
from demo.stack.stack import live_stack

with ExitStack() as running:
    end_on_signals(Console(quiet=True), running)
    running.enter_context(live_stack())
    print("up", flush=True)
    time.sleep(600)
"""
GONE_SECONDS = 60.0
JSON = "application/vnd.schemaregistry.v1+json"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on(how: signal.Signals, tmp_path: Path) -> None:
    # The stack keeps everything in the folder for temporary files, so each of its processes names this one.
    environment = {"TMPDIR": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home())}
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)  # PostgreSQL's own user passes through
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        assert len(processes(tmp_path)) >= 6  # three databases, the broker, the registry, Kafka Connect
        program.send_signal(how)
        program.wait(GONE_SECONDS)
    finally:
        program.kill()
        program.communicate()
    deadline = time.monotonic() + GONE_SECONDS
    while processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes(tmp_path) == []
    if how is signal.SIGTERM:
        assert list(tmp_path.iterdir()) == []


def test_the_registry_gives_a_schema_by_its_id_until_it_stops(tmp_path: Path) -> None:
    registry = SchemaRegistry(tmp_path / "registry")
    address = urlsplit(registry.confluent_url)
    connection = HTTPConnection(address.netloc, timeout=10)
    try:
        registry.start()
        registry.wait()
        schema = {"type": "record", "name": "Key", "fields": [{"name": "order_id", "type": "long"}]}
        body = json.dumps({"schema": json.dumps(schema)})
        connection.request("POST", f"{address.path}/subjects/orders-key/versions", body, {"Content-Type": JSON})
        number = json.load(connection.getresponse())["id"]
        # 7, as Avro writes a long.
        assert registry.event_of(b"\0" + number.to_bytes(4) + b"\x0e") == {"order_id": 7}
    finally:
        registry.stop()
        connection.close()
    assert processes(tmp_path) == []
    with pytest.raises(ConnectionRefusedError):
        connection.connect()


def test_a_registry_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    registry = SchemaRegistry(tmp_path / "registry")
    with socket.create_server((HOST, urlsplit(registry.url).port or 0)):
        try:
            registry.start()
            with pytest.raises(InstallationError, match="in use by another process"):
                registry.wait()
        finally:
            registry.stop()


def processes(folder: Path) -> list[str]:
    """The command lines that name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found
