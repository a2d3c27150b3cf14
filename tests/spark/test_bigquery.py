"""The records of the unified topic: key, value and headers, to the byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from gold.bigquery import last_change_per_key, records
from lakehouse.tables import small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FEED = """
    order_id BIGINT, customer_id BIGINT, product_id BIGINT, status STRING, total_amount STRING, created_at STRING,
    source_database STRING, fulfillment_status STRING, composite_key STRING, processed_at STRING,
    _change_type STRING, _commit_version BIGINT
"""
ORDER = {
    "order_id": 1001,
    "customer_id": 7,
    "product_id": None,
    "status": 'say "hi" 注文 🚀',
    "total_amount": "99999999.90",
    "created_at": "2025-02-02 01:01:07",
    "source_database": "postgresql",
    "fulfillment_status": "PENDING",
    "composite_key": "PG-1001",
    "processed_at": "2026-01-01 00:00:00.123456",
}


def feed(spark: SparkSession, *changes: tuple[str, int, dict[str, Any]]) -> DataFrame:
    rows = [{**ORDER, **order, "_change_type": kind, "_commit_version": version} for kind, version, order in changes]
    return small_table(spark, rows, FEED).withColumns(
        {
            "total_amount": F.col("total_amount").cast("decimal(10,2)"),
            "created_at": F.col("created_at").cast("timestamp"),
            "processed_at": F.col("processed_at").cast("timestamp"),
        }
    )


def sent(changes: DataFrame) -> dict[str, dict[str, Any]]:
    rows = records(last_change_per_key(changes, columns=ORDER), columns=ORDER, generation=0x19ABC).collect()
    found = {json.loads(row["key"])["composite_key"]: row.asDict() for row in rows}
    assert len(found) == len(rows), "at most one record a key"
    return found


def test_a_record_is_flat_json_with_every_field(spark: SparkSession) -> None:
    record = sent(feed(spark, ("insert", 3, {})))["PG-1001"]
    assert record["key"] == '{"composite_key":"PG-1001"}'
    assert record["value"] == (
        '{"order_id":1001,"customer_id":7,"product_id":null,"status":"say \\"hi\\" 注文 🚀","total_amount":99999999.90,'
        '"created_at":"2025-02-02T01:01:07.000000Z","source_database":"postgresql","fulfillment_status":"PENDING",'
        '"composite_key":"PG-1001","processed_at":"2026-01-01T00:00:00.123456Z"}'
    )
    assert record["change_type"] == "UPSERT"
    assert record["change_sequence"] == "0000000000019ABC/0000000000000003"


def test_the_last_change_of_a_key_is_the_only_one(spark: SparkSession) -> None:
    changes = feed(
        spark,
        ("insert", 3, {"status": "first"}),
        ("update_preimage", 4, {"status": "first"}),
        ("update_postimage", 4, {"status": "second"}),
        ("update_preimage", 12, {"status": "second"}),
        ("update_postimage", 12, {"status": "third"}),
    )
    record = sent(changes)["PG-1001"]
    assert json.loads(record["value"])["status"] == "third"
    assert record["change_sequence"].endswith("/000000000000000C")


def test_a_deleted_order_is_a_null_value(spark: SparkSession) -> None:
    changes = feed(
        spark,
        ("insert", 3, {}),
        ("delete", 4, {}),
        ("delete", 3, {"composite_key": "PG-2"}),
        ("insert", 4, {"composite_key": "PG-2"}),
    )
    found = sent(changes)
    assert (found["PG-1001"]["value"], found["PG-1001"]["change_type"]) == (None, "DELETE")
    assert found["PG-2"]["value"] is not None


def test_sequences_grow_with_the_version_and_the_generation(spark: SparkSession) -> None:
    states = last_change_per_key(
        feed(spark, *[("insert", version, {"composite_key": f"PG-{version}"}) for version in (9, 10, 255, 256)]),
        columns=ORDER,
    )
    sequences = [
        row["change_sequence"]
        for generation in (9, 10)
        for row in records(states.orderBy("version"), columns=ORDER, generation=generation).collect()
    ]
    assert sequences == sorted(sequences)
    assert len(set(sequences)) == 8
