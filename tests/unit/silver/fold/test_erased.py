"""Events of erased keys: those up to the erased position are superseded, and later ones are of a new row."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from silver.fold.erased import ErasedKeys, erased_keys, key_digest, with_late_events
from silver.fold.fold import fold
from tests.support.feeds import feed
from tests.support.frames import frame_of
from tests.unit.silver.fold.test_fold_rules import positioned

THINGS = feed(columns={"id": "BIGINT", "note": "STRING", "amount": "BIGINT"})
SALT = "some salt"


def position(at: int, offset: int) -> tuple[int, ...]:
    return (0, at, 1, at, at, offset)


def marked(*events: Any, limit: tuple[int, ...]) -> pl.DataFrame:
    erased = ErasedKeys(SALT, {key_digest(SALT, [1]): limit})
    return with_late_events(frame_of(events, THINGS), erased, THINGS)


def test_an_event_that_comes_late_is_superseded_and_makes_no_row() -> None:
    # The delete itself too, which is sent again at a higher offset.
    events = [positioned(8, 10, "c"), positioned(9, 20, "d"), positioned(10, 20, "c", key=2)]
    folded = fold(marked(*events, limit=position(20, 3)), THINGS, {})
    assert folded.outcomes.to_list() == ["superseded", "superseded", "applied"]
    assert folded.rows.get_column("last").to_list() == [2]


def test_without_positions_in_a_log_the_offset_decides() -> None:
    columns = {"id": "BIGINT", "note": "STRING"}
    events = feed(envelope="outbox", sequence_by="kafka_offset", payload="full", columns=columns)
    places = [(7, "shop.things", 0, 3), (7, "shop.things", 0, 4)]
    sent = [positioned(at[-1], 1, "c")._replace(position=at) for at in places]
    erased = ErasedKeys(SALT, {key_digest(SALT, [1]): places[0]})
    assert with_late_events(frame_of(sent, events), erased, events).get_column("kind").to_list() == ["late", "change"]


def test_a_row_that_is_inserted_later_is_a_new_one() -> None:
    folded = fold(marked(positioned(8, 10, "c"), positioned(9, 30, "c"), limit=position(20, 3)), THINGS, {})
    assert folded.outcomes.to_list() == ["superseded", "applied"]
    assert folded.rows.get_column("last").to_list() == [1]


def test_tombstones_and_records_without_a_position_stay_what_they_are() -> None:
    events = [positioned(8, None, None), positioned(9, 10, "c", key=2)]
    assert marked(*events, limit=position(20, 3)).get_column("kind").to_list() == ["tombstone", "change"]
    none = frame_of(events, THINGS)
    assert with_late_events(none, None, THINGS) is none


def test_of_a_key_that_was_erased_twice_the_later_position_counts() -> None:
    rows: list[dict[str, str | None]] = [
        {"feed": "things", "salt": SALT, "key_digest": "a", "position": json.dumps({"x": at, "y": 1})}
        for at in (2, 10, 3)
    ]
    rows.append({"feed": "things", "salt": SALT, "key_digest": "b", "position": None})
    assert erased_keys(rows) == {"things": ErasedKeys(SALT, {"a": (10, 1)})}
    assert erased_keys([]) == {}


@pytest.mark.parametrize("other", [["salt", [2]], ["other", [1]], ["salt", ["1", "1"]], ["salt", ["1,1"]]])
def test_digests_differ_by_salt_and_by_every_value(other: Any) -> None:
    assert key_digest("salt", [1]) == key_digest("salt", ["1"]) != key_digest(*other)


def test_events_of_other_keys_stay_as_they_are() -> None:
    frame = frame_of([positioned(8, 10, "c", key=2)], THINGS)
    erased = ErasedKeys(SALT, {key_digest(SALT, [1]): position(20, 3)})
    assert with_late_events(frame, erased, THINGS) is frame
