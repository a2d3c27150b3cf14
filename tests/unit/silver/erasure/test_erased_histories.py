"""Rows that are erased change no other: silver of a bronze without them is silver without them, however it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.decode.reference.message import Record as Message
from silver.erasure.matches import WantedKeys, match_batches
from tests.support.decoding import batch_of
from tests.support.events import Record
from tests.support.histories import FEEDS, KINDS
from tests.support.model.batches import in_any_order, in_offset_order, in_one
from tests.support.model.stories import random_history
from tests.support.pure import PureSilver

HISTORIES = 60


def messages(records: Sequence[Record]) -> Iterator[Message]:
    for one in records:
        headers = [(name, None if value is None else value.encode()) for name, value in one["headers"]]
        key, value = (None if one[name] is None else one[name].encode() for name in ("key", "value"))
        yield Message(one["topic"], key, value, headers)


def without(records: Sequence[Record], feed: Feed, keys: frozenset[tuple[int]]) -> tuple[list[Record], bool]:
    """The records with those of the keys erased; and whether a key was changed from or to another one."""
    batch: pa.RecordBatch = batch_of(list(messages(records)))  # the offset is the number of the record
    matches = [row for part in match_batches([batch], wanted=WantedKeys(feed, keys)) for row in part.to_pylist()]
    kafka_keys = {row["key"] for row in matches if row["is_own"]}
    erased = {row["offset"]: row for row in matches if row["is_own"] or row["key"] in kafka_keys}
    found = []
    for number, record in enumerate(records):
        if number not in erased:
            found.append(record)
            continue
        headers = [[one["key"], one["value"].decode()] for one in erased[number]["headers"]]
        found.append({**record, "key": None, "value": None, "headers": headers})
    return found, any(row["is_linked"] for row in matches)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_row_changes(contracts: Contracts, kind: SourceKind) -> None:
    feed = contracts.feeds[FEEDS[kind]]
    erased = 0
    for number in range(HISTORIES):
        random = Random(f"erased {kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=feed.topics[0], features=None)
        before = PureSilver(feed)
        before.tell(history.records)
        rows = before.rows()
        deleted = sorted(key for key, row in rows.items() if row is None)
        if not deleted:
            continue
        keys = frozenset(random.sample(deleted, random.randrange(1, len(deleted) + 1)))
        records, is_linked = without(history.records, feed, keys)
        if is_linked:
            continue
        cut = in_any_order if history.shufflable else in_offset_order
        for batches in (in_one(records), cut(records, random, count=3)):
            silver = PureSilver(feed)
            for batch in batches:
                silver.tell(batch)
            assert silver.rows() == {key: row for key, row in rows.items() if key not in keys}, number
        erased += 1
    assert erased > HISTORIES / 10
