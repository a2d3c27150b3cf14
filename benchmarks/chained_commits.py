"""The floor under a pass: what one batch costs that is only written, layer after layer, in a warm process.

An append (bronze), a MERGE of the same rows (silver), another (gold), and a transaction of a producer (the topic), each
begun when the one before it is there. No record is read from Kafka, parsed, judged, ordered or counted: whatever the
pipeline takes above this is its own work. `benchmarks.warm_pass` measures it beside the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from pyspark.sql import functions as F

from benchmarks.backlog import UNIFIED
from benchmarks.load import TIMEOUT_SECONDS
from lakehouse.delta.tables import UPSERTED, TableSpec, Warehouse
from lakehouse.spark.sizing import broadcast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "order_id BIGINT, customer_id BIGINT, status STRING, total_amount DECIMAL(10,2), note STRING"
BRONZE = TableSpec("bronze.events", COLUMNS)
SILVER, GOLD = (TableSpec(name, COLUMNS, properties=UPSERTED) for name in ("silver.orders", "gold.orders"))
LINKS = ("bronze", "silver", "gold", "topic")


def orders(warehouse: Warehouse, rows: int, keys: int, *, seed: int) -> DataFrame:
    """So many orders of random ones of the keys, each key once; all of the keys where `rows` are as many."""
    some = F.xxhash64("id", F.lit(seed))
    return (
        warehouse.spark.range(keys)
        .orderBy(some)
        .limit(rows)
        .select(
            F.col("id").alias("order_id"),
            (some % 1000).alias("customer_id"),
            F.lit("paid").alias("status"),
            F.lit(seed).cast("decimal(10,2)").alias("total_amount"),
            F.hex(some).alias("note"),
        )
    )


def chain(warehouse: Warehouse, producer: Producer, rows: DataFrame, count: int) -> dict[str, float]:
    """Write the rows link by link; the seconds of each."""
    steps: dict[str, Callable[[], None]] = {
        "bronze": lambda: warehouse.append(BRONZE.name, rows),
        "silver": lambda: merge(warehouse, SILVER.name, rows, count),
        "gold": lambda: merge(warehouse, GOLD.name, rows, count),
        "topic": lambda: produce(producer, rows),
    }
    seconds = {}
    for link in LINKS:
        begun = time.monotonic()
        steps[link]()
        seconds[link] = round(time.monotonic() - begun, 3)
    return seconds


def merge(warehouse: Warehouse, table: str, rows: DataFrame, count: int) -> None:
    """The rows in the place of those of their keys."""
    new = broadcast(rows, count).alias("new")
    old = warehouse.delta(table).alias("old")
    old.merge(new, "old.order_id = new.order_id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def produce(producer: Producer, rows: DataFrame) -> None:
    """The rows as records, in one transaction. Raises KafkaException when it is not committed."""
    producer.begin_transaction()
    for row in rows.select(F.col("order_id").cast("string"), F.to_json(F.struct("*"))).toLocalIterator():
        producer.produce(UNIFIED, key=row[0], value=row[1])
    producer.commit_transaction(TIMEOUT_SECONDS)
