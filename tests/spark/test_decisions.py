"""Quarantine: what people decide about records, and that silver then is what it would be had they never waited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse.contracts.models import Contracts, Expectation
from silver.rejects import decisions
from silver.rejects.quarantine import QUARANTINE
from tests.support.events import (
    Record,
    change,
    compact,
    mysql_image,
    mysql_source,
    order,
    postgres_image,
    postgres_source,
    record,
)
from tests.support.silver import Told, with_gate

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FEED, TOPIC = "mysql_orders", "mysql_prod_tables.ecommerce.orders"
OUTBOX = "outbox.event.mysql.orders"
AMOUNT = Expectation(
    name="amount_not_negative",
    type="expect_column_values_to_be_between",
    kwargs={"column": "total_amount", "min_value": 0},
    on_failure="quarantine",
    description="An order's amount is zero or more.",
)
RUN = [("__debezium.context.runId", "run-1")]


def mended(told: Told) -> None:
    """From now on, a negative amount may pass."""
    lenient = AMOUNT.model_copy(update={"kwargs": {"column": "total_amount", "min_value": -1000}})
    told.contracts = with_gate(told.contracts, lenient)


def event(op: str, key: int, pos: int, offset: int, amount: str = "1.00", **columns: Any) -> Record:
    image = None if op == "d" else mysql_image(order(key, total_amount=amount, **columns))
    value = change(op, mysql_source(pos), image)
    return record(TOPIC, offset, key={"order_id": key}, value=value, headers=RUN)


OF_AMOUNT = f"total_amount: {AMOUNT.description}"


def amounts(told: Told) -> dict[int, str]:
    return {key: str(amount) for key, amount in told.rows(FEED, "total_amount").items()}


# Of the story: which order an offset is about, what is wrong with it, and in which batch it comes.
# 0-4   orders 1 and 2: bad updates, a bad insert with a good update behind it
# 5     order 3 may pass by neither gate
# 6     order 4 is released, 7: order 5 is discarded, 8: order 6 has a time that is none
# 9,10  order 7 waits, and is deleted by a tombstone alone in the next batch
# 11-13 order 8: the record in the middle has a damaged position
# 14,15 order 9: both wait, and only the first is retried at first
# 16-18 order 10: a record with a damaged position waits for another reason


def first_batch() -> list[Record]:
    conversion_error = event("c", 6, 900, 8)
    return [
        event("c", 1, 100, 0),
        event("u", 1, 200, 1, "-2.00"),
        event("u", 1, 300, 2, "-3.00"),
        event("c", 3, 500, 5, "-5000.00"),
        event("c", 4, 700, 6, "-6000.00"),
        event("c", 5, 800, 7, "-1.00"),
        {**conversion_error, "value": conversion_error["value"].replace("2026-01-01T00:00:00Z", "soon")},
        event("c", 7, 1000, 9, "-1.00"),
        # The clock of one producer was ahead: what stands behind its event in the partition is later.
        *[outbox_event(0, 10, 1.0), outbox_event(1, 50, 2.0, key=2), outbox_event(2, 20, -3.0)],
        outbox_event(3, 30, -4.0, key=3),
    ]


def second_batch() -> list[Record]:
    return [
        event("c", 2, 1040, 3, "-4.00"),
        event("u", 2, 1050, 4, "5.00"),
        {**event("d", 7, 0, 10), "value": None},
        event("c", 8, 1100, 11),
        event("u", 8, 9000, 12, "9.00"),
        event("u", 8, 1300, 13, "2.00"),
        event("c", 9, 1400, 14, "-1.00"),
        event("u", 9, 1500, 15, "-2.00"),
        event("c", 10, 1600, 16),
        event("u", 10, 9100, 17, "-3.00"),
        event("u", 10, 1700, 18, "4.00"),
        outbox_event(4, 60, 5.0),
    ]


def outbox_event(offset: int, minute: int, amount: float, key: int = 1) -> Record:
    payload = {"order_id": key, "customer_id": 1, "product_id": 1, "status": "paid", "amount": amount}
    return record(OUTBOX, offset, key=str(key), value=compact(payload), timestamp=minute * 60_000)


@dataclass(frozen=True)
class Seen:
    """What is in the tables after a step: amounts of the live orders, entries by offset, the batch audit's sums."""

    amounts: Mapping[int, str]
    outbox: Mapping[int, Any]
    entries: Mapping[int, Any]
    counted: Mapping[str, int]
    came_to: Mapping[str, int]


