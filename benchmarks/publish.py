"""What it takes to publish many orders in one run: seconds, and the most memory that the process had.

python -m benchmarks.publish [ROWS …]: a gold table of so many orders, an embedded broker, a heap of 1 GB for Java.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import functions as F

from demo.broker import embedded_broker
from gold.quality.gate import OTHERS
from gold.state import GoldState
from gold.state_store import StateStore
from gold.topics import publish
from gold.unify import UNIFIED, unified_table
from lakehouse.batches import BATCHES
from lakehouse.config import settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import current
from lakehouse.spark.session import spark_session

SIZES = (100_000, 1_000_000)


def main(sizes: Sequence[int]) -> None:
    """Print a line of JSON for every size."""
    contracts = load_contracts()
    with TemporaryDirectory(prefix="publish-") as folder, embedded_broker() as servers:
        spark = spark_session(extra={"spark.driver.memory": "1g"})
        for size in sizes:
            chosen = settings(warehouse=f"{folder}/{size}", bootstrap_servers=servers)
            warehouse = Warehouse(spark, chosen.warehouse, chosen.checkpoints)
            make_gold(warehouse, contracts, size)
            topic = {"topic": f"unified.of.{size}"}
            own = contracts.gold.model_copy(
                update={"publication": contracts.gold.unified_topic.model_copy(update=topic)}
            )
            forget_peak()
            before, started = resident("VmRSS"), time.monotonic()
            sent = publish.run(spark, chosen, contracts.model_copy(update={"gold": own})).sent
            seconds = time.monotonic() - started
            told = {"rows": size, "sent": sent, "seconds": round(seconds, 1), "mb_more": resident("VmHWM") - before}
            print(json.dumps(told), flush=True)


def make_gold(warehouse: Warehouse, contracts: Contracts, size: int) -> None:
    """A gold table of so many orders of PostgreSQL, all of which gate 2 has let pass."""
    spec = unified_table(contracts.gold)
    for table in (spec, BATCHES):
        warehouse.ensure(table)
    number = F.col("id")
    orders = warehouse.spark.range(size).select(
        number.alias("order_id"),
        (number % 1000).alias("customer_id"),
        (number % 100).alias("product_id"),
        F.lit("completed").alias("status"),
        (number % 100_000 / 100).alias("total_amount"),
        F.timestamp_seconds(number + 1_700_000_000).alias("created_at"),
        F.lit("postgresql").alias("source_database"),
        F.lit("FULFILLED").alias("fulfillment_status"),
        F.concat(F.lit("PG-"), number).alias("composite_key"),
        F.current_timestamp().alias("processed_at"),
    )
    warehouse.overwrite(spec, orders)
    now = current(warehouse, UNIFIED)
    StateStore().write(warehouse, GoldState(publishable=dict.fromkeys((*contracts.gold.sources, OTHERS), now)))


def forget_peak() -> None:
    """From now on the peak of this process's memory is a new one (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(what: str) -> int:
    """Memory of this process, in MB: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) // 1000


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or SIZES)
