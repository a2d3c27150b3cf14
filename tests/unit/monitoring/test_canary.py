"""A running connector's configuration takes no secret out of the environment, and opens no connection, by itself.

Every variable of the environment is a canary, and what the connectors name are servers of the test that keep every byte
they get. Only values that the contract names go out, and only to the server that it names them for.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from connectors.connectors import Connector
from lakehouse.contracts.files import MODELS, packaged_text
from lakehouse.contracts.topics import DatabaseServer, Source
from monitoring.probe import insert_probe
from monitoring.readings.databases import UnaskedError, database_of, password_of, server_of
from tests.support.command_line import run
from tests.unit.connectors.stand_in import ConnectStandIn, connect_stand_in
from tests.unit.monitoring.scenes import mysql, postgres

NAMED, OTHER = "DEBEZIUM_POSTGRES_PASSWORD", "CANARY"
SECRETS = {
    NAMED: "named-5f1c",
    OTHER: "canary-77aa",
    "DEBEZIUM_POSTGRES_PASSWORD2": "canary-longer-name",
    "debezium_postgres_password": "canary-other-case",
    "POSTGRES_PASSWORD": "canary-part-of-the-name",
    "LAKEHOUSE_CONNECT_PASSWORD": "canary-connect",
    "LAKEHOUSE_PROBE_PASSWORD": "canary-probe",
    "PGPASSWORD": "canary-libpq",
}


class Listener:
    """A server that asks for the password in plain text, as PostgreSQL may, and keeps what it gets."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self.got = b""
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _address = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with client:
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        client.settimeout(2)
        try:
            while data := client.recv(65_536):
                self.got += data
                is_tls = data[4:8] == (80_877_103).to_bytes(4, "big")
                client.sendall(b"N" if is_tls else b"R" + (8).to_bytes(4, "big") + (3).to_bytes(4, "big"))
                if data[:1] == b"p":  # the password
                    return
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listener() -> Iterator[Listener]:
    one = Listener()
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def named() -> Iterator[Listener]:
    with listener() as one:
        yield one


@pytest.fixture
def unnamed() -> Iterator[Listener]:
    with listener() as one:
        yield one


@pytest.fixture
def connect() -> Iterator[ConnectStandIn]:
    with connect_stand_in() as one:
        yield one


def source(*servers: Mapping[str, Any], kind: str = "postgresql") -> Source:
    feeds = {"orders": {"topics": ["t"], "envelope": "table"}}
    return Source.model_validate({"kind": kind, "feeds": feeds, "databases": servers})


def contracts_in(folder: Path, port: int) -> Path:
    """The packaged contracts, whose PostgreSQL is at this port of loopback."""
    for name in MODELS:
        text = packaged_text(name)
        if name == "bronze/topics.yaml":
            told = yaml.safe_load(text)
            server = {"host": "127.0.0.1", "port": port, "password_variables": [NAMED]}
            told["sources"]["postgres"]["databases"] = [server]
            text = yaml.safe_dump(told)
        path = folder / "contracts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "contracts"


def options(connector: Connector, **more: str) -> dict[str, str]:
    return {**connector.config, "database.user": "dbz", "database.dbname": "shop", **more}


def looked(
    capsys: pytest.CaptureFixture[str], connect: ConnectStandIn, folder: Path, contracts: Path | None
) -> list[tuple[str, Any]]:
    """What `status` and `doctor` answer, as JSON and for people."""
    where: tuple[str, ...] = ("--warehouse", str(folder / "warehouse"), "--connect-url", connect.url)
    where += () if contracts is None else ("--contracts", str(contracts))
    found = []
    for command in ("status", "doctor"):
        for form in ((), ("--json",)):
            code, out, err = run(capsys, command, *where, *form)
            assert not [value for value in SECRETS.values() if value in out + err]
            found.append((command, json.loads(out) if form else out))
            assert code in {0, 1, 2}
    return found


