"""What is pending for the unified topic: of every source the records that readers of the topic do not have yet.

They come from gold's change data feed since the source's publish position; or, where that cannot be gone on from, from
the topic itself, the last value of every key compared with gold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import sha256
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import net_changes
from gold.quality.gate import OTHERS, source_condition
from gold.topics.avro import with_schema_ids
from gold.topics.differences import NewRecords, computed_records, differing_records, last_values
from gold.topics.formats import AT_VERSION, IS_GONE, RecordShape, records
from gold.topics.position import PublishPosition, position_and_id, published_version
from gold.unify import UNIFIED
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.published import Field, unified_columns
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.registered import NO_IDS
from lakehouse.versions import Version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = "composite_key"
_GONE = "gold does not have the changes since the last publication any more"


def composite_key_of(key: Column) -> Column:
    """The `composite_key` in a record's key, whichever format it is in; NULL for a key that is not ours."""
    text = key.cast("string")
    flat, in_connect = F.get_json_object(text, f"$.{KEY}"), F.get_json_object(text, f"$.payload.{KEY}")
    # Avro: the id of the schema, the length, which has a second byte from 64 on, the text.
    has_two = F.conv(F.hex(F.substring(key, 6, 1)), 16, 10).cast("int") >= 128
    in_avro = F.when(has_two, F.substr(key, F.lit(8))).otherwise(F.substr(key, F.lit(7))).cast("string")
    return F.when(F.substring(key, 1, 1) == F.lit(b"\0"), in_avro).otherwise(F.coalesce(flat, in_connect))


def record_shape(contracts: Contracts) -> RecordShape:
    """The records of the unified topic: the composite key, and every column of gold."""
    columns = unified_columns(contracts.gold)
    values = tuple(Field(name, name, sql_type) for name, sql_type in columns.items())
    publication = contracts.gold.unified_topic
    ids = contracts.schema_ids.get(publication.topic, NO_IDS)
    return RecordShape(publication.format, (Field(KEY, KEY, "STRING", optional=False),), values, ids)


def shape_of(contracts: Contracts, *, topic_id: str) -> str:
    """The topic's id, the format and the columns: other records are published whole."""
    publication = contracts.gold.unified_topic
    columns = sha256(str(list(unified_columns(contracts.gold).items())).encode()).hexdigest()[:16]
    return f"{topic_id} {publication.format} {columns}"


def publish_position(connection: KafkaConnection, contracts: Contracts) -> tuple[PublishPosition, str]:
    """The publish position, and the shape of records for the topic as it is now; both empty where there is no topic."""
    position, topic_id = position_and_id(connection, contracts.gold.unified_topic)
    return position, shape_of(contracts, topic_id=topic_id)


def ready(
    contracts: Contracts, connection: KafkaConnection, *, register: bool, retry_policy: RetryPolicy | None = None
) -> Contracts:
    """The contracts with the ids of the unified topic's schemas: see `gold.topics.avro.with_schema_ids`."""
    topic, shape = contracts.gold.unified_topic, record_shape(contracts)
    return with_schema_ids(contracts, connection, topic, shape, register=register, retry_policy=retry_policy)


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
    publishable: Mapping[str, Version],
    contracts: Contracts,
    position: PublishPosition,
    *,
    created_ms: int,
    shape: str,
    republish: bool = False,
) -> list[PublishRange]:
    """What is to be published: of each source all that passed the gate and was not published yet.

    One in the normal case: sources at the same position go together. `publishable`: by
    source the commit of gold up to which it may be published. `created_ms`: when gold was made.
    """
    by_range: dict[tuple[Version | None, str | None, Version], list[str]] = {}
    for name in (*contracts.gold.sources, OTHERS):
        now = publishable.get(name)
        if now is None:
            continue
        source_position = position.sources.get(name)
        before, why = published_version(source_position, now, shape=shape, republish=republish, table="gold")
        if now.created_ms == created_ms and before != now:
            by_range.setdefault((before, why, now), []).append(name)
    return [
        PublishRange(tuple(names), now, before, why, again=republish) for (before, why, now), names in by_range.items()
    ]


@contextmanager
def new_records(
    warehouse: Warehouse,
    connection: KafkaConnection,
    contracts: Contracts,
    new: PublishRange,
    position: PublishPosition,
) -> Iterator[NewRecords]:
    """What there is to send of a `PublishRange`, inside the block."""
    before, shape = new.before, record_shape(contracts)
    with computed_records(
        changed=None if before is None else partial(_changed, warehouse, contracts, new, before.number + 1),
        of_changed=lambda rows, generation: records(rows, shape=shape, generation=generation),
        differing=partial(_differing, warehouse, connection, contracts, new),
        generation=position.generation,
        why=new.why or _GONE,
    ) as found:
        yield found


def _changed(warehouse: Warehouse, contracts: Contracts, new: PublishRange, first: int) -> DataFrame:
    """The keys of the sources whose rows changed, as they are at the end of the `PublishRange`."""
    feed = warehouse.changes(new.now.table, first=first, last=new.now.number)
    # First what became of each key, then whose it is: a key that went to another source is that one's alone.
    changed = net_changes(feed, keys=[KEY], columns=unified_columns(contracts.gold))
    return changed.where(of_sources(contracts, new.sources))


def _differing(
    warehouse: Warehouse, connection: KafkaConnection, contracts: Contracts, new: PublishRange, generation: int
) -> DataFrame:
    """A record for every key of the sources that is not on the topic as it is in gold; for all, when asked for."""
    expected = orders_at(warehouse, contracts, new.sources, new.now.number, generation=generation)
    there = topic_of_sources(warehouse, connection, contracts, new.sources)
    return differing_records(expected, there, generation=generation, version=new.now.number, again=new.again)


def orders_at(
    warehouse: Warehouse, contracts: Contracts, sources: Collection[str], version: int, *, generation: int = 0
) -> DataFrame:
    """The records of every order that these sources have at a version of gold."""
    orders = warehouse.read(UNIFIED, version=version).where(of_sources(contracts, sources))
    states = orders.withColumns({IS_GONE: F.lit(False), AT_VERSION: F.lit(version)})
    return records(states, shape=record_shape(contracts), generation=generation)


def topic_of_sources(
    warehouse: Warehouse, connection: KafkaConnection, contracts: Contracts, sources: Collection[str]
) -> DataFrame:
    """The last value of every key of these sources on the topic; no row where there is no topic yet."""
    prefixes = {name: source.prefix for name, source in contracts.gold.sources.items()}
    prefix = F.regexp_extract(composite_key_of(F.col("key")), "^([A-Z][A-Z0-9]*)-", 1)
    # A key that is no source's, and one that is not ours at all.
    is_others = F.coalesce(~prefix.isin(*prefixes.values()), F.lit(True))
    is_own = reduce(or_, [is_others if name == OTHERS else prefix == prefixes[name] for name in sources])
    return last_values(warehouse, connection, contracts.gold.unified_topic.topic).where(is_own)


def of_sources(contracts: Contracts, sources: Collection[str]) -> Column:
    """Whether a row of gold is of one of these sources."""
    return reduce(or_, [source_condition(contracts, name) for name in sources])
