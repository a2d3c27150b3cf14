"""The floor under freshness: what one batch costs that is only written, layer after layer, in a warm process.

python -m benchmarks.chained_commits [--rows 1000] [--keys 20000] [--chains 10]

An append (bronze), a MERGE of the same rows (silver), another (gold), and a transaction of a producer (the topic), each
begun when the one before it is there. No record is read from Kafka, parsed, judged, ordered or counted: whatever the
pipeline takes above this is its own work. Prints a line of JSON for every chain, and a table at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from pyspark.sql import functions as F
from rich.table import Table as Shown

from benchmarks import report
from benchmarks.backlog import UNIFIED, unified_topic
from benchmarks.load import TIMEOUT_SECONDS
from demo.broker import embedded_broker
from lakehouse.config import settings
from lakehouse.held import held
from lakehouse.session import spark_session
from lakehouse.sizing import sent_along
from lakehouse.steps import wide_console
from lakehouse.tables import UPSERTED, TableSpec, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "order_id BIGINT, customer_id BIGINT, status STRING, total_amount DECIMAL(10,2), note STRING"
BRONZE = TableSpec("bronze.events", COLUMNS)
SILVER, GOLD = (TableSpec(name, COLUMNS, properties=UPSERTED) for name in ("silver.orders", "gold.orders"))
LINKS = ("bronze", "silver", "gold", "topic")
WARM_UP = 5


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chained_commits", description=__doc__)
    for name, default in (("rows", 1000), ("keys", 20_000), ("chains", 10), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    report.add_option(parser)
    chosen = parser.parse_args(argv)
    spark = spark_session(is_lasting=True)
    with TemporaryDirectory(prefix="chained-") as folder, embedded_broker() as servers, unified_topic(servers):
        warehouse = settings(warehouse=folder, bootstrap_servers=servers).address.opened(spark)
        for table in (BRONZE, SILVER, GOLD):
            warehouse.ensure(table)
        for table in (SILVER, GOLD):
            warehouse.append(table.name, orders(warehouse, chosen.keys, chosen.keys, seed=0))
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "chained"})
        producer.init_transactions(TIMEOUT_SECONDS)
        found = []
        for number in range(WARM_UP + chosen.chains):
            with held(orders(warehouse, chosen.rows, chosen.keys, seed=chosen.seed + number)) as rows:
                seconds = chain(warehouse, producer, rows, chosen.rows)
            print(json.dumps({"chain": number - WARM_UP, **seconds}), flush=True)
            if number >= WARM_UP:
                found.append(seconds)
    shown = Shown(*LINKS, "the whole chain", "of the chains, the slowest")
    sums = [sum(seconds.values()) for seconds in found]
    middle = [median(seconds[link] for seconds in found) for link in LINKS]
    shown.add_row(*[f"{seconds:.2f}" for seconds in (*middle, median(sums), max(sums))])
    wide_console().print(shown)
    if chosen.write_docs:
        asked = f"{chosen.rows:,} rows into {chosen.keys:,}, seconds, medians of {chosen.chains} chains"
        report.write("chained commits", shown, [], asked=asked)


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
    new = sent_along(rows, count).alias("new")
    old = warehouse.delta(table).alias("old")
    old.merge(new, "old.order_id = new.order_id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def produce(producer: Producer, rows: DataFrame) -> None:
    """The rows as records, in one transaction. Raises KafkaException when it is not committed."""
    producer.begin_transaction()
    for row in rows.select(F.col("order_id").cast("string"), F.to_json(F.struct("*"))).toLocalIterator():
        producer.produce(UNIFIED, key=row[0], value=row[1])
    producer.commit_transaction(TIMEOUT_SECONDS)


if __name__ == "__main__":
    main()
