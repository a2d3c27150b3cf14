"""Where a batch is folded: on the driver, or behind a partition by key. The same function does it in both places.

Few records are read to the driver once, with the rows that the table has of their keys; what changes goes back as the
source of a MERGE, and nothing else is asked of Spark. Many are folded where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import WHOLE_NUMBERS
from lakehouse.delta.tables import inline_rows
from lakehouse.kafka.ranges import TOPIC_PARTITION
from lakehouse.quality.masking import has_sensitive_key
from lakehouse.spark.materialized import materialized, without_byte_limit
from lakehouse.spark.sizing import MAX_BROADCAST, shuffle_partitions
from silver.batch.merge import row_type, silver_columns
from silver.batch.records import ValidatedRecords
from silver.fold.rows import JUDGED, MAY_BE_ABSENT, Plan, fold_batch, position_columns
from silver.order.facts import IGNORED
from silver.order.runs import TopicPartition
from silver.row_history.table import version_columns, version_type
from silver.row_history.versions import versions_of_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from silver.batch.outcome import FeedBatch

_OF_RECORD = "topic STRING, topic_id STRING, partition INT, offset BIGINT"
_OUTCOMES = f"{_OF_RECORD}, outcome STRING"
# A Python process folds the records of a partition at once, and has them in its memory: so many at most, and of so many
# bytes of values, but for the records of one key.
PARTITION_RECORDS, PARTITION_BYTES = 250_000, 256 * 1024 * 1024
# So many keys are looked for by a list of them.
LISTED_KEYS = 2_000
# What a partition answers: how many of a topic-partition's records had an outcome (`records`; of none, how many rows of
# the column that `outcome` names change); of each record its outcome; and the rows that change.
_ANSWER = "partition_number INT, offset BIGINT, outcome STRING, is_undecided BOOLEAN, records BIGINT"


class ChangedRows(NamedTuple):
    """The rows of a table that are new or change, `number` of them."""

    frame: Callable[[], DataFrame]
    number: int


@dataclass(frozen=True)
class FoldedBatch:
    """What the records of a batch lead to.

    `rows`: those of the table that change; `versions`: those of the history of its rows, where it has one. `counts`: by
    topic-partition and outcome. `outcomes()` (OF_RECORD, `outcome`): of each record. `undecided`: OF_RECORD of those
    whose keys a batch cannot decide.
    """

    rows: ChangedRows
    versions: ChangedRows | None
    counts: Mapping[TopicPartition, Mapping[str, int]]
    outcomes: Callable[[], DataFrame]
    undecided: DataFrame | None


def folded(batch: FeedBatch, records: ValidatedRecords, plan: Plan, stack: ExitStack) -> FoldedBatch:
    """The judged records of the batch folded with the rows of the table; kept until `stack` closes."""
    if records.table is not None:
        return _on_the_driver(batch, records.table, plan)
    return _in_partitions(
        batch, event_rows(records.frame.where(~F.col("kind").isin(*IGNORED)), batch.feed), plan, stack
    )


def event_rows(records: DataFrame, feed: Feed, *more: str) -> DataFrame:
    """Of the feed's judged records what the fold takes (silver.fold.rows.JUDGED), and `more`."""
    also = [name for name in MAY_BE_ABSENT if name in records.columns]
    positions = ["position", "is_streamed", "is_replay", "run_from"]
    also += [name for name in positions if name in records.columns]
    return records.select(*more, *JUDGED, *position_columns(feed), *also, "row")


def _on_the_driver(batch: FeedBatch, records: pa.Table, plan: Plan) -> FoldedBatch:
    spark, feed = batch.warehouse.spark, batch.feed
    table = records.filter(pc.invert(pc.is_in(records.column("kind"), value_set=pa.array(IGNORED))))
    stored = partial(_rows_of_keys, batch, table)
    result = fold_batch(table, None if batch.is_empty else stored(batch.read_table()), plan)
    versions, is_undecided = None, result.is_undecided
    if feed.has_history:
        found = versions_of_batch(table, None if batch.has_no_version else stored(batch.read_history()), plan)
        is_undecided = pc.or_(is_undecided, found.is_undecided)
        versions = ChangedRows(partial(_dataframe, spark, found.rows, version_columns(feed)), found.rows.num_rows)
    coordinates = {name: table.column(name) for name in (*TOPIC_PARTITION, "offset")}
    outcomes = pa.table({**coordinates, "outcome": result.outcomes})
    undecided = table.select(list(coordinates)).filter(is_undecided)
    counts: dict[TopicPartition, Counter[str]] = {}
    columns = [outcomes.column(name).to_pylist() for name in (*TOPIC_PARTITION, "outcome")]
    for topic, topic_id, partition, outcome in zip(*columns, strict=True):
        if outcome is not None:
            counts.setdefault((topic, topic_id, partition), Counter())[outcome] += 1
    return FoldedBatch(
        ChangedRows(partial(_dataframe, spark, result.rows, silver_columns(feed)), result.rows.num_rows),
        versions,
        counts,
        partial(_dataframe, spark, outcomes, _OUTCOMES),
        _dataframe(spark, undecided, _OF_RECORD) if undecided.num_rows else None,
    )


