"""Records and fields as silver reads them."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.contracts import Column, Feed
from silver.decode.explain import Event, Explaining
from silver.decode.message import Json, Record, parsed
from silver.decode.values import Value


def column(declared: str) -> Column:
    """A column as a contract declares it."""
    return Column.model_validate({"type": declared})


def field_of(fragment: str) -> Json:
    """The field of a message whose value is this JSON."""
    return parsed(f'{{"v":{fragment}}}', name="")["v"]


def events_of(
    feed: Feed, *records: tuple[bytes | None, bytes | None], headers: Sequence[tuple[str, bytes | None]] = ()
) -> list[Event]:
    """What records (key and value) of a feed's topic state, in their order."""
    explaining = Explaining(feed)
    return [explaining.event(Record(feed.topics[0], key, value, headers)) for key, value in records]


def row_of(event: Event, feed: Feed) -> dict[str, Value]:
    """The row of an event, by column."""
    assert event.row is not None
    return dict(zip(feed.columns, event.row, strict=True))


def said(event: Event) -> tuple[str, list[str]]:
    """What an event is, and what is wrong with it."""
    return event.kind, list(event.problems)
