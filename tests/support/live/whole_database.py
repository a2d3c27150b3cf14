"""A database of MySQL that one connector reads whole: the connector, its rows as text, and those of silver."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from demo.stack.database import Database
from demo.stack.stack import Stack
from lakehouse.contracts.parts.names import column_name
from lakehouse.delta.address import Address
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.offsets import Partition, latest
from monitoring.readings.tables import DeltaFiles
from tests.support.final_state import length_of_time
from tests.support.live.command import ROOT, Command
from tests.support.live.connectors import Config
from tests.support.live.told import until

PACKAGED = "mysql-database-connector"
CONNECT = Path("resources/connect")
Texts = Sequence[Mapping[str, str | None]]


@dataclass(frozen=True)
class WholeDatabase:
    """A connector that is made from the packaged one. `topics`: as its file has them; `options`: in place of those."""

    name: str
    prefix: str
    number: int
    topics: str | Mapping[str, str] | None = None
    options: Config = field(default_factory=dict)

    def file(self) -> Mapping[str, Any]:
        """What stands in its file."""
        packaged = json.loads((ROOT / CONNECT / f"{PACKAGED}.json").read_text(encoding="utf-8"))
        own = {
            "topic.prefix": self.prefix,
            "database.server.id": str(195_000 + self.number),
            "schema.history.internal.kafka.topic": f"schema-changes.{self.prefix}",
            "topic.creation.schemachanges.include": self.prefix,
        }
        topics = {} if self.topics is None else {"topics": self.topics}
        return {"name": self.name, **topics, "config": {**packaged["config"], **own, **self.options}}


@dataclass(frozen=True)
class Connectors:
    """Connectors of a bundle of their own."""

    command: Command
    bundle: Path
    names: Sequence[str]
    variables: Sequence[str]

    def deploy(self) -> None:
        """Deploy them, as a person does."""
        done = self.command("connect", "deploy", *self.names, "--bundle", str(self.bundle), *self.variables)
        assert done.code == 0, done.out + done.err

    def delete(self) -> None:
        """Take them off the cluster."""
        for name in self.names:
            self.command("connect", "delete", name, "--bundle", str(self.bundle), "--yes")


def connectors(
    command: Command, folder: Path, database: str, files: Iterable[WholeDatabase], **variables: str
) -> Connectors:
    """The connectors' files, in a bundle in this folder; they read this database. `variables`: more of the bundle."""
    (folder / CONNECT).mkdir(parents=True)
    for name in ("bundle.yaml", f"{CONNECT}/variables.yaml"):
        shutil.copy(ROOT / name, folder / name)
    names = []
    for one in files:
        (folder / CONNECT / f"{one.name}.json").write_text(json.dumps(one.file()), encoding="utf-8")
        names.append(one.name)
    given = {"mysql_database": database, **variables}
    options = [part for name, value in given.items() for part in ("--var", f"{name}={value}")]
    return Connectors(command, folder / "bundle.yaml", names, options)


def create(database: Database, name: str, *statements: str) -> None:
    """A database that the connectors may read, made by these statements, each with `{database}` for its name."""
    escaped = name.replace("_", r"\_")
    database.execute(
        f"CREATE DATABASE {name}",
        f"GRANT SELECT, LOCK TABLES ON `{escaped}`.* TO 'debezium_user'@'%'",
        *[one.replace("{database}", name) for one in statements],
    )


def records_of(stack: Stack, is_of: Callable[[str], bool]) -> int:
    """How many records the topics of these names ever had."""
    connection = KafkaConnection(bootstrap_servers=stack.bootstrap_servers)
    known = partitions(connection)
    places = [Partition(topic, number) for topic in known if is_of(topic) for number in known[topic]]
    return sum(latest(connection, places).values()) if places else 0


def wait_for_records(stack: Stack, is_of: Callable[[str], bool], count: int, seconds: float = 120.0) -> None:
    """Wait until the topics of these names have so many records."""
    until(lambda: records_of(stack, is_of) >= count, seconds)


def silver_texts(warehouse: Path, table: str) -> Texts:
    """The live rows of a silver table, each value as text, in order. Read without Spark."""
    rows = tables(warehouse).rows(f"SELECT * FROM {{{table}}} WHERE NOT _is_deleted")
    return in_order({name: value for name, value in row.items() if not name.startswith("_")} for row in rows)


def gold_texts(warehouse: Path, table: str) -> Texts:
    """The rows of a table of gold, in the same way."""
    return in_order(tables(warehouse).rows(f"SELECT * FROM {{{table}}}"))


def tables(warehouse: Path) -> DeltaFiles:
    """The tables of a warehouse as they are now."""
    return DeltaFiles(Address(str(warehouse), f"{warehouse}/_checkpoints"))


def source_texts(database: Database, query: str) -> Texts:
    """The rows of a query to the source, in the same way; a column has the name that silver's has."""
    rows = database.rows(query)
    return in_order(
        {column_name(name, number=number): value for number, (name, value) in enumerate(row.items(), 1)} for row in rows
    )


def in_order(rows: Iterable[Mapping[str, Any]]) -> Texts:
    """The rows with every value as text, in an order that follows from them."""
    texts = [{name: None if value is None else _text(value) for name, value in row.items()} for row in rows]
    return sorted(texts, key=lambda row: json.dumps(row, sort_keys=True))


def _text(value: Any) -> str:
    """As silver's STRING has what Spark has no type for: bytes in base64, a length of time in hours."""
    match value:
        case bool():  # the source has it as BIT(1), which is a byte
            return _text(bytes([value]))
        case bytes():
            return b64encode(value).decode()
        case datetime():
            return value.replace(tzinfo=None).isoformat(sep=" ")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case set():
            return ",".join(sorted(value))
        case timedelta():
            return length_of_time(str(value))
        case str() if value.startswith("{"):  # JSON has other spaces in a snapshot than in the binary log
            return json.dumps(json.loads(value))
        case _:
            return str(value)
