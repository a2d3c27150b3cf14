"""The client of a schema registry: what it sends, what it makes of every answer, and what it waits for."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from lakehouse.errors import KafkaError, RegistryError, RegistryGoneError, SettingsError
from lakehouse.kafka.registry import MAX_SAID, Registry, SchemaRegistry, changed_schemas, registry
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.registered import RegisteredSchema

HIDDEN = "hunter2"
SUBJECT = "orders/all-value"
NAME = "orders%2Fall-value"
SCHEMA = '{"type": "record", "name": "orders", "fields": []}'
LOOKUP, VERSIONS = f"/subjects/{NAME}", f"/subjects/{NAME}/versions"
CHECK = f"/compatibility/subjects/{NAME}/versions/latest?verbose=true"
SUBJECT_ABSENT = (404, {"error_code": 40401, "message": "Subject not found."})
SCHEMA_ABSENT = (404, {"error_code": 40403, "message": "Schema not found"})
LARGE_ROWS = RetryPolicy("silver", lambda _said: None, waits=(0, 0, 0, 0, 0))

Asked = tuple[str, str, Any]


class StandIn:
    """A server in the place of a schema registry: it answers each path with what `answers` has, one after the other."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[Asked] = []
        self.headers: list[dict[str, str]] = []
        # Set at the end: a request without an answer waits for it.
        self.ended = Event()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        self.asked.append((method, path, json.loads(body) if body else None))
        answers = self.answers.get(path)
        if answers is None:
            self.ended.wait(30)
            return None
        status, told = answers.pop(0) if len(answers) > 1 else answers[0]
        return status, told if isinstance(told, bytes) else json.dumps(told).encode()

    def client(self, retry_policy: RetryPolicy | None = None, **settings: Any) -> Registry:
        return registry(SchemaRegistry(**{"url": self.url, **settings}), retry_policy=retry_policy)


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[StandIn]:
    stand_in = StandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stand_in.headers.append(dict(self.headers))
            answer = stand_in.answer(self.command, self.path, body)
            if answer is None:
                self.close_connection = True
                return
            status, text = answer
            self.send_response(status)
            if status in {301, 302}:
                self.send_header("Location", f"{stand_in.url}/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _handle  # noqa: N815 the names are http.server's

        def log_message(self, *_given: object) -> None:
            """Tests need no log."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_given: object) -> None:
            """Nor what it says of clients that hang up."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    stand_in.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    try:
        yield stand_in
    finally:
        stand_in.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's proxies, certificates and logins are not the tests'."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")
    monkeypatch.setenv("REGISTRY_PASSWORD", HIDDEN)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving() as server:
        yield server


# Schemas by their ids.


@pytest.mark.parametrize(
    ("answer", "schema"),
    [
        ({"schema": SCHEMA}, RegisteredSchema("AVRO", SCHEMA)),
        ({"schema": SCHEMA, "schemaType": None, "references": None}, RegisteredSchema("AVRO", SCHEMA)),
        ({"schema": SCHEMA, "schemaType": "AVRO", "references": []}, RegisteredSchema("AVRO", SCHEMA)),
        ({"schema": "message A {}", "schemaType": "PROTOBUF"}, RegisteredSchema("PROTOBUF", "message A {}")),
        ({"schema": SCHEMA, "references": [{"name": "a"}]}, RegisteredSchema("AVRO with references", SCHEMA)),
    ],
)
def test_a_schema_by_its_id(stand_in: StandIn, answer: dict[str, Any], schema: RegisteredSchema) -> None:
    stand_in.answers["/schemas/ids/7"] = [(200, answer)]
    with closing(stand_in.client()) as client:
        assert client.schema(7) == schema
    assert stand_in.asked == [("GET", "/schemas/ids/7", None)]
    assert stand_in.headers[0]["Accept"] == "application/vnd.schemaregistry.v1+json, application/json"
    assert "Authorization" not in stand_in.headers[0]
    assert "Content-Type" not in stand_in.headers[0]


def test_an_id_that_the_registry_does_not_have(stand_in: StandIn) -> None:
    stand_in.answers["/schemas/ids/7"] = [SCHEMA_ABSENT]
    assert stand_in.client(LARGE_ROWS).schema(7) is None
    assert len(stand_in.asked) == 1


