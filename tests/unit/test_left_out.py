"""Tests that TESTS_UNTIL leaves out: continuous integration says at its end how many, and which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TESTS = "def test_one() -> None: pass\ndef test_two() -> None: pass\ndef test_fails() -> None: assert {passes}\n"
# In the place of make: the tests of a tiny file. Those of `make test-slow` come too late.
MAKE = """#!/bin/sh
[ "$1" = live ] && exit 0
[ "$1" = test-slow ] && TESTS_UNTIL=1
exec "{python}" -m pytest -q -p conftest -p no:cacheprovider -n 2 -c "{folder}/pytest.ini" "{folder}"
"""


def ci(folder: Path, *, passes: bool = True) -> subprocess.CompletedProcess[str]:
    """How `.ci/run` ends whose tests are those of a tiny file."""
    (folder / "test_tiny.py").write_text(TESTS.format(passes=passes))
    (folder / "pytest.ini").write_text("[pytest]\n")
    make = folder / "make"
    make.write_text(MAKE.format(python=sys.executable, folder=folder))
    make.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    command = [ROOT / ".ci" / "run"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_ci_says_which_tests_had_no_time(tmp_path: Path) -> None:
    ended = ci(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = ended.stdout.splitlines()
    assert said[-4] == "Left out for want of time (TESTS_UNTIL): 3 tests"
    assert [line.rpartition("::")[2] for line in said[-3:]] == ["test_fails", "test_one", "test_two"]


def test_ci_says_it_too_when_a_part_fails(tmp_path: Path) -> None:
    ended = ci(tmp_path, passes=False)
    assert ended.returncode != 0
    assert ended.stdout.splitlines()[-1] == "Left out for want of time (TESTS_UNTIL): 0 tests"
