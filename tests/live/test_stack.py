"""However the process that started the stack ends, nothing of the stack runs on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
        assert len(processes(tmp_path)) >= 5  # three databases, the broker, Kafka Connect
        program.send_signal(how)
        program.wait(GONE_SECONDS)
    finally:
        program.kill()
        program.wait()
    deadline = time.monotonic() + GONE_SECONDS
    while processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes(tmp_path) == []
    if how is signal.SIGTERM:
        assert list(tmp_path.iterdir()) == []


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
