"""The rules of the fold, each in the smallest story that needs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from silver.fold.fold import fold as fold_columns
from silver.order.runs import Cutoff
from tests.support.feeds import feed
from tests.support.frames import checked_fold as fold
from tests.support.frames import frame_of
from tests.support.oracle import Folded, PositionedEvent

THINGS = feed(columns={"id": "BIGINT", "note": "STRING", "amount": "BIGINT"})
OUTBOX = feed(
    envelope="outbox",
    sequence_by="kafka_offset",
    payload="partial",
    columns={"id": "BIGINT", "note": "STRING", "amount": "BIGINT"},
)


def positioned(offset: int, at: int | None, op: str | None = "u", key: int = 1, **more: Any) -> PositionedEvent:
    """A streamed change of a key, at this place in the log and in Kafka; without an `op` a tombstone."""
    text = json.dumps({"id": key})
    of_kind = {"kind": "tombstone" if op is None else "change", "is_delete": op == "d", "op": op}
    position = None if at is None else (0, at, 1, at, at, offset)
    given = {"topic": "shop.things", "topic_id": "id", "partition": 0, "key": text.encode(), "key_text": text}
    given |= {"run_id": "run", "is_streamed": True, "is_replay": False, "row_key": (key,), "position": position}
    return PositionedEvent(**{"offset": offset, **given, **of_kind, **more})


def of_things(records: Sequence[PositionedEvent], **cutoffs: Cutoff) -> Folded:
    return fold(records, THINGS, cutoffs)


def outcomes(folded: Folded) -> list[str]:
    return [came_to for _number, came_to in sorted(folded.outcomes.items())]


def test_the_highest_position_is_the_row_whatever_its_offset() -> None:
    """A run that replays sends old changes again, behind newer ones."""
    records = [positioned(0, 10, "c"), positioned(1, 20), positioned(2, 10, "c", run_id="next", is_replay=True)]
    folded = of_things(records)
    assert folded.rows[1,].last.number == 1
    assert outcomes(folded) == ["superseded", "applied", "duplicate"]


def test_what_repeats_the_last_change_is_the_row_and_the_other_its_duplicate() -> None:
    folded = of_things([positioned(0, 10, "c"), positioned(1, 10, "c", run_id="next")])
    assert folded.rows[1,].last.number == 1
    assert outcomes(folded) == ["duplicate", "applied"]


def test_a_record_may_be_there_twice() -> None:
    folded = of_things(
        [positioned(0, 10, "c"), positioned(0, 10, "c"), positioned(1, 20, "d"), positioned(2, None, None)]
    )
    assert folded.rows[1,].last.is_delete
    assert outcomes(folded) == ["superseded", "superseded", "applied", "tombstone"]


SHOP = feed(kind="mysql", columns={"id": "BIGINT", "note": "STRING", "amount": "BIGINT"})


def of_binlog(
    offset: int, row: int, op: str | None = "u", image: int = 0, pos: int = 700, **more: Any
) -> PositionedEvent:
    """A change of a key at this row of a position of the binlog."""
    return positioned(offset, None, op, position=(0, 3, pos, row, 1, offset), image=image, **more)


def of_shop(*records: PositionedEvent) -> tuple[int, list[str]]:
    """The number of the record that is the key's row, and what became of each."""
    folded = fold(records, SHOP, {})
    assert not folded.damaged
    return folded.rows[1,].last.number, outcomes(folded)


def test_rows_that_the_log_counts_anew_at_one_position_go_by_the_order_in_which_they_were_sent() -> None:
    """A compressed transaction: its statements share a position, and each begins at row 0."""
    first, second, third = of_binlog(0, 3, "c", 1), of_binlog(1, 0, "u", 2), of_binlog(2, 1, "u", 3)
    assert of_shop(first, second, third) == (2, ["superseded", "superseded", "applied"])
    assert of_shop(third, first, second) == (0, ["applied", "superseded", "superseded"]), "in whatever order they come"
    # Another statement writes the same row, by the same operation: another image is another change.
    assert of_shop(of_binlog(0, 0, image=1), of_binlog(1, 1, image=2), of_binlog(2, 0, image=3))[0] == 2
    assert of_shop(of_binlog(0, 0, image=1), of_binlog(1, 0, image=2), of_binlog(2, 0, "d", image=2))[0] == 2


