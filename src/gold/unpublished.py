"""What is to be published: of every source the records that readers of the topic do not have yet.

Told by gold's change data feed since the place where the source stands; or, where that cannot be gone on from, by the
topic itself, laid beside gold.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.bigquery import change_sequence, records
from gold.changes import net_changes
from gold.columns import unified
from gold.gates import OTHERS, of_source, passed_versions
from gold.marker import Marker, Place
from gold.topic import beside, compacted, composite_key_of
from lakehouse.change_feed import kept_changes
from lakehouse.contracts import Contracts
from lakehouse.held import held
from lakehouse.kafka import partitions
from lakehouse.kafka_client import KafkaConnection
from lakehouse.kafka_spark import committed_topic
from lakehouse.progress import Known, Version
from lakehouse.tables import Warehouse, small_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_GONE = "gold does not have the changes since the last publication any more"


@dataclass(frozen=True)
class Stretch:
    """What is to be published of some sources: gold's changes after `before` and up to `now`.

    Without `before`, all that differs on the topic, and `why` says the reason; all of it when it was asked for `again`.
    """

    sources: tuple[str, ...]
    now: Version
    before: Version | None
    why: str | None
    again: bool = False


def stretches(
    known: Known, contracts: Contracts, marker: Marker, *, created_ms: int, shape: str, republish: bool = False
) -> list[Stretch]:
    """What is to be published: of each source all that passed the gate and was not published yet.

    One in the normal case: sources that stand at the same place go together. `known`: what all consumers have taken.
    `created_ms`: when gold was made.
    """
    together: dict[tuple[Version | None, str | None, Version], list[str]] = {}
    for name, now in passed_versions(known, contracts.gold.sources).items():
        before, why = _before(marker.places.get(name), now, shape=shape, republish=republish)
        if now.created_ms == created_ms and before != now:
            together.setdefault((before, why, now), []).append(name)
    return [Stretch(tuple(names), now, before, why, again=republish) for (before, why, now), names in together.items()]


def _before(place: Place | None, now: Version, *, shape: str, republish: bool) -> tuple[Version | None, str | None]:
    """What the topic has of a source; where it cannot be gone on from, the reason."""
    if republish:
        return None, "it was asked for"
    if place is None:
        return None, "nothing is known to be published of it"
    if place.shape != shape:
        return None, "the topic was made anew, or its format or columns are others"
    before = Version(now.table, place.created_ms, place.version)
    if not before.goes_on_to(now):
        return None, "gold was made anew, or restored to an earlier version"
    return before, None


@dataclass(frozen=True)
class NewRecords:
    """The records of a stretch, at most one a key: `key`, `value`, `change_type`, `change_sequence`; so many, computed.

    `why` its sources were compared with the topic, None where gold's changes were enough. `generation`: of the records.
    """

    rows: DataFrame
    count: int
    why: str | None
    generation: int


@contextmanager
def new_records(
    warehouse: Warehouse, connection: KafkaConnection, contracts: Contracts, new: Stretch, marker: Marker
) -> Iterator[NewRecords]:
    """What there is to send of a stretch, inside the block."""
    before = new.before
    if before is not None:
        with kept_changes(lambda: _changed(warehouse, contracts, new, first=before.number + 1)) as changed:
            if changed is not None:
                rows = records_of(changed.rows, contracts, generation=marker.generation)
                yield NewRecords(rows, changed.count, None, marker.generation)
                return
    # Whatever was published before: its numbers are lower.
    generation = max(time.time_ns() // 1_000_000, marker.generation + 1)
    with held(_differing(warehouse, connection, contracts, new, generation=generation)) as differing:
        yield NewRecords(differing, differing.count(), new.why or _GONE, generation)


def _changed(warehouse: Warehouse, contracts: Contracts, new: Stretch, *, first: int) -> DataFrame:
    """The keys of the sources whose rows changed, as they are at the end of the stretch."""
    feed = warehouse.changes(new.now.table, first=first, last=new.now.number)
    # First what became of each key, then whose it is: a key that went to another source is that one's alone.
    return net_changes(feed, columns=unified(contracts.gold)).where(of_sources(contracts, new.sources))


def _differing(
    warehouse: Warehouse, connection: KafkaConnection, contracts: Contracts, new: Stretch, *, generation: int
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
