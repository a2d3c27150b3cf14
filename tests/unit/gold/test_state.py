"""What a definition has consumed, and what stays of it under another one."""

from __future__ import annotations

from gold.state import NOTHING_CONSUMED, ConsumedVersions, GoldState
from lakehouse.versions import Version

ORDERS, OUTBOX = Version("silver.orders", 1, 7), Version("silver.outbox", 1, 2)


def test_under_another_definition_nothing_was_consumed() -> None:
    consumed = NOTHING_CONSUMED.with_later("one", [ORDERS, OUTBOX])
    assert consumed.under("one") == {"silver.orders": ORDERS, "silver.outbox": OUTBOX}
    assert consumed.under("two") == {}
    assert consumed.with_later("two", [OUTBOX]) == ConsumedVersions(
        definition="two", versions={"silver.outbox": OUTBOX}
    )


def test_of_a_table_the_later_commit_is_consumed() -> None:
    later = Version("silver.orders", 1, 8)
    consumed = NOTHING_CONSUMED.with_later("one", [ORDERS, OUTBOX]).with_later("one", [later])
    assert consumed.under("one") == {"silver.orders": later, "silver.outbox": OUTBOX}


def test_a_state_is_read_as_it_was_written() -> None:
    state = GoldState(
        orders=NOTHING_CONSUMED.with_later("one", [ORDERS]), blocked={"publication": ("mysql",)}, publishable={}
    )
    assert GoldState.model_validate_json(state.model_dump_json()) == state
