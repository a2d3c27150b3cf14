"""Which processes live, from /proc."""

from __future__ import annotations

import time
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """All children of a process, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # ended meanwhile
            continue
        # pid (command) state ppid …; the command may hold spaces and brackets.
        parents[int(text.split(" ", 1)[0])] = int(text.rsplit(")", 1)[1].split()[1])
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


def alive(pids: set[int]) -> set[int]:
    """Those that still run; one that has ended and was not yet waited for does not."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


def left_after(pids: set[int], *, seconds: float) -> set[int]:
    """Those that still run when all have had so long to end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and alive(pids):
        time.sleep(0.1)
    return alive(pids)
