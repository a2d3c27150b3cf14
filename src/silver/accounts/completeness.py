"""What bronze has of a batch, counted; and that it is as many records as were stored, all of which were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.errors import MissingRecordsError
from silver.job import SilverJob
from silver.order.ranges import RecordRange
from silver.order.runs import TopicPartition
from silver.schema.schema_changes import NAMES_DATABASE, is_definition, topics_of_definitions
from silver.schema.schemas import ids_in
from silver.validated import DecodedBatch, ValidatedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def needs_record_facts(job: SilverJob) -> bool:
    """Whether more must be known of records than `ops.batches` says: schemas of a registry, definitions of tables."""
    return job.schemas.known is not None or is_definition(job.contracts.topics.sources[job.source]) != "false"


_OF_REACH = (
    *("min(offset) AS first", "max(offset) AS last", "count(1) AS records", "min(unix_millis(timestamp)) AS first_ms"),
    *("coalesce(sum(bytes), 0) AS value_bytes", "coalesce(bool_or(defines), false) AS has_definitions"),
)


def record_ranges_in(
    batch: DataFrame, job: SilverJob, ingested: Sequence[RecordRange] | None = None
) -> list[RecordRange]:
    """What bronze rows have of every topic-partition; the ids of their schemas where there are any.

    `ingested`: what bronze has counted of them. Then their values, most of what a backlog has, are not read at all,
    unless a topic is one of definitions, or a key says that there is one.
    """
    uses_schemas = job.schemas.known is not None
    ids = [f"{ids_in(name)} AS schemas_of_{name}" for name in ("key", "value")] if uses_schemas else []
    source = job.contracts.topics.sources[job.source]
    defines = is_definition(source)
    sizes = None if ingested is None else {one.topic_partition: one.value_bytes for one in ingested}
    reads_keys_alone = sizes is not None and not topics_of_definitions(source) & {topic for topic, *_rest in sizes}
    if reads_keys_alone and defines != "false":
        defines = NAMES_DATABASE
    measured = "octet_length(value) AS bytes" if sizes is None else "0L AS bytes"
    columns = [measured, f"{defines} AS defines", *(("key", "value") if uses_schemas else ())]
    # All at once: a struct of aggregates goes to Spark in one call.
    facts = F.expr(f"struct({', '.join([*_OF_REACH, *ids])}) AS facts")
    rows = (
        batch.selectExpr("topic", "coalesce(_topic_id, '') AS topic_id", "partition", "offset", "timestamp", *columns)
        .groupBy("topic", "topic_id", "partition")
        .agg(facts)
        .collect()
    )
    if reads_keys_alone and any(row["facts"]["has_definitions"] for row in rows):
        return record_ranges_in(batch, job)
    record_ranges = [_record_range(row, uses_schemas=uses_schemas) for row in rows]
    return (
        record_ranges
        if sizes is None
        else [replace(one, value_bytes=sizes[one.topic_partition]) for one in record_ranges]
    )


def _record_range(row: Row, *, uses_schemas: bool) -> RecordRange:
    found = row["facts"]
    return RecordRange(
        (row["topic"], row["topic_id"], row["partition"]),
        found["first"],
        found["last"],
        found["records"],
        found["value_bytes"],
        frozenset((*found["schemas_of_key"], *found["schemas_of_value"]) if uses_schemas else ()),
        found["has_definitions"],
        found["first_ms"],
    )


def require_complete(source: str, found: Sequence[RecordRange], ingested: Sequence[RecordRange]) -> None:
    """Raise MissingRecordsError when bronze has not as many records of a topic-partition as were `ingested`."""
    records = {one.topic_partition: one.records for one in found}
    for one in ingested:
        if (there := records.get(one.topic_partition, 0)) != one.records:
            topic, _topic_id, partition = one.topic_partition
            raise MissingRecordsError(
                f"silver: {source}: bronze has {there:,} records of topic {topic} partition {partition}, offsets"
                f" {one.first} to {one.last}, and ops.batches says {one.records:,}. Nothing of them was applied.",
                hint=f"`lakehouse verify` names the offsets. To read them again from the topic: lakehouse offsets set"
                f" {source} --topic {topic} --partition {partition} --to {one.first}, then lakehouse bronze. To go on"
                f" without them: lakehouse silver --accept-missing {source}.",
            )


def require_all_judged(arrived: DecodedBatch, judged: ValidatedBatch) -> None:
    """The same of what was read, where all feeds of a topic go on."""
    read: dict[TopicPartition, int] = {}
    for row in judged.rows:
        topic_partition = row["topic"], row["topic_id"], row["partition"]
        read[topic_partition] = read.get(topic_partition, 0) + row["read"]
    feeds = [*arrived.job.feeds.values(), *arrived.job.undiscovered.values()]
    of_topics = {topic: [feed.name for feed in feeds if feed.has_topic(topic)] for topic in arrived.topics}
    expected = [one for one in arrived.record_ranges if judged.records.keys() >= {*of_topics[one.topic_partition[0]]}]
    found = [replace(one, records=read.get(one.topic_partition, 0)) for one in expected]
    require_complete(arrived.job.source, found, expected)
