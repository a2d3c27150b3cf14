"""Positions in Spark: of the type that a table keeps, and of the records that have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse.contracts.models import Contracts, Feed
from lakehouse.delta.tables import inline_rows
from silver.batch.position import has_position, with_position
from silver.decode.reference.table import sequence_of
from silver.order.narrow_events import log_columns
from silver.order.position import position_type
from tests.support.positions import located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS = "topic STRING, topic_id STRING, partition INT, offset BIGINT, run_id STRING, read_ms BIGINT"


def located_rows(spark: SparkSession, feed: Feed, sources: Sequence[Mapping[str, Any] | None]) -> DataFrame:
    """Records of one topic-partition with these source blocks, by offset."""
    blocks = [source and {**source, "sequence": sequence_of(source.get("sequence"))} for source in sources]
    record = {"topic": "t", "topic_id": "", "partition": 0, "run_id": "run", "read_ms": None}
    of_log = located(blocks, feed.kind).to_dicts()
    rows = [{**record, "offset": offset, **one} for offset, one in enumerate(of_log)]
    ddl = ", ".join([RECORDS, *(f"{name} {kind}" for name, kind in log_columns(feed.kind).items())])
    return inline_rows(spark, rows, ddl).withColumn("timestamp", F.timestamp_millis(F.lit(0)))


@pytest.mark.parametrize("feed", ["postgres_orders", "mysql_orders", "postgres_outbox_orders"])
def test_a_position_is_of_the_type_that_the_table_keeps(spark: SparkSession, contracts: Contracts, feed: str) -> None:
    declared = contracts.feeds[feed]
    kept = inline_rows(spark, [], f"position {position_type(declared)}")
    positioned = with_position(located_rows(spark, declared, []), declared, position_contexts=[])
    assert positioned.select("position").dtypes == kept.dtypes


def test_what_has_no_position_is_told(spark: SparkSession, contracts: Contracts) -> None:
    sources: Mapping[str, Sequence[tuple[Mapping[str, Any] | None, bool]]] = {
        "postgres_orders": [
            ({"lsn": 1, "sequence": '[null,"1"]'}, True),
            ({"lsn": 1, "sequence": None}, True),
            ({"lsn": None, "sequence": '["1","2"]'}, True),
            ({"lsn": None, "sequence": "not JSON"}, False),
            ({"lsn": None, "sequence": '["1",null]'}, False),
            ({"lsn": None, "sequence": '["1","0/16B6C50"]'}, False),
            ({}, False),
            (None, False),
        ],
        "mysql_orders": [
            ({"file": "binlog.000001", "pos": 4}, True),
            ({"file": "a.b.000001", "pos": 4, "row": None}, True),
            ({"file": "binlog", "pos": 4}, False),
            ({"file": "binlog.", "pos": 4}, False),
            ({"file": "", "pos": 4}, False),
            ({"file": "binlog.000001", "pos": None}, False),
            ({"file": None, "pos": 4}, False),
            (None, False),
        ],
    }
    for feed, cases in sources.items():
        declared = contracts.feeds[feed]
        changes = located_rows(spark, declared, [source for source, _is_known in cases])
        positioned = with_position(changes, declared, position_contexts=[])
        found = positioned.select("offset", F.expr(has_position(declared)).alias("is_known"), "position").collect()
        expected = [is_known for _source, is_known in cases]
        assert [row["is_known"] for row in sorted(found, key=lambda row: int(row["offset"]))] == expected, feed
        assert [row["position"] is not None for row in sorted(found, key=lambda row: int(row["offset"]))] == expected