def test_an_id_of_another_schema_is_found(stand_in: StandIn) -> None:
    of_path = {1: (200, {"schema": SCHEMA}), 2: (200, {"schema": "{}"}), 3: (200, {"schema": SCHEMA}), 4: SCHEMA_ABSENT}
    stand_in.answers = {f"/schemas/ids/{number}": [answer] for number, answer in of_path.items()}
    kept = {number: RegisteredSchema("AVRO", SCHEMA) for number in (1, 2, 4)} | {3: RegisteredSchema("JSON", SCHEMA)}
    assert changed_schemas(SchemaRegistry(url=stand_in.url), kept) == [2, 3]


def test_whether_it_answers_needs_no_schema_and_is_asked_once(stand_in: StandIn) -> None:
    path, connection = "/schemas/ids/1", SchemaRegistry(url=stand_in.url)
    for answer in (SCHEMA_ABSENT, (200, {"schema": SCHEMA})):
        stand_in.answers[path] = [answer]
        assert changed_schemas(connection, {}) == []
    for refusal, error in (((401, {}), RegistryError), ((503, {}), RegistryGoneError)):
        stand_in.answers[path] = [refusal]
        with pytest.raises(error):
            changed_schemas(connection, {})
    assert stand_in.asked == [("GET", path, None)] * 4


@pytest.mark.parametrize("path", ["/apis/ccompat/v7", "/apis/ccompat/v7/"])
def test_the_address_may_have_a_path(stand_in: StandIn, path: str) -> None:
    stand_in.answers["/apis/ccompat/v7/schemas/ids/7"] = [(200, {"schema": SCHEMA})]
    assert stand_in.client(url=stand_in.url + path).schema(7) is not None


@pytest.mark.parametrize("answer", [{"error_code": 404, "message": "HTTP 404 Not Found"}, b"<html>", {}, []])
def test_another_404_is_a_wrong_address(stand_in: StandIn, answer: Any) -> None:
    stand_in.answers["/schemas/ids/7"] = [(404, answer)]
    with pytest.raises(RegistryError, match=r"There is no schema registry's API at .* with HTTP 404\. Check url of"):
        stand_in.client(LARGE_ROWS).schema(7)
    assert len(stand_in.asked) == 1


def test_another_code_of_the_registry_is_said(stand_in: StandIn) -> None:
    stand_in.answers["/schemas/ids/7"] = [(404, {"error_code": 40401, "message": "No content with id 7"})]
    with pytest.raises(RegistryError, match=r"refuses /schemas/ids/7 \(HTTP 404, error code 40401\): No content with"):
        stand_in.client().schema(7)


def test_a_redirect_is_not_followed(stand_in: StandIn) -> None:
    stand_in.answers["/schemas/ids/7"] = [(302, {})]
    with pytest.raises(RegistryError, match=r"HTTP 302\. Check url .* Redirects are not followed"):
        stand_in.client().schema(7)
    assert len(stand_in.asked) == 1


@pytest.mark.parametrize("answer", [b"<html>", b"", b"\xff", [1], {}, {"schema": 7}, {"schema": "", "schemaType": 7}])
def test_an_answer_that_is_none_of_a_registry(stand_in: StandIn, answer: Any) -> None:
    stand_in.answers["/schemas/ids/7"] = [(200, answer)]
    with pytest.raises(RegistryError, match=r"with something that is not a schema registry's\. Check url") as error:
        stand_in.client(LARGE_ROWS).schema(7)
    assert len(stand_in.asked) == 1
    assert isinstance(error.value, KafkaError)
    assert error.value.exit_code == 4


# The id of a schema under a subject.


def test_a_schema_that_is_there_keeps_its_id(stand_in: StandIn) -> None:
    stand_in.answers[LOOKUP] = [(200, {"subject": SUBJECT, "version": 1, "id": 12, "schema": SCHEMA})]
    assert stand_in.client().identifier(SUBJECT, SCHEMA) == 12
    assert stand_in.asked == [("POST", LOOKUP, {"schema": SCHEMA})]
    assert stand_in.headers[0]["Content-Type"] == "application/vnd.schemaregistry.v1+json"


