"""What a batch costs does not grow with the past: not with earlier batches, nor with what once happened in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.tables import jobs
from bronze.events import events_table
from lakehouse.contracts import Contracts
from lakehouse.tables import Warehouse
from silver.micro_batch import apply_batch
from tests.support.bronze import bronze_rows
from tests.support.counted import bytes_read, last_stage
from tests.support.events import Record, change, order, postgres_image, postgres_source, record, run_headers
from tests.support.silver import job_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

TOPIC, OUTBOX = "postgres_prod_tables.public.orders", "outbox.event.postgres.orders"
LEFT_OUT = "__debezium_unavailable_value"
FEW = 10


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
        self.warehouse.append("bronze.postgres_events", rows)
        return rows

    def apply(self, *records: Record) -> tuple[int, int]:
        """One batch; how many jobs it took, and how many bytes it read."""
        rows = self.stored(records)
        spark = self.warehouse.spark
        jobs_before, stage = jobs(spark), last_stage(spark)
        apply_batch(rows, self.batches, job=self.job)
        self.batches += 1
        return jobs(spark) - jobs_before, bytes_read(spark, after=stage)

    def batch(self) -> tuple[int, int]:
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
    deleted = past.event("d", one, links=[("__debezium.newkey", json.dumps(new))])
    created = past.event("c", other, links=[("__debezium.oldkey", json.dumps(old))], note=LEFT_OUT)
    past.apply(deleted, created)
    rows = past.warehouse.read("silver.postgres_orders").where("_awaited IS NOT NULL")
    assert rows.count() == 1, "the row asks for its older key's note"


def truncate(past: Past) -> None:
    past.apply(past.event("t", 0))


@pytest.fixture(scope="module")
def begin(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Past]:
    def begin() -> Past:
        return Past(empty_silver(), contracts, tmp_path_factory.mktemp("records"))

    return begin


@pytest.fixture(scope="module")
def after_few(begin: Callable[[], Past]) -> tuple[int, int]:
    """What a batch costs after a few earlier ones."""
    past = begin()
    for _ in range(FEW):
        past.batch()
    return past.batch()


def test_a_batch_costs_the_same_after_many_earlier_ones(begin: Callable[[], Past], after_few: tuple[int, int]) -> None:
    costs_the_same(begin, after_few, many=4 * FEW)


@pytest.mark.slow
def test_a_batch_costs_the_same_after_hundreds_of_earlier_ones(
    begin: Callable[[], Past], after_few: tuple[int, int]
) -> None:
    costs_the_same(begin, after_few, many=300)


def costs_the_same(begin: Callable[[], Past], after_few: tuple[int, int], *, many: int) -> None:
    past = begin()
    for _ in range(many):
        past.batch()
    now, before = past.batch(), after_few
    assert now[0] <= before[0]
    assert now[1] <= 1.1 * before[1]


HAPPENED: Mapping[str, Callable[[Past], None]] = {"replay": replay, "placeholder": placeholder, "truncate": truncate}


@pytest.mark.parametrize("what", HAPPENED)
def test_a_batch_costs_the_same_after(begin: Callable[[], Past], after_few: tuple[int, int], what: str) -> None:
    past = begin()
    for _ in range(FEW - 1):
        past.batch()
    HAPPENED[what](past)
    now, before = past.batch(), after_few
    assert now[0] <= before[0]
    assert now[1] <= 1.1 * before[1]