@pytest.fixture(scope="module")
def story(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Seen]:
    """One source's records, and what people decide about them, step by step."""
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), "mysql", tmp_path_factory.mktemp("story"))
    steps = {}

    def see(step: str, came_to: Mapping[str, int] | None = None) -> None:
        outbox = told.rows("mysql_outbox_orders", "total_amount", "_position")
        steps[step] = Seen(amounts(told), outbox, told.entries(FEED), told.counted(), came_to or {})

    told.tell(*first_batch())
    see("first batch")
    told.tell(*second_batch())
    see("told")
    mended(told)
    for state, offset in (
        ("retried", 2),
        ("retried", 14),
        ("released", 6),
        ("released", 8),
        ("discarded", 7),
        ("released", 12),
    ):
        told.ask(state, offset, feed=FEED)
    see("decided", told.carry_out())
    see("retried", told.decide("retried"))
    assert told.decide("retried", 1) == {}, "nothing is asked twice"
    told.decide("discarded", 12)
    told.warehouse.delta(f"silver.{FEED}").delete()
    told.tell(*first_batch(), *second_batch())
    see("made anew")
    see("thought better", told.decide("retried", 7))
    return steps


def test_an_entry_says_what_a_person_needs(story: Mapping[str, Seen]) -> None:
    entry = story["first batch"].entries[1]
    assert (entry["feed"], entry["row_key"], entry["topic_id"]) == (FEED, '{"order_id":1}', "first")
    assert (entry["reasons"], entry["rules"]) == ([OF_AMOUNT], ["amount_not_negative"])
    assert (entry["state"], len(entry["contract"])) == ("open", 12)
    again = story["made anew"].entries[5]
    assert again["first_seen"] == story["first batch"].entries[5]["first_seen"] < again["last_seen"]
    assert again["contract"] != story["first batch"].entries[5]["contract"], "the rules have changed"


def test_a_later_good_change_wins_over_one_that_waits(story: Mapping[str, Seen]) -> None:
    assert story["told"].amounts == {1: "1.00", 2: "5.00", 8: "2.00", 10: "4.00"}


def test_records_that_are_retried_in_reverse_order_stand_where_they_belong(story: Mapping[str, Seen]) -> None:
    assert story["decided"].amounts[1] == "-3.00"
    assert story["retried"].amounts[1] == "-3.00"
    assert story["retried"].amounts[2] == "5.00", "its insert is retried behind its update"
    finished = [story["retried"].entries[offset] for offset in (1, 2, 3)]
    assert all(entry["state"] == "retried" and entry["finished_at"] is not None for entry in finished)


def test_what_nobody_has_asked_for_stays_out(story: Mapping[str, Seen]) -> None:
    """Its rule would let it pass today, and another record of its key was retried."""
    assert story["decided"].amounts[9] == "-1.00"
    assert story["decided"].entries[15]["state"] == "open"
    assert story["retried"].amounts[9] == "-2.00"


def test_the_batch_audit_moves_what_passes_to_what_became_of_it(story: Mapping[str, Seen]) -> None:
    # Of the table 19 records, of the outbox 5.
    assert story["told"].counted == {"read": 24, "applied": 7, "superseded": 2, "tombstone": 1, "quarantined": 14}
    assert story["decided"].came_to == {"applied": 3, "quarantined": 1}
    assert story["retried"].came_to == {"applied": 2, "superseded": 3, "duplicate": 1, "quarantined": 3}
    outcomes = {"applied": 12, "superseded": 5, "duplicate": 1, "tombstone": 1, "quarantined": 5}
    assert story["retried"].counted == {"read": 24, **outcomes}


def test_what_may_still_not_pass_is_open_again_with_the_reasons_of_today(story: Mapping[str, Seen]) -> None:
    before, entry = story["told"].entries[5], story["retried"].entries[5]
    assert (entry["state"], entry["finished_at"], entry["state_by"]) == ("open", None, "a person")
    assert entry["contract"] != before["contract"]
    assert 3 not in story["retried"].amounts


def test_a_released_record_passes_the_rules_now_and_when_silver_is_made_anew(story: Mapping[str, Seen]) -> None:
    assert story["decided"].amounts[4] == "-6000.00"
    assert story["made anew"].amounts[4] == "-6000.00"
    assert story["made anew"].entries[6]["state"] == "released"


def test_no_decision_makes_a_value_fit(story: Mapping[str, Seen]) -> None:
    entry = story["decided"].entries[8]
    reason = "created_at: the value is text that is no ISO 8601 time; the column is TIMESTAMP."
    assert (entry["state"], entry["reasons"]) == ("open", [reason])
    assert 6 not in story["made anew"].amounts


def test_a_discarded_record_stays_out_when_the_rules_would_let_it_pass(story: Mapping[str, Seen]) -> None:
    assert 5 not in story["made anew"].amounts
    entry = story["made anew"].entries[7]
    assert (entry["state"], entry["reasons"]) == ("discarded", [OF_AMOUNT])
    assert story["thought better"].came_to == {"applied": 1}
    assert story["thought better"].amounts[5] == "-1.00"


