"""By how much the groups of a mart change, computed from the rows of gold that changed, in this process.

A row before its change is taken from its group, and the row after it added. What does not follow from that is left
undecided: whoever asks computes such a group from all of its orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from gold.change_feed.changes import AFTER
from gold.change_feed.feed import day_column
from lakehouse.contracts.models import Mart
from lakehouse.contracts.published import group_columns

if TYPE_CHECKING:
    Group = tuple[Any, ...]
    Number = int | Decimal

# More than sums of few values of 38 digits have: nothing is rounded.
_DIGITS = 100
# A whole number of 64 bits.
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class ChangedSum:
    """By how much a sum of a group changes, and how many more values it then has: less than none, where more go."""

    total: Number = 0
    values: int = 0


@dataclass(frozen=True)
class ChangedGroup:
    """By how many orders a group changes, and its sums; `row`: one of the rows of the feed that are of the group."""

    row: int
    count: int
    sums: tuple[ChangedSum, ...]


@dataclass(frozen=True)
class NewGroups:
    """Groups after changes: `rows` of the mart, without a count where the group is gone; and those left undecided.

    `rows`: None where there is none.
    """

    rows: pa.Table | None
    undecided: pa.Table


def groups_of(feed: pa.Table, mart: Mart) -> pa.Table:
    """The group columns of a mart, of every row of a feed of gold."""
    names = [*([day_column(mart.day)] if mart.day else []), *mart.by]
    return feed.select(names).rename_columns(list(group_columns(mart)))


def can_be_compared(groups: pa.Table) -> bool:
    """Whether values of these columns are equal here where they are in Spark: not floating point, lists, or structs."""
    return not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in groups.schema.types)


def changed_groups(feed: pa.Table, mart: Mart) -> dict[Group, ChangedGroup]:
    """Every group that an order has come to, left, or changed in, and by how much it changes."""
    is_after = pc.is_in(feed.column("_change_type"), value_set=pa.array(AFTER)).to_pylist()
    sums = list(zip(*[feed.column(summed).to_pylist() for summed in mart.sums.values()], strict=True))
    nothing = (ChangedSum(),) * len(mart.sums)
    found: dict[Group, ChangedGroup] = {}
    with localcontext(prec=_DIGITS):
        for row, group in enumerate(_keys(groups_of(feed, mart))):
            sign, before = (1 if is_after[row] else -1), found.get(group, ChangedGroup(row, 0, nothing))
            changed = [
                one if value is None else ChangedSum(one.total + sign * value, one.values + sign)
                for one, value in zip(before.sums, sums[row] if sums else (), strict=True)
            ]
            found[group] = ChangedGroup(before.row, before.count + sign, tuple(changed))
    return found


def new_groups(feed: pa.Table, changes: Mapping[Group, ChangedGroup], present: pa.Table, mart: Mart) -> NewGroups:
    """The changed groups after their changes, where that follows from the rows that the mart has of them: `present`."""
    names = [mart.count, *mart.sums]
    known: dict[Group, list[Sequence[Any]]] = {}
    for group, row in zip(_keys(present.select(group_columns(mart))), _rows(present.select(names)), strict=True):
        known.setdefault(group, []).append(row)
    types = [present.schema.field(name).type for name in mart.sums]
    decided: dict[int, Sequence[Number | None]] = {}
    undecided = []
    with localcontext(prec=_DIGITS):
        for group, change in changes.items():
            before = known.get(group, [(0, *[None] * len(types))])
            after = _after(before[0], change, types) if len(before) == 1 else None
            if after is None:
                undecided.append(change.row)
            else:
                decided[change.row] = after
    groups = groups_of(feed, mart)
    left = groups.take(pa.array(undecided, type=pa.int64()))
    if not decided:
        return NewGroups(None, left)
    rows = groups.take(list(decided))
    for name, values in zip(names, zip(*decided.values(), strict=True), strict=True):
        rows = rows.append_column(name, pa.array(values, type=present.schema.field(name).type))
    return NewGroups(rows, left)


def _after(
    before: Sequence[Any], change: ChangedGroup, types: Sequence[pa.DataType]
) -> tuple[Number | None, ...] | None:
    """The count and the sums of a group after its change, None in place of all where it is gone.

    None where they do not follow: a mart that does not have the rows that go, a sum that its type cannot hold, and a
    sum of zero of which it is not known whether an order of the group still has a value.
    """
    count = before[0] + change.count
    if count <= 0:
        return None if count < 0 else (None,) * (len(types) + 1)
    found: list[Number | None] = [count]
    for total, changed, kind in zip(before[1:], change.sums, types, strict=True):
        if total is None:  # no order of the group had a value
            if changed.values < 0 or (changed.values == 0 and changed.total):
                return None
            after = changed.total if changed.values else None
        else:
            after = total + changed.total
            if not after and changed.values < 0:
                return None
        if after is not None and not _fits(after, kind):
            return None
        found.append(after)
    return tuple(found)


def _fits(total: Number, kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(abs(Decimal(total).scaleb(kind.scale)) < Decimal(10) ** kind.precision)
    return _LOWEST <= total <= _HIGHEST


def _keys(groups: pa.Table) -> Iterator[Group]:
    """Of each row the values of all columns, so that equal ones are equal; times as numbers: Python's end in 9999."""
    columns = [
        column.cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column.cast(pa.int32())
        if pa.types.is_date32(column.type)
        else column
        for column in groups.columns
    ]
    return zip(*[column.to_pylist() for column in columns], strict=True)


def _rows(table: pa.Table) -> Iterator[Sequence[Any]]:
    return zip(*[column.to_pylist() for column in table.columns], strict=True)
