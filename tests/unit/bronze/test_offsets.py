"""Where a source goes on under a checkpoint of its own: nothing is skipped, nothing stored twice."""

from __future__ import annotations

from bronze.offsets import cannot_join
from bronze.source_state import OffsetMove, steps_from
from lakehouse.kafka.offsets import Partition

A, B, C = Partition("a", 0), Partition("a", 1), Partition("c", 0)


def step(place: Partition, from_offset: int, to_offset: int) -> OffsetMove:
    return OffsetMove("shop", 0, place.topic, "id", place.number, from_offset, to_offset, "start")


def test_a_partition_that_begins_later_than_offset_0_cannot_join_a_checkpoint_that_has_others() -> None:
    assert cannot_join({A: 7, B: 0, C: 5}, {A: 7}) == [C]
    assert cannot_join({A: 7, B: 0}, {A: 7}) == []
    assert cannot_join({A: 7, C: 5}, {}) == [], "without a checkpoint a stream begins where it is let begin"


def test_every_partition_goes_on_behind_what_bronze_has() -> None:
    steps = [step(A, 0, 0), step(B, 2, 4), step(C, 5, 5)]
    found = steps_from(steps, {A: 3, B: 9, C: 5}, {("a", "id", 0): 6, ("c", "another id", 0): 80})
    assert [(one.from_offset, one.to_offset) for one in found] == [(7, 7), (9, 9), (5, 5)]


def test_what_was_being_read_again_still_is() -> None:
    steps = [step(A, 10, 2), step(B, 10, 2)]
    found = steps_from(steps, {A: 5, B: 14}, {("a", "id", 0): 11, ("a", "id", 1): 13})
    (of_a, of_b) = found
    assert (of_a.from_offset, of_a.to_offset, of_a.read_again) == (12, 5, 7)
    assert (of_b.from_offset, of_b.to_offset, of_b.read_again, of_b.skipped) == (14, 14, 0, 0)
