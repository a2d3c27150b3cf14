"""Orders and customers in one topic: each table is its source, every record is counted once, and one stops alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.tables.accounts import account_of
from cli.tables.verify_messages import HARMLESS
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import MaxRejectRatio
from silver.apply import ensure_tables
from tests.spark.test_decisions import AMOUNT
from tests.support.shared import CUSTOMERS, ORDERS, of_another, of_customer, of_order, sharing, tombstone
from tests.support.silver import Told, with_gate

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse

pytestmark = pytest.mark.spark


def test_two_tables_in_one_topic(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path) -> None:
    own = with_gate(sharing(contracts, other_tables="ignore"), AMOUNT)
    tables = dict(own.silver.tables)
    tables[ORDERS] = tables[ORDERS].model_copy(update={"max_reject_ratio": MaxRejectRatio(share=0.5, records=1)})
    own = own.model_copy(update={"silver": own.silver.model_copy(update={"tables": tables})})
    warehouse = empty_silver()
    ensure_tables(warehouse, own)
    told = Told(warehouse, own, "mysql", tmp_path)

    def customers() -> dict[int, str]:
        rows = warehouse.read(f"silver.{CUSTOMERS}").where("NOT _is_deleted").collect()
        return {row["customer_id"]: row["status"] for row in rows}

    def wrong() -> dict[str, int]:
        found = account_of(warehouse, "mysql").findings
        # Of bronze these records have no batches.
        return {k: one.records for k, one in found.items() if k not in {*HARMLESS, "never_read"}}

    told.tell(
        of_order("c", 1, 0),
        of_customer("c", 1, 1),
        of_order("c", 2, 2, "-1.00"),
        of_another(3),
        of_customer("c", 2, 4),
        of_customer("d", 1, 5),
        tombstone({"customer_id": 1}, 6),
        of_order("c", 3, 8),
    )
    assert told.rows(ORDERS, "total_amount").keys() == {1, 3}
    assert customers() == {2: "new"}
    expected = {"read": 8, "applied": 4, "superseded": 1, "tombstone": 1, "ignored": 1, "quarantined": 1}
    assert told.counted() == expected
    ranges = (
        warehouse.read("ops.batches").where("first_offset IS NOT NULL").select("first_offset", "last_offset", "gaps")
    )
    (together,) = ranges.collect()
    assert [(gap["first"], gap["last"]) for gap in together["gaps"]] == [(7, 7)], (
        "Kafka's own, none for the other table"
    )
    assert wrong() == {}

    # The table whose records are too bad stops alone; the other one goes on in the same topic.
    told.tell(of_order("u", 1, 9, "-1.00"), of_customer("u", 2, 10, "old"), of_order("u", 3, 11, "-2.00"))
    assert told.suspended().keys() == {ORDERS}
    assert customers() == {2: "old"}
    assert told.counted()["read"] == 9
    assert wrong() == {}
    assert account_of(warehouse, "mysql").findings["suspended"].records == 2

    assert told.resume(ORDERS, accepted=[ORDERS]) is None
    assert told.counted()["read"] == 11
    assert "suspended" not in account_of(warehouse, "mysql").findings
    assert wrong() == {}
    assert {entry.offset for entry in told.entries(ORDERS).values()} == {2, 9, 11}

    # With a record its whole key is read again: the other table's records stay as they are.
    told.contracts = with_gate(sharing(contracts, other_tables="ignore"))
    assert told.decide("retried") == {"applied": 3}
    assert {key: str(amount) for key, amount in told.rows(ORDERS, "total_amount").items()} == {
        1: "-1.00",
        2: "-1.00",
        3: "-2.00",
    }
    assert customers() == {2: "old"}
    assert wrong() == {}
