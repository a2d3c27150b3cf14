"""Kafka Connect's REST API, as far as connectors are concerned: https://kafka.apache.org/documentation/#connect_rest

A user and a password come from the environment and go into a header, never into a message. In texts of Kafka Connect
and of databases what may be a secret is masked.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from connectors.connectors import is_reference, is_secret
from lakehouse.errors import ConnectError, ConnectGoneError, ConnectorMissingError, SettingsError

if TYPE_CHECKING:
    from urllib.request import OpenerDirector


MASK = "•••"

_NAMED = re.compile(
    r"""(?P<name>[\w.-]*(?:password|passwd|pwd|passphrase|secret|token|credential)[\w.-]*["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;&})\]]+)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?P<scheme>\w+://)[^\s/@:]+:[^\s/@]+@")
_AUTHORIZATION = re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._-]{8,}")


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, without what follows a name such as `password=`, and without logins in URLs."""
    for secret in sorted({one for one in secrets if len(one) >= 3 and not is_reference(one)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _NAMED.sub(lambda found: f"{found['name']}{MASK}", text)
    text = _IN_URL.sub(lambda found: f"{found['scheme']}{MASK}@", text)
    return _AUTHORIZATION.sub(lambda found: f"{found[1]} {MASK}", text)


def heads(trace: str) -> tuple[str, ...]:
    """Of a Java trace the exceptions with their sentences, without the frames between them; each once."""
    lines = [line.strip() for line in trace.splitlines()]
    kept = [line for line in lines if line and not re.match(r"at [\w.$/@<>-]+\(|\.\.\. \d+ (?:more|common)", line)]
    return tuple(dict.fromkeys(kept))


TIMEOUT_SECONDS = 30.0
# While workers rebalance or have not read the last change, they answer changes with 409: for seconds.
BUSY_SECONDS = 60.0
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Worker:
    """A worker of a Kafka Connect cluster: any of them answers for all."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    timeout: float = TIMEOUT_SECONDS
    busy_seconds: float = BUSY_SECONDS
    pause: Callable[[float], None] = field(default=time.sleep, repr=False)

    def running(self) -> dict[str, dict[str, Any]]:
        """Every connector: under `info` its configuration, under `status` its state."""
        told = self._ask("GET", "/connectors?expand=info&expand=status")
        return dict(told) if isinstance(told, dict) else {}

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

    def stop(self, name: str) -> None:
        """Stop the connector: its tasks end, its offsets can be changed."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/stop")

    def resume(self, name: str) -> None:
        """Let a connector that was stopped or paused go on."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/resume")

    def delete(self, name: str) -> None:
        """Remove the connector from the cluster."""
        self._ask("DELETE", f"/connectors/{_quoted(name)}")

    def offsets(self, name: str) -> dict[str, Any]:
        """How far the connector has come: `{"offsets": [{"partition": ..., "offset": ...}]}`."""
        return dict(self._ask("GET", f"/connectors/{_quoted(name)}/offsets"))

    def set_offsets(self, name: str, offsets: Mapping[str, Any]) -> None:
        """Replace the offsets of the same partitions by these, in the form of `offsets`."""
        self._ask("PATCH", f"/connectors/{_quoted(name)}/offsets", offsets)

    def reset_offsets(self, name: str) -> None:
        """Forget all offsets of the connector."""
        self._ask("DELETE", f"/connectors/{_quoted(name)}/offsets")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON. Tries again while the workers are busy with another change."""
        waited = 0.0
        while True:
            try:
                return self._once(method, path, body)
            except _BusyError as busy:
                if waited >= self.busy_seconds:
                    raise ConnectError(
                        f"Kafka Connect at {self.url} has been busy for {waited:.0f} s (HTTP 409): {busy}",
                        remedy="Run the command again when its workers have settled; their logs say why they do not.",
                    ) from None
                self.pause(_PAUSE_SECONDS)
                waited += _PAUSE_SECONDS

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import http.client
        import urllib.error
        import urllib.request

        request = urllib.request.Request(  # noqa: S310 the scheme was checked by `worker_at`
            f"{self.url}{path}", method=method, data=None if body is None else json.dumps(body).encode()
        )
        request.add_header("Accept", "application/json")
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self.user:
            both = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {both}")
        try:
            with _opener().open(request, timeout=self.timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, _message(error.read()), path, secrets=_values(body)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or ("it timed out" if isinstance(reason, TimeoutError) else "")
            raise ConnectGoneError(
                f"No Kafka Connect answers at {self.url}{f' ({why})' if why else ''}.",
                remedy="Check --connect-url, that the worker is up, and that its REST port is reachable from here.",
            ) from None
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise ConnectError(
                f"{self.url} answers something that is not Kafka Connect's REST API.", remedy="Check --connect-url."
            ) from None

    def _refused(self, status: int, message: str, path: str, *, secrets: list[str]) -> Exception:
        said = masked(message, secrets)
        if status == 409:
            return _BusyError(said or "it gives no reason.")
        if status in {401, 403}:
            return ConnectError(
                f"Kafka Connect at {self.url} does not let this client in (HTTP {status}).",
                remedy="Set LAKEHOUSE_CONNECT_USER and LAKEHOUSE_CONNECT_PASSWORD.",
            )
        if status == 404 and path.startswith("/connectors/"):
            name = path.split("/", maxsplit=3)[2].partition("?")[0]
            return ConnectorMissingError(
                f"Kafka Connect at {self.url} has no connector {name}.", remedy="lakehouse connect status lists them."
            )
        if "because the return value of" in message or "NullPointerException" in message:
            return ConnectError(
                f"Kafka Connect at {self.url} stumbled over the configuration (HTTP {status}, NullPointerException): "
                "one of its validators looked for an option that has no value, and it does not say which.",
                remedy="Look for a required option that is absent or has its name of Debezium 1.x, topic.prefix first: "
                "lakehouse connect check. The worker's log has the rest.",
            )
        if "Failed to find any class" in message:
            return ConnectError(
                f"Kafka Connect at {self.url} has no such connector class: {said}",
                remedy="Install the plugin on every worker (plugin.path) and restart them.",
            )
        return ConnectError(
            f"Kafka Connect at {self.url} refuses (HTTP {status}): {said or 'it gives no reason.'}",
            remedy="Fix what it names; the worker's log has the rest.",
        )


class _BusyError(Exception):
    """The workers are rebalancing, or the asked one has not read the last change of a connector."""


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
            remedy="Give it without, and set LAKEHOUSE_CONNECT_USER and LAKEHOUSE_CONNECT_PASSWORD.",
        )
    if not usable:
        raise SettingsError(
            f"{url!r} is no URL of Kafka Connect.", remedy="Pass --connect-url http://HOST:8083 or https://..."
        )
    return Worker(url.rstrip("/"), user=user, password=password)


def _opener() -> OpenerDirector:
    """Opens addresses; follows no redirect, which would carry the user and the password elsewhere."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_given: object) -> None:
            return None

    return build_opener(NoRedirects)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _message(answer: bytes) -> str:
    try:
        told = json.loads(answer)
    except ValueError:
        return ""
    return str(told.get("message") or "") if isinstance(told, dict) else ""


def _values(body: Mapping[str, Any] | None) -> list[str]:
    return [str(value) for key, value in (body or {}).items() if is_secret(key)]
