"""Records and fields as silver reads them: by the definition, and through Arrow and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import ArrayType, Type
from lakehouse.contracts.tables import Column
from silver.decode.arrow import decode_batches
from silver.decode.arrow import row_of as column_of
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import Json, Record, Source, parsed
from silver.decode.reference.values import Value
from tests.support.events import EPOCH

_SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "topic_id": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


def batch_of(records: Sequence[Record], *, offset: int = 0) -> pa.RecordBatch:
    """Records as Spark gives them, with offsets from this one on."""
    rows = [
        {
            "topic": record.topic,
            "topic_id": "",
            "partition": 0,
            "offset": offset + number,
            "timestamp": EPOCH,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for number, record in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def decoded(batches: Iterable[pa.RecordBatch], feed: Feed) -> dict[int, Event]:
    """What `decode_batches` makes of them, by offset."""
    found: dict[int, Event] = {}
    for batch in decode_batches(batches, feeds=[feed]):
        for row in batch.to_pylist():
            assert row["offset"] not in found
            found[row["offset"]] = _event(row, feed)
    return found


def _event(row: dict[str, Any], feed: Feed) -> Event:
    of_feed, source = row[column_of(feed.name)], row["source"]
    values = {name: row[name] for name in Event._fields if name not in ("row", "source", "source_ts")}
    types = [(name, declared.type) for name, declared in feed.columns.items()]
    return Event(
        **values,
        source=None if source is None else Source(**source),
        source_ts=_micros(row["source_ts"]),
        row=None if of_feed is None else [_plain(of_feed[name], held) for name, held in types],
    )


def _plain(value: Any, held: Type) -> Value:
    """A value of Arrow as the definition has it."""
    if isinstance(held, ArrayType) and value is not None:
        return [_plain(one, held.element) for one in value]
    if isinstance(value, datetime):
        return _micros(value)
    return (value - EPOCH.date()).days if isinstance(value, date) else value


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


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
    explaining = ReferenceDecoder(feed)
    return [explaining.event(Record(feed.topics[0], key, value, headers)) for key, value in records]


def row_of(event: Event, feed: Feed) -> dict[str, Value]:
    """The row of an event, by column."""
    assert event.row is not None
    return dict(zip(feed.columns, event.row, strict=True))


def said(event: Event) -> tuple[str, list[str]]:
    """What an event is, and what is wrong with it."""
    return event.kind, list(event.problems)


def plain(event: Event) -> dict[str, Any]:
    """An event as it is compared: lists as lists, decimals by their value."""
    return {**event._asdict(), "row": _comparable(event.row), **{name: list(getattr(event, name)) for name in _LISTS}}


_LISTS = ("absent", "unchanged_toast", "unsent_columns", "problems", "drift")


def _comparable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    return value.normalize() if isinstance(value, Decimal) else value
