"""The wheel, built and installed as a deployment does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lakehouse.spark.jars import cache_dir
from tools.bundle import ROOT


def build(folder: Path) -> Path:
    """The wheel, built by the backend that `uv build --wheel` calls, which needs neither uv nor a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def installed(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment with the wheel, what it declares, its extra `local`, and nothing else."""
    uv = str(pinned_uv())
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}

    def run(*arguments: str) -> str:
        command = [uv, *arguments]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)
        assert not done.returncode, done.stderr
        return done.stdout

    python = folder / "bin" / "python"
    run("venv", "--quiet", "--python", sys.executable, str(folder))
    locked = folder / "requirements.txt"
    options = ("--frozen", "--no-dev", "--extra", "local", "--no-emit-project", "--format", "requirements-txt")
    locked.write_text(run("export", *options), encoding="utf-8")
    install = ("pip", "install", "--quiet", "--python", str(python))
    run(*install, "--require-hashes", "-r", str(locked))
    run(*install, "--no-deps", str(wheel))
    return python


def pinned_uv() -> Path:
    """The pinned uv, where tools/setup.sh puts it."""
    (version,) = [
        line.split("==")[1].split()[0]
        for line in (ROOT / "tools/uv.txt").read_text().splitlines()
        if line.startswith("uv==")
    ]
    return cache_dir().parent / f"uv-{version}" / "bin" / "uv"
