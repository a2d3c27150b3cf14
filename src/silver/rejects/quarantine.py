"""`quality.quarantine`: the records that may not pass, each with its reasons and with what was decided about it.

An entry is one Kafka record. It is `open` until a person decides: `retried` (judge it again by the rules of today),
`released` (apply it although it fails rules) or `discarded` (never apply it). Decisions are kept, so that a silver
which is rebuilt from bronze comes to the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts.models import Expectation, Feed
from lakehouse.delta.tables import TableSpec, Warehouse, inline_rows
from silver.order.runs import OffsetRange, TopicPartition, offset_bounds

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame

# `row_key`: the columns of the key as JSON, where they could be read. `contract`: of the table and its rules, as they
# were when the record was judged last. `generation`: of the silver whose audit has it as quarantined. `request`: the
# command that retried or released it; `finished_at`: when that was carried out. `is_damaged`: its source position is
# wrong, as a later change of its key shows. `found_by`: the batch that has found that (FeedBatch.name): what the batch
# audit says of the record is right once that batch is in it. `reasons` are for people: no code reads them.
QUARANTINE = TableSpec(
    name="quality.quarantine",
    columns="""
        source STRING, feed STRING, topic STRING, topic_id STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,
        row_key STRING, reasons ARRAY<STRING>, rules ARRAY<STRING>, is_damaged BOOLEAN, contract STRING,
        key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
        first_seen TIMESTAMP, last_seen TIMESTAMP, generation STRING,
        state STRING, state_by STRING, state_why STRING, state_at TIMESTAMP, request STRING, finished_at TIMESTAMP,
        found_by STRING
    """,
    partition_by=("source",),
)
STATES = ("open", "retried", "released", "discarded")
DAMAGED = "Its source position is ahead of that of a later change of the same key in the same connector run."
DISCARDED = "It was discarded by command."
DECISION_PENDING = "It is pending in quarantine."
OF_RECORD = ["topic", "topic_id", "partition", "offset"]
_RANGES = "topic STRING, topic_id STRING, partition INT, first BIGINT, last BIGINT"


@dataclass(frozen=True)
class QuarantineState:
    """What the quarantine has that concerns a batch, by feed.

    `damaged`: feeds of which damaged records were set aside. `decided`: feeds of which records were released or
    discarded. `pending`: feeds with pending records; `pending_in_batch`: those of which the batch has some. `offsets`:
    of every topic-partition between which offsets there are entries. `is_met`: whether the batch has some of these
    offsets. `is_new`: whether it was read for this batch: one before it may have broken off.
    """

    damaged: Collection[str] = frozenset()
    decided: Collection[str] = frozenset()
    pending: Collection[str] = frozenset()
    pending_in_batch: Collection[str] = frozenset()
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    is_met: bool = True
    is_new: bool = True

    def meets(self, ranges: Iterable[OffsetRange]) -> bool:
        """Whether there may be entries of records in these ranges."""
        return any(
            first <= self.offsets[topic_partition][1] and self.offsets[topic_partition][0] <= last
            for topic_partition, first, last in ranges
            if topic_partition in self.offsets
        )


def contract_version(feed: Feed, rules: Sequence[Expectation]) -> str:
    """Twelve hex digits that change when the table's contract or its rules do."""
    texts = [feed.model_dump_json(), *[rule.model_dump_json() for rule in rules]]
    return sha256("\n".join(texts).encode()).hexdigest()[:12]


def quarantine_rows(
    rejects: DataFrame, bronze: DataFrame, feed: Feed, *, contract: str, generation: str, found_by: str | None = None
) -> DataFrame:
    """The quarantined records of a feed as new entries: as `bronze` has them, with every reason.

    `rejects`: judged records. `found_by`: all of them are damaged.
    """
    stored = bronze.withColumn("topic_id", F.coalesce("_topic_id", F.lit(""))).select(*OF_RECORD, "value", "headers")
    now, none = F.current_timestamp(), F.lit(None)
    keys = [F.col(f"row.{key}").alias(key) for key in feed.keys]
    has_key = F.lit(bool(keys))
    for key in keys:
        has_key = has_key & key.isNotNull()
    return stored.join(rejects, on=OF_RECORD, how="inner").select(
        F.lit(feed.source).alias("source"),
        F.lit(feed.name).alias("feed"),
        *OF_RECORD,
        "timestamp",
        F.when(has_key, F.to_json(F.struct(*keys or [F.lit(1)]))).alias("row_key"),
        F.col("problems").alias("reasons"),
        F.col("failed_rules").alias("rules"),
        F.lit(found_by is not None).alias("is_damaged"),
        F.lit(contract).alias("contract"),
        "key",
        "value",
        "headers",
        now.alias("first_seen"),
        now.alias("last_seen"),
        F.lit(generation).alias("generation"),
        F.lit("open").alias("state"),
        none.cast("string").alias("state_by"),
        none.cast("string").alias("state_why"),
        none.cast("timestamp").alias("state_at"),
        none.cast("string").alias("request"),
        none.cast("timestamp").alias("finished_at"),
        F.lit(found_by).cast("string").alias("found_by"),
    )


def add(warehouse: Warehouse, entries: DataFrame, source: str) -> None:
    """Add new entries. Of a record that is known, what it fails today; it is pending again, unless it was discarded."""
    is_discarded = "known.state = 'discarded'"
    judged = ("reasons", "rules", "is_damaged", "contract")
    of_today = {name: f"IF({is_discarded}, known.{name}, new.{name})" for name in judged}
    (
        _entries(warehouse)
        .merge(entries.distinct().alias("new"), _same_record(source))
        .whenMatchedUpdate(
            set={
                **of_today,
                "row_key": "coalesce(new.row_key, known.row_key)",
                "found_by": "coalesce(new.found_by, known.found_by)",
                "last_seen": "new.last_seen",
                "generation": "new.generation",
                "state": f"IF({is_discarded}, known.state, 'open')",
                "finished_at": f"IF({is_discarded}, known.finished_at, NULL)",
            }
        )
        .whenNotMatchedInsertAll()
        .execute()
    )


