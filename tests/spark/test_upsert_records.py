"""The records of an upsert topic, to the byte: prefixes, keys of many columns, rows that are kept deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from gold.change_feed.changes import net_changes
from gold.topics.formats import RecordShape, records, shown_key
from lakehouse.contracts.models import PublicationFormat
from lakehouse.contracts.published import Field
from lakehouse.delta.tables import inline_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Names that the code might want for itself.
COLUMNS = {"first": "BIGINT", "last": "DATE", "version": "STRING", "is_deleted": "BOOLEAN", "key": "STRING"}
KEYS = ("first", "last")
FEED = ", ".join(
    [*(f"{name} STRING" for name in COLUMNS), "_is_deleted BOOLEAN, _change_type STRING, _commit_version BIGINT"]
)
ROW = {"first": "1", "last": "2026-01-02", "version": "a", "is_deleted": "true", "key": None}
Change = tuple[str, int, dict[str, Any]]


def shape(record_format: PublicationFormat, *, optional: bool = False) -> RecordShape:
    keys = tuple(Field(f"k_{name}", name, COLUMNS[name], optional=optional) for name in KEYS)
    values = tuple(Field(f"v_{name}", name, kind) for name, kind in COLUMNS.items() if name not in KEYS)
    return RecordShape(record_format, keys, values)


def sent(
    spark: SparkSession, *changes: Change, record_format: PublicationFormat = "json", optional: bool = False
) -> list[dict[str, Any]]:
    """The records of the changes, key and value as text."""
    rows = [
        {**ROW, "_is_deleted": False, **row, "_change_type": kind, "_commit_version": version}
        for kind, version, row in changes
    ]
    feed = inline_rows(spark, rows, FEED).withColumns({name: F.col(name).cast(kind) for name, kind in COLUMNS.items()})
    chosen = shape(record_format, optional=optional)
    states = net_changes(feed, keys=KEYS, columns=chosen.columns, is_deleted=F.col("_is_deleted"))
    made = records(states, shape=chosen, generation=1).withColumn("shown", shown_key(F.col("key")))
    text = made.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})
    return [row.asDict() for row in text.orderBy("key").collect()]


def test_prefixes_stand_before_the_names_of_key_and_value(spark: SparkSession) -> None:
    (record,) = sent(spark, ("insert", 3, {}))
    assert record["key"] == '{"k_first":1,"k_last":"2026-01-02"}'
    assert record["value"] == '{"v_version":"a","v_is_deleted":true,"v_key":null}'
    assert record["shown"] == record["key"]
    assert (record["change_type"], record["change_sequence"]) == ("UPSERT", "0000000000000001/0000000000000003")


def test_connect_json_has_the_same_names_in_its_schema(spark: SparkSession) -> None:
    (record,) = sent(spark, ("insert", 3, {}), record_format="connect-json")
    key, value = json.loads(record["key"]), json.loads(record["value"])
    assert key["schema"]["fields"] == [
        {"type": "int64", "optional": False, "field": "k_first"},
        {
            "type": "int32",
            "name": "org.apache.kafka.connect.data.Date",
            "version": 1,
            "optional": False,
            "field": "k_last",
        },
    ]
    assert key["payload"] == {"k_first": 1, "k_last": 20455}
    assert value["payload"] == {"v_version": "a", "v_is_deleted": True, "v_key": None}
    assert record["shown"] == '{"k_first":1,"k_last":20455}'


@pytest.mark.parametrize("record_format", ["json", "connect-json"])
def test_null_is_a_value_of_a_key(spark: SparkSession, record_format: PublicationFormat) -> None:
    changes = [("insert", 3, {"last": None}), ("insert", 3, {}), ("delete", 4, {"last": None})]
    (record,) = sent(spark, *changes, record_format=record_format, optional=True)
    assert '"k_last":null' not in record["key"]
    (record, *more) = sent(spark, changes[0], record_format=record_format, optional=True)
    assert '"k_first":1,"k_last":null' in record["key"]
    assert more == []


DELETED = {"_is_deleted": True}
STORIES: list[tuple[str, list[Change], str | None]] = [
    ("new", [("insert", 1, {})], "UPSERT"),
    ("new, and deleted already", [("insert", 1, DELETED)], None),
    ("deleted", [("update_preimage", 1, {}), ("update_postimage", 1, DELETED)], "DELETE"),
    ("still deleted", [("update_preimage", 1, DELETED), ("update_postimage", 1, {**DELETED, "version": "b"})], None),
    ("again there", [("update_preimage", 1, DELETED), ("update_postimage", 1, {})], "UPSERT"),
    ("purged", [("delete", 1, DELETED)], None),
    ("gone", [("delete", 1, {})], "DELETE"),
    ("came and went", [("insert", 1, {}), ("update_preimage", 2, {}), ("update_postimage", 2, DELETED)], None),
    (
        "deleted and the same again",
        [
            *(("update_preimage", 1, {}), ("update_postimage", 1, DELETED)),
            *(("update_preimage", 2, DELETED), ("update_postimage", 2, {})),
        ],
        None,
    ),
    ("changed", [("update_preimage", 1, {}), ("update_postimage", 1, {"version": "b"})], "UPSERT"),
    ("rewritten", [("delete", 1, {}), ("insert", 1, {})], None),
]


def test_a_row_that_is_kept_deleted_is_not_there(spark: SparkSession) -> None:
    changes = [
        (kind, version, {**row, "first": str(number)})
        for number, (_name, story, _type) in enumerate(STORIES)
        for kind, version, row in story
    ]
    found = {json.loads(record["key"])["k_first"]: record["change_type"] for record in sent(spark, *changes)}
    came_to = {name: found.get(number) for number, (name, _story, _type) in enumerate(STORIES)}
    assert came_to == {name: change_type for name, _story, change_type in STORIES}