def test_what_repeats_a_compressed_transaction_changes_nothing() -> None:
    sent = [of_binlog(0, 3, "c", 1), of_binlog(1, 0, "u", 2), of_binlog(2, 0, "u", 3)]
    again = [one._replace(offset=9, position=(*(one.position or ())[:-1], 9), run_id="next") for one in sent]
    for one in again[:-1]:
        assert of_shop(*sent, one._replace(is_replay=True)) == (2, ["superseded", "superseded", "applied", "duplicate"])
    assert of_shop(*sent, again[-1]) == (3, ["superseded", "superseded", "duplicate", "applied"])


def test_a_position_of_the_binlog_that_is_ahead_is_damaged_whatever_its_row() -> None:
    assert fold([of_binlog(0, 0, "c", pos=900), of_binlog(1, 5)], SHOP, {}).damaged == {0}


def test_a_position_ahead_of_a_later_one_of_its_run_is_damaged_and_so_is_what_repeats_it() -> None:
    records = [
        positioned(0, 10, "c"),
        positioned(1, 999),
        positioned(2, 20),
        positioned(3, 999, run_id="next"),
        positioned(4, 999, run_id="other"),
    ]
    folded = of_things(records)
    assert folded.damaged == {1, 3, 4}
    assert folded.rows[1,].last.number == 2
    assert outcomes(folded) == ["superseded", "quarantined", "applied", "quarantined", "quarantined"]


def test_a_higher_position_in_another_run_or_of_another_key_or_repeated_earlier_is_not_damaged() -> None:
    assert not of_things([positioned(0, 999, "c"), positioned(1, 20, run_id="next")]).damaged
    assert not of_things([positioned(0, 999, "c"), positioned(1, 20, key=2)]).damaged
    assert not of_things([positioned(0, 10, "c"), positioned(1, 20), positioned(2, 10, "c"), positioned(3, 20)]).damaged


def test_a_lone_tombstone_deletes_behind_the_highest_place_and_not_behind_the_record_before_it() -> None:
    records = [
        positioned(0, 10, "c"),
        positioned(1, 20),
        positioned(2, 10, "c", run_id="next", is_replay=True),
        positioned(3, None, None),
    ]
    folded = of_things(records)
    assert folded.rows[1,].last.number == 3
    assert folded.rows[1,].last.is_delete
    assert folded.rows[1,].last.position == (0, 20, 1, 20, 20, 3)
    assert outcomes(folded)[3] == "applied"


def test_a_tombstone_behind_its_delete_or_behind_nothing_deletes_nothing() -> None:
    assert outcomes(of_things([positioned(0, 10, "d"), positioned(1, None, None)])) == ["applied", "tombstone"]
    without_row = positioned(1, None, None, row_key=None)
    assert not of_things([positioned(0, 10, "c"), without_row]).rows[1,].last.is_delete, "its key cannot be read"
    alone = of_things([positioned(1, None, None)])
    assert not alone.rows
    assert outcomes(alone) == ["tombstone"]


def test_a_record_without_a_position_ends_a_delete_and_moves_no_tombstone() -> None:
    """As it is in quarantine, it is read: the tombstone behind it is not that of the delete before."""
    unreadable = positioned(1, None, "c", kind="quarantined")
    assert outcomes(of_things([positioned(0, 10, "d"), positioned(1, None, None)])) == ["applied", "tombstone"]
    folded = of_things([positioned(0, 10, "d"), unreadable, positioned(2, None, None)])
    assert folded.rows[1,].last.position == (0, 10, 1, 10, 10, 2)
    assert folded.outcomes == {0: "duplicate", 2: "applied"}
    assert not of_things([unreadable, positioned(2, None, None)]).rows, "nothing before it has a position"


