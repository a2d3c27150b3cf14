"""The whole recordings of real servers: however they are cut into batches, silver ends equal to the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from demo.__main__ import DATA, RECORDINGS, contracts_of_recordings
from demo.check import TRUTH, silver_differences
from lakehouse.contracts.models import Contracts
from silver.order.state import OUTCOMES
from tests.support.bronze import bronze_rows
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.whole]

OF_SOURCE = {
    "postgres": ("pg_big_20k", "outbox_pg_envelope"),
    "mysql": ("mysql_big_20k", "outbox_mysql_envelope"),
}
Cut = Callable[["DataFrame"], "DataFrame"]


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
            apply(warehouse, contracts, source, records.where(F.col("share") == batch).drop("share"))
        records.unpersist()

    with ThreadPoolExecutor() as pool:
        list(pool.map(apply_source, OF_SOURCE))
