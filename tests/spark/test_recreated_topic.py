"""A topic that is made again begins at offset 0 again: its records are others than those that had these offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from silver.apply import ensure_tables
from tests.spark.test_decisions import FEED, OUTBOX, RUN, event
from tests.support.events import Record, compact, record
from tests.support.silver import Told, derive_anew, with_gate

if TYPE_CHECKING:
    from lakehouse.contracts.models import Contracts
    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OUTBOX_FEED = "mysql_outbox_orders"


def of_outbox(number: int, offset: int, status: str, *, minute: int, topic_id: str = "first") -> Record:
    """The event of this number, which the router sends."""
    payload = {"order_id": 1, "customer_id": 1, "product_id": 1, "status": status, "amount": 1}
    headers = [("id", f"event-{number}"), ("eventType", "OrderChanged"), *RUN]
    sent = record(OUTBOX, offset, key="1", value=compact(payload), headers=headers, timestamp=minute * 60_000)
    return {**sent, "topic_id": topic_id}


@pytest.mark.parametrize("minute", [1, 9], ids=["at the time of its row", "when it was sent again"])
@pytest.mark.parametrize("in_one", [False, True], ids=["later", "in one batch"])
def test_an_event_that_comes_again_in_a_topic_made_again_is_a_duplicate(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, minute: int, in_one: bool
) -> None:
    told = Told(empty_silver(), with_gate(contracts), "mysql", tmp_path)
    sent = [of_outbox(1, 0, "pending", minute=1), of_outbox(2, 1, "paid", minute=2)]
    again = of_outbox(1, 0, "pending", minute=minute, topic_id="second")
    for records in [[*sent, again]] if in_one else [sent, [again]]:
        told.tell(*records)
    assert told.rows(OUTBOX_FEED, "status") == {1: "paid"}
    assert told.counted() == {"read": 3, "applied": 1, "superseded": 1, "duplicate": 1}
    told.tell(of_outbox(3, 1, "shipped", minute=10, topic_id="second"))
    assert told.rows(OUTBOX_FEED, "status") == {1: "shipped"}
    derive_anew(told.warehouse, told.contracts, "mysql")
    assert told.rows(OUTBOX_FEED, "status") == {1: "shipped"}


@pytest.mark.parametrize("in_one", [False, True], ids=["later", "in one batch"])
def test_a_list_of_changes_has_the_records_of_both_topics(
    warehouse: Warehouse, contracts: Contracts, tmp_path: Path, in_one: bool
) -> None:
    by_offset = {"append_only": True, "keys": (), "sequence_by": "kafka_offset"}
    tables = {**contracts.silver.tables}
    tables[FEED] = tables[FEED].model_copy(update=by_offset)
    own = contracts.model_copy(update={"silver": contracts.silver.model_copy(update={"tables": tables})})
    ensure_tables(warehouse, own)
    told = Told(warehouse, with_gate(own), "mysql", tmp_path)
    first, second = event("c", 1, 100, 0), {**event("c", 2, 200, 0), "topic_id": "second"}
    for records in [[first, second]] if in_one else [[first], [second]]:
        told.tell(*records)
    assert told.rows(FEED, "status").keys() == {1, 2}
    assert told.counted() == {"read": 2, "applied": 2}
