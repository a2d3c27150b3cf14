"""docs/own-tables.md, followed literally: every command on the page is run, in order, as it stands there."""

from __future__ import annotations

import json
import os
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
def commands() -> Iterator[str]:
    """The page's commands, with those that it runs in a terminal of their own running."""
    (background,) = blocks(background=True)
    ENVIRONMENT.unlink(missing_ok=True)
    process = subprocess.Popen(["/bin/bash", "-c", f"exec {background}"], cwd=ROOT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not ENVIRONMENT.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "the playground did not start"
            time.sleep(0.2)
        yield "".join(blocks(background=False))
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
    assert not ENVIRONMENT.exists()


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
