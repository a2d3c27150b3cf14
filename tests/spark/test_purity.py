"""Transforms only describe: the pure modules build plans, and no Spark job runs until a job file asks for rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

from bronze import conservation as bronze_accounts
from bronze.batches import planned_of
from bronze.events import COLUMNS, events, not_yet_stored
from bronze.source_state import steps_in
from gold.change_feed.changes import net_changes
from gold.topics.formats import RecordShape, records
from gold.unify import highest_feed_that_knows, order_columns, orders_of_feed, with_fulfillment, with_source
from lakehouse.batches import BATCHES
from lakehouse.contracts.models import Contracts, PublicationFormat
from lakehouse.contracts.published import Field, unified_columns
from lakehouse.delta.tables import inline_rows
from lakehouse.kafka.ranges import overlaid
from silver.accounts import conservation as silver_accounts
from silver.accounts.audit import OUTBOX_EVENTS, pending_ranges
from silver.batch.append_feed import changelog_rows, with_event_ids, with_outcome
from silver.batch.changelog import judged, keys_across_partitions, with_known_events
from silver.batch.events import events as events_of
from silver.batch.events import offset_gaps, offset_ranges
from silver.batch.merge import silver_table
from silver.batch.position import has_position, with_position
from silver.batch.transport import event_rows
from silver.lookback.earlier_records import in_ranges, regressed_runs, unseen_changes
from silver.lookback.rederive import keys_of
from silver.rejects.quarantine import quarantine_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Build = Callable[["SparkSession", Contracts], object]


def of_bronze(spark: SparkSession, _contracts: Contracts) -> DataFrame:
    kafka = inline_rows(spark, [{"offset": 1}], COLUMNS).withColumnRenamed("timestamp_type", "timestampType")
    stored = inline_rows(spark, [], COLUMNS)
    rows = events(kafka, batch_id=1, topic_ids={"topic": "id"})
    return not_yet_stored(rows, stored, read_again={("topic", 0): (0, 5)})


def of_silver(spark: SparkSession, contracts: Contracts) -> list[DataFrame]:
    """What a batch goes through, up to the rows of the tables: one feed of each envelope."""
    written = []
    for name in ("postgres_orders", "mysql_outbox_orders"):
        feed = contracts.feeds[name]
        batch = inline_rows(spark, [{"topic": feed.topics[0], "partition": 0, "offset": 1}], COLUMNS)
        rules = contracts.silver_gate.rules(name)
        told = events_of(batch, feed).withColumn("decision", F.lit(None).cast("string"))
        read = judged(told, rules, keys=feed.keys, has_position=has_position(feed))
        positioned = with_position(read, feed, position_contexts=())
        table = inline_rows(spark, [], silver_table(feed).columns)
        known = inline_rows(spark, [], OUTBOX_EVENTS.columns)
        events = with_known_events(positioned, feed, known=known)
        with_ids = with_event_ids(positioned, feed, earlier=positioned)
        list_table = inline_rows(spark, [], silver_table(feed.model_copy(update={"append_only": True})).columns)
        written += [
            quarantine_rows(read, batch, feed, contract="of a test", generation=""),
            offset_gaps(read),
            offset_ranges(read, read),
            keys_across_partitions(events, table, feed),
            event_rows(events, feed),
            changelog_rows(with_ids, feed),
            with_outcome(with_ids, list_table),
            unseen_changes(events_of(batch, feed), regressed_runs(spark, []), feed),
            in_ranges(batch, {("topic", "", 0): (0, 1)}),
            keys_of(batch, feed),
        ]
    return written


def of_gold(spark: SparkSession, contracts: Contracts) -> DataFrame:
    source = contracts.gold.sources["postgres"]
    feeds = [
        orders_of_feed(
            inline_rows(spark, [{"order_id": 1}], "order_id BIGINT, _is_deleted BOOLEAN"),
            columns=order_columns(contracts.gold),
        )
        for _feed in source.feeds
    ]
    return with_fulfillment(
        with_source(highest_feed_that_knows(feeds, key="order_id"), source, key="order_id"),
        contracts.gold.fulfillment,
    )


def of_the_topic(spark: SparkSession, contracts: Contracts) -> list[DataFrame]:
    columns = unified_columns(contracts.gold)
    types = {**columns, "_change_type": "STRING", "_commit_version": "BIGINT"}
    feed = inline_rows(spark, [{"order_id": 1}], ", ".join(f"{name} {type_name}" for name, type_name in types.items()))
    states = net_changes(feed, keys=["composite_key"], columns=columns)
    fields = tuple(Field(name, name, kind) for name, kind in columns.items())
    shapes = [RecordShape(name, fields[:1], fields) for name in get_args(PublicationFormat)]
    return [records(states, shape=shape, generation=1) for shape in shapes]


def of_verify(spark: SparkSession, _contracts: Contracts) -> list[DataFrame]:
    rows = inline_rows(spark, [], BATCHES.columns)
    audit = silver_accounts.of_this_generation(rows, source="shop")
    planned = planned_of(rows)
    kinds = {
        "stored": bronze_accounts.stored_ranges(inline_rows(spark, [], COLUMNS)),
        "asked": bronze_accounts.asked_ranges(planned),
        "skipped": bronze_accounts.skipped_ranges(steps_in(rows)),
        "counted": silver_accounts.counted_ranges(audit),
        "suspended": pending_ranges(rows),
    }
    ranges = silver_accounts.with_counted_to(bronze_accounts.with_surroundings(overlaid(kinds)))
    return [
        bronze_accounts.stored_twice(ranges),
        bronze_accounts.missing(ranges),
        bronze_accounts.missing_of_batches(ranges, bronze_accounts.short_batches(ranges, planned)),
        bronze_accounts.never_read(ranges),
        bronze_accounts.known_skips(ranges),
        silver_accounts.came_to(ranges),
        silver_accounts.not_counted(ranges, came_to=None),
        silver_accounts.counted_twice(ranges),
        silver_accounts.suspended_records(ranges),
        silver_accounts.unbalanced(audit),
        silver_accounts.read_otherwise(silver_accounts.suspicious(audit), ranges),
        silver_accounts.totals(audit),
    ]


@pytest.mark.parametrize(
    "build", [of_bronze, of_silver, of_gold, of_the_topic, of_verify], ids=lambda build: build.__name__
)
def test_transforms_run_no_job(spark: SparkSession, contracts: Contracts, build: Build) -> None:
    group = uuid4().hex
    spark.sparkContext.setJobGroup(group, "building plans")
    try:
        build(spark, contracts)
        spark.range(1).collect()
        # Spark says so a little later, of one job after the other: with this one all before it are seen.
        deadline = time.monotonic() + 30
        while not (seen := jobs_of(spark, group)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(seen) == 1, "the job that does run, and no other"
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def jobs_of(spark: SparkSession, group: str) -> list[int]:
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
