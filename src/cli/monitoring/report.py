"""`lakehouse report`: the status as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.monitoring.shared import ConnectUrl, view_of
from cli.options import Chosen, with_job_options
from cli.output import answer
from lakehouse.errors import SettingsError
from lakehouse.steps import wide_console
from monitoring.page import page
from monitoring.status import status_of

_Output = Annotated[Path, typer.Option(help="The file to write.")]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_job_options(report))


def report(chosen: Chosen, connect_url: ConnectUrl = None, output: _Output = Path("report.html")) -> None:
    """Write the status, the last passes and the quality as one HTML page, which needs no other file.

    Example: lakehouse report --warehouse ./warehouse --output report.html
    """
    seen = status_of(view_of(chosen, connect_url))
    write(page(seen), output)
    if chosen.as_json:
        answer("report", {"written": str(output), "level": seen.level})
    else:
        wide_console().print(f"Report: {output.resolve()} ({seen.level})", soft_wrap=True, highlight=False)


def write(text: str, output: Path) -> None:
    """Write the page. Raises SettingsError where the file cannot be written."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}.", remedy="Give another --output.") from None
