"""Which batches have to look into the quarantine."""

from __future__ import annotations

import pytest

from silver.order.runs import TopicPartition
from silver.rejects.quarantine import QuarantineState

PLACE: TopicPartition = ("shop.things", "id", 0)
STATE = QuarantineState(offsets={PLACE: (10, 19)})


@pytest.mark.parametrize(
    ("place", "first", "last", "meets"),
    [
        (PLACE, 20, 29, False),
        (PLACE, 0, 9, False),
        (PLACE, 19, 29, True),
        (PLACE, 0, 10, True),
        (PLACE, 0, 99, True),
        (("shop.things", "made again", 0), 10, 19, False),
    ],
)
def test_a_batch_meets_entries_where_it_has_offsets_between_theirs(
    place: TopicPartition, first: int, last: int, meets: bool
) -> None:
    assert STATE.meets([(("shop.others", "id", 0), 10, 19), (place, first, last)]) is meets
