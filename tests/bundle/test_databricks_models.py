"""Databricks' own models of resources say nothing against the bundle, and do say it when there is something."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.bundle import ROOT


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the environment that has the models."""
    subprocess.run([str(ROOT / "tools/environment.sh"), "tools/databricks"], check=True, capture_output=True)
    return ROOT / "tools/databricks/.venv/bin/python"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The bundle and what reads it, to be changed."""
    for folder in ("resources", "tools"):
        ignored = shutil.ignore_patterns(".venv", "__pycache__", "databases", "connect", "bigquery")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "bundle.yaml", tmp_path)
    return tmp_path


def check(python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BUNDLE_VAR_")}
    command = [str(python), "-m", "tools.databricks.check"]
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def test_every_resource_is_one_in_every_target(python: Path) -> None:
    done = check(python, ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dev, staging, prod: " in done.stdout
    assert "7 jobs" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("orders-lakehouse.job.yml", "max_retries: 2", "max_retry: 2", "jobs.orders_lakehouse"),
        ("orders-lakehouse.job.yml", "          run_if: ALL_DONE", "          run_if: ALWAYS", "jobs.orders_lakehouse"),
        ("gold.schema.yml", "- SELECT", "- SELECT_ALL", "schemas.gold"),
        ("late.alert.yml", "comparison_operator: GREATER_THAN", "comparison_operator: ABOVE", "alerts.late"),
        ("checkpoints.volume.yml", "      name: checkpoints\n", "", "checkpoints"),
    ],
)
def test_a_field_that_is_none_is_named(python: Path, copy: Path, file: str, old: str, new: str, says: str) -> None:
    resource = copy / "resources" / file
    text = resource.read_text(encoding="utf-8")
    assert old in text
    resource.write_text(text.replace(old, new, 1), encoding="utf-8")
    done = check(python, copy)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
