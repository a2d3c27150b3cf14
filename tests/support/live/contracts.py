"""Contracts that read the stories' topics: a silver table a story and source, a case a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from demo.processes import HOST
from demo.stack.stack import Stack
from lakehouse.contracts.checks.mistakes import TOPICS
from lakehouse.contracts.files import MODELS, packaged_text
from lakehouse.contracts.models import Contracts
from lakehouse.contracts.tables import Column, SilverTable
from lakehouse.contracts.topics import DatabaseServer, FeedTopics, Source
from tests.support.captures import columns_of_page, with_tables
from tests.support.live.connectors import VARIANTS, Variant
from tests.support.live.dialects import FINISHED, OF_TYPES, TYPES, Dialect

CASE = "connector"


def with_databases(packaged: Contracts, stack: Stack) -> Contracts:
    """The contracts with the servers of the stack as those that may be asked."""
    sources = dict(packaged.topics.sources)
    for name, server in servers(stack).items():
        sources[name] = sources[name].model_copy(update={"databases": (DatabaseServer.model_validate(server),)})
    return packaged.model_copy(update={"topics": packaged.topics.model_copy(update={"sources": sources})})


def servers(stack: Stack) -> Mapping[str, Mapping[str, Any]]:
    """By source of the packaged contracts its database's server, as a contract names it."""
    of_source = {"postgres": stack.postgresql, "mysql": stack.mysql}
    return {
        name: {"host": HOST, "port": one.port, "password_variables": [one.password_variable]}
        for name, one in of_source.items()
    }


def write_contracts(folder: Path, stack: Stack) -> Path:
    """The packaged contracts in a folder, with the servers of the stack as those that may be asked."""
    for name in MODELS:
        text = packaged_text(name)
        if name == TOPICS:
            told = yaml.safe_load(text)
            for source, server in servers(stack).items():
                told["sources"][source]["databases"] = [dict(server)]
            text = yaml.safe_dump(told)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def tables_of(dialect: Dialect) -> tuple[str, ...]:
    """The stories' tables that a database has."""
    return (*dialect.stories, *([TYPES] if dialect.kind in OF_TYPES else []))


def contracts_of_stories(packaged: Contracts, wanted: Mapping[str, Sequence[str]]) -> Contracts:
    """The packaged contracts with these tables of these sources in place of theirs. No rule rejects anything."""
    sources, tables = {}, {}
    for source, names in wanted.items():
        of_source = [variant for variant in VARIANTS if variant.source == source]
        dialect = of_source[0].dialect
        feeds = {f"{source}_{name}": _topics(source, dialect, name) for name in names}
        sources[source] = Source.model_validate(
            {"kind": dialect.kind, "feeds": feeds, "ignored_topics": _ignored(of_source)}
        )
        tables.update({f"{source}_{name}": _table(packaged, dialect, name) for name in names})
    return with_tables(packaged, sources, tables)


def _topics(source: str, dialect: Dialect, table: str) -> FeedTopics:
    patterns = (rf"{source}_\w+\.{dialect.namespace}\.{table}",)
    return FeedTopics.model_validate({"topic_patterns": patterns, "envelope": "table"})


def _ignored(variants: list[Variant]) -> tuple[str, ...]:
    """Heartbeats, transactions, schema changes, and the rows that end the waiting."""
    names = [variant.name for variant in variants]
    return (
        *(f"__debezium-heartbeat.{name}" for name in names),
        *(f"{name}.transaction" for name in names),
        *names,
        *(variant.topic(FINISHED) for variant in variants),
    )


def _table(packaged: Contracts, dialect: Dialect, table: str) -> SilverTable:
    case = Column.model_validate({"type": "STRING", "from_topic": r"(\w+)\..+"})
    columns = columns_of_page(dialect.kind) if table == TYPES else _columns(packaged, table)
    told: Mapping[str, Any] = {
        "keys": (CASE, "order_id"),
        "sequence_by": "source_position",
        "scd_type": 2,
        "columns": {CASE: case, **columns},
    }
    return SilverTable.model_validate(told)


def _columns(packaged: Contracts, table: str) -> Mapping[str, Column]:
    columns = dict(packaged.silver.tables["postgres_orders"].columns)
    if table == "grown":
        columns["channel"] = Column.model_validate({"type": "STRING", "optional": True})
    return columns