def tombstone(offset: int, run: str, ms: int, *, begins: int = 0) -> PositionedEvent:
    return positioned(offset, None, None, run_id=run, timestamp_ms=ms, run_from=begins)


def of_run(offset: int, at: int | None, op: str, run: str, ms: int, *, begins: int = 0, **more: Any) -> PositionedEvent:
    return positioned(offset, at, op, run_id=run, timestamp_ms=ms, run_from=begins, **more)


def test_a_tombstone_that_is_sent_again_deletes_nothing_of_a_later_run() -> None:
    """Delete and tombstone of one run, the row again in the snapshot of the next, whose clock is behind."""
    records = [
        of_run(0, 10, "c", "a", 5_000),
        of_run(1, 20, "d", "a", 6_000),
        tombstone(2, "a", 6_000),
        of_run(3, 30, "r", "b", 4_000, begins=3, is_streamed=False),
        tombstone(4, "a", 6_000),
    ]
    folded = of_things(records)
    assert folded.rows[1,].last.number == 3
    assert outcomes(folded) == ["superseded", "superseded", "tombstone", "applied", "tombstone"]


def test_a_tombstone_that_is_older_than_an_earlier_record_of_its_run_is_sent_again() -> None:
    story = [of_run(0, 10, "c", "a", 1), of_run(1, 20, "d", "a", 2), tombstone(2, "a", 2), of_run(3, 30, "c", "a", 4)]
    assert not of_things([*story, tombstone(4, "a", 2)]).rows[1,].last.is_delete
    assert of_things([*story, tombstone(4, "a", 4)]).rows[1,].last.number == 4, "one of the same time may delete"
    compacted = [one for one in story if one.kind == "change"]
    assert not of_things([*compacted, tombstone(4, "a", 2)]).rows[1,].last.is_delete
    at_once = [of_run(0, 10, "d", "a", 2), tombstone(1, "a", 2), of_run(2, 20, "c", "a", 2), tombstone(3, "a", 2)]
    assert of_things(at_once).rows[1,].last.number == 2, "but not the same one"
    waits = of_run(3, None, "c", "a", 4, kind="quarantined")
    assert outcomes(of_things([*story[:3], waits, tombstone(4, "a", 2)])) == [
        "superseded",
        "applied",
        "tombstone",
        "tombstone",
    ]


def test_a_tombstone_alone_deletes_what_earlier_runs_have_stated_and_not_what_later_ones_have() -> None:
    """Compaction has removed its delete."""
    story = [of_run(0, 10, "c", "a", 9), of_run(1, 20, "u", "a", 9), tombstone(5, "b", 1, begins=4)]
    folded = of_things(story)
    assert (folded.rows[1,].last.number, folded.rows[1,].last.position) == (2, (0, 20, 1, 20, 20, 5))
    replayed = [*story[:2], of_run(4, 10, "c", "b", 1, begins=4), tombstone(5, "b", 2, begins=4)]
    assert of_things(replayed).rows[1,].last.position == (0, 20, 1, 20, 20, 5)
    again = [*story, of_run(6, 30, "c", "c", 0, begins=6), tombstone(7, "b", 1, begins=4)]
    assert of_things(again).rows[1,].last.number == 3
    later = of_things([of_run(6, 30, "c", "c", 0, begins=6), tombstone(7, "b", 1, begins=4)])
    assert later.rows[1,].last.number == 0
    assert outcomes(later) == ["applied", "tombstone"]


def test_a_delete_that_is_sent_again_before_a_tombstone_is_not_its_delete() -> None:
    story = [of_run(0, 10, "d", "a", 1), of_run(1, 20, "c", "a", 2), of_run(2, 10, "d", "a", 1), tombstone(3, "a", 3)]
    assert of_things(story).rows[1,].last.number == 3


