"""Where a job finds its broker and its tables: the settings that every job has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse.delta.address import SCHEMAS, Address
from lakehouse.errors import SettingsError
from lakehouse.kafka.connection import KafkaConnection, load_connection
from lakehouse.kafka.registry import SchemaRegistry

TARGETS = ("local", "dev", "staging", "prod")


@dataclass(frozen=True)
class Settings:
    """The parameters of a job, after the command line and the environment were read."""

    warehouse: str
    checkpoints: str
    target: str = "local"
    bootstrap_servers: str | None = None
    # The file that says how Kafka is reached; None: without security.
    kafka_config: Path | None = None
    # Of the workspace's secrets that the file names without a scope.
    secret_scope: str | None = None
    # The most records that bronze takes into one batch; None: all there are.
    max_offsets_per_trigger: int | None = None
    # What schemas are called, where not as in SCHEMAS.
    schemas: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        """Where the tables and checkpoints are."""
        return Address(self.warehouse, self.checkpoints, self.schemas)

    def kafka(self) -> KafkaConnection:
        """How Kafka is reached. Raises SettingsError when no broker was given, and for every mistake in the file."""
        return connection(
            bootstrap_servers=self.bootstrap_servers, kafka_config=self.kafka_config, secret_scope=self.secret_scope
        )

    def schema_registry(self) -> SchemaRegistry | None:
        """How the schema registry is reached; None where the file names none. Raises SettingsError for mistakes."""
        if self.kafka_config is None:
            return None
        # Silver asks no broker: one that the file does not name is not missed.
        servers = self.bootstrap_servers or "none:0"
        return load_connection(
            self.kafka_config, bootstrap_servers=servers, secret_scope=self.secret_scope
        ).schema_registry


def connection(
    *, bootstrap_servers: str | None, kafka_config: Path | None, secret_scope: str | None = None
) -> KafkaConnection:
    """How Kafka is reached. Raises SettingsError when no broker was given, and for every mistake in the file."""
    if kafka_config is not None:
        return load_connection(kafka_config, bootstrap_servers=bootstrap_servers, secret_scope=secret_scope)
    if not bootstrap_servers:
        raise SettingsError(
            "No Kafka broker was given.",
            hint="Pass --bootstrap-servers HOST:PORT or --kafka-config FILE, or set LAKEHOUSE_BOOTSTRAP_SERVERS.",
        )
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


def settings(
    *,
    warehouse: str | None,
    checkpoints: str | None = None,
    target: str = "local",
    bootstrap_servers: str | None = None,
    kafka_config: Path | None = None,
    secret_scope: str | None = None,
    max_offsets_per_trigger: int | None = None,
    schemas: str | None = None,
) -> Settings:
    """Settings with every default filled in. `schemas`: SCHEMA=NAME[,SCHEMA=NAME...].

    Raises SettingsError when there is no warehouse, an unknown target, a catalog without a place for checkpoints, or
    a name that is none.
    """
    if not warehouse:
        raise SettingsError(
            "No warehouse was given.", hint="Pass --warehouse PATH (or a catalog's name) or set LAKEHOUSE_WAREHOUSE."
        )
    if target not in TARGETS:
        raise SettingsError(f"There is no target {target!r}.", hint=f"Targets are: {', '.join(TARGETS)}.")
    location = _as_hadoop_has_it(warehouse)
    if "/" not in location and location.startswith("."):
        location = f"./{location}"
    if "/" not in location and not checkpoints:
        raise SettingsError(
            f"The warehouse {location!r} is a catalog, and checkpoints are files.",
            hint="Pass --checkpoints PATH too, for example /Volumes/CATALOG/ops/checkpoints. A folder is ./NAME.",
        )
    if "/" not in location and not _NAME.fullmatch(location):
        raise SettingsError(
            f"{location!r} is no name of a catalog.",
            hint="Give letters, digits and underscores, or a folder: ./NAME.",
        )
    return Settings(
        warehouse=location,
        checkpoints=_as_hadoop_has_it(checkpoints or f"{location}/_checkpoints"),
        target=target,
        bootstrap_servers=bootstrap_servers,
        kafka_config=kafka_config,
        secret_scope=secret_scope,
        max_offsets_per_trigger=max_offsets_per_trigger,
        schemas=_schemas(schemas or ""),
    )


_NAME = re.compile(r"\w+")


def _schemas(text: str) -> Mapping[str, str]:
    """The schemas' names by what the code calls them. Raises SettingsError for others, and for two of one name."""
    named: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        schema, _, name = pair.strip().partition("=")
        if schema not in SCHEMAS or schema in named or not _NAME.fullmatch(name):
            raise SettingsError(
                f"--schemas has a part {pair.strip()!r} that is no SCHEMA=NAME, or names a schema again.",
                hint=f"Schemas are: {', '.join(SCHEMAS)}. A name has letters, digits and underscores.",
            )
        named[schema] = name
    names = [named.get(schema, schema) for schema in SCHEMAS]
    if len(set(names)) < len(names):
        raise SettingsError(
            "--schemas gives two schemas one name.", hint=f"Each needs its own; they would be: {', '.join(names)}."
        )
    return named


def _as_hadoop_has_it(uri: str) -> str:
    """The path or URI without slashes at its end, and `file:///data` as `file:/data`.

    Delta takes the two for different paths, and creates no table where it was given one in both forms.
    """
    return re.sub(r"^([\w+.-]+):///+", r"\1:/", uri).rstrip("/")
