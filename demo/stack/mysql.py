"""MySQL 8 from its pinned archive, and MariaDB as Debian packages it, both with a binary log of rows."""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path
from typing import Any

import pymysql

from demo.processes import HOST, Server
from demo.stack.database import RESOURCES, Database, run_tool
from demo.stack.unpacked import mysql_folder
from lakehouse.errors import InstallationError


class _BinaryLog(Database):
    """What the two have in common. The database is `ecommerce`, its administrator `orders_owner`."""

    database = "ecommerce"
    owner = "orders_owner"

    def settings(self) -> dict[str, str]:
        """The options of its process that the file has not."""
        return {
            "datadir": str(self.home / "data"),
            "bind_address": HOST,
            "port": str(self.port),
            "socket": str(self.home / "server.sock"),
            "pid_file": str(self.home / "server.pid"),
            "tmpdir": str(self.home),
            "init_file": str(self.home / "init.sql"),
            "character_set_server": "utf8mb4",
            "default_time_zone": "+00:00",
            "innodb_flush_log_at_trx_commit": "0",  # the data lives as long as the process
            "sync_binlog": "0",
        }

    def connect(self, *, autocommit: bool = True, **options: Any) -> Any:
        """A connection of the administrator, or of another `user`, with `password`."""
        who = {"user": self.owner, "password": self.password, "database": self.database, **options}
        return pymysql.connect(host=HOST, port=self.port, autocommit=autocommit, charset="utf8mb4", **who)

    def run_file(self, name: str) -> None:
        """Run a file with the client that Debian packages; the password is @debezium_password in it."""
        before = f"SET @debezium_password = '{self.replication_password}';\n"
        where = [f"--host={HOST}", f"--port={self.port}", f"--user={self.owner}", "--protocol=tcp"]
        run_tool(
            [str(_program("mariadb")), "--no-defaults", *where],
            log=self.home / f"{name}.log",
            environment={"MYSQL_PWD": self.password},
            text=before + (RESOURCES / self.folder / name).read_text(encoding="utf-8"),
        )

    def _write_init(self) -> None:
        account = f"'{self.owner}'@'%'"
        statements = [
            f"CREATE DATABASE IF NOT EXISTS {self.database};",
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{self.password}';",
            f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION;",
        ]
        (self.home / "init.sql").write_text("\n".join(statements) + "\n", encoding="utf-8")

    def _own_folders(self) -> list[str]:
        """Options of what makes the data folder. A server that starts deletes the temporary tables it finds."""
        return [f"--datadir={self.home / 'data'}", f"--tmpdir={self.home}", f"--user={getpass.getuser()}"]

    def _launch(self, program: Path, **more: str) -> Server:
        options = [f"--{name}={value}" for name, value in {**self.settings(), **more}.items()]
        # What is packaged for such a server, binary log and all.
        of_file = f"--defaults-file={RESOURCES / self.folder / 'my.cnf'}"
        return Server([str(program), of_file, f"--user={getpass.getuser()}", *options], log=self.log)


class MySQL(_BinaryLog):
    """MySQL 8.0.12."""

    name = "MySQL"
    in_bundle = "mysql"
    folder = "mysql"
    files = ("1_tables_before_8_0_13.sql", "2_user.sql", "3_remove_old_outbox_rows.sql")

    def prepare(self) -> None:
        """Make the data folder."""
        self.home.mkdir()
        self._write_init()
        base = mysql_folder()
        program = str(base / "bin" / "mysqld")
        run_tool(
            [program, "--no-defaults", "--initialize-insecure", f"--basedir={base}", *self._own_folders()],
            log=self.home / "initialize.log",
        )

    def launch(self) -> Server:
        """Its process."""
        base = mysql_folder()
        return self._launch(
            base / "bin" / "mysqld",
            basedir=str(base),
            default_authentication_plugin="mysql_native_password",
            mysqlx="0",
        )


class MariaDB(_BinaryLog):
    """MariaDB of the system's package."""

    name = "MariaDB"
    in_bundle = "mariadb"
    folder = "mariadb"
    files = ("1_tables.sql", "2_user.sql", "3_remove_old_outbox_rows.sql")

    def prepare(self) -> None:
        """Make the data folder."""
        self.home.mkdir()
        self._write_init()
        how = ["--skip-test-db", "--auth-root-authentication-method=normal", "--skip-name-resolve"]
        program = str(_program("mariadb-install-db"))
        run_tool([program, "--no-defaults", *self._own_folders(), *how], log=self.home / "install.log")

    def launch(self) -> Server:
        """Its process."""
        return self._launch(_program("mariadbd"))


def _program(name: str) -> Path:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if found is None:
        raise InstallationError("MariaDB is not installed.", hint="Run `make setup-live`.")
    return Path(found)