@pytest.mark.parametrize(("answer", "number"), [((200, {"id": 12}), 12), (SUBJECT_ABSENT, None), (SCHEMA_ABSENT, None)])
def test_whether_a_schema_is_there_is_asked_without_registering_it(
    stand_in: StandIn, answer: Any, number: int | None
) -> None:
    stand_in.answers[LOOKUP] = [answer]
    assert stand_in.client().known_identifier(SUBJECT, SCHEMA) == number
    assert stand_in.asked == [("POST", LOOKUP, {"schema": SCHEMA})]


@pytest.mark.parametrize("lookup", [SUBJECT_ABSENT, SCHEMA_ABSENT])
@pytest.mark.parametrize(
    "check", [SUBJECT_ABSENT, (404, {"error_code": 40402}), (200, {"is_compatible": True, "messages": []})]
)
def test_a_new_schema_is_registered(stand_in: StandIn, lookup: Any, check: Any) -> None:
    stand_in.answers = {LOOKUP: [lookup], CHECK: [check], VERSIONS: [(200, {"id": 13})]}
    assert stand_in.client().identifier(SUBJECT, SCHEMA) == 13
    assert stand_in.asked == [("POST", path, {"schema": SCHEMA}) for path in (LOOKUP, CHECK, VERSIONS)]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (["reader field a has no default", "b is gone"], "there: reader field a has no default; b is gone. Keep to"),
        ([], "there: it gives no reason. Keep to"),
        (None, "there: it gives no reason. Keep to"),
        (["x" * 2000], f"there: {'x' * (MAX_SAID - 1)}… Keep to"),
    ],
)
def test_a_schema_that_is_not_compatible_is_not_registered(stand_in: StandIn, messages: Any, said: str) -> None:
    verdict = {"is_compatible": False, "messages": messages}
    stand_in.answers = {LOOKUP: [SCHEMA_ABSENT], CHECK: [(200, verdict)]}
    with pytest.raises(RegistryError) as error:
        stand_in.client().identifier(SUBJECT, SCHEMA)
    assert f"finds the new schema of {SUBJECT} not compatible with the latest version {said}" in str(error.value)
    assert "PUT /config/SUBJECT" in error.value.hint
    assert len(stand_in.asked) == 2


@pytest.mark.parametrize(
    ("path", "answer"),
    [(LOOKUP, {"id": "12"}), (LOOKUP, {"id": True}), (CHECK, {}), (VERSIONS, {}), (VERSIONS, b"")],
)
def test_an_answer_without_what_was_asked_for(stand_in: StandIn, path: str, answer: Any) -> None:
    stand_in.answers = {LOOKUP: [SCHEMA_ABSENT], CHECK: [SUBJECT_ABSENT], VERSIONS: [(200, {"id": 1})]}
    stand_in.answers[path] = [(200, answer)]
    with pytest.raises(RegistryError, match="not a schema registry's"):
        stand_in.client().identifier(SUBJECT, SCHEMA)


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (422, {"error_code": 42201, "message": "Invalid schema."}, "(HTTP 422, error code 42201): Invalid schema. Fix"),
        (409, {"error_code": 409, "message": "incompatible"}, "(HTTP 409, error code 409): incompatible. Fix"),
        (400, {"error_code": [40401], "message": "no!"}, "(HTTP 400): no! Fix"),
        (400, b"no", "(HTTP 400): it gives no reason. Fix"),
        (400, {"message": "no store: password=another"}, "(HTTP 400): no store: password=•••. Fix"),
    ],
)
def test_a_refusal_is_said(stand_in: StandIn, status: int, answer: Any, said: str) -> None:
    stand_in.answers = {LOOKUP: [SCHEMA_ABSENT], CHECK: [SUBJECT_ABSENT], VERSIONS: [(status, answer)]}
    with pytest.raises(RegistryError) as error:
        stand_in.client(LARGE_ROWS).identifier(SUBJECT, SCHEMA)
    assert f"refuses {VERSIONS} {said}" in str(error.value)
    assert len(stand_in.asked) == 3


