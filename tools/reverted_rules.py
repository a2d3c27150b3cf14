"""Every rule of the order of changes, reverted one by one in a copy of the code: its test must fail then.

python -m tools.reverted_rules [WORD]    those of tests/rules/reverted.yaml (whose rule, or test, has the word)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
RULES = ROOT / "tests" / "rules" / "reverted.yaml"
SCENARIO = "scenario "
COPIED = ("src", "tests", "demo", "tools", "resources", "docs", "bundle.yaml", "conftest.py", "pyproject.toml")
# Of pytest: some tests have failed; every other status says that they were not run.
TESTS_FAILED = 1


@dataclass(frozen=True)
class Reverted:
    """A rule as it would be if it were simpler: `old`, which stands in `file` once, becomes `new`."""

    rule: str
    reverted: str
    file: Path
    old: str
    new: str
    fails: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """What pytest is told to run."""
        if not self.fails.startswith(SCENARIO):
            return (self.fails,)
        name = self.fails.removeprefix(SCENARIO)
        return ("tests/laws", "-k", f"test_the_records_lead_to_the_expected_files and {name}-")

    def in_copy(self, copy: Path) -> None:
        """Put the simpler rule in place. Raises ValueError when the code is not what it was."""
        file = copy / self.file
        text = file.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: stands there {text.count(self.old)} times, not once: {self.old}")
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")


def read() -> list[Reverted]:
    """All of the file."""
    told = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [
        Reverted(one["rule"], one["reverted"], Path(one["file"]), one["from"], one["to"], one["fails"]) for one in told
    ]


def is_noticed(one: Reverted, *, log: Path) -> bool:
    """Whether the test fails in a copy of the code with the simpler rule. `log` gets what pytest printed.

    A test that could not be run, or that stopped with an error before it judged anything, does not count.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        one.in_copy(copy)
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", *one.arguments],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    log.write_text(ran.stdout, encoding="utf-8")
    lines = ran.stdout.splitlines()
    failed, stopped = (any(line.startswith(f"{word} ") for line in lines) for word in ("FAILED", "ERROR"))
    return ran.returncode == TESTS_FAILED and failed and not stopped


def main(words: list[str]) -> int:
    """Try all of them, or those with the word; how many no test noticed."""
    chosen = [one for one in read() if all(word in f"{one.rule} {one.fails}" for word in words)]
    logs = Path(tempfile.mkdtemp(prefix="reverted-rules-"))
    unnoticed = 0
    for number, one in enumerate(chosen):
        log = logs / f"{number:02}.txt"
        is_held = is_noticed(one, log=log)
        unnoticed += not is_held
        print(f"{'noticed    ' if is_held else 'NOT NOTICED'}  {one.rule} (reverted: {one.reverted}; {one.fails})")
        if not is_held:
            print(f"             {log}", flush=True)
    print(f"{len(chosen)} rules reverted, {unnoticed} not noticed.")
    return min(unnoticed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
