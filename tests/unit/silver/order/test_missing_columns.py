"""Which field that a record lacks is gone, and which its row did not have yet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.models import Contracts, Feed
from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from lakehouse.contracts.topics import SourceKind
from silver.order.history import history
from silver.order.missing_columns import (
    FirstSent,
    first_sent,
    lacking_columns,
    lower,
    lowest,
    needs_positions,
    required_columns,
)
from silver.order.runs import EpochStart
from silver.order.state import State
from tests.support.events import Record
from tests.support.facts import counted
from tests.support.feeds import feed
from tests.support.histories import FEEDS, KINDS, told
from tests.support.model.batches import batches_with_lagging_partitions
from tests.support.model.stories import random_history

COLUMNS: Mapping[str, Any] = {
    "id": "BIGINT",
    "name": "STRING",
    "note": "STRING",
    "later": {"type": "STRING", "optional": True},
    "shard": {"type": "STRING", "from_topic": "(.*)"},
    "read_at": {"type": "TIMESTAMP", "metadata": "ingestion-timestamp"},
}
THINGS = feed(columns=COLUMNS)
WHOLE: Mapping[str, Any] = {"absent_columns": {}}


def is_missing(column: str, position: tuple[int, ...] | None, first_sent: FirstSent, *, shard: str) -> bool:
    """Whether the field of a column that the record lacks is gone: a record at a lower position has had it."""
    first = first_sent.get((shard, column))
    return first is not None and position is not None and position > first


def facts(first: int, last: int, at: Sequence[int] | None, **more: Any) -> dict[str, Any]:
    return counted(first, last, feed="things", **{"lowest": at, "highest": at, "absent_columns": {}, **more})


def sent(of: Feed, *rows: dict[str, Any], starts: Sequence[EpochStart] = ()) -> FirstSent:
    return first_sent(of, rows, history(of, rows, State()).with_epoch_starts(starts))


def test_the_columns_of_a_row_must_have_a_field_unless_they_are_optional() -> None:
    assert required_columns(THINGS) == ("name", "note")
    for payload in ("full", "partial"):
        assert required_columns(feed(columns=COLUMNS, envelope="outbox", payload=payload)) == ()
    # A contract that goes on without a column that is gone requires none; of a table by rule they are made optional.
    evolves = THINGS.model_copy(update={"on_schema_change": OnSchemaChange(drop="evolve", rename="evolve")})
    assert required_columns(evolves) == ()
    of_rule = DiscoveredTable(
        source="dw", rule="all", name="things", topic="t", table="a.things", known_by="values", version=1
    )
    assert required_columns(evolves.model_copy(update={"discovered": of_rule})) == ("name", "note")


def test_a_field_is_gone_where_a_record_at_a_lower_position_has_had_it() -> None:
    known = {("", "name"): (0, 10, 5)}
    assert is_missing("name", (0, 10, 6), known, shard="")
    assert is_missing("name", (1, 2, 0), known, shard="")
    # Before it, or the same record again.
    assert not is_missing("name", (0, 10, 5), known, shard="")
    assert not is_missing("name", (0, 9, 99), known, shard="")
    # One that was never sent, a record without a position, and the table of another topic.
    assert not is_missing("note", (0, 10, 6), known, shard="")
    assert not is_missing("name", None, known, shard="")
    assert not is_missing("name", (0, 10, 6), known, shard="shop.things")


def test_the_counts_say_which_columns_some_records_lack() -> None:
    rows = [
        facts(0, 4, [1, 1], absent_columns={"name": 2, "later": 5}),
        facts(5, 9, [2, 2], absent_columns={"name": 1}),
    ]
    assert lacking_columns(THINGS, rows) == {"name": 3}
    assert needs_positions(THINGS, rows)
    outbox = feed(columns=COLUMNS, envelope="outbox")
    assert needs_positions(outbox, rows) is needs_positions(outbox, [facts(0, 4, None)]) is False


def test_records_that_all_have_every_field_need_no_positions() -> None:
    assert not needs_positions(THINGS, [facts(0, 4, [1, 1])])
    assert not needs_positions(THINGS, [facts(0, 4, None, judged=0)])
    # Rows of a snapshot of some rows have a position that the counts do not say.
    assert needs_positions(THINGS, [facts(0, 4, None)])
    assert needs_positions(THINGS, [facts(0, 4, [1, 1]), facts(5, 9, None, run="run-2")])
    assert not needs_positions(THINGS, [facts(0, 4, None, snapshot_at=[1, 1])])
    assert not needs_positions(feed(columns=COLUMNS, sequence_by="kafka_offset"), [facts(0, 4, None)])


def test_a_batch_has_its_columns_from_its_lowest_position_on() -> None:
    at = (0, 90, 1, 90, 80, 3)
    assert sent(THINGS, facts(3, 9, [90, 80])) == {("", "name"): at, ("", "note"): at, ("", "later"): at}


def test_of_two_segments_the_lower_one_counts() -> None:
    rows = facts(3, 9, [90, 80]), facts(0, 2, None, snapshot_at=[70, 70]), facts(10, 12, [80, 80], run="run-2")
    assert sent(THINGS, *rows)["", "name"] == (0, 70, 0, 70, 70, 0)


def test_a_segment_says_nothing_of_a_column_that_some_of_its_records_lack() -> None:
    rows = facts(0, 2, [70, 70], absent_columns={"name": 1}), facts(3, 9, [90, 90], run="run-2")
    found = sent(THINGS, *rows)
    assert (found["", "name"][1], found["", "note"][1]) == (90, 70)
    # Nor does one without rows, or without a position.
    silent = facts(0, 2, [70, 70], judged=0), facts(3, 9, None, run="run-2")
    assert sent(THINGS, *silent) == {}
    assert sent(THINGS, *silent, rows[1]) == sent(THINGS, rows[1])


def test_positions_of_mysql_and_of_kafka_are_as_silver_has_them() -> None:
    mysql = feed(columns=COLUMNS, kind="mysql")
    assert sent(mysql, facts(3, 9, [2, 90, 1]))["", "name"] == (0, 2, 90, 1, 1, 3)
    assert sent(mysql, facts(3, 9, None, snapshot_at=[2, 90, 0]))["", "name"] == (0, 2, 90, 0, 0, 3)
    by_offset = feed(columns=COLUMNS, sequence_by="kafka_offset")
    assert sent(by_offset, facts(3, 9, None, first_ms=1000))["", "name"] == (1000, 3)


@pytest.mark.parametrize(("run", "epoch"), [("run-2", 5), ("", 5), ("run-1", 0)])
def test_a_position_begins_with_its_epoch(run: str, epoch: int) -> None:
    rows = [facts(0, 2, [90, 90]), facts(3, 9, [40, 40], run="run-2")]
    asked = facts(3 if run else 10, 12, [50, 50], run=run)
    past = history(THINGS, [*rows, asked], State()).with_epoch_starts([EpochStart("run-2", 5)])
    assert first_sent(THINGS, [asked], past)["", "name"][0] == epoch


def test_each_topic_of_a_sharded_feed_has_columns_of_its_own() -> None:
    sharded = feed(columns=COLUMNS, keys=("shard", "id"))
    rows = facts(0, 2, [70, 70]), facts(0, 2, [50, 50], topic="shop.others", absent_columns={"note": 1})
    found = sent(sharded, *rows)
    assert {topic for topic, column in found if column == "note"} == {"orders"}
    assert {topic for topic, column in found if column == "name"} == {"orders", "shop.others"}


def test_only_what_is_lower_or_not_known_is_new() -> None:
    known = {("", "name"): (0, 5), ("", "note"): (0, 5)}
    assert lower(known, known) == {}
    assert lower({("", "name"): (0, 4), ("", "note"): (0, 6), ("", "more"): (0, 9)}, known) == {
        ("", "name"): (0, 4),
        ("", "more"): (0, 9),
    }
    assert lowest(known, {("", "name"): (0, 4), ("", "note"): (0, 6)}) == {("", "name"): (0, 4), ("", "note"): (0, 5)}


# Of each kind.
HISTORIES = int(os.environ.get("HISTORIES", "40"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_from_before_its_column_came_misses_it(contracts: Contracts, kind: SourceKind) -> None:
    """Random histories with replays, epochs and lagging partitions, in which a column comes at some time, and goes:
    whatever was read before, no record that is older than the column misses it, and some that are younger do.
    """
    lacking = gone = 0
    of = contracts.feeds[FEEDS[kind]]
    for number in range(HISTORIES):
        random = Random(f"columns {kind} {number}")  # noqa: S311
        history = random_history(kind, random, topic=of.topics[0], features=None)
        # A forged position says later than it is; a replay may be taken for an epoch behind one, or behind compaction.
        if history.features & {"forged", "compacted"} or history.features >= {"epoch", "replay"}:
            continue
        times = sorted({at for one in history.records if (at := committed(one)) is not None})
        comes, goes = sorted(random.choices(times, k=2))
        changed = replace(history, records=[without_product(one, until=comes, after=goes) for one in history.records])
        silver = told(contracts, changed, batches_with_lagging_partitions(changed, random))
        known: dict[tuple[str, str], tuple[int, ...]] = {}
        for one, event in zip(*silver.positioned(), strict=True):
            if event.kind != "change" or event.is_delete or event.position is None:
                continue
            if "product_id" not in one.event.absent:
                known = {**lowest(known, {("", "product_id"): event.position})}
                continue
            is_older = (committed(one.record) or 0) <= comes
            found = is_missing("product_id", event.position, known, shard="")
            assert not (is_older and found), (kind, number, one.record["partition"], one.record["offset"])
            lacking += is_older
            gone += found
    assert lacking and gone


def committed(one: Record) -> int | None:
    """When the change was committed."""
    told = json.loads(one["value"] or "{}")
    at: int | None = (told.get("source") or {}).get("ts_ms")
    return at if told.get("after") else None


def without_product(one: Record, *, until: int, after: int) -> Record:
    at = committed(one)
    if at is None or until < at <= after:
        return one
    told = json.loads(one["value"])
    del told["after"]["product_id"]
    return {**one, "value": json.dumps(told)}
