"""Transforms only describe: the pure modules build plans, and no Spark job runs until a job file asks for rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from bronze.events import COLUMNS, events, not_yet_stored
from gold.bigquery import last_change_per_key, records
from gold.columns import order_columns, unified
from gold.enrich import with_fulfillment
from gold.unify import highest_feed_that_knows, orders_of_feed, with_source
from lakehouse.contracts import Contracts
from lakehouse.tables import small_table
from silver.changelog import (
    first_occurrences,
    judged,
    keys_across_partitions,
    latest_per_key,
    rows_of_other_partitions,
)
from silver.envelope import changes
from silver.ledger import (
    CONNECTOR_RUNS,
    COUNT_NAMES,
    LEDGER,
    OUTBOX_EVENTS,
    connector_run_rows,
    counts,
    ignored_counts,
    ledger_rows,
    quarantine_rows,
    rule_counts,
    snapshots,
    timestamps_before,
)
from silver.merge import silver_table
from silver.position import has_position, with_position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Build = Callable[["SparkSession", Contracts], object]


def of_bronze(spark: SparkSession, _contracts: Contracts) -> DataFrame:
    kafka = small_table(spark, [{"offset": 1}], COLUMNS).withColumnRenamed("timestamp_type", "timestampType")
    stored = small_table(spark, [], COLUMNS)
    rows = events(kafka, batch_id=1, topic_ids={"topic": "id"})
    return not_yet_stored(rows, stored, read_again={("topic", 0): (0, 5)})


def of_silver(spark: SparkSession, contracts: Contracts) -> list[DataFrame]:
    """What a batch goes through, up to the rows of the tables: one feed of each envelope."""
    written = []
    for name in ("postgres_orders", "mysql_outbox_orders"):
        feed = contracts.feeds[name]
        batch = small_table(spark, [{"topic": feed.topics[0], "partition": 0, "offset": 1}], COLUMNS)
        rules = contracts.silver_gate.rules(name)
        read = judged(changes(batch, feed), rules, has_position=has_position(feed))
        counted = counts(read, feed=name, rules=[rule.name for rule in rules], columns=[]).unionByName(
            ignored_counts(batch)
        )
        seen = small_table(spark, [], CONNECTOR_RUNS.columns)
        of_batch = connector_run_rows(counted.select(*COUNT_NAMES), source=feed.source, timed_feeds=[name])
        placed = with_position(
            read,
            feed,
            runs=snapshots(seen.unionByName(of_batch)),
            read=timestamps_before(seen, counted),
        )
        known = small_table(spark, [], OUTBOX_EVENTS.columns)
        first = first_occurrences(placed, known=known)
        table = small_table(spark, [], silver_table(feed).columns)
        written += [
            ledger_rows(counted, run="run", source=feed.source, batch_id=1),
            rule_counts(small_table(spark, [], LEDGER.columns), run="run"),
            quarantine_rows(read, source=feed.source, feed=name),
            rows_of_other_partitions(table, [(feed.topics[0], 0)]),
            keys_across_partitions(first, table, feed),
            latest_per_key(first, feed),
        ]
    return written


def of_gold(spark: SparkSession, contracts: Contracts) -> DataFrame:
    source = contracts.gold.sources["postgres"]
    feeds = [
        orders_of_feed(
            small_table(spark, [{"order_id": 1}], "order_id BIGINT, _is_deleted BOOLEAN"),
            columns=order_columns(contracts.gold),
        )
        for _feed in source.feeds
    ]
    return with_fulfillment(
        with_source(highest_feed_that_knows(feeds, key="order_id"), source, key="order_id"),
        contracts.gold.fulfillment,
    )


def of_the_topic(spark: SparkSession, contracts: Contracts) -> DataFrame:
    columns = unified(contracts.gold)
    types = {**columns, "_change_type": "STRING", "_commit_version": "BIGINT"}
    feed = small_table(spark, [{"order_id": 1}], ", ".join(f"{name} {type_name}" for name, type_name in types.items()))
    return records(last_change_per_key(feed, columns=columns), columns=columns, generation=1)


@pytest.mark.parametrize("build", [of_bronze, of_silver, of_gold, of_the_topic], ids=lambda build: build.__name__)
def test_transforms_run_no_job(spark: SparkSession, contracts: Contracts, build: Build) -> None:
    group = uuid4().hex
    spark.sparkContext.setJobGroup(group, "building plans")
    try:
        build(spark, contracts)
        assert jobs_of(spark, group) == []
        spark.range(1).collect()
        assert len(jobs_of(spark, group)) == 1, "a job that does run is seen"
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def jobs_of(spark: SparkSession, group: str) -> list[int]:
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
