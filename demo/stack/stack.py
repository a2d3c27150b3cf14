"""The whole stack: three databases, a broker, a schema registry and Kafka Connect, started together and gone together.

with live_stack() as stack:
    stack.postgresql.execute("CREATE TABLE …")
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.broker import Broker, restartable_broker
from demo.stack.database import Database
from demo.stack.kafka_connect import KafkaConnect
from demo.stack.mysql import MariaDB, MySQL
from demo.stack.postgresql import PostgreSQL
from demo.stack.registry import SchemaRegistry
from demo.stack.unpacked import plugin_folders, registry_folder


@dataclass(frozen=True)
class Stack:
    """The servers, all running."""

    postgresql: PostgreSQL
    mysql: MySQL
    mariadb: MariaDB
    broker: Broker
    registry: SchemaRegistry
    connect: KafkaConnect

    @property
    def bootstrap_servers(self) -> str:
        """Where the broker answers."""
        return self.broker.bootstrap_servers

    @property
    def databases(self) -> tuple[Database, ...]:
        """The three databases."""
        return self.postgresql, self.mysql, self.mariadb


@contextmanager
def live_stack() -> Iterator[Stack]:
    """Every server, empty and answering; when the block is left in any way, all have stopped and nothing stays.

    Enter it in the main thread. Raises InstallationError when something is not installed or does not start.
    """
    with ExitStack() as running:
        home = Path(running.enter_context(TemporaryDirectory(prefix="stack-")))
        home.chmod(0o711)  # PostgreSQL's own user passes through
        postgresql, mysql, mariadb = (
            PostgreSQL(home / "postgresql"),
            MySQL(home / "mysql"),
            MariaDB(home / "mariadb"),
        )
        databases: tuple[Database, ...] = (postgresql, mysql, mariadb)
        with ThreadPoolExecutor() as threads:
            unpacked = threads.submit(_unpack)
            prepared = [threads.submit(database.prepare) for database in databases]
            broker = running.enter_context(restartable_broker(home / "kafka"))
            unpacked.result()
            for work in prepared:
                work.result()
        for database in databases:
            running.callback(database.stop)
            database.start()
        registry = SchemaRegistry(home / "registry")
        running.callback(registry.stop)
        registry.start()
        secrets = {database.password_variable: database.replication_password for database in databases}
        connect = KafkaConnect(home / "connect", broker.bootstrap_servers, secrets)
        running.callback(connect.stop)
        connect.start()
        for database in databases:
            database.wait()
        registry.wait()
        connect.wait()
        yield Stack(postgresql, mysql, mariadb, broker, registry, connect)


def _unpack() -> None:
    plugin_folders()
    registry_folder()
