"""A topic compared with its table: is the last value of every key what its readers should have?"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.change_feed.changes import is_gone
from gold.quality.gate import OTHERS
from gold.topics.differences import full_outer_compare, last_values
from gold.topics.formats import shown_key
from gold.topics.position import SourcePosition, position_and_id
from gold.topics.unpublished import composite_key_of, orders_at, publish_position, ready, topic_of_sources
from gold.topics.upsert import rows_at, upsert_of, upsert_ready
from gold.unify import UNIFIED
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.delta.versions import last_version
from lakehouse.kafka.spark import source_errors
from lakehouse.spark.materialized import materialized

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_KEYS_NAMED = 20


@dataclass(frozen=True)
class Comparison:
    """How many rows the topic should have, and how many keys are not as they should be: the first are named.

    None is named where the key is sensitive. `unpublished`: the sources that were not compared, and why; of an upsert
    topic its table. `unreadable`: those that could not be compared, since what was published of them cannot be read any
    more. `behind`: by how many commits of the table the publication is behind. `table`: what sentences call it.
    """

    topic: str
    orders: int
    differing: int
    keys: tuple[str, ...]
    unpublished: Mapping[str, str]
    behind: int
    table: str = "gold"
    unreadable: Mapping[str, str] = field(default_factory=dict)


def compare(warehouse: Warehouse, settings: Settings, contracts: Contracts) -> Comparison:
    """Compare the topic with gold as it was when each source was last published. Changes nothing.

    Raises TableError when there is no gold table, KafkaError when the broker refuses.
    """
    connection = settings.kafka()
    contracts = ready(contracts, connection, register=False)
    created_ms, now = warehouse.created_at_ms(UNIFIED), warehouse.version(UNIFIED)
    position, shape = publish_position(connection, contracts)
    unpublished, unreadable, by_version = {}, dict[str, str](), dict[int, list[str]]()
    for name in (*contracts.gold.sources, OTHERS):
        source_position = position.sources.get(name)
        why = _unpublished(source_position, shape=shape, created_ms=created_ms, table="gold")
        if source_position is None or why is not None:
            unpublished[name] = why or ""
        else:
            by_version.setdefault(source_position.version, []).append(name)
    with ExitStack() as stack, source_errors(connection, job="verify"):
        orders: list[DataFrame] = []
        for version, names in list(by_version.items()):
            try:
                orders.append(stack.enter_context(materialized(_orders(warehouse, contracts, names, version))))
            except Exception as error:
                if version == now or not is_gone(error):
                    raise
                gone = f"version {version} of gold, which the topic has, cannot be read any more"
                unreadable.update(dict.fromkeys(names, gone))
                del by_version[version]
        sources = [name for names in by_version.values() for name in names]
        found = _compared_orders(warehouse, settings, contracts, orders, sources) if sources else (0, 0, ())
    unpublished.pop(OTHERS, None)
    behind = max((now - version for version in by_version), default=0)
    return Comparison(contracts.gold.unified_topic.topic, *found, unpublished, behind, unreadable=unreadable)


def compare_upsert(warehouse: Warehouse, settings: Settings, contracts: Contracts, name: str) -> Comparison:
    """Compare the upsert topic of this name with its table as it was when it was last published. Changes nothing.

    Raises TableError when there is no such table, KafkaError when the broker refuses.
    """
    connection = settings.kafka()
    upsert = upsert_of(upsert_ready(contracts, connection, name, register=False), name)
    topic, table = upsert.topic.topic, upsert.table.name
    now = last_version(warehouse, table)
    position, topic_id = position_and_id(connection, upsert.topic)
    source_position = position.sources.get(table)
    why = _unpublished(source_position, shape=upsert.shape(topic_id), created_ms=now.created_ms, table=table)
    if source_position is None or why is not None:
        return Comparison(topic, 0, 0, (), {table: why or ""}, 0, table)
    behind = now.number - source_position.version
    with ExitStack() as stack, source_errors(connection, job="verify"):
        try:
            rows = rows_at(warehouse, upsert, source_position.version).select("key", "value")
            expected = stack.enter_context(materialized(rows))
        except Exception as error:
            if not behind or not is_gone(error):
                raise
            gone = {table: f"its version {source_position.version}, which the topic has, cannot be read any more"}
            return Comparison(topic, 0, 0, (), {}, behind, table, gone)
        there = last_values(warehouse, connection, topic)
        shown = None if upsert.table.has_sensitive_key else shown_key(F.col("key"))
        found = _differing(expected, there, shown=shown)
    return Comparison(topic, *found, {}, behind, table)


def _unpublished(source_position: SourcePosition | None, *, shape: str, created_ms: int, table: str) -> str | None:
    if source_position is None:
        return "it was not published yet"
    if source_position.shape != shape:
        return "the topic was created again since it was published, or its format or columns are others"
    return f"{table} was rebuilt since it was published" if source_position.created_ms != created_ms else None


def _orders(warehouse: Warehouse, contracts: Contracts, sources: list[str], version: int) -> DataFrame:
    """The records that the topic should have of these sources at a version of gold: `key`, `value`."""
    return orders_at(warehouse, contracts, sources, version).select("key", "value")


def _compared_orders(
    warehouse: Warehouse, settings: Settings, contracts: Contracts, orders: list[DataFrame], sources: list[str]
) -> tuple[int, int, tuple[str, ...]]:
    expected = reduce(lambda left, right: left.unionByName(right), orders)
    there = topic_of_sources(warehouse, settings.kafka(), contracts, sources)
    named = F.coalesce(composite_key_of(F.col("key")), F.lit("(not a key of ours)"))
    return _differing(expected, there, shown=None if "composite_key" in contracts.sensitive_in_gold else named)


def _differing(expected: DataFrame, there: DataFrame, *, shown: Column | None) -> tuple[int, int, tuple[str, ...]]:
    """How many rows there should be, how many keys are not so, and the first of those as they are `shown`."""
    with materialized(full_outer_compare(expected, there).select("key", "is_expected", "is_same")) as both:
        wrong = both.where(~F.col("is_same"))
        first = [] if shown is None else wrong.select(shown.alias("key")).orderBy("key").limit(MAX_KEYS_NAMED).collect()
        return both.where("is_expected").count(), wrong.count(), tuple(row["key"] for row in first)
