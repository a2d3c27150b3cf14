"""PostgreSQL as Debian packages it, set up for logical decoding."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pg8000.dbapi

from demo.processes import HOST, Server
from demo.stack.database import RESOURCES, Database, run_tool
from lakehouse.errors import InstallationError

# As root the server refuses to run.
SERVICE_USER = "postgres"
SETTINGS_FILE = RESOURCES / "postgresql" / "postgresql.conf"
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "fsync": "off",  # the data lives as long as the process
}


class PostgreSQL(Database):
    """The database `ecommerce`, and its owner `orders_owner`."""

    name = "PostgreSQL"
    in_bundle = "postgres"
    folder = "postgresql"
    files = ("1_tables.sql", "2_user.sql", "3_publications.sql", "4_remove_old_outbox_rows.sql")
    database = "ecommerce"
    owner = "orders_owner"

    def prepare(self) -> None:
        """Make the cluster."""
        self.home.mkdir()
        secret = self.home / "password"
        secret.write_text(self.password, encoding="utf-8")
        if _user():
            shutil.chown(self.home, SERVICE_USER)
            shutil.chown(secret, SERVICE_USER)
        options = [f"--username={self.owner}", f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync"]
        options += ["--encoding=UTF8", "--locale=C.UTF-8", f"--pgdata={self.home / 'data'}"]
        run_tool([str(_programs() / "initdb"), *options], log=self.home / "initdb.log", user=_user())
        with (self.home / "data" / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(SETTINGS_FILE.read_text(encoding="utf-8"))

    def launch(self) -> Server:
        """Its process, as another user when this one is root. It ends on INT: TERM waits for its clients."""
        settings = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        command = [str(_programs() / "postgres"), "-D", str(self.home / "data"), "-p", str(self.port), *settings]
        return Server(command, log=self.log, user=_user(), stops_on=signal.SIGINT)

    def run_file(self, name: str) -> None:
        """Run a file as its head says: the password is DEBEZIUM_POSTGRES_PASSWORD of psql's environment."""
        where = [f"--host={HOST}", f"--port={self.port}", f"--username={self.owner}", f"--dbname={self.database}"]
        file = str(RESOURCES / self.folder / name)
        run_tool(
            [str(_programs() / "psql"), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", *where, "-f", file],
            log=self.home / f"{name}.log",
            environment={"PGPASSWORD": self.password, self.password_variable: self.replication_password},
        )

    def wait(self) -> None:
        """Wait until it answers, and make its database, unless it has it."""
        super().wait()
        connection = self.connect(database="postgres")
        cursor = connection.cursor()
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (self.database,))
        if not cursor.fetchall():
            cursor.execute(f"CREATE DATABASE {self.database}")
        connection.close()

    def connect(self, *, autocommit: bool = True, **options: Any) -> Any:
        """A connection of the owner to its database; of another `user` with its `password`; to another `database`."""
        who = {"user": self.owner, "password": self.password, "database": self.database, **options}
        connection = pg8000.dbapi.connect(host=HOST, port=self.port, timeout=60, **who)
        connection.autocommit = autocommit
        return connection

    def _is_there(self) -> bool:
        try:
            self.connect(database="postgres").close()
        except (pg8000.dbapi.Error, OSError):
            return False
        return True


def _user() -> str:
    return SERVICE_USER if os.geteuid() == 0 else ""


def _programs() -> Path:
    """Where Debian puts the programs of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda file: int(file.parts[-3]))
    if not found:
        raise InstallationError("PostgreSQL is not installed.", hint="Run `make setup-live`.")
    return found[-1].parent