def passed(warehouse: Warehouse, records: DataFrame, source: str) -> None:
    """Close the entries of these records (OF_RECORD), which were pending and have passed.

    The gate says nothing of damaged records: they stay pending.
    """
    (
        _entries(warehouse)
        .merge(records.select(*OF_RECORD).distinct().alias("new"), _same_record(source))
        .whenMatchedUpdate(
            condition="known.state IN ('retried', 'released') AND known.finished_at IS NULL AND NOT known.is_damaged",
            set={"finished_at": "current_timestamp()"},
        )
        .whenMatchedUpdate(
            condition="known.state = 'open' AND NOT known.is_damaged",
            set={
                "state": "'retried'",
                "state_by": "'silver'",
                "state_why": "'Read again from bronze: by the rules of today it may pass.'",
                "state_at": "current_timestamp()",
                "finished_at": "current_timestamp()",
            },
        )
        .execute()
    )


def is_pending_entry() -> Column:
    """Whether the record of an entry is not in silver, and could come there: open, or a request is not carried out."""
    is_asked = F.col("state").isin("retried", "released") & F.col("finished_at").isNull()
    return (F.col("state") == "open") | is_asked


def quarantine_state(warehouse: Warehouse, source: str, ranges: Sequence[OffsetRange] | None = None) -> QuarantineState:
    """What concerns a batch of these ranges of offsets; None: any."""
    rows = [
        {"topic": topic, "topic_id": topic_id, "partition": partition, "first": first, "last": last}
        for (topic, topic_id, partition), first, last in ranges or ()
    ]
    of_batch = F.broadcast(inline_rows(warehouse.spark, rows, _RANGES))
    is_met = F.coalesce(F.col("offset").between(F.col("first"), F.col("last")), F.lit(False))
    is_damaged = F.col("is_damaged")
    is_pending = is_pending_entry() & ~is_damaged
    found = (
        warehouse.read(QUARANTINE.name)
        .where(F.col("source") == source)
        .join(of_batch, on=["topic", "topic_id", "partition"], how="left")
        .groupBy("feed", "topic", "topic_id", "partition")
        .agg(
            F.min("offset").alias("lowest"),
            F.max("offset").alias("highest"),
            F.bool_or(is_damaged).alias("damaged"),
            F.bool_or(F.col("state").isin("released", "discarded")).alias("decided"),
            F.bool_or(is_pending).alias("pending"),
            F.bool_or(is_met & is_pending).alias("pending_in_batch"),
        )
        .collect()
    )

    def feeds(kind: str) -> frozenset[str]:
        return frozenset(row["feed"] for row in found if row[kind])

    offsets = offset_bounds(
        ((row["topic"], row["topic_id"], row["partition"]), row["lowest"], row["highest"]) for row in found
    )
    kinds = feeds("damaged"), feeds("decided"), feeds("pending"), feeds("pending_in_batch")
    state = QuarantineState(*kinds, offsets=offsets)
    return replace(state, is_met=ranges is None or state.meets(ranges))


def decided(quarantine: DataFrame, feed: Feed) -> DataFrame:
    """OF_RECORD of the feed's records that a person has decided about, and `decision`: released or discarded."""
    is_decided = F.col("state").isin("released", "discarded")
    return _of_feed(quarantine, feed).where(is_decided).select(*OF_RECORD, F.col("state").alias("decision"))


def decided_or_pending(quarantine: DataFrame, feed: Feed, *, asked: str | None = None) -> DataFrame:
    """The same for records that are read again from bronze: pending ones are to stay out, by `decision` (pending).

    `asked`: the request that is carried out; its records are not pending. Which are damaged, `damaged_records` says.
    """
    is_asked = F.lit(asked is not None) & (F.col("request") == F.lit(asked)) & F.col("finished_at").isNull()
    is_asked = F.coalesce(is_asked, F.lit(False))
    is_finished = F.col("finished_at").isNotNull()
    decision = (
        F.when(F.col("state") == "discarded", "discarded")
        .when((F.col("state") == "released") & (is_finished | is_asked), "released")
        .when(is_pending_entry() & ~is_asked & ~F.col("is_damaged"), "pending")
    )
    found = _of_feed(quarantine, feed).select(*OF_RECORD, decision.alias("decision"))
    return found.where(F.col("decision").isNotNull())


def damaged_records(quarantine: DataFrame, feed: Feed) -> DataFrame:
    """OF_RECORD of the feed's records that were found damaged, with `is_set_aside` and `found_by`."""
    found = _of_feed(quarantine, feed).where(F.col("is_damaged"))
    return found.select(*OF_RECORD, F.lit(True).alias("is_set_aside"), "found_by").distinct()


def as_bronze(entries: DataFrame) -> DataFrame:
    """The records of entries as bronze has them."""
    topic_id = F.nullif("topic_id", F.lit("")).alias("_topic_id")
    return entries.select("topic", topic_id, "partition", "offset", "timestamp", "key", "value", "headers")


def _of_feed(quarantine: DataFrame, feed: Feed) -> DataFrame:
    return quarantine.where((F.col("source") == feed.source) & (F.col("feed") == feed.name))


def _entries(warehouse: Warehouse) -> DeltaTable:
    return warehouse.delta(QUARANTINE.name).alias("known")


def _same_record(source: str) -> str:
    return " AND ".join([f"known.source = '{source}'", *[f"known.{name} = new.{name}" for name in OF_RECORD]])
