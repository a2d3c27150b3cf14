"""Where a job finds its broker and its tables: the settings that every job has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lakehouse.errors import SettingsError
from lakehouse.kafka_client import KafkaConnection, load_connection

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
    # The most records that bronze takes into one batch; None: all there are.
    max_offsets_per_trigger: int | None = None

    def kafka(self) -> KafkaConnection:
        """How Kafka is reached. Raises SettingsError when no broker was given, and for every mistake in the file."""
        return connection(bootstrap_servers=self.bootstrap_servers, kafka_config=self.kafka_config)


def connection(*, bootstrap_servers: str | None, kafka_config: Path | None) -> KafkaConnection:
    """How Kafka is reached. Raises SettingsError when no broker was given, and for every mistake in the file."""
    if kafka_config is not None:
        return load_connection(kafka_config, bootstrap_servers=bootstrap_servers)
    if not bootstrap_servers:
        raise SettingsError(
            "No Kafka broker was given.",
            remedy="Pass --bootstrap-servers HOST:PORT or --kafka-config FILE, or set LAKEHOUSE_BOOTSTRAP_SERVERS.",
        )
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


def settings(
    *,
    warehouse: str | None,
    checkpoints: str | None = None,
    target: str = "local",
    bootstrap_servers: str | None = None,
    kafka_config: Path | None = None,
    max_offsets_per_trigger: int | None = None,
) -> Settings:
    """Settings with every default filled in.

    Raises SettingsError when there is no warehouse, an unknown target, or a catalog without a place for checkpoints.
    """
    if not warehouse:
        raise SettingsError(
            "No warehouse was given.", remedy="Pass --warehouse PATH (or a catalog's name) or set LAKEHOUSE_WAREHOUSE."
        )
    if target not in TARGETS:
        raise SettingsError(f"There is no target {target!r}.", remedy=f"Targets are: {', '.join(TARGETS)}.")
    location = _as_hadoop_has_it(warehouse)
    if "/" not in location and location.startswith("."):
        location = f"./{location}"
    if "/" not in location and not checkpoints:
        raise SettingsError(
            f"The warehouse {location!r} is a catalog, and checkpoints are files.",
            remedy="Pass --checkpoints PATH too, for example /Volumes/CATALOG/ops/checkpoints. A folder is ./NAME.",
        )
    return Settings(
        warehouse=location,
        checkpoints=_as_hadoop_has_it(checkpoints or f"{location}/_checkpoints"),
        target=target,
        bootstrap_servers=bootstrap_servers,
        kafka_config=kafka_config,
        max_offsets_per_trigger=max_offsets_per_trigger,
    )


def _as_hadoop_has_it(place: str) -> str:
    """The path or URI without slashes at its end, and `file:///data` as `file:/data`.

    Delta takes the two for different places, and creates no table where one came to it in both forms.
    """
    return re.sub(r"^([\w+.-]+):///+", r"\1:/", place).rstrip("/")
