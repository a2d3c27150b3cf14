"""Contracts in which every topic is a case of its own: hundreds of histories share one table and one MERGE a batch."""

from __future__ import annotations

from typing import Any

from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import Column, SilverTable
from lakehouse.contracts.topics import FeedTopics, Topics

CASE = "history"


def sharded(contracts: Contracts, feeds: dict[str, dict[str, Any]] | None = None) -> Contracts:
    """The same contracts with every feed in shards: its topics are `case.<anything>.<feed>`, its key begins with that.

    `feeds`: what changes in a feed (`bronze/topics.yaml`), by its name.
    """
    sources = {
        name: source.model_copy(
            update={
                "feeds": {
                    feed: _in_shards(feed, told, (feeds or {}).get(feed, {})) for feed, told in source.feeds.items()
                }
            }
        )
        for name, source in contracts.topics.sources.items()
    }
    tables = {name: as_cases(table) for name, table in contracts.silver.tables.items()}
    return contracts.model_copy(
        update={
            "topics": Topics.model_construct(sources=sources),
            "silver": contracts.silver.model_copy(update={"tables": tables}),
        }
    )


def topic_of(case: str, feed: str) -> str:
    """The topic of one case."""
    return f"case.{case}.{feed}"


def as_cases(table: SilverTable) -> SilverTable:
    """The table with the topic's case as the first column of its key."""
    case = Column.model_validate({"type": "STRING", "from_topic": r"^case\.(.*)\.[a-z_]+$"})
    keys = () if table.append_only else (CASE, *table.keys)
    return SilverTable.model_validate({**vars(table), "columns": {CASE: case, **table.columns}, "keys": keys})


def _in_shards(feed: str, told: FeedTopics, changed: dict[str, Any]) -> FeedTopics:
    pattern = topic_of(".*", feed).replace(".", r"\.").replace(r"\.*", ".*")
    return FeedTopics.model_validate({**vars(told), "topics": (), "topic_patterns": (pattern,), **changed})