# Logins.

PASSWORD = {"env": "REGISTRY_PASSWORD"}


@pytest.mark.parametrize("username", ["reader", {"env": "REGISTRY_USER"}])
def test_a_user_is_let_in(stand_in: StandIn, username: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_USER", "reader")
    monkeypatch.setenv("REGISTRY_PASSWORD", "pä:ß€")
    stand_in.answers["/schemas/ids/7"] = [SCHEMA_ABSENT]
    stand_in.client(username=username, password=PASSWORD).schema(7)
    assert stand_in.headers[0]["Authorization"] == f"Basic {b64encode('reader:pä:ß€'.encode()).decode()}"


def test_a_token_lets_in(stand_in: StandIn) -> None:
    stand_in.answers["/schemas/ids/7"] = [SCHEMA_ABSENT]
    stand_in.client(token=PASSWORD).schema(7)
    assert stand_in.headers[0]["Authorization"] == f"Bearer {HIDDEN}"


@pytest.mark.parametrize("login", [{"username": "reader", "password": PASSWORD}, {"token": PASSWORD}, {}])
def test_no_login_comes_from_the_machine(
    stand_in: StandIn, login: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    stand_in.answers["/schemas/ids/7"] = [SCHEMA_ABSENT]
    stand_in.client(**login).schema(7)
    assert b64encode(b"other:other").decode() not in stand_in.headers[0].get("Authorization", "")
    assert ("Authorization" in stand_in.headers[0]) == bool(login)


def test_the_proxy_comes_from_the_machine(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", stand_in.url)
    stand_in.answers["http://registry.example:8081/schemas/ids/7"] = [SCHEMA_ABSENT]
    assert stand_in.client(url="http://registry.example:8081").schema(7) is None


@pytest.mark.parametrize("token", [f"{HIDDEN} x", f"{HIDDEN}\nX-Other: 1", f"{HIDDEN}é"])
def test_a_token_that_no_header_can_carry(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", token)
    with pytest.raises(SettingsError, match="registry, the variable REGISTRY_PASSWORD, has signs that a h") as error:
        registry(SchemaRegistry.model_validate({"url": "http://a", "token": PASSWORD}))
    assert HIDDEN not in str(error.value)


def test_a_secret_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGISTRY_PASSWORD")
    with pytest.raises(SettingsError, match="the variable REGISTRY_PASSWORD is not set"):
        registry(SchemaRegistry.model_validate({"url": "http://a", "username": "u", "password": PASSWORD}))


@pytest.mark.parametrize(
    ("login", "who"),
    [
        (
            {"username": "reader", "password": PASSWORD},
            "let in the user reader with the password in the variable REGISTRY_PASSWORD",
        ),
        ({"username": PASSWORD, "password": PASSWORD}, "let in the user in the variable REGISTRY_PASSWORD with"),
        ({"token": PASSWORD}, "let in the client with the token in the variable REGISTRY_PASSWORD (HTTP 401)"),
        ({}, "let in this client, which has no login (HTTP 401)"),
    ],
)
def test_who_is_not_let_in(stand_in: StandIn, login: dict[str, Any], who: str) -> None:
    stand_in.answers["/schemas/ids/7"] = [(401, {"error_code": 401, "message": f"Unauthorized {HIDDEN}"})]
    with pytest.raises(RegistryError) as error:
        stand_in.client(LARGE_ROWS, **login).schema(7)
    assert who in str(error.value)
    assert "Check username and password, or token, of schema_registry" in error.value.hint
    assert HIDDEN not in str(error.value)
    assert len(stand_in.asked) == 1


def test_a_missing_right_is_named(stand_in: StandIn) -> None:
    stand_in.answers = {path: [(403, {"error_code": 40301})] for path in ("/schemas/ids/7", LOOKUP)}
    client = stand_in.client(LARGE_ROWS, token=PASSWORD)
    with pytest.raises(RegistryError, match=r"REGISTRY_PASSWORD has no right to read schemas by their ids \(HTTP 403"):
        client.schema(7)
    with pytest.raises(RegistryError, match=rf"has no right to read and write the subject {SUBJECT} \(HTTP 403\)"):
        client.identifier(SUBJECT, SCHEMA)


@pytest.mark.parametrize(
    "login",
    [
        {"username": "reader", "password": PASSWORD},
        {"username": {"env": "REGISTRY_USER"}, "password": PASSWORD},
        {"token": PASSWORD},
    ],
)
def test_no_message_has_a_secret(stand_in: StandIn, login: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_USER", f"{HIDDEN}-user")
    client = stand_in.client(**login)
    stand_in.answers["/schemas/ids/7"] = [SCHEMA_ABSENT]
    client.schema(7)
    sent = stand_in.headers[0]["Authorization"].split()[1]
    echo = {"error_code": HIDDEN, "message": f"{HIDDEN}-user:{HIDDEN} sent {sent}"}
    stand_in.answers = {
        "/schemas/ids/7": [(422, echo)],
        LOOKUP: [SCHEMA_ABSENT],
        CHECK: [(200, {"is_compatible": False, "messages": [echo["message"]]})],
    }
    messages = []
    for ask in (lambda: client.schema(7), lambda: client.identifier(SUBJECT, SCHEMA)):
        with pytest.raises(RegistryError) as error:
            ask()
        assert error.value.__cause__ is None
        messages.append(f"{error.value} {error.value!r}")
    shown = " ".join([*messages, repr(client), repr(SchemaRegistry(url=stand_in.url, **login))])
    assert "•••" in shown
    assert HIDDEN not in shown
    assert sent not in shown


# A registry that does not answer.


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_registry_that_is_busy_is_asked_again(stand_in: StandIn, status: int) -> None:
    said: list[str] = []
    stand_in.answers["/schemas/ids/7"] = [(status, b"")] * 2 + [(200, {"schema": SCHEMA})]
    client = stand_in.client(RetryPolicy("silver", said.append, waits=(0, 0.001, 8)))
    assert client.schema(7) == RegisteredSchema("AVRO", SCHEMA)
    assert said == [
        f"silver: the schema registry at {stand_in.url} does not answer; trying again in 0 s (1 of 3)",
        f"silver: the schema registry at {stand_in.url} does not answer; trying again in 0.001 s (2 of 3)",
    ]


def test_the_count_begins_again_with_every_question(stand_in: StandIn) -> None:
    busy, absent = (503, b""), SCHEMA_ABSENT
    stand_in.answers = {LOOKUP: [busy, absent], CHECK: [busy, SUBJECT_ABSENT], VERSIONS: [busy, (200, {"id": 1})]}
    client = stand_in.client(RetryPolicy("publish", lambda _said: None, waits=(0,)))
    assert client.identifier(SUBJECT, SCHEMA) == 1


def test_a_registry_that_stays_busy_is_gone(stand_in: StandIn) -> None:
    stand_in.answers["/schemas/ids/7"] = [(503, b"")]
    with pytest.raises(RegistryGoneError, match=r"does not answer \(HTTP 503\)\. Check url .* it resumes") as error:
        stand_in.client(LARGE_ROWS).schema(7)
    assert error.value.exit_code == 4
    assert len(stand_in.asked) == 6


def test_without_a_policy_it_is_asked_once(stand_in: StandIn) -> None:
    stand_in.answers["/schemas/ids/7"] = [(503, b"")]
    with pytest.raises(RegistryGoneError):
        stand_in.client().schema(7)
    assert len(stand_in.asked) == 1


def test_nobody_is_there() -> None:
    said: list[str] = []
    policy = RetryPolicy("silver", said.append, waits=(0, 0))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RegistryGoneError, match=r"does not answer \(Connection refused\)"):
            registry(SchemaRegistry(url=url), retry_policy=policy).schema(7)
    assert len(said) == 2


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(RegistryGoneError, match=r"registry at http://registry\.invalid does not answer \("):
        registry(SchemaRegistry(url="http://registry.invalid")).schema(7)


def test_a_registry_that_is_silent(stand_in: StandIn) -> None:
    with pytest.raises(RegistryGoneError, match=r"does not answer \(waited 1 s\)"):
        stand_in.client(timeout_seconds=1).schema(7)


@contextmanager
def hanging_up(after: bytes) -> Iterator[int]:
    """A port where whoever connects is heard, gets `after`, and is hung up on."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _address = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(after)

        thread = Thread(target=hang_up, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_a_registry_that_hangs_up(after: bytes) -> None:
    with hanging_up(after) as port, pytest.raises(RegistryGoneError, match="the connection was lost"):
        registry(SchemaRegistry(url=f"http://127.0.0.1:{port}")).schema(7)


def test_a_registry_that_hangs_up_before_tls() -> None:
    with hanging_up(b"") as port, pytest.raises(RegistryGoneError):
        registry(SchemaRegistry(url=f"https://127.0.0.1:{port}")).schema(7)


# TLS.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and `registry.pem` and `client.pem`: each a key and a certificate that the authority signed."""
    folder = tmp_path_factory.mktemp("certificates")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def openssl(*arguments: str) -> None:
        subprocess.run(["/usr/bin/openssl", *arguments], cwd=folder, check=True, capture_output=True)

    usages = ("-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", *usages, *new_key)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("registry", "client"):
        openssl("req", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr", *new_key)
        authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *authority)
        (folder / f"{name}.pem").write_text("".join((folder / f"{name}.{part}").read_text() for part in ("key", "crt")))
    return folder


@contextmanager
def serving_tls(certificates: Path, *, asks_for_certificate: bool = False) -> Iterator[StandIn]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "registry.pem")
    if asks_for_certificate:
        # With TLS 1.3 the refusal comes after the handshake, and may find the client still sending.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.pem")
    with serving(context) as stand_in:
        stand_in.answers["/schemas/ids/7"] = [(200, {"schema": SCHEMA})]
        yield stand_in


def test_tls_with_an_authority_of_its_own(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    with serving_tls(certificates) as stand_in:
        client = stand_in.client(ca_file=str(certificates / "ca.pem"))
        assert client.schema(7) == RegisteredSchema("AVRO", SCHEMA)
        client.close()


def test_tls_with_an_authority_that_nobody_named(certificates: Path) -> None:
    with serving_tls(certificates) as stand_in:
        with pytest.raises(RegistryError, match=r"No TLS connection to .* as this client, .* Check ca_file") as error:
            stand_in.client(LARGE_ROWS).schema(7)
        assert not isinstance(error.value, RegistryGoneError)
        assert stand_in.asked == []


def test_a_certificate_of_the_client(certificates: Path) -> None:
    ca, own = str(certificates / "ca.pem"), str(certificates / "client.pem")
    with serving_tls(certificates, asks_for_certificate=True) as stand_in:
        client = stand_in.client(ca_file=ca, client_certificate_file=own)
        assert client.schema(7) == RegisteredSchema("AVRO", SCHEMA)
        client.close()
        with pytest.raises(RegistryError, match="No TLS connection to"):
            stand_in.client(LARGE_ROWS, ca_file=ca).schema(7)
        stand_in.answers["/schemas/ids/7"] = [(401, {})]
        with pytest.raises(RegistryError, match=r"not let in the client with the certificate .*client\.pem \(HTTP"):
            stand_in.client(ca_file=ca, client_certificate_file=own).schema(7)


def test_tls_where_none_is_spoken(stand_in: StandIn) -> None:
    with pytest.raises(RegistryError, match=r"No TLS connection to .* and that the registry speaks TLS there"):
        stand_in.client(LARGE_ROWS, url=stand_in.url.replace("http:", "https:")).schema(7)


@pytest.mark.parametrize("key", ["ca_file", "client_certificate_file"])
def test_a_file_that_is_gone(stand_in: StandIn, key: str) -> None:
    settings = {key: "/nowhere/a.pem", "url": stand_in.url.replace("http:", "https:")}
    with pytest.raises(RegistryError, match=r"cannot be asked .* Check url, ca_file and client_certificate_file"):
        stand_in.client(LARGE_ROWS, **settings).schema(7)


def test_it_loads_without_requests() -> None:
    program = (
        "import sys, lakehouse.kafka.registry;"
        "sys.exit(any(name in sys.modules for name in ('requests', 'pyspark', 'confluent_kafka')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
