"""What the databases say of their connectors: slot, WAL, binlog, and the settings that Debezium needs.

A running connector's options say where its database is and as whom it is asked, and whoever may change a connector
writes them. So this connects only to servers that the contract names (`databases` in bronze/topics.yaml), and sends of
this process' environment only the values that the contract names for that server, where the password is `${env:NAME}`.
Every other reference stays as it is, and then nobody is asked.

PostgreSQL: pg_replication_slots is visible to every user. MySQL and MariaDB: SHOW BINARY LOGS needs REPLICATION CLIENT,
which a connector's user has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from connectors.connectors import DEFAULT_PORTS, Connector
from lakehouse.contracts.topics import DatabaseServer, Source
from monitoring.readings.tls import Tls, UnreadableError, tls_of

_TIMEOUT_SECONDS = 5
_ENVIRONMENT = re.compile(r"\$\{env:([A-Za-z0-9_]+)\}")
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_BINLOG = re.compile(r"(?P<base>.+)\.(?P<number>\d+)")
Ask = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Slot:
    """A replication slot. `lag_bytes`: of WAL that the connector has not confirmed; `kept_bytes`: that is kept for it.

    `safe_bytes`: until the slot loses WAL; None without a limit. `wal_rate`: bytes of WAL a second, on average.
    """

    name: str
    exists: bool
    active: bool = False
    lag_bytes: int = 0
    kept_bytes: int = 0
    wal_status: str = ""
    safe_bytes: int | None = None
    wal_rate: float | None = None

    @property
    def lost_in_seconds(self) -> float | None:
        """Until the slot is invalidated, at the average rate; None without a limit."""
        if self.safe_bytes is None or not self.wal_rate:
            return None
        return max(self.safe_bytes, 0) / self.wal_rate


@dataclass(frozen=True)
class Binlog:
    """The binlog, and where the connector is in it: `file` None where Kafka Connect has no offset of it.

    `has_file`: whether the server still has the connector's file. `behind_bytes`: from there to the end.
    `expire_seconds`: after which the server removes a file; None: never. `connector_ts`: of its last event (epoch
    seconds).
    """

    files: tuple[str, ...]
    file: str | None
    has_file: bool
    behind_bytes: int
    expire_seconds: int | None
    connector_ts: int | None

    def lost_in_seconds(self, *, now: float) -> float | None:
        """Until the file of the connector's position expires; None where it reads the last file, or none expires."""
        if self.expire_seconds is None or self.connector_ts is None or self.file == self.files[-1]:
            return None
        return self.connector_ts + self.expire_seconds - now


@dataclass(frozen=True)
class Database:
    """What a connector's database says. `trouble`: it did not answer. `unasked`: why nobody asked it.

    `settings`: by the server's names.

    `identities`: of PostgreSQL's tables the replica identity (d default, f full, i index, n nothing). `outbox`: the
    columns of the outbox table, by name, with their types.
    """

    connector: str
    server: str
    trouble: str = ""
    unasked: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    slot: Slot | None = None
    binlog: Binlog | None = None
    identities: Mapping[str, str] = field(default_factory=dict)
    outbox: Mapping[str, str] = field(default_factory=dict)


def database_of(connector: Connector, sources: Iterable[Source], *, offset: Mapping[str, Any] | None) -> Database:
    """What the connector's database says now. `sources` name the servers that may be asked. `offset`: the connector's,
    as Kafka Connect has it.
    """
    name, server = connector.name, connector.server
    try:
        with connected(connector, server_of(connector, sources)) as ask:
            if connector.database == "postgresql":
                return _postgresql(connector, ask)
            return _mysql(connector, ask, offset or {})
    except (UnaskedError, UnreadableError) as why:
        return Database(name, server, unasked=str(why))
    except Exception as error:  # each driver has errors of its own; their texts may quote what was sent
        return Database(
            name,
            server,
            trouble=f"{server} does not answer as {connector.get('database.user')} ({type(error).__name__}).",
        )


class UnaskedError(Exception):
    """Why the database of a connector is not asked."""


def server_of(connector: Connector, sources: Iterable[Source]) -> DatabaseServer:
    """The server that the contract names for the connector's database, with all variables that it names for it.

    Raises UnaskedError when it names none.
    """
    host, kind = connector.get("database.hostname"), connector.database
    port = connector.get("database.port", DEFAULT_PORTS[kind] if kind else "")
    if "${" in host or "${" in port:
        raise UnaskedError("The address is a reference that only the worker can resolve: the database was not asked.")
    is_address = _HOST.fullmatch(host) and _PORT.fullmatch(port)
    address = (host.lower(), int(port)) if is_address else None
    named = [server for source in sources if source.kind == kind for server in source.databases]
    found = [server for server in named if (server.host, server.port) == address]
    if found:
        variables = tuple(name for server in found for name in server.password_variables)
        return found[0].model_copy(update={"password_variables": variables})
    shown = f"{host.lower()}:{port}" if is_address else "this address"
    raise UnaskedError(
        f"No source of {kind} in bronze/topics.yaml names {shown} among its `databases`: it was not asked."
    )


def password_of(connector: Connector, server: DatabaseServer) -> str:
    """The password of the connector's user. Raises UnaskedError, which names the reference."""
    given = connector.get("database.password")
    reference = _ENVIRONMENT.fullmatch(given)
    if reference is None:
        if "${" in given:
            raise UnaskedError("The password is a reference that only the worker can resolve: not asked.")
        return given
    name = reference[1]
    if name not in server.password_variables:
        raise UnaskedError(
            f"bronze/topics.yaml does not name {name} among the `password_variables` of {server}: it was not asked."
        )
    found = os.environ.get(name)
    if not found:
        raise UnaskedError(f"The variable {name} is not set here, so the database was not asked.")
    return found


