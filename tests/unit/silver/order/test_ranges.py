"""What silver reads next: every offset that bronze has, once, in batches that are never large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from silver.order import ranges
from silver.order.ranges import BatchRanges, IngestedRange, ReadRanges, RecordRange, batches_of, record_ranges_of

ORDERS, CUSTOMERS = ("orders", "id", 0), ("customers", "id", 1)
PLACES = (ORDERS, CUSTOMERS)


def ingested(sequence: int, begin: int, until: int, records: int | None = None, **given: Any) -> IngestedRange:
    """A range of the orders' topic-partition, of records of a hundred bytes."""
    number = until - begin if records is None else records
    facts: dict[str, Any] = {"value_bytes": 100 * number, "first": begin, "last": until - 1}
    facts |= {"topic_partition": ORDERS, **given}
    return IngestedRange(sequence=sequence, begin=begin, until=until, records=number, **facts)


def offsets(batches: Iterable[BatchRanges]) -> list[list[tuple[int, int]]]:
    return [[span for _place, span in batch.offsets] for batch in batches]


def test_batches_of_bronze_are_joined_and_what_it_counted_is_known() -> None:
    own = [ingested(1, 0, 10), ingested(2, 10, 12), ingested(2, 0, 5, topic_partition=CUSTOMERS)]
    (batch,) = batches_of(own, ReadRanges())
    assert batch.ranges == [(ORDERS, 0, 9), (ORDERS, 10, 11), (CUSTOMERS, 0, 4)]
    assert (batch.ingested, batch.records) == (own, 17)
    assert batch.after == ReadRanges({ORDERS: [(0, 12)], CUSTOMERS: [(0, 5)]}, 2)
    assert list(batches_of(own, batch.after)) == []


def test_what_was_read_is_not_read_again() -> None:
    """A topic was skipped in part, then moved back: bronze reads the whole range, and has stored what was missing."""
    read = ReadRanges({ORDERS: [(0, 10), (15, 20)]}, 4)
    (batch,) = batches_of([ingested(5, 5, 25)], read)
    assert offsets([batch]) == [[(10, 15), (20, 25)]]
    assert batch.ingested is None, "bronze has counted more than these"
    assert batch.after == ReadRanges({ORDERS: [(0, 25)]}, 5)


def test_ranges_of_a_partition_together_have_their_sums_and_ends() -> None:
    empty = ingested(3, 12, 14, 0, first=None, last=None)
    own = [ingested(1, 0, 10, first_ms=7), ingested(2, 10, 12, first_ms=5), empty]
    customers = ingested(2, 0, 5, topic_partition=CUSTOMERS, first_ms=9)
    assert record_ranges_of([*own, customers]) == [
        RecordRange(ORDERS, 0, 11, 12, 1200, first_ms=5),
        RecordRange(CUSTOMERS, 0, 4, 5, 500, first_ms=9),
    ]


def test_a_range_without_a_record_is_passed_over() -> None:
    assert list(batches_of([ingested(1, 0, 10, 0, first=None, last=None)], ReadRanges())) == []


def test_a_large_batch_is_cut_by_records_and_by_bytes() -> None:
    with patch.multiple(ranges, BATCH_RECORDS=10, BATCH_BYTES=10_000):
        assert offsets(batches_of([ingested(1, 0, 25)], ReadRanges())) == [[(0, 8)], [(8, 16)], [(16, 25)]]
        assert offsets(batches_of([ingested(1, 0, 4, value_bytes=15_000)], ReadRanges())) == [[(0, 2)], [(2, 4)]]
        # What comes before and after is not joined to it, and what was not reached is read later.
        own = [ingested(1, 0, 5), ingested(2, 5, 25), ingested(3, 25, 30)]
        parts = list(batches_of(own, ReadRanges()))
        assert offsets(parts) == [[(0, 5)], [(5, 15)], [(15, 25)], [(25, 30)]]
        assert [part.after.ingested_to for part in parts] == [1, 1, 2, 3]
        assert [part.ingested is None for part in parts] == [False, True, True, False]
        assert offsets(batches_of(own[1:], parts[1].after)) == [[(15, 25)], [(25, 30)]]


