"""Offsets of a connector, changed as docs/connect.md says: by Kafka Connect's own REST API, while it is stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping

import requests

from connectors.cluster import State
from connectors.rest import Worker
from lakehouse.errors import ConnectError


def stop(worker: Worker, name: str) -> None:
    """Ask for the connector to be stopped; it is once `is_stopped`."""
    _ask("PUT", worker, f"{name}/stop")


def set_offset(worker: Worker, name: str, partition: Mapping[str, object], offset: Mapping[str, object]) -> None:
    """Replace the offset of one partition of a stopped connector."""
    _ask("PATCH", worker, f"{name}/offsets", {"offsets": [{"partition": partition, "offset": offset}]})


def delete_offsets(worker: Worker, name: str) -> None:
    """Delete all offsets of a stopped connector."""
    _ask("DELETE", worker, f"{name}/offsets")


def is_stopped(state: State) -> bool:
    """Whether the connector is stopped and no task of it is left."""
    return state.state == "STOPPED" and not state.tasks


def _ask(method: str, worker: Worker, path: str, body: Mapping[str, object] | None = None) -> None:
    """Ask, and again for a minute while the workers have not read an earlier change: they answer with 409."""
    until = time.monotonic() + worker.busy_seconds
    while True:
        answer = requests.request(method, f"{worker.url}/connectors/{path}", json=body, timeout=30)
        if answer.status_code != requests.codes.conflict or time.monotonic() > until:
            break
        time.sleep(1)
    if not answer.ok:
        raise ConnectError(
            f"Kafka Connect refused {method} {path} (HTTP {answer.status_code}).", hint="Its log has the reason."
        )
