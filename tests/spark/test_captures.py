"""Recorded events of real servers: however they are cut into batches, silver ends the same, and equal to the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from demo.__main__ import DATA, RECORDINGS
from demo.check import TRUTH, as_text, silver_differences
from lakehouse.contracts import Contracts
from silver.apply import Job, apply_batch
from tests.support.bronze import bronze_rows
from tests.support.recordings import per_partition, read, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.tables import Warehouse

pytestmark = pytest.mark.spark

CAPTURES = Path(__file__).parent.parent / "captures"
BATCHES = 40
PER_PARTITION = 833  # of three partitions and two sources: 5,000 records
OF_SOURCE = {
    "postgres": ("pg_big_20k", "outbox_pg_envelope"),
    "mysql": ("mysql_big_20k", "outbox_mysql_envelope"),
}
Rows = Mapping[str, Mapping[Any, Mapping[str, Any]]]


@pytest.mark.parametrize(
    ("source", "capture", "topic", "contract_topic"),
    [
        ("postgres", "pg_ordering", "pgord.public.orders", "postgres_prod.public.orders"),
        ("mysql", "mysql_ordering", "myord.ecommerce_ord.orders", "mysql_prod.ecommerce.orders"),
    ],
)
def test_histories_that_break_simpler_orders_end_as_their_source(
    empty_silver: Callable[[], Warehouse],
    contracts: Contracts,
    source: str,
    capture: str,
    topic: str,
    contract_topic: str,
) -> None:
    warehouse = empty_silver()
    records = bronze_rows(warehouse.spark, CAPTURES / f"{capture}.jsonl.gz", topics={topic: contract_topic})
    for batch, part in enumerate((records.where("offset % 2 = 1"), records.where("offset % 2 = 0"), records)):
        apply(warehouse, contracts, source, part, batch)
    assert silver_differences(warehouse, data=CAPTURES, truth={f"silver.{source}_orders": capture}) == []


def test_forty_batches_end_as_one(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path) -> None:
    one, many = empty_silver(), empty_silver()
    recordings = {}
    for names in OF_SOURCE.values():
        for name in names:
            records = [record for record in read(DATA / f"{name}.jsonl.gz") if record["topic"] in RECORDINGS[name]]
            cut = per_partition(records, lambda number: number < PER_PARTITION)
            recordings[name] = write(tmp_path / f"{name}.jsonl.gz", cut)
        assert sum(len(read(recordings[name])) for name in names) > PER_PARTITION * 3
    in_batches(one, contracts, recordings, 1)
    in_batches(many, contracts, recordings, BATCHES)
    assert many.read("ops.ledger").agg(F.max("batch")).collect()[0][0] == BATCHES - 1
    assert tables(many, contracts) == tables(one, contracts)


@pytest.mark.whole
def test_all_records_in_forty_batches_end_as_their_source(
    empty_silver: Callable[[], Warehouse], contracts: Contracts
) -> None:
    warehouse = empty_silver()
    in_batches(warehouse, contracts, {name: DATA / f"{name}.jsonl.gz" for name in RECORDINGS}, BATCHES)
    assert silver_differences(warehouse, data=DATA, truth=TRUTH) == []


def in_batches(warehouse: Warehouse, contracts: Contracts, recordings: Mapping[str, Path], batches: int) -> None:
    """Apply each source's recordings in so many batches, each with its share of every partition, in offset order."""

    def apply_source(source: str) -> None:
        parts = [bronze_rows(warehouse.spark, recordings[name], topics=RECORDINGS[name]) for name in OF_SOURCE[source]]
        of_partition = Window.partitionBy("topic", "partition")
        number = F.row_number().over(of_partition.orderBy("offset")) - 1
        share = F.floor(number * batches / F.count(F.lit(1)).over(of_partition))
        # The few outbox events in every eighth batch, the changes of the tables in all.
        share = F.when(F.col("topic").startswith("outbox."), F.floor(share / 8) * 8).otherwise(share)
        records = parts[0].unionByName(parts[1]).withColumn("share", share).persist()
        for batch in range(batches):
            apply(warehouse, contracts, source, records.where(F.col("share") == batch).drop("share"), batch)
        records.unpersist()

    with ThreadPoolExecutor() as pool:
        list(pool.map(apply_source, OF_SOURCE))


def apply(warehouse: Warehouse, contracts: Contracts, source: str, records: DataFrame, batch: int) -> None:
    job = Job(source, contracts, warehouse.location, warehouse.checkpoints, run="test")
    apply_batch(records, batch, job=job)


def tables(warehouse: Warehouse, contracts: Contracts) -> Rows:
    """Every silver table, deleted rows included, without what depends on when a record was applied."""
    return {
        feed: as_text(
            warehouse.read(f"silver.{feed}"), [*declared.columns, "_is_deleted", "_op", "_offset"], key="order_id"
        )
        for feed, declared in contracts.feeds.items()
    }
