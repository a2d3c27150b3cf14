"""What a batch costs does not grow with the past: not with earlier batches, nor with what once happened in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.records import store
from benchmarks.tables import jobs
from bronze.events import events_table
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from tests.support.bronze import bronze_rows
from tests.support.events import Record, change, compact, order, postgres_image, postgres_source, record, run_headers
from tests.support.silver import apply_stored, job_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC, OUTBOX = "postgres_prod_tables.public.orders", "outbox.event.postgres.orders"
LEFT_OUT = "__debezium_unavailable_value"
FEW = 2


class Past:
    """Batches of PostgreSQL's source, one after the other: of a few orders each that no other batch names."""

    def __init__(self, warehouse: Warehouse, contracts: Contracts, folder: Path) -> None:
        self.warehouse, self.contracts, self.folder = warehouse, contracts, folder
        self.job = job_of(warehouse, contracts, "postgres")
        self.batches = self.offset = self.told = 0
        self.run = "a"
        warehouse.ensure(events_table("postgres"))

    def event(self, op: str, key: int, *, lsn: int | None = None, links: Any = (), **columns: Any) -> Record:
        """The next record of the table's topic; at the next position of the log, or once more at an old one."""
        self.offset += 1
        at = 1000 + 10 * self.offset if lsn is None else lsn
        source = postgres_source(at, last_commit=at)
        image = None if op in "dt" else postgres_image(order(key, **columns))
        headers = run_headers(self.run, source=source, links=links)
        named = None if op == "t" else {"order_id": key}
        time = 1_767_225_600_000 + self.offset
        return record(TOPIC, self.offset, key=named, value=change(op, source, image), headers=headers, timestamp=time)

    def outbox(self, key: int, *, partition: int) -> Record:
        """An order in one of the outbox's two partitions."""
        self.told += 1
        payload = {"order_id": key, "customer_id": 1, "product_id": 1, "status": "pending", "total_amount": 1.0}
        payload["created_at"] = "2026-01-01T00:00:00Z"
        value = json.dumps(json.dumps(payload))
        headers = [("id", f"event {self.told}"), ("eventType", "OrderCreated")]
        return record(OUTBOX, self.told, key=str(key), value=value, headers=headers, partition=partition)

    def stored(self, records: Sequence[Record]) -> DataFrame:
        """The records in bronze, as one batch."""
        file = self.folder / f"{self.batches}.jsonl"
        file.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
        rows = bronze_rows(self.warehouse.spark, file, topics={TOPIC: TOPIC, OUTBOX: OUTBOX})
        store(self.warehouse, "postgres", rows)
        return rows

    def apply(self, *records: Record) -> int:
        """One batch; how many jobs it took."""
        self.stored(records)
        before = jobs(self.warehouse.spark)
        apply_stored(self.warehouse, job=self.job)
        self.batches += 1
        return jobs(self.warehouse.spark) - before

    def batch(self) -> int:
        """A batch like all others: three orders come and one of them changes, beside an order in each partition."""
        first = 100 * self.batches
        changes = [self.event("c", first + number) for number in range(3)]
        changes.append(self.event("u", first, status="completed"))
        of_outbox = [self.outbox(first + number, partition=number % 2) for number in range(3)]
        return self.apply(*changes, *of_outbox)


def replay(past: Past) -> None:
    """The connector is started again, and sends the last changes once more before it goes on."""
    first = 100 * (past.batches - 1)
    lsn = 1000 + 10 * past.offset
    past.run = "b"
    told = [past.event("c", first + 2, lsn=lsn - 10), past.event("u", first, lsn=lsn, status="completed")]
    past.apply(*told)


def placeholder(past: Past) -> None:
    """An order gets another key, and its large note, which no event has told, is left out."""
    one, other = 100 * past.batches, 100 * past.batches + 1
    old, new = ({"order_id": key} for key in (one, other))
    deleted = past.event("d", one, links=[("__debezium.newkey", compact(new))])
    created = past.event("c", other, links=[("__debezium.oldkey", compact(old))], note=LEFT_OUT)
    past.apply(deleted, created)
    rows = past.warehouse.read("silver.postgres_orders").where("_unresolved_columns IS NOT NULL")
    assert rows.count() == 1, "nothing has told the row's note"


def truncate(past: Past) -> None:
    past.apply(past.event("t", 0))


def quarantined(past: Past) -> None:
    """A record that may not pass waits for a person from now on."""
    past.apply(past.event("c", 100 * past.batches, total_amount="-1.00"))
    entries = past.warehouse.read("quality.quarantine")
    assert entries.where("state = 'open'").count() == 1


def measured(past: Past) -> int:
    """The jobs of a batch. Of three: Delta has one more in every tenth commit of a table, a checkpoint; and what the
    quarantine has is read once after it was added to.
    """
    return min(past.batch() for _ in range(3))


def test_a_batch_takes_as_many_jobs_whatever_was_before(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path
) -> None:
    """After three times as many; and after a replay, a value that nothing has told, a truncate, a pending record."""
    past = Past(empty_silver(), contracts, tmp_path)
    for _ in range(FEW):
        past.batch()
    few = measured(past)
    while past.batches < 3 * FEW:
        past.batch()
    many = measured(past)
    for happens in (replay, placeholder, truncate, quarantined):
        happens(past)
    after = measured(past)
    assert many <= few
    # One more was counted, once and for all of them; a second would have to be explained.
    assert after <= few + 1
