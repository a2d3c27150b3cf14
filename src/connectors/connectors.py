"""A connector as Kafka Connect is given it, and what its configuration says once defaults are filled in.

Defaults are those that the connectors of Debezium 3.6.1 and MariaDB's of 3.5.0 declare themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from connectors.findings import Part

Database = Literal["postgresql", "mysql", "mariadb"]

CLASSES: Mapping[str, Database] = {
    "io.debezium.connector.postgresql.PostgresConnector": "postgresql",
    "io.debezium.connector.mysql.MySqlConnector": "mysql",
    "io.debezium.connector.mariadb.MariaDbConnector": "mariadb",
}
EVENT_ROUTER = "io.debezium.transforms.outbox.EventRouter"
FLATTENER = "io.debezium.transforms.ExtractNewRecordState"
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
DEFAULT_PORTS: Mapping[Database, str] = {"postgresql": "5432", "mysql": "3306", "mariadb": "3306"}
# `${provider:...}`: Kafka Connect's worker puts the value in (config.providers), so it is in no file of ours.
_REFERENCE = re.compile(r"\$\{[A-Za-z][A-Za-z0-9_-]*:[^}]+\}")
_SECRET = re.compile(r"(password|passphrase|secret|token|credential|jaas|user\.info|api\.?key)", re.IGNORECASE)


class Connector(Part):
    """One connector: its name, its options, and where they were read. Holds secrets as they are; shows none."""

    name: str
    config: dict[str, str]
    file: str
    lines: dict[str, int] = Field(default_factory=dict)
    """Of a file, the line of every option."""

    def __repr__(self) -> str:
        return f"Connector({self.name!r}, {self.file!r})"

    __str__ = __repr__

    def get(self, key: str, default: str = "") -> str:
        """The option's value, without blanks around it; the default where it is absent."""
        return self.config.get(key, default).strip()

    def is_on(self, key: str, *, default: bool) -> bool:
        """Whether a boolean option is true."""
        return self.get(key, str(default)).lower() == "true"

    def listed(self, key: str) -> tuple[str, ...]:
        """The parts of an option that is a list."""
        return tuple(part.strip() for part in self.get(key).split(",") if part.strip())

    @property
    def database(self) -> Database | None:
        """Whose changes a Debezium connector reads; None for every other connector."""
        return CLASSES.get(self.get("connector.class"))

    @property
    def reads_binlog(self) -> bool:
        """Whether it replicates as a server of MySQL's or MariaDB's kind."""
        return self.database in {"mysql", "mariadb"}

    @property
    def server(self) -> str:
        """Where the database answers, host:port."""
        port = DEFAULT_PORTS[self.database] if self.database else ""
        return f"{self.get('database.hostname').lower()}:{self.get('database.port', port)}"

    @property
    def slot(self) -> str:
        """PostgreSQL's replication slot."""
        return self.get("slot.name", "debezium")

    def transforms(self, kind: str) -> tuple[str, ...]:
        """The prefixes (`transforms.NAME.`) of its transforms of a class."""
        prefixes = [f"transforms.{name}." for name in self.listed("transforms")]
        return tuple(prefix for prefix in prefixes if self.get(f"{prefix}type") == kind)

    @property
    def routes_outbox(self) -> bool:
        """Whether the EventRouter makes its records."""
        return bool(self.transforms(EVENT_ROUTER))

    @property
    def tells_truncates(self) -> bool:
        """Whether TRUNCATE comes as an event: not by default."""
        return "t" not in (self.listed("skipped.operations") if "skipped.operations" in self.config else ("t",))

    @property
    def table_topics(self) -> tuple[str, ...]:
        """The topics of the tables that it names one by one; empty where it gives patterns, or routes an outbox."""
        tables = self.listed("table.include.list")
        if self.routes_outbox or not all(re.fullmatch(r"[\w$-]+(\\?\.[\w$-]+)+", table) for table in tables):
            return ()
        return tuple(f"{self.get('topic.prefix')}.{table.replace(chr(92), '')}" for table in tables)

    @property
    def routed_topics(self) -> tuple[str, ...]:
        """The names of the outbox's topics, as regular expressions that match them whole."""
        patterns = []
        for prefix in self.transforms(EVENT_ROUTER):
            replacement = self.get(f"{prefix}route.topic.replacement", "outbox.event.${routedByValue}")
            parts = re.split(r"\$\{\w+\}|\$\d", replacement)
            patterns.append("(.+)".join(re.escape(part) for part in parts))
        return tuple(patterns)


def is_secret(key: str) -> bool:
    """Whether an option of this name may hold a secret: its value is shown nowhere."""
    return bool(_SECRET.search(key)) and not key.endswith((".mode", ".enabled", ".enable"))


def has_reference(value: str) -> bool:
    """Whether the value, or a part of it, comes from one of the worker's config providers."""
    return bool(_REFERENCE.search(value)) and "${var." not in value


def is_reference(value: str) -> bool:
    """Whether the value is nothing but a reference to a config provider."""
    return bool(_REFERENCE.fullmatch(value.strip()))
