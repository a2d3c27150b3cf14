"""What a feed's contract says of its snapshots counts when they write floors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest

from silver.order.history import History
from silver.order.runs import Opening, Stretch
from tests.support.feeds import feed

RUN = Stretch("shop.things", "id", 0, "first", None, 0, 9, lowest=(100, 100), highest=(200, 200), first_ms=1)
SNAPSHOT = Stretch("shop.things", "id", 0, "second", (500, 500), 10, 19, has_end=True, first_ms=2, source_names=("x",))


@pytest.mark.parametrize(("snapshots", "floors"), [("full", [500]), ("partial", [])])
def test_snapshots_that_may_leave_out_rows_write_no_floor(
    snapshots: Literal["full", "partial"], floors: list[int]
) -> None:
    past = History(feed(snapshots=snapshots), [RUN, SNAPSHOT], before={}, own=[], openings=[], floors=[])
    assert [json.loads(floor.position)["lsn"] for floor in past.snapshot_floors()] == floors


def test_a_floor_is_written_again_when_its_epoch_is_found_and_not_when_its_snapshot_is_sent_again() -> None:
    past = History(feed(), [RUN, SNAPSHOT], before={}, own=[], openings=[], floors=[])
    past = past.with_floors(past.snapshot_floors())
    assert past.snapshot_floors() == []
    again = replace(past, known=[RUN, replace(SNAPSHOT, last_offset=99)])
    assert again.snapshot_floors() == []
    (in_epoch,) = past.with_openings([Opening("second", 7)]).snapshot_floors()
    assert json.loads(in_epoch.position) == {**json.loads(past.floors[0].position), "epoch": 7}
