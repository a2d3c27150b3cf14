"""The command, in this process: what it ends with, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.main import main

if TYPE_CHECKING:
    import pytest


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `lakehouse` with these arguments."""
    try:
        main(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    said = capsys.readouterr()
    return code, said.out, said.err
