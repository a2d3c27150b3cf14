"""A shop whose gold is published: silver written by hand, both jobs run, the topic read as its readers do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from demo.check import topic_differences
from gold import publish
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.log import Record, committed_records
from tests.support.gold import Shop, ungated
from tests.support.shop import delete

if TYPE_CHECKING:
    from lakehouse.spark.tables import Warehouse


class PublishedShop(Shop):
    """Silver tables written by hand, gold, and a topic."""

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


def sequences(records: list[Record]) -> Mapping[str, list[str]]:
    """The change sequences of every key, in the order of its partition."""
    found: dict[str, list[str]] = {}
    for record in records:
        key = json.loads(record.key)["composite_key"]
        found.setdefault(key, []).append(record.headers["change_sequence"])
    return found


@contextmanager
def published_shop(
    warehouse: Warehouse, contracts: Contracts, bootstrap_servers: str, **publication: Any
) -> Iterator[PublishedShop]:
    """A shop with a topic of its own, which is deleted at the end."""
    update = {"topic": f"unified.{uuid4().hex}", **publication}
    own = contracts.gold.unified_topic.model_copy(update=update)
    gold = ungated(contracts).model_copy(update={"gold": contracts.gold.model_copy(update={"publication": own})})
    chosen = settings(
        warehouse=warehouse.location, checkpoints=warehouse.checkpoints, bootstrap_servers=bootstrap_servers
    )
    shop = PublishedShop(warehouse, chosen, gold)
    yield shop
    known = partitions(chosen.kafka())
    delete(chosen.kafka(), *(topic for topic in (shop.topic, shop.progress_topic) if topic in known))
