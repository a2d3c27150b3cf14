"""What a person sees of a step."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lakehouse.steps import Steps


def test_a_step_says_what_came_of_it() -> None:
    out = io.StringIO()
    with Steps(Console(file=out, width=100)).step("bronze", "reading") as note:
        note("12 new records")
    assert "… bronze    reading" in out.getvalue()
    assert "✓ bronze    12 new records (" in out.getvalue()


def test_a_failed_step_says_so_and_lets_the_error_through() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="no"), Steps(Console(file=out, width=100)).step("gold", "merging"):
        raise ValueError("no")
    assert "✗ gold      stopped after" in out.getvalue()
