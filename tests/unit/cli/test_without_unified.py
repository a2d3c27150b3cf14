"""The commands that need neither Spark nor a broker, where a deployment has no unified orders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lakehouse.contracts.models import NO_UNIFIED
from tests.support.command_line import run
from tests.support.unified import BY_RULE, ITEMS, written


@pytest.mark.parametrize("files", [ITEMS, {"bronze/topics.yaml": BY_RULE}])
def test_validate_says_that_there_are_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: dict[str, object]
) -> None:
    code, out, _err = run(capsys, "validate", "--contracts", str(written(tmp_path, files)))
    assert code == 0
    assert NO_UNIFIED in out
    assert "No mistake" in out
    assert NO_UNIFIED not in run(capsys, "validate")[1]


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["explain", "PG-1"], "docs/gold.md says how they are declared"),
        (["doctor", "--probe"], "Leave out --probe: it waits for an order in the unified topic"),
    ],
)
def test_what_is_about_orders_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: Sequence[str], hint: str
) -> None:
    own = ["--contracts", str(written(tmp_path, ITEMS)), "--warehouse", str(tmp_path / "warehouse")]
    code, out, err = run(capsys, *command, *own)
    assert (code, out) == (2, "")
    assert NO_UNIFIED in err
    assert hint in err


def test_doctor_says_that_there_are_none_and_that_this_is_no_trouble(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = ["--contracts", str(written(tmp_path, ITEMS)), "--warehouse", str(tmp_path / "warehouse")]
    code, out, _err = run(capsys, "doctor", *own)
    assert code == 0
    assert NO_UNIFIED in out
    assert "All checks passed" in out
