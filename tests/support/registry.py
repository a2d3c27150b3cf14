"""A schema registry that gives schemas by their ids, and may be switched off."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from lakehouse.kafka.registry import SchemaRegistry
from tests.support.avro import Registered

_PATH = "/schemas/ids/"


@dataclass
class RegistryServer:
    """What it has (`registered`), whether it answers (`is_on`), and how often each id was asked for (`asked`)."""

    url: str = ""
    registered: Registered = field(default_factory=Registered)
    is_on: bool = True
    asked: Counter[int] = field(default_factory=Counter)

    @property
    def connection(self) -> SchemaRegistry:
        """How it is reached."""
        return SchemaRegistry(url=self.url)

    def kafka_config(self, folder: Path, bootstrap_servers: str = "127.0.0.1:9") -> Path:
        """A file for --kafka-config that names it, and a broker; by default one that nobody asks."""
        file = folder / "kafka.yaml"
        told = {"bootstrap_servers": bootstrap_servers, "schema_registry": {"url": self.url}}
        file.write_text(yaml.safe_dump(told), encoding="utf-8")
        return file

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """What it says to a question."""
        number = int(path.removeprefix(_PATH))
        self.asked[number] += 1
        if not self.is_on:
            return 503, {}
        found = self.registered.schemas.get(number)
        if found is None:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"schema": found.text, "schemaType": found.kind}


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """A registry on a port of its own, until the block ends."""
    told = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = told.answer(self.path)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_given: object) -> None:
            """Tests need no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
