"""What follows from the runs of a connector: epochs, replays and cutoffs, whatever the batches were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from silver.order.runs import (
    Cutoff,
    EpochStart,
    RunSegment,
    SnapshotCutoff,
    brought_about,
    epoch_at,
    epoch_start,
    epochs,
    epochs_of_runs,
    merge_segments,
    offset_bounds,
    read_again,
    regressions,
    replays_below,
    run_order,
    run_segments,
    snapshot_cutoffs,
)

TOPIC_PARTITION = ("t", "id", 0)


def run_segment(run: str, first: int, last: int, low: int, high: int, *, partition: int = 0, ms: int = 0) -> RunSegment:
    """Streamed records of a run, at these offsets and coordinates."""
    return RunSegment(
        topic="t",
        topic_id="id",
        partition=partition,
        run_id=run,
        snapshot_at=None,
        first_offset=first,
        last_offset=last,
        lowest=(low,),
        highest=(high,),
        first_ms=ms or first,
        read_from_ms=first,
        read_to_ms=last,
    )


def snapshot(
    run: str, first: int, last: int, at: int, *, end: bool = True, partition: int = 0, ms: int = 0
) -> RunSegment:
    """The rows of a full snapshot."""
    rows = run_segment(run, first, last, 0, 0, partition=partition, ms=ms)
    return replace(rows, snapshot_at=(at,), lowest=None, highest=None, has_end=end, source_names=("shop",))


FIRST = run_segment("a", 0, 9, 100, 200)


def test_a_run_whose_coordinates_fall_is_found_in_its_partition_alone() -> None:
    known = [
        run_segment("a", 0, 9, 100, 200),
        run_segment("b", 10, 19, 50, 300),
        run_segment("a", 0, 9, 10, 20, partition=1),
    ]
    (regression,) = regressions(known, [], new={TOPIC_PARTITION})
    assert (
        regression.topic_partition,
        regression.run_id,
        regression.from_offset,
        regression.below,
        regression.is_snapshot,
    ) == (
        TOPIC_PARTITION,
        "b",
        10,
        (200,),
        False,
    )
    assert regressions(known, [], new={("t", "id", 1)}) == []
    assert regressions(known, [EpochStart("b", 1)], new={TOPIC_PARTITION}) == []
    rising = [run_segment("a", 0, 9, 100, 200), run_segment("b", 10, 19, 200, 300)]
    assert regressions(rising, [], new={TOPIC_PARTITION}) == []


def test_a_snapshot_behind_what_was_streamed_falls_too() -> None:
    known = [run_segment("a", 0, 9, 100, 200), snapshot("b", 10, 12, 50), run_segment("b", 13, 19, 60, 70)]
    (regression,) = regressions(known, [], new={TOPIC_PARTITION})
    assert regression.is_snapshot


def test_a_run_that_falls_behind_is_judged_once() -> None:
    first, replay = run_segment("a", 0, 9, 100, 200), run_segment("b", 10, 19, 150, 300)
    later = run_segment("b", 20, 29, 310, 320)
    found = regressions([first, replay], [], new={TOPIC_PARTITION})
    assert brought_about(found, own=[replay], before=[]) == found
    after = regressions([first, merge_segments([replay, later])[0]], [], new={TOPIC_PARTITION})
    assert after == found
    assert brought_about(after, own=[later], before=found) == []
    # Once more a part that lies behind; and a regression that is known only now, since what is before it came late.
    assert brought_about(after, own=[run_segment("b", 30, 39, 199, 200)], before=found) == found
    assert brought_about(found, own=[first], before=[]) == found


def test_a_run_stays_in_its_epoch_wherever_its_records_are_sent_again() -> None:
    again = [
        run_segment("a", 0, 99, 100, 200, ms=1),
        run_segment("b", 10, 19, 50, 60, ms=5),
        run_segment("c", 20, 29, 70, 80, ms=9),
    ]
    assert epochs_of_runs(again, [EpochStart("b", 5)]) == {"a": 0, "b": 5, "c": 5}


def test_records_without_a_run_never_fall() -> None:
    assert (
        regressions([run_segment("", 0, 9, 100, 200), run_segment("", 10, 19, 50, 60)], [], new={TOPIC_PARTITION}) == []
    )


def test_an_epoch_begins_in_every_partition_with_its_run_or_the_next_one() -> None:
    known = [
        run_segment("a", 0, 9, 100, 200),
        run_segment("b", 10, 19, 50, 300),
        run_segment("a", 0, 4, 100, 200, partition=1),
        run_segment("c", 5, 9, 400, 500, partition=1, ms=100),
        run_segment("a", 0, 4, 100, 200, partition=2),
    ]
    (regression,) = regressions(known, [], new={TOPIC_PARTITION})
    new = epoch_start(regression, known, [])
    begins = epochs(known, [new])
    assert begins == {TOPIC_PARTITION: [(10, new.epoch)], ("t", "id", 1): [(5, new.epoch)]}
    assert [epoch_at(begins, TOPIC_PARTITION, offset) for offset in (0, 9, 10, 99)] == [0, 0, new.epoch, new.epoch]
    # Where records of the run were placed before the epoch was known, they are read again.
    assert read_again(known, new, before={("t", "id", 1): 7, TOPIC_PARTITION: 9}) == {("t", "id", 1): (5, 7)}


def test_records_without_a_run_are_of_no_run_that_has_an_order_or_an_epoch() -> None:
    known = [run_segment("", 0, 9, 100, 200, ms=1), run_segment("b", 10, 19, 50, 60, ms=5)]
    assert run_order(known) == {"b": 0}
    assert epochs_of_runs(known, [EpochStart("b", 7)]) == {"b": 7}
    assert epochs(known, [EpochStart("b", 7)]) == {TOPIC_PARTITION: [(10, 7)]}


def test_an_epoch_whose_run_has_no_records_begins_nowhere() -> None:
    known = [run_segment("a", 0, 9, 100, 200), run_segment("b", 10, 19, 300, 400)]
    assert epochs(known, [EpochStart("gone", 7)]) == {}
    assert epochs(known, [EpochStart("gone", 7), EpochStart("b", 8)]) == {TOPIC_PARTITION: [(10, 8)]}


def test_an_epoch_that_is_found_late_stands_between_the_others() -> None:
    known = [
        run_segment("a", 0, 9, 100, 200, ms=1),
        run_segment("b", 10, 19, 50, 60, ms=5),
        run_segment("c", 20, 29, 10, 20, ms=9),
    ]
    (first, second) = regressions(known, [], new={TOPIC_PARTITION})
    late, early = epoch_start(second, known, []), epoch_start(first, known, [])
    assert early.epoch < late.epoch
    begins = epochs(known, [late, early])
    assert [epoch_at(begins, TOPIC_PARTITION, offset) for offset in (0, 10, 20)] == [0, early.epoch, late.epoch]


def test_two_epochs_of_one_millisecond_are_two() -> None:
    known = [
        run_segment("a", 0, 9, 100, 200, ms=5),
        run_segment("b", 10, 19, 50, 60, ms=5),
        run_segment("c", 20, 29, 10, 20, ms=5),
    ]
    (first, second) = regressions(known, [], new={TOPIC_PARTITION})
    one = epoch_start(first, known, [])
    assert epoch_start(second, known, [one]).epoch != one.epoch


def test_a_replay_repeats_what_earlier_runs_of_its_epoch_have_told() -> None:
    known = [run_segment("a", 0, 9, 100, 200), run_segment("b", 10, 19, 150, 300)]
    assert replays_below(known, []) == {(TOPIC_PARTITION, "b"): (200,)}
    assert replays_below(known, [EpochStart("b", 1)]) == {}


def in_order(*known: RunSegment) -> list[str]:
    order = run_order(known)
    return sorted(order, key=lambda run: order[run])


def test_runs_of_one_partition_are_in_the_order_of_their_offsets_whatever_the_clocks_say() -> None:
    """The worker of the second run has a clock that is behind, and its coordinates go on rising."""
    known = [run_segment("a", 0, 1, 100, 110, ms=10_000), run_segment("b", 2, 3, 120, 130, ms=9_000)]
    assert in_order(*known) == in_order(*known[::-1]) == ["a", "b"]
    assert regressions(known, [], new={TOPIC_PARTITION}) == []
    assert replays_below(known, []) == {(TOPIC_PARTITION, "b"): (110,)}


def test_runs_that_other_partitions_order_are_in_that_order_and_others_by_timestamps() -> None:
    through_b = [
        run_segment("a", 0, 1, 1, 2, ms=900),
        run_segment("b", 2, 3, 3, 4, ms=500),
        run_segment("b", 0, 1, 3, 4, partition=1, ms=500),
        run_segment("c", 2, 3, 5, 6, partition=1, ms=100),
    ]
    alone = run_segment("d", 0, 1, 1, 2, partition=2, ms=600)
    assert in_order(*through_b) == ["a", "b", "c"]
    assert in_order(*through_b, alone) == ["d", "a", "b", "c"]
    assert in_order(*through_b, replace(alone, first_ms=1_000)) == ["a", "b", "c", "d"]
    assert in_order(replace(alone, first_ms=None), run_segment("a", 0, 1, 1, 2, ms=5)) == ["d", "a"]


def test_the_order_of_many_runs_takes_a_few_comparisons_of_each() -> None:
    """A source keeps the runs of years: what a batch asks of them may not grow with their square."""

    class Name(str):
        __slots__ = ()
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Name(f"run {number}") for number in range(500)]
    known = [
        run_segment(name, number * 2, number * 2 + 1, number, number + 1, partition=partition)
        for number, name in enumerate(names)
        for partition in range(3)
    ]
    assert list(run_order(known)) == names
    assert Name.compared <= 20 * len(known)


def test_where_partitions_contradict_each_other_timestamps_decide() -> None:
    """A worker that lives on beside the new one."""
    known = [
        run_segment("a", 0, 9, 1, 2, ms=5),
        run_segment("b", 4, 9, 1, 2, ms=7),
        run_segment("b", 0, 9, 1, 2, partition=1, ms=7),
        run_segment("a", 4, 9, 1, 2, partition=1, ms=6),
        run_segment("c", 10, 12, 1, 2, partition=1, ms=1),
    ]
    assert in_order(*known) == ["a", "b", "c"]


def lanes(*orders: str, **ms: int) -> list[RunSegment]:
    """A partition each, in which the runs of these letters follow one another; `ms`: their timestamps."""
    return [
        run_segment(run, at * 10, at * 10 + 9, 1, 2, partition=partition, ms=ms[run])
        for partition, order in enumerate(orders)
        for at, run in enumerate(order)
    ]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        # Two contradictions: what comes behind both waits for both.
        (lanes("ba", "ab", "db", "ed", "de", a=1, b=2, d=5, e=6), "adbe"),
        (lanes("ab", "db", "ed", "de", "ba", a=1, b=2, d=5, e=6), "adbe"),
        # The earliest of those that wait for one another is first, not the earliest of all.
        (lanes("ab", "ba", "bc", a=5, b=6, c=1), "abc"),
        (lanes("abc", "cab", a=7, b=8, c=9), "abc"),
        (lanes("abc", "cab", a=9, b=8, c=7), "cab"),
        # Times decide, never the names of runs.
        (lanes("yq", "qy", "cy", "ec", "ce", q=1, y=2, c=5, e=6), "qcye"),
        # A partition that is through waits for nobody.
        (lanes("x", "ab", "ba", x=1, a=5, b=6), "xab"),
        # Behind one contradiction, and in another partition alone.
        (lanes("ab", "ba", "ad", a=5, b=6, d=1), "adb"),
    ],
)
def test_where_some_partitions_contradict_each_other_the_others_still_decide(
    known: list[RunSegment], expected: str
) -> None:
    assert "".join(in_order(*known)) == "".join(in_order(*known[::-1])) == expected
    assert sorted(run_order(known).values()) == list(range(len(expected)))


def test_a_run_begins_with_the_earliest_of_its_records() -> None:
    known = [
        run_segment("a", 0, 9, 1, 2, partition=5, ms=900),
        run_segment("a", 0, 9, 1, 2, partition=6, ms=100),
        run_segment("b", 0, 9, 1, 2, partition=7, ms=500),
    ]
    assert in_order(*known) == in_order(*known[::-1]) == ["a", "b"]


def test_rows_of_a_snapshot_have_its_coordinates_and_streamed_changes_their_own() -> None:
    rows = replace(snapshot("a", 0, 9, 50), lowest=(1,), highest=(99,))
    assert (rows.low, rows.high) == ((50,), (50,))
    assert (replace(rows, snapshot_at=None).low, replace(rows, snapshot_at=None).high) == ((1,), (99,))
    # A snapshot alone falls behind, or is what others fall behind.
    (regression,) = regressions([FIRST, snapshot("b", 10, 19, 150)], [], new={TOPIC_PARTITION})
    assert (regression.run_id, regression.is_snapshot) == ("b", True)
    behind = [snapshot("a", 0, 9, 150), run_segment("b", 10, 19, 140, 160)]
    assert [one.below for one in regressions(behind, [], new={TOPIC_PARTITION})] == [(150,)]


def test_offsets_lie_between_the_lowest_and_the_highest_of_a_partition() -> None:
    other = ("t", "id", 1)
    parts = [(TOPIC_PARTITION, 10, 19), (other, 3, 3), (TOPIC_PARTITION, 12, 30), (TOPIC_PARTITION, 5, 6)]
    for some in permutations(parts):
        assert offset_bounds(some) == {TOPIC_PARTITION: (5, 30), other: (3, 3)}


def test_a_topic_is_as_old_as_its_earliest_record() -> None:
    old = [run_segment("a", 0, 9, 1, 2, ms=10), run_segment("b", 20, 29, 3, 4, ms=1000)]
    new = replace(run_segment("c", 0, 9, 5, 6, ms=50), topic_id="a later id")
    assert in_order(*old, new) == in_order(new, *old[::-1]) == ["a", "b", "c"]


def test_offsets_of_a_topic_that_was_made_again_are_behind_those_of_the_old_one() -> None:
    known = [
        replace(run_segment("b", 0, 9, 300, 400, ms=50), topic_id="new"),
        run_segment("a", 5, 9, 100, 200, ms=10),
        run_segment("b", 10, 12, 210, 220, ms=20),
        replace(run_segment("c", 10, 12, 410, 420, ms=15), topic_id="new"),
    ]
    assert in_order(*known) == ["a", "b", "c"]
    assert regressions(known, [], new={TOPIC_PARTITION, ("t", "new", 0)}) == []


def test_epochs_grow_with_the_runs_also_where_clocks_go_back() -> None:
    known = [
        run_segment("a", 0, 9, 100, 200, ms=3_600_000),
        run_segment("b", 10, 19, 50, 60, ms=3_600_005),
        run_segment("c", 20, 29, 10, 20, ms=9),
        run_segment("d", 30, 39, 1, 2, ms=3_600_002),
    ]
    (first, second, third) = regressions(known, [], new={TOPIC_PARTITION})
    begun: list[EpochStart] = []
    for regression in (first, third, second):
        begun.append(epoch_start(regression, known, begun))
    (of_b, of_d, of_c) = [one.epoch for one in begun]
    assert 0 < of_b < of_c < of_d
    assert epochs_of_runs(known, begun) == {"a": 0, "b": of_b, "c": of_c, "d": of_d}


def floors_of(*known: RunSegment) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(one.run_id, one.offset, one.at) for one in snapshot_cutoffs(known, [])]


def test_a_cutoff_as_json_has_its_position_as_an_object() -> None:
    cutoff = Cutoff("truncate", '{"epoch": 1, "lsn": 20}', None, "t", 0, 9)
    topic_partition = {"topic": None, "at_topic": "t", "at_partition": 0, "at_offset": 9, "source_ms": None}
    assert cutoff.as_json() == {"reason": "truncate", "position": {"epoch": 1, "lsn": 20}, **topic_partition}
    assert cutoff.as_position() == (1, 20)


def test_a_complete_snapshot_of_a_later_run_writes_a_floor() -> None:
    assert floors_of(FIRST, snapshot("b", 10, 12, 500)) == [("b", 12, (500,))]


@pytest.mark.parametrize(
    ("why", "known"),
    [
        ("the first run has nothing before it", [snapshot("a", 0, 9, 100), run_segment("a", 10, 19, 100, 200)]),
        ("its last row was not read", [FIRST, snapshot("b", 10, 12, 500, end=False)]),
        ("it is in the middle of a run", [FIRST, run_segment("b", 10, 12, 300, 400), snapshot("b", 13, 15, 500)]),
        ("another partition may hold back rows", [FIRST, replace(FIRST, partition=1), snapshot("b", 10, 12, 500)]),
        (
            "in another partition it was streaming before",
            [FIRST, snapshot("b", 20, 22, 500), run_segment("b", 5, 6, 300, 400, partition=1)],
        ),
        (
            "it is of two sources",
            [FIRST, replace(snapshot("b", 10, 12, 500), source_names=("shop", "other"))],
        ),
    ],
)
def test_no_floor_is_written_when(why: str, known: list[RunSegment]) -> None:
    assert floors_of(*known) == [], why


@pytest.mark.parametrize(
    "behind",
    [run_segment("b", 13, 14, 500, 600, partition=1), run_segment("c", 13, 14, 500, 600, partition=1, ms=100)],
    ids=["streamed by the run", "of a later run"],
)
def test_a_partition_is_through_when_something_comes_behind_the_snapshot(behind: RunSegment) -> None:
    known = [FIRST, replace(FIRST, partition=1), snapshot("b", 10, 12, 500), behind]
    assert floors_of(*known) == [("b", 12, (500,))]


def row(**given: Any) -> dict[str, Any]:
    names = ("lowest", "highest", "first_ms", "read_from_ms", "read_to_ms", "highest_timestamp_ms", "snapshot_at")
    topic_partition = {"topic": "t", "topic_id": "id", "partition": 0, "run_id": "a"}
    return {**dict.fromkeys(names), **topic_partition, "has_end": False, "source_names": [], **given}


def test_stretches_do_not_depend_on_the_batches() -> None:
    batches = [
        row(first_offset=0, last_offset=4, lowest=[5], highest=[9], first_ms=3),
        row(first_offset=5, last_offset=9, lowest=[7], highest=[20], has_end=True, first_ms=2),
        row(first_offset=20, last_offset=29, source_names=["shop"], first_ms=8),
    ]
    (expected,) = run_segments(batches)
    assert (expected.first_offset, expected.last_offset, expected.lowest, expected.highest) == (0, 29, (5,), (20,))
    assert (expected.has_end, expected.first_ms, expected.source_names) == (True, 2, ("shop",))
    assert all(run_segments(order) == [expected] for order in permutations([*batches, batches[0]]))


def test_a_row_of_a_snapshot_is_a_run_segment_with_its_coordinates() -> None:
    of_snapshot = row(
        first_offset=0, last_offset=4, snapshot_at=[5, 6], source_names=None, read_from_ms=8, read_to_ms=9
    )
    (one,) = run_segments([of_snapshot])
    assert (one.snapshot_at, one.lowest, one.highest, one.source_names) == ((5, 6), None, None, ())
    assert (one.read_from_ms, one.read_to_ms, one.has_end) == (8, 9, False)
    assert len(run_segments([of_snapshot, {**of_snapshot, "snapshot_at": [5, 7]}, {**of_snapshot, "run_id": "b"}])) == 3


def test_records_without_coordinates_fall_behind_nothing_and_nothing_falls_behind_them() -> None:
    bare = replace(run_segment("b", 10, 19, 0, 0), lowest=None, highest=None)
    assert regressions([FIRST, bare], [], new={TOPIC_PARTITION}) == []
    # Beside them the run has others.
    of_snapshot = snapshot("b", 20, 29, 150)
    (regression,) = regressions([FIRST, bare, of_snapshot], [], new={TOPIC_PARTITION})
    assert (regression.from_offset, regression.below) == (10, (200,))
    assert regressions([bare, run_segment("c", 20, 29, 1, 2)], [], new={TOPIC_PARTITION}) == []
    assert replays_below([bare, run_segment("c", 20, 29, 1, 2)], []) == {}


def test_records_without_a_run_are_no_regression_but_others_fall_behind_them() -> None:
    nameless = run_segment("", 10, 19, 50, 60)
    assert regressions([FIRST, nameless], [], new={TOPIC_PARTITION}) == []
    assert replays_below([FIRST, nameless], []) == {}
    behind = run_segment("b", 20, 29, 150, 160)
    (regression,) = regressions([replace(FIRST, run_id=""), behind], [], new={TOPIC_PARTITION})
    assert (regression.run_id, regression.below) == ("b", (200,))
    assert replays_below([replace(FIRST, run_id=""), behind], []) == {(TOPIC_PARTITION, "b"): (200,)}


def test_a_run_falls_behind_in_every_id_of_its_topic() -> None:
    """Of a topic that was made again; where no new records are, nothing is found."""
    old = replace(run_segment("b", 10, 19, 50, 60), first_ms=5)
    again = replace(run_segment("b", 0, 9, 60, 70), topic_id="new", first_ms=50)
    further = replace(again, snapshot_at=(65,), first_offset=4)
    known = [FIRST, old, again, further]
    found = regressions(known, [], new={TOPIC_PARTITION, ("t", "new", 0)})
    assert [(one.topic_partition, one.from_offset) for one in found] == [(TOPIC_PARTITION, 10), (("t", "new", 0), 0)]
    assert [one.is_snapshot for one in found] == [True, True]
    assert [one.from_offset for one in regressions(known, [], new={("t", "new", 0)})] == [0]
    # Each later run is compared with all that came before it in the epoch.
    later = run_segment("c", 20, 29, 100, 110)
    assert [one.run_id for one in regressions([FIRST, old, later], [], new={TOPIC_PARTITION})] == ["b", "c"]
    assert [
        (one.run_id, one.below) for one in regressions([FIRST, old, later], [EpochStart("b", 1)], new={TOPIC_PARTITION})
    ] == []
    behind_b = run_segment("c", 20, 29, 55, 110)
    in_epoch = regressions([FIRST, old, behind_b], [EpochStart("b", 1)], new={TOPIC_PARTITION})
    assert [(one.run_id, one.below) for one in in_epoch] == [("c", (60,))]


def test_a_snapshot_at_or_above_what_was_streamed_does_not_fall() -> None:
    at_the_end = [FIRST, snapshot("b", 10, 12, 200), run_segment("b", 13, 19, 150, 170)]
    (regression,) = regressions(at_the_end, [], new={TOPIC_PARTITION})
    assert not regression.is_snapshot
    two = [FIRST, snapshot("b", 10, 12, 300), snapshot("b", 13, 15, 150)]
    assert [one.is_snapshot for one in regressions(two, [], new={TOPIC_PARTITION})] == [True]


def test_a_replay_repeats_the_streamed_changes_alone() -> None:
    """A snapshot sends rows, and no changes of the log."""
    known = [FIRST, snapshot("b", 10, 12, 900), run_segment("c", 20, 29, 150, 300), run_segment("d", 30, 39, 1, 2)]
    assert replays_below(known, []) == {
        (TOPIC_PARTITION, "b"): (200,),
        (TOPIC_PARTITION, "c"): (200,),
        (TOPIC_PARTITION, "d"): (300,),
    }
    assert replays_below(known, [EpochStart("c", 1)]) == {
        (TOPIC_PARTITION, "b"): (200,),
        (TOPIC_PARTITION, "d"): (300,),
    }


def test_a_regression_was_judged_where_run_place_and_coordinates_are_the_same() -> None:
    replay = run_segment("b", 10, 19, 150, 300)
    (found,) = regressions([FIRST, replay], [], new={TOPIC_PARTITION})
    at_the_end = run_segment("b", 20, 29, 200, 300)
    bare = replace(at_the_end, lowest=None, highest=None)
    assert brought_about([found], own=[at_the_end, bare], before=[found]) == []
    # Of several parts of the batch the lowest counts.
    for own in ([at_the_end, replay], [replay, at_the_end]):
        assert brought_about([found], own=own, before=[found]) == [found]
    for other in (replace(replay, partition=1), replace(replay, run_id="c"), replace(replay, topic="u")):
        assert brought_about([found], own=[other], before=[found]) == []
    judged = (replace(found, below=(300,)), replace(found, run_id="c"), replace(found, topic_partition=("t", "id", 1)))
    for one in judged:
        assert brought_about([found], own=[], before=[one]) == [found]


def test_an_epoch_leaves_room_for_those_that_are_found_later() -> None:
    known = [
        run_segment("a", 0, 9, 100, 200, ms=1),
        run_segment("b", 10, 19, 50, 60, ms=5),
        run_segment("b", 10, 19, 50, 60, ms=4, partition=1),
        run_segment("c", 20, 29, 10, 20, ms=5),
        run_segment("d", 30, 39, 1, 2, ms=5),
    ]
    (of_b, of_c, of_d) = regressions(known, [], new={TOPIC_PARTITION})
    # A millisecond of the run's first record, a thousand epochs.
    assert epoch_start(of_b, known, []) == EpochStart("b", 4 * 1024)
    assert epoch_start(of_b, known, [], shard="t") == EpochStart("b", 4 * 1024, "t")
    assert epoch_start(of_c, known, [EpochStart("b", 4 * 1024)]).epoch == 5 * 1024
    assert epoch_start(of_c, known, [EpochStart("b", 5 * 1024)]).epoch == 6 * 1024
    assert epoch_start(of_c, known, [EpochStart("b", 9 * 1024 + 7)]).epoch == 10 * 1024
    # The runs of others that begin before and after it.
    others = [EpochStart("b", 5 * 1024), EpochStart("d", 6 * 1024), EpochStart("gone", 7)]
    assert epoch_start(of_c, known, others).epoch == (5 * 1024 + 6 * 1024) // 2
    assert epoch_start(of_c, known, [EpochStart("d", 5 * 1024)]).epoch == 5 * 1024 // 2
    assert epoch_start(of_c, known, [EpochStart("d", 5 * 1024 + 1)]).epoch == 5 * 1024
    assert epoch_start(of_b, known, [EpochStart("c", 9000), EpochStart("d", 8000)]).epoch == 4 * 1024
    assert epoch_start(of_d, known, [EpochStart("b", 9000), EpochStart("c", 8000)]).epoch == 9 * 1024
    assert epoch_start(of_c, known, [EpochStart("d", 5 * 1024 - 1)]).epoch == (5 * 1024 - 1) // 2
    # Of several that are after it the lowest, of those that are above what is before it.
    assert epoch_start(of_b, known, [EpochStart("c", 3000), EpochStart("d", 5000)]).epoch == 3000 // 2
    assert epoch_start(of_b, known, [EpochStart("c", 5000), EpochStart("d", 3000)]).epoch == 3000 // 2
    for not_above in (8999, 9000):
        others = [EpochStart("b", 9000), EpochStart("d", not_above)]
        assert epoch_start(of_c, known, others).epoch == 9 * 1024
    # Its own start is neither before it nor after it.
    assert epoch_start(of_b, known, [EpochStart("b", 4 * 1024)]).epoch == 4 * 1024
    bare = [replace(one, first_ms=None) for one in known]
    assert epoch_start(of_b, bare, []).epoch == 1024


def test_an_epoch_begins_with_the_first_record_of_its_runs_in_each_place() -> None:
    known = [
        run_segment("c", 30, 39, 1, 2, ms=9),
        run_segment("b", 20, 29, 1, 2, ms=5),
        run_segment("", 12, 19, 1, 2, ms=5),
        run_segment("a", 0, 9, 1, 2, ms=1),
        run_segment("c", 4, 9, 1, 2, ms=9, partition=1),
    ]
    starts = [EpochStart("c", 9), EpochStart("b", 7)]
    begins = epochs(known, starts)
    assert begins == {TOPIC_PARTITION: [(20, 7), (30, 9)], ("t", "id", 1): [(4, 7), (4, 9)]}
    assert [epoch_at(begins, TOPIC_PARTITION, at) for at in (19, 20, 29, 30)] == [0, 7, 7, 9]
    assert [epoch_at(begins, ("t", "id", 1), at) for at in (3, 4)] == [0, 9]
    assert epoch_at(begins, ("t", "id", 2), 99) == 0
    assert epochs_of_runs(known, [*starts, EpochStart("gone", 8)]) == {"a": 0, "b": 7, "c": 9}
    # Read again is what was read before from there on.
    before = {TOPIC_PARTITION: 20, ("t", "id", 1): 3}
    assert read_again(known, EpochStart("b", 7), before=before) == {TOPIC_PARTITION: (20, 20)}
    assert read_again(known, EpochStart("b", 7), before={TOPIC_PARTITION: 19}) == {}


def cutoffs(*known: RunSegment, starts: Sequence[EpochStart] = ()) -> list[SnapshotCutoff]:
    return snapshot_cutoffs(known, starts)


COMPLETE = replace(snapshot("b", 10, 12, 500), read_from_ms=70, read_to_ms=90)


def test_the_cutoff_of_a_snapshot_has_its_place_epoch_and_time() -> None:
    expected = SnapshotCutoff(TOPIC_PARTITION, 12, "b", 0, (500,), 70)
    assert cutoffs(FIRST, COMPLETE) == [expected]
    assert cutoffs(FIRST, COMPLETE, starts=[EpochStart("b", 7)]) == [replace(expected, epoch=7)]
    # Records without a run were there before the first that has one.
    assert cutoffs(replace(FIRST, run_id=""), COMPLETE) == [expected]
    assert cutoffs(replace(FIRST, run_id=""), replace(COMPLETE, run_id="")) == []
    assert cutoffs(COMPLETE) == cutoffs() == []
    # Of two snapshots of the run the first, which has lower coordinates; in the order of the runs.
    later = replace(snapshot("c", 20, 22, 900), first_ms=20, read_from_ms=None)
    second = replace(COMPLETE, snapshot_at=(600,), first_offset=15, last_offset=17)
    for found in (cutoffs(FIRST, second, COMPLETE, later), cutoffs(FIRST, COMPLETE, second, later)):
        assert found == [expected, SnapshotCutoff(TOPIC_PARTITION, 22, "c", 0, (900,), None)]


def test_a_snapshot_over_several_partitions_ends_with_its_last_row() -> None:
    first = replace(COMPLETE, partition=1, has_end=False, read_from_ms=60, last_offset=44)
    expected = SnapshotCutoff(TOPIC_PARTITION, 12, "b", 0, (500,), 60)
    behind = run_segment("c", 50, 59, 600, 700, partition=1)
    for opening in ([first, COMPLETE], [COMPLETE, first]):
        assert cutoffs(FIRST, *opening) == [], "rows may follow in the other partition"
        assert cutoffs(FIRST, *opening, behind) == [expected]
    timeless = replace(first, read_from_ms=None, read_to_ms=None)
    assert cutoffs(FIRST, timeless, COMPLETE, behind) == [replace(expected, read_ms=70)]
    # With two ends the last that is known.
    ends = replace(first, has_end=True)
    (cutoff,) = cutoffs(FIRST, COMPLETE, ends, replace(behind, partition=0))
    assert (cutoff.topic_partition, cutoff.offset) == (("t", "id", 1), 44)


@pytest.mark.parametrize(
    ("streamed", "is_written"),
    [
        ({"first_offset": 13}, True),
        ({"first_offset": 10}, False),
        ({"first_offset": 9}, False),
        ({"first_offset": 5, "partition": 1, "read_from_ms": 90}, True),
        ({"first_offset": 5, "partition": 1, "read_from_ms": 89}, False),
        ({"first_offset": 5, "partition": 1, "read_from_ms": None}, True),
        ({"first_offset": 13, "read_from_ms": 95}, True),
        ({"first_offset": 13, "lowest": None, "read_from_ms": 1}, True),
    ],
)
def test_a_snapshot_opens_its_run_where_all_of_its_rows_come_before_what_is_streamed(
    streamed: dict[str, Any], is_written: bool
) -> None:
    of_run = replace(run_segment("b", 13, 19, 600, 700), read_from_ms=91)
    assert bool(cutoffs(FIRST, COMPLETE, replace(of_run, **streamed))) is is_written


def test_where_no_time_of_reading_is_known_offsets_alone_tell_that_a_snapshot_opens_its_run() -> None:
    timeless = replace(COMPLETE, read_to_ms=None)
    assert cutoffs(FIRST, timeless, run_segment("b", 5, 6, 600, 700, partition=1))
    # Of several parts the last row of the snapshot, and the first change.
    ends = [replace(COMPLETE, partition=1, has_end=False, read_to_ms=95), COMPLETE]
    changes = [
        replace(run_segment("b", 50, 59, 600, 700, partition=partition), read_from_ms=ms)
        for partition, ms in ((0, 99), (1, 94))
    ]
    assert not cutoffs(FIRST, *ends, *changes)
    assert cutoffs(FIRST, *ends, changes[0])


def test_the_runs_after_a_snapshot_say_that_a_partition_is_through() -> None:
    other = replace(FIRST, partition=1)
    earlier = run_segment("0", 0, 9, 1, 2, partition=2, ms=1)
    assert not cutoffs(FIRST, other, COMPLETE)
    without_changes = replace(run_segment("c", 13, 19, 1, 2, partition=1, ms=99), lowest=None, highest=None)
    assert cutoffs(FIRST, other, COMPLETE, without_changes)
    assert not cutoffs(FIRST, other, earlier, COMPLETE, without_changes)
    # A row of the same snapshot that has come there is not its end.
    assert not cutoffs(FIRST, COMPLETE, replace(COMPLETE, partition=1, has_end=False, run_id="b"))
    bare = replace(run_segment("b", 13, 19, 1, 2), lowest=None, highest=None)
    assert not cutoffs(FIRST, other, COMPLETE, bare)


def test_a_later_run_that_streams_from_where_the_snapshot_ended_says_that_all_of_it_is_there() -> None:
    """The connector was restarted before it streamed; and the topic is another one than that of the first run."""
    quiet, lost = replace(FIRST, partition=1), replace(FIRST, topic_id="of a topic that is gone")
    resumed = run_segment("c", 13, 19, 600, 700, ms=99)
    assert [one.run_id for one in cutoffs(lost, quiet, COMPLETE, resumed)] == ["b"]
    restarted = replace(resumed, run_id="d", first_ms=120)
    silent = replace(resumed, lowest=None, highest=None)
    assert [one.run_id for one in cutoffs(lost, quiet, COMPLETE, silent, restarted)] == ["b"]
    # A snapshot of its own says nothing of the earlier one, which may have broken off behind its last row.
    own = replace(COMPLETE, run_id="c", first_offset=13, last_offset=15, snapshot_at=(600,), has_end=False, first_ms=99)
    assert cutoffs(lost, quiet, COMPLETE, own) == []
    assert cutoffs(lost, quiet, COMPLETE, own, replace(restarted, first_offset=20, last_offset=29)) == []


def test_the_order_of_runs_decides_and_not_that_of_their_names() -> None:
    first = replace(FIRST, run_id="z")
    assert [one.run_id for one in cutoffs(first, COMPLETE)] == ["b"]
    assert cutoffs(first, replace(first, partition=1), COMPLETE) == []
    behind = run_segment("a", 50, 59, 600, 700, partition=1, ms=99)
    assert [one.run_id for one in cutoffs(first, replace(first, partition=1), COMPLETE, behind)] == ["b"]
    # The first run has nothing before it, though others follow.
    assert cutoffs(COMPLETE, run_segment("c", 20, 29, 600, 700)) == []


def test_a_snapshot_opens_its_run_in_each_partition_that_has_rows_of_it() -> None:
    other = replace(COMPLETE, partition=1, has_end=False)
    streamed = replace(run_segment("b", 13, 19, 600, 700, partition=1), read_from_ms=None)
    assert cutoffs(FIRST, COMPLETE, other, streamed)
    for rows in ([COMPLETE, other], [other, COMPLETE]):
        assert not cutoffs(FIRST, *rows, replace(streamed, first_offset=9))
