"""The connectors that Kafka Connect runs, each with its state and what its database says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from connectors.checking.together import data_topics
from connectors.cluster import State, state_of
from connectors.connectors import Connector
from connectors.rest import Worker
from lakehouse.contracts.topics import Source
from monitoring.readings.databases import Database, database_of
from monitoring.readings.topics import HEARTBEATS, SourceTopics


@dataclass(frozen=True)
class Running:
    """A connector as it runs: its options, its state, and what its database says, where that was asked."""

    connector: Connector
    state: State
    database: Database | None = None

    @property
    def runs(self) -> bool:
        """Whether it and all its tasks run."""
        tasks = self.state.tasks
        return self.state.state == "RUNNING" and bool(tasks) and all(task.state == "RUNNING" for task in tasks)


def running_of(worker: Worker, sources: Iterable[Source]) -> list[Running]:
    """The Debezium connectors of a cluster, and their databases side by side, where the sources name their servers.

    Raises ConnectError.
    """
    named = tuple(sources)
    found = []
    for name, of_connector in sorted(worker.running().items()):
        config = {key: str(value) for key, value in ((of_connector.get("info") or {}).get("config") or {}).items()}
        connector = Connector(name=name, config=config, file=worker.url)
        if connector.database is not None:
            state = state_of(of_connector.get("status") or {"name": name}, config=config)
            found.append(Running(connector, state))
    if not found:
        return []

    def with_database(one: Running) -> Running:
        offset = offset_of(worker, one.connector) if one.connector.reads_binlog else None
        return replace(one, database=database_of(one.connector, named, offset=offset))

    with ThreadPoolExecutor(len(found)) as threads:
        return list(threads.map(with_database, found))


def offset_of(worker: Worker, connector: Connector) -> Mapping[str, object] | None:
    """How far a connector has come, by Kafka Connect; None before its first record."""
    stored = worker.offsets(connector.name).get("offsets") or []
    offset: Mapping[str, object] | None = stored[0].get("offset") if stored else None
    return offset


def heartbeats_of(connector: Connector) -> str:
    """The topic of its heartbeats."""
    return f"{connector.get('topic.heartbeat.prefix', HEARTBEATS)}.{connector.get('topic.prefix')}"


def connectors_of(source: Source, running: Sequence[Running], topics: SourceTopics | None) -> list[Running]:
    """The running connectors that write to topics of the source."""
    names = {*source.topic_names, *({topic_partition.topic for topic_partition in topics.ends} if topics else ())}
    return [one for one in running if data_topics(one.connector, names)]
