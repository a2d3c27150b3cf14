"""The playground: the README's run on it, and docs/own-tables.md, every command in order as it stands there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guide import ROOT, blocks

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ENVIRONMENT = ROOT / "warehouse" / "playground.env"


@pytest.fixture
def playground() -> Iterator[str]:
    """The address of the broker that the page starts in a terminal of its own."""
    (background,) = blocks(background=True)
    ENVIRONMENT.unlink(missing_ok=True)
    process = subprocess.Popen(["/bin/bash", "-c", f"exec {background}"], cwd=ROOT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (ENVIRONMENT.exists() and "PATH" in ENVIRONMENT.read_text(encoding="utf-8")):
            assert process.poll() is None
            assert time.monotonic() < deadline, "the playground did not start"
            time.sleep(0.2)
        yield ENVIRONMENT.read_text(encoding="utf-8").split("LAKEHOUSE_BOOTSTRAP_SERVERS=")[1].split()[0]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
    assert not ENVIRONMENT.exists()


@pytest.fixture
def commands(playground: str) -> str:
    """The page's commands, while the playground runs."""
    assert playground
    return "".join(blocks(background=False))


def test_the_run_of_the_readme_reads_all_of_the_playground(playground: str, tmp_path: Path) -> None:
    (command,) = re.findall(r"^\.venv/bin/lakehouse run .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    warehouse = str(tmp_path / "own")
    given = command.replace("HOST:PORT", playground).replace("./warehouse/own", warehouse).split()
    assert {playground, warehouse} <= {*given}
    own = {name for name in os.environ if name.startswith("LAKEHOUSE_")} - {"LAKEHOUSE_CACHE"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    for arguments in (given, [given[0], "verify", *given[2:]]):
        done = subprocess.run(
            arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "suspended" not in done.stdout + done.stderr


def test_the_guide_works_as_it_is_written(commands: str, tmp_path: Path) -> None:
    own = {name for name in os.environ if name.startswith("LAKEHOUSE_")} - {"LAKEHOUSE_CACHE"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    script = f"set -euo pipefail\n{commands}\npwd > {tmp_path}/where\n"
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=ROOT,
        env={**environment, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    # The mistake that the page makes on purpose.
    assert "exit code 2" in done.stdout
    assert "did you mean 'erp_orders'?" in done.stderr
    assert "their orders would overwrite each other" in done.stderr
    second = json.loads((Path((tmp_path / "where").read_text().strip()) / "second.json").read_text())
    assert second["ok"]
    assert second["nothing_new"]
