"""The pipeline that one would write first: foreachBatch, row_number, MERGE, gold built anew, all of it to Kafka.

python -m benchmarks.plain_spark --bootstrap-servers SERVERS --warehouse FOLDER --topic TOPIC

It has no gates, no order of the source but Kafka's, no deletes in the topic, and counts nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F

from benchmarks.load import FULFILLMENT, PREFIXES, TOPICS
from lakehouse.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW = (
    "order_id BIGINT, customer_id BIGINT, product_id BIGINT, status STRING, total_amount STRING, created_at {time},"
    " updated_at {time}, note STRING"
)
ENVELOPE = "op STRING, before STRUCT<order_id: BIGINT>, after STRUCT<{row}>"


def main(argv: Sequence[str] | None = None) -> None:
    """Run it once, from Kafka to Kafka."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_spark", description=__doc__)
    for name in ("--bootstrap-servers", "--warehouse", "--topic"):
        parser.add_argument(name, required=True)
    chosen = parser.parse_args(argv)
    spark = spark_session(is_lasting=True)
    for kind, topic in TOPICS.items():
        to_bronze(spark, chosen.bootstrap_servers, topic, f"{chosen.warehouse}/bronze/{kind}")
        to_silver(spark, kind, chosen.warehouse)
    gold = f"{chosen.warehouse}/gold"
    orders = [unified(spark, kind, chosen.warehouse) for kind in TOPICS]
    orders[0].unionByName(orders[1]).write.format("delta").mode("overwrite").save(gold)
    (
        spark.read.format("delta")
        .load(gold)
        .select(
            F.to_json(F.struct("composite_key")).alias("key"),
            F.to_json(F.struct("*"), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}).alias("value"),
        )
        .write.format("kafka")
        .option("kafka.bootstrap.servers", chosen.bootstrap_servers)
        .option("topic", chosen.topic)
        .save()
    )


def to_bronze(spark: SparkSession, servers: str, topic: str, table: str) -> None:
    """The topic's records, appended."""
    (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("delta")
        .option("checkpointLocation", f"{table}/_checkpoint")
        .trigger(availableNow=True)
        .start(table)
        .awaitTermination()
    )


def to_silver(spark: SparkSession, kind: str, warehouse: str) -> None:
    """What is new in bronze, merged."""
    row = ROW.format(time="BIGINT" if kind == "postgresql" else "STRING")
    silver = f"{warehouse}/silver/{kind}"
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{silver}` ({row}) USING DELTA")
    (
        spark.readStream.format("delta")
        .load(f"{warehouse}/bronze/{kind}")
        .writeStream.foreachBatch(partial(merge, silver=silver, row=row))
        .option("checkpointLocation", f"{silver}/_checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def merge(batch: DataFrame, _batch_id: int, *, silver: str, row: str) -> None:
    """The last change of every key, by Kafka's offset, merged into the table."""
    newest_first = Window.partitionBy("key").orderBy(F.col("offset").desc())
    changes = (
        batch.where(F.col("value").isNotNull())
        .withColumn("event", F.from_json(F.col("value").cast("string"), ENVELOPE.format(row=row)))
        .withColumn("number", F.row_number().over(newest_first))
        .where(F.col("number") == 1)
        .select(
            F.coalesce("event.after.order_id", "event.before.order_id").alias("key_id"),
            (F.col("event.op") == "d").alias("is_delete"),
            "event.after.*",
        )
    )
    columns = {name: f"changes.{name}" for name in changes.columns if name not in {"key_id", "is_delete"}}
    (
        DeltaTable.forPath(batch.sparkSession, silver)
        .alias("silver")
        .merge(changes.alias("changes"), "silver.order_id = changes.key_id")
        .whenMatchedDelete("changes.is_delete")
        .whenMatchedUpdate(set=dict(columns))
        .whenNotMatchedInsert("NOT changes.is_delete", values=dict(columns))
        .execute()
    )


def unified(spark: SparkSession, kind: str, warehouse: str) -> DataFrame:
    """The orders of a source as gold has them."""
    status = F.col("status")
    fulfillment = F.lit("PENDING")
    for of, stands_for in FULFILLMENT.items():
        fulfillment = F.when(status == of, stands_for).otherwise(fulfillment)
    created_at = F.timestamp_micros("created_at") if kind == "postgresql" else F.col("created_at").cast("timestamp")
    return (
        spark.read.format("delta")
        .load(f"{warehouse}/silver/{kind}")
        .select(
            *("order_id", "customer_id", "product_id", "status"),
            F.col("total_amount").cast("decimal(10,2)").alias("total_amount"),
            created_at.alias("created_at"),
            F.lit(kind).alias("source_database"),
            fulfillment.alias("fulfillment_status"),
            F.concat(F.lit(f"{PREFIXES[kind]}-"), F.col("order_id").cast("string")).alias("composite_key"),
        )
    )


if __name__ == "__main__":
    main()
