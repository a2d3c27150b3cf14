"""Kafka Connect's REST API as the product speaks it: what it waits for, what it hides, and what it explains."""

from __future__ import annotations

import base64
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.errors import ConnectError, ConnectorMissingError, ConnectUnavailableError, SettingsError
from tests.unit.connectors.stand_in import HIDDEN, ConnectStandIn, at_once


@pytest.mark.parametrize(
    "message",
    [
        "Cannot complete request because of a conflicting operation (e.g. worker rebalance)",
        "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway.",
        "Cannot complete request momentarily due to stale configuration (typically caused by a ...)",
    ],
)
def test_a_busy_cluster_is_waited_for(stand_in: ConnectStandIn, message: str) -> None:
    busy = (409, {"message": message})
    stand_in.answers["GET", "/connectors"] = [busy, busy]
    assert at_once(stand_in.url).names() == []
    assert len(stand_in.asked) == 3


def test_a_cluster_that_stays_busy_is_an_error(stand_in: ConnectStandIn) -> None:
    stand_in.answers["GET", "/connectors"] = [(409, {"message": "a rebalance is expected"})] * 100
    with pytest.raises(ConnectError, match=r"has been busy for 60 s \(HTTP 409\): a rebalance is expected"):
        at_once(stand_in.url).names()


def test_the_user_goes_into_a_header_and_into_no_message(stand_in: ConnectStandIn) -> None:
    stand_in.answers["GET", "/connectors"] = [(401, {"message": "no"})]
    worker = at_once(stand_in.url, user="someone", password=HIDDEN)
    with pytest.raises(ConnectError) as caught:
        worker.names()
    assert "hunter2" not in f"{caught.value} {worker!r}"
    assert "LAKEHOUSE_CONNECT_USER" in str(caught.value)
    assert stand_in.headers[0]["Authorization"] == f"Basic {base64.b64encode(b'someone:hunter2').decode()}"


def test_a_redirect_is_not_followed(stand_in: ConnectStandIn) -> None:
    stand_in.answers["GET", "/connectors"] = [(302, None)]
    with pytest.raises(ConnectError, match="HTTP 302"):
        at_once(stand_in.url, user="a", password=HIDDEN).names()


def test_a_null_pointer_is_explained(stand_in: ConnectStandIn) -> None:
    npe = 'Cannot invoke "ConfigValueInfo.errors()" because the return value of "ConfigInfo.configValue()" is null'
    stand_in.answers["PUT", "/connectors/x/config"] = [(500, {"error_code": 500, "message": npe})]
    with pytest.raises(ConnectError, match=r"topic\.prefix first: lakehouse connect check"):
        at_once(stand_in.url).put_config("x", {})


def test_a_refusal_shows_no_secret(stand_in: ConnectStandIn) -> None:
    stand_in.answers["PUT", "/connectors/x/config"] = [(400, {"message": "no such thing: hunter2"})]
    with pytest.raises(ConnectError) as caught:
        at_once(stand_in.url).put_config("x", {"database.password": "hunter2"})
    assert "no such thing" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_names_are_quoted_and_unknown_ones_are_errors(stand_in: ConnectStandIn) -> None:
    worker = at_once(f"{stand_in.url}/")
    assert worker.config("a b") is None
    assert stand_in.asked[-1][1] == "/connectors/a%20b/config"
    with pytest.raises(ConnectorMissingError, match="has no connector x"):
        worker.status("x")


def test_who_does_not_answer_is_an_error(stand_in: ConnectStandIn) -> None:
    with pytest.raises(ConnectUnavailableError, match="No Kafka Connect answers"):
        at_once("http://127.0.0.1:1").names()
    stand_in.answers["GET", "/connectors"] = [(200, "<html>")]
    with pytest.raises(ConnectError, match="not Kafka Connect's REST API"):
        at_once(stand_in.url).names()


def test_how_long_a_silent_one_was_waited_for_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        worker = replace(at_once(f"http://127.0.0.1:{silent.getsockname()[1]}"), timeout=0.2)
        with pytest.raises(ConnectUnavailableError, match=r"\(waited 0\.2 s\)"):
            worker.names()


def test_a_login_of_the_machine_is_not_sent(
    stand_in: ConnectStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login someone password {HIDDEN}", encoding="ascii")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    at_once(stand_in.url).names()
    assert "Authorization" not in stand_in.headers[0]


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8083", "file:///etc/passwd", "http://", "http://[x"])
def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(SettingsError, match="no URL of Kafka Connect"):
        at_once(url)


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        at_once("http://someone:hunter2@127.0.0.1:8083")
    assert "hunter2" not in str(caught.value)
