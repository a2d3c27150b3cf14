"""What follows from a feed's history: cutoffs as its contract has them, and epochs of each shard by itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from silver.order.history import Before, History, epoch_rows, history, with_new_epochs
from silver.order.runs import Cutoff, EpochStart, Regression, RunSegment
from silver.order.state import State, segment_rows
from tests.support.facts import counted
from tests.support.feeds import feed

RUN = RunSegment("shop.things", "id", 0, "first", None, 0, 9, lowest=(100, 100), highest=(200, 200), first_ms=1)
SNAPSHOT = RunSegment(
    "shop.things", "id", 0, "second", (500, 500), 10, 19, has_end=True, first_ms=2, source_names=("x",)
)


@pytest.mark.parametrize(("snapshots", "cutoffs"), [("full", [500]), ("partial", [])])
def test_snapshots_that_may_leave_out_rows_write_no_floor(
    snapshots: Literal["full", "partial"], cutoffs: list[int]
) -> None:
    past = History(feed(snapshots=snapshots), [RUN, SNAPSHOT], before={}, own=[], epoch_starts=[], cutoffs=[])
    assert [json.loads(cutoff.position)["lsn"] for cutoff in past.snapshot_cutoffs()] == cutoffs


def test_a_floor_is_written_again_when_its_epoch_is_found_and_not_when_its_snapshot_is_sent_again() -> None:
    past = History(feed(), [RUN, SNAPSHOT], before={}, own=[], epoch_starts=[], cutoffs=[])
    past = past.with_cutoffs(past.snapshot_cutoffs())
    assert past.snapshot_cutoffs() == []
    again = replace(past, known=[RUN, replace(SNAPSHOT, last_offset=99)])
    assert again.snapshot_cutoffs() == []
    (in_epoch,) = past.with_epoch_starts([EpochStart("second", 7)]).snapshot_cutoffs()
    assert json.loads(in_epoch.position) == {**json.loads(past.cutoffs[0].position), "epoch": 7}


# In shop one the log has begun again in the second run; in shop two it goes on.
SHARDS = feed(
    topics=("one.things", "two.things"),
    keys=("shop", "id"),
    columns={"shop": {"type": "STRING", "from_topic": r"^(\w+)\."}, "id": "BIGINT"},
)
ONE, TWO = ("one.things", "id", 0), ("two.things", "id", 0)


def segments(topic: str, *, second: int) -> list[RunSegment]:
    """Two runs of a topic, of which the second has these coordinates."""
    first = replace(RUN, topic=topic)
    later = replace(first, run_id="second", first_offset=10, last_offset=19, first_ms=2)
    return [first, replace(later, lowest=(second, second), highest=(second, second))]


def of_shards(**given: Any) -> History:
    known = [*segments("two.things", second=300), *segments("one.things", second=50)]
    read = {"read_to": {ONE: 14, TWO: 14}}
    return History(SHARDS, known, **{"before": {}, "own": known, "epoch_starts": [], "cutoffs": [], **read, **given})


def test_an_epoch_of_a_shard_is_none_of_the_others() -> None:
    past = of_shards()
    assert [shard.topic for shard in past.shards()] == ["one.things", "two.things"]
    (regression,) = past.regressions()
    assert (regression.topic_partition, regression.run_id, regression.below) == (ONE, "second", (200, 200))
    begun = past.epoch_start(regression)
    assert (begun.run_id, begun.shard) == ("second", "one.things")
    assert past.with_epoch_starts([begun]).epochs() == {ONE: [(10, begun.epoch)]}
    assert [list(shard.epoch_starts) for shard in past.with_epoch_starts([begun]).shards()] == [[begun], []]
    assert past.with_epoch_starts([begun]).regressions() == []
    # Of the same run in the other shard nothing is read again.
    assert past.read_again([begun]) == {ONE: (10, 14)}


def test_coordinates_are_compared_across_the_topics_of_a_feed_without_shards() -> None:
    past = replace(of_shards(), feed=feed(topics=SHARDS.topics))
    (shard,) = past.shards()
    assert (shard.topic, shard.known) == (None, past.known)
    begun = past.epoch_start(past.regressions()[0])
    assert past.read_again([begun]) == {ONE: (10, 14), TWO: (10, 14)}


def test_records_are_read_again_where_later_ones_show_the_order_of_runs() -> None:
    """Timestamps put `other` behind the run with which the log begins again; then a partition that both share does."""
    one, two = ("shop.things", "id", 0), ("shop.things", "id", 1)
    second = replace(RUN, run_id="second", first_offset=10, last_offset=19, lowest=(50, 50), highest=(60, 60))
    other = replace(RUN, partition=1, run_id="other", first_ms=9, highest=(900, 900))
    before = [RUN, replace(second, first_ms=5), other]
    starts = [EpochStart("second", 7)]
    truncate = Cutoff("truncate", json.dumps({"epoch": 7, "lsn": 900}), None, "shop.things", 1, 4)
    positioned = [(RUN, 0), (before[1], 7), (other, 7)]
    read_to = {one: 19, two: 9}
    past = History(feed(), before, {}, [], starts, [truncate], positioned=positioned, read_to=read_to)
    assert past.read_again([]) == {}
    assert past.highest_cutoffs("truncate") == {None: truncate}
    shown = replace(past, known=[*before, replace(other, partition=0, first_offset=9, last_offset=9)])
    assert shown.read_again([]) == {one: (0, 19), two: (0, 9)}, "an epoch was taken away: of all keys"
    assert shown.highest_cutoffs("truncate") == {}, "its record is of no such epoch"
    in_epoch = replace(shown, positioned=[(RUN, 0), (before[1], 7), (other, 0)])
    assert in_epoch.read_again([]) == {}
    later = replace(past, positioned=[(RUN, 0), (before[1], 7), (other, 0)])
    assert later.read_again([]) == {two: (0, 9)}, "an epoch that is later: of the run's own records"


def test_what_is_known_of_partitions_whose_new_records_name_no_run() -> None:
    """The highest coordinates before the batch, in the epoch that its first record is of."""
    bare = replace(RUN, run_id="", first_offset=0, last_offset=9)
    snapshot = replace(SNAPSHOT, run_id="", first_offset=10, last_offset=14)
    own = [replace(bare, first_offset=20, last_offset=29), replace(bare, partition=1, lowest=None, highest=None)]
    past = History(feed(), [*own], {}, own, [], [], positioned=[(bare, 0), (snapshot, 0)])
    topic_partition = {"topic": "shop.things", "topic_id": "id", "partition": 0}
    assert past.nameless() == [
        {**topic_partition, "read_to": 14, "highest_streamed": (200, 200), "highest": (500, 500)}
    ]
    of_old_topic = replace(past, positioned=[(replace(bare, topic_id="old"), 0)])
    assert of_old_topic.nameless() == [
        {**topic_partition, "read_to": -1, "highest_streamed": (200, 200), "highest": (200, 200)}
    ]
    begun = replace(RUN, run_id="begun", first_offset=15, last_offset=15)
    in_epoch = replace(past, known=[begun, *own], epoch_starts=[EpochStart("begun", 7)])
    assert in_epoch.nameless() == [{**topic_partition, "read_to": -1, "highest_streamed": None, "highest": None}]
    assert replace(past, own=[replace(own[0], run_id="named")]).nameless() == []


def test_a_shard_whose_runs_are_in_another_order_is_read_again_alone() -> None:
    past = of_shards(positioned=[(one, 7) for one in segments("one.things", second=50)[1:]])
    assert past.read_again([]) == {ONE: (0, 19)}


def all_of_them(found: Sequence[Regression]) -> Collection[Regression]:
    """Every run that falls behind states what is new."""
    return found


def test_where_order_is_by_kafkas_offset_no_epoch_begins() -> None:
    past = History(feed(), segments("shop.things", second=50), {}, segments("shop.things", second=50), [], [])
    _past, begun = with_new_epochs(past, all_of_them)
    assert [one.run_id for one in begun] == ["second"]
    by_offset = replace(past, feed=feed(envelope="outbox", sequence_by="kafka_offset"))
    assert with_new_epochs(by_offset, all_of_them) == (by_offset, [])


def test_places_of_some_runs_have_these_runs_and_every_snapshot() -> None:
    past = History(feed(), [RUN, SNAPSHOT, replace(RUN, run_id="third", first_offset=20)], {}, [], [], [])
    (whole,), (part,) = past.position_contexts(), past.position_contexts(runs={"third"})
    assert [run["run_id"] for run in whole["runs"]] == ["first", "second", "third"]
    assert part == {**whole, "runs": whole["runs"][2:]}
    assert [(one["run_id"], one["lsn"]) for one in part["snapshots"]] == [("second", 500)]


def test_a_run_is_read_from_where_it_was_read_before_by_its_place_in_the_log() -> None:
    def read(of: History, *parts: RunSegment) -> set[str]:
        return replace(of, own=parts).runs_read_from_here()

    begun = replace(RUN, highest=(200, 30), lowest=(100, 10))
    past = History(feed(), [begun], {}, [], [], [], read_before=[begun, SNAPSHOT])
    assert read(past, replace(RUN, lowest=(200, 31)), replace(SNAPSHOT, lowest=None)) == set()
    assert read(past, replace(RUN, lowest=(200, 30))) == {RUN.run_id}
    assert read(past, replace(RUN, lowest=(200, 30), partition=1)) == {RUN.run_id}, "in whatever partition"
    assert read(past, replace(RUN, lowest=(1, 1), run_id="another")) == set()
    # The rows of a binlog begin anew at one position.
    binlog = History(feed(kind="mysql"), [], {}, [], [], [], read_before=[replace(RUN, highest=(3, 700, 9))])
    assert read(binlog, replace(RUN, lowest=(3, 700, 12))) == {RUN.run_id}
    assert read(binlog, replace(RUN, lowest=(3, 701, 0))) == set()
    # Every topic of a sharded feed has a log of its own.
    shards = History(SHARDS, [], {}, [], [], [], read_before=[replace(begun, topic="one.things")])
    assert read(shards, replace(RUN, topic="two.things", lowest=(1, 1))) == set()
    assert read(shards, replace(RUN, topic="one.things", lowest=(1, 1))) == {RUN.run_id}


@pytest.mark.parametrize(
    ("lowest", "run", "sends_again"),
    [(201, "first", False), (200, "first", True), (150, "second", True), (201, "second", False)],
)
def test_changes_are_sent_again_where_the_log_has_been_read_as_far(lowest: int, run: str, sends_again: bool) -> None:
    own = replace(RUN, run_id=run, first_offset=20, last_offset=29, lowest=(lowest, lowest), highest=(900, 900))
    past = History(feed(), [RUN, own], {}, [own], [], [], positioned=[(RUN, 0), (SNAPSHOT, 0)])
    assert past.sends_again() is sends_again
    # Rows of a snapshot are no changes of the log; and what another epoch has read is no comparison.
    assert not replace(past, own=[replace(own, lowest=None, highest=None, snapshot_at=(1, 1))]).sends_again()
    assert not replace(past, positioned=[(RUN, 7)]).sends_again()


def test_what_was_read_of_a_partition_is_the_range_of_its_runs() -> None:
    other = replace(RUN, partition=1, first_offset=7, last_offset=8)
    past = History(feed(), [SNAPSHOT, RUN, other], {}, [], [], [])
    assert past.read_ranges() == {RUN.topic_partition: (0, 19), other.topic_partition: (7, 8)}


def test_the_rows_of_one_place_of_a_binlog_are_one_event_of_the_log_and_those_of_postgres_are_not() -> None:
    """PostgreSQL has two coordinates, MySQL a third, which begins anew."""

    def sends_again(kind: Literal["postgresql", "mysql"], read: Sequence[int], lowest: Sequence[int]) -> bool:
        before, own = replace(RUN, highest=tuple(read)), replace(RUN, lowest=tuple(lowest), first_offset=10)
        return History(feed(kind=kind), [before], {}, [own], [], [], positioned=[(before, 0)]).sends_again()

    assert sends_again("mysql", (3, 700, 1), (3, 700, 9))
    assert not sends_again("mysql", (3, 700, 1), (3, 701, 0))
    assert not sends_again("postgresql", (700, 1), (700, 9))
    # Of several runs that were read, the one that came furthest counts.
    lower, higher = replace(RUN, highest=(100, 100)), replace(RUN, highest=(900, 900))
    own = [replace(RUN, lowest=(500, 500))]
    for positioned in ([(lower, 0), (higher, 0)], [(higher, 0), (lower, 0)]):
        assert History(feed(), [RUN], {}, own, [], [], positioned=positioned).sends_again()


def test_the_run_that_came_furthest_is_read_from_here() -> None:
    lower, higher = replace(RUN, highest=(100, 100)), replace(RUN, highest=(900, 900))
    own = [replace(RUN, lowest=(500, 500))]
    for before in ([lower, higher], [higher, lower]):
        assert History(feed(), [], {}, own, [], [], read_before=before).runs_read_from_here() == {RUN.run_id}


def test_epochs_that_are_asked_for_are_those_and_no_others() -> None:
    known = [RUN, replace(RUN, run_id="second", first_offset=10), replace(RUN, run_id="third", first_offset=20)]
    past = History(feed(), known, {}, [], [EpochStart("second", 5), EpochStart("third", 9)], [])
    assert past.epochs() == {RUN.topic_partition: [(10, 5), (20, 9)]}
    assert past.epochs([EpochStart("third", 9)]) == {RUN.topic_partition: [(20, 9)]}
    assert epoch_rows(past, [EpochStart("third", 9)]) == [
        {"epoch": 9, "run_id": "third", "topic": "shop.things", "topic_id": "id", "partition": 0, "from_offset": 20}
    ]
    # An epoch of one shard begins in none of the others, though its run is there.
    in_shard = of_shards().epochs([EpochStart("second", 5, "two.things")])
    assert in_shard == {TWO: [(10, 5)]}


def test_where_an_epoch_is_taken_away_only_its_own_shard_is_read_again_from_its_beginning() -> None:
    """Of a feed without shards all topics are."""
    second = segments("shop.things", second=50)[1]
    read_to = {second.topic_partition: 19, ("other.things", "id", 0): 30, ("third.things", "id", 0): 31}
    past = History(feed(), [second], {}, [], [], [], positioned=[(second, 7)], read_to=read_to)
    assert past.read_again([]) == {topic_partition: (0, last) for topic_partition, last in read_to.items()}


def test_the_first_record_without_a_run_says_in_which_epoch_they_are() -> None:
    begun = replace(RUN, run_id="begun", first_offset=15, last_offset=15, lowest=None, highest=None)
    low = replace(RUN, run_id="", lowest=(100, 100), highest=(150, 150))
    high = replace(low, highest=(300, 300))
    own = [replace(low, first_offset=20), replace(low, first_offset=10), replace(low, first_offset=12)]
    empty = replace(low, run_id="empty", lowest=None, highest=None, last_offset=8)
    positioned = [(low, 0), (high, 0), (low, 7), (empty, 0), (low, 0)]
    past = History(feed(), [begun, *own], {}, own, [EpochStart("begun", 7)], [], positioned=positioned)
    (row,) = past.nameless()
    assert (row["read_to"], row["highest_streamed"], row["highest"]) == (9, (300, 300), (300, 300))
    elsewhere = [(replace(high, partition=1), 0), (replace(high, topic="other.things"), 0)]
    (row,) = replace(past, positioned=elsewhere).nameless()
    assert (row["read_to"], row["highest_streamed"], row["highest"]) == (-1, None, None)


@pytest.mark.parametrize(
    "given",
    [
        {"envelope": "outbox", "sequence_by": "kafka_offset"},
        {"sequence_by": "kafka_offset"},
        {"append_only": True, "keys": ()},
    ],
)
def test_a_snapshot_writes_no_cutoff_where_rows_do_not_go_by_the_source(given: Mapping[str, Any]) -> None:
    assert History(feed(**given), [RUN, SNAPSHOT], {}, [], [], []).snapshot_cutoffs() == []


def test_the_cutoff_of_a_snapshot_is_just_below_its_rows() -> None:
    complete = replace(SNAPSHOT, read_from_ms=70)
    (cutoff,) = History(feed(), [RUN, complete], {}, [], [EpochStart("second", 7)], []).snapshot_cutoffs()
    assert (cutoff.reason, cutoff.topic, cutoff.at_topic, cutoff.at_partition) == ("snapshot", None, "shop.things", 0)
    assert (cutoff.at_offset, cutoff.source_ms) == (19, 70)
    position = {"epoch": 7, "ordered_lsn": 500, "streamed": 0, "commit_lsn": 500, "lsn": 500, "kafka_offset": -1}
    assert json.loads(cutoff.position) == position
    first = replace(RUN, lowest=(3, 100, 0), highest=(3, 200, 0))
    known = [first, replace(complete, snapshot_at=(3, 700, 2))]
    (cutoff,) = History(feed(kind="mysql"), known, {}, [], [], []).snapshot_cutoffs()
    position = {"epoch": 0, "binlog_file": 3, "binlog_pos": 700, "binlog_row": 2, "streamed": 0, "kafka_offset": -1}
    assert json.loads(cutoff.position) == position


def cut(reason: str, epoch: int, lsn: int, *, topic: str | None = None, offset: int = 4, **given: Any) -> Cutoff:
    at = {"at_topic": "shop.things", "at_partition": 0, **given}
    return Cutoff(reason, json.dumps({"epoch": epoch, "lsn": lsn}), topic, at_offset=offset, **at)


def test_of_several_cutoffs_the_highest_counts_of_each_shard_and_reason() -> None:
    truncate, snapshot = cut("truncate", 0, 300), cut("snapshot", 0, 200)
    again, of_shard = cut("truncate", 0, 300, offset=9), cut("truncate", 0, 5, topic="one.things")
    purged = cut("collected", 0, 999)
    for cutoffs in ([snapshot, truncate, again, purged, of_shard], [purged, of_shard, truncate, snapshot, again]):
        past = History(feed(), [RUN], {}, [], [], cutoffs)
        assert past.highest_cutoffs("truncate", "snapshot") == {None: truncate, "one.things": of_shard}
        assert past.highest_cutoffs("snapshot") == {None: snapshot}
        assert past.highest_cutoffs("collected") == {None: purged}
        assert past.cutoff_by_shard() == {"": truncate, "one.things": of_shard}
        assert sorted(past.every_cutoff(), key=str) == sorted(
            [("", snapshot), ("", truncate), ("", again), ("one.things", of_shard)], key=str
        )


@pytest.mark.parametrize(
    ("known", "is_sound"),
    [
        ([RUN], False),  # the run of that offset is in another epoch
        ([replace(RUN, run_id="")], True),  # a record without a run has no other epoch
        ([RUN, replace(RUN, run_id="")], True),
        ([], True),  # nothing is known of its record
        ([replace(RUN, partition=1)], True),
        ([replace(RUN, topic="other.things")], True),
        ([replace(RUN, first_offset=5)], True),
        ([replace(RUN, last_offset=3)], True),
        ([replace(RUN, first_offset=4, last_offset=4)], False),
        ([RUN, replace(RUN, run_id="second", first_offset=4)], True),  # one of them is in its epoch
    ],
)
def test_a_cutoff_counts_where_no_run_contradicts_its_epoch(known: Sequence[RunSegment], is_sound: bool) -> None:
    cutoff = cut("truncate", 7, 300)
    past = History(feed(), known, {}, [], [EpochStart("second", 7)], [cutoff])
    assert past.highest_cutoffs("truncate") == ({None: cutoff} if is_sound else {})


def test_a_place_has_the_epochs_snapshots_and_runs_that_positions_depend_on() -> None:
    snapshot = replace(SNAPSHOT, snapshot_at=(510, 500), read_from_ms=60, first_offset=12)
    streamed = replace(
        SNAPSHOT, snapshot_at=None, lowest=(150, 150), highest=(600, 600), first_offset=10, last_offset=30
    )
    bare = replace(SNAPSHOT, run_id="", snapshot_at=(700, 700), first_offset=40)
    elsewhere = replace(RUN, partition=1)
    before = {RUN.topic_partition: Before(9, 5000, None, None)}
    starts = [EpochStart("second", 7)]
    past = History(feed(), [RUN, snapshot, streamed, bare, elsewhere], before, [], starts, [])
    one, other = past.position_contexts()
    assert one == {
        **{"topic": "shop.things", "topic_id": "id", "partition": 0, "highest_timestamp_ms": 5000},
        "epochs": [{"from_offset": 10, "epoch": 7}],
        "snapshots": [
            {"run_id": "second", "epoch": 7, "from_offset": 12, "lsn": 500, "read_from_ms": 60},
            {"run_id": "", "epoch": 7, "from_offset": 40, "lsn": 700, "read_from_ms": None},
        ],
        "runs": [
            {"run_id": "first", "from_offset": 0, "repeats_to": None, "epoch": 0},
            {"run_id": "second", "from_offset": 10, "repeats_to": None, "epoch": 7},
            {"run_id": "", "from_offset": 40, "repeats_to": None, "epoch": None},
        ],
    }
    assert (other["partition"], other["highest_timestamp_ms"], other["epochs"]) == (1, None, [])
    (first,) = replace(past, epoch_starts=[], known=[RUN, streamed]).position_contexts()
    assert [run["repeats_to"] for run in first["runs"]] == [None, (200, 200)]
    binlog = History(feed(kind="mysql"), [replace(snapshot, snapshot_at=(3, 7, 0))], {}, [], [], [])
    assert binlog.position_contexts()[0]["snapshots"] == []


def test_epochs_begin_until_no_run_falls_behind_with_new_changes() -> None:
    """Snapshots first: an epoch that one begins may explain the runs behind it."""
    second = replace(RUN, run_id="second", first_offset=10, last_offset=19, lowest=(50, 50), highest=(60, 60))
    snapshot = replace(SNAPSHOT, run_id="third", snapshot_at=(20, 20), first_offset=20, last_offset=29)
    third = replace(second, run_id="third", first_offset=30, last_offset=39, lowest=(30, 30), highest=(40, 40))
    fourth = replace(second, run_id="fourth", first_offset=40, last_offset=49, lowest=(35, 35), highest=(90, 90))
    own = [second, snapshot, third, fourth]
    past = History(feed(), [RUN, *own], {}, own, [], [])
    asked: list[list[str]] = []

    def telling(found: Sequence[Regression]) -> Collection[Regression]:
        asked.append([one.run_id for one in found])
        return [one for one in found if one.run_id == "fourth"]

    after, begun = with_new_epochs(past, telling)
    assert [one.run_id for one in begun] == ["third", "fourth"]
    # The second run only repeats: it is asked about once.
    assert asked == [["second", "fourth"]]
    assert [one.run_id for one in after.epoch_starts] == ["third", "fourth"]
    # A run that falls behind in two partitions begins one epoch.
    twice = [RUN, second, replace(RUN, partition=1), replace(second, partition=1)]
    _after, begun = with_new_epochs(History(feed(), twice, {}, twice, [], []), all_of_them)
    assert [one.run_id for one in begun] == ["second"]


def stored(*parts: Mapping[str, Any]) -> State:
    state = State()
    for number, part in enumerate(parts):
        written = {"source": "shop", "generation": "", "writer": "silver/shop/", "batch": number, "sequence": number}
        state = state.after([{**written, **row} for row in segment_rows(state, [part])])
    return state


def test_the_history_of_a_batch_has_what_was_read_before_it() -> None:
    known = {"feed": "things", "topic": "shop.things"}
    state = stored(
        counted(10, 19, highest_timestamp_ms=900, **known),
        counted(20, 29, run="run-2", highest_timestamp_ms=700, lowest=[50], highest=[60], **known),
        counted(5, 6, partition=1, with_unchanged_toast=0, **known),
    )
    rows = [counted(30, 39, run="run-2", lowest=[61], highest=[70], **known), counted(32, 33, run="run-3", **known)]
    past = history(feed(), rows, state)
    place, other = ("shop.things", "id", 0), ("shop.things", "id", 1)
    assert past.read_to == {place: 29, other: 6}
    # What follows it in offsets, with the last record and the highest timestamp of all.
    assert past.before == {
        place: Before(29, 900, 29, False),
        other: Before(6, 6, 6, True),
    }
    assert (past.reads_back, past.has_unchanged) == (False, True)
    assert [(one.run_id, one.first_offset, one.last_offset) for one in past.own] == [
        ("run-2", 30, 39),
        ("run-3", 32, 33),
    ]
    assert [(one.run_id, one.last_offset) for one in past.known] == [
        ("run-1", 19),
        ("run-2", 39),
        ("run-3", 33),
        ("run-1", 6),
    ]
    assert [(one.run_id, one.last_offset) for one in past.read_before] == [("run-1", 19), ("run-2", 29), ("run-1", 6)]
    assert [(one.run_id, epoch) for one, epoch in past.positioned] == [("run-1", 0), ("run-2", 0), ("run-1", 0)]
    # Its coordinates do fall, and did before this batch.
    assert [one.run_id for one in past.judged] == []
    assert [one.run_id for one in past.regressions()] == ["run-3"]


@pytest.mark.parametrize(("first", "reads_back"), [(29, True), (30, False), (4, True)])
def test_a_batch_reads_back_where_it_begins_before_what_was_read(first: int, reads_back: bool) -> None:
    known = {"feed": "things", "topic": "shop.things"}
    state = stored(counted(10, 29, **known, with_unchanged_toast=0))
    rows = [counted(40, 49, **known, with_unchanged_toast=0), counted(first, 45, **known, with_unchanged_toast=0)]
    past = history(feed(), rows, state)
    assert past.reads_back is reads_back
    assert list(past.before) == ([] if reads_back else [("shop.things", "id", 0)])
    assert not past.has_unchanged
    assert history(feed(), [{**rows[0], "with_unchanged_toast": 1}], state).has_unchanged
    assert not history(feed(), [counted(0, 9, partition=3, with_unchanged_toast=0, **known)], State()).reads_back


def test_of_records_without_a_timestamp_none_is_the_highest() -> None:
    known = {"feed": "things", "topic": "shop.things"}
    bare = stored(counted(10, 19, highest_timestamp_ms=None, **known), counted(0, 9, run="r", **known))
    (before,) = history(feed(), [counted(20, 29, **known)], bare).before.values()
    assert before == Before(19, 9, 19, False)
    nothing = stored(counted(10, 19, highest_timestamp_ms=None, **known))
    (before,) = history(feed(), [counted(20, 29, **known)], nothing).before.values()
    assert before.highest_timestamp_ms is None


def test_records_were_positioned_in_the_epoch_that_was_known_then() -> None:
    known = {"feed": "things", "topic": "shop.things"}
    state = stored(counted(0, 9, **known), counted(10, 19, run="run-2", **known), counted(20, 29, run="", **known))
    state = replace(state, epochs={("things", "run-2", "shop.things"): 7}, cutoffs=[("things", cut("truncate", 0, 1))])
    past = history(feed(), [counted(30, 39, run="run-2", **known)], state)
    assert [epoch for _one, epoch in past.positioned] == [0, 7, 7]
    assert (past.epoch_starts, past.cutoffs) == ([EpochStart("run-2", 7)], [cut("truncate", 0, 1)])
    shards = history(SHARDS, [], replace(state, epochs={("things", "run-2", "one.things"): 7}))
    assert shards.epoch_starts == [EpochStart("run-2", 7, "one.things")]


def test_what_is_read_again_of_a_partition_is_one_range() -> None:
    parts = [replace(RUN, first_offset=first, last_offset=first + 9) for first in (20, 0, 40, 30)]
    past = History(feed(), [RUN], {}, [], [EpochStart("first", 7)], [], positioned=[(one, 0) for one in parts])
    assert past.read_again([]) == {RUN.topic_partition: (0, 49)}


def test_a_batch_reads_back_where_it_does_in_one_of_its_partitions() -> None:
    known = {"feed": "things", "topic": "shop.things"}
    state = stored(counted(10, 19, **known), counted(10, 19, partition=1, **known))
    rows = [counted(20, 29, **known), counted(15, 29, partition=1, **known)]
    assert history(feed(), rows, state).reads_back