def test_a_batch_that_is_cut_is_read_only_with_its_last_part() -> None:
    with patch.multiple(ranges, BATCH_RECORDS=10, BATCH_BYTES=10_000):
        assert [one.after.ingested_to for one in batches_of([ingested(5, 0, 25)], ReadRanges())] == [4, 4, 5]
        # Fewer offsets than parts: no part is empty.
        assert offsets(batches_of([ingested(1, 0, 2, 25)], ReadRanges())) == [[(0, 1)], [(1, 2)]]
        two = [ingested(1, 0, 2, 25), ingested(1, 0, 25, topic_partition=CUSTOMERS)]
        assert all(first < until for one in batches_of(two, ReadRanges()) for _place, (first, until) in one.offsets)


def test_what_was_read_of_a_range_counts_neither_as_records_nor_as_bytes() -> None:
    half = ReadRanges({ORDERS: [(0, 5)]})
    with patch.multiple(ranges, BATCH_RECORDS=10, BATCH_BYTES=10_000):
        (batch,) = batches_of([ingested(1, 0, 10, 18, value_bytes=15_000)], half)
    assert (batch.offsets, batch.records) == ([(ORDERS, (5, 10))], 9)


def test_bronze_has_counted_a_batch_where_all_of_its_ranges_are_whole() -> None:
    own = [ingested(1, 0, 10), ingested(2, 0, 5, topic_partition=CUSTOMERS)]
    (batch,) = batches_of(own, ReadRanges({ORDERS: [(0, 5)]}))
    assert batch.offsets == [(ORDERS, (5, 10)), (CUSTOMERS, (0, 5))]
    assert batch.ingested is None


def test_the_unread_parts_of_a_range_are_those_between_what_was_read() -> None:
    read = ReadRanges({ORDERS: [(0, 4), (10, 12), (20, 30)]})
    assert read.unread(ORDERS, 2, 25) == [(4, 10), (12, 20)]
    assert read.unread(ORDERS, 4, 10) == [(4, 10)]
    assert read.unread(ORDERS, 12, 15) == [(12, 15)]
    assert read.unread(ORDERS, 21, 40) == [(30, 40)]
    assert read.unread(ORDERS, 10, 12) == read.unread(ORDERS, 22, 30) == []
    assert read.unread(CUSTOMERS, 1, 3) == [(1, 3)]


def test_a_range_whose_timestamp_bronze_does_not_know_has_none() -> None:
    assert record_ranges_of([ingested(1, 0, 10)]) == [RecordRange(ORDERS, 0, 9, 10, 1000, first_ms=0)]


spans = st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from(PLACES))


@given(st.lists(st.lists(spans, min_size=1, max_size=4), max_size=6), st.integers(1, 20), st.data())
def test_every_offset_is_read_once_wherever_a_process_ends(
    told: Sequence[Sequence[tuple[int, int, tuple[str, str, int]]]], most: int, data: st.DataObject
) -> None:
    own = [
        ingested(sequence, begin, begin + length, topic_partition=topic_partition)
        for sequence, of_batch in enumerate(told)
        for begin, length, topic_partition in of_batch
    ]
    read, seen = ReadRanges(), Counter[tuple[object, int]]()
    with patch.object(ranges, "BATCH_RECORDS", most):
        while left := list(batches_of([one for one in own if one.sequence > read.ingested_to], read)):
            for batch in left[: data.draw(st.integers(1, len(left)))]:
                assert batch.records <= most + len(batch.offsets)
                for topic_partition, (begin, until) in batch.offsets:
                    seen.update((topic_partition, offset) for offset in range(begin, until))
                read = batch.after
                assert ReadRanges.from_row(batch.after.as_row()) == batch.after
    assert seen == Counter({(one.topic_partition, at): 1 for one in own for at in range(one.begin, one.until)})
