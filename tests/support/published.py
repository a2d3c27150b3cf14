"""A shop whose gold is published: silver written by hand, both jobs run, the topics read as their readers do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from demo.check import topic_differences
from gold.topics import publish, upsert
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts, UpsertTopic
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.log import Record, committed_records
from tests.support.gold import Shop, ungated
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse


class PublishedShop(Shop):
    """Silver tables written by hand, gold, and its topics: that of the unified orders, and the upsert topics."""

    @property
    def servers(self) -> str:
        return self.chosen.kafka().bootstrap_servers

    @property
    def topic(self) -> str:
        return self.contracts.gold.unified_topic.topic

    @property
    def progress_topic(self) -> str:
        return self.contracts.gold.unified_topic.progress_topic

    def publish(self, contracts: Contracts | None = None, **how: Any) -> publish.PublishOutcome:
        return publish.run(self.warehouse.spark, self.chosen, contracts or self.contracts, **how)

    def pending(self, **how: Any) -> int:
        return publish.pending(self.warehouse, self.chosen, self.contracts, **how)

    def records(self) -> list[Record]:
        """Every committed record of the topic."""
        return list(committed_records(self.chosen.kafka(), self.topic))

    def sent(self) -> list[tuple[str, bool]]:
        """Every committed record of the topic: its key, and whether it is a delete."""
        return sorted((json.loads(record.key)["composite_key"], record.value is None) for record in self.records())

    def differences(self) -> list[str]:
        """A sentence when the topic's last value per key is not gold."""
        return topic_differences(self.warehouse, bootstrap_servers=self.servers, topic=self.topic)

    def upsert_topic(self, name: str) -> str:
        return self.contracts.gold.upsert_topics[name].topic

    def upsert_pending(self) -> dict[str, int]:
        return upsert.pending(self.warehouse, self.chosen, self.contracts)

    def upsert_records(self, name: str) -> list[Record]:
        """Every committed record of an upsert topic."""
        return list(committed_records(self.chosen.kafka(), self.upsert_topic(name)))

    def upsert_rows(self, name: str) -> dict[str, Any]:
        """What compaction leaves: by the text of its payload, the last value of every key that has one."""
        last = {record.key: record.value for record in self.upsert_records(name)}
        return {payload_text(key): payload(value) for key, value in last.items() if value is not None}


def payload(record: bytes) -> Any:
    """What a record says, with or without its schema."""
    read = json.loads(record)
    return read.get("payload", read)


def payload_text(record: bytes) -> str:
    return json.dumps(payload(record))


def sent(outcome: publish.PublishOutcome) -> dict[str, int]:
    """How many records went to each upsert topic."""
    return {name: one.sent for name, one in outcome.upserted.items()}


def with_topics(contracts: Contracts, **declared: Mapping[str, Any]) -> Contracts:
    """The contracts with these upsert topics, each on a topic of its own that is new unless it is named."""
    topics = {
        name: UpsertTopic.model_validate(
            {"topic": f"upsert.{uuid4().hex}", "partitions": 3, "replication_factor": 1, **one}
        )
        for name, one in declared.items()
    }
    return contracts.model_copy(update={"gold": contracts.gold.model_copy(update={"upsert_topics": topics})})


def sequences(records: list[Record]) -> Mapping[str, list[str]]:
    """The change sequences of every key, in the order of its partition."""
    found: dict[str, list[str]] = {}
    for record in records:
        key = json.loads(record.key)["composite_key"]
        found.setdefault(key, []).append(record.headers["change_sequence"])
    return found


@contextmanager
def published_shop(warehouse: Warehouse, contracts: Contracts, bootstrap_servers: str) -> Iterator[PublishedShop]:
    """A shop whose unified topic is its own; it and the upsert topics of the contracts are deleted at the end."""
    own = ungated(contracts)
    if own.gold.has_unified:
        topic = own.gold.unified_topic.model_copy(update={"topic": f"unified.{uuid4().hex}"})
        own = own.model_copy(update={"gold": own.gold.model_copy(update={"publication": topic})})
    chosen = settings(
        warehouse=warehouse.location, checkpoints=warehouse.checkpoints, bootstrap_servers=bootstrap_servers
    )
    yield PublishedShop(warehouse, chosen, own)
    known = partitions(chosen.kafka())
    written = [name for topic in own.gold.published_topics for name in (topic.topic, topic.progress_topic)]
    delete(chosen.kafka(), *(name for name in written if name in known))
