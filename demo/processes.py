"""Servers of the demo and the tests: each a process of its own, on loopback, gone with the process that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
LEASH = Path(__file__).with_name("leash.py")


class Server:
    """A running server. Start it in the main thread, or in one that outlives it: Linux kills it with that thread."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        user: str = "",
        stops_on: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._stops_on = stops_on
        leash = [sys.executable, "-I", "-S", str(LEASH), f"{os.getpid()}:{user}"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else {**os.environ, **environment},
                start_new_session=True,  # a terminal's Ctrl-C is for us; we stop the server
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def answers(self, question: Callable[[], bool], *, seconds: float) -> bool:
        """Whether it answers before it ends or the time does. `question` is asked every 50 ms."""
        deadline = time.monotonic() + seconds
        while self.runs and time.monotonic() < deadline:
            if question():
                return True
            time.sleep(0.05)
        return False

    def pause(self) -> None:
        """Let it, and what it has started in its session, stand still: it keeps files, ports and connections."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self, *, seconds: float) -> None:
        """Ask it to end and wait until it has; after so many seconds, end it."""
        self._process.send_signal(self._stops_on)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End it as a crash of the machine would, and wait until it has ended."""
        self._process.kill()
        self._process.wait()


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of loopback that nobody listens on now, each another."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return tuple(int(one.getsockname()[1]) for one in sockets)
    finally:
        for one in sockets:
            one.close()


def text_of(log: Path) -> str:
    """What a server has written."""
    return log.read_text(encoding="utf-8", errors="replace")


def last_lines(text: str) -> str:
    """The last twenty lines of a text."""
    return "\n".join(text.splitlines()[-20:])
