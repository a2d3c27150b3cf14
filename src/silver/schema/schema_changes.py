"""Declared tables whose values nobody can read for sure, by the topic of schema changes (MySQL and MariaDB).

What a contract says of a table is held to each definition of it, when one comes. A table that they contradict is
suspended (silver.by_rule.declared), and asked about again whenever it has records: the contract may say otherwise then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from lakehouse.contracts.models import Feed
from lakehouse.contracts.topics import Source
from silver.by_rule.declared import bare_rows, contradictions
from silver.by_rule.definitions import Definition, definitions
from silver.by_rule.tables import definition_records, sample_of
from silver.order.state import State, feed_row
from silver.rejects.suspended import ENCODING, Suspension

if TYPE_CHECKING:
    from silver.validated import DecodedBatch

# SQL: whether the key is that of a schema change.
NAMES_DATABASE = "instr(CAST(key AS STRING), '\"databaseName\"') > 0"
# The records of JSON alone: what Avro has is read by its own schema.
_IS_DEFINITION = """instr(CAST(value AS STRING), '"tableChanges"') > 0"""


def topics_of_definitions(source: Source) -> frozenset[str]:
    """The topics that may have definitions of tables, and are no feed's."""
    of_rules = {rule.schema_changes for rule in source.by_rule.values() if rule.schema_changes is not None}
    return frozenset({*source.ignored_topics, *of_rules})


def is_definition(source: Source) -> str:
    """SQL: whether a record defines tables. Its key names a database, whatever topic it is in."""
    if source.kind == "postgresql":
        return "false"
    names = ", ".join(f"'{topic}'" for topic in sorted(topics_of_definitions(source)))
    is_of_topic = f"topic IN ({names}) OR " if names else ""
    return f"({is_of_topic}{NAMES_DATABASE}) AND {_IS_DEFINITION}"


class Unreadable(NamedTuple):
    """By declared feed where definitions contradict its contract: by what is known (empty: nowhere), and in this batch.

    What is known stays while a batch's messages have schemas: the next one's may have none.
    """

    known: Mapping[str, str]
    here: Mapping[str, str]


def unreadable_feeds(arrived: DecodedBatch, feeds: Collection[Feed]) -> Unreadable:
    """Which feeds have values that nobody can read for sure. Most batches ask nothing.

    Of all feeds of the source where the batch defines tables; else of those among `feeds`, which have records in the
    batch, of which it is known.
    """
    job, state = arrived.job, arrived.state
    defining = {reach.topic_partition[0] for reach in arrived.record_ranges if reach.has_definitions}
    asked = job.feeds.values() if defining else [feed for feed in feeds if feed.name in state.unreadable]
    of_tables = [feed for feed in asked if feed.discovered is None and feed.envelope == "table"]
    if not of_tables:
        return Unreadable({}, {})
    own = {topic for feed in of_tables if not defining for topic in feed.topics}
    defined = _definitions(arrived, {*topics_of_definitions(job.contracts.topics.sources[job.source]), *defining, *own})
    ranges = {
        reach.topic_partition: (reach.first, reach.last)
        for reach in arrived.record_ranges
        if any(feed.has_topic(reach.topic_partition[0]) for feed in of_tables)
    }
    sampled = sample_of(arrived.records, ranges) if ranges else {}
    known, here = {}, {}
    for feed in of_tables:
        known[feed.name] = "; ".join(contradictions(feed, defined, ()))
        records = [one for topic, some in sampled.items() if feed.has_topic(topic) for one in some]
        rows = bare_rows(feed, records)
        if rows and (found := contradictions(feed, defined, rows)):
            here[feed.name] = "; ".join(found)
    return Unreadable(known, here)


def unreadable_suspensions(unreadable: Unreadable) -> dict[str, Suspension]:
    """That the tables with such values in this batch are suspended."""
    what = "The contract reads values as the database defines them."
    return {feed: Suspension(ENCODING, what, why) for feed, why in unreadable.here.items()}


def unreadable_rows(unreadable: Unreadable, state: State) -> list[dict[str, Any]]:
    """What a batch says new of this, as rows of `ops.batches`."""
    known = unreadable.known.items()
    return [feed_row(feed, unreadable=why) for feed, why in known if why != state.unreadable.get(feed, "")]


def _definitions(arrived: DecodedBatch, topics: Collection[str]) -> dict[str, Definition]:
    """The tables as all records of these topics define them: such records are few."""
    stored = arrived.warehouse.read(f"bronze.{arrived.job.source}_events").where(F.col("topic").isin(*topics))
    return definitions(definition_records(stored.where(_IS_DEFINITION)), arrived.job.schemas.known)
