"""A small server that answers as Kafka Connect's REST API does, for tests: loopback, a free port, in a thread."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

from connectors.rest import Worker, worker_at

Answer = tuple[int, Any]
HIDDEN = "hunter2"


class ConnectStandIn:
    """Connectors in memory. `asked` has every request; `answers` go before what it would answer itself."""

    def __init__(self) -> None:
        self.url = ""
        self.configs: dict[str, dict[str, str]] = {}
        self.states: dict[str, str] = {}
        self.traces: dict[str, str] = {}
        self.offsets: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        # (method, path): what is answered to the next requests of that kind, one after the other.
        self.answers: dict[tuple[str, str], list[Answer]] = {}
        # What a connector says against an option: option, sentences.
        self.refusals: dict[str, list[str]] = {}
        # The trace of tasks of connectors that are put from now on; none: they run.
        self.fails_with = ""

    def add(self, name: str, config: dict[str, str], *, trace: str = "") -> None:
        """A connector that runs, or whose task has failed."""
        self.configs[name] = {**config, "name": name}
        self.states[name] = "RUNNING"
        self.traces[name] = trace

    @property
    def changes(self) -> list[tuple[str, str]]:
        """The requests that are not for looking, in their order."""
        return [(method, path) for method, path, _body in self.asked if method != "GET" and "validate" not in path]

    def status(self, name: str) -> dict[str, Any]:
        """What is answered for a connector's status."""
        state, trace = self.states[name], self.traces.get(name, "")
        task: dict[str, Any] = {"id": 0, "state": "FAILED" if trace else "RUNNING", "worker_id": "10.0.0.1:8083"}
        if trace:
            task["trace"] = trace
        tasks = [] if state == "STOPPED" else [task]
        return {"name": name, "connector": {"state": state, "worker_id": "10.0.0.1:8083"}, "tasks": tasks}

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """The answer to a request."""
        self.asked.append((method, path, body))
        waiting = self.answers.get((method, path))
        if waiting:
            return waiting.pop(0)
        if path.startswith("/connectors?expand"):
            return 200, {
                name: {"info": {"name": name, "config": config}, "status": self.status(name)}
                for name, config in self.configs.items()
            }
        if path == "/connectors":
            return 200, list(self.configs)
        if path.startswith("/connector-plugins/"):
            configs = [{"value": {"name": key, "errors": errors}} for key, errors in self.refusals.items()]
            return 200, {"name": "x", "error_count": len(configs), "configs": configs}
        found = re.fullmatch(r"/connectors/([^/?]+)(?:/([a-z]+))?(?:\?.*)?", path)
        assert found is not None, path
        return self._of_one(method, unquote(found[1]), found[2] or "", body)

    def _of_one(self, method: str, name: str, what: str, body: Any) -> Answer:
        if (method, what) == ("PUT", "config"):
            is_new = name not in self.configs
            self.add(name, body, trace=self.fails_with)
            return 201 if is_new else 200, {"name": name}
        if name not in self.configs:
            return 404, {"error_code": 404, "message": f"Connector {name} not found"}
        if method == "GET":
            told = {"config": self.configs[name], "offsets": {"offsets": self.offsets.get(name, [])}}
            return 200, self.status(name) if what == "status" else told[what]
        if what == "resume":
            self.states[name] = "RUNNING"
        elif what == "restart":
            self.traces[name] = ""
        else:
            del self.configs[name]
        return 202, None


@contextmanager
def connect_stand_in() -> Iterator[ConnectStandIn]:
    """The server, until the block ends."""
    stand_in = ConnectStandIn()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            stand_in.headers.append(dict(self.headers))
            status, told = stand_in.answer(self.command, self.path, body)
            text = b"" if told is None else told.encode() if isinstance(told, str) else json.dumps(told).encode()
            self.send_response(status)
            if status in {301, 302, 307}:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 the names are http.server's

        def log_message(self, *_given: object) -> None:
            """Tests need no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def at_once(url: str, *, user: str = "", password: str = "") -> Worker:
    """The worker, without pauses between two looks at it."""
    return replace(worker_at(url, user=user, password=password), pause_seconds=0)
