"""What silver knows of a source: the same however it was written, and from whichever end it is put together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silver.order.ranges import ReadRanges
from silver.order.runs import Cutoff
from silver.order.state import (
    OfFeed,
    State,
    SuspensionCause,
    audit_rows,
    batch_name,
    cause_row,
    correction_row,
    feed_row,
    read_extents,
    read_row,
    segment_rows,
    suspended_row,
    writer_of,
)
from tests.support.facts import counted

STREAM = writer_of("shop", "generation")
TOPIC_PARTITION = ("orders", "id", 0)
FLOOR = Cutoff("truncate", '{"epoch": 0}', None, "orders", 0, 7)


def written(state: State, *rows: Mapping[str, Any], batch: int, writer: str = STREAM) -> State:
    """The state after these rows of a batch."""
    of_batch = {"source": "shop", "generation": "generation", "batch": batch, "sequence": state.sequence + 1}
    return state.after([{**of_batch, "writer": writer, **row} for row in rows])


@given(cuts=st.lists(st.integers(1, 9), unique=True), order=st.randoms())
def test_a_segment_is_the_same_however_the_batches_were_cut(cuts: list[int], order: Any) -> None:
    edges = [0, *sorted(cuts), 10]
    parts = [counted(first, last - 1) for first, last in itertools.pairwise(edges)]
    (whole,) = segment_rows(State(), [_sum(parts)])
    order.shuffle(parts)
    state = State()
    for number, part in enumerate(parts):
        state = written(state, *segment_rows(state, [part]), batch=number)
    (known,) = state.of_feed("orders")
    assert {name: known[name] for name in whole["segment"]} == whole["segment"]


def test_a_feed_names_no_run_where_the_newest_record_of_a_partition_does_not() -> None:
    def names_no_run(*parts: Mapping[str, Any]) -> bool:
        return written(State(), *segment_rows(State(), parts), batch=0).names_no_run("orders")

    named, bare = counted(0, 4), counted(5, 9, run="")
    assert not names_no_run(named)
    assert names_no_run(named, bare)
    assert not names_no_run(bare, counted(10, 11)), "it names them again"
    assert not names_no_run(counted(10, 11), bare)
    assert names_no_run(bare, counted(10, 11, partition=1)), "in another partition it does not"
    assert not names_no_run(named, {**bare, "lowest": None, "highest": None}), "a record without coordinates"
    assert names_no_run(named, {**bare, "lowest": None, "highest": None, "snapshot_at": [9]})


def test_the_absent_columns_of_two_batches_are_counted_together() -> None:
    first, second = counted(0, 4, absent_columns={"note": 2}), counted(5, 9, absent_columns={"note": 1, "status": 4})
    state = written(State(), *segment_rows(State(), [first]), batch=0)
    (row,) = segment_rows(state, [second])
    assert row["segment"]["absent_columns"] == {"note": 3, "status": 4}
    assert first["absent_columns"] == {"note": 2}


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    number = len(parts)
    return {**counted(0, 9), "with_unchanged_toast": number, "judged": number, "absent_columns": {"note": number}}


def test_records_of_no_feed_leave_nothing_behind() -> None:
    assert segment_rows(State(), [counted(0, 9, feed=None)]) == []
    (row,) = audit_rows([counted(0, 9, feed=None)], {}, {})
    assert (row["read"], row["feed"]) == (10, None)


FACTS = [counted(0, 4), counted(6, 9, run="run-2", ignored=1), counted(5, 5, feed="customers")]
OUTCOMES: dict[OfFeed, dict[str, int]] = {
    ("orders", TOPIC_PARTITION): {"applied": 8},
    ("customers", TOPIC_PARTITION): {"superseded": 1},
}


def test_the_audit_has_a_row_a_feed_and_what_became_of_its_records() -> None:
    orders, customers = audit_rows(FACTS, OUTCOMES, {})
    assert [(row["feed"], row["read"]) for row in (orders, customers)] == [("orders", 9), ("customers", 1)]
    assert (orders["applied"], orders["ignored"]) == (8, 1)
    assert (orders["failed_rules"], orders["absent_columns"]) == ({"amount": 2}, {"note": 2})
    assert (customers["superseded"], customers["applied"]) == (1, 0)
    moved = correction_row("orders", TOPIC_PARTITION, {"applied": -1, "quarantined": 1})
    assert (moved["read"], moved["applied"], moved["quarantined"], moved["topic"]) == (0, -1, 1, "orders")


def test_feeds_that_share_a_topic_have_read_its_range_together() -> None:
    extent = read_extents(FACTS)[None, TOPIC_PARTITION]
    assert (extent.first, extent.last, extent.read, extent.has_gaps) == (0, 9, 10, False)
    orders, customers = audit_rows(FACTS, OUTCOMES, {})
    assert (orders["first_offset"], orders["last_offset"], orders["gaps"]) == (0, 9, [])
    assert (customers["first_offset"], customers["last_offset"], customers["gaps"]) == (None, None, None)


def test_where_one_of_them_does_not_go_on_each_has_its_own_range() -> None:
    found = read_extents(FACTS, apart={"orders"})
    assert {feed: extent.has_gaps for (feed, _place), extent in found.items()} == {"orders": True, "customers": False}
    gaps: dict[OfFeed, list[tuple[int, int]]] = {("orders", TOPIC_PARTITION): [(5, 5)]}
    orders, customers = audit_rows(FACTS, OUTCOMES, gaps, apart={"orders"})
    assert (orders["first_offset"], orders["last_offset"], orders["gaps"]) == (0, 9, [{"first": 5, "last": 5}])
    assert (customers["first_offset"], customers["last_offset"], customers["gaps"]) == (5, 5, [])


def test_a_table_is_suspended_from_its_batch_on_until_it_has_taken_all_of_them() -> None:
    state = written(State(), waits(0, TOO_MANY), batch=4)
    state = written(state, waits(10), batch=5)
    assert state.suspended == {"orders": TOO_MANY}
    assert [(one.first, one.last, one.batch) for one in state.ranges("orders")] == [(0, 9, 4), (10, 19, 5)]

    state = written(state, feed_row("orders", resumed=True), batch=5, writer=f"{STREAM}/resumed orders")
    assert (state.suspended, state.ranges("orders")) == ({}, [])

    again = SuspensionCause("status_known", "again", "1.0 abc")
    state = written(state, waits(20, again), batch=7)
    assert state.suspended == {"orders": again}
    assert [one.first for one in state.ranges("orders")] == [20]


TOO_MANY = SuspensionCause("max_reject_ratio", "too many", "1.0 abc")


def waits(
    first: int, new: SuspensionCause | None = None, *, last: int | None = None, topic_partition: Any = TOPIC_PARTITION
) -> dict[str, Any]:
    """A range that is pending for a table."""
    return suspended_row(
        "orders", topic_partition, first=first, last=first + 9 if last is None else last, records=10, new=new
    )


def test_a_table_that_was_tried_again_says_why_it_stays_and_under_which_contract() -> None:
    state = written(State(), waits(0, TOO_MANY), batch=1)
    later = SuspensionCause("status_known", "another rule", "1.0 def")
    state = written(state, cause_row("orders", later), batch=1, writer=f"{STREAM}/tried orders")
    assert state.suspended == {"orders": later}
    assert state.pending_offsets("orders") == [(TOPIC_PARTITION, 0, 9)]


def test_what_is_pending_is_a_list_of_ranges_and_no_hull() -> None:
    """A source that is moved back on its topics reads what lies before: what is between was applied."""
    other = ("orders", "id", 1)
    state = written(State(), waits(101, TOO_MANY), waits(40, last=50), batch=1)
    state = written(state, waits(51, last=52), waits(45), waits(7, last=7, topic_partition=other), batch=2)
    assert state.pending_offsets("orders") == [
        (TOPIC_PARTITION, 40, 54),
        (TOPIC_PARTITION, 101, 110),
        (other, 7, 7),
    ]
    assert state.pending_offsets("customers") == []


def test_epochs_and_cutoffs_of_a_feed_are_kept() -> None:
    epoch = {"epoch": 5, "run_id": "run-2", "topic": "orders", "topic_id": "id", "partition": 0, "from_offset": 3}
    state = written(State(), feed_row("orders", epochs=[epoch], cutoffs=[FLOOR]), batch=1)
    assert [(one.run_id, one.epoch, one.shard) for one in state.epoch_starts("orders", is_sharded=False)] == [
        ("run-2", 5, None)
    ]
    assert [one.shard for one in state.epoch_starts("orders", is_sharded=True)] == ["orders"]
    assert state.epoch_starts("customers", is_sharded=False) == []
    assert (state.cutoffs_of("orders"), state.cutoffs_of("customers")) == ([FLOOR], [])


def test_the_lowest_position_of_a_field_is_kept() -> None:
    state = written(State(), feed_row("orders", first_sent={("", "note"): (0, 9), ("", "status"): (0, 5)}), batch=1)
    state = written(state, feed_row("orders", first_sent={("", "note"): (0, 7), ("", "status"): (0, 6)}), batch=2)
    assert state.first_sent("orders") == {("", "note"): (0, 7), ("", "status"): (0, 5)}
    assert state.first_sent("customers") == {}


def test_values_that_cannot_be_read_are_known_until_that_is_over() -> None:
    state = written(State(), feed_row("orders", unreadable="DECIMAL(10,4)"), feed_row("others"), batch=1)
    assert state.unreadable == {"orders": "DECIMAL(10,4)"}
    assert written(state, feed_row("orders", resumed=True), batch=2).unreadable == state.unreadable
    assert written(state, feed_row("orders", unreadable=""), batch=2).unreadable == {}


def test_only_the_streams_own_batches_are_its_last_one() -> None:
    state = written(State(), *segment_rows(State(), [counted(0, 9)]), batch=3)
    state = written(state, feed_row("orders", resumed=True), batch=9, writer=f"{STREAM}/resumed orders")
    assert (state.last_batch, state.sequence) == (3, 2)


def test_what_was_read_is_what_was_stated_last() -> None:
    read = ReadRanges().after([(TOPIC_PARTITION, (0, 10))], ingested_to=3)
    state = written(State(), read_row(read), batch=0)
    more = read.after([(TOPIC_PARTITION, (10, 12)), (("orders", "id", 1), (4, 5))], ingested_to=5)
    assert written(state, feed_row("orders"), read_row(more), batch=1).read_ranges == more
    assert state.read_ranges == read


def test_a_batch_is_called_by_its_writer_and_its_number() -> None:
    assert batch_name(STREAM, 7) == f"{STREAM} 7"
    assert batch_name(f"{STREAM}/request", None) == f"{STREAM}/request "


def test_the_segments_of_a_feed_are_its_own() -> None:
    rows = segment_rows(State(), [counted(0, 4), counted(5, 9, feed="customers", run="")])
    state = written(State(), *rows, batch=0)
    assert [row["feed"] for row in state.of_feed("orders")] == ["orders"]
    assert (state.names_no_run("orders"), state.names_no_run("customers")) == (False, True)


def test_records_without_coordinates_say_nothing_of_those_that_have_them() -> None:
    bare: dict[str, Any] = {"lowest": None, "highest": None}
    rows = segment_rows(State(), [counted(0, 4, run="first", **bare), counted(5, 9, run="")])
    assert written(State(), *rows, batch=0).names_no_run("orders")


def test_ranges_that_touch_are_one_and_those_with_an_offset_between_them_are_two() -> None:
    def pending(*ranges: tuple[int, int]) -> list[tuple[int, int]]:
        state = written(State(), *(waits(first, TOO_MANY, last=last) for first, last in ranges), batch=1)
        return [(first, last) for _place, first, last in state.pending_offsets("orders")]

    assert pending((51, 52), (40, 50)) == [(40, 52)]
    assert pending((52, 53), (40, 50)) == [(40, 50), (52, 53)]
    assert pending((40, 50), (45, 47), (50, 60)) == [(40, 60)]


def test_parts_of_a_segment_in_one_batch_are_one() -> None:
    (row,) = segment_rows(State(), [counted(0, 4), counted(5, 9)])
    assert (row["segment"]["first_offset"], row["segment"]["last_offset"], row["segment"]["judged"]) == (0, 9, 2)


def test_what_a_batch_does_not_say_of_a_feed_is_null() -> None:
    names = ("epochs", "cutoffs", "first_sent", "unreadable", "resumed")
    assert feed_row("orders") == {"feed": "orders", **dict.fromkeys(names)}
    assert feed_row("orders", first_sent={("t", "note"): (0, 9)}, resumed=True) == {
        **{"feed": "orders", **dict.fromkeys(names), "resumed": True},
        "first_sent": [{"topic": "t", "column": "note", "position": [0, 9]}],
    }


def test_a_table_that_stays_suspended_has_a_cause_and_no_range() -> None:
    assert cause_row("orders", TOO_MANY) == {
        "feed": "orders",
        "suspended": {
            **dict.fromkeys(("first_offset", "last_offset", "records")),
            **{"rule": "max_reject_ratio", "why": "too many", "contract": "1.0 abc"},
        },
    }
    assert waits(7, last=8) == {
        **{"feed": "orders", "topic": "orders", "topic_id": "id", "partition": 0},
        "suspended": {"first_offset": 7, "last_offset": 8, "records": 10, "rule": None, "why": None, "contract": None},
    }


def test_each_snapshot_of_a_run_is_a_segment() -> None:
    bare: dict[str, Any] = {"lowest": None, "highest": None}
    parts = [counted(0, 4, snapshot_at=[9], **bare), counted(5, 6, snapshot_at=[12], **bare), counted(7, 9)]
    state = written(State(), *segment_rows(State(), parts), batch=0)
    assert [row["snapshot_at"] for row in state.of_feed("orders")] == [[9], [12], None]
    (again,) = segment_rows(state, [counted(20, 24, snapshot_at=[9], **bare)])
    assert (again["segment"]["first_offset"], again["segment"]["last_offset"]) == (0, 24)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True), (False, False)])
def test_a_snapshot_has_ended_where_one_of_its_parts_has(first: bool, second: bool) -> None:
    named: dict[str, Any] = {"source_names": ["b"]}
    other: dict[str, Any] = {"source_names": ["a"], "lowest": None, "first_ms": None, "read_to_ms": None}
    (row,) = segment_rows(State(), [counted(3, 4, has_end=first, **named), counted(5, 9, has_end=second, **other)])
    segment = row["segment"]
    assert (segment["has_end"], segment["source_names"]) == (first or second, ["a", "b"])
    assert (segment["lowest"], segment["first_ms"], segment["read_to_ms"]) == ([3], 3, 4)
    assert (segment["highest"], segment["last_key"], segment["last_is_delete"]) == ([9], 9, False)


def test_a_segment_without_names_of_sources_adds_none() -> None:
    both: Sequence[tuple[list[str] | None, list[str] | None]] = ((None, ["a"]), (["a"], None), (["a"], []))
    for names in both:
        (row,) = segment_rows(State(), [counted(3, 4, source_names=names[0]), counted(5, 9, source_names=names[1])])
        assert row["segment"]["source_names"] == ["a"]
