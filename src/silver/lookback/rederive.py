"""The slow path: the rows of some keys derived again from all their events in bronze, by the definition (order.fold).

Whatever is unusual for a key ends here: a damaged record, an epoch found after its records were read, a large value
that was stated under a previous key, a decision about a quarantined record. It costs what its keys cost. `fold` names
the records that a row's values are of; here the values are taken from them, column by column, as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from lakehouse.contracts.models import Feed
from lakehouse.delta.tables import inline_rows
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.registered import RegisteredSchema
from lakehouse.spark.materialized import materialized
from lakehouse.spark.sizing import broadcast
from silver.accounts.audit import finished
from silver.batch.events import is_confluent
from silver.batch.merge import replace_rows
from silver.batch.outcome import FeedBatch, entries, from_bronze
from silver.batch.transport import event_rows, latest_columns
from silver.decode.arrow import key_texts
from silver.decode.reference.decoder import large_columns
from silver.fold.rows import Plan, fold_all
from silver.lookback.earlier_records import in_ranges
from silver.order.history import History
from silver.order.keys import Key, groups
from silver.order.runs import TopicPartition
from silver.order.state import writer_of
from silver.rejects.quarantine import DAMAGED, OF_RECORD, QUARANTINE, add, damaged_records
from silver.row_history.table import replace_versions
from silver.row_history.versions import versions_of_all

if TYPE_CHECKING:
    from pyspark.sql import Column


# Through so many changes keys are followed, each a look into bronze.
MAX_KEY_CHANGES = 20
# A key: its topic, where a feed is sharded, and the Kafka key as text.
KEY = ("shard", "key_text")
_KEY_TYPES = "shard STRING, key_text STRING"
# How a key begins that may bring its schema (Kafka Connect, JsonConverter).
_WRAPPED = r'^[ \t\n\r]*\{[ \t\n\r]*"(?:schema|payload)"[ \t\n\r]*:'


class Rederived(NamedTuple):
    """What became of the events of the keys (OF_RECORD, `outcome`).

    `moved`: how many records of earlier batches were found damaged, by topic-partition.
    """

    outcomes: DataFrame
    moved: Mapping[TopicPartition, int]


def rederive(batch: FeedBatch, keys: DataFrame, past: History, own: DataFrame, stack: ExitStack) -> Rederived:
    """Replace the rows of these keys (KEY, distinct), and of those that they were changed from or to.

    `past`: the history up to the end of the batch, with its cutoffs. `own`: the records of the batch.
    What it returns is kept until `stack` closes. It may be repeated.
    """
    events, is_whole = _events_of(batch, keys, past, stack)
    records = stack.enter_context(materialized(events))
    folded = stack.enter_context(materialized(_folded(batch, records, past)))
    moved = _damaged_aside(batch, records, folded.where("is_damaged"), own)
    latest = folded.where("latest IS NOT NULL").select("latest.*")
    if not is_whole:
        # A key further on may have stated what these rows lack: they stay as they are.
        latest = latest.where("_unresolved_columns IS NULL")
    feed = batch.feed
    replace_rows(batch.warehouse.delta(batch.table), latest, feed)
    if feed.has_history:
        of_keys = records.where("kind = 'change'").select(*[F.col(f"row.`{key}`").alias(key) for key in feed.keys])
        versions = folded.where("latest_version IS NOT NULL").select("latest_version.*")
        if not is_whole:
            unresolved = versions.where("_unresolved_columns IS NOT NULL").select(*feed.keys).distinct()
            of_keys = of_keys.join(unresolved, on=[*feed.keys], how="left_anti")
            versions = versions.join(unresolved, on=[*feed.keys], how="left_anti")
        replace_versions(batch.warehouse.delta(feed.history_table), versions, of_keys.distinct(), feed)
    outcomes = folded.where("topic IS NOT NULL").select(*OF_RECORD, "outcome").distinct()
    return Rederived(outcomes, moved)


def with_key(records: DataFrame, feed: Feed) -> DataFrame:
    """The records with their KEY. The text of a key is as headers of changed keys have it: JSON without its schema."""
    is_avro = F.expr(is_confluent("key"))
    text = F.when(~is_avro, F.col("key").cast("string"))
    is_wrapped = F.coalesce(F.substring("key", 1, 40).cast("string").rlike(_WRAPPED), F.lit(False))
    key_text = F.when(is_wrapped, F.get_json_object(text, "$.payload")).otherwise(text)
    if feed.schemas:
        key_text = F.when(is_avro, _of_avro(feed.schemas)).otherwise(key_text)
    return records.withColumns({"shard": _shard(feed), "key_text": key_text})


def _of_avro(schemas: Mapping[int, RegisteredSchema]) -> Column:
    """The text of a key in Avro."""

    def texts(keys: pa.Array) -> pa.Array:
        return key_texts(keys, schemas)

    found: Column = arrow_udf(texts, "string")(F.col("key"))  # type: ignore[call-overload]
    return found


def keys_of(records: DataFrame, feed: Feed) -> DataFrame:
    """The KEY of each key of these records."""
    return with_key(records, feed).where("key_text IS NOT NULL").select(*KEY).distinct()


def _shard(feed: Feed) -> Column:
    return F.col("topic") if feed.is_sharded else F.lit("")


def _events_of(batch: FeedBatch, keys: DataFrame, past: History, stack: ExitStack) -> tuple[DataFrame, bool]:
    """All records of these keys, and of those they were changed from or to: judged, with position, KEY and `group`.

    And whether these are all keys: the search ends after MAX_KEY_CHANGES.
    """
    feed, spark = batch.feed, batch.warehouse.spark
    bronze = with_key(in_ranges(batch.bronze(), past.read_ranges()), feed)
    found: list[DataFrame] = []
    changed: set[tuple[Key, Key]] = set()
    asked: set[Key] = set()
    wanted, further = keys, set[Key]()
    for _hop in range(MAX_KEY_CHANGES):
        rows = bronze.join(broadcast(wanted, wanted.count()), on=[*KEY], how="left_semi").drop(*KEY)
        found.append(stack.enter_context(materialized(with_key(from_bronze(batch, rows), feed))))
        new = _changes_of_keys(found[-1]) if large_columns(feed) else set()
        changed |= new
        further = {other for _key, other in new} - {key for key, _other in changed} - asked
        if not further:
            break
        asked |= further
        rows_of_keys = [dict(zip(KEY, key, strict=True)) for key in further]
        wanted = inline_rows(spark, rows_of_keys, _KEY_TYPES).join(keys, on=[*KEY], how="left_anti")
    records = reduce(DataFrame.unionByName, found)
    return _grouped(records, groups(changed)), not further


def _changes_of_keys(records: DataFrame) -> set[tuple[Key, Key]]:
    """Of records with a link to another key: their own key, and that."""
    links = records.where("old_key IS NOT NULL OR new_key IS NOT NULL").select(
        *KEY, F.explode(F.array("old_key", "new_key")).alias("other")
    )
    rows = links.where("other IS NOT NULL").distinct().collect()
    return {((row["shard"], row["key_text"]), (row["shard"], row["other"])) for row in rows}


def _grouped(records: DataFrame, of_keys: Mapping[Key, str]) -> DataFrame:
    """The records with the `group` of their key: those of a group are folded together."""
    if not of_keys:
        return records.withColumn("group", F.col("key_text"))
    rows = [{**dict(zip(KEY, key, strict=True)), "of_keys": group} for key, group in of_keys.items()]
    known = inline_rows(records.sparkSession, rows, f"{_KEY_TYPES}, of_keys STRING")
    grouped = records.join(F.broadcast(known), on=[*KEY], how="left")
    return grouped.withColumn("group", F.coalesce("of_keys", "key_text")).drop("of_keys")


def _folded(batch: FeedBatch, records: DataFrame, past: History) -> DataFrame:
    """The records (OF_RECORD) with `outcome` and `is_damaged`; and, in rows of their own, each key's `latest` row."""
    feed = batch.feed
    every_cutoff = past.every_cutoff() if feed.has_history else ()
    own = feed.model_copy(update={"schemas": None})
    plan = Plan(own, past.position_contexts(), past.cutoff_by_shard(), every_cutoff=every_cutoff, erased=batch.erased)
    ddl = f"{_OF_RECORD}, outcome STRING, is_damaged BOOLEAN, {latest_columns(feed)}"
    # Keys that were changed into one another are of one group.
    groups = event_rows(records.withColumn("image", _image(feed)), feed, "shard", "group").repartition("shard", "group")
    return groups.mapInArrow(partial(_fold_partition, plan=plan), ddl)


