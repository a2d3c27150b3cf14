"""The entry points of the wheel, without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli import main
from cli.options import PassOptions
from lakehouse.failures import unexpected

BY_PATH = Path(main.__file__).parents[1] / "orders_lakehouse" / "__main__.py"


@pytest.mark.parametrize("job", ["bronze", "silver", "gold", "publish"])
def test_a_job_that_went_well_returns(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databricks takes every SystemExit of a wheel task for a failure."""
    ran: list[tuple[object, ...]] = []

    def run_jobs(_chosen: object, names: Sequence[str], passes: PassOptions, *_more: object, **_given: object) -> None:
        ran.append((*names, passes.dry_run))

    monkeypatch.setattr(main, "run_command", run_jobs)
    options = ["--warehouse=./w", "--bootstrap-servers=127.0.0.1:1", "--kafka-config="]
    monkeypatch.setattr(sys, "argv", ["lakehouse", job, *options])
    main.main()
    assert ran == [(job, False)]


def test_a_mistake_ends_with_its_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("LAKEHOUSE_WAREHOUSE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main.main(["silver"])
    assert ended.value.code == 2
    assert "No warehouse was given." in capsys.readouterr().err


def test_an_exception_that_nobody_thought_of_quotes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_jobs(*_given: object, **_more: object) -> None:
        raise ValueError("a value of a row")

    monkeypatch.delenv("LAKEHOUSE_TRACE", raising=False)
    monkeypatch.setattr(main, "run_command", run_jobs)
    with pytest.raises(SystemExit) as ended:
        main.main(["silver", "--warehouse=./w", "--json"])
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert "lakehouse silver: stopped by an unexpected ValueError at cli/main.py, line " in said.err
    assert "a value of a row" not in said.err + said.out
    assert '"exit_code": 1' in said.out
    monkeypatch.setenv("LAKEHOUSE_TRACE", "1")
    with pytest.raises(ValueError, match="a value of a row"):
        main.main(["silver", "--warehouse=./w"])


@pytest.mark.parametrize("command", ["silver", "gold", "verify", "unlock", "purge", "optimize"])
def test_the_wheel_without_spark_says_what_is_missing(command: str, tmp_path: Path) -> None:
    """As it is installed off Databricks without its extra."""
    code = "import sys; sys.modules['pyspark'] = None; from cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, command, "--warehouse", str(tmp_path)],
        cwd=BY_PATH.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert f"lakehouse {command}: the Python package pyspark is not installed." in done.stderr
    assert "orders-lakehouse[local]" in done.stderr


def test_a_module_of_our_own_that_is_missing_is_no_package_to_install() -> None:
    found = unexpected(ModuleNotFoundError("x", name="silver.gone"), job="lakehouse silver")
    assert (found.exit_code, "not installed" in str(found)) == (1, False)


@pytest.mark.parametrize("command", [["-m", "orders_lakehouse"], [str(BY_PATH)]])
def test_the_command_can_be_run_as_a_module_and_by_its_path(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: lakehouse [OPTIONS]" in done.stdout
