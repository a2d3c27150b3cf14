"""The file of metrics after a pass: what cannot be written is said, and the run ends as it would have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.monitoring import shared
from cli.monitoring.metrics import Metrics
from lakehouse.errors import KafkaError
from monitoring import status
from tests.unit.monitoring.test_metrics import full

NOBODY: Any = SimpleNamespace()


@pytest.fixture(autouse=True)
def _nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "view_of", lambda *_given, **_more: None)
    monkeypatch.setattr(status, "status_of", lambda _view: full())


def said_of(file: Path | None) -> list[str]:
    said: list[str] = []
    Metrics(file, None, "127.0.0.1").write(NOBODY, NOBODY, say=said.append)
    return said


def test_a_file_that_is_written_is_not_talked_about(tmp_path: Path) -> None:
    file = tmp_path / "lakehouse.prom"
    assert said_of(file) == []
    assert "lakehouse_lag_records" in file.read_text()
    assert said_of(None) == []


@pytest.mark.parametrize("name", ["absent/lakehouse.prom", "file/lakehouse.prom", "folder"])
def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    (line,) = said_of(tmp_path / name)
    assert line.startswith(f"no metrics of this pass: The metrics cannot be written to {tmp_path / name}: ")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KafkaError("The broker is not there.", hint="Start it."), "The broker is not there."),
        (ValueError("the note of order 7"), "ValueError."),
    ],
)
def test_what_cannot_be_looked_at_is_said_without_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def fail(_view: object) -> None:
        raise error

    monkeypatch.setattr(status, "status_of", fail)
    file = tmp_path / "lakehouse.prom"
    assert said_of(file) == [f"no metrics of this pass: {why}"]
    assert not file.exists()
