"""Tables with a contract whose source changes its columns: each kind of change as the contract's policy says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from lakehouse.delta.tables import Warehouse
from silver.accounts.audit import read_state
from silver.apply import ensure_tables
from silver.rejects.suspended import CONTRACT, FIELDS_GONE, OTHER_KEY
from tests.support.events import Record, change, mysql_image, mysql_source, order, record
from tests.support.silver import Told

pytestmark = pytest.mark.spark

FEED, TOPIC = "mysql_orders", "mysql_prod_tables.ecommerce.orders"
RUN = [("__debezium.context.runId", "run")]


def event(number: int, *, gone: str = "", key: Mapping[str, Any] | None = None, **more: Any) -> Record:
    """An order that is created; without a column, with more of them, or with another key."""
    image = {name: value for name, value in {**mysql_image(order(number)), **more}.items() if name != gone}
    value = change("c", mysql_source(100 * number), image)
    return record(TOPIC, number, key={"order_id": number, **(key or {})}, value=value, headers=RUN)


KINDS: Mapping[str, Callable[[int], Record]] = {
    "add": lambda number: event(number, channel="web"),
    "drop": lambda number: event(number, gone="status"),
    "rename": lambda number: event(number, gone="status", state="new"),
    "key": lambda number: event(number, key={"customer_id": 1}),
}


def told_with(warehouse: Warehouse, contracts: Contracts, folder: Path, policy: Mapping[str, str]) -> Told:
    """The source, whose table has this policy, and one order as the contract says."""
    table = contracts.silver.tables[FEED].model_copy(update={"on_schema_change": OnSchemaChange.model_validate(policy)})
    silver = contracts.silver.model_copy(update={"tables": {**contracts.silver.tables, FEED: table}})
    own = contracts.model_copy(update={"silver": silver})
    ensure_tables(warehouse, own)
    told = Told(warehouse, own, "mysql", folder)
    told.tell(event(1))
    return told


@pytest.mark.parametrize(
    ("kind", "rule", "why"),
    [
        ("add", CONTRACT, "its events have fields that its contract does not name: channel"),
        ("drop", FIELDS_GONE, "the field status is in none of 1 changes, and earlier ones had it; none is new"),
        ("rename", FIELDS_GONE, "the field status is in none of 1 changes, and earlier ones had it; new: state"),
        ("key", OTHER_KEY, "the key of its records is order_id, customer_id, and that of its contract order_id"),
    ],
)
def test_a_change_that_is_to_suspend_the_table_does(
    warehouse: Warehouse, contracts: Contracts, tmp_path: Path, kind: str, rule: str, why: str
) -> None:
    told = told_with(warehouse, contracts, tmp_path, {kind: "suspend"})
    told.tell(KINDS[kind](2))
    cause = read_state(warehouse, "mysql").suspended[FEED]
    assert (cause.rule, why in cause.why) == (rule, True), cause.why
    assert [*told.rows(FEED, "status")] == [1]


def test_changes_that_are_to_go_to_quarantine_do_and_the_table_goes_on(
    warehouse: Warehouse, contracts: Contracts, tmp_path: Path
) -> None:
    told = told_with(warehouse, contracts, tmp_path, dict.fromkeys(KINDS, "quarantine"))
    for number, changed in enumerate(KINDS.values(), start=2):
        told.tell(changed(number))
    told.tell(event(9))
    assert read_state(warehouse, "mysql").suspended == {}
    assert [*told.rows(FEED, "status")] == [1, 9]
    assert sorted(told.entries(FEED)) == [2, 3, 4, 5]


def test_changes_that_are_to_evolve_are_applied(warehouse: Warehouse, contracts: Contracts, tmp_path: Path) -> None:
    told = told_with(warehouse, contracts, tmp_path, dict.fromkeys(KINDS, "evolve"))
    for number, changed in enumerate(KINDS.values(), start=2):
        told.tell(changed(number))
    assert read_state(warehouse, "mysql").suspended == {}
    assert list(told.entries(FEED)) == []
    status = event(1)["value"]
    assert status is not None
    assert {key: value is None for key, value in told.rows(FEED, "status").items()} == {
        **{1: False, 2: False, 5: False},
        **{3: True, 4: True},
    }
