"""A record of an earlier batch that turns out to be damaged: the batch audit says so once, whatever breaks off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from silver import source_batch
from silver.rejects import decisions
from tests.spark.test_decisions import AMOUNT, FEED, event, mended
from tests.support.silver import Told, with_gate

if TYPE_CHECKING:
    from lakehouse.contracts.models import Contracts
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AHEAD = event("u", 1, 9000, 1, "9.00")
LATER = event("u", 1, 200, 3, "2.00")


class BrokenOffError(Exception):
    """The process ends here."""


@pytest.fixture
def told(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path) -> Told:
    """An order whose position is far ahead; and another record of it, in quarantine, that will show that."""
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), "mysql", tmp_path)
    told.tell(event("c", 1, 100, 0), AHEAD, event("u", 1, 120, 2, "-1.00"))
    assert told.counted() == {"read": 3, "applied": 1, "superseded": 1, "quarantined": 1}
    return told


def break_off(*_given: Any, **_more: Any) -> None:
    raise BrokenOffError


def break_off_with_a_batch(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is in quarantine, and the batch that has found it is not in the audit."""
    with monkeypatch.context() as patched, pytest.raises(BrokenOffError):
        patched.setattr(source_batch, "append", break_off)
        told.tell(LATER)
    assert told.entries(FEED)[1]["is_damaged"]


def test_a_batch_that_is_repeated_corrects_the_audit(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    break_off_with_a_batch(told, monkeypatch)
    told.tell(LATER)
    assert told.counted() == {"read": 4, "applied": 1, "superseded": 1, "quarantined": 2}
    # Where the key is derived again later, nothing is corrected twice.
    told.tell(event("u", 1, 400, 4, "4.00"), event("u", 1, 300, 5, "3.00"))
    assert told.counted() == {"read": 6, "applied": 2, "superseded": 1, "quarantined": 3}
    assert {key: str(amount) for key, amount in told.rows(FEED, "total_amount").items()} == {1: "3.00"}


def test_what_finds_it_meanwhile_corrects_the_audit_instead(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    break_off_with_a_batch(told, monkeypatch)
    mended(told)
    told.decide("retried", 2)
    assert told.counted() == {"read": 3, "applied": 1, "superseded": 1, "quarantined": 1}
    # The retried record was the row until this one was read, so each of them was applied.
    told.tell(LATER)
    assert told.counted() == {"read": 4, "applied": 2, "superseded": 1, "quarantined": 1}


def test_so_does_a_request_that_is_carried_out_again(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    mended(told)
    told.ask("retried", 2)
    with monkeypatch.context() as patched, pytest.raises(BrokenOffError):
        patched.setattr(decisions, "append", break_off)
        told.carry_out()
    assert told.entries(FEED)[1]["is_damaged"]
    told.carry_out()
    assert told.counted() == {"read": 3, "applied": 1, "superseded": 1, "quarantined": 1}
