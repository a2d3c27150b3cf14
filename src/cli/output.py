"""How a command answers, in sentences and tables for people or as one JSON object; and how it asks before a change."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from lakehouse.errors import ContractError, LakehouseError, SettingsError
from lakehouse.process.steps import Steps, wide_console
from lakehouse.process.terminal import json_text


def answer(
    command: str, results: Mapping[str, object], failures: Sequence[LakehouseError] = (), **more: object
) -> None:
    """Print the command's result as JSON: `command`, `ok`, `exit_code`, `errors`, and what the command has to say."""
    payload = {
        "command": command,
        **more,
        "ok": not failures,
        "exit_code": failures[0].exit_code if failures else 0,
        **results,
        "errors": [as_json(failure) for failure in failures],
    }
    typer.echo(json_text(payload))


def as_json(error: LakehouseError) -> dict[str, object]:
    """The error in parts: its kind, what happened, what to do; of contracts every mistake with file, line and key."""
    parts: dict[str, object] = {
        "kind": type(error).__name__.removesuffix("Error"),
        "exit_code": error.exit_code,
        "what": error.what,
        "hint": error.hint.strip(),
    }
    if isinstance(error, ContractError):
        parts["problems"] = [vars(problem) for problem in error.problems]
    return parts


def say(error: LakehouseError, steps: Steps | None = None) -> None:
    """The error as a sentence for a person, or as the progress of the command is logged."""
    (steps or Steps(wide_console(stderr=True))).error(type(error).__name__.removesuffix("Error"), str(error))


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def ask() -> None:
    """Ask whether to go on. Raises SettingsError when the answer is no, and where nobody can be asked."""
    if not sys.stdin.isatty():
        raise SettingsError("Nothing was changed: nobody can be asked here.", hint="Pass --yes, or --dry-run to look.")
    if not typer.confirm("Go on?", default=False, err=True):
        raise SettingsError("Nothing was changed.", hint="Run it again when you are sure.")
