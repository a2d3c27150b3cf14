"""The product as it runs: single runs in a warm process, or one continuous run; and how such a process is ended.

Every command of the product that this package gives goes through here, and all that a command wrote is kept in a log.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from chaos.commits import Commits

ROOT = Path(__file__).parents[1]
PASS_SECONDS = 300.0


@dataclass(frozen=True)
class Ended:
    """What a command wrote, and its exit code; None where its process was killed."""

    code: int | None
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote with --json."""
        return json.loads(self.out)

    @property
    def last_words(self) -> str:
        """The end of what it said, on one line."""
        return " ".join(self.err.split())[-400:]


class WarmProcess:
    """`chaos.runner`, and the command that it is at work on."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.runner"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            start_new_session=True,
        )
        self._input, self._output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        self._answer: Ended | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Its process, and the group of all that it has started."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def begin(self, *arguments: str) -> None:
        """Begin a command."""
        self._answer = None
        self._input.write(json.dumps(arguments).encode() + b"\n")
        self._input.flush()
        self._reader = threading.Thread(target=self._read, args=(arguments,), daemon=True)
        self._reader.start()

    def is_over(self) -> bool:
        """Whether the command has ended, or the process."""
        return self._reader is None or not self._reader.is_alive()

    def end(self, seconds: float = PASS_SECONDS) -> Ended:
        """Wait for the end of the command. Raises TimeoutError."""
        if self._reader is not None:
            self._reader.join(seconds)
        if not self.is_over():
            raise TimeoutError(f"The command has not ended within {seconds:.0f} s.")
        return self._answer or Ended(None, "", "")

    def _read(self, arguments: Sequence[str]) -> None:
        text = ""
        for line in self._output:
            text = line.decode()
            with suppress(ValueError):
                answer = json.loads(text)
                if isinstance(answer, dict) and "code" in answer:
                    self._answer = Ended(answer["code"], answer["out"], answer["err"])
                    break
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ lakehouse {' '.join(arguments)}\n{text if self._answer is None else ''}")
            if self._answer is not None:
                log.write(f"{self._answer.out}{self._answer.err}exit code {self._answer.code}\n")

    def kill(self) -> None:
        """End it, and Spark's Java, as a crash of the machine would."""
        kill_group(self._process)


class Pipeline:
    """All processes of the product. `log`: what they have written."""

    def __init__(self, environment: Mapping[str, str], warehouse: Path, log: Path) -> None:
        self._environment = dict(environment)
        self._log = log
        self.commits = Commits(warehouse)
        self.is_continuous = False
        self._warm: WarmProcess | None = None
        self._continuous: subprocess.Popen[bytes] | None = None
        # How many commits the last whole pass took: by it a later one is killed anywhere.
        self.commits_of_a_pass = 12

    # -- commands

    def command(self, *arguments: str, seconds: float = PASS_SECONDS) -> Ended:
        """Run a command to its end in the warm process."""
        process = self._warm_process()
        process.begin(*arguments)
        return process.end(seconds)

    def own_process(self, *arguments: str, more: Mapping[str, str] | None = None, seconds: float = 120.0) -> Ended:
        """Run a command in a process of its own. `more`: of its environment."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("lakehouse")), *arguments],
            cwd=ROOT,
            env={**os.environ, **self._environment, **(more or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ lakehouse {' '.join(arguments)}\n{done.stdout}{done.stderr}exit code {done.returncode}\n")
        return Ended(done.returncode, done.stdout, done.stderr)

    # -- passes

    @property
    def pid(self) -> int:
        """The process that works, and the group of all that it has started."""
        if self._continuous is not None and self.is_continuous:
            return self._continuous.pid
        return self._warm_process().pid

    def begin_pass(self) -> None:
        """Begin a single run, or see to it that the continuous one runs."""
        if self.is_continuous:
            self._start_continuous()
        else:
            self._warm_process().begin("run")

    def end_pass(self, seconds: float = PASS_SECONDS) -> Ended:
        """Wait for the end of the single run."""
        return self._warm_process().end(seconds)

    def kill_at_commit(self, random_: random.Random) -> str:
        """Begin a pass, let a random number of commits and a random moment pass, and kill it. Says after which commit.

        A pass that ends before is as good: it had fewer commits than the one before.
        """
        number = random_.randint(1, self.commits_of_a_pass)
        pause = random_.choice((0.0, 0.0, random_.uniform(0, 0.8)))
        self.begin_pass()
        deadline = time.monotonic() + PASS_SECONDS
        seen: list[str] = []
        while len(seen) < number and time.monotonic() < deadline and not self.has_ended():
            seen += self.commits.new()
            time.sleep(0.003)
        time.sleep(pause)
        self.kill()
        place = seen[-1] if seen else "the start"
        return f"after commit {len(seen)} of a pass, of {place}, and {pause * 1000:.0f} ms"

    def has_ended(self) -> bool:
        """Whether the pass, or the process, has ended."""
        if self.is_continuous:
            return self._continuous is None or self._continuous.poll() is not None
        return self._warm is None or self._warm.is_over()

    def kill(self) -> None:
        """Kill the process that works."""
        if self.is_continuous and self._continuous is not None:
            kill_group(self._continuous)
            self._continuous = None
        elif self._warm is not None:
            self._warm.kill()
            self._warm = None

    def pause(self) -> None:
        """Let the process that works, and its Java, stand still."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.killpg(self.pid, signal.SIGCONT)

    # -- the continuous run

    def be(self, *, continuous: bool) -> None:
        """Go over to the other way of running."""
        if self.is_continuous and not continuous:
            self.stop_continuous()
        self.is_continuous = continuous
        if continuous:
            self._start_continuous()

    def _start_continuous(self) -> None:
        if self._continuous is None or self._continuous.poll() is not None:
            command = [str(Path(sys.executable).with_name("lakehouse")), "run", "--trigger", "continuous"]
            with self._log.open("ab") as log:
                self._continuous = subprocess.Popen(
                    [*command, "--wait", "2"],
                    cwd=ROOT,
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def stop_continuous(self) -> int | None:
        """End the continuous run as a person does; its exit code."""
        if self._continuous is None:
            return None
        self._continuous.send_signal(signal.SIGTERM)
        try:
            code = self._continuous.wait(60)
        except subprocess.TimeoutExpired:
            kill_group(self._continuous)
            raise
        self._continuous = None
        return code

    def stop(self) -> None:
        """End everything."""
        if self._continuous is not None:
            kill_group(self._continuous)
        if self._warm is not None:
            self._warm.kill()
        self._continuous = self._warm = None

    def _warm_process(self) -> WarmProcess:
        if self._warm is None or not self._warm.runs:
            self._warm = WarmProcess(self._environment, self._log)
        return self._warm


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its group as a crash of the machine would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
