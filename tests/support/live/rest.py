"""Kafka Connect's REST API, as far as the tests speak it past the command."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

PATIENCE_SECONDS = 90.0


def call(url: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> Any:
    """The JSON that it answers; None of an empty answer."""
    request = Request(url, method=method, headers={"Content-Type": "application/json"})  # noqa: S310  # our own server
    data = None if body is None else json.dumps(body).encode()
    with urlopen(request, data=data, timeout=60) as answer:  # noqa: S310
        text = answer.read()
    return json.loads(text) if text else None


def wait_until_running(url: str, *names: str) -> None:
    """Wait until these connectors and their task run; fails with the trace of one that has failed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    waiting = set(names)
    while waiting:
        for name in sorted(waiting):
            states = _states(url, name)
            failed = [state for state in states if state["state"] == "FAILED"]
            assert not failed, f"{name}: {failed[0].get('trace', failed[0])}"
            if len(states) > 1 and all(state["state"] == "RUNNING" for state in states):
                waiting.discard(name)
        assert time.monotonic() < deadline, f"They do not run: {waiting}"
        time.sleep(0.2)


def _states(url: str, name: str) -> list[Mapping[str, Any]]:
    """The state of the connector, and of each of its tasks; nothing while it is not known."""
    known = call(f"{url}/connectors?expand=status").get(name)
    return [known["status"]["connector"], *known["status"]["tasks"]] if known else []
