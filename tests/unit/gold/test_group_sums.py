"""Groups of a mart by what changed in gold: as a full computation gives them, or left undecided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gold.change_feed.feed import day_column
from gold.derived.group_sums import can_be_compared, changed_groups, groups_of, new_groups
from lakehouse.contracts.models import Mart

MART = Mart(day="created_at", by=("status",), count="orders", sums={"revenue": "total_amount", "items": "items"})
FEED = pa.schema(
    {
        day_column("created_at"): pa.date32(),
        "status": pa.string(),
        "total_amount": pa.decimal128(10, 2),
        "items": pa.int64(),
        "_change_type": pa.string(),
    }
)
PRESENT = pa.schema(
    {
        "day": pa.date32(),
        "status": pa.string(),
        "orders": pa.int64(),
        "revenue": pa.decimal128(20, 2),
        "items": pa.int64(),
    }
)
Order = tuple[date | None, str | None, Decimal | None, int | None]
ORDERS = st.dictionaries(
    st.integers(0, 9),
    st.tuples(
        st.sampled_from([None, date(1969, 12, 31), date(2026, 3, 1)]),
        st.sampled_from([None, "paid"]),
        st.sampled_from([None, Decimal("0.00"), Decimal("-1.50"), Decimal("1.50"), Decimal("99999999.99")]),
        st.sampled_from([None, 0, -3, 3]),
    ),
)


def feed_of(before: Mapping[int, Order], after: Mapping[int, Order]) -> pa.Table:
    """The change data feed of a commit that makes `after` of `before`; an order that stays is written again."""
    rows = []
    for key in before.keys() | after.keys():
        kinds = ("update_preimage", "update_postimage") if key in before and key in after else ("delete", "insert")
        for kind, orders in zip(kinds, (before, after), strict=True):
            if key in orders:
                rows.append((*orders[key], kind))
    return table_of(rows, FEED)


def table_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def computed(orders: Iterable[Order]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The mart of these orders, by group."""
    groups = defaultdict[tuple[Any, ...], list[Order]](list)
    for order in orders:
        groups[order[:2]].append(order)
    found = {}
    for group, of_group in groups.items():
        values = [[order[column] for order in of_group if order[column] is not None] for column in (2, 3)]
        found[group] = (len(of_group), *(sum(known) if known else None for known in values))  # type: ignore[arg-type]
    return found


@settings(deadline=None)
@given(before=ORDERS, after=ORDERS)
def test_groups_are_what_a_full_computation_gives_or_undecided(
    before: Mapping[int, Order], after: Mapping[int, Order]
) -> None:
    mart, wanted = computed(before.values()), computed(after.values())
    feed = feed_of(before, after)
    present = table_of([(*group, *values) for group, values in mart.items()], PRESENT)
    new = new_groups(feed, changed_groups(feed, MART), present, MART)
    undecided = {tuple(row.values()) for row in new.undecided.to_pylist()}
    decided = (
        {} if new.rows is None else {tuple(row.values())[:2]: tuple(row.values())[2:] for row in new.rows.to_pylist()}
    )
    assert undecided.isdisjoint(decided)
    assert undecided | decided.keys() == {tuple(row.values()) for row in groups_of(feed, MART).to_pylist()}
    for group, values in decided.items():
        assert values == wanted.get(group, (None, None, None))
    # A group is looked up only where values went, and what is left may be no value, or values that are zero together.
    for group in undecided:
        assert any(not value for value in wanted[group][1:])
    assert all(wanted[group] == mart[group] for group in wanted.keys() - undecided - decided.keys())


def changed(rows: Iterable[tuple[Any, ...]], present: Iterable[tuple[Any, ...]]) -> tuple[int, int]:
    """How many groups follow from the changes, and how many do not."""
    feed = table_of(rows, FEED)
    new = new_groups(feed, changed_groups(feed, MART), table_of(present, PRESENT), MART)
    return (0 if new.rows is None else new.rows.num_rows), new.undecided.num_rows


def test_what_a_mart_cannot_have_held_is_undecided() -> None:
    gone, come = (None, "paid", Decimal("1.00"), 1, "delete"), (None, "paid", Decimal("1.00"), 1, "insert")
    in_mart = (None, "paid", 2, Decimal("2.00"), 2)
    assert changed([gone], [in_mart]) == (1, 0)
    assert changed([gone], []) == (0, 1)
    assert changed([gone], [(None, "paid", 2, None, 2)]) == (0, 1), "a value goes, and there was none"
    assert changed([come], [in_mart, in_mart]) == (0, 1), "a group twice"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_its_type_cannot_hold_is_left_to_spark(sign: int) -> None:
    highest: dict[str, Any] = {"revenue": Decimal("999999999999999999.99"), "items": 2**63 - 1}
    come = (None, None, sign * Decimal("0.01"), None, "insert"), (None, None, None, sign * 1, "insert")
    for order, column in zip(come, highest, strict=True):
        nearly = {"revenue": None, "items": None, column: sign * highest[column]}
        row = (None, None, 1, nearly["revenue"], nearly["items"])
        assert changed([order], [row]) == ((0, 1) if (sign, column) != (-1, "items") else (1, 0))


def test_columns_that_python_compares_otherwise_are_named() -> None:
    assert can_be_compared(table_of([], FEED))
    for kind in (pa.float64(), pa.list_(pa.string())):
        assert not can_be_compared(table_of([], pa.schema({"value": kind})))
