"""A schema registry, Apicurio, with its schemas in memory and the interface that Confluent's has beside its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import fastavro

from demo.processes import HOST, free_ports
from demo.stack.service import Service
from demo.stack.unpacked import registry_folder
from lakehouse.spark.jars import java

ANSWER_SECONDS = 10.0
QUESTION_SECONDS = 2.0
# Where it has Confluent's interface, and the one that the converter speaks.
CONFLUENT = "/apis/ccompat/v7"
OWN = "/apis/registry/v2"
CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"
# It writes as Confluent's does: a zero byte, the schema's id in four bytes, the value. The id is that of the content,
# by which the registry's Confluent interface finds a schema. Of a column that may be NULL and has a default it writes
# the default for NULL; it has no option against that, and the tables here have no such column.
AVRO: Mapping[str, str] = {
    "apicurio.registry.auto-register": "true",
    "apicurio.registry.find-latest": "true",
    "apicurio.registry.as-confluent": "true",
    "apicurio.registry.use-id": "contentId",
    "apicurio.registry.headers.enabled": "false",
}
JVM_OPTIONS = ("-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class SchemaRegistry(Service):
    """A registry and its folder. Its schemas are gone when it has stopped."""

    called = "The schema registry"
    start_seconds = 60.0
    stop_seconds = 15.0

    def __init__(self, home: Path) -> None:
        super().__init__(home, log="registry.log")
        self._port, self._management_port = free_ports(2)
        self._schemas: dict[int, Any] = {}

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

    def start(self) -> None:
        """Start it; `wait` says when it answers."""
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
        self._run([str(java()), *JVM_OPTIONS, *options, "-jar", str(program)])

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


def avro_options(registry: SchemaRegistry) -> Mapping[str, str]:
    """What makes a connector write Avro, and a sink read it."""
    options = {"": CONVERTER, ".apicurio.registry.url": registry.converter_url}
    options |= {f".{name}": value for name, value in AVRO.items()}
    both = {f"{part}.converter{name}": value for part in ("key", "value") for name, value in options.items()}
    return {**both, "schema.name.adjustment.mode": "avro"}