# What somebody may write who may change a connector: (the host, the port, the password).
ATTACKS = [
    # a variable that the contract does not name, to the server that it names
    ("127.0.0.1", "named", "${env:CANARY}"),
    ("127.0.0.1", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD2}"),
    ("127.0.0.1", "named", "${env:debezium_postgres_password}"),
    ("127.0.0.1", "named", "${env:POSTGRES_PASSWORD}"),
    ("127.0.0.1", "named", "${env:PGPASSWORD}"),
    ("127.0.0.1", "named", "${env:LAKEHOUSE_CONNECT_PASSWORD}"),
    # the variable that it names, to another server
    ("127.0.0.1", "unnamed", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("localhost", "unnamed", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.1", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("2130706433", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1.", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("::ffff:127.0.0.1", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("dbz:secret@127.0.0.1", "unnamed", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1@localhost", "unnamed", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1:{unnamed}", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1,localhost", "unnamed", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1", "0{unnamed}", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1", "{unnamed}/?x={named}", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("127.0.0.1", "${env:CANARY}", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    ("${env:CANARY}", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}"),
    # other references, and several in one
    ("127.0.0.1", "named", "${file:/etc/hostname:password}"),
    ("127.0.0.1", "named", "${secrets:scope/key}"),
    ("127.0.0.1", "named", "${vault:secret/db:password}"),
    ("127.0.0.1", "named", "${directory:/etc:hostname}"),
    ("127.0.0.1", "named", "${env:CANARY}${env:CANARY}"),
    ("127.0.0.1", "named", "${env:DEBEZIUM_POSTGRES_PASSWORD}${env:CANARY}"),
    ("127.0.0.1", "named", "x${env:CANARY}"),
    ("127.0.0.1", "named", "${env:${env:CANARY}}"),
    ("127.0.0.1", "named", "${env::CANARY}"),
    ("127.0.0.1", "named", "${env:/:CANARY}"),
    ("127.0.0.1", "named", "${environment:CANARY}"),
    ("127.0.0.1", "named", "${ENV:CANARY}"),
    ("127.0.0.1", "named", "${env: CANARY}"),
    # no reference at all: no connection either
    ("127.0.0.1", "unnamed", "plain"),
]


@pytest.mark.parametrize(("host", "port", "password"), ATTACKS)
def test_nothing_goes_out(
    host: str,
    port: str,
    password: str,
    capsys: pytest.CaptureFixture[str],
    connect: ConnectStandIn,
    named: Listener,
    unnamed: Listener,
    tmp_path: Path,
) -> None:
    ports = {"named": str(named.port), "unnamed": str(unnamed.port)}
    given = {
        "database.hostname": host.replace("{unnamed}", ports["unnamed"]),
        "database.port": ports.get(port)
        or port.replace("{unnamed}", ports["unnamed"]).replace("{named}", ports["named"]),
        "database.password": password,
    }
    connect.add("orders-postgres", options(postgres(), **given))
    for command, said in looked(capsys, connect, tmp_path, contracts_in(tmp_path, named.port)):
        if command == "doctor" and isinstance(said, dict):
            assert list(said["unasked"]) == ["orders-postgres"]
        elif command == "doctor":
            assert "orders-postgres: its database was not looked at" in " ".join(said.split())
    assert (named.connections, unnamed.connections, named.got, unnamed.got) == (0, 0, b"", b"")


@pytest.mark.parametrize("connector", [postgres(), mysql()])
@pytest.mark.parametrize("password", ["${env:DEBEZIUM_POSTGRES_PASSWORD}", "${env:CANARY}", "plain", ""])
def test_the_packaged_contracts_name_no_server(
    connector: Connector,
    password: str,
    capsys: pytest.CaptureFixture[str],
    connect: ConnectStandIn,
    unnamed: Listener,
    tmp_path: Path,
) -> None:
    given = {"database.hostname": "127.0.0.1", "database.port": str(unnamed.port), "database.password": password}
    connect.add(connector.name, options(connector, **given))
    looked(capsys, connect, tmp_path, None)
    assert unnamed.connections == 0


def test_what_the_contract_names_goes_to_the_server_that_it_names(
    capsys: pytest.CaptureFixture[str], connect: ConnectStandIn, named: Listener, unnamed: Listener, tmp_path: Path
) -> None:
    """The test sees a secret that goes out: it would have seen the others."""
    given = {
        "database.hostname": "127.0.0.1",
        "database.port": str(named.port),
        "database.password": f" ${{env:{NAMED}}} ",
        "database.sslmode": "disable",
    }
    connect.add("orders-postgres", options(postgres(), **given))
    found = looked(capsys, connect, tmp_path, contracts_in(tmp_path, named.port))
    assert SECRETS[NAMED].encode() in named.got
    assert not [value for name, value in SECRETS.items() if name != NAMED and value.encode() in named.got]
    assert unnamed.connections == 0
    assert found[-1][1]["unasked"] == {}


def test_a_connector_of_another_kind_is_not_let_to_the_server(named: Listener) -> None:
    servers = [source({"host": "127.0.0.1", "port": named.port, "password_variables": [OTHER]})]
    given = {
        "database.hostname": "127.0.0.1",
        "database.port": str(named.port),
        "database.password": f"${{env:{OTHER}}}",
    }
    found = database_of(Connector(name="m", config=options(mysql(), **given), file="test"), servers, offset=None)
    assert "No source of mysql" in found.unasked
    assert named.connections == 0


def of(host: str, port: str | None = None, **more: str) -> Connector:
    given = {"database.hostname": host, **({} if port is None else {"database.port": port}), **more}
    return Connector(name="c", config=options(postgres(), **given), file="test")


def test_a_server_is_named_by_its_host_in_any_case_and_its_port() -> None:
    one, other = source({"host": "DB.Shop", "port": 5432}), source({"host": "db.shop", "port": 6432})
    assert server_of(of("db.SHOP"), [one, other]) == DatabaseServer(host="db.shop", port=5432)
    assert server_of(of(" Db.shop ", " 6432 "), [one, other]) == other.databases[0]
    for connector in (of("db.shop", "5433"), of("db.shop.", "5432"), of("other", "5432"), of("db.shop", "٥٤٣٢")):
        with pytest.raises(UnaskedError, match=r"No source of postgresql in bronze/topics.yaml names"):
            server_of(connector, [one, other])


def test_two_sources_of_one_server_name_variables_for_it_together() -> None:
    db = {"host": "db", "port": 5432}
    sources = [source({**db, "password_variables": ["A"]}), source({**db, "password_variables": ["B"]})]
    assert server_of(of("db", "5432"), sources).password_variables == ("A", "B")
    of_mysql = source({**db, "password_variables": ["C"]}, kind="mysql")
    assert server_of(of("db", "5432"), [*sources, of_mysql]).password_variables == ("A", "B")


def test_what_is_no_address_is_not_shown() -> None:
    with pytest.raises(UnaskedError) as refused:
        server_of(of("dbz:hunter2@db.shop", "5432"), [])
    assert "hunter2" not in str(refused.value)
    assert "this address" in str(refused.value)


def test_a_password_is_of_the_server_that_names_its_variable() -> None:
    server = DatabaseServer(host="db", port=5432, password_variables=(NAMED,))
    assert password_of(of("db", **{"database.password": f"${{env:{NAMED}}}"}), server) == SECRETS[NAMED]
    assert password_of(of("db", **{"database.password": "plain"}), server) == "plain"
    with pytest.raises(UnaskedError, match="does not name CANARY among the `password_variables` of db:5432"):
        password_of(of("db", **{"database.password": "${env:CANARY}"}), server)
    with pytest.raises(UnaskedError, match="that only the worker can resolve"):
        password_of(of("db", **{"database.password": "x${file:/p:password}"}), server)


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAMED)
    server = DatabaseServer(host="db", port=5432, password_variables=(NAMED,))
    with pytest.raises(UnaskedError, match=f"The variable {NAMED} is not set here"):
        password_of(of("db", **{"database.password": f"${{env:{NAMED}}}"}), server)


def test_the_value_of_a_variable_is_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMED, "${env:CANARY}")
    server = DatabaseServer(host="db", port=5432, password_variables=(NAMED,))
    assert password_of(of("db", **{"database.password": f"${{env:{NAMED}}}"}), server) == "${env:CANARY}"


def test_the_probe_sends_its_login_to_no_other_server(unnamed: Listener) -> None:
    login = ("owner", os.environ["LAKEHOUSE_PROBE_PASSWORD"])
    connector = of("127.0.0.1", str(unnamed.port), **{"table.include.list": "public.outbox_events"})
    with pytest.raises(UnaskedError, match="No source of postgresql"):
        insert_probe(connector, [source({"host": "127.0.0.1", "port": 1})], login=login, aggregate="orders")
    assert unnamed.connections == 0


@pytest.mark.parametrize(
    "tables",
    [
        *("", "public.a,public.b", "public.outbox.*", "public.o (id) SELECT pg_sleep(9); --", 'public."o"'),
        *("outbox_events", "public.o\nVALUES (1)", "public.o'"),
    ],
)
def test_the_probe_writes_to_a_table_that_is_named_and_nothing_else(tables: str, named: Listener) -> None:
    connector = of("127.0.0.1", str(named.port), **{"table.include.list": tables})
    server = source({"host": "127.0.0.1", "port": named.port})
    with pytest.raises(UnaskedError, match="does not name one table"):
        insert_probe(connector, [server], login=("owner", "x"), aggregate="orders")
    assert named.connections == 0
