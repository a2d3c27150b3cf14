"""A schema registry, Apicurio, with its schemas in memory and the interface that Confluent's has beside its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import fastavro

from demo.processes import HOST, Server, free_ports, last_lines, text_of
from demo.stack.unpacked import registry_folder
from lakehouse.errors import InstallationError
from lakehouse.spark.jars import java

START_SECONDS = 60.0
STOP_SECONDS = 15.0
ANSWER_SECONDS = 10.0
QUESTION_SECONDS = 2.0
# Where it has Confluent's interface, and the one that the converter speaks.
CONFLUENT = "/apis/ccompat/v7"
OWN = "/apis/registry/v2"
JVM_OPTIONS = ("-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class SchemaRegistry:
    """A registry and its folder. What it was told is gone when it has stopped."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port, self._management_port = free_ports(2)
        self._server: Server | None = None
        self._schemas: dict[int, Any] = {}
        home.mkdir()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self._port}"

    @property
    def confluent_url(self) -> str:
        """Where it answers as Confluent's registry does: below it are `schemas/ids/ID` and `subjects`."""
        return f"{self.url}{CONFLUENT}"

    @property
    def converter_url(self) -> str:
        """Where Apicurio's converter asks it."""
        return f"{self.url}{OWN}"

    @property
    def log(self) -> Path:
        """What it writes."""
        return self._home / "registry.log"

    def start(self) -> None:
        """Start it; `wait` says when it answers."""
        if self._server is not None:
            raise RuntimeError("This registry runs already.")
        self.log.unlink(missing_ok=True)
        self._schemas.clear()
        folder = registry_folder()
        (program,) = folder.glob("*-runner.jar")
        settings = {
            "java.io.tmpdir": str(self._home),
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(self._port),
            "quarkus.http.access-log.enabled": "false",
            "quarkus.management.host": HOST,
            "quarkus.management.port": str(self._management_port),
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        self._server = Server([str(java()), *JVM_OPTIONS, *options, "-jar", str(program)], log=self.log)

    def wait(self) -> None:
        """Wait until it answers. Raises InstallationError with the end of its log when it does not."""
        if self._server is None or not self._server.answers(self._is_there, seconds=START_SECONDS):
            raise InstallationError(
                f"The schema registry does not answer. The end of its log:\n{last_lines(text_of(self.log))}\n",
                remedy="Look there for the reason.",
            )

    def stop(self) -> None:
        """Stop it. Nothing when it does not run."""
        if self._server is not None:
            self._server.stop(seconds=STOP_SECONDS)
            self._server = None

    def kill(self) -> None:
        """End it as a crash of the machine would."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def schema(self, number: int) -> Any:
        """The Avro schema of that id, as the Confluent interface has it, parsed."""
        if number not in self._schemas:
            answer = json.loads(self._ask(f"schemas/ids/{number}"))
            self._schemas[number] = fastavro.parse_schema(json.loads(answer["schema"]))
        return self._schemas[number]

    def event_of(self, value: bytes) -> Mapping[str, Any]:
        """The change event in Confluent's wire format: a zero byte, the schema's id in four bytes, the event."""
        if value[:1] != b"\0":
            raise ValueError("This is no value in Confluent's wire format.")
        event: Any = fastavro.schemaless_reader(BytesIO(value[5:]), self.schema(int.from_bytes(value[1:5])), None)
        if not isinstance(event, dict):
            raise ValueError("This is no change event.")
        return event

    def _ask(self, path: str, *, seconds: float = ANSWER_SECONDS) -> bytes:
        with urlopen(f"http://{HOST}:{self._port}{CONFLUENT}/{path}", timeout=seconds) as answer:
            found: bytes = answer.read()
            return found

    def _is_there(self) -> bool:
        try:
            self._ask("subjects", seconds=QUESTION_SECONDS)
        except OSError:  # URLError is one
            return False
        return True
