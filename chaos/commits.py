"""The commits of a warehouse's tables, seen as they come: a file each in `_delta_log`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

LOOK_FOR_TABLES_SECONDS = 0.5


class Commits:
    """What was committed since the last look. Looks at one file a table, so it can look every few milliseconds."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._next: dict[Path, int] = {}
        self._looked = 0.0

    def new(self) -> Sequence[str]:
        """The tables of the new commits, one a commit, a table's in their order."""
        self._find_tables()
        found = []
        for log, version in self._next.items():
            at = version
            while (log / f"{at:020}.json").exists():
                found.append(f"{log.parent.parent.name}.{log.parent.name}")
                at += 1
            self._next[log] = at
        return found

    def forget(self) -> None:
        """Begin with what is there now: tables were moved away."""
        self._next.clear()
        self._looked = 0.0
        self.new()

    def _find_tables(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_FOR_TABLES_SECONDS:
            return
        self._looked = now
        for log in self._warehouse.glob("*/*/_delta_log"):
            if log not in self._next:
                versions = [int(file.stem) for file in log.glob("*.json") if file.stem.isdigit()]
                # Of a table that is new since the last look every commit counts.
                self._next[log] = max(versions, default=-1) + 1 if not self._next else 0
