"""What is pending for the topic: of every source the records that readers of the topic do not have yet.

They come from gold's change data feed since the source's publish position; or, where that cannot be gone on from, from
the topic itself, the last value of every key compared with gold. The publish position is a record on the progress
topic, written in the same transaction as the orders: so it states what readers of committed records have, whatever
died when. A topic that is deleted takes nothing along: the position names the topic by its id, and its format.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError
from pyspark.sql import functions as F

from gold.changes import kept_changes, net_changes
from gold.formats import change_sequence, records
from gold.gate import OTHERS, of_source, passed_versions
from gold.unify import unified
from lakehouse.consumed import ConsumedVersions, Version
from lakehouse.contracts.base import Model
from lakehouse.contracts.models import Contracts
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.log import committed_records
from lakehouse.kafka.offsets import topic_ids
from lakehouse.kafka.spark import committed_topic
from lakehouse.spark.materialized import materialized
from lakehouse.spark.tables import Warehouse, small_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def compacted(records: DataFrame) -> DataFrame:
    """`key`, and its last `value` on the topic (NULL: deleted): one row a key. A key's records are in one partition."""
    return records.groupBy("key").agg(F.max_by("value", F.struct("offset", "partition")).alias("value"))


def beside(expected: DataFrame, on_topic: DataFrame) -> DataFrame:
    """Every key of either: `key`, all columns of `expected`, `is_expected`, `is_there` (with a value), `is_same`.

    `expected` has `key` and `value` as bytes, and no key that is deleted; `on_topic` is `compacted`.
    """
    there = on_topic.select(F.col("key").alias("there_key"), F.col("value").alias("there_value"))
    wanted = expected.withColumn("is_expected", F.lit(True))
    both = wanted.join(there, on=F.col("key") == F.col("there_key"), how="full")
    return both.select(
        F.coalesce("key", "there_key").alias("key"),
        *[name for name in expected.columns if name != "key"],
        F.coalesce("is_expected", F.lit(False)).alias("is_expected"),
        F.col("there_value").isNotNull().alias("is_there"),
        F.col("value").eqNullSafe(F.col("there_value")).alias("is_same"),
    )


def composite_key_of(key: Column) -> Column:
    """The `composite_key` in a record's key, whichever format it is in; NULL for a key that is not ours."""
    text = key.cast("string")
    flat, in_connect = F.get_json_object(text, "$.composite_key"), F.get_json_object(text, "$.payload.composite_key")
    return F.coalesce(flat, in_connect)


class SourcePosition(Model):
    """A source's position: the topic has it as it is in commit `version` of the gold table made at `created_ms`."""

    created_ms: int
    version: int
    shape: str
    """Which topic, and what its records look like: see `shape_of`."""


class PublishPosition(Model):
    """The generation of the newest records, and the position of each source; none while it is published in parts."""

    generation: int = 0
    places: dict[str, SourcePosition] = Field(default_factory=dict)

    def without(self, sources: tuple[str, ...]) -> PublishPosition:
        """The publish position without these sources."""
        left = {name: place for name, place in self.places.items() if name not in sources}
        return PublishPosition(generation=self.generation, places=left)

    def at(self, sources: tuple[str, ...], place: SourcePosition) -> PublishPosition:
        """The publish position with these sources at that commit."""
        return PublishPosition(generation=self.generation, places={**self.places, **dict.fromkeys(sources, place)})


def shape_of(contracts: Contracts, *, topic_id: str) -> str:
    """The topic's id, the format and the columns: other records are published whole."""
    publication = contracts.gold.publication
    columns = sha256(str(list(unified(contracts.gold).items())).encode()).hexdigest()[:16]
    return f"{topic_id} {publication.format} {columns}"


def publish_position(connection: KafkaConnection, contracts: Contracts) -> tuple[PublishPosition, str]:
    """The publish position, and the shape of records for the topic as it is now; both empty where there is no topic."""
    publication = contracts.gold.publication
    known, position, topic_id = partitions(connection), PublishPosition(), ""
    if publication.topic in known:
        topic_id = topic_ids(connection, [publication.topic])[publication.topic]
    if publication.progress_topic in known:
        position = read_publish_position(connection, publication.progress_topic)
    return position, shape_of(contracts, topic_id=topic_id)


def read_publish_position(connection: KafkaConnection, topic: str) -> PublishPosition:
    """The last publish position on the progress topic; an empty one where there is none.

    Raises KafkaError when it cannot be read: another release wrote it.
    """
    last = None
    for record in committed_records(connection, topic):
        last = record.value
    if last is None:
        return PublishPosition()
    try:
        return PublishPosition.model_validate_json(last)
    except ValidationError:
        raise KafkaError(
            f"Topic {topic} does not say how far the publication has come in a way that this release can read.",
            remedy="Run the release that wrote it. Or delete that topic: the next run compares the published one with "
            "gold, and sends what differs.",
        ) from None


_GONE = "gold does not have the changes since the last publication any more"


@dataclass(frozen=True)
class PublishRange:
    """What is to be published of some sources: gold's changes after `before` and up to `now`.

    Without `before`, all that differs on the topic, and `why` says the reason; all of it when it was asked for `again`.
    """

    sources: tuple[str, ...]
    now: Version
    before: Version | None
    why: str | None
    again: bool = False