def test_a_delete_that_a_run_replays_is_the_tombstones_where_it_is_just_before_it() -> None:
    """Further on compaction has removed what the run has told in between, and the tombstone's own delete."""
    story = [of_run(0, 10, "d", "a", 1), of_run(1, 20, "c", "a", 2), of_run(5, 10, "d", "b", 3, begins=5)]
    assert of_things([*story, tombstone(6, "b", 3, begins=5)]).rows[1,].last.number == 1
    folded = of_things([*story, tombstone(9, "b", 4, begins=5)])
    assert (folded.rows[1,].last.number, folded.rows[1,].last.position) == (3, (0, 20, 1, 20, 20, 9))
    again = [story[0], of_run(5, 10, "d", "b", 3, begins=5), tombstone(9, "b", 4, begins=5)]
    assert outcomes(of_things(again))[2] == "tombstone"


def test_what_a_tombstone_has_deleted_stays_deleted_when_it_is_sent_again() -> None:
    of_a = [of_run(0, 10, "c", "a", 9), tombstone(1, "a", 10)]
    folded = of_things([*of_a, of_run(2, 10, "c", "a", 9)])
    assert folded.rows[1,].last.number == 1
    assert outcomes(folded) == ["duplicate", "applied", "duplicate"]
    assert of_things([*of_a, of_run(2, 10, "c", "a", 10)]).rows[1,].last.number == 2, "as young: made again"
    assert of_things([*of_a, of_run(2, 30, "c", "a", 11)]).rows[1,].last.number == 2
    of_b = [of_run(0, 10, "c", "a", 9), tombstone(2, "b", 1, begins=2)]
    assert of_things([*of_b, of_run(3, 10, "c", "a", 9)]).rows[1,].last.number == 1
    assert of_things([*of_b, of_run(3, 10, "c", "c", 1, begins=3)]).rows[1,].last.number == 2, "a later run's replay"


def test_a_tombstone_without_a_run_goes_by_its_offset_and_once_by_its_timestamp() -> None:
    first = [of_run(0, 10, "c", "", 1), of_run(1, 20, "d", "", 2), tombstone(2, "", 2), of_run(3, 30, "c", "", 3)]
    assert not of_things([*first, tombstone(4, "", 2)]).rows[1,].last.is_delete
    assert of_things([*first, tombstone(4, "", 1)]).rows[1,].last.number == 4
    assert of_things([*first, of_run(4, 20, "d", "", 9), tombstone(5, "", 9)]).rows[1,].last.number == 3, "a replay"


def test_a_tombstone_of_a_feed_by_offsets_stands_at_its_own() -> None:
    at = (7, "shop.things", 0, 5)
    assert fold([positioned(5, None, None, position=at)], OUTBOX, {}).rows[1,].last.position == at


def test_below_a_cutoff_a_key_is_gone_and_above_it_not() -> None:
    position = json.dumps(dict(zip("abcdef", (0, 15, 1, 15, 15, 9), strict=True)))
    truncate = Cutoff("truncate", position, None, "shop.things", 0, 9)
    folded = fold(
        [positioned(0, 10, "c"), positioned(1, 10, "c", key=2), positioned(2, 20, key=2)], THINGS, {"": truncate}
    )
    gone, kept = folded.rows[1,].last, folded.rows[2,].last
    assert (gone.is_delete, gone.op, gone.position, gone.at) == (
        True,
        "t",
        (0, 15, 1, 15, 15, 9),
        ("shop.things", 0, 9),
    )
    assert kept.number == 2
    assert outcomes(folded) == ["superseded", "superseded", "applied"]


def test_of_events_with_one_id_the_first_counts() -> None:
    def event(offset: int, event_id: str | None) -> PositionedEvent:
        return positioned(offset, None, position=(0, "shop.things", 0, offset), event_id=event_id)

    folded = fold([event(0, "a"), event(1, "b"), event(2, "a"), event(3, None)], OUTBOX, {})
    assert folded.rows[1,].last.number == 3
    assert folded.outcomes[2] == "duplicate"
    assert fold([event(0, "a"), event(1, "b"), event(2, "a")], OUTBOX, {}).rows[1,].last.number == 1