def _dataframe(spark: SparkSession, rows: pa.Table, ddl: str) -> DataFrame:
    # One partition: what a MERGE writes of few rows is one file.
    return spark.createDataFrame(rows, ddl).coalesce(1) if rows.num_rows else inline_rows(spark, [], ddl)


def _rows_of_keys(batch: FeedBatch, events: pa.Table, stored: DataFrame) -> pa.Table | None:
    """The rows that a table (`stored`) has of the keys of these events; None where it has none."""
    if not events.num_rows:
        return None
    keys = pa.table({key: pc.struct_field(events.column("row"), key) for key in batch.feed.keys}).drop_null()
    keys = keys.group_by(list(batch.feed.keys)).aggregate([])
    if not keys.num_rows:
        return None
    table = batch.in_key_ranges(stored)
    if (listed := _in_list(batch.feed, keys)) is not None:
        rows = table.where(listed)
    else:
        wanted = batch.warehouse.spark.createDataFrame(keys)
        rows = table.join(F.broadcast(wanted), on=[*batch.feed.keys], how="left_semi")
    found = rows.drop("_applied_at").toArrow()
    return found if found.num_rows else None


def _in_list(feed: Feed, keys: pa.Table) -> str | None:
    """SQL: whether a row has one of these keys; None where they are many, no whole numbers, or sensitive."""
    whole = [key for key in feed.keys if feed.columns[key].type.ddl in WHOLE_NUMBERS]
    if len(feed.keys) > 1 or not whole or keys.num_rows > LISTED_KEYS or has_sensitive_key(feed):
        return None
    return f"`{whole[0]}` IN ({', '.join(str(key) for key in keys.column(0).to_pylist())})"


def fold_partitions(records: int, value_bytes: int | None) -> int:
    """In how many partitions so many records are folded at least."""
    return max(ceil(records / PARTITION_RECORDS), ceil((value_bytes or 0) / PARTITION_BYTES))


def _in_partitions(batch: FeedBatch, events: DataFrame, plan: Plan, stack: ExitStack) -> FoldedBatch:
    feed, spark = batch.feed, events.sparkSession
    topic_partitions = sorted({(row["topic"], row["topic_id"], row["partition"]) for row in batch.rows})
    names = [f"key_{number}" for number in range(len(feed.keys))]
    keys = [F.col(f"row.`{key}`").alias(name) for key, name in zip(feed.keys, names, strict=True)]
    # The columns of an event, side by side with those of a row of the table.
    operands = events.select(*keys, F.struct(*events.columns).alias("event"))
    stored: dict[str, tuple[DataFrame, str]] = {}
    if not batch.is_empty:
        stored["known"] = batch.read_table(), row_type(feed)
    if feed.has_history and not batch.has_no_version:
        stored["version"] = batch.read_history(), version_type(feed)
    own = events.select(*[F.col(f"row.`{key}`").alias(key) for key in feed.keys]).distinct()
    if batch.total("read") <= MAX_BROADCAST:
        own = F.broadcast(own)
    for column, (table, kind) in stored.items():
        rows = batch.in_key_ranges(table).join(own, on=[*feed.keys], how="left_semi").drop("_applied_at")
        known = rows.select(
            *[F.col(key).alias(name) for key, name in zip(feed.keys, names, strict=True)],
            F.struct(*rows.columns).cast(kind).alias(column),
        )
        operands = operands.unionByName(known, allowMissingColumns=True)
    parts = fold_partitions(batch.total("read"), batch.value_bytes)
    many = parts > shuffle_partitions(spark)
    by_key = operands.repartition(parts, *names) if many else operands.repartition(*names)
    answers = by_key.drop(*names).mapInArrow(
        partial(_fold_partition, plan=plan, topic_partitions=topic_partitions), f"{_ANSWER}, {latest_columns(feed)}"
    )
    # A partition is in a Python process's memory at once, however it comes there.
    with without_byte_limit(answers, 0):
        answers = stack.enter_context(materialized(answers))
    counts: dict[TopicPartition, Counter[str]] = {}
    changed, is_undecided = Counter[str](), False
    for row in (
        answers.where("records IS NOT NULL").select("partition_number", "outcome", "is_undecided", "records").collect()
    ):
        if row["partition_number"] is None:
            changed[row["outcome"]] += row["records"]
        else:
            counts.setdefault(topic_partitions[row["partition_number"]], Counter())[row["outcome"]] += row["records"]
            is_undecided |= row["is_undecided"]
    columns = "partition_number INT, topic STRING, topic_id STRING, partition INT"
    numbered = [
        {"partition_number": at, **dict(zip(TOPIC_PARTITION, one, strict=True))}
        for at, one in enumerate(topic_partitions)
    ]
    numbers = inline_rows(spark, numbered, columns)
    of_records = answers.where("offset IS NOT NULL").join(F.broadcast(numbers), on="partition_number", how="inner")
    outcomes = of_records.select(*TOPIC_PARTITION, "offset", "outcome")
    undecided = of_records.where("is_undecided").select(*TOPIC_PARTITION, "offset") if is_undecided else None
    found = {
        name: ChangedRows(partial(answers.where(f"{name} IS NOT NULL").select, f"{name}.*"), changed[name])
        for name in ("latest", *(["latest_version"] if feed.has_history else []))
    }
    return FoldedBatch(found["latest"], found.get("latest_version"), counts, lambda: outcomes, undecided)


