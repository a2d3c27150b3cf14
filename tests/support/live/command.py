"""The `lakehouse` command as a person runs it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SECONDS = 180


@dataclass(frozen=True)
class Ended:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote with --json."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Command:
    """Runs it beside the bundle with the target dev. `environment`: the bundle's variables."""

    environment: Mapping[str, str]

    def __call__(self, *arguments: str, seconds: float = SECONDS) -> Ended:
        """Run it to its end; fails when it has not come after so many seconds."""
        run = subprocess.run(
            [str(Path(sys.executable).with_name("lakehouse")), *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment, "LAKEHOUSE_TARGET": "dev"},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        return Ended(run.returncode, run.stdout, run.stderr)
