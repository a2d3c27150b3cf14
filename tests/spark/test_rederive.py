"""Keys that are derived again: where the search of a key's changes ends at its limit, no row loses what it has.

And what a tombstone alone deletes, over several batches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from silver.lookback import rederive
from tests.support.events import change, compact, order, postgres_image, postgres_source, record, run_headers
from tests.support.silver import Told, derive_anew, with_gate

if TYPE_CHECKING:
    from lakehouse.contracts.models import Contracts
    from lakehouse.delta.tables import Warehouse
    from tests.support.events import Record

pytestmark = pytest.mark.spark

FEED, TOPIC = "postgres_orders", "postgres_prod_tables.public.orders"
LEFT_OUT = "__debezium_unavailable_value"


def changed_keys(changes: int) -> list[Record]:
    """An order with a note, whose key is changed so often; each change leaves the note out."""
    told: list[Record] = []

    def say(op: str, key: int, lsn: int, note: str | None = None, *, linked: tuple[str, int] | None = None) -> None:
        source = postgres_source(lsn, last_commit=lsn)
        links = [] if linked is None else [(f"__debezium.{linked[0]}", compact({"order_id": linked[1]}))]
        image = None if op == "d" else postgres_image(order(key, note=note))
        headers = run_headers("run", source=source, links=links)
        value = change(op, source, image)
        told.append(record(TOPIC, len(told), key={"order_id": key}, value=value, headers=headers))

    say("c", 1, 100, "a large note")
    for key in range(1, changes + 1):
        say("d", key, 100 + 10 * key, linked=("newkey", key + 1))
        say("c", key + 1, 100 + 10 * key, LEFT_OUT, linked=("oldkey", key))
    return told


def test_a_row_whose_previous_keys_are_too_many_keeps_its_value(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Told(empty_silver(), with_gate(contracts), "postgres", tmp_path)
    source.tell(*changed_keys(4))
    columns = ("note", "_unresolved_columns")
    assert source.rows(FEED, *columns) == {5: ("a large note", None)}
    monkeypatch.setattr(rederive, "MAX_KEY_CHANGES", 2)
    keys = source.warehouse.read("bronze.postgres_events").where("CAST(key AS STRING) LIKE '%5%'")
    derive_anew(source.warehouse, source.contracts, "postgres", of=keys)
    assert source.rows(FEED, *columns) == {5: ("a large note", None)}


def test_what_a_tombstone_has_deleted_stays_deleted_in_a_later_batch(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    """Compaction has removed the delete. And a tombstone that is sent again deletes nothing that came behind it."""
    source = Told(empty_silver(), with_gate(contracts), "postgres", tmp_path)

    def of_run(run: str, offset: int, key: int, ms: int, lsn: int | None = None, note: str = "a note") -> Record:
        at = postgres_source(lsn or 0, last_commit=lsn)
        value = None if lsn is None else change("c", at, postgres_image(order(key, note=note)), ts_ms=ms)
        headers = run_headers(run, source=at)
        return record(TOPIC, offset, key={"order_id": key}, value=value, timestamp=ms, headers=headers)

    first, second = of_run("a", 0, 1, 2_000, 100), of_run("a", 1, 2, 3_000, 110)
    tombstone = of_run("b", 5, 1, 1_000)
    source.tell(first, second)
    source.tell(tombstone)
    assert source.rows(FEED, "note") == {2: "a note"}
    source.tell({**first, "offset": 6}, {**tombstone, "offset": 7}, {**second, "offset": 8})
    assert source.rows(FEED, "note") == {2: "a note"}
    source.tell(of_run("b", 9, 1, 1_500, 200, note="made again"))
    source.tell({**tombstone, "offset": 10}, {**first, "offset": 11})
    assert source.rows(FEED, "note") == {1: "made again", 2: "a note"}
    counted = source.counted()
    # The second order is sent again in a later batch: it repeats what the row says.
    assert (counted["read"], counted["applied"], counted["tombstone"]) == (9, 4, 2)
    assert counted["superseded"] + counted["duplicate"] == 3
