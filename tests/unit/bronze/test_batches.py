"""When what an append has counted of a batch is taken, and which offsets of a batch are read again."""

from __future__ import annotations

import pytest

from bronze.batches import OBSERVED_PARTITIONS, STORED, Planned, observed_records, overlapping

PLANNED = [Planned("orders", "id", 0, 10, 20), Planned("orders", "id", 1, 0, 5)]


def metrics(*of_partitions: tuple[int, int, int | None, int | None, int | None]) -> dict[str, int | None]:
    return {
        f"{name}_{number}": value
        for number, values in enumerate(of_partitions)
        for name, value in zip(STORED, values, strict=True)
    }


def test_an_append_that_counted_no_more_than_there_are_offsets_is_taken() -> None:
    found = observed_records(PLANNED, metrics((3, 30, 10, 12, 1), (0, 0, None, None, None)))
    assert found is not None
    assert found["orders", "id", 0]["records"] == 3
    assert found["orders", "id", 1]["last_offset"] is None


def test_more_records_than_offsets_were_counted_twice() -> None:
    assert observed_records(PLANNED, metrics((6, 60, 10, 12, 1), (1, 9, 0, 0, 1))) is None


def test_of_too_many_partitions_nothing_was_counted() -> None:
    many = [Planned("orders", "id", number, 0, 1) for number in range(OBSERVED_PARTITIONS + 1)]
    assert observed_records(many, {"records": len(many)}) is None


@pytest.mark.parametrize(
    ("again", "expected"),
    [((0, 10), False), ((0, 11), True), ((19, 30), True), ((20, 30), False), ((12, 13), True)],
)
def test_a_batch_behind_what_is_read_again_reads_nothing_again(again: tuple[int, int], *, expected: bool) -> None:
    found = overlapping({("orders", 0): again, ("customers", 0): (0, 100)}, PLANNED)
    assert found == ({("orders", 0): again} if expected else {})
