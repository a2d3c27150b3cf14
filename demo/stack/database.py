"""What the databases of the stack have in common: a server, its folder, its address, and how a client connects."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from demo.processes import Server, free_ports, last_lines, text_of
from lakehouse.errors import InstallationError

RESOURCES = Path(__file__).parents[2] / "resources" / "databases"
START_SECONDS = 30.0
STOP_SECONDS = 15.0


class Database(ABC):
    """A database server of its own, empty. `prepare` may run in any thread, `start` in the main one.

    `files`: those of `folder` in resources/databases that set it up, in their order. `in_bundle`: its name in the
    bundle's variables and in that of the password of the user that replicates.
    """

    name: str
    in_bundle: str
    folder: str
    files: Sequence[str]

    def __init__(self, home: Path) -> None:
        self.home = home
        self.password = token_hex(8)
        self.replication_password = token_hex(8)
        (self.port,) = free_ports(1)
        self._server: Server | None = None

    @property
    def password_variable(self) -> str:
        """The variable of Kafka Connect's environment by which the packaged connectors name the password."""
        return f"DEBEZIUM_{self.in_bundle.upper()}_PASSWORD"

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self.home / "server.log"

    @abstractmethod
    def prepare(self) -> None:
        """Make its data folder. Raises InstallationError when the server is not installed."""

    @abstractmethod
    def launch(self) -> Server:
        """Start its process."""

    @abstractmethod
    def run_file(self, name: str) -> None:
        """Run one of `files`, as the administrator, with the password of the user that replicates at hand."""

    def set_up(self) -> None:
        """Run all of `files`; a second time does no harm."""
        for name in self.files:
            self.run_file(name)

    @abstractmethod
    def connect(self, *, autocommit: bool = True, **options: Any) -> Any:
        """A connection of the administrator, as PEP 249 has them."""

    def start(self) -> None:
        """Start the server; `wait` says when it answers."""
        self._server = self.launch()

    def wait(self) -> None:
        """Wait until it answers. Raises InstallationError with the end of its log when it does not."""
        if self._server is None or not self._server.answers(self._is_there, seconds=START_SECONDS):
            raise InstallationError(
                f"{self.name} does not answer. The end of its log:\n{last_lines(text_of(self.log))}\n",
                hint="Look there for the reason.",
            )

    def stop(self) -> None:
        """Stop the server. Nothing when it does not run."""
        if self._server is not None:
            self._server.stop(seconds=STOP_SECONDS)
            self._server = None

    def kill(self) -> None:
        """End it as a crash of the machine would. Nothing when it does not run."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with self.session() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query, by column."""
        with self.session() as cursor:
            cursor.execute(query)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @contextmanager
    def session(self, *, autocommit: bool = True) -> Iterator[Any]:
        """A cursor of a connection of its own; without `autocommit` its end commits."""
        connection = self.connect(autocommit=autocommit)
        try:
            yield connection.cursor()
            connection.commit()
        finally:
            connection.close()

    def _is_there(self) -> bool:
        try:
            self.connect().close()
        except Exception:  # each driver has its own; that it never answers is said by wait()
            return False
        return True


def run_tool(
    command: Sequence[str],
    *,
    log: Path,
    user: str = "",
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> None:
    """Run a server's own tool to its end. Raises InstallationError with what it wrote when it fails."""
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        user=user or None,
        env={**os.environ, **(environment or {})},
    )
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise InstallationError(
            f"{Path(command[0]).name} failed:\n{last_lines(done.stdout + done.stderr)}\n", hint="Fix what it says."
        )
