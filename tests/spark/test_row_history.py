"""The history of rows in Delta: late changes, truncates, batches that are repeated, and both ways of folding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse.contracts.tables import SilverTable
from lakehouse.errors import TableError
from silver import validated
from silver.apply import ensure_tables
from silver.row_history.compare import compare
from silver.row_history.table import history_table
from tests.support.events import change, order, postgres_image, postgres_source, record, run_headers
from tests.support.silver import Told, derive_anew, with_gate

if TYPE_CHECKING:
    from lakehouse.contracts.models import Contracts
    from lakehouse.delta.tables import Warehouse
    from tests.support.events import Record

pytestmark = pytest.mark.spark

FEED, TOPIC = "postgres_orders", "postgres_prod_tables.public.orders"
COLUMNS = ("order_id", "status", "_valid_from", "_valid_to", "_is_deleted", "_is_current", "_op")


def with_history(contracts: Contracts) -> Contracts:
    table = SilverTable.model_validate({**contracts.silver.tables[FEED].model_dump(), "scd_type": 2})
    silver = contracts.silver.model_copy(update={"tables": {**contracts.silver.tables, FEED: table}})
    return with_gate(contracts).model_copy(update={"silver": silver})


def told(empty_silver: Callable[[], Warehouse], contracts: Contracts, folder: Path) -> Told:
    own, warehouse = with_history(contracts), empty_silver()
    warehouse.ensure(history_table(own.feeds[FEED]))
    folder.mkdir(exist_ok=True)
    return Told(warehouse, own, "postgres", folder)


def of(offset: int, second: int, key: int | None, status: str | None, *, partition: int = 0) -> Record:
    """A change at this second, at a place of the log that is as high; without a status a delete; no key: a truncate."""
    at = postgres_source(second, last_commit=second, ts_ms=second * 1000)
    op = "t" if key is None else "d" if status is None else "c"
    image = None if key is None or status is None else postgres_image(order(key, status=status))
    stated = None if key is None else {"order_id": key}
    value = change(op, at, image, ts_ms=1_000_000)
    headers = run_headers("a run", source=at)
    return record(TOPIC, offset, key=stated, value=value, partition=partition, headers=headers)


def history(source: Told) -> list[tuple[Any, ...]]:
    """Of each version: key, status, seconds from and to, and what began it; `*` behind one that is current."""
    rows = source.warehouse.read(f"silver.{FEED}_history").orderBy("order_id", "_from_position").collect()
    found = []
    for row in rows:
        begin, end = (None if row[name] is None else round(row[name].timestamp()) for name in COLUMNS[2:4])
        assert (end is None) == row["_is_current"]
        assert row["_is_deleted"] == (row["status"] is None)
        found.append((row["order_id"], row["status"], begin, end, row["_op"]))
    return found


BATCHES: Sequence[Sequence[Record]] = (
    [of(0, 100, 1, "new"), of(1, 110, 2, "new"), of(2, 120, 3, "new")],
    [of(3, 200, 1, "paid"), of(0, 105, 2, "draft", partition=1), of(4, 210, 3, None)],
    [of(5, 300, None, None), of(6, 400, 1, "again"), of(7, 410, 4, "new")],
    [of(1, 250, None, None, partition=1)],
    [of(8, 420, 4, "new"), of(9, 430, 4, "paid")],
)
IN_THE_END = [
    (1, "new", 100, 200, "c"),
    (1, "paid", 200, 250, "c"),
    (1, None, 250, 400, "t"),
    (1, "again", 400, None, "c"),
    (2, "draft", 105, 110, "c"),
    (2, "new", 110, 250, "c"),
    (2, None, 250, None, "t"),
    (3, "new", 120, 210, "c"),
    (3, None, 210, None, "d"),
    (4, "new", 410, 430, "c"),
    (4, "paid", 430, None, "c"),
]


@pytest.mark.parametrize("is_on_the_driver", [True, False], ids=["driver", "partitions"])
def test_late_changes_and_truncates_are_where_they_belong(
    empty_silver: Callable[[], Warehouse],
    contracts: Contracts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_on_the_driver: bool,
) -> None:
    monkeypatch.setattr(validated, "are_few", lambda *_given: is_on_the_driver)
    source = told(empty_silver, contracts, tmp_path / "batches")
    for batch in BATCHES[:3]:
        source.tell(*batch)
    assert history(source)[:3] == [(1, "new", 100, 200, "c"), (1, "paid", 200, 300, "c"), (1, None, 300, 400, "t")]
    source.tell(*BATCHES[2])
    source.tell(*BATCHES[3])
    version = source.warehouse.version(f"silver.{FEED}_history")
    source.tell(*BATCHES[4])
    assert source.warehouse.version(f"silver.{FEED}_history") == version + 1, "a batch is one commit"
    assert history(source) == IN_THE_END
    assert source.rows(FEED, "status") == {1: "again", 4: "paid"}
    feed = source.contracts.feeds[FEED]
    assert compare(source.warehouse, feed) == (2, 0)
    if is_on_the_driver:
        derive_anew(source.warehouse, source.contracts, "postgres")
        assert history(source) == IN_THE_END
        whole = told(empty_silver, contracts, tmp_path / "whole")
        whole.tell(*[record for batch in reversed(BATCHES) for record in batch])
        assert history(whole) == IN_THE_END
        whole.warehouse.delta(feed.history_table).update("order_id = 4", {"status": "'another'"})
        whole.warehouse.delta(feed.history_table).delete("order_id = 1")
        assert compare(whole.warehouse, feed) == (2, 2)


def test_a_table_keeps_a_history_from_its_beginning_or_not_at_all(
    empty_silver: Callable[[], Warehouse], contracts: Contracts
) -> None:
    with pytest.raises(TableError, match="its history should be kept and is none"):
        ensure_tables(empty_silver(), with_history(contracts))
