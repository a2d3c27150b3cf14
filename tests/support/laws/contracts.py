"""The contracts under which all cases of the laws are played in one warehouse."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.contracts.models import Contracts, Expectation, Gate
from lakehouse.contracts.tables import SilverTable
from lakehouse.contracts.topics import FeedTopics
from tests.support.sharded import sharded

# The packaged contracts' topics, and those of the feeds that are declared here.
TOPICS = {
    "postgres_orders": "postgres_prod_tables.public.orders",
    "postgres_outbox_orders": "outbox.event.postgres.orders",
    "plain_orders": "plain.orders",
    "keyless_orders": "postgres_prod_tables.public.orders_nopk",
    "mysql_orders": "mysql_prod_tables.ecommerce.orders",
    "mysql_outbox_orders": "outbox.event.mysql.orders",
}
# An outbox whose payloads have some of the columns.
PARTIAL = "partial_orders"

# A rule about a column that some events lack.
NOTED = Expectation(
    name="noted",
    type="expect_column_values_to_not_be_null",
    kwargs={"column": "note", "row_condition": "order_id BETWEEN 5300 AND 5399", "condition_parser": "spark"},
    on_failure="quarantine",
    description="An order of this table has a note.",
    feeds=("plain_orders",),
)


def contracts_of_laws(packaged: Contracts) -> Contracts:
    """The packaged contracts, a feed that goes by Kafka's offsets (of 2,000 bytes at most), one without a key, and one
    of partial payloads; every topic is a case.
    """
    orders = vars(packaged.silver.tables["postgres_orders"])
    few = {name: orders["columns"][name] for name in ("order_id", "status", "total_amount")}
    outbox = packaged.silver.tables["postgres_outbox_orders"]
    partial = {"payload": "partial", "apply_as_deletes": ("OrderDeleted",)}
    tables = {
        **packaged.silver.tables,
        "plain_orders": SilverTable.model_validate({**orders, "sequence_by": "kafka_offset", "max_record_bytes": 2000}),
        "keyless_orders": SilverTable.model_validate({**orders, "keys": (), "append_only": True, "columns": few}),
        PARTIAL: outbox.model_copy(update=partial),
    }
    postgres = packaged.topics.sources["postgres"]
    of_outbox = postgres.feeds["postgres_outbox_orders"]
    more = {
        name: FeedTopics(topics=(TOPICS[name],), tables=("public.orders",), envelope="table")
        for name in ("plain_orders", "keyless_orders")
    }
    feeds = {
        **postgres.feeds,
        "postgres_outbox_orders": of_outbox.model_copy(update={"aggregate_types": ("orders",)}),
        **more,
        PARTIAL: of_outbox.model_copy(update={"topics": ("outbox.event.partial.orders",)}),
    }
    sources = {**packaged.topics.sources, "postgres": postgres.model_copy(update={"feeds": feeds})}
    gate = packaged.silver_gate
    rules = {"feeds": (*gate.feeds, "plain_orders"), "expectations": (*_of_feeds(gate), NOTED)}
    changed = {
        "silver": packaged.silver.model_copy(update={"tables": tables}),
        "topics": packaged.topics.model_copy(update={"sources": sources}),
        "silver_gate": gate.model_copy(update=rules),
    }
    return sharded(packaged.model_copy(update=changed))


def _of_feeds(gate: Gate) -> Iterable[Expectation]:
    """The gate's rules, each with the feeds that it is about."""
    return [rule.model_copy(update={"feeds": rule.feeds or gate.feeds}) for rule in gate.expectations]
