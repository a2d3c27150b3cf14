"""The topics of connectors as the broker really keeps them, held against what the connectors send there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lakehouse.connect.connectors import Connector
from lakehouse.connect.findings import Finding
from lakehouse.kafka import cleanup_policies, partitions
from lakehouse.kafka_client import KafkaConnection


@dataclass(frozen=True)
class KeptTopic:
    """How a broker keeps a topic."""

    partitions: int
    cleanup_policy: str


Topics = Mapping[str, KeptTopic]


def topic_findings(connectors: Sequence[Connector], topics: Topics, *, broker: str) -> tuple[Finding, ...]:
    """What breaks on the topics that are there already; a topic that is not there breaks nothing."""
    found: list[Finding] = []
    for connector in connectors:
        if connector.database is None:
            continue

        def add(topic: str, what: str, remedy: str, *, name: str = connector.name) -> None:
            found.append(
                Finding(check="topic", file=broker, connector=name, key=f"topic {topic}", what=what, remedy=remedy)
            )

        for topic in _data_topics(connector, topics):
            if "compact" not in topics[topic].cleanup_policy:
                continue
            if connector.routes_outbox:
                what = "it is compacted: of every aggregate only the last event stays, read or not."
                add(topic, what, _altered(topic))
                continue
            if connector.tells_truncates:
                add(
                    topic, "it is compacted, and refuses a TRUNCATE, which has no key: the task fails.", _altered(topic)
                )
            if not connector.is_on("tombstones.on.delete", default=True):
                what = "it is compacted and gets no tombstones: deleted rows stay for ever."
                add(topic, what, "Set tombstones.on.delete to true.")
        history = topics.get(connector.get("schema.history.internal.kafka.topic"))
        if history is not None:
            name = connector.get("schema.history.internal.kafka.topic")
            if "compact" in history.cleanup_policy:
                add(name, "the schema history is compacted: its records have no key.", _altered(name))
            if history.partitions != 1:
                what = f"the schema history has {history.partitions} partitions: its order is lost."
                add(name, what, "Stop the connector, make the topic anew with one, and use snapshot.mode=recovery.")
    return tuple(found)


def _altered(topic: str) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=delete"


def _data_topics(connector: Connector, topics: Iterable[str]) -> list[str]:
    if connector.routes_outbox:
        return [topic for topic in topics if any(re.fullmatch(one, topic) for one in connector.routed_topics)]
    named = connector.table_topics
    prefix = f"{connector.get('topic.prefix')}."
    return [topic for topic in topics if (topic in named if named else topic.startswith(prefix))]


def wanted_topics(connectors: Sequence[Connector], known: Iterable[str]) -> tuple[str, ...]:
    """Of the topics of a broker, those that the connectors write to."""
    names = list(known)
    data = {topic for connector in connectors if connector.database for topic in _data_topics(connector, names)}
    histories = {connector.get("schema.history.internal.kafka.topic") for connector in connectors}
    return tuple(sorted(data | (histories & set(names))))


PoliciesOf = Callable[[Sequence[str]], Mapping[str, str]]


def kept_topics(connection: KafkaConnection, connectors: Sequence[Connector]) -> Topics:
    """The connectors' topics as the broker has them. Raises KafkaError when it does not answer or refuses."""
    return described(connectors, partitions(connection), partial(cleanup_policies, connection))


def described(
    connectors: Sequence[Connector], known: Mapping[str, Sequence[int]], policies_of: PoliciesOf
) -> dict[str, KeptTopic]:
    """Of the topics that a broker has, the connectors' ones; `policies_of` asks for their cleanup.policy."""
    wanted = wanted_topics(connectors, known)
    policies = policies_of(wanted) if wanted else {}
    return {topic: KeptTopic(len(known[topic]), policies[topic]) for topic in wanted}