def _fold_partition(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """The outcome of every event, and behind them the rows of their keys."""
    received = list(batches)
    if not received:
        return
    events = pa.Table.from_batches(received)
    folded = fold_all(events, plan)
    names = ["topic", "topic_id", "partition", "offset"]
    found = pa.table(
        {**{name: events.column(name) for name in names}, "outcome": folded.outcomes, "is_damaged": folded.is_damaged}
    )
    parts = [found, pa.table({"latest": folded.rows.to_struct_array()})]
    if plan.feed.has_history:
        parts.append(pa.table({"latest_version": versions_of_all(events, plan).rows.to_struct_array()}))
    yield from pa.concat_tables(parts, promote_options="default").combine_chunks().to_batches()


def _image(feed: Feed) -> Column:
    """A hash of what a record says of its row; NULL where its log coordinates are no other record's."""
    if feed.kind == "postgresql":
        return F.lit(None).cast("bigint")
    stated = [f"row.{name}" for name, column in feed.columns.items() if column.metadata is None]
    return F.xxhash64(F.to_json(F.struct(*stated)))


def _damaged_aside(
    batch: FeedBatch, records: DataFrame, damaged: DataFrame, own: DataFrame
) -> dict[TopicPartition, int]:
    """Put the damaged records into quarantine; how many are of earlier batches, by topic-partition."""
    known = damaged_records(batch.warehouse.read(QUARANTINE.name), batch.feed)
    # What an earlier batch has found damaged, it has moved in the batch audit too, if it has come so far.
    if unfinished := _unfinished(batch, known):
        known = known.where(~F.coalesce(F.col("found_by").isin(*unfinished), F.lit(False)))
    new = damaged.select(*OF_RECORD).distinct().join(known.select(*OF_RECORD), on=OF_RECORD, how="left_anti")
    reason = {"kind": F.lit("quarantined"), "problems": F.array(F.lit(DAMAGED))}
    found = records.join(new, on=OF_RECORD, how="left_semi").withColumns(reason)
    with materialized(found) as found:
        if found.isEmpty():
            return {}
        earlier = found.join(own.select(*OF_RECORD), on=OF_RECORD, how="left_anti")
        rows = earlier.groupBy(*TOPIC_PARTITION).count().collect()
        add(batch.warehouse, entries(batch, found, bronze=batch.bronze(), are_damaged=True), batch.feed.source)
    return {(row["topic"], row["topic_id"], row["partition"]): row["count"] for row in rows}


def keys_without_correction(batch: FeedBatch) -> DataFrame | None:
    """The KEY of the keys with records that a batch has found damaged and not moved in the batch audit: it broke off.

    None where there are none. When they are derived again, the audit is corrected.
    """
    if not batch.quarantine_state.is_new or batch.feed.name not in batch.quarantine_state.damaged:
        return None
    known = damaged_records(batch.warehouse.read(QUARANTINE.name), batch.feed)
    unfinished = _unfinished(batch, known)
    if not unfinished:
        return None
    records = known.where(F.col("found_by").isin(*unfinished)).select(*OF_RECORD)
    bronze = batch.bronze().withColumn("topic_id", F.coalesce("_topic_id", F.lit("")))
    return keys_of(bronze.join(F.broadcast(records), on=OF_RECORD, how="left_semi"), batch.feed)


def _unfinished(batch: FeedBatch, known: DataFrame) -> list[str]:
    """The batches of this silver that have found damaged records, and are not in the batch audit: broken off."""
    if batch.feed.name not in batch.quarantine_state.damaged:
        return []
    of_silver = writer_of(batch.feed.source, batch.state.generation)
    finders = known.where(F.col("found_by").startswith(f"{of_silver} ") | F.col("found_by").startswith(f"{of_silver}/"))
    names = {row["found_by"] for row in finders.select("found_by").distinct().collect()}
    return sorted(names - finished(batch.warehouse, names)) if names else []


_OF_RECORD = "topic STRING, topic_id STRING, partition INT, offset BIGINT"
