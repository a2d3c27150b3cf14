"""Resident memory of a command: of the Java below it, and of all the rest (Linux)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MB = 1_000_000
LOOK_EVERY_SECONDS = 1.0


def resident_mb(pid: int) -> tuple[float, float]:
    """Of Java below this process, and of all the rest of its processes, in MB."""
    java = rest = 0.0
    waiting = [pid]
    while waiting:
        one = Path(f"/proc/{waiting.pop()}")
        lines = dict(line.split(":", 1) for line in _text(one / "status").splitlines())
        waiting += _children(one)
        size = int(lines.get("VmRSS", "0 kB").split()[0]) * 1024 / MB
        is_java = lines.get("Name", "").strip() == "java"
        java, rest = (java + size, rest) if is_java else (java, rest + size)
    return round(java), round(rest)


def _text(file: Path) -> str:
    """What the file says; nothing when the process, or the thread, has ended meanwhile."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _children(process: Path) -> list[int]:
    """The processes that its threads have started; threads come and go while they are looked at."""
    try:
        threads = [*(process / "task").iterdir()]
    except FileNotFoundError:
        return []
    return [int(child) for thread in threads for child in _text(thread / "children").split()]


@contextmanager
def most_of_java(pid: int) -> Iterator[Callable[[], float]]:
    """Inside the block the process is looked at; what is yielded tells the most that its Java had, in MB."""
    ended, most = threading.Event(), [0.0]

    def look() -> None:
        while not ended.wait(LOOK_EVERY_SECONDS):
            most[0] = max(most[0], resident_mb(pid)[0])

    with in_thread(look, ended):
        yield lambda: most[0]


@contextmanager
def in_thread(work: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Inside the block `work` goes on in a thread, until `ended` is set."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
