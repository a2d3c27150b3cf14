"""The topic compared with gold: is the last value of every key what its readers should have?"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gold.changes import kept_changes
from gold.gate import OTHERS
from gold.unify import UNIFIED
from gold.unpublished import (
    SourcePosition,
    beside,
    composite_key_of,
    of_sources,
    publish_position,
    records_of,
    topic_of_sources,
)
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.kafka.spark import source_errors
from lakehouse.spark.materialized import materialized
from lakehouse.spark.tables import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_KEYS_NAMED = 20


@dataclass(frozen=True)
class Comparison:
    """How many orders the topic should have, and how many keys are not as they should be: the first are named.

    None is named where the key is sensitive. `unpublished`: the sources that were not compared, and why.
    `behind`: by how many commits of gold the publication is behind.
    """

    topic: str
    orders: int
    differing: int
    keys: tuple[str, ...]
    unpublished: Mapping[str, str]
    behind: int


def compare(warehouse: Warehouse, settings: Settings, contracts: Contracts) -> Comparison:
    """Compare the topic with gold as it was when each source was last published. Changes nothing.

    Raises TableError when there is no gold table, KafkaError when the broker refuses.
    """
    connection = settings.kafka()
    created_ms, now = warehouse.created_at_ms(UNIFIED), warehouse.version(UNIFIED)
    position, shape = publish_position(connection, contracts)
    unpublished, by_version = {}, dict[int, list[str]]()
    for name in (*contracts.gold.sources, OTHERS):
        place = position.places.get(name)
        why = _unpublished(place, shape=shape, created_ms=created_ms)
        if place is None or why is not None:
            unpublished[name] = why or ""
        else:
            by_version.setdefault(place.version, []).append(name)
    with ExitStack() as stack, source_errors(connection, job="verify"):
        orders: list[DataFrame] = []
        for version, names in list(by_version.items()):
            kept = stack.enter_context(kept_changes(partial(_orders, warehouse, contracts, version, names)))
            if kept is None:
                gone = f"version {version} of gold, which the topic has, is not kept any more"
                unpublished.update(dict.fromkeys(names, gone))
                del by_version[version]
            else:
                orders.append(kept.rows)
        sources = [name for names in by_version.values() for name in names]
        found = _differing(warehouse, settings, contracts, orders, sources) if sources else (0, 0, ())
    unpublished.pop(OTHERS, None)
    behind = max((now - version for version in by_version), default=0)
    return Comparison(contracts.gold.publication.topic, *found, unpublished, behind)


def _unpublished(place: SourcePosition | None, *, shape: str, created_ms: int) -> str | None:
    if place is None:
        return "it was not published yet"
    if place.shape != shape:
        return "the topic was created again since it was published, or its format or columns are others"
    return "gold was rebuilt since it was published" if place.created_ms != created_ms else None


def _orders(warehouse: Warehouse, contracts: Contracts, version: int, sources: list[str]) -> DataFrame:
    """The records that the topic should have of these sources at a version of gold: `key`, `value`."""
    gold = warehouse.read(UNIFIED, version=version).where(of_sources(contracts, sources))
    states = gold.withColumns({"is_deleted": F.lit(False), "version": F.lit(version)})
    return records_of(states, contracts, generation=0).select("key", "value")


def _differing(
    warehouse: Warehouse, settings: Settings, contracts: Contracts, orders: list[DataFrame], sources: list[str]
) -> tuple[int, int, tuple[str, ...]]:
    """How many orders there should be, how many keys are not so, and the first of those."""
    expected = reduce(lambda left, right: left.unionByName(right), orders)
    there = topic_of_sources(warehouse, settings.kafka(), contracts, sources)
    with materialized(beside(expected, there).select("key", "is_expected", "is_same")) as both:
        wrong = both.where(~F.col("is_same"))
        names = wrong.select(F.coalesce(composite_key_of(F.col("key")), F.lit("(not a key of ours)")).alias("key"))
        is_sensitive = "composite_key" in contracts.sensitive_in_gold
        shown = [] if is_sensitive else names.orderBy("key").limit(MOST_KEYS_NAMED).collect()
        return both.where("is_expected").count(), wrong.count(), tuple(row["key"] for row in shown)
