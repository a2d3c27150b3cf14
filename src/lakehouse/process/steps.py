"""What is seen while a job works: a line a step, with the time it took; for people as text, for machines as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol, TextIO

from rich.console import Console

from lakehouse.process.terminal import FAILED, PASSED, Part, PlainConsole, json_text, styled

WIDTH = 120
QUIET_SECONDS = 10.0
Note = Callable[[str], None]


def wide_console(*, stderr: bool = False) -> PlainConsole:
    """A console as wide as the terminal; elsewhere (a file, a scheduler's log) wide enough for our tables."""
    console = PlainConsole(stderr=stderr)
    return console if console.is_terminal else PlainConsole(stderr=stderr, width=WIDTH)


class Show(Protocol):
    """Shows a line about what is being done."""

    def __call__(self, text: str, *, urgent: bool = False) -> None:
        """Show it."""


class ProgressStep:
    """What a step says of itself: call it with what came of it, or `now` with what is being done."""

    def __init__(self, show: Show) -> None:
        self.came_of_it: list[str] = []
        self._show = show

    def __call__(self, text: str) -> None:
        """Something that came of the step: said when it has ended."""
        self.came_of_it.append(text)

    def now(self, text: str) -> None:
        """What is being done now: shown at once on a terminal, elsewhere as a line, at most one in QUIET_SECONDS."""
        self._show(text)

    def say(self, text: str) -> None:
        """Something that a person must see now, wherever."""
        self._show(text, urgent=True)


class Steps:
    """Says what is being done, and what came of it: with a spinner on a terminal, as plain lines elsewhere."""

    run_id: str = ""
    """Of the run that the lines are about."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def error(self, kind: str, text: str) -> None:
        """Print a failure as a sentence."""
        self._line(("Error:", "red"), f" {text}")

    def say(self, text: str) -> None:
        """Print a line at once, beside the step that is running."""
        self._line(f"  … {text}")

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[ProgressStep]:
        """One step. Inside the block, call the yielded object with what came of it. A failed step says so."""
        started = last_line = time.monotonic()
        label = f"{name:<9}"
        if not self._console.is_terminal:
            self._line(f"  … {label} {doing}")
        try:
            with self._console.status(styled(f"{label} {doing}")) as status:

                def show(text: str, *, urgent: bool = False) -> None:
                    nonlocal last_line
                    passed = time.monotonic() - last_line
                    status.update(styled(f"{label} {text}"))
                    if urgent or (not self._console.is_terminal and passed >= QUIET_SECONDS):
                        last_line = time.monotonic()
                        self._line(f"  … {label} {text} ({last_line - started:.0f} s)")

                step = ProgressStep(show)
                yield step
        except BaseException:
            self._line("  ", FAILED, f" {label} stopped after {time.monotonic() - started:.1f} s")
            raise
        outcome = "; ".join(step.came_of_it) or doing
        self._line("  ", PASSED, f" {label} {outcome} ({time.monotonic() - started:.1f} s)")

    def _line(self, *parts: Part) -> None:
        self._console.print(styled(*parts), soft_wrap=True)


class LoggedSteps(Steps):
    """The same as JSON, a line an event: `at` (UTC), `level`, `run`, `step`, `event`, `text`, and `seconds` at its end.

    Events: `started`, `progress`, `ended`, `failed`, and `outcome` beside a step.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(PlainConsole(file=stream, quiet=True))
        self._stream = stream

    def say(self, text: str) -> None:
        """Write a line at once, beside the step that is running."""
        self._log("said", text)

    def error(self, kind: str, text: str) -> None:
        """Write a failure: its kind, and what happened."""
        self._log("error", text, level="error", kind=kind)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[ProgressStep]:
        """One step. Inside the block, call the yielded object with what came of it. A failed step says so."""
        started = time.monotonic()
        last = started
        self._log("started", doing, step=name)

        def show(text: str, *, urgent: bool = False) -> None:
            nonlocal last
            if urgent or time.monotonic() - last >= QUIET_SECONDS:
                last = time.monotonic()
                self._log("progress", text, step=name, seconds=last - started)

        step = ProgressStep(show)
        try:
            yield step
        except BaseException:
            self._log("failed", doing, level="error", step=name, seconds=time.monotonic() - started)
            raise
        self._log("ended", "; ".join(step.came_of_it) or doing, step=name, seconds=time.monotonic() - started)

    def _log(self, event: str, text: str, *, level: str = "info", **more: str | float) -> None:
        parts = {name: round(value, 3) if isinstance(value, float) else value for name, value in more.items()}
        line = {"at": datetime.now(UTC).isoformat(), "level": level, "run": self.run_id, "event": event, **parts}
        self._stream.write(json_text({**line, "text": text}) + "\n")
        self._stream.flush()
