"""The records of the unified topic: key, value and headers, to the byte."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from gold.change_feed.changes import net_changes
from gold.topics.formats import AT_VERSION, RecordShape, records
from lakehouse.contracts.models import PublicationFormat
from lakehouse.contracts.published import Field
from lakehouse.delta.tables import inline_rows
from lakehouse.kafka.log import Record
from tests.support.loaders import change_data_capture, sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "order_id": "BIGINT",
    "customer_id": "BIGINT",
    "product_id": "BIGINT",
    "status": "STRING",
    "total_amount": "DECIMAL(10,2)",
    "created_at": "TIMESTAMP",
    "source_database": "STRING",
    "fulfillment_status": "STRING",
    "composite_key": "STRING",
    "processed_at": "TIMESTAMP",
}
FEED = ", ".join([*(f"{name} STRING" for name in COLUMNS), "_change_type STRING", "_commit_version BIGINT"])
ZONED = {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1, "optional": True}
ORDER = {
    "order_id": "1001",
    "customer_id": "7",
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
    return inline_rows(spark, rows, FEED).withColumns(
        {name: F.col(name).cast(type_name) for name, type_name in COLUMNS.items()}
    )


def shape(record_format: PublicationFormat) -> RecordShape:
    key = Field("composite_key", "composite_key", "STRING", optional=False)
    return RecordShape(record_format, (key,), tuple(Field(name, name, kind) for name, kind in COLUMNS.items()))


def sent(changes: DataFrame, *, record_format: PublicationFormat = "json") -> dict[str, dict[str, Any]]:
    states = net_changes(changes, keys=["composite_key"], columns=COLUMNS)
    made = records(states, shape=shape(record_format), generation=0x19ABC)
    rows = made.withColumns({name: F.col(name).cast("string") for name in ("key", "value")}).collect()
    keys = [json.loads(row["key"]) for row in rows]
    found = {key.get("payload", key)["composite_key"]: row.asDict() for key, row in zip(keys, rows, strict=True)}
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


def test_a_record_of_connect_json_has_its_schema(spark: SparkSession) -> None:
    record = sent(feed(spark, ("insert", 3, {})), record_format="connect-json")["PG-1001"]
    assert record["key"] == (
        '{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"composite_key"}],'
        '"optional":false},"payload":{"composite_key":"PG-1001"}}'
    )
    assert json.loads(record["value"]) == {
        "schema": {
            "type": "struct",
            "fields": [
                {"type": "int64", "optional": True, "field": "order_id"},
                {"type": "int64", "optional": True, "field": "customer_id"},
                {"type": "int64", "optional": True, "field": "product_id"},
                {"type": "string", "optional": True, "field": "status"},
                {
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "version": 1,
                    "parameters": {"scale": "2", "connect.decimal.precision": "10"},
                    "optional": True,
                    "field": "total_amount",
                },
                {**ZONED, "field": "created_at"},
                {"type": "string", "optional": True, "field": "source_database"},
                {"type": "string", "optional": True, "field": "fulfillment_status"},
                {"type": "string", "optional": True, "field": "composite_key"},
                {**ZONED, "field": "processed_at"},
            ],
            "optional": False,
        },
        "payload": {
            "order_id": 1001,
            "customer_id": 7,
            "product_id": None,
            "status": 'say "hi" 注文 🚀',
            "total_amount": "AAAAAlQL4/Y=",
            "created_at": "2025-02-02T01:01:07.000000Z",
            "source_database": "postgresql",
            "fulfillment_status": "PENDING",
            "composite_key": "PG-1001",
            "processed_at": "2026-01-01T00:00:00.123456Z",
        },
    }
    assert (record["change_type"], record["change_sequence"]) == ("UPSERT", "0000000000019ABC/0000000000000003")


def test_a_deleted_order_of_connect_json_is_a_null_value(spark: SparkSession) -> None:
    record = sent(feed(spark, ("delete", 3, {})), record_format="connect-json")["PG-1001"]
    assert (record["value"], record["change_type"]) == (None, "DELETE")


def test_both_formats_tell_the_same_row(spark: SparkSession) -> None:
    changes = feed(
        spark,
        ("insert", 3, {}),
        ("insert", 3, {"composite_key": "PG-2", "total_amount": "-0.05", "status": None}),
        ("delete", 3, {"composite_key": "PG-3"}),
    )
    tables = []
    formats: tuple[PublicationFormat, ...] = ("json", "connect-json")
    for record_format in formats:
        told = [
            Record(
                partition=0,
                offset=number,
                key=record["key"].encode(),
                value=record["value"] and record["value"].encode(),
                headers={name: record[name] for name in ("change_type", "change_sequence")},
            )
            for number, record in enumerate(sent(changes, record_format=record_format).values())
        ]
        tables.append(change_data_capture(told))
        assert sink(told, batches=[]) == tables[-1]
    assert tables[0].keys() == {"PG-1001", "PG-2"}
    assert tables[0]["PG-2"]["total_amount"] == Decimal("-0.05")
    assert all(table == tables[0] for table in tables)


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
    record = sent(feed(spark, ("delete", 4, {})))["PG-1001"]
    assert (record["value"], record["change_type"]) == (None, "DELETE")
    assert record["change_sequence"].endswith("/0000000000000004")


def test_a_key_that_ends_as_it_began_is_not_told(spark: SparkSession) -> None:
    changes = feed(
        spark,
        ("insert", 3, {"composite_key": "PG-1"}),  # came and went
        ("delete", 4, {"composite_key": "PG-1"}),
        ("delete", 3, {"composite_key": "PG-2"}),  # went, and came as it was
        ("insert", 5, {"composite_key": "PG-2"}),
        ("delete", 3, {"composite_key": "PG-3"}),  # went, and came as another
        ("insert", 5, {"composite_key": "PG-3", "status": None}),
        ("insert", 6, {"composite_key": "PG-4"}),  # the whole table written anew, in any order
        ("delete", 6, {"composite_key": "PG-4"}),
        ("delete", 6, {"composite_key": "PG-5"}),
        ("insert", 6, {"composite_key": "PG-5", "total_amount": "99999999.91"}),
        ("update_preimage", 4, {"composite_key": "PG-6"}),  # changed, and gone
        ("update_postimage", 4, {"composite_key": "PG-6", "status": "other"}),
        ("delete", 5, {"composite_key": "PG-6", "status": "other"}),
    )
    found = sent(changes)
    assert {key: record["change_type"] for key, record in found.items()} == {
        "PG-3": "UPSERT",
        "PG-5": "UPSERT",
        "PG-6": "DELETE",
    }
    assert json.loads(found["PG-3"]["value"])["status"] is None


def test_sequences_grow_with_the_version_and_the_generation(spark: SparkSession) -> None:
    states = net_changes(
        feed(spark, *[("insert", version, {"composite_key": f"PG-{version}"}) for version in (9, 10, 255, 256)]),
        keys=["composite_key"],
        columns=COLUMNS,
    )
    sequences = [
        row["change_sequence"]
        for generation in (9, 10)
        for row in records(states.orderBy(AT_VERSION), shape=shape("json"), generation=generation).collect()
    ]
    assert sequences == sorted(sequences)
    assert len(set(sequences)) == 8