def parts(
    known: ConsumedVersions,
    contracts: Contracts,
    position: PublishPosition,
    *,
    created_ms: int,
    shape: str,
    republish: bool = False,
) -> list[PublishRange]:
    """What is to be published: of each source all that passed the gate and was not published yet.

    One in the normal case: sources at the same position go together. `known`: what all consumers have taken.
    `created_ms`: when gold was made.
    """
    together: dict[tuple[Version | None, str | None, Version], list[str]] = {}
    for name, now in passed_versions(known, contracts.gold.sources).items():
        before, why = _before(position.places.get(name), now, shape=shape, republish=republish)
        if now.created_ms == created_ms and before != now:
            together.setdefault((before, why, now), []).append(name)
    return [
        PublishRange(tuple(names), now, before, why, again=republish) for (before, why, now), names in together.items()
    ]


def _before(
    place: SourcePosition | None, now: Version, *, shape: str, republish: bool
) -> tuple[Version | None, str | None]:
    """What the topic has of a source; where it cannot be gone on from, the reason."""
    if republish:
        return None, "it was asked for"
    if place is None:
        return None, "nothing is known to be published of it"
    if place.shape != shape:
        return None, "the topic was created again, or its format or columns are others"
    before = Version(now.table, place.created_ms, place.version)
    if not before.goes_on_to(now):
        return None, "gold was rebuilt, or restored to an earlier version"
    return before, None


@dataclass(frozen=True)
class NewRecords:
    """The records of a `PublishRange`, one a key: `key`, `value`, `change_type`, `change_sequence`; so many, computed.

    `why` its sources were compared with the topic, None where gold's changes were enough. `generation`: of the records.
    """

    rows: DataFrame
    count: int
    why: str | None
    generation: int


@contextmanager
def new_records(
    warehouse: Warehouse,
    connection: KafkaConnection,
    contracts: Contracts,
    new: PublishRange,
    position: PublishPosition,
) -> Iterator[NewRecords]:
    """What there is to send of a `PublishRange`, inside the block."""
    before = new.before
    if before is not None:
        with kept_changes(lambda: _changed(warehouse, contracts, new, first=before.number + 1)) as changed:
            if changed is not None:
                rows = records_of(changed.rows, contracts, generation=position.generation)
                yield NewRecords(rows, changed.count, None, position.generation)
                return
    # Whatever was published before: its numbers are lower.
    generation = max(time.time_ns() // 1_000_000, position.generation + 1)
    with materialized(_differing(warehouse, connection, contracts, new, generation=generation)) as differing:
        yield NewRecords(differing, differing.count(), new.why or _GONE, generation)


def _changed(warehouse: Warehouse, contracts: Contracts, new: PublishRange, *, first: int) -> DataFrame:
    """The keys of the sources whose rows changed, as they are at the end of the `PublishRange`."""
    feed = warehouse.changes(new.now.table, first=first, last=new.now.number)
    # First what became of each key, then whose it is: a key that went to another source is that one's alone.
    return net_changes(feed, columns=unified(contracts.gold)).where(of_sources(contracts, new.sources))


def _differing(
    warehouse: Warehouse, connection: KafkaConnection, contracts: Contracts, new: PublishRange, *, generation: int
) -> DataFrame:
    """A record for every key of the sources that is not on the topic as it is in gold; for all, when asked for."""
    gold = warehouse.read(new.now.table, version=new.now.number).where(of_sources(contracts, new.sources))
    states = gold.withColumns({"is_deleted": F.lit(False), "version": F.lit(new.now.number)})
    there = topic_of_sources(warehouse, connection, contracts, new.sources)
    both = beside(records_of(states, contracts, generation=generation), there)
    is_gone = ~F.col("is_expected") & F.col("is_there")
    is_news = F.col("is_expected") & (F.lit(new.again) | ~F.col("is_same"))
    sequence = change_sequence(F.lit(generation), F.lit(new.now.number))
    return both.where(is_gone | is_news).select(
        "key",
        "value",
        F.coalesce("change_type", F.lit("DELETE")).alias("change_type"),
        F.coalesce("change_sequence", sequence).alias("change_sequence"),
    )


def topic_of_sources(
    warehouse: Warehouse, connection: KafkaConnection, contracts: Contracts, sources: Collection[str]
) -> DataFrame:
    """The last value of every key of these sources on the topic; no row where there is no topic yet."""
    topic = contracts.gold.publication.topic
    if topic not in partitions(connection):
        return small_table(warehouse.spark, [], "key BINARY, value BINARY")
    prefixes = {name: source.prefix for name, source in contracts.gold.sources.items()}
    prefix = F.regexp_extract(composite_key_of(F.col("key")), "^([A-Z][A-Z0-9]*)-", 1)
    # A key that is no source's, and one that is not ours at all.
    is_others = F.coalesce(~prefix.isin(*prefixes.values()), F.lit(True))
    is_own = reduce(or_, [is_others if name == OTHERS else prefix == prefixes[name] for name in sources])
    there = committed_topic(warehouse.spark, connection, topic, reader="publish")
    return compacted(there).where(is_own)


def records_of(states: DataFrame, contracts: Contracts, *, generation: int) -> DataFrame:
    """The records of these states, key and value as bytes."""
    told = records(
        states, columns=unified(contracts.gold), generation=generation, record_format=contracts.gold.publication.format
    )
    return told.withColumns({"key": F.col("key").cast("binary"), "value": F.col("value").cast("binary")})


def of_sources(contracts: Contracts, sources: Collection[str]) -> Column:
    """Whether a row of gold is of one of these sources."""
    return reduce(or_, [of_source(contracts, name) for name in sources])
