"""Recorded events of real servers: however they are cut into batches, silver ends the same, and equal to the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from demo.__main__ import DATA, RECORDINGS, contracts_of_recordings
from demo.check import TRUTH, as_text, silver_differences
from lakehouse.contracts.models import Contracts
from silver.order.state import OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.recordings import per_partition, read, write
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lakehouse.spark.tables import Warehouse

pytestmark = pytest.mark.spark

CAPTURES = Path(__file__).parent.parent / "captures"
BATCHES = 6
PER_PARTITION = 833  # of three partitions and two sources: 5,000 records
OF_SOURCE = {
    "postgres": ("pg_big_20k", "outbox_pg_envelope"),
    "mysql": ("mysql_big_20k", "outbox_mysql_envelope"),
}
Cut = Callable[["DataFrame"], "DataFrame"]
Rows = Mapping[str, Mapping[Any, Mapping[str, Any]]]


@pytest.mark.parametrize(
    ("source", "capture", "topic", "contract_topic"),
    [
        ("postgres", "pg_ordering", "pgord.public.orders", "postgres_prod_tables.public.orders"),
        ("mysql", "mysql_ordering", "myord.ecommerce_ord.orders", "mysql_prod_tables.ecommerce.orders"),
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
    warehouse, contracts = empty_silver(), contracts_of_recordings(contracts)
    records = bronze_rows(warehouse.spark, CAPTURES / f"{capture}.jsonl.gz", topics={topic: contract_topic})
    for batch, part in enumerate((records.where("offset % 2 = 1"), records.where("offset % 2 = 0"), records)):
        apply(warehouse, contracts, source, part, batch)
    assert silver_differences(warehouse, data=CAPTURES, truth={f"silver.{source}_orders": capture}) == []


def test_six_batches_end_as_one(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path) -> None:
    one, many, contracts = empty_silver(), empty_silver(), contracts_of_recordings(contracts)
    recordings = {}
    for names in OF_SOURCE.values():
        for name in names:
            records = [record for record in read(DATA / f"{name}.jsonl.gz") if record["topic"] in RECORDINGS[name]]
            cut = per_partition(records, lambda number: number < PER_PARTITION)
            recordings[name] = write(tmp_path / f"{name}.jsonl.gz", cut)
        assert sum(len(read(recordings[name])) for name in names) > PER_PARTITION * 3
    in_batches(one, contracts, recordings, in_offset_order(1))
    in_batches(many, contracts, recordings, in_offset_order(BATCHES))
    assert many.read("ops.batches").agg(F.max("batch")).collect()[0][0] == BATCHES - 1
    assert tables(many, contracts) == tables(one, contracts)


def is_outbox() -> Column:
    return F.col("topic").startswith("outbox.")


def in_offset_order(batches: int) -> Cut:
    """Each batch with its share of every partition; the few outbox events in every second batch."""

    def cut(records: DataFrame) -> DataFrame:
        of_partition = Window.partitionBy("topic", "partition")
        number = F.row_number().over(of_partition.orderBy("offset")) - 1
        share = F.floor(number * batches / F.count(F.lit(1)).over(of_partition))
        share = F.when(is_outbox(), F.floor(share / 2) * 2).otherwise(share)
        return records.withColumn("share", share)

    return cut


def every_record_twice(records: DataFrame) -> DataFrame:
    """In the same batch, or up to two later."""
    once = in_offset_order(8)(records)
    return once.unionByName(once.withColumn("share", F.col("share") + F.floor(F.rand(7) * 3)))


def in_any_order(records: DataFrame) -> DataFrame:
    """The changes that have positions in any of ten batches."""
    return records.withColumn("share", F.when(is_outbox(), F.lit(0).cast("bigint")).otherwise(F.floor(F.rand(7) * 10)))


@pytest.mark.whole
@pytest.mark.parametrize(
    "cut",
    [in_offset_order(1), in_offset_order(50), every_record_twice, in_any_order],
    ids=["one_batch", "fifty_batches", "every_record_twice", "in_any_order"],
)
def test_all_records_end_as_their_source(empty_silver: Callable[[], Warehouse], contracts: Contracts, cut: Cut) -> None:
    warehouse, contracts = empty_silver(), contracts_of_recordings(contracts)
    in_batches(warehouse, contracts, {name: DATA / f"{name}.jsonl.gz" for name in RECORDINGS}, cut)
    assert silver_differences(warehouse, data=DATA, truth=TRUTH) == []
    unequal = F.col("read") != sum((F.col(outcome) for outcome in OUTCOMES), F.lit(0))
    assert warehouse.read("ops.batches").where(unequal).isEmpty()


def in_batches(warehouse: Warehouse, contracts: Contracts, recordings: Mapping[str, Path], cut: Cut) -> None:
    """Apply each source's recordings in the batches (`share`) that `cut` makes of them."""

    def apply_source(source: str) -> None:
        parts = [bronze_rows(warehouse.spark, recordings[name], topics=RECORDINGS[name]) for name in OF_SOURCE[source]]
        records = cut(parts[0].unionByName(parts[1])).persist()
        for batch in sorted(row["share"] for row in records.select("share").distinct().collect()):
            apply(warehouse, contracts, source, records.where(F.col("share") == batch).drop("share"), batch)
        records.unpersist()

    with ThreadPoolExecutor() as pool:
        list(pool.map(apply_source, OF_SOURCE))


def tables(warehouse: Warehouse, contracts: Contracts) -> Rows:
    """Every silver table, deleted rows included, without what depends on when a record was applied."""
    return {
        feed: as_text(
            warehouse.read(f"silver.{feed}"), [*declared.columns, "_is_deleted", "_op", "_offset"], key="order_id"
        )
        for feed, declared in contracts.feeds.items()
    }
