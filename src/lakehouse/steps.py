"""What a person sees while a job works: a line a step, with the time it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

WIDTH = 120
Note = Callable[[str], None]


def wide_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; elsewhere (a file, a scheduler's log) wide enough for our tables."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH)


class Steps:
    """Says what is being done, and what came of it: with a spinner on a terminal, as plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Note]:
        """One step. Inside the block, call the yielded function with what came of it. A failed step says so."""
        started = time.monotonic()
        came_of_it: list[str] = []
        label = f"{name:<9}"
        if not self._console.is_terminal:
            self._console.print(f"  … {label} {doing}", highlight=False)
        try:
            with self._console.status(f"{label} {doing}"):
                yield came_of_it.append
        except BaseException:
            self._console.print(
                f"  [red]✗[/] {label} stopped after {time.monotonic() - started:.1f} s", highlight=False
            )
            raise
        said = "; ".join(came_of_it) or doing
        self._console.print(f"  [green]✓[/] {label} {said} ({time.monotonic() - started:.1f} s)", highlight=False)
