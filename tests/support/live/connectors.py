"""The packaged table connectors, made to follow the stories' tables: JSON with and without schemas, and Avro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from demo.stack.registry import SchemaRegistry, avro_options
from tests.support.live.dialects import MARIADB, MYSQL, POSTGRESQL, SIGNALS, Dialect

PUBLICATION = "stories"
Config = Mapping[str, str]


@dataclass(frozen=True)
class Variant:
    """A connector: its name is its logical name, `live_<source>_<way>`. `packaged` names what it is made from."""

    source: str
    way: str
    packaged: str
    dialect: Dialect
    number: int

    @property
    def name(self) -> str:
        """Its name, its logical name and its slot's."""
        return f"{self.source}_{self.way}"

    def topic(self, table: str) -> str:
        """The topic of a table."""
        return f"{self.name}.{self.dialect.namespace}.{table}"

    def config(self, packaged: Config, registry: SchemaRegistry) -> Config:
        """The packaged configuration with what makes it this one. `registry` has the schemas of Avro."""
        with_schemas = str(self.way == "schemas").lower()
        own = {
            "topic.prefix": self.name,
            "table.include.list": rf"{self.dialect.namespace}\..*",
            "signal.data.collection": f"{self.dialect.namespace}.{SIGNALS}",
            "incremental.snapshot.chunk.size": "500",
            "provide.transaction.metadata": str(self.way != "plain").lower(),
            **(avro_options(registry) if self.way == "avro" else _json(with_schemas)),
        }
        if self.dialect.kind == "postgresql":
            return {**packaged, **own, "slot.name": self.name, "publication.name": PUBLICATION}
        history = {"schema.history.internal.kafka.topic": f"schema-changes.{self.name}"}
        return {**packaged, **own, **history, "database.server.id": str(190_000 + self.number)}


def _json(with_schemas: str) -> Config:
    return {f"{part}.converter.schemas.enable": with_schemas for part in ("key", "value")}


VARIANTS = tuple(
    Variant(f"live_{name}", way, packaged, dialect, number)
    for number, (name, way, packaged, dialect) in enumerate(
        (
            ("postgres", "plain", "postgres-tables-connector", POSTGRESQL),
            ("postgres", "schemas", "postgres-tables-connector", POSTGRESQL),
            ("postgres", "avro", "postgres-tables-connector", POSTGRESQL),
            ("mysql", "plain", "mysql-tables-connector", MYSQL),
            ("mysql", "schemas", "mysql-tables-connector", MYSQL),
            ("mysql", "avro", "mysql-tables-connector", MYSQL),
            ("mariadb", "plain", "mariadb-tables-connector", MARIADB),
        )
    )
)
