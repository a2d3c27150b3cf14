"""Partial payloads: however the events are ordered, repeated and cut, every cell ends at its last value."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from demo.check import as_text
from tests.support.laws.contracts import PARTIAL
from tests.support.laws.partial import COLUMNS, ONE_STORY, RANDOM, PartialPayloads, State, expected
from tests.support.laws.played import Played
from tests.support.sharded import CASE

pytestmark = pytest.mark.spark


def rows(played: Played, case: str) -> dict[int, dict[str, Any]]:
    table = played.table(PARTIAL).where(F.col(CASE) == case)
    found = as_text(table, ["order_id", "_is_deleted", *COLUMNS], key="order_id")
    return {key: dict(row) for key, row in found.items()}


def live(found: dict[int, dict[str, Any]]) -> State:
    return {
        key: {name: value for name, value in row.items() if name != "_is_deleted"}
        for key, row in found.items()
        if not row["_is_deleted"]
    }


@pytest.mark.usefixtures("partial_payloads")
def test_a_partial_event_leaves_the_other_columns_as_they_are(played: Played) -> None:
    assert live(rows(played, ONE_STORY)) == {
        1: {"order_id": 1, "customer_id": 7, "status": "paid", "note": None},
        # What was said before the delete is gone with it.
        3: {"order_id": 3, "customer_id": None, "status": "again", "note": None},
    }


def test_events_that_come_late_and_again_end_the_same(played: Played, partial_payloads: PartialPayloads) -> None:
    found = rows(played, RANDOM)
    assert live(found) == expected(partial_payloads.events[RANDOM])
    deleted = [row for row in found.values() if row["_is_deleted"]]
    assert len(deleted) > 5
    assert {row[column] for row in deleted for column in COLUMNS} == {None}