def test_a_column_that_events_pass_over_has_its_own_last_word_until_a_delete() -> None:
    def event(offset: int, op: str, *unchanged_toast: str) -> PositionedEvent:
        return positioned(offset, None, op, position=(0, "shop.things", 0, offset), unchanged_toast=unchanged_toast)

    story = [event(0, "c"), event(1, "u", "note"), event(2, "u", "amount")]
    row = fold(story, OUTBOX, {}).rows[1,]
    assert {column: cell and cell[0] for column, cell in row.column_versions.items()} == {"note": 2, "amount": 1}
    assert outcomes(fold(story, OUTBOX, {})) == ["superseded", "applied", "applied"]
    again = fold([*story, event(3, "d"), event(4, "c", "amount")], OUTBOX, {}).rows[1,]
    assert {column: cell and cell[0] for column, cell in again.column_versions.items()} == {"note": 4, "amount": None}
    assert (again.deleted_at, again.unresolved) == ((0, "shop.things", 0, 3), [])


def test_a_large_value_that_nothing_has_stated_is_unresolved() -> None:
    row = of_things([positioned(0, 10, "u", unchanged_toast=("note",))]).rows[1,]
    assert (row.column_versions, row.unresolved) == ({"note": None}, ["note"])


def changed(offset: int, at: int, *, key: int, old: int) -> Sequence[PositionedEvent]:
    """A change of the key: the delete of the old one, and the create of the new one, without its note."""
    old_key = json.dumps({"id": old})
    create = positioned(offset + 1, at, "c", key, old_key=old_key, unchanged_toast=("note",))
    return [positioned(offset, at, "d", old), create]


def test_a_large_value_is_the_previous_keys_or_an_even_older_ones() -> None:
    story = [positioned(0, 10, "c"), *changed(1, 20, key=2, old=1), *changed(3, 30, key=3, old=2)]
    row = of_things(story).rows[3,]
    assert row.column_versions == {"note": (0, (0, 30, 1, 30, 30, 4))}
    assert row.unresolved == []
    assert of_things(story[::-1]).rows[3,].column_versions == {"note": (4, (0, 30, 1, 30, 30, 4))}, "in any order"
    later = [*story, positioned(9, 40, "u", 3), positioned(10, 50, "u", 3, unchanged_toast=("note",))]
    assert of_things(later).rows[3,].column_versions == {"note": (5, (0, 40, 1, 40, 40, 9))}


def test_a_previous_key_states_nothing_after_the_change_and_nothing_that_is_deleted() -> None:
    reused = [*changed(1, 20, key=2, old=1), positioned(9, 30, "c", 1)]
    assert of_things(reused).rows[2,].unresolved == ["note"]
    deleted = [
        positioned(0, 10, "c"),
        *changed(1, 20, key=2, old=1),
        positioned(5, 30, "d", 2),
        positioned(6, 40, "c", 2, unchanged_toast=("note",)),
    ]
    assert of_things(deleted).rows[2,].unresolved == ["note"]


def test_a_changed_key_has_nothing_of_an_earlier_row_of_the_same_key() -> None:
    story = [positioned(0, 5, "c", 2), positioned(1, 10, "c", 1), *changed(2, 20, key=2, old=1)]
    assert of_things(story).rows[2,].column_versions == {"note": (1, (0, 20, 1, 20, 20, 3))}


def test_a_large_value_is_found_over_thousands_of_changes_of_the_key() -> None:
    story = [positioned(0, 10, "c", 0)]
    for number in range(1, 3_000):
        story += changed(2 * number, 10 + number, key=number, old=number - 1)
    frame = frame_of(story, THINGS)
    row = fold_columns(frame, THINGS, {}).rows.filter(~pl.col("is_delete")).row(0, named=True)
    assert (row["last"], row["number:note"]) == (len(story) - 1, 0)
