"""What the commands that look at the flow share: what there is to look at, from the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from cli.opening import opened
from cli.options import CommandContext
from connectors.rest import worker_at
from lakehouse.contracts.by_rule import DiscoveredTable
from lakehouse.contracts.models import Contracts
from monitoring.readings.tables import Tables, tables_at
from monitoring.status import View

if TYPE_CHECKING:
    from lakehouse.delta.tables import Warehouse
    from lakehouse.kafka.connection import KafkaConnection


def view_of(
    chosen: CommandContext, connect_url: str | None, *, with_spark: Callable[[], Warehouse] | None = None
) -> View:
    """What can be looked at with these options. Without a broker or Kafka Connect, their stages are not known.

    `with_spark`: of a command that has a Spark session, for tables that only Spark can read.
    """
    settings = chosen.settings
    kafka = settings.kafka() if settings.bootstrap_servers or settings.kafka_config else None
    has_topic = chosen.contracts.gold.has_unified
    tables = tables_at(settings.address, with_spark or (lambda: opened(chosen, chosen.steps())))
    contracts = with_discovered_tables(chosen.contracts, tables)
    return View(
        contracts=contracts,
        tables=tables,
        kafka=kafka,
        worker=worker_at(connect_url) if connect_url else None,
        published=partial(published_versions, contracts, tables, kafka) if kafka and has_topic else None,
    )


def with_discovered_tables(contracts: Contracts, tables: Tables) -> Contracts:
    """The contracts with the tables that rules have made in the warehouse."""
    has_rules = any(source.by_rule for source in contracts.topics.sources.values())
    if not has_rules or not tables.exists("ops.tables"):
        return contracts
    rows = tables.rows("SELECT name, discovered FROM {ops.tables} ORDER BY name, version")
    last = {row["name"]: row["discovered"] for row in rows}
    return contracts.with_discovered(map(DiscoveredTable.model_validate_json, last.values()))


def published_versions(contracts: Contracts, tables: Tables, kafka: KafkaConnection) -> Mapping[str, int]:
    """By source of gold, up to which version of the gold table that is there now it is on the topic."""
    from gold.topics.unpublished import publish_position
    from gold.unify import UNIFIED

    if not tables.exists(UNIFIED):
        return {}
    created_ms = tables.facts(UNIFIED).created_ms
    position, shape = publish_position(kafka, contracts)
    return {
        name: source_position.version
        for name, source_position in position.sources.items()
        if source_position.created_ms == created_ms and source_position.shape == shape
    }
