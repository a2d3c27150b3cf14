"""What an append counts as it goes is what the table has afterwards; a passed-over append counts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from bronze.batches import RECORDS, STORED, Planned, observed_records, stored_metrics, stored_records
from lakehouse.delta.files import file_names, read_text
from lakehouse.delta.tables import Warehouse
from lakehouse.spark import observed
from lakehouse.spark.observed import observe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLE = "bronze.shop_events"
PLANNED = [
    Planned("orders", "id", 0, 0, 10),
    Planned("orders", "id", 1, 5, 7),
    Planned("orders", "id", 2, 0, 3),  # of which no record is left
    Planned("outbox", "another", 0, 0, 1),
]


def rows(spark: SparkSession) -> DataFrame:
    """Offsets with a gap, tombstones, and a partition whose values are all NULL."""
    columns = "topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, value STRING"
    records = [
        ("orders", 0, 0, 4000, "a"),
        ("orders", 0, 1, 3000, None),
        ("orders", 0, 9, 5000, "äö"),
        ("orders", 1, 5, 2500, None),
        ("outbox", 0, 0, None, "abc"),
    ]
    return spark.createDataFrame(records, columns).select(
        *("topic", "partition", "offset"),
        F.timestamp_millis("timestamp_ms").alias("timestamp"),
        F.col("value").cast("binary").alias("value"),
        F.when(F.col("topic") == "orders", "id").otherwise("another").alias("_topic_id"),
    )


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(tmp_path), str(tmp_path / "_checkpoints"))


def test_an_append_counts_what_the_table_says_of_it(warehouse: Warehouse) -> None:
    counted = observe(rows(warehouse.spark), stored_metrics(PLANNED))
    warehouse.append_once(TABLE, counted.rows, writer="a", number=0)
    values = counted.values()
    assert values is not None
    assert values[RECORDS] == 5
    found = observed_records(PLANNED, values)
    assert found is not None
    asked = stored_records(warehouse.read(TABLE), PLANNED, some_were_there=False).collect()
    of_table = {
        (row["topic"], row["topic_id"], row["partition"]): {name: row[name] for name in STORED} for row in asked
    }
    assert {topic_partition: stored for topic_partition, stored in found.items() if stored["records"]} == of_table
    assert found["orders", "id", 2] == {**dict.fromkeys(STORED), "records": 0, "value_bytes": 0}


def test_an_append_that_is_passed_over_counts_nothing(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "WAIT_SECONDS", 0.5)
    warehouse.append_once(TABLE, rows(warehouse.spark), writer="a", number=0)
    counted = observe(rows(warehouse.spark), stored_metrics(PLANNED))
    warehouse.append_once(TABLE, counted.rows, writer="a", number=0)
    assert counted.values() is None
    assert warehouse.read(TABLE).count() == 5


@pytest.mark.parametrize("on_databricks", [False, True])
def test_small_files_are_read_with_java_and_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_databricks: bool
) -> None:
    if on_databricks:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18")
    for name in ("0", "12"):
        (tmp_path / name).write_text(f"v1\n{{}}\n{name} ä", encoding="utf-8")
    assert sorted(file_names(spark, str(tmp_path))) == ["0", "12"]
    assert read_text(spark, str(tmp_path / "12")) == "v1\n{}\n12 ä"
    assert read_text(spark, str(tmp_path / "13")) is None
    assert file_names(spark, str(tmp_path / "absent")) == []
