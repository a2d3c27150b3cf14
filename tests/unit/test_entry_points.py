"""The entry points of the wheel, without Spark."""

from __future__ import annotations

import sys

import pytest

from cli import main


@pytest.mark.parametrize("job", ["bronze", "silver", "gold", "publish"])
def test_a_job_that_went_well_returns(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databricks takes every SystemExit of a wheel task for a failure."""
    ran: list[tuple[object, ...]] = []
    monkeypatch.setattr(main, "_run_jobs", lambda _chosen, names, *, dry_run, **_more: ran.append((*names, dry_run)))
    monkeypatch.setattr(sys, "argv", [job, "--warehouse=./w", "--bootstrap-servers=127.0.0.1:1"])
    assert getattr(main, f"{job}_job")() is None
    assert ran == [(job, False)]


def test_a_mistake_ends_with_its_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("LAKEHOUSE_WAREHOUSE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main.main(["silver"])
    assert ended.value.code == 2
    assert "No warehouse was given." in capsys.readouterr().err
