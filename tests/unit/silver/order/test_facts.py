"""The facts of a batch are the same whether they are counted of all its records or of parts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import polars as pl
import pytest

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.topics import SourceKind
from silver.order.facts import facts, ignored_facts, key_hash, merge_facts
from silver.order.narrow_events import log_columns
from silver.order.positions import add_coordinates
from tests.support.feeds import feed
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import in_one
from tests.support.model.stories import random_history
from tests.support.pure import Read, facts_of
from tests.unit.silver.order.test_positions import frame

HISTORIES = 40
# What the oracle counts in another way, or not at all.
APART = {"last_key", "judged", "absent_columns"}


def judged(read: Sequence[Read], of_feed: Feed) -> pl.DataFrame:
    """The records as they come out of gate 1."""
    events = [one.event for one in read]
    keys = [None if event.row is None else event.row[0] for event in events]
    lists = pl.List(pl.String)
    more: dict[str, Any] = {
        "key": pl.Series(
            [None if one.record["key"] is None else one.record["key"].encode() for one in read], dtype=pl.Binary
        ),
        "kind": [event.kind for event in events],
        "is_delete": [event.is_delete for event in events],
        "unchanged_toast": pl.Series([list(event.unchanged_toast) for event in events], dtype=lists),
        "absent": pl.Series([list(event.absent) for event in events], dtype=lists),
        "problems": pl.Series([list(event.problems) for event in events], dtype=lists),
        "drift": pl.Series([[] for _event in events], dtype=lists),
        "failed_rules": pl.Series([["amount"] if event.kind == "quarantined" else [] for event in events], dtype=lists),
        "is_judged": [event.kind == "change" for event in events],
        "is_unread": [False for _event in events],
        "key:order_id": pl.Series(keys, dtype=pl.Int64),
    }
    return add_coordinates(
        frame(read, of_feed.kind).with_columns(**{name: pl.Series(name, values) for name, values in more.items()}),
        of_feed,
    )


def by_segment(found: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    names = ("topic", "topic_id", "partition", "run_id")
    return {(*(one[name] for name in names), tuple(one["snapshot_at"] or ())): one for one in found}


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_those_of_the_oracle_and_the_sum_of_their_parts(contracts: Contracts, kind: SourceKind) -> None:
    of_feed = contracts.feeds[FEEDS[kind]]
    for number in range(HISTORIES):
        random = Random(f"facts {kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=of_feed.topics[0], features=None)
        read = told(contracts, history, in_one(history.records)).read
        records = judged(read, of_feed)
        found = by_segment(facts(records, of_feed, ["amount"]))
        expected = by_segment([*facts_of(read, of_feed)])
        assert found.keys() == expected.keys()
        for segment, fact in expected.items():
            for name in fact.keys() - APART:
                mine = found[segment][name]
                assert (tuple(mine) if isinstance(mine, list) else mine) == (
                    tuple(fact[name]) if isinstance(fact[name], list) else fact[name]
                ), (number, name)
        cut = random.randrange(len(read) + 1)
        parts = [facts(part, of_feed, ["amount"]) for part in (records[:cut], records[cut:])]
        assert by_segment(merge_facts([*parts[0], *parts[1]])) == found
        assert sum(one["failed_rules"].get("amount", 0) for one in found.values()) == sum(
            event.kind == "quarantined" for _record, event in read
        )


def test_the_last_record_of_a_segment_is_that_with_the_highest_offset() -> None:
    one = {**ignored_facts(("t", "", 0), first=1, last=4, records=2, first_ms=7), "last_key": 1, "last_is_delete": True}
    other = {**one, "first_offset": 5, "last_offset": 9, "last_key": 2, "last_is_delete": False, "first_ms": 3}
    (merged,) = merge_facts([other, one])
    assert (merged["first_offset"], merged["last_offset"], merged["read"]) == (1, 9, 4)
    assert (merged["last_key"], merged["last_is_delete"], merged["first_ms"]) == (2, False, 3)


def test_key_ranges_are_of_whole_numbers_alone() -> None:
    texts = feed(columns={"id": "STRING", "note": "STRING"})
    assert key_hash(None) is None
    assert key_hash(b"1") == key_hash(b"1") != key_hash(b"2")
    empty = {name: pl.Series([], dtype=kind) for name, kind in _KINDS.items()}
    assert facts(add_coordinates(pl.DataFrame(empty), texts), texts, []) == []


_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("topic", "topic_id", "run_id", "kind", "key:id"), pl.String),
    **dict.fromkeys(("offset", "timestamp_ms", "read_ms"), pl.Int64),
    **dict.fromkeys(("is_delete", "is_judged", "is_unread"), pl.Boolean),
    **dict.fromkeys(("unchanged_toast", "absent", "problems", "drift", "failed_rules"), pl.List(pl.String)),
    "partition": pl.Int32,
    "key": pl.Binary,
    **{name: pl.String if kind == "STRING" else pl.Int64 for name, kind in log_columns("postgresql").items()},
}
