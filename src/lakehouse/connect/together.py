"""What is wrong with connectors beside one another: names that two of them would share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from lakehouse.connect.checks import finding, findings_of, own_server_id
from lakehouse.connect.connectors import Connector
from lakehouse.connect.findings import Finding


def all_findings(
    connectors: Sequence[Connector], *, beside: Sequence[Connector] = (), own_server_ids: Iterable[str] = ()
) -> tuple[Finding, ...]:
    """Everything that is wrong with the connectors, by themselves and with one another.

    `beside` run on the cluster already: they are compared with, and not judged by themselves. One of them that has the
    name of a connector here is what that one takes the place of.
    """
    names = {connector.name for connector in connectors}
    others = [connector for connector in beside if connector.name not in names]
    own = tuple(own_server_ids)
    alone = [found for connector in connectors for found in findings_of(connector)]
    of_servers = [
        finding(connector, "own_server_id", said) for connector in connectors for said in own_server_id(connector, own)
    ]
    return (*alone, *of_servers, *shared(connectors, others))


def shared(connectors: Sequence[Connector], others: Sequence[Connector] = ()) -> tuple[Finding, ...]:
    """What two connectors may not share and do. Each finding is told of the later one and names the other."""
    return tuple(found for name in SHARED for found in _twice(name, connectors, others))


class Name(NamedTuple):
    """Something that each connector must have for itself; `of` is empty for a connector that has no such thing."""

    check: str
    key: str
    of: Callable[[Connector], str]
    what: str
    remedy: str


SHARED = (
    Name(
        check="shared_name",
        key="name",
        of=lambda one: one.name,
        what="{value} is the name of another connector too, {other}: the one takes the place of the other.",
        remedy="Give each a name of its own.",
    ),
    Name(
        check="shared_server_id",
        key="database.server.id",
        of=lambda one: one.get("database.server.id") if one.reads_binlog else "",
        what="{other} replicates with server id {value} too: the server cuts the one off when the other comes.",
        remedy="Give each an id of its own, unlike that of every server and replica.",
    ),
    Name(
        check="shared_slot",
        key="slot.name",
        of=lambda one: f"{one.slot} of {one.server}" if one.database == "postgresql" else "",
        what="{other} reads the slot {value} too: a slot serves one connector, the other's task fails.",
        remedy="Give each a slot of its own.",
    ),
    Name(
        check="shared_prefix",
        key="topic.prefix",
        of=lambda one: one.get("topic.prefix") if one.database else "",
        what="{other} has the prefix {value} too: both write to the same topics.",
        remedy="Give each a logical name of its own.",
    ),
    Name(
        check="shared_history",
        key="schema.history.internal.kafka.topic",
        of=lambda one: one.get("schema.history.internal.kafka.topic") if one.reads_binlog else "",
        what="{other} keeps its schema history in {value} too: each reads the other's tables, and stops.",
        remedy="Give each a history topic of its own, with one partition.",
    ),
)


def _twice(name: Name, connectors: Sequence[Connector], others: Sequence[Connector]) -> Iterator[Finding]:
    first: dict[str, Connector] = {}
    for other in others:
        first.setdefault(name.of(other), other)
    for connector in connectors:
        value = name.of(connector)
        if value and (other := first.setdefault(value, connector)) is not connector:
            told = name.what.format(value=value, other=f"{other.name} ({other.file})")
            yield finding(connector, name.check, (name.key, told, name.remedy))
