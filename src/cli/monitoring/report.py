"""`lakehouse report`: the status as one HTML page."""

from __future__ import annotations

from pathlib import Path

from cli.monitoring.shared import view_of
from cli.options import CommandContext
from cli.output import answer
from lakehouse.errors import SettingsError
from lakehouse.process.steps import wide_console
from monitoring.page import page
from monitoring.status import status_of


def run(chosen: CommandContext, connect_url: str | None, output: Path) -> None:
    """Write the page. Raises SettingsError where the file cannot be written."""
    seen = status_of(view_of(chosen, connect_url))
    write(page(seen), output)
    if chosen.as_json:
        answer("report", {"written": str(output), "level": seen.level})
    else:
        wide_console().print(f"Report: {output.resolve()} ({seen.level})", soft_wrap=True)


def write(text: str, output: Path) -> None:
    """Write the page. Raises SettingsError where the file cannot be written."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}.", hint="Give another --output.") from None
