"""TLS to databases with a certificate authority of their own: a healthy one is asked, or it is said why not."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from connectors.connectors import CLASSES, Connector
from lakehouse.contracts.topics import Source
from lakehouse.spark.jars import java
from monitoring.readings.databases import Database, database_of
from monitoring.readings.tls import Tls, UnreadableError, tls_of

OF_KIND: dict[str, str] = {kind: name for name, kind in CLASSES.items()}
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: two authorities, and the certificate of a server called localhost by the first of them."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["/usr/bin/openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl("req", "-x509", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", *_NEW_KEY)
    openssl("req", "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr", *_NEW_KEY)
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *authority)
    openssl("x509", "-in", "ca.pem", "-outform", "DER", "-out", "ca.der")
    both = (folder / "other.pem").read_text() + "Subject: CN=Müller\n" + (folder / "ca.pem").read_text()
    (folder / "both.pem").write_text(both, encoding="utf-8")
    (folder / "empty.pem").write_text("")
    (folder / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (folder / "broken.der").write_bytes(b"\x30\x03\x02\x01\x07")
    return folder


@contextmanager
def postgresql(certificates: Path) -> Iterator[tuple[int, list[str]]]:
    """A server that goes as far as TLS, and ends the connection there: its port, and how each ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    ended: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        assert len(connection.recv(8)) == 8  # SSLRequest
                        connection.sendall(b"S")
                        try:
                            with context.wrap_socket(connection, server_side=True) as tls:
                                ended.append("trusted" if tls.recv(1) else "not trusted")
                        except OSError:
                            ended.append("not trusted")

        serving = threading.Thread(target=serve)
        serving.start()
        yield int(listening.getsockname()[1]), ended
        listening.shutdown(socket.SHUT_RDWR)
    serving.join(10)


def connector(kind: str = "postgresql", **options: str) -> Connector:
    """A connector with these options of `database`, with __ for a dot."""
    given = {f"database.{name.replace('__', '.')}": value for name, value in options.items()}
    config = {"connector.class": OF_KIND[kind], "database.user": "debezium", "database.password": "x", **given}
    return Connector(name="orders", config=config, file="orders.json")


def asked(certificates: Path, *, host: str = "localhost", **options: str) -> tuple[Database, list[str]]:
    with postgresql(certificates) as (port, ended):
        feeds = {"orders": {"topics": ["pg.public.orders"], "envelope": "table"}}
        databases = [{"host": host, "port": port}]
        named = Source.model_validate({"kind": "postgresql", "feeds": feeds, "databases": databases})
        found = database_of(connector(hostname=host, port=str(port), dbname="shop", **options), [named], offset=None)
    return found, ended


@pytest.mark.parametrize("name", ["ca.pem", "both.pem", "ca.der", "server.pem"])
def test_the_certificates_that_the_connector_names_are_trusted(certificates: Path, name: str) -> None:
    """The connection goes through TLS; what is behind it is no database, and that is trouble."""
    found, ended = asked(certificates, sslmode="verify-full", sslrootcert=str(certificates / name))
    assert ended == ["trusted"]
    assert found.unasked == ""
    assert "does not answer as debezium" in found.trouble


def test_a_database_with_a_certificate_by_another_authority_is_in_trouble(certificates: Path) -> None:
    found, ended = asked(certificates, sslmode="verify-full", sslrootcert=str(certificates / "other.pem"))
    assert (ended, found.unasked) == (["not trusted"], "")
    assert "does not answer as debezium" in found.trouble


@pytest.mark.parametrize(("mode", "ended"), [("verify-ca", "trusted"), ("verify-full", "not trusted")])
def test_only_one_mode_looks_at_the_name_of_the_host(certificates: Path, mode: str, ended: str) -> None:
    found, seen = asked(certificates, host="127.0.0.1", sslmode=mode, sslrootcert=str(certificates / "ca.pem"))
    assert (seen, found.unasked) == ([ended], "")