def latest_columns(feed: Feed) -> str:
    """The columns of an answer that are rows of tables."""
    of_history = f", latest_version {version_type(feed)}" if feed.has_history else ""
    return f"latest {row_type(feed)}{of_history}"


def _fold_partition(
    batches: Iterable[pa.RecordBatch], plan: Plan, topic_partitions: Sequence[TopicPartition]
) -> Iterator[pa.RecordBatch]:
    """The answers of a partition: all events of its keys in this batch, and the rows that the table has of them."""
    received = list(batches)
    if not received:
        return
    operands = pa.Table.from_batches(received)
    events = _fields(operands, "event")
    if not events.num_rows:
        return
    result = fold_batch(events, _stored(operands, "known"), plan)
    changed, is_undecided = {"latest": result.rows}, result.is_undecided
    if plan.feed.has_history:
        versions = versions_of_batch(events, _stored(operands, "version"), plan)
        changed["latest_version"], is_undecided = versions.rows, pc.or_(is_undecided, versions.is_undecided)
    answers = _answers(events, result.outcomes, is_undecided, changed, topic_partitions)
    yield from answers.combine_chunks().to_batches(max_chunksize=20_000)


def _stored(operands: pa.Table, name: str) -> pa.Table | None:
    """The rows of a table among the operands; None where there are none."""
    rows = _fields(operands, name) if name in operands.column_names else None
    return rows if rows is not None and rows.num_rows else None


def _fields(operands: pa.Table, name: str) -> pa.Table:
    """The fields of a struct as columns, of the rows that have it."""
    column = operands.column(name)
    present = column.filter(pc.is_valid(column)).combine_chunks()
    parts = present.flatten() if isinstance(present, pa.StructArray) else pa.chunked_array(present).flatten()
    return pa.table(parts, names=[field.name for field in column.type])


def _answers(
    events: pa.Table,
    outcomes: pa.Array,
    is_undecided: pa.Array,
    changed: Mapping[str, pa.Table],
    topic_partitions: Sequence[TopicPartition],
) -> pa.Table:
    number_of = {topic_partition: number for number, topic_partition in enumerate(topic_partitions)}
    of_record = zip(*(events.column(name).to_pylist() for name in TOPIC_PARTITION), strict=True)
    records = pa.table(
        {
            "partition_number": pa.array([number_of[one] for one in of_record], pa.int32()),
            "offset": events.column("offset").cast(pa.int64()),
            "outcome": outcomes,
            "is_undecided": is_undecided,
        }
    ).filter(pc.is_valid(outcomes))
    counts = records.group_by(["partition_number", "outcome"]).aggregate([("is_undecided", "max"), ("offset", "count")])
    counts = counts.rename_columns({"is_undecided_max": "is_undecided", "offset_count": "records"})
    numbers = pa.table({"outcome": [*changed], "records": [rows.num_rows for rows in changed.values()]})
    latest = [pa.table({name: rows.to_struct_array()}) for name, rows in changed.items()]
    answers = pa.concat_tables([counts, numbers, records, *latest], promote_options="default")
    return answers.select(["partition_number", "offset", "outcome", "is_undecided", "records", *changed])
