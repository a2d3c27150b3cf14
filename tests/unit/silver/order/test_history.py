"""What follows from a feed's history: cutoffs as its contract has them, and epochs of each shard by itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from silver.order.history import History, with_new_epochs
from silver.order.runs import Cutoff, EpochStart, Regression, RunSegment
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
