"""A server of the stack that answers at an address: how it is started, waited for and stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo.processes import Server, last_lines, text_of
from lakehouse.errors import InstallationError


class Service(ABC):
    """A server and its folder. `called`: how messages name it; `start_seconds`, `stop_seconds`: so long it may take."""

    called: str
    start_seconds: float
    stop_seconds: float

    def __init__(self, home: Path, *, log: str) -> None:
        self._home = home
        self._log = log
        self._server: Server | None = None
        home.mkdir()

    @property
    def log(self) -> Path:
        """What it writes."""
        return self._home / self._log

    def wait(self) -> None:
        """Wait until it answers. Raises InstallationError with the end of its log when it does not."""
        if self._server is None or not self._server.answers(self._is_there, seconds=self.start_seconds):
            raise InstallationError(
                f"{self.called} does not answer. The end of its log:\n{last_lines(text_of(self.log))}\n",
                hint="Look there for the reason.",
            )

    def stop(self) -> None:
        """Stop it. Nothing when it does not run."""
        if self._server is not None:
            self._server.stop(seconds=self.stop_seconds)
            self._server = None

    def kill(self) -> None:
        """End it as a crash of the machine would."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def pause(self) -> None:
        """Let it stand still."""
        if self._server is not None:
            self._server.pause()

    def resume(self) -> None:
        """Let it go on."""
        if self._server is not None:
            self._server.resume()

    def _run(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Run it by this command, with a new log."""
        if self._server is not None:
            raise RuntimeError(f"{self.called} runs already.")
        self.log.unlink(missing_ok=True)
        self._server = Server(command, log=self.log, environment=environment)

    @abstractmethod
    def _is_there(self) -> bool:
        """Whether it answers."""
