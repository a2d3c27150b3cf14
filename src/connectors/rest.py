"""Kafka Connect's REST API, as far as connectors are concerned: https://kafka.apache.org/documentation/#connect_rest

A user and a password come from the environment and go into a header, never into a message. In texts of Kafka Connect
and of databases what may be a secret is masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from connectors.connectors import secrets_of
from lakehouse.errors import ConnectError, ConnectorMissingError, ConnectUnavailableError, SettingsError
from lakehouse.http import basic_login, failure, json_object, new_session, send
from lakehouse.secrets import masked


def exception_lines(trace: str) -> tuple[str, ...]:
    """Of a Java trace the exceptions with their sentences, without the frames between them; each once."""
    lines = [line.strip() for line in trace.splitlines()]
    kept = [line for line in lines if line and not re.match(r"at [\w.$/@<>-]+\(|\.\.\. \d+ (?:more|common)", line)]
    return tuple(dict.fromkeys(kept))


TIMEOUT_SECONDS = 30.0
# While workers rebalance or have not read the last change, they answer changes with 409: for seconds.
BUSY_SECONDS = 60.0
PAUSE_SECONDS = 1.0
_BUSY = 409


@dataclass(frozen=True)
class Worker:
    """A worker of a Kafka Connect cluster: any of them answers for all."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    timeout: float = TIMEOUT_SECONDS
    busy_seconds: float = BUSY_SECONDS
    pause_seconds: float = PAUSE_SECONDS

    def running(self) -> dict[str, dict[str, Any]]:
        """Every connector: under `info` its configuration, under `status` its state."""
        response = self._ask("GET", "/connectors?expand=info&expand=status")
        return dict(response) if isinstance(response, dict) else {}

    def names(self) -> list[str]:
        """The names of all connectors."""
        return list(self._ask("GET", "/connectors"))

    def config(self, name: str) -> dict[str, str] | None:
        """A connector's options; None when there is no such connector."""
        try:
            return dict(self._ask("GET", f"/connectors/{_quoted(name)}/config"))
        except ConnectorMissingError:
            return None

    def status(self, name: str) -> dict[str, Any]:
        """A connector's state and that of its tasks."""
        return dict(self._ask("GET", f"/connectors/{_quoted(name)}/status"))

    def validate(self, config: Mapping[str, str]) -> dict[str, Any]:
        """What the connector itself says of its options."""
        kind = config.get("connector.class", "")
        return dict(self._ask("PUT", f"/connector-plugins/{_quoted(kind)}/config/validate", config))

    def put_config(self, name: str, config: Mapping[str, str]) -> None:
        """Create the connector, or change it."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/config", config)

    def restart(self, name: str, *, only_failed: bool) -> None:
        """Restart the connector and its tasks, or those of them that have failed."""
        flags = f"includeTasks=true&onlyFailed={'true' if only_failed else 'false'}"
        self._ask("POST", f"/connectors/{_quoted(name)}/restart?{flags}")

    def resume(self, name: str) -> None:
        """Let a connector that was stopped or paused go on."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/resume")

    def delete(self, name: str) -> None:
        """Remove the connector from the cluster."""
        self._ask("DELETE", f"/connectors/{_quoted(name)}")

    def offsets(self, name: str) -> dict[str, Any]:
        """How far the connector has come: `{"offsets": [{"partition": ..., "offset": ...}]}`."""
        return dict(self._ask("GET", f"/connectors/{_quoted(name)}/offsets"))

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON. Asks again while the workers are busy with another change."""
        from urllib3 import Retry

        login = basic_login(self.user, self.password) if self.user else None
        while_busy = Retry(
            round(self.busy_seconds / PAUSE_SECONDS),
            connect=0,
            read=False,
            status_forcelist={_BUSY},
            allowed_methods=None,
            backoff_factor=self.pause_seconds,
            backoff_max=self.pause_seconds,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        try:
            with new_session(login, retry=while_busy) as session:
                response = send(session, method, f"{self.url}{path}", timeout=self.timeout, body=body)
        except OSError as error:
            raise ConnectUnavailableError(
                f"No Kafka Connect answers at {self.url} ({failure(error, timeout=self.timeout)[1]}).",
                hint="Check --connect-url, that the worker is up, and that its REST port is reachable from here.",
            ) from None
        if not 200 <= response.status_code < 300:
            message = str((json_object(response) or {}).get("message") or "")
            raise self._refused(response.status_code, message, path, secrets=secrets_of(body or {}))
        try:
            return json.loads(response.content) if response.content.strip() else None
        except ValueError:
            raise ConnectError(
                f"{self.url} answers something that is not Kafka Connect's REST API.", hint="Check --connect-url."
            ) from None

    def _refused(self, status: int, message: str, path: str, *, secrets: list[str]) -> ConnectError:
        text = masked(message, secrets)
        if status == _BUSY:
            return ConnectError(
                f"Kafka Connect at {self.url} has been busy for {self.busy_seconds:.0f} s (HTTP 409): "
                f"{text or 'it gives no reason.'}",
                hint="Run the command again when its workers have settled; their logs say why they do not.",
            )
        if status in {401, 403}:
            return ConnectError(
                f"Kafka Connect at {self.url} does not let this client in (HTTP {status}).",
                hint="Set LAKEHOUSE_CONNECT_USER and LAKEHOUSE_CONNECT_PASSWORD.",
            )
        if status == 404 and path.startswith("/connectors/"):
            name = path.split("/", maxsplit=3)[2].partition("?")[0]
            return ConnectorMissingError(
                f"Kafka Connect at {self.url} has no connector {name}.", hint="lakehouse connect status lists them."
            )
        if "because the return value of" in message or "NullPointerException" in message:
            return ConnectError(
                f"Kafka Connect at {self.url} rejected the configuration (HTTP {status}, NullPointerException): "
                "one of its validators looked for an option that has no value, and it does not say which.",
                hint="Look for a required option that is absent or has its name of Debezium 1.x, topic.prefix first: "
                "lakehouse connect check. The worker's log has the rest.",
            )
        if "Failed to find any class" in message:
            return ConnectError(
                f"Kafka Connect at {self.url} has no such connector class: {text}",
                hint="Install the plugin on every worker (plugin.path) and restart them.",
            )
        return ConnectError(
            f"Kafka Connect at {self.url} refuses (HTTP {status}): {text or 'it gives no reason.'}",
            hint="Fix what it names; the worker's log has the rest.",
        )


def worker_at(url: str, *, user: str = "", password: str = "") -> Worker:
    """The worker at an address. Raises SettingsError for one that is no http(s) URL, or that carries a password."""
    try:
        parts = urlsplit(url)
        has_login, usable = "@" in parts.netloc, parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        has_login, usable = False, False
    if has_login:
        raise SettingsError(
            "The URL of Kafka Connect carries a user or a password.",
            hint="Give it without, and set LAKEHOUSE_CONNECT_USER and LAKEHOUSE_CONNECT_PASSWORD.",
        )
    if not usable:
        raise SettingsError(
            f"{url!r} is no URL of Kafka Connect.", hint="Pass --connect-url http://HOST:8083 or https://..."
        )
    return Worker(url.rstrip("/"), user=user, password=password)


def _quoted(name: str) -> str:
    return quote(name, safe="")