@contextmanager
def connected(connector: Connector, server: DatabaseServer, *, login: tuple[str, str] | None = None) -> Iterator[Ask]:
    """A connection to the connector's database at this server: a function that asks. It changes nothing by itself.

    `login`: another user than the connector's, and the password. Raises UnaskedError and UnreadableError.
    """
    login = login or (connector.get("database.user"), password_of(connector, server))
    tls = tls_of(connector)
    try:
        connection = _connection(connector, server, login, tls)
    except Exception as error:  # each driver has errors of its own
        if doubt := tls.doubts(error):
            raise UnreadableError(doubt) from None
        raise
    with closing(connection):

        def ask(query: str, *parameters: object) -> list[tuple[Any, ...]]:
            cursor = connection.cursor()
            cursor.execute(query, parameters)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

        yield ask


def _connection(connector: Connector, server: DatabaseServer, login: tuple[str, str], tls: Tls) -> Any:
    """A connection of the driver for the connector's database at this server."""
    user, password = login
    if connector.database == "postgresql":
        import pg8000.dbapi

        connection = pg8000.dbapi.connect(
            user,
            host=server.host,
            port=server.port,
            database=connector.get("database.dbname"),
            password=password,
            timeout=_TIMEOUT_SECONDS,
            ssl_context=False if tls.is_plain else tls.context,
        )
        connection.autocommit = True
        return connection
    import pymysql

    return pymysql.connect(
        host=server.host,
        port=server.port,
        user=user,
        password=password,
        connect_timeout=_TIMEOUT_SECONDS,
        read_timeout=_TIMEOUT_SECONDS,
        autocommit=True,
        ssl=tls.context,
        ssl_disabled=tls.is_plain,
    )


def _postgresql(connector: Connector, ask: Ask) -> Database:
    settings: dict[str, str] = dict(
        ask("SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'max_slot_wal_keep_size')")
    )
    rows = ask(
        "SELECT active, pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), "
        "pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), wal_status, safe_wal_size "
        "FROM pg_replication_slots WHERE slot_name = %s",
        connector.slot,
    )
    slot = Slot(connector.slot, exists=False)
    if rows:
        active, lag, kept, status, safe = rows[0]
        slot = Slot(
            connector.slot,
            exists=True,
            active=bool(active),
            lag_bytes=int(lag or 0),
            kept_bytes=int(kept or 0),
            wal_status=status or "",
            safe_bytes=None if safe is None else int(safe),
            wal_rate=_wal_rate(ask),
        )
    tables = [table.replace("\\", "") for table in connector.listed("table.include.list")]
    marks = ", ".join(["%s"] * len(tables)) or "NULL"
    identities = ask(
        "SELECT n.nspname || '.' || c.relname, c.relreplident::text FROM pg_class c "
        f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname IN ({marks})",
        *tables,
    )
    return Database(
        connector.name,
        connector.server,
        settings=settings,
        slot=slot,
        identities=dict(identities),
        outbox=_columns(connector, ask),
    )


def _wal_rate(ask: Ask) -> float | None:
    """Bytes of WAL a second since its statistics began; None before PostgreSQL 14, which has none."""
    if int(ask("SHOW server_version_num")[0][0]) < 140_000:
        return None
    ((size, seconds),) = ask("SELECT wal_bytes, extract(epoch FROM now() - stats_reset) FROM pg_stat_wal")
    return float(size) / float(seconds) if seconds else None


# MariaDB before 10.6 has only expire_logs_days.
_VARIABLES = (
    *("log_bin", "binlog_format", "binlog_row_image", "binlog_expire_logs_seconds", "expire_logs_days", "server_id"),
    *("gtid_mode", "binlog_row_value_options"),
)


def _mysql(connector: Connector, ask: Ask, offset: Mapping[str, Any]) -> Database:
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    settings: dict[str, str] = dict(ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    logs = [(str(row[0]), int(row[1])) for row in ask("SHOW BINARY LOGS")]
    files = tuple(name for name, _size in logs)
    file, position = offset.get("file"), int(offset.get("pos") or 0)
    at = None if file is None else _binlog_file(str(file))
    behind = sum(size for name, size in logs if at is not None and _is_from(name, at)) - position
    seconds = int(settings.get("binlog_expire_logs_seconds") or 0)
    expire = seconds or int(float(settings.get("expire_logs_days") or 0) * 86_400)
    binlog = Binlog(
        files,
        file,
        has_file=file is None or file in files,
        behind_bytes=max(behind, 0) if file in files else 0,
        expire_seconds=expire or None,
        connector_ts=offset.get("ts_sec"),
    )
    return Database(connector.name, connector.server, settings=settings, binlog=binlog, outbox=_columns(connector, ask))


def _is_from(name: str, at: tuple[str, int]) -> bool:
    """Whether a binlog file is this one or a later one of its name: .1000000 comes after .999999."""
    one = _binlog_file(name)
    return one is not None and one[0] == at[0] and one[1] >= at[1]


def _binlog_file(name: str) -> tuple[str, int] | None:
    """The name of a binlog's files and the number of this one; None for another name.

    Numbers have six digits at least, so they are no text: `.999999` is followed by `.1000000`.
    """
    match = _BINLOG.fullmatch(name)
    return None if match is None else (match["base"], int(match["number"]))


def _columns(connector: Connector, ask: Ask) -> dict[str, str]:
    """The columns of the outbox table that the connector routes; none of a connector of tables."""
    tables: Sequence[str] = connector.listed("table.include.list") if connector.routes_outbox else ()
    if len(tables) != 1:
        return {}
    schema, _, table = tables[0].replace("\\", "").partition(".")
    rows = ask(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
        schema,
        table,
    )
    return {str(name).lower(): str(kind).lower() for name, kind in rows}
