"""What a feed's contract says of its snapshots counts when they write cutoffs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest

from silver.order.history import History
from silver.order.runs import EpochStart, RunSegment
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
