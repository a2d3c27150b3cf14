"""Requests to the REST servers beside Kafka, its schema registry and Kafka Connect: one login, and no redirects.

Imports without requests.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session
    from urllib3 import Retry


def basic_login(username: str, password: str) -> str:
    """The header of a user's login, in UTF-8 as RFC 7617 has it: requests itself would write Latin-1."""
    return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"


def new_session(login: str | None, *, retry: Retry | None = None) -> Session:
    """Connections of one client. `login` is the Authorization of every request; None: there is none, nor of ~/.netrc.

    Proxies are those of the environment.
    """
    import requests
    from requests.adapters import HTTPAdapter

    def logged_in(request: PreparedRequest) -> PreparedRequest:
        if login is not None:
            request.headers["Authorization"] = login
        return request

    session = requests.Session()
    session.auth = logged_in
    if retry is not None:
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def send(
    session: Session,
    method: str,
    url: str,
    *,
    timeout: float,
    body: Mapping[str, Any] | None = None,
    media_type: str = "application/json",
    ca_file: str | None = None,
    certificate_file: str | None = None,
) -> Response:
    """The server's answer, whatever its status. Raises OSError, as all errors of requests are, where there is none."""
    return session.request(
        method,
        url,
        json=body,
        headers=None if body is None else {"Content-Type": media_type},
        timeout=timeout,
        # Said with every request: else REQUESTS_CA_BUNDLE of the environment goes before the session's.
        verify=ca_file or True,
        cert=certificate_file,
        # A redirect would make a GET of a POST, and lead to a place that nobody has named.
        allow_redirects=False,
    )


def failure(error: OSError, *, timeout: float) -> tuple[Literal["gone", "tls", "unsent"], str]:
    """Why `send` has no answer, and in words: the server is `gone`, or one side does not trust the other (`tls`).

    Nothing was sent (`unsent`) where a file or a proxy is not as it should be.
    """
    import ssl

    import requests

    causes = list(_causes(error))
    # A server that goes away in the middle of a handshake is none that refuses.
    cut_off = any(isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError) for cause in causes)
    if any(isinstance(cause, ssl.SSLError) for cause in causes) and not cut_off:
        return "tls", "one side does not trust the other"
    lost = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
    if not isinstance(error, lost):
        return "unsent", type(error).__name__
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in causes):
        return "gone", f"waited {timeout:g} s"
    messages = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.errno)
    return "gone", next(filter(None, messages), "the connection was lost")


def json_object(response: Response) -> dict[str, Any] | None:
    """The answer as a map; None when it is none."""
    try:
        answer = json.loads(response.content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, and all that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