def test_a_silver_made_anew_is_the_same(story: Mapping[str, Seen]) -> None:
    assert story["made anew"].amounts == story["retried"].amounts


def test_a_tombstone_behind_a_retried_record_still_deletes(story: Mapping[str, Seen]) -> None:
    """Compaction leaves of a deleted key its tombstone alone: it meant the record that was waiting."""
    assert story["retried"].entries[9]["state"] == "retried"
    assert 7 not in story["retried"].amounts


def test_the_place_of_a_damaged_record_is_wrong_and_nobody_can_ask_for_it(story: Mapping[str, Seen]) -> None:
    assert [story[step].amounts[8] for step in ("told", "decided", "retried", "made anew")] == ["2.00"] * 4
    entry = story["retried"].entries[12]
    assert (entry["state"], entry["is_damaged"]) == ("open", True)
    assert json.loads(entry["value"])["after"]["order_id"] == 8, "raw, as every entry"
    assert entry["headers"]
    assert story["made anew"].entries[12]["state"] == "discarded"


def test_a_damaged_record_that_waited_is_found_when_it_is_retried(story: Mapping[str, Seen]) -> None:
    """What shows it was read long before."""
    assert story["retried"].amounts[10] == "4.00"
    entry = story["retried"].entries[17]
    assert (entry["state"], entry["is_damaged"]) == ("open", True)


def test_a_sentence_that_is_worded_anew_changes_nothing(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    """A release may say the same in other words: what earlier ones have written is still what it was."""
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), "mysql", tmp_path)
    told.tell(event("c", 8, 1100, 0), event("u", 8, 9000, 1, "9.00"), event("u", 8, 1300, 2, "2.00"))
    told.tell(event("c", 1, 1400, 3, "-1.00"))
    told.warehouse.delta(QUARANTINE.name).update(set={"reasons": "array('In the words of another release.')"})
    mended(told)
    assert told.decide("released") == {"applied": 1}, "the damaged one may not be asked for"
    told.tell(event("u", 8, 1500, 4, "3.00"), event("c", 8, 1100, 0), event("u", 8, 9000, 1, "9.00"))
    assert amounts(told) == {1: "-1.00", 8: "3.00"}
    assert {offset: entry["state"] for offset, entry in told.entries(FEED).items()} == {1: "open", 3: "released"}


def test_events_without_positions_stand_by_the_highest_time_before_them(story: Mapping[str, Seen]) -> None:
    rows = story["retried"].outbox
    assert {key: str(amount) for key, (amount, _position) in rows.items()} == {1: "5.00", 2: "2.00", 3: "-4.00"}
    assert rows[3][1]["timestamp_ms"] == 50 * 60_000


def test_what_waits_and_may_pass_when_it_is_read_again_is_closed(story: Mapping[str, Seen]) -> None:
    assert {entry["state"] for entry in story["made anew"].entries.values() if entry["finished_at"] is None} == {"open"}


def test_a_request_that_broke_off_is_carried_out_once(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), "mysql", tmp_path)
    told.tell(event("c", 1, 100, 0, "-1.00"), event("c", 2, 200, 1, "-5000.00"))
    mended(told)
    told.ask("retried")

    def killed(*_given: object) -> None:
        raise KeyboardInterrupt

    for step in ("quarantine.add", "_write_down", "quarantine.passed"):
        with monkeypatch.context() as patched:
            patched.setattr(f"{decisions.__name__}.{step}", killed)
            with pytest.raises(KeyboardInterrupt):
                told.carry_out()
    told.carry_out()
    assert amounts(told) == {1: "-1.00"}
    assert told.counted() == {"read": 2, "applied": 1, "quarantined": 1}
    assert [told.entries(FEED)[offset]["state"] for offset in (0, 1)] == ["retried", "open"]
    assert told.carry_out() == {}


def test_a_large_value_that_waited_in_quarantine_heals_the_row(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), "postgres", tmp_path)

    def told_as(op: str, lsn: int, offset: int, **columns: Any) -> Record:
        value = change(op, postgres_source(lsn, last_commit=lsn), postgres_image(order(1, **columns)))
        return record("postgres_prod_tables.public.orders", offset, key={"order_id": 1}, value=value, headers=RUN)

    told.tell(told_as("u", 100, 0, total_amount="-1.00", note="the large value"))
    told.tell(told_as("u", 200, 1, note="__debezium_unavailable_value"))
    assert told.rows("postgres_orders", "note", "_unresolved_columns") == {1: (None, ["note"])}
    mended(told)
    told.decide("retried")
    assert told.rows("postgres_orders", "note", "_unresolved_columns") == {1: ("the large value", None)}
