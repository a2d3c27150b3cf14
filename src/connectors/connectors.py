"""A connector as Kafka Connect is given it, and what its configuration says once defaults are filled in.

Defaults are those that the connectors of Debezium 3.6.1 and MariaDB's of 3.5.0 declare themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from connectors.checking.findings import Part
from connectors.routes import ANY, REGEX_ROUTER, Route, default_regex, default_topic, quoted, routed, sanitized

Database = Literal["postgresql", "mysql", "mariadb"]

CLASSES: Mapping[str, Database] = {
    "io.debezium.connector.postgresql.PostgresConnector": "postgresql",
    "io.debezium.connector.mysql.MySqlConnector": "mysql",
    "io.debezium.connector.mariadb.MariaDbConnector": "mariadb",
}
EVENT_ROUTER = "io.debezium.transforms.outbox.EventRouter"
FLATTENER = "io.debezium.transforms.ExtractNewRecordState"
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
SIMPLE_HEADERS = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
# Those of Kafka Connect for single numbers, and for bytes.
BINARY_CONVERTERS = "org.apache.kafka.connect.converters."
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
    def routes(self) -> tuple[Route, ...]:
        """Its RegexRouters, in their order; every record of a table goes through them."""
        prefixes = self.transforms(REGEX_ROUTER)
        return tuple(Route(self.get(f"{prefix}regex"), self.get(f"{prefix}replacement")) for prefix in prefixes)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it names one by one, `database.table`; empty where it gives patterns."""
        tables = self.listed("table.include.list")
        if not all(re.fullmatch(r"[\w$-]+(\\?\.[\w$-]+)+", table) for table in tables):
            return ()
        return tuple(table.replace("\\", "") for table in tables)

    @property
    def table_topics(self) -> tuple[str, ...]:
        """The topics of the tables that it names one by one; empty where it gives patterns, or routes an outbox."""
        return () if self.routes_outbox else tuple(self.topic_of(table) for table in self.tables)

    def topic_of(self, table: str) -> str:
        """The topic of a table, `database.table`, of PostgreSQL `schema.table`."""
        return routed(default_topic(self.get("topic.prefix"), table), self.routes)

    @property
    def other_topics(self) -> Mapping[str, str]:
        """The topics that it writes beside those of its tables, and what each is for."""
        prefix = self.get("topic.prefix")
        topics = {f"{self.get('topic.heartbeat.prefix', '__debezium-heartbeat')}.{prefix}": "heartbeats"}
        if self.is_on("provide.transaction.metadata", default=False):
            topics[f"{prefix}.{self.get('topic.transaction', 'transaction')}"] = "transactions"
        if self.reads_binlog:
            topics |= {prefix: "schema changes", self.get("schema.history.internal.kafka.topic"): "schema history"}
        return topics

    def may_write(self, topic: str, *, surely: bool = False) -> bool:
        """Whether a topic of this name gets rows of its tables.

        It is certain of tables that the connector names one by one. Of others the name decides: it is one that a table
        would have. A route to `{table}` alone leaves no sign of the connector: every name may then be one, and none is
        `surely`.
        """
        named = self.table_topics
        if named:
            return topic in named
        prefix, routes = self.get("topic.prefix"), self.routes
        if topic in self.other_topics:
            return False
        if topic.startswith(f"{prefix}.") and (not routes or re.fullmatch(default_regex(prefix), topic)):
            return routed(topic, routes) == topic
        if topic.startswith("__"):  # of Kafka and of heartbeats
            return False
        for number, route in enumerate(routes, start=1):
            # Of a regex of Debezium's names it is known what the database can be.
            groups = {"1": self._databases} if route.regex.endswith(default_regex(prefix)) else {}
            if surely and not route.leaves_a_sign(groups):
                continue
            if re.fullmatch(route.image(groups), topic) and routed(topic, routes[number:]) == topic:
                return True
        return False

    @property
    def _databases(self) -> str:
        """A regex of the databases, of PostgreSQL the schemas, that it reads; of any where that is not known."""
        listed = self.listed("database.include.list" if self.reads_binlog else "schema.include.list")
        if not listed or not all(re.fullmatch(r"[\w-]+", name) for name in listed):
            return ANY
        return f"(?i:{'|'.join(quoted(sanitized(name)) for name in listed)})"

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


def secrets_of(config: Mapping[str, str]) -> list[str]:
    """The values of options that may hold a secret, but of two characters, which any text has, and of references."""
    return [value for key, value in config.items() if is_secret(key) and len(value) > 2 and not is_reference(value)]