def test_what_the_worker_trusts_by_itself_is_not_known_here(certificates: Path) -> None:
    found, ended = asked(certificates, sslmode="verify-full")
    assert (ended, found.trouble) == (["not trusted"], "")
    assert found.unasked == (
        "Its certificate is not trusted here, and database.sslrootcert names none: not known what the worker trusts."
    )


@pytest.mark.parametrize("mode", ["require", "prefer", "allow"])
def test_modes_that_do_not_verify_ask_whatever_the_files_are(certificates: Path, mode: str) -> None:
    found, ended = asked(certificates, sslmode=mode, sslrootcert="/etc/worker/ca.pem")
    assert (ended, found.unasked) == (["trusted"], "")


def test_without_tls_none_is_asked_for() -> None:
    assert tls_of(connector(sslmode="disable", sslrootcert="/none")) == Tls(is_plain=True)
    assert tls_of(connector("mysql", ssl__mode="disabled")) == Tls(is_plain=True)
    assert tls_of(connector("mariadb")) == tls_of(connector("postgresql")) == Tls()


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("/etc/worker/ca.pem", "is a file of the worker that is not here"),
        ("{}", "is a file of the worker that is not here"),
        ("${file:/secrets/tls.properties:ca}", "is a reference that only the worker can follow"),
        ("{}/empty.pem", "has no certificates that can be read here"),
        ("{}/broken.pem", "has no certificates that can be read here"),
        ("{}/broken.der", "has no certificates that can be read here"),
        ("{}/server.key", "has no certificates that can be read here"),
    ],
)
def test_a_database_is_not_asked_where_its_certificates_cannot_be_read(
    certificates: Path, named: str, why: str
) -> None:
    options = {"sslmode": "verify-ca", "sslrootcert": named.replace("{}", str(certificates), 1)}
    found, ended = asked(certificates, **options)
    assert (ended, found.trouble) == ([], "")
    assert why in found.unasked
    assert "database.sslrootcert" in found.unasked


def test_a_server_that_wants_the_certificate_of_the_worker_is_not_in_trouble(certificates: Path) -> None:
    found, _ended = asked(certificates, sslmode="require", sslcert="/etc/worker/client.pem")
    assert (found.trouble, found.unasked) == (
        "",
        "The worker has a certificate for it (database.sslcert), which is not used here: not asked.",
    )


@pytest.fixture(scope="module", params=["JKS", "PKCS12"])
def truststore(certificates: Path, request: pytest.FixtureRequest) -> Path:
    file = certificates / f"trust.{request.param.lower()}"
    keytool = java().with_name("keytool")
    subprocess.run(
        [
            *(keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", "ca.pem"),
            *("-storepass", "changeit", "-keystore", file, "-storetype", request.param),
        ],
        cwd=certificates,
        check=True,
        capture_output=True,
    )
    return file


@pytest.mark.parametrize(
    ("kind", "mode", "looks_at_the_host"),
    [
        ("mysql", "verify_ca", False),
        ("mysql", "VERIFY_IDENTITY", True),
        ("mariadb", "verify-ca", False),
        ("mariadb", "verify-full", True),
    ],
)
def test_truststores_are_read_by_keytool(truststore: Path, kind: str, mode: str, looks_at_the_host: bool) -> None:
    options = {"ssl__mode": mode, "ssl__truststore": str(truststore), "ssl__truststore__password": "changeit"}
    context = tls_of(connector(kind, **options)).context
    assert context is not None
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "ca"),),)]
    assert (context.check_hostname, context.verify_mode) == (looks_at_the_host, ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    ("password", "why"),
    [("wrong one", "has no certificates that can be read"), ("${env:STORE}", "is a reference that only the worker")],
)
def test_a_truststore_that_cannot_be_opened_is_named_and_its_password_is_not(
    truststore: Path, password: str, why: str
) -> None:
    options = {"ssl__mode": "verify_ca", "ssl__truststore": str(truststore), "ssl__truststore__password": password}
    with pytest.raises(UnreadableError) as unreadable:
        tls_of(connector("mysql", **options))
    assert why in str(unreadable.value)
    assert "database.ssl.truststore" in str(unreadable.value)
    assert password not in str(unreadable.value)
