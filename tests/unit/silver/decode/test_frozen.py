"""What the decoder before this one, of Spark expressions, made of 36,000 records, and what `silver.decode` makes of it.

`frozen/` has a line `{"feed": …}`, then of each record of that feed `in`, `out` (what it came to then), and where that
is not the same now: `now`, the fields and columns that differ, and `why`, the REASONS.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import ArrayType, Type
from silver.decode.reference.decoder import Event, ReferenceDecoder
from silver.decode.reference.message import Record, Source
from tests.support.decoding import batch_of, decoded, plain
from tests.support.events import EPOCH

FROZEN = Path(__file__).with_name("frozen")
NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in FROZEN.iterdir())
REASONS: Mapping[str, str] = {
    "silent": "What is ignored or unreadable says nothing of positions and times.",
    "reason": "The reason that a record is unreadable says more, or is found earlier.",
    "schema": "A schema with fields of no name, or of one name, is read: it stopped the batch.",
    "read": (
        "Numbers of 1,000 digits, wrappers with white space, an envelope without op, a payload without its schema and"
        " U+FDD0 are read."
    ),
    "last": "Of a field that is there twice the last counts; numbers in the source block are as written.",
    "last_key": "Of a field that is there twice the last counts: so a key contradicts its row, or there is no value.",
    "last_text": "Of a field that is there twice the last counts, in a text column.",
    "last_null": "Of a field that is there twice the last counts, and it is null.",
    "flat": "A flattened row without op may leave out large values.",
    "number": "A JSON number, true and false are themselves, never base64; -0 keeps its sign where the type has one.",
    "strict": "Text is strict: base64 with its padding, ISO 8601 times without blanks and names of zones.",
    "custom": "Dates and times as text of custom converters are read, and zones with seconds.",
    "sentence": "The sentence about a value that does not fit says more.",
    "avro_key": "A key in the Confluent wire format is Avro, never text: without its schema the record cannot be read.",
    "key": "A key that cannot be read, or does not fit its column, is a reason: for a tombstone too.",
    "words": "A field of few words that has another one states nothing, nor do two that contradict each other.",
    "type": "Where types decide, an outbox event without one waits.",
    "updated": "An update of the outbox's row is ignored, as the EventRouter does.",
    "header": "A header that JsonConverter wrote with its schema is read without it.",
    "op": "A flattened row may have a column op; of one that is not declared the sentence is true.",
    "whole": "A flattened row has the fields of its key, or all others.",
    "other_key": "A key of more columns than the table's shows: rows that differ would be one.",
    "nested": "What an array or object holds is read by the same rules.",
}


class Case(NamedTuple):
    """A record, what it comes to, and the reasons where that has changed."""

    feed: Feed
    record: Record
    expected: dict[str, Any]
    why: tuple[str, ...]


def cases(name: str) -> Iterator[list[Case]]:
    """The cases of one file, feed by feed."""
    of_feed: list[Case] = []
    with gzip.open(FROZEN / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            if "feed" in one:
                if of_feed:
                    yield of_feed
                feed, of_feed = Feed.model_validate(one["feed"]), []
            else:
                of_feed.append(_case(feed, one))
    yield of_feed


def _case(feed: Feed, one: Mapping[str, Any]) -> Case:
    came, out, now = one["in"], one["out"], one.get("now", {})
    headers = [(header, _bytes(value)) for header, value in came["headers"] or ()]
    record = Record(came["topic"], _bytes(came["key"]), _bytes(came["value"]), headers)
    both = {**out, **now}
    if out.get("row") and now.get("row"):
        both["row"] = {**out["row"], **now["row"]}
    types = {name: column.type for name, column in feed.columns.items()}
    row, source = both["row"], both["source"]
    # Before, tables of a contract had no marks.
    expected = {name: both.get(name, []) if name == "drift" else both[name] for name in Event._fields}
    expected["source"] = source and Source(**source)
    expected["source_ts"] = _micros(both["source_ts"])
    expected["row"] = row and [_value(row[name], held) for name, held in types.items()]
    return Case(feed, record, expected, tuple(one.get("why", ())))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _micros(text: str | None) -> int | None:
    return (
        None
        if text is None
        else (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    )


def _value(value: Any, held: Type) -> Any:
    """A frozen value as the definition has it."""
    if value is None:
        return None
    if isinstance(held, ArrayType):
        return [_value(one, held.element) for one in value]
    if held.ddl == "TIMESTAMP":
        return _micros(value)
    if held.ddl == "DATE":
        return date.fromisoformat(value).toordinal() - EPOCH.toordinal()
    if held.ddl == "BINARY":
        return base64.b64decode(value)
    if held.ddl in ("DOUBLE", "FLOAT"):
        return float(value)
    return Decimal(value).normalize() if held.ddl.startswith("DECIMAL") else value


@pytest.mark.parametrize("name", NAMES)
def test_records_come_to_what_was_frozen(name: str) -> None:
    for of_feed in cases(name):
        feed = of_feed[0].feed
        explaining = ReferenceDecoder(feed)
        # Which topics are a feed's is not asked here.
        topics = tuple({case.record.topic for case in of_feed})
        of_topics = feed.model_copy(update={"topics": topics, "topic_patterns": ()})
        records = [case.record for case in of_feed]
        # Where messages have schemas, twice: the second time they are known.
        times = 2 if any(b'"schema"' in (record.value or b"") + (record.key or b"") for record in records) else 1
        batches = [batch_of(records, offset=time * len(records)) for time in range(times)]
        found = decoded(batches, of_topics)
        for number, case in enumerate(of_feed):
            # NaN is itself, and zeros have signs.
            wanted = repr(case.expected)
            assert repr(plain(explaining.event(case.record))) == wanted, case.record
            for offset in range(number, times * len(records), len(records)):
                assert repr(plain(found[offset])) == wanted, case.record


def test_what_has_changed_has_its_reason() -> None:
    why = [reason for name in NAMES for of_feed in cases(name) for case in of_feed for reason in case.why]
    assert set(why) == set(REASONS)
