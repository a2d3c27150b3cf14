"""What is wrong between connectors: names that two of them share, and topics that the broker keeps otherwise than the
connectors need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from connectors.checking.checks import finding, findings_of, own_server_id
from connectors.checking.findings import Finding
from connectors.connectors import Connector
from lakehouse.kafka.broker import cleanup_policies, partitions
from lakehouse.kafka.connection import KafkaConnection


def all_findings(
    connectors: Sequence[Connector], *, running_beside: Sequence[Connector] = (), own_server_ids: Iterable[str] = ()
) -> tuple[Finding, ...]:
    """Everything that is wrong with the connectors, by themselves and with one another.

    `running_beside`: on the cluster already. They are compared with, and not checked by themselves. One of them
    that has the name of a connector here is the one that it replaces.
    """
    names = {connector.name for connector in connectors}
    others = [connector for connector in running_beside if connector.name not in names]
    own = tuple(own_server_ids)
    alone = [found for connector in connectors for found in findings_of(connector)]
    of_servers = [
        finding(connector, "own_server_id", mistake)
        for connector in connectors
        for mistake in own_server_id(connector, own)
    ]
    return (*alone, *of_servers, *shared(connectors, others))


def shared(connectors: Sequence[Connector], others: Sequence[Connector] = ()) -> tuple[Finding, ...]:
    """What two connectors may not share and do. Each finding is of the later one and names the other."""
    return tuple(found for name in SHARED for found in _twice(name, connectors, others))


class Name(NamedTuple):
    """Something that each connector must have for itself; `of` is empty for a connector that has no such thing."""

    check: str
    key: str
    of: Callable[[Connector], str]
    what: str
    hint: str


SHARED = (
    Name(
        check="shared_name",
        key="name",
        of=lambda one: one.name,
        what="{value} is the name of another connector too, {other}: the one takes the place of the other.",
        hint="Give each a name of its own.",
    ),
    Name(
        check="shared_server_id",
        key="database.server.id",
        of=lambda one: one.get("database.server.id") if one.reads_binlog else "",
        what="{other} replicates with server id {value} too: the server cuts the one off when the other comes.",
        hint="Give each an id of its own, unlike that of every server and replica.",
    ),
    Name(
        check="shared_slot",
        key="slot.name",
        of=lambda one: f"{one.slot} of {one.server}" if one.database == "postgresql" else "",
        what="{other} reads the slot {value} too: a slot serves one connector, the other's task fails.",
        hint="Give each a slot of its own.",
    ),
    Name(
        check="shared_prefix",
        key="topic.prefix",
        of=lambda one: one.get("topic.prefix") if one.database else "",
        what="{other} has the prefix {value} too: both write to the same topics.",
        hint="Give each a logical name of its own.",
    ),
    Name(
        check="shared_history",
        key="schema.history.internal.kafka.topic",
        of=lambda one: one.get("schema.history.internal.kafka.topic") if one.reads_binlog else "",
        what="{other} keeps its schema history in {value} too: each reads the other's tables, and stops.",
        hint="Give each a history topic of its own, with one partition.",
    ),
)


def _twice(name: Name, connectors: Sequence[Connector], others: Sequence[Connector]) -> Iterator[Finding]:
    first: dict[str, Connector] = {}
    for other in others:
        first.setdefault(name.of(other), other)
    for connector in connectors:
        value = name.of(connector)
        if value and (other := first.setdefault(value, connector)) is not connector:
            message = name.what.format(value=value, other=f"{other.name} ({other.file})")
            yield finding(connector, name.check, (name.key, message, name.hint))


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

        def add(topic: str, what: str, hint: str, *, name: str = connector.name) -> None:
            found.append(
                Finding(check="topic", file=broker, connector=name, key=f"topic {topic}", what=what, hint=hint)
            )

        for topic in data_topics(connector, topics, surely=True):
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
                add(name, what, "Stop the connector, create the topic again with one, and use snapshot.mode=recovery.")
    return tuple(found)


def _altered(topic: str) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=delete"


def data_topics(connector: Connector, topics: Iterable[str], *, surely: bool = False) -> list[str]:
    """Of these topics those that the connector writes events to: of its tables, or of its outbox.

    `surely`: without those that it may write by their names alone (Connector.may_write).
    """
    if connector.routes_outbox:
        return [topic for topic in topics if any(re.fullmatch(one, topic) for one in connector.routed_topics)]
    return [topic for topic in topics if connector.may_write(topic, surely=surely)]


def wanted_topics(connectors: Sequence[Connector], known: Iterable[str]) -> tuple[str, ...]:
    """Of the topics of a broker, those that the connectors write to."""
    names = list(known)
    data = {topic for connector in connectors if connector.database for topic in data_topics(connector, names)}
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
