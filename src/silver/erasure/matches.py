"""Which records are of the rows that are to be erased. Plain Python: every record is read by the reference decoder.

A record is of a row by the key that it states. One that states no key (it is unreadable, or a value of its key does not
fit) is of a row by its Kafka key: that of other records of the row, or the text that a key of these values has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import STRING
from lakehouse.erasure.names import ERASED_HEADER, HEADERS
from silver.decode.arrays import array_of
from silver.decode.reference.decoder import RUN_ID, Event, ReferenceDecoder
from silver.decode.reference.erased import erased_header
from silver.decode.reference.message import Json, MalformedError, Record, Statement, compact, parsed, text_of

# What is read at a time.
RECORDS_AT_ONCE = 2_000

# `is_own`: it states one of the keys. `is_linked`: it says that one of them was changed from or to a key that is not
# among them. Neither: a record that states no key. `headers`: what takes its place.
MATCHES = f"""
    topic STRING, topic_id STRING, partition INT, offset BIGINT, key BINARY, is_own BOOLEAN, is_linked BOOLEAN,
    headers {HEADERS}
"""
_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("topic", "topic_id"), pa.string()),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "key": pa.binary(),
    **dict.fromkeys(("is_own", "is_linked"), pa.bool_()),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
_COORDINATES = ("topic", "topic_id", "partition", "offset")


@dataclass(frozen=True)
class WantedKeys:
    """The keys that are to be erased: each as the values of its columns, as Arrow gives them to Python."""

    feed: Feed
    keys: frozenset[tuple[Any, ...]]

    @property
    def texts(self) -> frozenset[tuple[str, ...]]:
        """The values as text."""
        return frozenset(tuple(map(str, key)) for key in self.keys)

    def kafka_keys(self) -> frozenset[bytes]:
        """What a Kafka key of these rows is as JSON: with the fields of the key, and of a single column its value."""
        fields = self.feed.key_fields
        found: set[str] = set()
        for key in self.keys if len(fields) == len(self.feed.keys) else ():
            values = [one if isinstance(one, int) else str(one) for one in key]
            named = {names[0]: value for names, value in zip(fields, values, strict=True)}
            shapes: list[object] = [named, *([values[0], str(values[0])] if len(values) == 1 else [])]
            found |= {json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in shapes}
            found |= {str(values[0])} if len(values) == 1 else set()
        return frozenset(text.encode() for text in found)


def match_batches(batches: Iterable[pa.RecordBatch], *, wanted: WantedKeys) -> Iterator[pa.RecordBatch]:
    """Of these records (silver.decode.arrow.RECORD) those that are of the wanted keys, or may be, as MATCHES."""
    decoder = ReferenceDecoder(wanted.feed)
    for batch in batches:
        for first in range(0, batch.num_rows, RECORDS_AT_ONCE):
            rows = batch.slice(first, RECORDS_AT_ONCE).to_pylist()
            found = list(_matches([row for row in rows if wanted.feed.has_topic(row["topic"])], decoder, wanted))
            columns = [pa.array([row[name] for row in found], kind) for name, kind in _TYPES.items()]
            yield pa.RecordBatch.from_arrays(columns, names=list(_TYPES))


def _matches(
    rows: Sequence[Mapping[str, Any]], decoder: ReferenceDecoder, wanted: WantedKeys
) -> Iterator[dict[str, Any]]:
    records = [Record(row["topic"], row["key"], row["value"], _headers(row["headers"])) for row in rows]
    events = [decoder.own_event(record) for record in records]
    keys = _keys(events, wanted.feed)
    texts, kafka_keys = wanted.texts, wanted.kafka_keys()
    for row, record, event, key in zip(rows, records, events, keys, strict=True):
        if event is None or event.kind == "erased":
            continue
        statement = decoder.statement(record)
        may_be_own = event.kind != "ignored" and None in key and record.key is not None
        is_own = key in wanted.keys or (may_be_own and record.key in kafka_keys)
        if event.kind == "ignored" and wanted.feed.envelope == "outbox":
            is_own |= not texts.isdisjoint([(one,) for one in _aggregates(record, statement)])
        links = [one for one in map(_values_of, (event.old_key, event.new_key)) if one]
        is_linked = any((link in texts) != is_own for link in links)
        if is_own or is_linked or may_be_own:
            coordinates = {name: row[name] for name in _COORDINATES}
            headers = _replaced(record, statement)
            yield {**coordinates, "key": record.key, "is_own": is_own, "is_linked": is_linked, "headers": headers}


def _headers(headers: Sequence[Mapping[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(one["key"], one["value"]) for one in headers or ()]


def _keys(events: Sequence[Event | None], feed: Feed) -> list[tuple[Any, ...]]:
    """The key that each event states, as Arrow gives it to Python; None in place of a value that it does not state."""
    names = [*feed.columns]
    columns = []
    for name in feed.keys:
        at, declared = names.index(name), feed.columns[name]
        values = [None if event is None or event.row is None else event.row[at] for event in events]
        columns.append(array_of(values, STRING if declared.from_topic is not None else declared.type).to_pylist())
    return list(zip(*columns, strict=True))


def _aggregates(record: Record, statement: Statement) -> list[str]:
    """Whose event an outbox row was of which a record states an update or its removal: that is ignored by policy.

    Of a removal in JSON alone: another form states no row before it that could be read here.
    """
    found = [] if statement.key.value is None else [statement.key.value]
    try:
        body: Json = parsed((record.value or b"").decode(), name="The value")
    except (MalformedError, UnicodeDecodeError):
        return found
    body = body["payload"] if isinstance(body, dict) and body.keys() == {"schema", "payload"} else body
    before = body.get("before") if isinstance(body, dict) else None
    of_before = text_of(before.get("aggregateid")) if isinstance(before, dict) else None
    return found if of_before is None else [*found, of_before]


def _values_of(link: str | None) -> tuple[str, ...]:
    """The values of the key that a header of a changed key has; none without one."""
    if link is None:
        return ()
    try:
        found: Json = parsed(link, name="The header")
    except MalformedError:
        return (link,)
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    values = found.values() if isinstance(found, dict) else [found]
    return tuple(text_of(value) or "" for value in values)


def _replaced(record: Record, statement: Statement) -> list[dict[str, Any]]:
    """The headers of an erased record: the connector's run, and what order needs."""
    run = [{"key": name, "value": value} for name, value in record.headers if name == RUN_ID]
    return [*run, {"key": ERASED_HEADER, "value": erased_header(statement)}]


def parse_keys(texts: Collection[str], feed: Feed) -> list[dict[str, str]]:
    """The keys as text by column. Of a key of several columns each is a JSON object, as the quarantine shows it.

    Raises ValueError with the number of the first text that is no such key.
    """
    found = []
    for number, text in enumerate(texts, 1):
        if len(feed.keys) == 1 and not text.startswith("{"):
            found.append({feed.keys[0]: text})
            continue
        try:
            values = parsed(text, name="The key")
        except MalformedError:
            raise ValueError(number) from None
        if not isinstance(values, dict) or values.keys() != {*feed.keys} or None in values.values():
            raise ValueError(number)
        found.append({name: value if isinstance(value, str) else compact(value) for name, value in values.items()})
    return found
