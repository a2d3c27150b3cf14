"""Whether the EventRouter places the types of events where the contracts of their feeds read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from connectors.checking.checks import Mistake, finding
from connectors.checking.findings import Finding
from connectors.checking.together import data_topics
from connectors.connectors import EVENT_ROUTER, Connector
from lakehouse.contracts.models import Feed

OPTION = "table.fields.additional.placement"


def placement_findings(connectors: Sequence[Connector], feeds: Iterable[Feed]) -> tuple[Finding, ...]:
    """What keeps the events of these feeds in quarantine: of those whose types decide, and whose topics are named."""
    outboxes = [feed for feed in feeds if feed.envelope == "outbox" and feed.types_decide]
    return tuple(
        finding(connector, "event_type", mistake)
        for connector in connectors
        for feed in outboxes
        if connector.routes_outbox and data_topics(connector, feed.topics)
        for mistake in _wrong_event_types(connector, feed)
    )


def _wrong_event_types(connector: Connector, feed: Feed) -> Iterator[Mistake]:
    for prefix in connector.transforms(EVENT_ROUTER):
        placed = dict(_placed(connector, f"{prefix}{OPTION}"))
        if feed.event_type in placed.values():
            continue
        of_type = f"the column type as {placed['type']}" if "type" in placed else "no column type"
        what = (
            f"it places {of_type}, and feed {feed.name} reads the type of an event as {feed.event_type}: every event of"
            " the feed goes to quarantine."
        )
        hint = f"Write type:header:{feed.event_type}, or change the feed's event_type in bronze/topics.yaml."
        yield f"{prefix}{OPTION}", what, hint


def _placed(connector: Connector, option: str) -> Iterator[tuple[str, str]]:
    """Column and name of each field that is placed in a header or in the envelope."""
    for one in connector.listed(option):
        column, _, rest = one.partition(":")
        placement, _, alias = rest.partition(":")
        if placement in ("header", "envelope"):
            yield column, alias or column
