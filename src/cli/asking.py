"""Asking a person before anything is moved or decided."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lakehouse.errors import SettingsError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def ask() -> None:
    """Ask whether to go on. Raises SettingsError when the answer is no, and where nobody can be asked."""
    if not sys.stdin.isatty():
        raise SettingsError(
            "Nothing was changed: nobody can be asked here.", remedy="Pass --yes, or --dry-run to look."
        )
    if not typer.confirm("Go on?", default=False, err=True):
        raise SettingsError("Nothing was changed.", remedy="Run it again when you are sure.")
